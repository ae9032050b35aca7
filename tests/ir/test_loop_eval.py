"""The reference interpreter: exact rounding, laziness, errors, externs, strides, mutation."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchweld.base.errors import InternalError
from torchweld.ir.dtype import DType
from torchweld.ir.expr import Sym
from torchweld.ir.loop_eval import evaluate, nested
from torchweld.ir.loop_ops import CHECKS, OPS
from torchweld.ir.loop_parse import parse
from torchweld.ir.op_value import op_value
from torchweld.ir.rounding import convert, pack, unpack

F64, F32, F16, BF16 = DType.F64, DType.F32, DType.F16, DType.BF16


def run(source, *inputs, externs=None, sizes=None):
    return evaluate(parse(source), list(inputs), externs, sizes)


def pointwise(body, *inputs, dtype="f32", n=None, head="x: f32[n] input"):
    n = n if n is not None else len(inputs[0])
    source = (
        f"{head.replace('[n]', f'[{n}]')}\ny: {dtype}[{n}]\ny[i] = {body}  for i:{n}\nreturn y\n"
    )
    (out,) = run(source, *inputs)
    return out


def test_arithmetic_rounds_to_f32_at_every_step():
    assert pointwise("x[i] + 1.0 - x[i]", [2.0**24]) == [0.0]


def test_arithmetic_in_f64_does_not():
    head = "x: f64[n] input"
    assert pointwise("x[i] + 1.0:f64 - x[i]", [2.0**24], dtype="f64", head=head) == [1.0]


def test_bf16_rounds_half_to_even():
    one = 1.0
    half_ulp = 2.0**-8
    assert convert(one + half_ulp, BF16) == 1.0
    assert convert(one + 3 * half_ulp, BF16) == 1.0 + 4 * half_ulp
    assert convert(one + half_ulp * 1.01, BF16) == 1.0 + 2 * half_ulp


def test_overflow_gives_infinity():
    assert convert(3.5e38, F32) == math.inf
    assert convert(-70000.0, F16) == -math.inf
    assert convert(3.4e38, BF16) == math.inf


@given(st.floats(width=32))
def test_bytes_of_every_dtype_round_trip(x):
    for dtype in (F64, F32, F16, BF16):
        y = convert(x, dtype)
        back = unpack(pack(y, dtype), dtype)
        assert back == y or (back != back and y != y)


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_become_f32_with_one_rounding(n):
    x = convert(n, F32)
    up, down = (struct.unpack("<f", struct.pack("<f", x))[0] for _ in range(2))
    bits = struct.unpack("<I", struct.pack("<f", abs(x)))[0]
    near = [struct.unpack("<f", struct.pack("<I", max(bits + d, 0)))[0] for d in (-1, 0, 1)]
    exact = min(abs(int(v) - abs(n)) for v in near)
    assert abs(int(abs(x)) - abs(n)) == exact
    assert up == down


@pytest.mark.parametrize("x, dtype, out", [
    (-1.9, DType.I32, -1), (300.7, DType.U8, 44), (math.nan, DType.I32, -(2**31)),
    (1e20, DType.I64, -(2**63)), (math.inf, DType.U8, 0), (-129.0, DType.I8, 127),
    (math.nan, DType.BOOL, True), (0.0, DType.BOOL, False), (-1, DType.U8, 255),
    (2**31, DType.I32, -(2**31)), (True, DType.I64, 1), (2**63, DType.I64, -(2**63)),
])  # fmt: skip
def test_casts_to_integers_and_bool(x, dtype, out):
    y = convert(x, dtype)
    assert y == out and type(y) is type(out)


def test_integer_arithmetic_wraps():
    head = "x: i8[n] input"
    assert pointwise("x[i] * x[i]", [100, -128], dtype="i8", head=head) == [16, 0]


def test_an_integer_power_with_a_large_exponent_ends():
    assert op_value("ipow", (3, 2**62 + 1), DType.I64) == 3
    assert op_value("ipow", (2, -1), DType.I64) == 0


@pytest.mark.parametrize("a, b, out", [
    (7.0, -2.0, -4.0), (-0.0, 3.0, -0.0), (1.0, 0.0, math.inf), (-1.0, 0.0, -math.inf),
    (math.inf, 2.0, math.nan), (1.0, math.nan, math.nan), (1e308, 1e-10, math.inf),
])  # fmt: skip
def test_floor_division_of_floats(a, b, out):
    x = op_value("floor_div", (a, b), F64)
    assert x == out or (x != x and out != out)


def test_every_operator_has_a_value_on_special_numbers():
    special = {"f": (0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, math.nan, 1e300),
               "i": (1, -1, 7, 100), "b": (True, False), "q": (-0.0, 448.0, math.nan)}  # fmt: skip
    types = {"f": F64, "i": DType.I64, "b": DType.BOOL, "q": DType.F8E4M3FN}
    for name, row in OPS.items():
        for kind in row.kinds:
            dtype = types[kind]
            for a in special[kind]:
                for b in special[kind]:
                    args = (a, b, b, b)[: row.arity] if name != "where" else (True, a, b)
                    if name not in CHECKS:
                        op_value(name, args, DType.BOOL if row.rule in ("bool", "logic") else dtype)


def test_nextafter_steps_in_f32():
    assert op_value("nextafter", (1.0, 2.0), F32) == 1.0 + 2.0**-23
    assert op_value("nextafter", (0.0, -1.0), F32) == -(2.0**-149)
    assert op_value("nextafter", (-1.0, 0.0), F32) == -1.0 + 2.0**-24


def test_where_does_not_evaluate_the_other_branch():
    body = "where(index(i) >= 1, x[i - 1], 9.0)"
    assert pointwise(body, [1.0, 2.0, 3.0]) == [9.0, 1.0, 2.0]


def test_an_index_out_of_range_raises_index_error():
    head = "x: f32[n] input\nk: i64[n] input"
    body = "x[<check_index(k[i], 2) in 0..1>]"
    assert pointwise(body, [5.0, 6.0], [-1, 0], head=head) == [6.0, 5.0]
    with pytest.raises(IndexError, match="index 2 is out of bounds for size 2"):
        pointwise(body, [5.0, 6.0], [2, 0], head=head)


def test_an_unchecked_index_out_of_its_bounds_is_an_internal_error():
    head = "x: f32[n] input\nk: i64[n] input"
    with pytest.raises(InternalError, match=r"outside of 0..1"):
        pointwise("x[<k[i] in 0..1>]", [5.0, 6.0], [2, 0], head=head)


def test_reading_what_was_never_written_is_an_internal_error():
    with pytest.raises(InternalError, match="t is read at 1 before it is written"):
        run("t: f32[2]\ny: f32[2]\nt[0] = 1.0\ny[i] = t[i]  for i:2\nreturn y\n")


def test_an_index_outside_of_the_shape_is_an_internal_error():
    with pytest.raises(InternalError, match=r"x\[1\] is outside of the shape"):
        run("x: f32[1] input\ny: f32[2]\ny[i] = x[i]  for i:2\nreturn y\n", [1.0])


def reduce(kind, values, dtype="f32", out=None):
    n = len(values)
    source = (
        f"x: {dtype}[{n}] input\ny: {out or dtype}[]\ny[] = {kind} over i:{n} of x[i]\nreturn y\n"
    )
    ((value,),) = run(source, values)
    return value


@pytest.mark.parametrize("kind, out", [("sum", 3.5), ("prod", -3.0), ("max", 3.0), ("min", -0.5)])
def test_reductions(kind, out):
    assert reduce(kind, [1.0, -0.5, 3.0] if kind != "prod" else [1.0, -1.0, 3.0]) == out


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
def test_nan_wins_a_reduction(kind):
    assert math.isnan(reduce(kind, [1.0, math.nan, 3.0]))


def test_the_first_of_equals_and_the_first_nan_win_an_argmax():
    assert reduce("argmax", [1.0, 3.0, 3.0], out="i64") == 1
    assert reduce("argmin", [1.0, math.nan, -9.0, math.nan], out="i64") == 1


def test_empty_reductions_give_the_neutral_element():
    assert [reduce(k, []) for k in ("sum", "prod", "max", "min")] == [0, 1, -math.inf, math.inf]
    assert reduce("max", [], "i8") == -128 and reduce("min", [], "u8") == 255
    assert reduce("any", [], "bool") is False and reduce("all", [], "bool") is True


def test_argmax_counts_row_major_over_its_axes():
    source = "x: f32[2, 3] input\ny: i64[]\ny[] = argmax over i:2, j:3 of x[i, j]\nreturn y\n"
    assert run(source, [0, 0, 0, 0, 9, 0]) == [[4]]


def test_a_scan_stores_every_prefix():
    source = "x: i64[4] input\ny: i64[4]\ny[i] = scan_sum over i:4 of x[i]\nreturn y\n"
    assert run(source, [1, 2, 3, 4]) == [[1, 3, 6, 10]]


def test_scatter_runs_in_row_major_order():
    source = ("x: f32[3] input\ny: f32[2]\ny[i] = 0.0  for i:2\n"
              "y[<check_index(index(0*i), 2) in 0..1>] = x[i]  for i:3\nreturn y\n")  # fmt: skip
    assert run(source, [1.0, 2.0, 3.0]) == [[3.0, 0.0]]
    assert run(source.replace("] = x[i]", "] += x[i]"), [1.0, 2.0, 3.0]) == [[6.0, 0.0]]


def test_strides_and_offsets_address_the_storage():
    source = ("x: f32[2, 3] strides (1, 2) offset 1 input\ny: f32[2, 3] strides (1, 2)\n"
              "y[i, j] = x[i, j]  for i:2, j:3\n"
              "return y, y as [6], x as [3] strides (2) offset 0\n")  # fmt: skip
    out = run(source, [9, 0, 1, 2, 3, 4, 5])
    assert out == [[0, 2, 4, 1, 3, 5], [0, 1, 2, 3, 4, 5], [9, 1, 3]]


def test_writing_an_input_changes_the_callers_list():
    x = [1.0, 2.0]
    assert run("x: f32[2] input\nx[i] = x[i] + 1.0  for i:2\nreturn x\n", x) == [[2.0, 3.0]]
    assert x == [2.0, 3.0]


def test_an_untouched_input_may_be_a_tuple():
    assert run("x: f32[2] input\nreturn x, none\n", (0.1, 1.0)) == [[convert(0.1, F32), 1.0], None]


def test_externs_get_tensors_and_may_write_arguments():
    def fill(x, value, *, to):
        x.values[:] = [value] * len(x.values)
        assert to == 7
        return [v + 1 for v in x.values]

    source = ("x: f32[4] input\ny: f32[2]\n"
              "y = test.fill.default(x as [2] strides (2) offset 1, 0.5, to={7})  writes x\n"
              "return y, x\n")  # fmt: skip
    assert run(source, [1.0] * 4, externs={"test.fill.default": fill}) == [
        [1.5, 1.5], [1.0, 0.5, 1.0, 0.5]]  # fmt: skip


def test_an_extern_without_a_meaning_is_named():
    with pytest.raises(InternalError, match=r"aten\.mm\.default"):
        run("x: f32[1] input\ny: f32[1]\ny = aten.mm.default(x)\nreturn y\n", [1.0])


def test_symbolic_sizes_take_their_values_from_the_call():
    source = "size n in 1..\nx: f32[n] input\ny: f32[n]\ny[i] = x[n - 1 - i]  for i:n\nreturn y\n"
    assert run(source, [1.0, 2.0, 3.0], sizes={Sym.make("n", 1, None): 3}) == [[3.0, 2.0, 1.0]]


def test_nested_lists():
    assert nested([1, 2, 3, 4], (2, 2)) == [[1, 2], [3, 4]]
    assert nested([5], ()) == 5
