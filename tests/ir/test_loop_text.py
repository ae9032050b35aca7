"""The text form: what is written, and that reading it back gives the same object."""

import math

import pytest

from torchweld.base.errors import InternalError
from torchweld.ir.dtype import DType
from torchweld.ir.loop import Const, Load, Nest, Op, Torch, View, const
from torchweld.ir.loop_text import parse, text

F32, I64 = DType.F32, DType.I64


def graph(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def body(value, *more, dtype="f32"):
    """The body of a one-nest graph over x and i."""
    g = parse(graph("x: f32[4] input", "k: i64[4] input", f"y: {dtype}[4]",
                    f"y[i] = {value}  for i:4", *more, "return y"))  # fmt: skip
    assert parse(text(g)) == g
    return g.nodes[0].body


def with_body(scalar: Const):
    g = parse(graph("x: f32[4] input", f"y: {scalar.dtype.value}[4]", "y[i] = 0.0  for i:4",
                    "return y"))  # fmt: skip
    (n,) = g.nodes
    return type(g)(g.inputs, (Nest(n.out, n.axes, n.index, scalar),), g.outputs)


def test_a_graph_is_printed_as_it_is_written():
    source = graph(
        "size n in 2..64",
        "size m in 1..",
        "x: f32[n, 512] strides (1, n) offset 3 input",
        'w: bf16[512] on "cuda:0" const',
        "a: f32[n]",
        "y: f32[n, 512]",
        "",
        "a[i] = max over j:512 of x[i, j]  for i:n  # from amax",
        "y[i, j] = v0 / (v0 + 1.0)  for i:n, j:512  # from exp, add, div",
        "  with v0 = exp(x[i, j] - a[i])",
        "",
        "return y, x as [512] strides (2) offset 3, none, y again 1, x as [2, 2] again 3",
    )
    g = parse(source)
    assert text(g) == source


def test_a_shared_scalar_is_printed_once():
    x = body("v + v * v", "  with v = exp(x[i])")
    square = Op.make("mul", (x.args[0], x.args[0]), F32)
    assert x is Op.make("add", (x.args[0], square), F32)


def test_doubling_a_scalar_many_times_keeps_the_text_short():
    x = body("x[i]")
    for _ in range(64):
        x = Op.make("add", (x, x), F32)
    g = with_body(const(0.0, F32))
    (n,) = g.nodes
    g = type(g)(g.inputs, (Nest(n.out, n.axes, n.index, x),), g.outputs)
    assert len(text(g)) < 3000
    assert parse(text(g)) == g


def test_a_long_chain_is_cut_into_named_pieces():
    x = body("x[i]")
    for k in range(3000):
        x = Op.make("add", (x, const(float(k), F32)), F32)
    g = with_body(const(0.0, F32))
    (n,) = g.nodes
    g = type(g)(g.inputs, (Nest(n.out, n.axes, n.index, x),), g.outputs)
    assert parse(text(g)) == g
    assert max(map(len, text(g).splitlines())) < 120


def test_names_of_shared_scalars_avoid_buffers():
    g = parse(graph("v0: f32[4] input", "y: f32[4]", "y[i] = a * a  for i:4",
                    "  with a = exp(v0[i])", "return y"))  # fmt: skip
    assert "with v1 = exp(v0[i])" in text(g)
    assert parse(text(g)) == g


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -3.25e-30, 1e300, 0.1, math.inf, -math.inf,
                                   math.nan])  # fmt: skip
@pytest.mark.parametrize("dtype", [F32, DType.F64, DType.BF16, DType.F16])
def test_float_constants_are_exact(value, dtype):
    g = with_body(const(value, dtype))
    assert parse(text(g)).nodes[0].body is g.nodes[0].body


def test_a_nan_with_a_payload_is_exact():
    g = with_body(Const.make(0xFFF8000000000123, F32))
    assert "bits(0xfff8000000000123)" in text(g)
    assert parse(text(g)).nodes[0].body is g.nodes[0].body


@pytest.mark.parametrize("dtype", [I64, DType.I32, DType.I8, DType.U8])
def test_integer_constants_are_exact(dtype):
    for value in (0, 5, 127, *(() if dtype is DType.U8 else (-1, -128))):
        g = with_body(const(value, dtype))
        assert parse(text(g)).nodes[0].body is g.nodes[0].body


def test_operators_bind_as_in_arithmetic():
    assert body("x[i] + 1.0 * 2.0 - 3.0").text() == (
        "sub(add(x[i], mul(1.0:f32, 2.0:f32)), 3.0:f32)"
    )
    assert body("x[i] - (1.0 - 2.0)").text() == "sub(x[i], sub(1.0:f32, 2.0:f32))"
    assert body("x[i] - -1.0 < 2.0 / 3.0", dtype="bool").name == "lt"


def test_comparisons_nest_only_in_parentheses():
    x = body("(x[i] < 1.0) == (x[i] > 0.0)", dtype="bool")
    assert x.name == "eq" and x.args[1].name == "gt"


def test_casts_are_written_as_calls_of_the_dtype():
    x = body("bf16(x[i])", dtype="bf16")
    assert (x.name, x.dtype) == ("cast", DType.BF16)


def test_a_loaded_index_keeps_its_bounds():
    x = body("x[<check_index(k[i], 4) in 0..3>]")
    assert isinstance(x, Load)
    assert (x.index[0].smin, x.index[0].smax) == (0, 3)
    assert x.index[0].scalar.name == "check_index"


def test_arithmetic_on_a_loaded_index_round_trips():
    body("x[(<k[i] in 0..9> + 2*<k[3 - i] in 0..4>)//8 + <v in 0..1>*i%4]", "  with v = k[i]")


def test_a_loaded_index_that_is_used_twice_has_a_name():
    g = parse(graph("x: f32[4, 4] input", "k: i64[4] input", "y: f32[4]",
                    "y[i] = x[<v in 0..3>, <v in 0..3>]  for i:4",
                    "  with v = check_index(k[i], 4)", "return y"))  # fmt: skip
    assert text(g).count("check_index") == 1
    assert parse(text(g)) == g


@pytest.mark.parametrize("mode, sign", [("add", "+="), ("mul", "*="), ("max", "max="),
                                        ("min", "min=")])  # fmt: skip
def test_store_modes(mode, sign):
    g = parse(graph("x: f32[4] input", f"x[<check_index(index(i), 4) in 0..3>] {sign} 1.0  for i:4",
                    "return x"))  # fmt: skip
    assert g.nodes[0].mode == mode
    assert parse(text(g)) == g


def test_reductions_over_several_axes_and_scans():
    g = parse(graph("x: f32[4, 5] input", "a: i64[]", "b: f32[4, 5]",
                    "a[] = argmax over i:4, j:5 of x[i, j]",
                    "b[i, j] = scan_sum over j:5 of x[i, j]  for i:4", "return a, b"))  # fmt: skip
    assert [len(n.reduce.axes) for n in g.nodes] == [2, 1]
    assert parse(text(g)) == g


def test_origins_with_any_characters_round_trip():
    g = parse(graph("x: f32[] input", "y: f32[]",
                    'y[] = x[]  # from relu_1, "a, \\"b\\" # c", model.py:41',
                    "return y"))  # fmt: skip
    assert g.nodes[0].origins == ("relu_1", 'a, "b" # c', "model.py:41")
    assert parse(text(g)) == g


def test_every_kind_of_extern_argument_round_trips():
    g = parse(graph(
        "size s in 1..", "x: f32[4, s] input", "a: f32[4]", "b: i64[4]", "",
        "a, b = aten.thing.default(x, x as [s] strides (4) offset 2, [1, -2, [x, none]], 1.5, "
        'inf, -1e-05, true, complex(1.0, -2.0), "text, \\"x\\"", {s + 1}, [], '
        '@dtype("torch.float32"), dim=-1, out=none, to=@device("cuda:0"))  writes x  # from thing',
        "aten.copy_.default(x, x)  writes x", "", "return a, b"))  # fmt: skip
    n = g.nodes[0]
    assert n.args[2] == (1, -2, (View(g.inputs[0], *_layout(g.inputs[0])), None))
    assert n.args[3:8] == (1.5, math.inf, -1e-05, True, complex(1.0, -2.0))
    assert n.args[8] == 'text, "x"'
    assert n.args[11] == Torch("dtype", "torch.float32")
    assert n.kwargs[:2] == (("dim", -1), ("out", None))
    assert n.writes == g.inputs == g.nodes[1].writes
    assert parse(text(g)) == g


def _layout(b):
    return b.shape, b.strides, b.offset


def test_an_integer_and_a_constant_expression_stay_apart():
    g = parse(graph("a: f32[]", "a = aten.f.default(3, {3}, 3.0, true)", "return a"))
    kinds = [type(x).__name__ for x in g.nodes[0].args]
    assert kinds == ["int", "Int", "float", "bool"]
    again = parse(text(g)).nodes[0].args
    assert [type(x).__name__ for x in again] == kinds


@pytest.mark.parametrize("line, why", [
    ("y[i] = z[i]  for i:4", "line 3: buffer z is not declared"),
    ("y[j] = x[i]  for i:4", "line 3: index symbol j is not in scope"),
    ("y[i] = frob(x[i])  for i:4", "line 3: no operator frob"),
    ("y[i] = x[i] x[i]  for i:4", "line 3: unexpected 'x'"),
    ("y[i] ~ x[i]  for i:4", "line 3: no token starts at '~"),
    ("y[0] = x[0", "line 3: expected ',', found 'end of line'"),
    ("x: f32[4]", "line 3: .* declared before"),
    ("y[i] = 1.0:f33  for i:4", "line 3: f33 is no dtype"),
])  # fmt: skip
def test_an_error_names_the_line_and_the_reason(line, why):
    with pytest.raises(InternalError, match=why):
        parse(graph("x: f32[4] input", "y: f32[4]", line, "return y"))
