"""Two folds over a long row run in one pass where the second is measured from the first."""

import math
import random
import statistics

import pytest
from tests.codegen.test_triton_kernels import TILES
from tests.codegen.tile_plans import check_tiles
from tests.codegen.tile_runs import TileRun, ptx_of

from torchweld.codegen.run import generate
from torchweld.ir.dtype import DType
from torchweld.ir.plan_text import parse
from torchweld.ir.rounding import convert

INF, NAN = math.inf, math.nan

VARIANCE = """
x: {dtype}[{rows}, {n}] input
t: f32[{rows}]
q: f32[{rows}]
m: f32[{rows}]
v: f32[{rows}]
return m, v
plan
kernel k0 grid i:{rows} tile {tile} warps 1 args x, m, v
  scalar t
  scalar q
  stage j:{n}
    t[i] = sum over j:{n} of f32(x[i, j])  for i:{rows}
  stage
    m[i] = t[i] / {by}  for i:{rows}
  stage j:{n}
    q[i] = sum over j:{n} of {power}  for i:{rows}
      with v0 = f32(x[i, j]) - t[i] / {by}
  stage
    v[i] = q[i] / {n}.0  for i:{rows}
fresh m, v
arena 0
"""

COLUMNS = """
x: f32[{n}, {columns}] input
t: f32[{columns}]
q: f32[{columns}]
return q
plan
kernel k0 grid i:{columns} tile {tile} warps 1 args x, q
  scalar t
  scalar q_scalar
  stage r:{n}
    t[i] = sum over r:{n} of x[r, i]  for i:{columns}
  stage r:{n}
    q_scalar[i] = sum over r:{n} of v0 * v0  for i:{columns}
      with v0 = x[r, i] - t[i] / {n}.0
  stage
    q[i] = q_scalar[i]  for i:{columns}
fresh q
arena 0
""".replace("q: f32[{columns}]\n", "q: f32[{columns}]\nq_scalar: f32[{columns}]\n")

LOGSUMEXP = """
x: f32[{rows}, {n}] input
m: f32[{rows}]
s: f32[{rows}]
y: f32[{rows}]
return y
plan
kernel k0 grid i:{rows} tile {tile} warps 1 args x, y
  scalar m
  scalar s
  stage j:{n}
    m[i] = max over j:{n} of x[i, j]  for i:{rows}
  stage j:{n}
    s[i] = sum over j:{n} of exp(x[i, j] - where(isinf(m[i]), 0.0, m[i]))  for i:{rows}
  stage
    y[i] = log(s[i]) + where(isinf(m[i]), 0.0, m[i])  for i:{rows}
fresh y
arena 0
"""


def variance(rows=5, n=50, dtype="f32", tile="1 16", by=None, power="v0 * v0"):
    return VARIANCE.format(rows=rows, n=n, dtype=dtype, tile=tile, by=by or f"{n}.0", power=power)


def numbers(n, dtype=DType.F32):
    """Not around 0, where a mean has no relative precision."""
    rng = random.Random(0)
    return [convert(rng.uniform(1, 3), dtype) for _ in range(n)]


def rows_read(artifact):
    return sum("tl.load(t0" in line for line in artifact.source.splitlines())


@pytest.mark.parametrize("tile", [*TILES, "1 32", "2 256"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("n", [50, 64, 301])
def test_a_variance_reads_its_row_once(n, dtype, tile):
    x = numbers(5 * n, DType(dtype))
    (artifact,) = check_tiles(variance(n=n, dtype=dtype, tile=tile), x=x)
    assert rows_read(artifact) == 1
    assert ("weld.moments" in artifact.source) is (int(tile.split()[1]) < n)


@pytest.mark.parametrize("tile", ["64 2", "16 16", "4 8", "32 1"])
def test_a_variance_over_columns_reads_them_once(tile):
    (artifact,) = check_tiles(COLUMNS.format(n=48, columns=33, tile=tile), x=numbers(48 * 33))
    assert rows_read(artifact) == 1 and "weld.moments" in artifact.source


@pytest.mark.parametrize("tile", ["1 16", "4 8", "8 1"])
def test_a_row_with_an_infinity_or_a_nan_has_no_variance(tile):
    x = [1.0, INF, 2.0] * 20 + [1.0] * 59 + [NAN] + [-INF] + [3.0] * 59
    check_tiles(variance(rows=3, n=60, tile=tile), x=x)


@pytest.mark.parametrize("tile", ["1 64", "1 256", "4 64"])
@pytest.mark.parametrize(("mean", "spread"), [(0, 1), (1e4, 1), (-300, 1e-2)])
def test_the_variance_of_large_numbers_loses_less_than_a_chain_of_updates(mean, spread, tile):
    rng = random.Random(1)
    x = [convert(rng.gauss(mean, spread), DType.F32) for _ in range(2 * 3001)]
    plan = parse(variance(rows=2, n=3001, tile=tile))
    (_, got) = TileRun(generate(plan), plan.graph, [list(x)]).outputs
    for v, row in zip(got, (x[:3001], x[3001:]), strict=True):
        assert v == pytest.approx(statistics.pvariance(row), rel=3e-5)


def test_a_row_whose_parts_differ_has_the_variance_of_the_whole():
    x = [0.0] * 1000 + [1e4] * 1000
    plan = parse(variance(rows=1, n=2000, tile="1 16"))
    (_, (got,)) = TileRun(generate(plan), plan.graph, [x]).outputs
    assert got == pytest.approx(2.5e7, rel=1e-6)


@pytest.mark.parametrize("changed", [{"by": "49.0"}, {"power": "v0 * v0 * v0"}])
def test_what_is_not_measured_from_the_mean_takes_a_second_pass(changed):
    x = [float(v) for v in range(250)]
    (artifact,) = check_tiles(variance(**changed), x=x)
    assert rows_read(artifact) == 2 and "weld.moments" not in artifact.source


def test_a_store_in_between_that_changes_what_the_second_fold_reads_comes_first():
    text = variance().replace("m[i] = t[i]", "x[i, 0] = t[i]").replace(" m, v", " v")
    (artifact,) = check_tiles(text.replace("args x, m", "args x"), x=numbers(250))
    assert "weld.moments" not in artifact.source


def test_a_row_that_changes_between_the_folds_is_read_twice():
    text = variance().replace("  stage\n    m[i] = t[i] / 50.0  for i:5\n", "")
    change = "    x[i, j] = x[i, j] + 1.0  for i:5, j:50\n"
    text = text.replace("  stage j:50\n    q", f"{change}  stage j:50\n    q")
    text = text.replace(" m, v", " v").replace("args x, m", "args x")
    (artifact,) = check_tiles(text, x=numbers(250))
    assert "weld.moments" not in artifact.source


@pytest.mark.parametrize("tile", ["1 16", "4 8", "4 1"])
def test_logsumexp_reads_its_row_once_and_knows_infinities(tile):
    x = [-INF] * 40 + [1.0, INF] * 20 + [-INF] * 30 + [2.0] * 10 + [NAN] + [1.0] * 39
    (artifact,) = check_tiles(LOGSUMEXP.format(rows=4, n=40, tile=tile), x=x)
    assert rows_read(artifact) == 1 and "weld.online" in artifact.source


FORMS = {
    "row": variance(n=4096, tile="1 1024"),
    "masked row": variance(n=5000, dtype="bf16", tile="1 1024"),
    "shifted row": variance(n=5001, dtype="bf16", tile="1 1024"),
    "rows": variance(rows=8, n=4096, tile="4 256"),
    "columns": COLUMNS.format(n=4096, columns=4096, tile="64 16"),
    "one step": COLUMNS.format(n=4096, columns=4096, tile="64 1"),
    "logsumexp": LOGSUMEXP.format(rows=8, n=4096, tile="1 1024"),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_compile(form):
    (artifact,) = generate(parse(FORMS[form])).artifacts
    for arch in (80, 90):
        assert ".visible .entry" in ptx_of(artifact, arch)


@pytest.mark.parametrize("form", ["row", "masked row", "shifted row", "columns"])
def test_threads_do_not_talk_to_each_other_within_the_loop(form):
    (artifact,) = generate(parse(FORMS[form])).artifacts
    loop = ptx_of(artifact).split("$L__BB0_1:")[1].split("bra")[0]
    assert "ld.global" in loop and "shfl" not in loop and "bar.sync" not in loop
