"""A capture for tests: runs a function on fake tensors and writes its torch calls to an FX graph.

Also `run_pair`, which does with a GraphPair what the pipeline does, on real tensors.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Interpreter
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils import _pytree as pytree

from torchweld.ir.graph import VAL, GraphPair

_UNSEEN = (
    "__get__",
    "dim",
    "size",
    "numel",
    "stride",
    "is_contiguous",
    "storage_offset",
    "untyped_storage",
    "element_size",
    "__len__",
)
_UNSEEN_NAMES = frozenset(("shape", "dtype", "device", "ndim", "requires_grad", "layout"))


class _Writer(TorchFunctionMode):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        self.nodes: dict[int, Any] = {}
        self.alive: list[Any] = []

    def node(self, x: Any) -> Any:
        return self.nodes[id(x)] if isinstance(x, torch.Tensor) else x

    def remember(self, out: Any, node: Any) -> None:
        node.meta[VAL] = out
        if isinstance(out, torch.Tensor):
            self.nodes.setdefault(id(out), node)
            self.alive.append(out)
        elif isinstance(out, (tuple, list)):
            for i, item in enumerate(out):
                if isinstance(item, (torch.Tensor, tuple, list)):
                    self.remember(item, self.graph.call_function(operator.getitem, (node, i)))

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = resolve_name(func).split(".")[-2]
            if name in _UNSEEN_NAMES:
                return out
            func, args = getattr, (*args, name)
        elif name in _UNSEEN:
            return out
        held = pytree.tree_map(self.node, (args, kwargs))
        if func is torch.Tensor.__setitem__:
            func = operator.setitem
        if func is torch.Tensor.__getitem__:
            func = operator.getitem
        if getattr(torch.Tensor, name, None) is func:
            node = self.graph.call_method(name, *held)
        else:
            node = self.graph.call_function(func, *held)
        self.remember(out, node)
        return out


def capture(fn: Callable[..., Any], *inputs: torch.Tensor) -> GraphModule:
    """The torch-level graph of `fn`; fakes of aliasing inputs alias."""
    graph = Graph()
    mode = FakeTensorMode()
    writer = _Writer(graph)
    fakes = [mode.from_tensor(x) for x in inputs]
    for i, fake in enumerate(fakes):
        node = graph.placeholder(f"in{i}")
        node.meta[VAL] = mode.from_tensor(inputs[i])
        writer.nodes[id(fake)] = node
    with mode, writer:
        out = fn(*fakes)
    outs = list(out) if isinstance(out, (tuple, list)) else [out]
    graph.output(tuple(writer.node(x) for x in outs))
    return GraphModule({}, graph)


def run_pair(pair: GraphPair, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The captured outputs, after updating the mutated inputs; aliases are made as it says."""
    results = _Runner(GraphModule({}, pair.forward)).run(*inputs)
    n = len(pair.mutated)
    returned = pair.forward.output_node().args[0]
    places = pair.forward.find_nodes(op="placeholder")
    with torch.no_grad():
        for i, new in zip(pair.mutated, results[:n], strict=True):
            inputs[i].copy_(new)
    values = dict(zip(places, inputs, strict=True))
    values.update(zip(returned[:n], (inputs[i] for i in pair.mutated), strict=True))
    outs = []
    for node, value, alias in zip(returned[n:], results[n:], pair.aliases, strict=True):
        outs.append(value if alias is None else _replay(node, values, inputs[alias]))
    return outs


class _Runner(Interpreter):
    """Gives each value the strides that its meta promises, as the runtime does."""

    def run_node(self, n):
        out = super().run_node(n)
        promised = n.meta[VAL]
        if n.op == "call_function" and isinstance(out, torch.Tensor):
            assert (out.shape, out.dtype) == (promised.shape, promised.dtype)
            if strides(out) != strides(promised):
                moved = torch.empty_strided(out.shape, promised.stride(), dtype=out.dtype)
                return moved.copy_(out)
        return out


def _replay(node, values, owner):
    """The chain of views that ends in `node`, taken on the real input."""
    if node in values:
        return values[node]
    args = [_replay(a, values, owner) if isinstance(a, torch.fx.Node) else a for a in node.args]
    values[node] = node.target(*args, **node.kwargs)
    return values[node]


def compare(fn: Callable[..., Any], *inputs: torch.Tensor) -> GraphPair:
    """Normalize `fn`, run both on equal inputs, and assert that nobody can tell them apart."""
    from torchweld.base.config import Config
    from torchweld.graph.run import normalize

    pair = normalize(capture(fn, *inputs), replace(Config(), verify=True))
    ours = [copy_exactly(x) for x in inputs]
    theirs = [copy_exactly(x) for x in inputs]
    torch.manual_seed(0)
    got = run_pair(pair, ours)
    our_random = torch.rand(1)
    torch.manual_seed(0)
    with torch.no_grad():
        out = fn(*theirs)
    assert torch.equal(our_random, torch.rand(1))
    want = list(out) if isinstance(out, (tuple, list)) else [out]
    assert len(got) == len(want)
    for a, b in zip([*got, *ours], [*want, *theirs], strict=True):
        assert_same(a, b)
        assert strides(a) == strides(b), (strides(a), strides(b))
    assert sharing([*got, *ours]) == sharing([*want, *theirs])
    return pair


def copy_exactly(x: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides."""
    out = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    return out.copy_(x)


def strides(x: torch.Tensor) -> tuple[int, ...]:
    return tuple(s for n, s in zip(x.shape, x.stride(), strict=True) if n > 1 and x.numel())


def sharing(xs: list[torch.Tensor]) -> list[tuple[int, int]]:
    """Which tensors are one object, and which share memory, as index pairs."""
    first = [next(j for j, y in enumerate(xs) if y is x) for x in xs]
    keys = [x.untyped_storage()._cdata for x in xs]
    return [(a, keys.index(k)) for a, k in zip(first, keys, strict=True)]


def targets(pair: GraphPair) -> list[str]:
    """The operators of the graph, in order."""
    return [str(n.target) for n in pair.forward.nodes if n.op == "call_function"]


def assert_same(a: torch.Tensor, b: torch.Tensor) -> None:
    """Equal but for the rounding of a decomposition."""
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)
