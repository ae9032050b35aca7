"""CUDA graphs of Programs for a range of sizes, on the simulated driver: run by
test_runtime_simulated.py.
"""

from __future__ import annotations

import gc

import pytest
import torch
from simulated_lists import GRAPHS, build, count, launch, lends, program, spec, twice

from torchweld.ir.dtype import DType
from torchweld.ir.program import Alloc, Patch, Sizes
from torchweld.ir.program_sizes import at
from torchweld.runtime import _driver, cudagraph, native, trial
from torchweld.runtime.background import BACKGROUND
from torchweld.runtime.cudagraph_plan import Lending
from torchweld.runtime.sized import OFTEN, SizedExecutable
from torchweld.runtime.triton_job import Cubin

pytest_plugins = ("simulated_lists",)
SAVES = Lending(saved=2)


def ranged(p, *tensors, launches, numbers=()):
    """`p`, whose tensors and launches are of n elements, for any n."""
    patches = [Patch("size", n, 0, 0) for n in tensors]
    patches += [Patch("blocks", i, 0, 0) for i in launches]
    patches += [Patch("index", n, 0, 0) for n in numbers]
    sizes = Sizes((("size", 0, 0),), ((2, None),), (), tuple(patches))
    return program(p.tensors, p.steps, p.outputs, p.arena_bytes, sizes=sizes, **p.meta)


class Alone:
    """Makes what runs one choice of sizes alone, which needs `part` of the time."""

    def __init__(self, p, part, wish):
        self.p, self.part, self.wish = p, part, wish

    def prepare(self, values):
        return at(self.p, values)

    def trial(self, old, made, done):
        return trial.Trial(old, lambda: build(made, **self.wish), done, clock=self.clock())

    def clock(self):
        asked = []

        def begin():
            asked.append(None)
            seconds = self.part if len(asked) // 2 % 2 else 1.0
            return lambda: lambda: seconds

        return begin


def sized(p, alone=None, **wish):
    cubins = {a.functions[0]: Cubin(b"simulated", a.functions[0], 0, 4, 3) for a in p.artifacts}

    def visitor(values):
        made, resize = native.resizable(p, values, {}, native.native(), False, cubins, 1 << 31)
        if wish.get("saved") is not None:
            made.save_last(wish["saved"])
        return made, resize

    return SizedExecutable(p, lambda fixed: build(fixed, **wish), visitor,
                           saves=wish.get("saved") is not None,
                           fixing=None if alone is None else Alone(p, alone, wish),
                           most_fixed=4)  # fmt: skip


def called(**wish):
    """(x + 1, as an operator's result: 2 * x)."""
    p = program(
        (spec("input"), spec("extern"), spec("fresh")),
        (twice(0, 1), Alloc(2), launch("add1", 0, 2)), (2, 1),
    )  # fmt: skip
    return sized(ranged(p, 0, 1, 2, launches=(2,)), **wish)


def filled(n, value):
    return torch.full((n,), float(value))


def graphs_of(ex):
    return {values[0]: len(run.graphs) for values, run, _ in ex.kept()}


def test_sizes_that_come_again_get_a_graph():
    ex = called()
    for i in range(6):
        for n in (4, 6, 9):
            got = ex(filled(n, i))
            assert [t.tolist() for t in got] == [[i + 1.0] * n, [2.0 * i] * n]
    assert graphs_of(ex) == {4: 1, 6: 1, 9: 1}
    before = count(GRAPHS)
    ex(filled(6, 1))
    assert count(GRAPHS) == before + 1


def test_sizes_that_come_once_get_none():
    ex = called()
    for n in range(2, 60):
        assert ex(filled(n, n))[0].tolist() == [n + 1.0] * n
    assert ex.kept() == [] and count(GRAPHS) == 0


def test_a_size_that_kernels_take_by_value_is_part_of_the_graph():
    number = spec("number", 0, (), (), 0, DType.I64, "cpu")
    p = program(
        (spec("input"), number, spec("fresh"), spec("fresh")),
        (Alloc(2), launch("state", 1, 1, 2), Alloc(3), launch("add1", 0, 3)), (2, 3),
    )  # fmt: skip
    ex = sized(ranged(p, 0, 2, 3, launches=(1, 3), numbers=(1,)))
    for _ in range(5):
        for n in (4, 6):
            assert ex(filled(n, 0))[0].tolist() == [float(n)] * n
    assert graphs_of(ex) == {4: 1, 6: 1}


def test_sizes_that_are_forgotten_take_their_graphs_with_them():
    ex = called()
    for _ in range(4):
        ex(filled(4, 1))
    assert _driver.graph_totals()[0] == 1
    ex.forget((4,))
    gc.collect()
    assert _driver.graph_totals()[0] == 0


def test_no_cycle_keeps_the_graphs_of_many_sizes():
    ex = called()
    ex.explain = ex.eager = lambda x: [x]
    for _ in range(4):
        ex(filled(4, 1))
    gc.disable()
    try:
        del ex
        assert _driver.graph_totals()[0] == 0
    finally:
        gc.enable()


def test_a_pool_in_pieces_is_made_anew_and_its_graphs_with_it(device):
    ex = called(ranged=True)
    for n in (4, 6):
        for i in range(4):
            ex(filled(n, i))
    device.pool_bytes = lambda: 1 << 30
    for i in range(3):
        assert ex(filled(9, i))[0].tolist() == [i + 1.0] * 9
    assert (graphs_of(ex), device.renewed) == ({9: 1, 6: 0, 4: 0}, 1)
    device.pool_bytes = lambda: 0
    for n in (4, 6, 9):
        assert ex(filled(n, 2))[0].tolist() == [3.0] * n
    assert graphs_of(ex) == {9: 1, 6: 1, 4: 1}


# ---------------------------------------------------------------- with gradients
def forward(**wish):
    """x + 2, saving x + 1 (a kernel's) and 2 * x (an operator's)."""
    p = program(
        (spec("input"), spec("fresh"), spec("extern"), spec("fresh")),
        (Alloc(1), launch("add1", 0, 1), twice(0, 2), Alloc(3), launch("add1", 1, 3)), (3, 1, 2),
    )  # fmt: skip
    return sized(ranged(p, 0, 1, 2, 3, launches=(1, 4)), saved=2, lending=SAVES, **wish)


def backward(of, **wish):
    """Of x + 1, 2 * x and a tangent: 2 * (x + 1) + 1, 4 * x, and twice the tangent."""
    p = program(
        (spec("input"), spec("input", 1), spec("input", 2), spec("extern"), spec("fresh"),
         spec("extern"), spec("extern")),
        (twice(0, 3), Alloc(4), launch("add1", 3, 4), twice(1, 5), twice(2, 6)), (4, 5, 6),
    )  # fmt: skip
    borrowing = cudagraph.Borrowing(of, SAVES, {0: 1, 1: 2})
    return sized(ranged(p, 0, 1, 2, 3, 4, 5, 6, launches=(2,)), lending=Lending(least=0),
                 borrowing=borrowing, **wish)  # fmt: skip


def step(f, b, n, value):
    y, saved = f(filled(n, value))
    assert y.tolist() == [value + 2.0] * n
    found = b(*saved, filled(n, 5))
    assert [g.tolist() for g in found] == [[2 * value + 3.0] * n, [4.0 * value] * n, [10.0] * n]


def test_the_backward_finds_what_a_forward_of_its_size_lends():
    f = forward()
    b = backward(f)
    for i in range(6):
        for n in (4, 6):
            step(f, b, n, i)
    assert graphs_of(f) == graphs_of(b) == {4: 1, 6: 1}
    assert [run.graphs[0][2] for _, run, _ in b.kept()] == [1, 1]  # copies: of tangents
    before = count(GRAPHS)
    step(f, b, 4, 7)
    assert count(GRAPHS) == before + 2


def test_what_is_saved_comes_as_a_tuple_at_any_size():
    f = forward()
    for n in (4, 5, 6, 5, 5):
        y, saved = f(filled(n, 1))
        assert f.saves and [t.tolist() for t in (y, *saved)] == [[3.0] * n, [2.0] * n, [2.0] * n]


def test_a_backward_is_recorded_only_for_what_forwards_of_any_size_lend():
    f = forward()
    b = backward(f)
    for i in range(5):
        assert b(filled(4, i), filled(4, i), filled(4, 1))[0].tolist() == [2.0 * i + 1] * 4
    assert graphs_of(b) == {4: 0}


def test_graphs_of_sizes_that_lend_too_much_make_room_for_one_another(device):
    device.limit = 100  # bytes: the activations of two of these sizes
    f = forward()
    for n in (4, 5, 6, 7):
        for i in range(4):
            _, saved = f(filled(n, i))
            assert saved[1].tolist() == [2.0 * i] * n
            del saved
    assert graphs_of(f) == {7: 1, 6: 0, 5: 0, 4: 0}
    assert _driver.graph_totals()[3] <= 100


def test_what_somebody_has_is_not_dropped_for_room(device):
    device.limit = 100
    f = forward()
    held = []
    for n in (4, 5, 6):
        for i in range(4):
            saved = None
            saved = f(filled(n, i))[1]
        held.append((n, saved))
    assert graphs_of(f) == {6: 1, 5: 1, 4: 1}
    assert all(saved[1].tolist() == [6.0] * n for n, saved in held)


def test_two_graphs_of_one_size_may_lend_more():
    f = forward()
    for i in range(4):
        f(filled(4, i))
    held = [f(filled(4, i))[1] for i in range(2)]
    assert graphs_of(f) == {4: 2} and held[0][0].tolist() == [1.0] * 4


@pytest.fixture
def lending(monkeypatch):
    monkeypatch.setattr("torchweld.runtime.cudagraph_plan.LEND_BYTES", 0)


def test_results_of_many_sizes_stay_valid_while_they_are_held(lending):
    ex = called()
    held = [(n, i, ex(filled(n, i))[1]) for i in range(6) for n in (4, 6)]
    assert all(z.tolist() == [2.0 * i] * n for n, i, z in held)
    assert all(sorted(lends(run)) == [0, 4 * v[0], 4 * v[0]] for v, run, _ in ex.kept())


def test_the_report_counts_sizes(lending):
    ex = called()
    for _ in range(4):
        for n in (4, 6):
            ex(filled(n, 1))
    report = cudagraph.memory_report()
    rows = [(r.values, r.graphs, r.lent, r.calls) for r in report.sizes]
    assert rows == [((6,), 1, 24, 2), ((4,), 1, 16, 2)] and report.graphs == 2
    assert "sizes 6" in report.text()


# ---------------------------------------------------------------- compiled for one size alone
TRIED = OFTEN + trial.WARM + 2 * trial.PAIRS + 8


@pytest.mark.parametrize("part", [0.5, 1.0])
def test_what_is_compiled_for_a_size_has_graphs_of_its_own(part):
    ex = called(alone=part)
    for i in range(TRIED):
        got = ex(filled(4, i))
        assert [t.tolist() for t in got] == [[i + 1.0] * 4, [2.0 * i] * 4]
        assert BACKGROUND.wait()
        if i == OFTEN + trial.WARM + 4:
            assert _driver.graph_totals()[0] == 2
            (report,) = cudagraph.memory_report().sizes
            assert report.graphs == 2 and not report.fixed
    assert ex.fixed() == [(4,)] * (part < 1)
    del got
    gc.collect()
    assert graphs_of(ex) == {4: 1} and _driver.graph_totals()[0] == 1
    before = count(GRAPHS)
    ex(filled(4, 1))
    assert count(GRAPHS) == before + 1


def test_forwards_and_backwards_are_tried_each_for_itself():
    f = forward(alone=0.5)
    b = backward(f, alone=0.5)
    for i in range(2 * TRIED):
        for n in (4, 6):
            step(f, b, n, i)
        assert BACKGROUND.wait()
    assert sorted(f.fixed()) == sorted(b.fixed()) == [(4,), (6,)]
    assert graphs_of(f) == graphs_of(b) == {4: 1, 6: 1}
    before = count(GRAPHS)
    step(f, b, 4, 7)
    assert count(GRAPHS) == before + 2
