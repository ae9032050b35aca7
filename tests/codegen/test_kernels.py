"""Every form of kernel computes what the plan says."""

import math

import pytest
from tests.codegen.kernels import check, run

from torchweld.base.errors import InternalError
from torchweld.codegen.cpp_ops import LONG
from torchweld.codegen.printer import MANY_CALLS
from torchweld.codegen.run import generate
from torchweld.ir.plan_text import parse

INF, NAN = math.inf, math.nan

POINTWISE = """
x: {dtype}[{n}] input
y: {dtype}[{n}]
return y
plan
kernel k0 lanes l:{n} args x, y
  stage
    y[l] = {body}  for l:{n}
fresh y
arena 0
"""

SOFTMAX = """
x: f32[{rows}, {n}] input
m: f32[{rows}]
s: f32[{rows}]
e: f32[{rows}, {n}]
y: f32[{rows}, {n}]
return y
plan
kernel k0 grid i:{rows} args x, y  # from softmax
  scalar m
  scalar s
  row e
  stage j:{n}
    m[i] = max over j:{n} of x[i, j]  for i:{rows}
  stage j:{n}
    e[i, j] = exp(x[i, j] - m[i])  for i:{rows}, j:{n}
    s[i] = sum over j:{n} of e[i, j]  for i:{rows}
  stage j:{n}
    y[i, j] = e[i, j] / s[i]  for i:{rows}, j:{n}
fresh y
arena 0
"""

COLUMNS = """
x: f32[{rows}, {n}] input
y: {out}[{n}]
return y
plan
kernel k0 lanes l:{n} args x, y
  stage r:{rows}
    y[l] = {kind} over r:{rows} of x[r, l]  for l:{n}
fresh y
arena 0
"""

ROWS = """
x: {dtype}[{rows}, {n}] input
y: {out}[{rows}]
return y
plan
kernel k0 grid i:{rows} args x, y
  stage j:{n}
    y[i] = {kind} over j:{n} of x[i, j]  for i:{rows}
fresh y
arena 0
"""


@pytest.mark.parametrize("n", [1, 15, 16, 17, 100])
def test_a_pointwise_kernel_masks_its_tail(n):
    check(POINTWISE.format(dtype="f32", n=n, body="x[l] * x[l] + 0.5"))


def chained(n, dtype="f32"):
    body = "x[l]"
    for i in range(n):
        body = f"{('sin', 'tanh')[i % 2]}({body} * 0.5:{dtype})"
    return body


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_a_kernel_with_many_long_functions_calls_them(dtype):
    text = POINTWISE.format(dtype=dtype, n=37, body=chained(MANY_CALLS, dtype))
    assert "namespace far {" in generate(parse(text)).artifacts[0].source
    check(text)


def test_a_kernel_with_few_long_functions_has_copies_of_them():
    text = POINTWISE.format(dtype="f32", n=37, body=chained(MANY_CALLS - 1))
    assert "far" not in generate(parse(text)).artifacts[0].source


@pytest.mark.parametrize("march", ["native", "haswell"])
def test_every_long_function_can_be_called(march):
    names = sorted(LONG - {"acos", "asin"})
    inside = "acos(sigmoid(x[l])) + asin(sigmoid(x[l]))"
    body = " + ".join([inside, *(f"{n}(abs(x[l]) + 0.5)" for n in names)])
    check(POINTWISE.format(dtype="f32", n=37, body=body), march=march)


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
def test_floats_are_computed_in_their_own_precision(dtype):
    check(POINTWISE.format(dtype=dtype, n=37, body=f"x[l] / 3.0:{dtype} - x[l]"))


@pytest.mark.parametrize("dtype", ["i64", "i32", "i16", "i8", "u8"])
def test_integers_wrap(dtype):
    body = f"x[l] * x[l] * x[l] * 100:{dtype} - 7:{dtype}"
    check(POINTWISE.format(dtype=dtype, n=37, body=body))


def test_a_row_kernel_keeps_its_row():
    source = check(SOFTMAX.format(rows=7, n=100))
    assert "r0[100]" in source


def test_nan_and_infinity_pass_through_softmax():
    x = [0.0, INF, 1.0, 2.0, 3.0, 4.0] + [NAN] + [1.0] * 5 + [-INF] * 6 + [1.0, 2.0, -INF, 0, 0, 0]
    check(SOFTMAX.format(rows=4, n=6), x=x)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "argmax", "argmin"])
@pytest.mark.parametrize(("rows", "n"), [(3, 5), (40, 33)])
def test_column_reductions(kind, rows, n):
    out = "i64" if kind.startswith("arg") else "f32"
    check(COLUMNS.format(rows=rows, n=n, kind=kind, out=out))


@pytest.mark.parametrize("dtype", ["f32", "f64", "i64", "u8", "i8"])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "argmax"])
def test_row_reductions(kind, dtype):
    out = "i64" if kind.startswith("arg") else dtype
    check(ROWS.format(rows=3, n=151, kind=kind, out=out, dtype=dtype))


def test_a_sum_of_bf16_rounds_once_at_its_end():
    x = [256.0] + [1.0] * 99  # one by one in bf16, the ones would be lost
    assert run(ROWS.format(rows=1, n=100, kind="sum", out="bf16", dtype="bf16"), x=x) == [[356.0]]


@pytest.mark.parametrize("kind", ["any", "all", "argmax", "argmin"])
def test_reductions_of_bools(kind):
    out = "i64" if kind.startswith("arg") else "bool"
    x = [False] * 40 + [True] * 40 + [False] * 39 + [True] + [True] * 20 + [False] + [True] * 19
    check(ROWS.format(rows=4, n=40, kind=kind, out=out, dtype="bool"), x=x)


@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin"])
def test_nan_wins_wherever_it_stands(kind):
    row = [1.0, -INF, INF, 0.0, -0.0] * 7
    x = [NAN if k == 5 * i else v for i in range(7) for k, v in enumerate(row)]
    out = "i64" if kind.startswith("arg") else "f32"
    check(ROWS.format(rows=7, n=35, kind=kind, out=out, dtype="f32"), x=x)


def test_the_first_of_equals_is_the_argmax():
    x = [1.0] * 35 + [2.0 if i in (20, 5, 33) else 0.0 for i in range(35)]
    assert run(ROWS.format(rows=2, n=35, kind="argmax", out="i64", dtype="f32"), x=x) == [[0, 5]]


def test_argmax_over_two_axes_counts_row_major():
    check("""
x: f32[3, 4, 20] input
y: i64[3]
return y
plan
kernel k0 grid i:3 args x, y
  stage j:4, k:20
    y[i] = argmax over j:4, k:20 of x[i, j, k]  for i:3
fresh y
arena 0
""")


@pytest.mark.parametrize("kind", ["scan_sum", "scan_prod", "scan_max", "scan_min"])
def test_a_scan_along_the_row_is_sequential(kind):
    check(f"""
x: f32[3, 20] input
y: f32[3, 20]
return y
plan
kernel k0 grid i:3 args x, y
  stage j:20
    y[i, j] = {kind} over j:20 of x[i, j]  for i:3
fresh y
arena 0
""")


def test_a_scan_across_lanes_carries_one_value_per_lane():
    check("""
x: f32[5, 40] input
y: f32[5, 40]
return y
plan
kernel k0 lanes l:40 args x, y
  stage r:5
    y[r, l] = scan_sum over r:5 of x[r, l]  for l:40
fresh y
arena 0
""")


def test_statistics_of_columns_stay_in_arrays_of_one_strip():
    source = check("""
x: f32[9, 50] input
m: f32[50]
y: f32[9, 50]
return y
plan
kernel k0 lanes l:50 args x, y
  scalar m
  stage r:9
    m[l] = sum over r:9 of x[r, l]  for l:50
  stage r:9
    y[r, l] = x[r, l] - m[l] / 9.0  for r:9, l:50
fresh y
arena 0
""")
    assert "r0 + l - s" in source


def test_a_padded_load_never_leaves_its_buffer():
    check("""
x: f32[40] input
y: f32[60]
return y
plan
kernel k0 lanes l:60 args x, y
  stage
    y[l] = where(and(index(l) >= 10, index(l) < 50), x[l - 10], -1.0)  for l:60
fresh y
arena 0
""")


GATHER = """
x: f32[10, 24] input
i: i64[{n}] input
y: f32[{n}, 24]
return y
plan
kernel k0 grid a:{n} args x, i, y
  stage j:24
    y[a, j] = x[<check_index(i[a], 10) in 0..9>, j]  for a:{n}, j:24
fresh y
arena 0
"""


def test_a_row_gather_is_contiguous_and_wraps_negative_indices():
    source = check(GATHER.format(n=4), i=[0, 9, -1, -10])
    assert "gather" not in source


@pytest.mark.parametrize("bad", [10, -11, 1 << 40])
def test_an_index_out_of_range_is_reported(bad):
    with pytest.raises(IndexError):
        run(GATHER.format(n=4), i=[0, bad, 1, 2])


@pytest.mark.parametrize("bad", [10, -1, 1 << 40])
@pytest.mark.parametrize("at", [0, 3])
def test_an_index_that_may_not_be_negative_is_reported_as_a_runtime_error(bad, at):
    text = GATHER.replace("check_index", "check_bound")
    check(text.format(n=4), i=[0, 9, 1, 2])
    i = [0, 9, 1, 2]
    i[at] = bad
    with pytest.raises(RuntimeError):
        run(text.format(n=4), i=i)


LANE_GATHER = """
x: f32[10] input
i: i64[37] input
y: f32[37]
return y
plan
kernel k0 lanes l:37 args x, i, y
  stage
    y[l] = x[<check_index(i[l], 10) in 0..9>]  for l:37
fresh y
arena 0
"""


def test_a_gather_by_lane():
    check(LANE_GATHER, i=[(7 * k) % 20 - 10 for k in range(37)])


def test_a_bad_index_in_the_last_lane_of_the_tail_is_reported():
    with pytest.raises(IndexError):
        run(LANE_GATHER, i=[0] * 36 + [10])


def test_a_bad_bound_in_the_last_lane_of_the_tail_is_reported():
    text = LANE_GATHER.replace("check_index", "check_bound")
    check(text, i=[(7 * k) % 10 for k in range(37)])
    with pytest.raises(RuntimeError):
        run(text, i=[0] * 36 + [-1])


def test_an_index_behind_a_where_is_not_checked():
    check("""
x: f32[10] input
i: i64[37] input
y: f32[37]
return y
plan
kernel k0 lanes l:37 args x, i, y
  stage
    y[l] = where(i[l] < 0, 7.0, x[<check_index(i[l], 10) in 0..9>])  for l:37
fresh y
arena 0
""", i=[-50 if k % 3 else k % 10 for k in range(37)])  # fmt: skip


@pytest.mark.parametrize("mode", ["=", "+=", "*=", "max=", "min="])
def test_scatter_handles_collisions_in_order(mode):
    check(f"""
x: f32[40] input
i: i64[40] input
y: f32[6] input
return y
plan
kernel k0 args x, i, y
  stage a:40
    y[<check_index(i[a], 6) in 0..5>] {mode} x[a]  for a:40
arena 0
""", i=[(k * k) % 6 for k in range(40)])  # fmt: skip


def test_transposed_and_reversed_reads():
    check("""
x: f32[20, 30] input
y: f32[30, 20]
return y
plan
kernel k0 grid a:30 lanes l:20 args x, y
  stage
    y[a, l] = x[l, a] - x[19 - l, 29 - a]  for a:30, l:20
fresh y
arena 0
""")


def test_a_flat_read_of_aligned_blocks_is_contiguous():
    source = check("""
x: f32[3, 5, 32] input
y: f32[480]
return y
plan
kernel k0 lanes l:480 args x, y
  stage
    y[l] = x[l // 32 % 3, l // 96, l % 32]  for l:480
fresh y
arena 0
""")
    assert "load(t0" in source and "gather" not in source


def test_a_flat_read_that_does_not_align_is_gathered():
    assert "each_lane" in check("""
x: f32[6, 10] input
y: f32[60]
return y
plan
kernel k0 lanes l:60 args x, y
  stage
    y[l] = x[l % 6, l // 6]  for l:60
fresh y
arena 0
""")


def test_casts_follow_x86():
    values = [0.0, -0.0, 1.9, -1.9, 300.7, -300.7, 3e9, -3e9, 1e20, -1e20, INF, -INF, NAN, 2**31.0,
              127.5, 128.5, 255.9, 256.1]  # fmt: skip
    targets = ("i64", "i32", "i16", "i8", "u8", "bool", "bf16", "f16")
    for source in ("f32", "f64"):
        outs = "".join(f"y_{t}: {t}[18]\n" for t in targets)
        names = ", ".join(f"y_{t}" for t in targets)
        kernels = "".join(f"""kernel k_{t} lanes l:18 args x, y_{t}
  stage
    y_{t}[l] = {t}(x[l])  for l:18
""" for t in targets)  # fmt: skip
        text = f"x: {source}[18] input\n{outs}return {names}\nplan\n{kernels}"
        check(f"{text}fresh {names}\narena 0\n", x=values)


def test_small_integer_operators():
    body = "floor_div(x[l], 3:i8) + mod(x[l], -4:i8) - abs(x[l])"
    check(POINTWISE.format(dtype="i8", n=40, body=body))


def test_dividing_by_zero_behind_a_where_does_not_trap():
    body = "where(x[l] == 0:i32, 0:i32, floor_div(100:i32, x[l]))"
    check(POINTWISE.format(dtype="i32", n=40, body=body))


def test_two_pieces_of_one_buffer():
    check("""
a: f32[20] input
b: f32[30] input
y: f32[50]
return y
plan
kernel k0 lanes l:20 args a, y
  stage
    y[l] = a[l]  for l:20
kernel k1 lanes l:30 args b, y
  stage
    y[l + 20] = b[l]  for l:30
fresh y
arena 0
""")


def test_a_value_stored_to_memory_is_read_back_by_a_later_stage():
    check("""
x: f32[3, 40] input
t: f32[3, 40]
y: f32[3, 40]
return t, y
plan
kernel k0 grid i:3 args x, t, y
  stage j:40
    t[i, j] = x[i, j] * 2.0  for i:3, j:40
  stage j:40
    y[i, j] = t[i, j] + t[i, 0]  for i:3, j:40
fresh t, y
arena 0
""")


def test_a_mutated_input_is_read_before_it_is_written():
    check("""
x: f32[40] input
y: f32[40]
return y
plan
kernel k0 lanes l:40 args x, y
  stage
    y[l] = x[l] + 1.0  for l:40
    x[l] = x[l] * 2.0  for l:40
fresh y
arena 0
""")


def test_a_loop_symbol_may_stand_at_another_depth_in_another_stage():
    check("""
x: f32[2, 5, 20] input
e: f32[2, 5, 20]
y: f32[2, 20]
return y
plan
kernel k0 grid i:2 args x, y
  row e
  stage a:5, j:20
    e[i, a, j] = x[i, a, j] * 2.0  for i:2, a:5, j:20
  stage j:20
    y[i, j] = e[i, 4, j] - e[i, 1, j]  for i:2, j:20
fresh y
arena 0
""")


def test_rows_that_exceed_the_stack_use_scratch():
    source = check(SOFTMAX.format(rows=1, n=16400))
    assert "scratch(" in source


def test_an_empty_reduction_gives_the_neutral_element():
    assert run(ROWS.format(rows=2, n=0, kind="sum", out="f32", dtype="f32")) == [[0.0, 0.0]]
    assert run(COLUMNS.format(rows=0, n=3, kind="max", out="f32")) == [[-INF] * 3]


def test_nothing_runs_over_empty_lanes():
    assert run(POINTWISE.format(dtype="f32", n=0, body="x[l] + 1.0")) == [[]]


@pytest.mark.parametrize("march", ["haswell", "x86-64"])
def test_other_instruction_sets_compute_the_same(march):
    check(SOFTMAX.format(rows=3, n=45), march=march)
    check(POINTWISE.format(dtype="f32", n=45, body="tanh(x[l]) + erf(x[l])"), march=march)
    check(LANE_GATHER, march=march, i=[k % 10 for k in range(37)])


def test_reductions_that_need_different_loop_orders_are_refused():
    with pytest.raises(InternalError, match="not innermost"):
        run("""
x: f32[4, 5] input
y: f32[5]
z: f32[4]
return y, z
plan
kernel k0 args x, y, z
  stage a:4, b:5
    y[b] = sum over a:4 of x[a, b]  for b:5
    z[a] = sum over b:5 of x[a, b]  for a:4
fresh y, z
arena 0
""")


@pytest.mark.parametrize("form", ["lanes", "grid"])
def test_a_long_sum_keeps_its_small_terms(form):
    n = 300000
    text = f"""
x: f32[2] input
y: f32[2]
return y
plan
kernel k0 {form} l:2 args x, y
  stage r:{n}
    y[l] = sum over r:{n} of x[l]  for l:2
fresh y
arena 0
"""
    assert run(text, x=[0.1, 0.2]) == [pytest.approx([0.1 * n, 0.2 * n], rel=2e-7)]


def test_what_only_the_lanes_decide_is_computed_once_per_strip():
    source = check("""
x: f32[9, 50] input
m: f32[50]
s: f32[50]
return s
plan
kernel k0 lanes l:50 args x, s
  scalar m
  stage r:9
    m[l] = sum over r:9 of x[r, l]  for l:50
  stage r:9
    s[l] = sum over r:9 of (x[r, l] - m[l] / 9.0) * (x[r, l] - m[l] / 9.0)  for l:50
fresh s
arena 0
""")
    inside = source[source.rindex("for (i64 c0") :]
    assert "9.0f" not in inside and "9.0f" in source
