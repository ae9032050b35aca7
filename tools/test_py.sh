#!/bin/sh
# test_py.sh VERSION...: run the tests that need no torch on each Python version that is installed,
# and those of capture where that Python has torch. A version is looked for on PATH and among
# pyenv's; one that is missing is named and left out.
set -eu
found=0
failed=0
torch_free() { # the test files of these packages in which nothing imports torch
    for package in base frame ir fuse codegen; do
        grep -rLE '^ *(import|from) torch([ .]|$)|transformers|tile_runs|tile_plans' --include='test_*.py' "tests/$package" || true
    done
}
for version in "$@"; do
    python=""
    for candidate in "python$version" "$HOME/.pyenv/versions/$version"*/bin/python; do
        if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" \
            2>/dev/null; then
            python=$candidate
            break
        fi
    done
    if [ -z "$python" ]; then
        echo "Python $version: not found"
        continue
    fi
    venv=.venv-py$version
    test -x "$venv/bin/python" || sh tools/make_venv.sh "$python" "$venv"
    "$venv/bin/python" -m pip install -qq 'setuptools>=77' wheel pytest hypothesis
    "$venv/bin/python" setup.py -q build_ext --inplace
    echo "Python $version:"
    # shellcheck disable=SC2046
    PYTHONPATH=src "$venv/bin/python" -m pytest $(torch_free) || failed=1
    if "$venv/bin/python" -c 'import torch' 2>/dev/null; then
        PYTHONPATH=src:. "$venv/bin/python" -m pytest -m "not gpu and not slow" \
            tests/capture tests/frame tests/programs || failed=1
    fi
    found=$((found + 1))
done
test "$found" -gt 0 && exit "$failed"
