"""Normalized graphs of functions of fakes on a pretended GPU, for tests of rewrites."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.backends import cuda
from torch.fx import Graph, GraphModule, Interpreter, Node, symbolic_trace
from torch.fx.node import map_aggregate
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch_capture import capture

import torchweld.graph.joint as joints
from torchweld.base.config import Config, current
from torchweld.graph.run import normalize
from torchweld.ir.graph import VAL, Joint

aten = torch.ops.aten
BF16 = torch.bfloat16


def graph_of(fn: Callable[..., Any], *specs: Any, device: str = "cuda:0") -> Graph:
    """The normalized graph of a function of fakes. specs: shapes, or (shape, dtype)."""
    gm = symbolic_trace(fn)
    places = [n for n in gm.graph.nodes if n.op == "placeholder"]
    with FakeTensorMode() as mode, torch.no_grad():
        for node, spec in zip(places, specs, strict=True):
            shape, dtype = spec if isinstance(spec[1], torch.dtype) else (spec, BF16)
            node.meta[VAL] = torch.empty(shape, dtype=dtype, device=device)
    del mode
    with torch.no_grad(), nullcontext() if device == "cpu" else unasked():
        return normalize(gm, current()).forward


@contextmanager
def unasked() -> Iterator[None]:
    """As where there is no GPU to ask, which has its own opinion of what suits it: attention is
    taken apart, and rules say which kernel has it whole, of those that the settings allow."""
    names = [f"{name}_sdp_enabled" for name in ("flash", "mem_efficient", "cudnn", "math")]
    allowed = {name: getattr(cuda, name)() for name in names}
    with pytest.MonkeyPatch.context() as patch, sdpa_kernel(SDPBackend.MATH):
        patch.setattr(torch.cuda, "is_available", lambda: False)
        for name, answer in allowed.items():
            patch.setattr(cuda, name, lambda answer=answer: answer)
        yield


def pretend_cuda(graph: Graph) -> None:
    """Move the values and devices of a graph that was recorded on the CPU to a pretended GPU.

    Backwards cannot be recorded on fakes of a GPU where there is none.
    """
    mode = FakeTensorMode()

    def moved(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        with mode:
            made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda:0")
        return made.requires_grad_(x.requires_grad)

    for node in graph.nodes:
        values = node.meta[VAL]
        many = isinstance(values, (tuple, list))
        node.meta[VAL] = type(values)(map(moved, values)) if many else moved(values)
        node.args, node.kwargs = map_aggregate((node.args, node.kwargs), _on_gpu)


def joint_on_gpu(patch: pytest.MonkeyPatch, fn: Callable[..., Any],
                 inputs: Sequence[Tensor]) -> Joint:  # fmt: skip
    """The joint graph of a function of tensors as it is made on a GPU."""
    rewrite = joints.rewrite_joint

    def pretending(graph: Graph, cfg: Config) -> None:
        pretend_cuda(graph)
        rewrite(graph, cfg)

    with patch.context() as patched:
        patched.setattr(joints, "rewrite_joint", pretending)
        return joints.joint(capture(fn, *inputs), current())


def _on_gpu(x: Any) -> Any:
    return torch.device("cuda:0") if isinstance(x, torch.device) else x


def targets(graph: Graph) -> list[Any]:
    return [n.target for n in graph.nodes if n.op == "call_function"]


def value(node: Any) -> Tensor:
    assert isinstance(node, Node)
    found = node.meta[VAL]
    assert isinstance(found, Tensor)
    return found


class OnCpu(Interpreter):
    """Runs a graph that was made for a pretended GPU on tensors of the CPU."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = map_aggregate((args, kwargs), _on_cpu)
        return super().call_function(target, args, kwargs)


def _on_cpu(x: Any) -> Any:
    return torch.device("cpu") if isinstance(x, torch.device) else x


def run_on_cpu(graph: Graph, *inputs: Tensor) -> Any:
    """The first result of the graph."""
    with torch.no_grad():
        return OnCpu(GraphModule({}, graph)).run(*inputs)[0]
