"""Arrays of a kernel hold all that its nests write, and every nest is stored."""

import pytest
from tests.codegen.kernels import check
from tests.ir.plain_plans import plain_plan

from torchweld.base.config import Config
from torchweld.base.errors import InternalError
from torchweld.codegen.run import generate
from torchweld.fuse.run import fuse
from torchweld.ir.dtype import DType
from torchweld.ir.expr import ZERO, as_expr
from torchweld.ir.loop import Buffer, Load, LoopGraph, Nest, Reduce, View, axis, contiguous
from torchweld.ir.plan import Kernel

ROW_IN_PIECES = """
x: f32[3, 40] input
e: f32[3, 40]
y: f32[3, 40]
return y
plan
kernel k0 grid i:3 args x, y
  row e
  stage j:7
    e[i, j] = x[i, j] * 2.0  for i:3, j:7
  stage j:33
    e[i, j + 7] = x[i, j + 7] + 1.0  for i:3, j:33
  stage j:40
    y[i, j] = e[i, -j + 39]  for i:3, j:40
fresh y
arena 0
"""

COLUMN_IN_PIECES = """
x: f32[40, 3] input
e: f32[40, 3]
y: f32[40, 3]
return y
plan
kernel k0 lanes l:3 args x, y
  row e
  stage r:7
    e[r, l] = x[r, l] * 2.0  for r:7, l:3
  stage r:33
    e[r + 7, l] = x[r + 7, l] + 1.0  for r:33, l:3
  stage r:40
    y[r, l] = e[-r + 39, l]  for r:40, l:3
fresh y
arena 0
"""


def test_a_row_written_in_pieces_holds_them_all():
    assert "f32 r0[40];" in check(ROW_IN_PIECES)


def test_a_row_of_lanes_written_in_pieces_holds_them_all():
    assert "f32 r0[640];" in check(COLUMN_IN_PIECES)


def over_nothing(name):
    """y[i] = the sum over no axis of x[i], with the loop called `name`."""
    shape = (as_expr(5),)
    x, y = (Buffer.make(n, DType.F32, shape, contiguous(shape), ZERO, role, "cpu")
            for n, role in (("x", "input"), ("y", "temp")))  # fmt: skip
    i = axis(name, 5)
    nest = Nest(y, (i,), (i.sym,), Load.make(x, (i.sym,)), Reduce("sum", ()))
    return LoopGraph((x,), (nest,), (View(y, y.shape, y.strides, y.offset),))


def test_a_reduction_over_no_loop_is_refused_because_nothing_would_store_it():
    with pytest.raises(InternalError, match="no loop at all"):
        generate(plain_plan(over_nothing("i")))


@pytest.mark.parametrize("name", ["i", "i0"])
def test_fusion_leaves_no_reduction_over_no_loop(name):
    steps = fuse(over_nothing(name), Config()).steps
    nests = [n for k in steps if isinstance(k, Kernel) for s in k.stages for n in s.nests]
    assert [n.reduce for n in nests] == [None]
