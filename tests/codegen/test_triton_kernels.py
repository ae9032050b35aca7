"""Every form of tile kernel computes what the plan says, in Triton's interpreter."""

import math

import pytest
from tests.codegen.tile_plans import check_graph, check_tiles
from tests.codegen.tile_runs import TileRun

from torchweld.base.errors import Unsupported
from torchweld.codegen.run import generate
from torchweld.ir.plan import Tile
from torchweld.ir.plan_text import parse

INF, NAN = math.inf, math.nan

ROWS = """
x: {dtype}[{rows}, {n}] input
y: {out}[{rows}]
return y
plan
kernel k0 grid i:{rows} tile {tile} warps 4 args x, y
  stage j:{n}
    y[i] = {kind} over j:{n} of x[i, j]  for i:{rows}
fresh y
arena 0
"""

COLUMNS = """
x: f32[{rows}, {n}] input
y: {out}[{n}]
return y
plan
kernel k0 grid i:{n} tile {tile} warps 4 args x, y
  stage r:{rows}
    y[i] = {kind} over r:{rows} of x[r, i]  for i:{n}
fresh y
arena 0
"""

SOFTMAX = """
x: {dtype}[{rows}, {n}] input
m: f32[{rows}]
e: f32[]
s: f32[{rows}]
y: {dtype}[{rows}, {n}]
return y
plan
kernel k0 grid i:{rows} tile {tile} warps 4 args x, y  # from softmax
  scalar m
  register e
  scalar s
  stage j:{n}
    m[i] = max over j:{n} of f32(x[i, j])  for i:{rows}
  stage j:{n}
    e[] = exp(f32(x[i, j]) - m[i])  for i:{rows}, j:{n}
    s[i] = sum over j:{n} of e[]  for i:{rows}
  stage j:{n}
    y[i, j] = {dtype}(exp(f32(x[i, j]) - m[i]) / s[i])  for i:{rows}, j:{n}
fresh y
arena 0
"""

# one row at once, several, several in steps, several columns at a time
TILES = ["1 64", "4 64", "1 16", "4 8", "8 1"]


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "argmax", "argmin"])
def test_row_reductions(kind, tile):
    out = "i64" if kind.startswith("arg") else "f32"
    check_tiles(ROWS.format(rows=5, n=37, kind=kind, out=out, dtype="f32", tile=tile))


@pytest.mark.parametrize("tile", ["4 64", "1 16"])
@pytest.mark.parametrize("dtype", ["f64", "bf16", "f16", "i64", "i32", "i16", "i8", "u8"])
@pytest.mark.parametrize("kind", ["sum", "max", "argmin"])
def test_reductions_of_every_dtype(kind, dtype, tile):
    if kind == "sum" and dtype in ("bf16", "f16"):
        kind = "min"  # plan_eval rounds at every step
    out = "i64" if kind.startswith("arg") else dtype
    check_tiles(ROWS.format(rows=5, n=37, kind=kind, out=out, dtype=dtype, tile=tile))


@pytest.mark.parametrize("tile", ["4 64", "1 16"])
@pytest.mark.parametrize("kind", ["any", "all", "max", "min", "argmax", "argmin"])
def test_reductions_of_bools(kind, tile):
    out = "i64" if kind.startswith("arg") else "bool"
    x = [False] * 37 + [True] * 37 + [False] * 36 + [True] + [False] + [True] * 36
    check_tiles(ROWS.format(rows=4, n=37, kind=kind, out=out, dtype="bool", tile=tile), x=x)


@pytest.mark.parametrize("tile", ["1 8", "4 8", "1 4", "2 2"])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "argmax", "argmin"])
def test_nan_and_infinity_in_reductions(kind, tile):
    out = "i64" if kind.startswith("arg") else "f32"
    x = [1, NAN, 3, NAN, 5, 0] + [INF] * 6 + [-INF] * 6 + [-INF, 2, -INF, INF, 2, NAN]
    check_tiles(ROWS.format(rows=4, n=6, kind=kind, out=out, dtype="f32", tile=tile), x=x)


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_the_first_of_equals_wins(kind):
    x = [2.0, 1.0, 2.0, 1.0] * 10
    check_tiles(ROWS.format(rows=1, n=40, kind=kind, out="i64", dtype="f32", tile="1 8"), x=x)


@pytest.mark.parametrize("tile", ["1 128", "1 16"])
def test_a_sum_of_bf16_rounds_once_at_its_end(tile):
    x = [256.0] + [1.0] * 99  # one by one in bf16, the ones would be lost
    plan = parse(ROWS.format(rows=1, n=100, kind="sum", out="bf16", dtype="bf16", tile=tile))
    assert TileRun(generate(plan), plan.graph, [x]).outputs == [[356.0]]


def test_a_sum_of_minus_zeros_is_zero():
    check_tiles(ROWS.format(rows=1, n=8, kind="sum", out="f32", dtype="f32", tile="1 8"),
                x=[-0.0] * 8)  # fmt: skip


@pytest.mark.parametrize("tile", ["32 8", "4 64", "16 1", "64 2"])
@pytest.mark.parametrize("kind", ["sum", "max", "argmax"])
def test_column_reductions(kind, tile):
    out = "i64" if kind.startswith("arg") else "f32"
    check_tiles(COLUMNS.format(rows=33, n=20, kind=kind, out=out, tile=tile))


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_softmax(dtype, tile):
    check_tiles(SOFTMAX.format(rows=5, n=50, dtype=dtype, tile=tile))


@pytest.mark.parametrize("tile", ["1 2", "2 2", "4 1", "1 8"])
def test_softmax_of_infinities_and_nans(tile):
    x = [-INF, -INF, 1.0, 2.0, -INF, -INF] + [-INF] * 6 + [INF, 1.0, -INF, 0.0, 0.0, 0.0]
    x += [0.0, NAN, 1.0, -INF, 2.0, 3.0, -INF, -INF, -INF, -INF, -INF, 5.0]
    check_tiles(SOFTMAX.format(rows=5, n=6, dtype="f32", tile=tile), x=x)


def test_a_long_softmax_reads_its_row_twice():
    (artifact,) = check_tiles(SOFTMAX.format(rows=3, n=50, dtype="f32", tile="1 16"))
    assert artifact.source.count("tl.load") == 2
    assert "weld.online" in artifact.source


def test_a_row_that_is_read_again_stays_in_the_cache():
    text = SOFTMAX.format(rows=16384, n=65536, dtype="bf16", tile="1 4096")
    (artifact,) = generate(parse(text)).artifacts
    loads = [line for line in artifact.source.splitlines() if "tl.load" in line]
    assert ["evict_last" in line for line in loads] == [True, False]
    assert ["evict_first" in line for line in loads] == [False, True]


def test_a_short_softmax_reads_its_row_once():
    (artifact,) = check_tiles(SOFTMAX.format(rows=3, n=50, dtype="f32", tile="1 64"))
    assert artifact.source.count("tl.load") == 1


@pytest.mark.parametrize("tile", ["1 512", "2 512", "1 64", "2 64", "8 128"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_rows_that_start_anywhere_are_read_from_an_aligned_address(dtype, tile):
    (artifact,) = check_tiles(SOFTMAX.format(rows=5, n=301, dtype=dtype, tile=tile))
    assert f"+ w{'0' if tile.endswith('512') else ''})" in artifact.source


@pytest.mark.parametrize("tile", ["1 512", "2 64"])
def test_the_position_in_a_row_that_starts_anywhere(tile):
    check_tiles(ROWS.format(rows=5, n=301, kind="argmax", out="i64", dtype="f16", tile=tile))


CROSS_ENTROPY = """
x: bf16[6, 50] input
t: i64[6] input
m: f32[6]
s: f32[6]
y: f32[6]
return y
plan
kernel k0 grid i:6 tile {tile} warps 4 args x, t, y
  scalar m
  scalar s
  stage j:50
    m[i] = max over j:50 of f32(x[i, j])  for i:6
  stage j:50
    s[i] = sum over j:50 of exp(f32(x[i, j]) - m[i])  for i:6
  stage
    y[i] = log(s[i]) + m[i] - f32(x[i, <check_index(t[i], 50) in 0..49>])  for i:6
fresh y
arena 0
"""


@pytest.mark.parametrize("tile", ["1 16", "4 8", "2 64"])
def test_cross_entropy(tile):
    (artifact,) = check_tiles(CROSS_ENTROPY.format(tile=tile), t=[0, 49, -1, 3, 7, -50])
    assert dict(artifact.options)["debug"] == 1


@pytest.mark.parametrize("bad", [50, -51])
def test_an_index_out_of_range_is_reported(bad):
    with pytest.raises(IndexError):
        check_tiles(CROSS_ENTROPY.format(tile="4 8"), t=[0, 1, 2, 3, 4, bad])


@pytest.mark.parametrize("bad", [50, -1])
def test_an_index_that_may_not_be_negative_is_reported_as_a_runtime_error(bad):
    text = CROSS_ENTROPY.replace("check_index", "check_bound")
    with pytest.raises(RuntimeError):
        check_tiles(text.format(tile="4 8"), t=[0, 1, 2, 3, 4, bad])


LAYER_NORM = """
x: bf16[6, 40] input
h: bf16[6, 40] input
w: bf16[40] input
z: f32[6, 40]
a: f32[6]
d: f32[6]
v: f32[6]
y: bf16[6, 40]
return y
plan
kernel k0 grid i:6 tile {tile} warps 4 args x, h, w, y
  {row} z
  scalar a
  scalar v
  scalar d
  stage j:40
    z[i, j] = f32(x[i, j]) + f32(h[i, j])  for i:6, j:40
    a[i] = sum over j:40 of z[i, j]  for i:6
  stage
    d[i] = a[i] * 0.025  for i:6
  stage j:40
    v[i] = sum over j:40 of (z[i, j] - d[i]) * (z[i, j] - d[i])  for i:6
  stage j:40
    y[i, j] = bf16((z[i, j] - d[i]) * rsqrt(v[i] * 0.025 + 1e-5) * f32(w[j]))  for i:6, j:40
fresh y
arena 0
"""


@pytest.mark.parametrize("tile", ["1 64", "4 64"])
def test_layer_norm_of_a_residual(tile):
    check_tiles(LAYER_NORM.format(tile=tile, row="row"))


def test_a_row_that_does_not_fit_the_tile_is_refused():
    with pytest.raises(Unsupported, match="outside of the loop"):
        generate(parse(LAYER_NORM.format(tile="1 16", row="row")))


SCAN = """
x: {dtype}[3, 21] input
y: {dtype}[3, 21]

y[i, j] = {kind} over j:21 of x[i, j]  for i:3

return y
"""


@pytest.mark.parametrize("tile", [Tile(1, 32), Tile(4, 32), Tile(1, 4), Tile(2, 8), Tile(4, 1)])
@pytest.mark.parametrize("kind", ["scan_sum", "scan_prod", "scan_max", "scan_min"])
@pytest.mark.parametrize("dtype", ["f32", "i64"])
def test_scans(dtype, kind, tile):
    check_graph(SCAN.format(dtype=dtype, kind=kind), tile)


SCATTER = """
x: {dtype}[40] input
at: i64[40] input
y: {dtype}[10] input

y[<check_index(at[i], 10) in 0..9>] {mode} x[i]  for i:40

return y
"""


@pytest.mark.parametrize("mode", ["+=", "max=", "min=", "*="])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16", "i64", "i32"])
def test_scatters(dtype, mode):
    at = [(7 * k) % 10 - (10 if k % 3 == 0 else 0) for k in range(40)]
    x = [(k % 5 + 1) / 4 if dtype[0] in "fb" else k % 3 + 1 for k in range(40)]
    check_graph(SCATTER.format(dtype=dtype, mode=mode), Tile(16), at=at, x=x, y=[1] * 10)


def test_atomics_on_bytes_are_refused():
    with pytest.raises(Unsupported, match="atomics"):
        check_graph(SCATTER.format(dtype="u8", mode="+="), at=[0] * 40)


def test_a_scatter_of_whole_rows():
    check_graph("""
x: f32[7, 5] input
at: i64[7] input
y: f32[4, 5] input

y[<check_index(at[i], 4) in 0..3>, j] += x[i, j]  for i:7, j:5

return y
""", Tile(16), at=[0, 1, 2, 3, 0, -1, 1])  # fmt: skip


def test_adding_at_places_of_its_own_needs_no_atomics():
    (artifact,) = check_graph("""
x: f32[40] input
y: bf16[40] input

y[39 - i] += bf16(x[i])  for i:40

return y
""")
    assert "atomic" not in artifact.source


@pytest.mark.parametrize("at", ["0", "i // 5", "<mod(k[0], 4) in 0..3>"])
def test_adding_at_places_that_points_share(at):
    (artifact,) = check_graph(f"""
x: f32[20] input
k: i64[1] input
y: f32[4] input

y[{at}] += x[i]  for i:20

return y
""")
    assert "atomic_add" in artifact.source


def test_adding_twice_at_one_place():
    check_tiles("""
x: f32[40] input
y: f32[40] input
return
plan
kernel k0 grid i:40 tile 16 1 warps 4 args x, y
  stage
    y[i] += x[i]  for i:40
    y[i] *= x[i] + 3.0  for i:40
arena 0
""")


def test_concatenation_of_padded_pieces():
    check_graph("""
a: f32[4, 3] input
b: f32[2, 3] input
y: f32[8, 3]

y[i, j] = a[i, j]  for i:4, j:3
y[i + 4, j] = where(index(i) >= 1, b[i - 1, j], 0.5)  for i:3, j:3
y[7, j] = -0.0  for j:3

return y
""")


def test_a_load_behind_a_false_condition_is_not_made():
    check_graph("""
x: f32[30] input
i: i64[50] input
y: f32[50]

y[p] = where(i[p] >= 0, x[<check_index(i[p], 30) in 0..29>], -1.0)  for p:50

return y
""", i=[(k % 30) if k % 2 else -1000 for k in range(50)])  # fmt: skip


@pytest.mark.parametrize("index", ["x[j, i]", "x[j % 5, 6 - i]", "x[(i + j) // 7, (3*j) % 7]"])
def test_index_maps(index):
    check_graph(f"""
x: f32[5, 7] input
y: f32[7, 5]

y[i, j] = {index}  for i:7, j:5

return y
""")


def test_a_position_that_may_be_negative():
    check_graph("""
y: i64[30]

y[i] = index((i - 20) // 7) + index((i - 20) % 7)  for i:30

return y
""")


def test_a_number_without_dimensions():
    check_graph("""
x: bf16[] input
y: bf16[]
z: f32[3]

y[] = bf16(f32(x[]) * 2.0)
z[i] = f32(y[])  for i:3

return y, z
""", Tile(1))  # fmt: skip


def test_nothing_at_all():
    check_graph("""
x: f32[0, 3] input
y: f32[0, 3]
z: f32[3]
n: f32[3]

y[i, j] = x[i, j] + 1.0  for i:0, j:3
z[j] = max over i:0 of x[i, j]  for j:3
n[j] = sum over i:0 of x[i, j]  for j:3

return y, z, n
""")


def test_an_input_that_is_changed_in_place():
    check_graph("""
x: bf16[40] input
y: f32[40]

x[i] = bf16(f32(x[i]) * 1.7)  for i:40
y[i] = f32(x[i])  for i:40

return x, y
""")


IN_PLACE = """
x: bf16[40] input
y: f32[40]
return y
plan
kernel k0 grid i:40 tile 16 1 warps 4 args x, y
  stage
    x[i] = bf16(f32(x[i]) * 1.7)  for i:40
    y[i] = f32(x[i])  for i:40
fresh y
arena 0
"""


def test_what_was_stored_is_not_loaded_again():
    (artifact,) = check_tiles(IN_PLACE)
    assert artifact.source.count("tl.load") == 1


THROUGH_MEMORY = """
x: f32[6, 20] input
t: f32[6, 20]
y: f32[6, 20]
return y
plan
kernel k0 grid i:6 tile 2 {loop} warps 4 args x, t, y
  stage j:20
    t[i, j] = x[i, j] * x[i, j]  for i:6, j:20
  stage j:20
    y[i, j] = t[i, 19 - j]  for i:6, j:20
slot t at 0 bytes 480
fresh y
arena 512
"""


@pytest.mark.parametrize("loop", [32, 8])
def test_a_barrier_stands_between_a_store_and_a_load_of_another_place(loop):
    (artifact,) = check_tiles(THROUGH_MEMORY.format(loop=loop))
    assert artifact.source.count("debug_barrier") == 1


def test_a_step_that_reads_what_another_step_writes_is_refused():
    with pytest.raises(Unsupported, match="another step"):
        generate(parse("""
x: f32[6, 20] input
y: f32[6, 21]
return y
plan
kernel k0 grid i:6 tile 2 32 warps 4 args x, y
  stage j:20
    y[i, j + 1] = x[i, j] + y[i, j]  for i:6, j:20
fresh y
arena 0
"""))  # fmt: skip


def test_a_number_of_the_cpu_is_passed_by_value():
    text = """
x: f32[20] on "cuda:0" input
a: bf16[] input
y: f32[20] on "cuda:0"
return y
plan
kernel k0 grid i:20 tile 16 1 warps 4 args x, a, y
  stage
    y[i] = x[i] * f32(a[])  for i:20
fresh y
arena 0
"""
    plan = parse(text)
    program = generate(plan)
    (artifact,) = program.artifacts
    assert dict(artifact.options)["signature"] == "*fp32:16 bf16 *fp32:16"
    x = [float(i) for i in range(20)]
    assert TileRun(program, plan.graph, [x, [0.5]]).outputs == [[i * 0.5 for i in range(20)]]


def test_equal_layers_share_one_text():
    plan = parse("""
x: f32[20] input
t: f32[20]
y: f32[20]
return y
plan
kernel k0 grid i:20 tile 16 1 warps 4 args x, t  # from layer_0
  stage
    t[i] = exp(x[i])  for i:20
kernel k1 grid j:20 tile 16 1 warps 4 args t, y  # from layer_1
  stage
    y[j] = exp(t[j])  for j:20
slot t at 0 bytes 128
fresh y
arena 128
""")
    program = generate(plan)
    assert len(program.artifacts) == 1
    assert [s.blocks for s in program.steps if hasattr(s, "blocks")] == [2, 2]


def test_tiles_and_cpp_in_one_program():
    plan = parse("""
x: f32[20] input
t: f32[20]
y: f32[20]
return y
plan
kernel k0 grid i:20 tile 16 1 warps 4 args x, t
  stage
    t[i] = exp(x[i])  for i:20
kernel k1 lanes j:20 args t, y
  stage
    y[j] = t[j] + 1.0  for j:20
slot t at 0 bytes 128
fresh y
arena 128
""")
    assert [a.lang for a in generate(plan).artifacts] == ["cpp", "triton"]


def test_large_offsets_are_computed_in_64_bits():
    text = """
x: f32[{rows}, 65536] input
y: f32[{rows}]
return y
plan
kernel k0 grid i:{rows} tile 1 1024 warps 4 args x, y
  stage j:65536
    y[i] = sum over j:65536 of x[i, j]  for i:{rows}
fresh y
arena 0
"""
    wide = [".to(tl.int64)" in a.source
            for rows in (32000, 32768) for a in generate(parse(text.format(rows=rows))).artifacts]
    assert wide == [False, True]
