# `make help` lists the targets. Every recipe runs on a fresh clone: .venv is made when missing.

PYTHON ?= python3
TORCH  ?= torch==2.13.0
# CPU builds of torch come without it; the tests run its interpreter and its compiler
TRITON ?= triton==3.6.0
VENV   ?= .venv
JOBS   ?= 2
PY     := $(VENV)/bin/python
READY  := $(VENV)/.ready

TORCH214 ?= torch==2.14.1 torchvision==0.29.1
C_FILES  := $(shell find src -name '*.c' -o -name '*.h' 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help demo test test-gpu check fuzz bench bench-gpu bench-capture bless test-py \
        test-torch214 clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(READY) ## the main job: one function and one transformer, eager against every compiler
	$(PY) -m torchweld bench --suite demo

test: $(READY) ## all tests that do not need a GPU or more than 20 seconds each
	$(PY) -m pytest -n $(JOBS) --dist worksteal -m "not gpu and not slow" tests

test-gpu: $(READY) ## the tests that need a CUDA device, on its machine
	$(PY) -m pytest -n $(JOBS) --dist worksteal -m gpu tests

fuzz: $(READY) ## 20,000 random programs against eager, 1,000 over tensors, threads at random: an hour
	PYTHONPATH=. $(PY) -m tests.fuzz.run --jobs $(JOBS)
	PYTHONPATH=. $(PY) -m tests.fuzz.tensor_run
	PYTHONPATH=. $(PY) -X dev -m tests.stress.threads_run --count 20

check: $(READY) ## style, types, layers, sizes, generated docs, rules of the repository
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports
	$(PY) tools/check_size.py
	$(PY) tools/check_docs.py
	$(PY) tools/ir_docs.py --check
	$(PY) tools/architecture_doc.py --check
	$(PY) -m pytest tests/repo

bench: $(READY) ## measure every case against its peers; writes bench/results and README's table
	$(PY) bench/run.py
	$(PY) bench/table.py

bench-gpu: $(READY) ## the same on a CUDA device; writes bench/results/gpu.json
	$(PY) bench/run.py --suite gpu --name gpu

bench-capture: $(READY) ## graphs of 40 architectures, next to torch.compile's; writes docs/capture-zoo.md
	$(PY) -m bench.capture --jobs $(JOBS)

bless: $(READY) ## rewrite the generated parts of the docs: read the diff before committing it
	$(PY) tools/check_docs.py --write
	$(PY) tools/ir_docs.py
	$(PY) tools/architecture_doc.py

test-py: ## torch-free tests on every other Python found, and those of capture where it has torch
	PYTHON=$(PYTHON) sh tools/test_py.sh 3.12 3.13

test-torch214: ## all tests in a virtual environment of their own with torch 2.14.1 (5.5 GB)
	$(MAKE) test VENV=.venv-torch214 TORCH="$(TORCH214)"

clean: ## remove what the recipes made, virtual environments included
	rm -rf .venv .venv-* build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src -name '*.so' -delete

# A torch that is already importable is used as it is; otherwise $(TORCH) is installed.
$(READY): pyproject.toml setup.py $(C_FILES)
	test -x $(PY) || sh tools/make_venv.sh $(PYTHON) $(VENV)
	$(PY) -c 'import torch' 2>/dev/null || $(PY) -m pip install -qq $(TORCH)
	$(PY) -c 'import triton' 2>/dev/null || $(PY) -m pip install -qq $(TRITON)
	$(PY) -m pip install -qq 'setuptools>=77' wheel
	$(PY) -m pip install -qq --no-build-isolation -e '.[dev,zoo]'
	touch $(READY)
