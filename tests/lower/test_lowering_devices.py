"""A kernel reads the memory of its own device: what moves between devices is ATen's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sized_lower
import torch
import vector_eval
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import symbolic_trace

from torchweld.base.config import current, override
from torchweld.graph.run import normalize
from torchweld.ir.graph import VAL
from torchweld.ir.loop import Extern, LoopGraph, Nest
from torchweld.lower import contractions
from torchweld.lower.run import lower


def lowered(fn: Callable[..., Any], *specs: tuple[tuple[int, ...], str],
            dtype: torch.dtype = torch.float32) -> LoopGraph:  # fmt: skip
    """The loops of a function of tensors. specs: shape and device of each."""
    gm = symbolic_trace(fn)
    places = [n for n in gm.graph.nodes if n.op == "placeholder"]
    with FakeTensorMode(), torch.no_grad():
        for node, (shape, device) in zip(places, specs, strict=True):
            node.meta[VAL] = torch.empty(shape, device=device, dtype=dtype)
    with torch.no_grad():
        return lower(normalize(gm, current()))


def test_a_move_to_another_device_runs_in_aten() -> None:
    g = lowered(lambda x: x.to("cpu") + 1, ((4, 4), "cuda:0"))
    assert [type(n) for n in g.nodes] == [Extern, Nest]
    assert {b.device for n in g.nodes if isinstance(n, Nest) for b in [n.out]} == {"cpu"}


def test_a_number_on_the_cpu_is_read_by_a_gpu_kernel() -> None:
    g = lowered(lambda x, s: x * s, ((4, 4), "cuda:0"), ((), "cpu"))
    assert [type(n) for n in g.nodes] == [Nest]


def test_gelu_has_oneDNNs_form_on_the_cpu_only() -> None:
    texts = {}
    for device in ("cpu", "cuda:0"):
        g = lowered(lambda x: torch.nn.functional.gelu(x), ((4, 4), device))
        (nest,) = [n for n in g.nodes if isinstance(n, Nest)]
        texts[device] = nest.body.text()
    assert texts["cpu"] != texts["cuda:0"] or not torch.backends.mkldnn.is_available()
    assert "sub" not in texts["cuda:0"]


def linear(x: torch.Tensor, w: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, w, *bias)


def products(columns: int, *, rows: int = 1024, inner: int = 768, bias: bool = False,
             dtype: torch.dtype = torch.bfloat16) -> list[Extern]:  # fmt: skip
    """The products that a linear layer on a GPU is made of."""
    shapes = [(rows, inner), (columns, inner), (columns,)][: 3 if bias else 2]

    def with_bias(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return linear(x, w, b)

    def without(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return linear(x, w)

    g = lowered(with_bias if bias else without, *((s, "cuda:0") for s in shapes), dtype=dtype)
    (output,) = g.outputs
    assert output is not None and [n.value for n in output.strides] == [columns, 1]
    return [n for n in g.nodes if isinstance(n, Extern)]


@pytest.mark.parametrize("bias", [False, True])
def test_long_odd_rows_of_a_product_are_two_products(bias: bool) -> None:
    found = products(50257, bias=bias)
    assert [[n.value for n in p.outs[0].shape] for p in found] == [[1024, 50256], [1024, 1]]
    assert [[n.value for n in p.outs[0].strides] for p in found] == [[50256, 1], [8, 1]]


def test_odd_rows_of_a_product_are_two_products_for_any_number_of_rows() -> None:
    r = sized_lower.Recorder()
    with r.mode:
        x, w = (torch.empty(s, dtype=torch.bfloat16, device="cuda:0")
                for s in ((1024, 768), (50257, 768)))  # fmt: skip
    rows, weight = r.place(0, x, {0: "n"}), r.place(1, w, {})
    g = lower(r.pair((r("mm.default", rows, r("t.default", weight)),)))
    found = [n.outs[0] for n in g.nodes if isinstance(n, Extern)]
    assert [[str(n) for n in b.shape[1:]] for b in found] == [["50256"], ["1"]]
    assert len({str(b.shape[0]) for b in found}) == 1 and not found[0].shape[0].is_const


@pytest.mark.parametrize(("columns", "more"), [
    (50264, {}), (50257, {"rows": 1}), (50257, {"inner": 770}), (50257, {"inner": 64}),
    (50257, {"dtype": torch.float32}), (7, {"rows": 1 << 20}),
])  # fmt: skip
def test_other_products_are_one(columns: int, more: dict[str, Any]) -> None:
    assert len(products(columns, **more)) == 1


def test_two_products_are_read_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contractions, "_LEAST_SPLIT_WORK", 0)
    monkeypatch.setattr(contractions, "_LEAST_SPLIT_INNER", 0)

    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return linear(x, w, b).relu()

    x, w, b = (torch.randn(s).bfloat16() for s in ((4, 16), (19, 16), (19,)))
    with override(skip=("epilogues",)):
        g = lowered(fn, *((tuple(t.shape), "cuda:0") for t in (x, w, b)), dtype=torch.bfloat16)
    assert [n.op for n in g.nodes if isinstance(n, Extern)] == ["aten.addmm.default"] * 2
    (found,) = vector_eval.run(g, [x, w, b])
    torch.testing.assert_close(found, fn(x, w, b), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("precision", "kind"), [("highest", Nest), ("high", Extern)])
def test_a_product_of_inner_size_1_is_cublas_where_tf32_is_allowed(
    precision: str, kind: type
) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        g = lowered(lambda x, y: x.bmm(y), ((2, 8, 1), "cuda:0"), ((2, 1, 8), "cuda:0"))
    finally:
        torch.set_float32_matmul_precision(before)
    assert [type(n) for n in g.nodes] == [kind]


def test_statistics_of_batch_norm_in_half_precision_are_kept_in_f32_on_a_gpu() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        op = torch.ops.aten._native_batch_norm_legit.no_stats
        y, mean, _ = op(x, w, w, True, 0.1, 1e-5)
        return y * mean.mean()

    g = lowered(fn, ((32, 64), "cuda:0"), ((64,), "cuda:0"), dtype=torch.bfloat16)
    assert all(isinstance(n, Nest) for n in g.nodes)
