"""The launch list of a plan, and which functions its kernels share."""

import pytest
from tests.codegen.kernels import run

from torchweld.base.errors import InternalError
from torchweld.codegen.run import generate
from torchweld.ir.plan_text import parse
from torchweld.ir.program import Alloc, Call, Drop, Launch, MakeView, TensorArg, TorchArg

LAYERS = """
x: f32[8, 32] input
w: f32[32, 32] input
h: f32[8, 32]
a: f32[8, 32]
b: f32[8, 32]
y: f32[8, 32]
return y as [32, 8] strides (1, 32)
plan
kernel first lanes l:256 args x, a  # from relu
  stage
    a[l // 32, l % 32] = max(x[l // 32, l % 32], 0.0)  for l:256
h = aten.mm.default(a, w)
kernel second lanes m:256 args h, b  # from relu_1
  stage
    b[m // 32, m % 32] = max(h[m // 32, m % 32], 0.0)  for m:256
free h
kernel third grid i:8 lanes j:32 grain 4 args b, y
  stage
    y[i, j] = b[i, j] + 1.0  for i:8, j:32
slot a at 0 bytes 1024
slot b at 1024 bytes 1024
fresh y
arena 2048
"""


def test_every_step_becomes_instructions_in_order():
    p = generate(parse(LAYERS))
    assert p.steps == (
        Launch("k_first", (0, 2), 256, 1),
        Call("aten.mm.default", (TensorArg(2), TensorArg(1)), (), (3,)),
        Launch("k_first", (3, 4), 256, 1),
        Drop(3),
        Alloc(5),
        Launch("k_third", (4, 5), 8, 4),
        MakeView(6, 5),
    )
    assert [t.place for t in p.tensors] == [
        "input", "input", "arena", "extern", "arena", "fresh", "view",
    ]  # fmt: skip
    assert (p.tensors[4].index, p.arena_bytes, p.n_inputs) == (1024, 2048, 2)
    assert (p.outputs, p.tensors[6].sizes, p.tensors[6].strides) == ((6,), (32, 8), (1, 32))


def test_equal_kernels_are_one_function_whatever_their_names():
    (artifact,) = generate(parse(LAYERS)).artifacts
    assert artifact.functions == ("k_first", "k_third")
    assert artifact.source.count("WELD_KERNEL") == 2


def test_no_aten_header_is_included():
    (artifact,) = generate(parse(LAYERS)).artifacts
    includes = [s for s in artifact.source.splitlines() if s.startswith("#include")]
    assert includes == ['#include "weld_vec.h"']


def test_views_and_constants_are_passed_to_operators():
    p = generate(parse("""
x: f32[4, 6] input
h: f32[6, 4]
return h, none, x
plan
h = aten.foo.default(x as [6, 4] strides (1, 6), [1, 2.5, none], "s", dtype=@dtype("torch.float32"))
arena 0
"""))
    assert isinstance(p.steps[0], MakeView)
    call = p.steps[1]
    assert call.args == (TensorArg(1), (1, 2.5, None), "s")
    assert call.kwargs == (("dtype", TorchArg("dtype", "torch.float32")),)
    assert (p.outputs, p.artifacts) == ((2, None, 0), ())


def test_views_of_a_released_tensor_are_released_with_it():
    p = generate(parse("""
x: f32[4, 6] input
h: f32[4, 6]
z: f32[6, 4]
return z
plan
h = aten.foo.default(x)
z = aten.foo.default(h as [6, 4] strides (1, 6))
free h
arena 0
"""))
    view = next(s.tensor for s in p.steps if isinstance(s, MakeView))
    assert p.steps[-2:] == (Drop(1), Drop(view))


def test_a_buffer_without_memory_is_refused():
    with pytest.raises(InternalError, match="a has no memory"):
        generate(parse(LAYERS.replace("slot a at 0 bytes 1024\n", "")))


def test_a_symbolic_size_that_no_input_supplies_is_refused():
    with pytest.raises(InternalError, match="0 readings"):
        generate(parse("""
size n in 2..
x: f32[n] input
y: f32[n]
return y
plan
kernel k0 lanes l:n args x, y
  stage
    y[l] = x[l]  for l:n
fresh y
arena 0
"""))


def test_large_results_are_written_past_the_caches_and_still_right():
    text = """
x: f32[3] input
y: f32[3, {n}]
return y as [6] strides ({s}) offset 0
plan
kernel k0 grid i:3 args x, y
  stage j:{n}
    y[i, j] = f32(index(j)) * x[i]  for i:3, j:{n}
fresh y
arena 0
"""
    n = 400001  # rows that start at every alignment
    text = text.format(n=n, s=n // 2)
    (artifact,) = generate(parse(text)).artifacts
    assert "stream(" in artifact.source and "fence();" in artifact.source
    (y,) = run(text, x=[1.0, 2.0, 3.0])
    places = [k * (n // 2) for k in range(6)]
    assert y == [float((at // n + 1) * (at % n)) for at in places]
