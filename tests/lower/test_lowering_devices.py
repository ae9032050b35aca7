"""A kernel reads the memory of its own device: what moves between devices is ATen's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import symbolic_trace

from torchweld.base.config import current
from torchweld.graph.run import normalize
from torchweld.ir.graph import VAL
from torchweld.ir.loop import Extern, LoopGraph, Nest
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


@pytest.mark.parametrize(("columns", "stride"), [(50257, 50264), (50264, None)])
def test_long_odd_rows_of_a_product_start_at_multiples_of_16_bytes(
    columns: int, stride: int | None
) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, w)

    g = lowered(fn, ((1024, 768), "cuda:0"), ((columns, 768), "cuda:0"), dtype=torch.bfloat16)
    (product,) = [n for n in g.nodes if isinstance(n, Extern)]
    assert [n.value for n in product.outs[0].strides] == [stride or columns, 1]
    (output,) = g.outputs
    assert output is not None and [n.value for n in output.strides] == [columns, 1]
