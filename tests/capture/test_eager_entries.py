"""What cannot be captured is remembered: it runs eagerly, and what it calls is compiled."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from guard_twin import same
from kept_graphs import Graphs
from torch import nn

import torchweld
from torchweld.base.errors import FullGraphError
from torchweld.frame import hook

X = torch.ones(4)


def captures():
    return torchweld.statistics()["captures"]


def broken(x):
    if x.sum() > 0:
        return helper(x) + 1
    return helper(x) - 1


def helper(x, *, scale=2.0):
    return (x * scale).relu()


def test_each_stretch_of_a_frame_that_breaks_is_captured_once():
    torchweld.reset()
    compiled = torchweld.compile(broken, backend="eager")
    for x in (X, -X, X, -X):
        same(compiled(x), broken(x))
    assert captures() == 3  # up to the branch, and each side of it


def test_functions_that_the_broken_frame_calls_are_part_of_its_graphs():
    torchweld.reset()
    backend = Graphs()
    compiled = torchweld.compile(broken, backend=backend)
    for _ in range(3):
        same(compiled(X), broken(X))
    assert len(backend.graphs) == 2
    assert "relu" in str(backend.graphs[1].graph)


def test_other_arguments_are_captured_again():
    def f(x, flag):
        if flag:
            print(end="")
            x = x * int(x.sum().item())
        return x + 1

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    for flag in (True, False, True, False):
        same(compiled(X, flag), f(X, flag))
    assert captures() == 3
    assert torchweld.statistics()["graphs"] == 3  # two with the flag, one without


def signature(a, b=2, *rest, c, d=4, **named):
    if a.sum() > 0:
        return a * b + c - d, rest, named
    return a


def test_arguments_of_every_kind_reach_the_eager_function():
    torchweld.reset()
    compiled = torchweld.compile(signature, backend="eager")
    for _ in range(2):
        same(compiled(X, c=1), signature(X, c=1))
        same(compiled(X, 3, 5, 6, c=1, d=7, e=8), signature(X, 3, 5, 6, c=1, d=7, e=8))
        same(compiled(b=5, a=X, c=X), signature(b=5, a=X, c=X))


def test_fullgraph_raises_every_time():
    torchweld.reset()
    compiled = torchweld.compile(broken, fullgraph=True, backend="eager")
    for _ in range(2):
        with pytest.raises(FullGraphError, match="W101"):
            compiled(X)


def test_a_function_without_tensors_is_remembered():
    torchweld.reset()
    compiled = torchweld.compile(lambda a, b: a + b, backend="eager")
    for _ in range(3):
        assert compiled(1, 2) == 3
    assert captures() == 1


def test_an_error_of_the_function_is_raised_and_remembered():
    def f(x, n):
        if n > 2:
            raise KeyError("n")
        return x + n

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    for _ in range(3):
        with pytest.raises(KeyError, match="n"):
            compiled(X, 3)
    assert captures() == 1
    same(compiled(X, 1), X + 1)


def test_traceback_of_an_error_names_the_users_line():
    def f(x):
        y = x + 1
        return y[7]

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    for _ in range(2):
        with pytest.raises(IndexError) as caught:
            compiled(X)
        assert "return y[7]" in str(caught.traceback[-1].statement)


@pytest.mark.parametrize("dim", [9, -3])
def test_dimension_out_of_range(dim):
    for fn in (torch.softmax, torch.sort, torch.log_softmax):
        torchweld.reset()
        with pytest.raises(IndexError, match="Dimension out of range"):
            torchweld.compile(lambda x, fn=fn: fn(x, dim))(X)


def test_internal_error_is_paid_once(monkeypatch):
    def boom(*args):
        raise ZeroDivisionError("broken")

    torchweld.reset()
    compiled = torchweld.compile(helper, backend="eager")
    with monkeypatch.context() as m:
        m.setattr("torchweld.capture.interp.residualize", boom)
        for _ in range(3):
            same(compiled(X), helper(X))
    counts = torchweld.statistics()
    assert (counts["captures"], counts["internal_errors"]) == (1, 1)


def test_recompile_limit_ends_compilation():
    torchweld.reset()
    compiled = torchweld.compile(helper, backend="eager", dynamic=False,
                                 options={"recompile_limit": 2})  # fmt: skip
    for n in (1, 2, 3, 4, 5, 1):
        same(compiled(torch.ones(n)), helper(torch.ones(n)))
    counts = torchweld.statistics()
    assert (counts["captures"], counts["graphs"], counts["breaks"]) == (2, 2, 1)


def test_what_is_called_beyond_the_limit_is_not_compiled_either():
    torchweld.reset()
    compiled = torchweld.compile(lambda x: helper(x), backend="eager",
                                 options={"recompile_limit": 1})  # fmt: skip
    for n in (1, 2, 3):
        same(compiled(torch.ones(n)), helper(torch.ones(n)))
    assert captures() == 1


# ---------------------------------------------------------------------------- inner frames
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        return self.lin(x).relu()


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), Block()
        self.tail = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x):
        x = self.first(x)
        if x.sum() > 1e9:
            return x
        return self.tail(self.second(x))


def test_submodules_of_a_broken_module_are_compiled():
    torchweld.reset()
    backend, net = Graphs(), Broken()
    compiled = torchweld.compile(net, backend=backend)
    with torch.no_grad():
        for _ in range(3):
            same(compiled(torch.ones(2, 4)), net(torch.ones(2, 4)))
    assert len(backend.graphs) == 2


def test_two_instances_with_other_shapes():
    torchweld.reset()
    backend, net = Graphs(), Broken()
    net.second.lin = nn.Linear(4, 4, bias=False)
    compiled = torchweld.compile(net, backend=backend)
    with torch.no_grad():
        for _ in range(3):
            same(compiled(torch.ones(2, 4)), net(torch.ones(2, 4)))
    assert len(backend.graphs) == 2


class Derived(Block):
    def forward(self, x):
        return super().forward(x) + 1


def test_methods_that_call_super():
    def f(x):
        if x.sum() > 1e9:
            return x
        return first(x) * second(x)

    first, second = Derived(), Derived()
    torchweld.reset()
    backend = Graphs()
    compiled = torchweld.compile(f, backend=backend)
    for _ in range(3):
        same(compiled(torch.ones(2, 4)), f(torch.ones(2, 4)))
    assert len(backend.graphs) == 2


def test_counter_in_a_frame_that_breaks():
    class Counting(Broken):
        def __init__(self):
            super().__init__()
            self.steps = 0

        def forward(self, x):
            self.steps += 1
            return super().forward(x)

    torchweld.reset()
    backend, net = Graphs(), Counting()
    compiled = torchweld.compile(net, backend=backend)
    with torch.no_grad():
        for _ in range(8):
            compiled(torch.ones(2, 4))
        before = captures()
        compiled(torch.ones(2, 4))
    assert net.steps == 9
    assert len(backend.graphs) == 3  # the first stretch twice: its counter became an input
    assert captures() == before


def test_closures_over_different_cells():
    def make(k):
        def add(x):
            return x + k

        return add

    def f(x):
        if x.sum() > 0:
            return make(1)(x) * make(2)(x)
        return x

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    for _ in range(3):
        same(compiled(X), f(X))


def test_disabled_function_is_never_captured_nor_what_it_calls():
    @torchweld.disable
    def closed(x):
        return helper(x) if x.sum() > 0 else x

    def f(x):
        return closed(x) + 1

    torchweld.reset()
    backend = Graphs()
    compiled = torchweld.compile(f, backend=backend)
    for _ in range(2):
        same(compiled(X), f(X))
    assert ["relu" in str(gm.graph) for gm in backend.graphs] == [False]


def test_generators_and_recursion_in_eager_code():
    def down(x, n):
        return x if n == 0 else down(x + n, n - 1)

    def numbers(n):
        yield from range(n)

    def f(x):
        if x.sum() > 1e9:
            return x
        return down(x, 3) + sum(numbers(4)) + sum(i for i in numbers(2))

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    for _ in range(3):
        same(compiled(X), f(X))


def test_error_in_an_inner_frame():
    def f(x):
        if x.sum() > 1e9:
            return x
        try:
            return fails(x)
        except ValueError as error:
            return x + len(error.args)

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    for _ in range(3):
        same(compiled(X), f(X))


def fails(x):
    y = x * 2
    raise ValueError("no", y.shape[0])


def test_no_hook_is_active_outside():
    torchweld.reset()
    torchweld.compile(broken, backend="eager")(X)
    assert not hook.active()


def test_reset_forgets_inner_entries():
    torchweld.reset()
    backend = Graphs()
    compiled = torchweld.compile(broken, backend=backend)
    compiled(X)
    torchweld.reset()
    compiled(X)
    assert len(backend.graphs) == 4


def test_broken_module_is_freed():
    torchweld.reset()
    net = Broken()
    compiled = torchweld.compile(net)
    compiled(torch.ones(2, 4)).sum().backward()
    dead = [weakref.ref(net), weakref.ref(net.first.lin.weight), weakref.ref(compiled)]
    del net, compiled
    gc.collect()
    assert [r() for r in dead] == [None, None, None]
