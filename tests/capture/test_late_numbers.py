# ruff: noqa: UP031, UP032
# The programs are written as users write them.
"""Numbers that change at every call do not make every call compile anew."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from guard_twin import calls, graphs, same
from torch import nn

import torchweld
from torchweld.base import events

X = torch.ones(4, 3)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = 0
        self.seconds = 0.5
        self.info = {"seen": 0}

    def forward(self, x):
        self.steps += 1
        self.seconds = self.seconds * 2 - 1
        self.info["seen"] += x.shape[0]
        return x * 2


def test_counters_of_a_module():
    torchweld.reset()
    eager, net = Counter(), Counter()
    compiled = torchweld.compile(net, backend="eager")
    for _ in range(8):
        same(compiled(X), eager(X))
        assert (net.steps, net.seconds, net.info) == (eager.steps, eager.seconds, eager.info)
    assert graphs() <= 2


COUNT = 0


def test_counter_that_is_a_global():
    def f(x):
        global COUNT
        COUNT = COUNT + 1
        return x + 1

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    before = COUNT
    for _ in range(8):
        compiled(X)
    assert before + 8 == COUNT
    assert graphs() <= 2


def test_counter_in_a_list_and_in_a_cell():
    count, seen = [0], 0

    def f(x):
        nonlocal seen
        seen += 2
        count[0] += 1
        return x + 1

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    for _ in range(8):
        compiled(X)
    assert (count, seen) == ([8], 16)
    assert graphs() <= 2


def test_returned_number():
    calls(lambda x, n: (x + 1, n, -n * 3), *((X, n) for n in range(6)), made=2)


ARITHMETIC = {
    "sum": lambda a, b: a + b - 1,
    "product": lambda a, b: a * b * 2.0,
    "quotient": lambda a, b: a / b,
    "floor": lambda a, b: a // b,
    "remainder": lambda a, b: -a % b,
    "power": lambda a, b: a**b,
    "functions": lambda a, b: math.sqrt(abs(a)) + min(a, b) + float(b) + int(a),
}


@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.parametrize("kind", [int, float])
def test_arithmetic_is_exact(name, kind):
    fn = ARITHMETIC[name]
    pairs = [(kind(i), kind(7 - i)) for i in range(1, 7)]
    calls(lambda x, a, b: (x * 2, fn(a, b)), *((X, *p) for p in pairs), made=2)


def test_arithmetic_that_raises():
    def f(x, n):
        try:
            return x + 1, 6 // n
        except ZeroDivisionError:
            return x + 2, None

    calls(f, *((X, n) for n in (3, 2, 0, 1, 0)), made=2)


def test_power_whose_type_changes():
    calls(lambda x, n: (x + 1, n**-1 if n > 100 else 2**n), *((X, n) for n in (1, 2, 3)), made=2)
    calls(lambda x, n: (x + 1, 2**n), *((X, n) for n in (1, 2, -1, -2, 3)), made=2)


def test_type_of_a_late_number_is_guarded():
    calls(lambda x, n: (x + 1, n + 1), (X, 1), (X, 2), (X, 3.0), (X, True), (X, 4), made=4)


# ------------------------------------------------------------------------- operators
OPERATORS = {
    "sum": lambda x, v: x + v,
    "difference from": lambda x, v: v - x,
    "product": lambda x, v: v * x,
    "quotient": lambda x, v: x / (v + 1),
    "in place": lambda x, v: x.clone().mul_(v),
    "alpha": lambda x, v: torch.add(x, x, alpha=v),
    "comparison": lambda x, v: x < v,
    "fill": lambda x, v: torch.empty_like(x).fill_(v),
    "clamp": lambda x, v: x.clamp(max=v),
    "twice": lambda x, v: (x * v + v, v * 2 * x),
}
KINDS = {"float32": X, "bfloat16": X.bfloat16(), "int64": X.long(), "0-d": torch.tensor(3.0)}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("kind", KINDS)
def test_operator_takes_a_late_number(name, kind):
    if (name, kind) == ("in place", "int64") or (name, kind) == ("alpha", "int64"):
        values = (1, 2, 5, 9)
    else:
        values = (0.1, 0.2, 1.7, 3.3)
    calls(OPERATORS[name], *((KINDS[kind], v) for v in values), made=2)


@pytest.mark.parametrize("values", [(0.1, 0.2, -0.0, math.inf), (1, 2, 3, 1 << 40)])
def test_generated_code_takes_a_late_number(values):
    def f(x, v):
        return (x * v + 1) / (v + 2)

    torchweld.reset()
    compiled = torchweld.compile(f)
    with torch.no_grad():
        for v in values:
            torch.testing.assert_close(compiled(X, v), f(X, v), rtol=1e-6, atol=0, equal_nan=True)
    counts = torchweld.statistics()
    assert counts["graphs"] == 2
    assert counts["aten_graphs"] == 0
    assert counts["internal_errors"] == 0


def test_a_late_number_fills_a_tensor_without_dimensions_where_a_mask_says():
    torchweld.reset()
    compiled = torchweld.compile(lambda x, v: x.sum().masked_fill(x > 0, v))
    with torch.no_grad():
        for v in (2, 3, 5):
            assert torch.equal(compiled(X, v), X.sum().masked_fill(X > 0, v))
    assert torchweld.statistics()["aten_graphs"] == 0


def test_decayed_weights():
    def decay(p, lr, wd):
        p.mul_(1 - lr * wd)
        p.add_(torch.ones_like(p), alpha=-(lr**2) / (1 + wd))
        return p

    calls(decay, *((X, 0.1 / (i + 1), 0.01 * (i + 2)) for i in range(6)), made=2)


# ------------------------------------------------------------------------- fixed values
FIXED = {
    "index": lambda x, n: [x, x + 1, x * 2, x - 1][n] + 1,
    "loop": lambda x, n: sum([x * i for i in range(n)], x + 1),
    "length of a text": lambda x, n: (x + 1, len(f"{n}")),
    "name": lambda x, n: x + {"n0": 1, "n1": 5, "n2": 6, "n3": 7}[f"n{n}"],
    "key": lambda x, n: x + {0: 1, 1: 5, 2: 6, 3: 7}[n],
}
DECIDED = {
    "branch": lambda x, n: x + 1 if n > 2 else x + 2,
    "branch after arithmetic": lambda x, n: x + (n * 2 + 1) if n * 2 + 1 > 3 else x - 1,
    "other way round": lambda x, n: x * n if not n <= 2 else x * 2,
    "equal": lambda x, n: x * n if n == 3 else x * 2,
}


@pytest.mark.parametrize("name", FIXED)
def test_value_that_decides_something_is_guarded(name):
    calls(FIXED[name], *((X, n) for n in (0, 1, 2, 3, 1, 3)), made=4)


@pytest.mark.parametrize("name", DECIDED)
def test_the_outcome_of_a_comparison_is_guarded(name):
    calls(DECIDED[name], *((X, n) for n in (0, 1, 2, 3, 1, 3)), made=3)


SHOWN = {
    "text": lambda x, n: (x + 1, f"step {n:03d}", str(n), "%d of 9" % n, "{}".format(n)),
    "text in a text": lambda x, n: (x + 1, f"<{f'{n}'}>" + "!", ["a", f"{n}"]),
}


@pytest.mark.parametrize("name", SHOWN)
def test_the_text_of_a_number_fixes_nothing(name):
    calls(SHOWN[name], *((X, n) for n in (0, 1, 2, 3, 1, 3)), made=2)


# what an integer decides as a size -> graphs for 0, 1, 2, 3: one, and one for each answer
SIZES = {
    "size": (lambda x, n: x.new_zeros(n, 2), 2),
    "sizes": (lambda x, n: x.new_zeros((n, n)) + n, 3),
    "slice": (lambda x, n: x[:n], 2),
    "index": (lambda x, n: torch.cat([x, x])[n] + 1, 2),
    "indices": (lambda x, n: x.repeat(4, 4, 1)[n, ..., None, :2, 0], 2),
    "list": (lambda x, n: torch.tensor([n, 2, n + 1]) * x, 2),
    "filled": (lambda x, n: torch.full((3,), n) * x + x.new_full((3,), n / 2), 2),
    "order": (lambda x, n: x.new_zeros(max([n, n + 1, 2])), 2),
    "equal elements": (lambda x, n: x == n, 2),
}


@pytest.mark.parametrize("name", SIZES)
def test_integer_that_is_a_size_is_guarded_by_what_it_decides(name):
    fn, made = SIZES[name]
    calls(fn, *((X, n) for n in (0, 1, 2, 3, 1, 3)), made=made)


def write(x, n):
    y = x.repeat(4, 2)
    y[:, n] = 5.0
    y[n] += y[0, n].clone()
    return y


def test_elements_that_a_number_chooses_are_written_by_one_graph():
    calls(write, *((X, n) for n in (0, 1, 2, 3, 1, 3)), made=2)


def test_the_larger_of_two_numbers_is_a_relation():
    def padded(x, lengths):
        return x.new_zeros(max(lengths), 2)

    pairs = ((2, 3), (4, 6), (5, 7), (7, 5), (9, 2))
    calls(padded, *((X, list(pair)) for pair in pairs), made=3)


@pytest.mark.parametrize("n", [4, -5])
def test_a_place_that_is_not_there_is_eagers_error(n):
    compiled = torchweld.compile(lambda x, n: x[n] + 1)
    for good in (1, 2, 3):
        compiled(torch.ones(4), good)
    with pytest.raises(IndexError, match="out of"):
        compiled(torch.ones(4), n)


def test_a_number_that_a_branch_has_fixed_is_still_an_input():
    def f(x, n):
        return x.new_zeros(n) + (x.sum() if n == 3 else x.mean())

    torchweld.reset()
    compiled = torchweld.compile(f)
    for n in (1, 2, 3, 4, 3):
        same(compiled(X, n), f(X, n))
    counts = torchweld.statistics()
    assert (counts["aten_graphs"], counts["internal_errors"]) == (0, 0)


def test_a_number_that_stays_the_same_is_a_constant():
    torchweld.reset()
    compiled = torchweld.compile(lambda x, n, k: (x * k, n + 1), backend="eager")
    for n in range(4):
        compiled(X, n, 3)
    text = str([g.text() for e in compiled.entries for g in e.info.guards])
    assert "equal         k  3" in text
    assert graphs() == 2


class Window:
    """As sliding caches count: what was seen, and how it compares with a size."""

    def __init__(self, size):
        self.seen, self.size = 0, size


def step(window, x):
    full = window.seen >= window.size
    offset = max(window.seen - window.size + 1, 0)
    window.seen += 1
    if full:
        return x * 2 + offset
    return x + offset if window.seen + 1 < 3 else x - 1


def test_a_comparison_recompiles_when_its_outcome_changes():
    torchweld.reset()
    eager, other = Window(10), Window(10)
    compiled = torchweld.compile(step, backend="eager")
    for _ in range(20):
        same(compiled(other, X), step(eager, X))
        assert other.seen == eager.seen
    assert graphs() == 3  # at 0; up to 9; from 10 on


def test_the_outcome_of_a_comparison_is_named_in_the_reason():
    torchweld.reset()
    window = Window(3)
    compiled = torchweld.compile(step, backend="eager")
    events.clear()
    for _ in range(6):
        compiled(window, X)
    said = "`window.seen < 3` held, but `window.seen` is 3"
    assert any(said in e.line() for e in events.recent("recompiles"))


@pytest.mark.parametrize("first", [0, 3])
def test_the_truth_of_a_number_is_a_comparison(first):
    def f(x, n):
        return x * 2 if n else x - 1

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    for n in (first, 1, 2, 3, 0, 4, 0, 5):
        same(compiled(X, n), f(X, n))
    assert graphs() <= 3


def test_two_numbers_that_are_compared_with_each_other_are_guarded_by_value():
    def f(x, a, b):
        return x + 1 if a < b else x - 1

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    for a, b in ((1, 2), (2, 3), (3, 2), (4, 9), (9, 4)):
        same(compiled(X, a, b), f(X, a, b))


def test_none_tests_do_not_fix_a_number():
    def f(x, scale):
        return x + 1 if scale is None else x * scale

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    for scale in (0.5, 1.5, 2.5, 3.5, None, 4.5):
        same(compiled(X, scale), f(X, scale))
    assert graphs() <= 3


def test_strings_that_are_passed_on_are_not_guarded_by_value():
    def f(x, name):
        return x * 2, {"name": name}

    torchweld.reset()
    compiled = torchweld.compile(f, fullgraph=True, backend="eager")
    for name in "abcdefghijkl":
        _, found = compiled(X, name)
        assert found == {"name": name}
    assert graphs() == 1


def test_strings_that_decide_are_guarded_by_value():
    def f(x, name):
        return x * 2 if name == "a" else x + len(name)

    torchweld.reset()
    compiled = torchweld.compile(f, fullgraph=True, backend="eager")
    for name in ("a", "b", "a", "bc", "b"):
        same(compiled(X, name), f(X, name))
    assert graphs() == 3


def test_a_number_that_is_part_of_a_size_may_be_fixed_afterwards():
    def f(x, n):
        rows = n + x.shape[0]
        return x * rows, f"{n:03d}"

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    for rows, n in ((4, 2), (5, 3), (6, 4), (7, 4)):
        x = torch.ones(rows, 3)
        same(compiled(x, n), f(x, n))
    assert torchweld.statistics()["internal_errors"] == 0


@pytest.mark.parametrize("backend", ["eager", "torchweld"])
def test_a_place_that_varies_and_is_out_of_range_is_eagers_error(backend):
    def f(x, k):
        y = x * 2
        y[k] = 1.0
        return y, y[k + 1]

    torchweld.reset()
    compiled = torchweld.compile(f, backend=backend)
    for k in (0, 1, 2, 3, 9, 1, -5):
        if -4 <= k < 3:
            same(compiled(X, k), f(X, k))
        else:
            with pytest.raises(IndexError):
                compiled(X, k)
    assert torchweld.statistics()["internal_errors"] == 0


# ------------------------------------------------------------------ slices, and NumPy's integers
SLICES = [slice(1, i) for i in range(2, 9)]


def part(x, s):
    return x[s] * 2


def filled(x, s):
    x = x.clone()
    x[s] = 3
    return x


@pytest.mark.parametrize("fn", [part, filled], ids=lambda f: f.__name__)
@pytest.mark.parametrize("places", [SLICES, [(s, slice(2)) for s in SLICES]],
                         ids=["slice", "slices"])  # fmt: skip
def test_slices_that_differ_are_compiled_once(fn, places):
    torchweld.reset()
    compiled = torchweld.compile(fn)
    x = torch.arange(144.0).view(12, 12)
    for s in places:
        torch.testing.assert_close(compiled(x, s), fn(x, s))
    assert len(compiled.entries) == 2


def zeros(x, n):
    return torch.zeros(n) + x.sum()


def upto(x, n):
    return x[:n] * 2


def at(x, n):
    return x[n] * 2


def narrowed(x, n):
    return x.narrow(0, n, 2)


def kept(x, n):
    return x[:n], n, n + 1


def times(x, n):
    for _ in range(n):
        x = (x * 2).sin().cos()
    return x


@pytest.mark.parametrize("fn", [zeros, upto, at, narrowed, kept, times], ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", [numpy.int64, numpy.int32])
def test_sizes_of_numpy_that_differ_are_compiled_once(fn, kind):
    torchweld.reset()
    compiled = torchweld.compile(fn)
    x = torch.arange(12.0)
    for n in range(2, 9):
        got, wanted = compiled(x, kind(n)), fn(x, kind(n))
        torch.testing.assert_close(got, wanted)
        if fn is kept:
            assert [type(i) for i in got] == [type(i) for i in wanted]
    assert len(compiled.entries) == (3 if fn is times else 2)


def test_a_number_that_is_now_an_int_and_now_a_float_is_compiled_for_both():
    def scaled(x, n):
        return x * n

    torchweld.reset()
    compiled = torchweld.compile(scaled)
    x = torch.arange(4)
    for n in (2, 2.5, 3, 3.5, 1, 1.0, 0, -0.0):
        got, wanted = compiled(x, n), scaled(x, n)
        assert got.dtype == wanted.dtype
        assert torch.equal(got, wanted)
    assert len(compiled.entries) == 3
