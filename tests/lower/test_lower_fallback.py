"""What has no lowering becomes an ATen call; what cannot be one is refused with a reason."""

from __future__ import annotations

import operator

import pytest
import torch
from lower_harness import MODE, check, externs, lowered
from torch import fx

from torchweld.base.errors import LoweringError
from torchweld.ir.graph import GraphPair
from torchweld.ir.loop import Torch, View
from torchweld.lower.registry import supported
from torchweld.lower.run import lower


def graph(op: object, *args: object, mutated: tuple[int, ...] = ()) -> GraphPair:
    """One call of `op`, by hand."""
    g = fx.Graph()
    places = []
    for k, x in enumerate(args):
        if isinstance(x, torch.Tensor):
            node = g.placeholder(f"p{k}")
            node.meta["val"] = MODE.from_tensor(x)
            places.append(node)
        else:
            places.append(x)
    call = g.call_function(op, tuple(places))
    with MODE:
        fakes = [p.meta["val"] if isinstance(p, fx.Node) else p for p in places]
        call.meta["val"] = op(*fakes)
    g.output((call,))
    return GraphPair(g, mutated, (None,) * (1 - len(mutated)))


def test_unknown_operator_runs_in_aten_with_its_arguments() -> None:
    g = check(lambda x: torch.topk(x, 2, sorted=True), torch.randn(3, 5))
    (call,) = g.nodes
    assert call.op == "aten.topk.default" and len(call.outs) == 2
    assert isinstance(call.args[0], View) and call.args[1] == 2


def test_torch_constants_are_named() -> None:
    g = lowered(lambda x: torch.rand(2, dtype=torch.float64) + x, torch.zeros(2))
    (call,) = [n for n in g.nodes if hasattr(n, "op")]
    assert dict(call.kwargs)["dtype"] == Torch("dtype", "torch.float64")


def test_complex_numbers_run_in_aten() -> None:
    g = check(lambda x: (torch.fft.rfft(x) * 2).abs(), torch.randn(8))
    assert "aten.mul.Tensor" in externs(g) and "aten.abs.default" in externs(g)


def test_reinterpreted_memory_is_not_shared_with_an_intermediate() -> None:
    check(lambda x: (x + 1).view(torch.int32) + 1, torch.randn(4))


def test_integer_division_by_a_tensor_runs_in_aten() -> None:
    """It raises for zero, which generated code does not."""
    x, y = torch.tensor([7, -7]), torch.tensor([2, 3])
    assert externs(check(lambda x, y: x // y, x, y)) == ["aten.floor_divide.default"]


def test_operator_that_mutates_is_refused() -> None:
    with pytest.raises(LoweringError, match="changes its arguments"):
        lower(graph(torch.ops.aten.add_.Tensor, torch.ones(2), torch.ones(2)))


def test_unknown_view_is_refused() -> None:
    with pytest.raises(LoweringError, match="view of its argument"):
        lower(graph(torch.ops.aten.as_strided.default, torch.ones(4, 4)[:, ::2], [2], [1]))


def test_dtype_that_no_buffer_has_is_refused() -> None:
    with pytest.raises(LoweringError, match="W203"):
        lower(graph(torch.ops.aten.clone.default, torch.ones(2, dtype=torch.uint16)))


def test_call_that_is_no_overload_is_refused() -> None:
    g = fx.Graph()
    x = g.placeholder("x")
    x.meta["val"] = MODE.from_tensor(torch.ones(2))
    g.output((g.call_function(operator.add, (x, x)),))
    with pytest.raises(LoweringError, match="W201"):
        lower(GraphPair(g, (), (None,)))


@pytest.mark.parametrize("bad", [4, -1])
def test_embedding_out_of_range_raises(bad: int) -> None:
    w, i = torch.randn(4, 3), torch.tensor([0, 1])
    g = lowered(torch.nn.functional.embedding, i, w)
    import vector_eval

    with pytest.raises(IndexError):
        vector_eval.run(g, [torch.tensor([0, bad]), w])


def test_index_wraps_once_and_then_raises() -> None:
    import vector_eval

    x = torch.arange(4.0)
    g = check(lambda x, i: x[i], x, torch.tensor([-4, 3]))
    with pytest.raises(IndexError):
        vector_eval.run(g, [x, torch.tensor([0, -5])])


def test_every_kind_of_rule_is_listed() -> None:
    kinds = supported()
    assert kinds["aten.silu.default"] == "pointwise" and kinds["aten.view.default"] == "view"
    assert kinds["aten._softmax.default"] == "reduction"
    assert kinds["aten.embedding.default"] == "lowering"
    assert set(kinds.values()) == {"pointwise", "view", "reduction", "lowering"}
