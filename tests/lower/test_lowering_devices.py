"""A kernel reads the memory of its own device: what moves between devices is ATen's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import symbolic_trace

from torchweld.base.config import current
from torchweld.graph.run import normalize
from torchweld.ir.graph import VAL
from torchweld.ir.loop import Extern, LoopGraph, Nest
from torchweld.lower.run import lower


def lowered(fn: Callable[..., Any], *specs: tuple[tuple[int, ...], str]) -> LoopGraph:
    """The loops of a function of f32 tensors. specs: shape and device of each."""
    gm = symbolic_trace(fn)
    places = [n for n in gm.graph.nodes if n.op == "placeholder"]
    with FakeTensorMode(), torch.no_grad():
        for node, (shape, device) in zip(places, specs, strict=True):
            node.meta[VAL] = torch.empty(shape, device=device)
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
