"""Reductions of few long rows on a GPU are computed in parts: what these leave, what is read."""

import math

import pytest
from loop_programs import SOFTMAX, agreeing, close, kernels, plan_of
from tests.ir.strategies import EXTERNS

from torchweld.base.config import Config
from torchweld.fuse.run import fuse
from torchweld.ir.loop_eval import evaluate
from torchweld.ir.loop_text import parse
from torchweld.ir.plan_eval import evaluate_plan

INF, NAN = math.inf, math.nan
GPU = Config(verify=True, interpret=True)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    """Rows of some dozen elements are long."""
    monkeypatch.setattr("torchweld.fuse.split_gpu.SECOND_NS", 0.0)
    monkeypatch.setattr("torchweld.fuse.split_gpu.LEAST_PART", 8)


def parts(source):
    """The kernels of a program, after checking what they compute."""
    return kernels(agreeing(source, interpret=True))


def reading(ks, name):
    return [k for k in ks if any(b.name == name for b in k.args)]


def kinds(k):
    return [n.reduce.kind for s in k.stages for n in s.nests if n.reduce]


POSITION = """
x: {dtype}[{m}, {n}] input
best: {dtype}[{m}]
at: i64[{m}]
best[i] = {kind} over j:{n} of x[i, j]  for i:{m}
at[i] = arg{kind} over j:{n} of x[i, j]  for i:{m}
return best, at
"""

LOGSUMEXP = """
x: f32[{m}, {n}] input
top: f32[{m}]
total: f32[{m}]
y: f32[{m}]
top[i] = max over j:{n} of x[i, j]  for i:{m}
total[i] = sum over j:{n} of exp(x[i, j] - where(isinf(top[i]), 0.0, top[i]))  for i:{m}
y[i] = log(total[i]) + where(isinf(top[i]), 0.0, top[i])  for i:{m}
return y
"""

VARIANCE = """
x: f32[{m}, {n}] input
total: f32[{k}]
mean: f32[{k}]
q: f32[{k}]
total[i] = sum over j:{r} of x[{at}]  for i:{k}
mean[i] = total[i] / {r}.0  for i:{k}
q[i] = sum over j:{r} of v0 * v0  for i:{k}
  with v0 = x[{at}] - mean[i]
return mean, q
"""

SCAN = """
x: {dtype}[{m}, {n}] input
y: {dtype}[{m}, {n}]
y[i, j] = {kind} over j:{n} of x[i, j]  for i:{m}
return y
"""


@pytest.mark.parametrize("n", [128, 131])
@pytest.mark.parametrize(("kind", "dtype"), [("max", "f32"), ("min", "f32"), ("max", "i32"),
                                             ("min", "u8")])  # fmt: skip
def test_an_extreme_and_its_position_come_from_one_reading(kind, dtype, n):
    ks = parts(POSITION.format(m=2, n=n, kind=kind, dtype=dtype))
    (first,) = reading(ks, "x")
    assert kinds(first) == [kind, f"arg{kind}"] and len(ks) == 2


def run(source, x):
    """What a program and its plan compute of `x`."""
    g = parse(source)
    plan = fuse(g, GPU)
    assert len(kernels(plan)) > 1
    return evaluate_plan(plan, [list(x)], EXTERNS), evaluate(g, [list(x)], EXTERNS)


@pytest.mark.parametrize("n", [128, 131])
def test_the_first_nan_and_the_first_of_equals_win_in_any_part(n):
    x = [1.0] * n + [-INF] * n + [0.0] * n
    x[40] = x[100] = 2.0
    x[2 * n + 90] = x[2 * n + 120] = NAN
    got, want = run(POSITION.format(m=3, n=n, kind="max", dtype="f32"), x)
    assert got[1] == want[1] == [40, 0, 90]


@pytest.mark.parametrize("n", [128, 131])
def test_a_softmax_reads_its_row_twice(n):
    ks = parts(SOFTMAX.format(m=2, n=n))
    first, _ = reading(ks, "x")
    assert kinds(first) == ["max", "sum"] and len(ks) <= 3
    assert "e" not in {b.name for k in ks for b in k.args}


@pytest.mark.parametrize("source", [SOFTMAX, LOGSUMEXP])
def test_parts_of_minus_infinity_add_nothing(source):
    n = 128
    x = [-INF] * 100 + [1.0, 2.0] * 14 + [-INF] * n + [0.0] * 60 + [INF] + [0.0] * 67
    got, want = run(source.format(m=3, n=n), x)
    assert close(got[0], want[0])


@pytest.mark.parametrize("n", [128, 131])
def test_logsumexp_reads_its_row_once(n):
    ks = parts(LOGSUMEXP.format(m=2, n=n))
    assert len(reading(ks, "x")) == 1 and len(ks) == 2


@pytest.mark.parametrize("n", [128, 131])
def test_the_variance_of_few_long_rows_reads_them_once(n):
    ks = parts(VARIANCE.format(m=2, n=n, k=2, r=n, at="i, j"))
    (first,) = reading(ks, "x")
    assert kinds(first) == ["sum", "sum"] and len(ks) == 2


@pytest.mark.parametrize("m", [256, 259])
def test_the_variance_of_columns_reads_them_once(m, monkeypatch):
    monkeypatch.setattr("torchweld.fuse.split_gpu.LEAST_PART", 256)
    ks = parts(VARIANCE.format(m=m, n=8, k=8, r=m, at="j, i"))
    (first,) = reading(ks, "x")
    assert kinds(first) == ["sum", "sum"] and len(ks) == 2


def test_what_is_written_in_between_is_read_again():
    source = VARIANCE.format(m=2, n=128, k=2, r=128, at="i, j")
    change = "x[i, j] = x[i, j] + 1.0  for i:2, j:128\nq[i]"
    assert len(reading(parts(source.replace("q[i]", change)), "x")) > 1


@pytest.mark.parametrize("n", [128, 131])
@pytest.mark.parametrize(("kind", "dtype"), [("scan_sum", "f64"), ("scan_prod", "f32"),
                                             ("scan_max", "f32"), ("scan_min", "i32")])  # fmt: skip
def test_a_scan_is_the_scans_of_its_parts(kind, dtype, n):
    ks = parts(SCAN.format(m=2, n=n, kind=kind, dtype=dtype))
    total, starts, *rest = ks
    assert (kinds(total), kinds(starts)) == ([kind.removeprefix("scan_")], [kind])
    assert [kinds(k) for k in rest] == [[kind]] * (1 if n == 128 else 2)


def test_a_cpu_scans_a_row_as_one():
    assert len(kernels(plan_of(SCAN.format(m=2, n=1 << 17, kind="scan_sum", dtype="f64")))) == 1
