"""The two bridges to torch.compile: its backends under our capture, our compiler under its capture.

The only file of the package that knows torch._dynamo, and it is loaded only when somebody asks.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule

from torchweld.base.errors import UsageError
from torchweld.ir.graph import VAL
from torchweld.pipeline import Backend, compile_graph


def dynamo_backend(gm: GraphModule, example_inputs: Sequence[Any], **options: Any) -> Any:
    """torchweld as a backend of torch.compile: `torch.compile(f, backend="torchweld")`.

    A graph with symbolic sizes, or one that torchweld cannot compile, runs through ATen.
    """
    fakes = _fakes(example_inputs)
    if fakes is None:
        return gm.forward
    places = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for node, fake in zip(places, fakes, strict=True):
        node.meta[VAL] = fake
    return compile_graph(gm, fakes).call


def _fakes(inputs: Sequence[Any]) -> list[FakeTensor] | None:
    """The inputs as fake tensors of one mode; None if one is no tensor or has a symbolic size."""
    if not all(isinstance(x, torch.Tensor) and _is_static(x) for x in inputs):
        return None
    fakes = [x for x in inputs if isinstance(x, FakeTensor)]
    if len(fakes) == len(inputs):
        return fakes
    mode = fakes[0].fake_mode if fakes else FakeTensorMode(allow_non_fake_inputs=True)
    return [x if isinstance(x, FakeTensor) else mode.from_tensor(x) for x in inputs]


def _is_static(x: torch.Tensor) -> bool:
    return x.layout == torch.strided and all(type(n) is int for n in x.shape)


def resolve_backend(name: str) -> Backend:
    """The backend that torch.compile knows under `name`.

    Errors: UsageError W402 naming those there are.
    """
    registry = importlib.import_module("torch._dynamo.backends.registry")
    known = registry.list_backends(exclude_tags=())
    if name not in known:
        raise UsageError("W402", f"{name!r} is none of torchweld, eager, {', '.join(known)}")
    found: Callable[..., Any] = registry.lookup_backend(name)
    return found
