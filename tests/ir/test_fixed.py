"""A LoopGraph of one choice of sizes means what that for a range means at them."""

import pytest
from tests.runtime.sized_graphs import BOTH, GRAPHS, SIZES, Sized

from torchweld.base.config import Config
from torchweld.base.errors import InternalError
from torchweld.codegen.run import generate
from torchweld.fuse.run import fuse
from torchweld.ir.fixed import fixed
from torchweld.ir.loop_eval import evaluate
from torchweld.ir.loop_text import parse, text
from torchweld.ir.loop_verify import verify


@pytest.mark.parametrize("name", GRAPHS)
def test_a_fixed_graph_computes_the_same(name):
    graph = Sized.__new__(Sized)
    graph.graph = parse(BOTH + GRAPHS[name])
    for values in SIZES[1:4]:
        one = fixed(graph.graph, values)
        verify(one)
        inputs = graph.inputs(*values)
        flat = [t.flatten().tolist() for t in inputs]
        want = [t.flatten().tolist() for t in graph.expected(inputs, *values)]
        assert evaluate(one, flat) == want and text(parse(text(one))) == text(one)


INDICES = """
size n in 2..512  is size 0 of 0  hint 8
x: f32[n] input
at: i64[4] input
y: f32[4]
z: f32[4]
y[i] = x[<check_index(at[i], index(n)) in 0..511>]  for i:4
z[i] = where(at[i] < 3, x[<at[i] in 0..511>], 0.0)  for i:4
return y, z
"""


def test_an_index_that_is_used_at_every_point_is_below_the_size():
    one = fixed(parse(INDICES), (6,))
    verify(one)
    assert "in 0..5>" in text(one) and "in 0..511>" in text(one)


def test_every_size_in_a_fixed_graph_is_a_number():
    source = """
size n in 2..  is size 0 of 0  hint 8
x: f32[n] input
y: f32[n, 3*n + 1]
z: f32[n]
y = aten.repeat.default(x as [n, 1] strides (1, 1), [1, {3*n + 1}])
z[i] = x[(i + 1)%n] / f32(index(n))  for i:n
return y, z as [n//2] strides (2)
"""
    assert text(fixed(parse(source), (6,))) == """x: f32[6] input
y: f32[6, 19]
z: f32[6]

y = aten.repeat.default(x as [6, 1], [1, 19])
z[i] = x[(i + 1)%6] / f32(6)  for i:6

return y, z as [3] strides (2)
"""


def test_a_size_for_each_symbol():
    with pytest.raises(InternalError):
        fixed(parse(BOTH + GRAPHS["pointwise"]), (3,))


def test_a_row_of_known_size_stays_in_registers_on_a_gpu():
    graph = parse(BOTH + GRAPHS["softmax"])
    cfg = Config(interpret=True)
    loops = [generate(fuse(g, cfg)).artifacts[0].source.count("tl.load")
             for g in (graph, fixed(graph, (8, 64)))]  # fmt: skip
    assert loops == [2, 1]
