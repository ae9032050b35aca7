"""Each invariant is checked: a graph that breaks only it is refused by name."""

from dataclasses import replace

import pytest

from torchweld.base.errors import InternalError
from torchweld.ir.dtype import DType
from torchweld.ir.expr import Sym, as_expr, index_symbol
from torchweld.ir.loop import Axis, Buffer, Const, Nest, Op, const
from torchweld.ir.loop_parse import parse
from torchweld.ir.loop_verify import verify

F32 = DType.F32
HEAD = "x: f32[4] input\nk: i64[4] input\nw: f32[4, 5] const\ny: f32[4]\nz: f32[4]\n"
GOOD = "y[i] = x[i] + w[i, 2]  for i:4\n"
TAIL = "return y\n"


def graph(lines, returned="y"):
    return parse(f"{HEAD}{lines}\nreturn {returned}\n")


def refused(g, why):
    with pytest.raises(InternalError, match=why):
        verify(g)


def with_nest(**changes):
    g = graph(GOOD)
    return replace(g, nodes=(replace(g.nodes[0], **changes),))


def renamed(b: Buffer, **changes) -> Buffer:
    fields = {f: getattr(b, f) for f in Buffer._fields} | changes
    return Buffer.make(*fields.values())


def test_a_good_graph_is_accepted():
    verify(graph(GOOD))


@pytest.mark.parametrize("line, invariant", [
    ("y[i] = z[i]  for i:4", "defined.*z is read before"),
    ("z[i] = x[i]  for i:4", "defined.*'y': it is returned but never written"),
    ("y[i] = x[i] + k[i]  for i:4", "scalar_rules.*add"),
    ("y[i] = bit_and(x[i], x[i])  for i:4", "scalar_rules.*bit_and"),
    ("y[i] = where(x[i], x[i], x[i])  for i:4", "scalar_rules.*where"),
    ("y[i] = add(x[i], x[i], x[i])  for i:4", "scalar_rules.*no operator add of 3"),
    ("y[i] = x[i, i]  for i:4", "ranks.*x has 1 dimensions, 2 indices"),
    ("y[i] = x[i + 1]  for i:4", "bounds.*x: index i . 1 leaves 0..4 at i = 3"),
    ("y[i] = x[i - 1]  for i:4", "bounds.*at i = 0"),
    ("y[i + 1] = x[i]  for i:4", "bounds.*y: index"),
    ("y[i] = x[4]  for i:4", "bounds.*every point"),
    ("y[i] = x[<check_index(k[i], 5) in 0..4>]  for i:4", "bounds.*x: index"),
    ("y[i] = k[i]  for i:4", "stored_dtype.*i64 is stored to f32"),
    ("y[i] = argmax over j:5 of w[i, j]  for i:4", "stored_dtype.*i64"),
    ("y[i] = any over j:5 of w[i, j]  for i:4", "reductions.*any of f32"),
    ("y[i] = middle over j:5 of w[i, j]  for i:4", "reductions.*middle"),
    ("y[i] = scan_sum over j:5 of w[i, j]  for i:4", "reductions.*uses its axis"),
    ("y[i] = x[i]  for i:4\ny[i] = y[3 - i]  for i:4", "self_reads.*y"),
    ("y[i] = x[i]  for i:4, i:4", "names.*repeat"),
    ("y[3 - j] = sum over j:4 of x[j]", "axes.*uses a reduced axis"),
    ("y = aten.f.default(x)\ny = aten.g.default(x)", "externs.*y is not new"),
    ("y = aten.f.default(x)  writes w", "externs.*w is written but not passed"),
    ("y = aten.f.default(x as [2, 2] strides (1))", "externs.*ranks"),
    ("y = aten.f.default(z)", "defined.*z is read"),
])  # fmt: skip
def test_a_broken_invariant_is_named(line, invariant):
    refused(graph(line), invariant)


def test_a_load_behind_a_where_may_leave_its_shape():
    verify(graph("y[i] = where(index(i) >= 1, x[i - 1], 0.0)  for i:4"))


def test_a_load_in_the_condition_of_a_where_may_not():
    refused(graph("y[i] = where(x[i - 1] > 0.0, 1.0, 0.0)  for i:4"), "bounds")


def test_a_load_that_is_also_used_outside_of_the_where_may_not():
    refused(
        graph("y[i] = where(index(i) >= 1, v, 0.0) + v  for i:4\n  with v = x[i - 1]"), "bounds"
    )


def test_correlated_indices_are_not_refused_without_a_counterexample():
    verify(graph("y[i] = w[(3*i + 1)%4, (i*i)%5]  for i:4"))


def test_an_index_in_an_empty_nest_is_never_reached():
    verify(graph(GOOD + "y[i] = x[i + 9]  for i:4, j:0"))


def test_two_buffers_with_one_name():
    g = graph(GOOD)
    twin = renamed(g.inputs[0], shape=(as_expr(9),))
    refused(replace(g, inputs=(*g.inputs, twin)), "names.*two different buffers")


@pytest.mark.parametrize("name", ["a-b", "for", "true", ""])
def test_a_name_that_the_text_cannot_carry(name):
    g = graph(GOOD)
    refused(replace(g, inputs=(*g.inputs, renamed(g.inputs[0], name=name))), "names")


@pytest.mark.parametrize("changes, why", [
    ({"strides": ()}, "1 dimensions, 0 strides"), ({"role": "scratch"}, "role 'scratch'"),
    ({"shape": (as_expr(-1),)}, "negative"), ({"shape": (Sym.make("n", 1, None),)}, "uses more"),
])  # fmt: skip
def test_layouts(changes, why):
    g = graph(GOOD)
    bad = renamed(g.inputs[0], name="q", **changes)
    refused(replace(g, inputs=(*g.inputs, bad)), f"layout.*{why}")


def test_an_input_that_is_not_listed():
    g = graph(GOOD)
    refused(replace(g, inputs=g.inputs[1:]), "inputs.*'x': role input, but listed as an input: F")


def test_an_input_that_is_listed_twice():
    g = graph(GOOD)
    refused(replace(g, inputs=(*g.inputs, g.inputs[0])), "inputs.*twice")


@pytest.mark.parametrize("bad", [
    Const.make(2, DType.BOOL), Const.make(300, DType.U8), Const.make(1 << 63, DType.I64),
    Const.make(0, DType.C64),
])  # fmt: skip
def test_constants_that_do_not_fit(bad):
    x = const(1.0, F32)
    if bad.dtype is DType.C64:
        refused(with_nest(body=Op.make("add", (x, bad), F32)), "scalar_rules|constants")
    else:
        refused(with_nest(body=Op.make("cast", (bad,), F32)), "constants")


def test_a_foreign_axis():
    refused(with_nest(index=(index_symbol("q", as_expr(4)),)), "scope.*q")


def test_the_symbol_of_another_nest_with_the_same_name():
    refused(with_nest(axes=(Axis(Sym.make("i", 0, 9), as_expr(4)),)), "axes.*other bounds")


def test_an_unknown_mode():
    g = graph(GOOD + GOOD)
    first, second = g.nodes
    refused(replace(g, nodes=(first, replace(second, mode="xor"))), "reductions.*mode xor")


def test_a_written_buffer_with_a_zero_stride():
    g = graph(GOOD)
    y = renamed(g.nodes[0].out, strides=(as_expr(0),))
    refused(replace(g, nodes=(replace(g.nodes[0], out=y),), outputs=()), "writable.*repeats")


def test_the_error_names_the_origin():
    g = graph("y[i] = x[i + 1]  for i:4  # from narrow_3")
    refused(g, "from narrow_3")


def test_the_index_of_a_reduction_may_use_its_axes():
    (n,) = graph("y[i] = sum over j:5 of w[i, j] * f32(index(j))  for i:4").nodes
    assert isinstance(n, Nest)
