"""explain(): what it finds, and what it prints."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections import Counter

import pytest
import torch
from torch import nn

import torchweld

X = torch.ones(4, 3)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.scale = 0.5

    def forward(self, x):
        return torch.relu(self.lin(x)) * self.scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def broken(x):
    y = torch.relu(x)
    y = quiet(y)
    return torch.sin(y) + 1


@torchweld.disable(reason="it talks to a robot")
def quiet(x):
    return x * 2


@pytest.fixture(autouse=True)
def fresh():
    torchweld.reset()


def test_graphs_operators_and_guards_of_a_module():
    found = torchweld.explain(Net())(X)
    assert found.operators == [Counter(linear=2, relu=2, mul=2)]
    assert (len(found.graphs), found.breaks, found.eager) == (1, [], [])
    text = str(found)
    assert "graph 0: Net.forward  " + __file__ in text
    assert "6 operators: linear 2, relu 2, mul 2" in text
    line = Block.forward.__code__.co_firstlineno + 1
    assert f"{__file__}:{line}: return torch.relu(self.lin(x)) * self.scale" in text
    assert "self.blocks[1].scale == 0.5" in text
    assert "self.blocks[0].lin.weight is float32[3, 3] cpu requires grad" in text
    assert "is_grad_enabled() is True" in text


def test_break_with_code_line_reason_and_fix():
    found = torchweld.explain(broken)(X)
    assert [why.code for why in found.breaks][:1] == ["W108"]
    text = str(found)
    for said in ("W108: ", "y = quiet(y)", "it talks to a robot", "fix ", "ran eagerly: broken"):
        assert said in text


def test_recompilations_of_what_the_function_calls():
    @functools.partial(torchweld.disable, recursive=False)
    def eagerly(x):
        return doubled(x).sum() + doubled(x[:2]).sum()

    def outer(x):
        return eagerly(x)

    found = torchweld.explain(outer)(X)
    assert [r.of.name for r in found.recompiles] == ["doubled"]
    assert "`x` had size 4 in dimension 0, has 2" in str(found)


def doubled(x):
    return x * 2


def test_kernels_with_the_default_backend():
    with torch.no_grad():
        found = torchweld.explain(lambda x: torch.relu(x) + 1, backend="torchweld")(X)
    assert "runs as 1 generated kernel, 0 ATen calls" in str(found)
    assert found.graphs[0](X)[0].shape == X.shape


def test_what_is_compiled_already_is_explained_too():
    def f(x):
        return x + 1

    compiled = torchweld.compile(f, backend="eager")
    compiled(X)
    for fn in (compiled, f):
        found = torchweld.explain(fn)(X)
        assert len(found.graphs) == 1
    assert torchweld.statistics()["captures"] == 3
    compiled(X)
    assert torchweld.statistics()["captures"] == 3


def test_explaining_keeps_nothing():
    def f(x):
        return x + 1

    torchweld.explain(f)(X)
    assert "_torchweld_compiled" not in f.__dict__


PROGRAM = """
import torch
scale = 0.5

@torch.compile
def f(x, n):
    return x * n + scale

@torch.compile
def g(x):
    return f(x, 2) if x.sum() > 0 else x

with torch.no_grad():
    for x in (torch.ones(3), torch.ones(4)):
        f(x, 2)
        g(x)
    f(x, "no number") if False else f(x, 3)
"""


def run(path, *before, **env):
    return subprocess.run([sys.executable, *before, str(path)], capture_output=True, text=True,
                          env={**os.environ, **env})  # fmt: skip


def test_a_program_is_explained(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = run(path, "-m", "torchweld", "explain")
    assert done.returncode == 0, done.stderr
    told = ("graph 0: f  ", "generated kernel", "W101", "program.py:11", "ran eagerly: g",
            "`x` had size 3 in dimension 0, has 4", "program.py:7: `n` was 2, is 3")  # fmt: skip
    for said in told:
        assert said in done.stdout
    assert "guards: graph" not in done.stdout
    guarded = run(path, "-m", "torchweld", "explain", "--guards")
    assert "scale == 0.5" in guarded.stdout


def test_any_process_explains_itself_at_its_end(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.replace("import torch", "import torch, torchweld").replace(
        "torch.compile", "torchweld.compile"))  # fmt: skip
    done = run(path, TORCHWELD_EXPLAIN="1")
    assert "W101" in done.stderr
    assert "program.py:7: `n` was 2, is 3" in done.stderr


def chosen(x, mask):
    y = x[mask]
    n = mask.sum().item()
    torch._check(n >= 1)
    return y + x[:n]


MASK = torch.tensor([True, False, True, True])


@pytest.mark.parametrize("backend", ["eager", "torchweld"])
def test_pieces_are_named_with_the_lines_that_cut_them(backend):
    found = torchweld.explain(chosen, backend=backend)(X, MASK)
    line = chosen.__code__.co_firstlineno
    assert found.pieces == 2
    text = found.text(guards=False)
    assert text.startswith("1 graph, 2 pieces, 0 breaks")
    cut = f"2 pieces: cut at {__file__}:{line + 1} nonzero, {__file__}:{line + 2} item"
    assert f"{cut} (sizes that only the data decides)" in text
    assert found.operators == [Counter(getitem=2, nonzero=1, select=1, sum=1, item=1, add=1)]


def test_what_is_checked_and_supposed_of_sizes_is_said_in_words():
    found = torchweld.explain(chosen)(X, MASK)
    first = chosen.__code__.co_firstlineno
    item, nonzero = (f"test_explain.py:{first + k}" for k in (2, 1))
    text = found.text(guards=False)
    assert f"1 <= item ({item})  for {__file__}:{first + 3}: torch._check(n >= 1)" in text
    assert f"item ({item}) == size of nonzero ({nonzero})  for {__file__}:{first + 4}" in text


def test_the_memory_report_says_why_pieces_are_no_cuda_graph():
    compiled = torchweld.compile(chosen)
    compiled(X, MASK)
    (one,) = torchweld.memory_report().pieces
    assert one.pieces == torchweld.statistics()["pieces"] == 2
    assert "no CUDA graph around them" in torchweld.memory_report().text()
    assert [c.name for c in one.causes] == ["nonzero", "item"]


GENERATOR = torch.Generator()
LAZY = torch.nn.LazyLinear(2)


@pytest.mark.parametrize(("broken", "fix"), [
    (lambda x: torch.bernoulli(x, generator=GENERATOR) + 1, "default generator"),
    (lambda x: LAZY(x) + 1, "call the module once"),
    (lambda x: x * torch.equal(x, x + 1), "(a == b).all()"),
    (lambda x: x.requires_grad_() * 2, "before the compiled function"),
], ids=["draws", "lazy", "equal", "requires_grad"])  # fmt: skip
def test_a_break_says_what_to_do_about_it(broken, fix):
    torchweld.reset()
    found = torchweld.explain(broken)(torch.ones(2, 3))
    (why,) = {b.text().splitlines()[-1] for b in found.breaks}
    assert why.startswith("  fix  ") and fix in why
    assert fix in str(found)


def test_what_is_supposed_of_values_is_shown_with_its_line():
    def checked(x):
        if (x < -9).any():
            raise ValueError("small")
        return x * 2 + 1

    shown = str(torchweld.explain(checked)(torch.ones(3)))
    assert "supposed; where it does not hold, the call runs eagerly" in shown
    assert "failed tests (test_explain.py:" in shown and "(x < -9).any()" in shown
