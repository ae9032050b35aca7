"""Builds, lowers and runs one function, and compares it with eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import vector_eval
from torch import fx
from torch.utils import _pytree as pytree

from torchweld.base.config import Config
from torchweld.graph.run import normalize
from torchweld.ir import loop_eval
from torchweld.ir.fake import FakeMode
from torchweld.ir.graph import GraphPair
from torchweld.ir.loop import Extern, LoopGraph, Nest
from torchweld.ir.loop_verify import verify
from torchweld.lower.run import lower

MODE = FakeMode()


def copied(x: Any) -> Any:
    """Tensors copied with their strides; tensors that share memory still do."""
    memory: dict[int, torch.Tensor] = {}

    def one(t: torch.Tensor) -> torch.Tensor:
        whole = t.untyped_storage()
        if whole._cdata not in memory:
            flat = torch.empty(0, dtype=t.dtype).set_(whole).clone()
            memory[whole._cdata] = flat
        flat = memory[whole._cdata]
        return torch.as_strided(flat, t.shape, t.stride(), t.storage_offset())

    return pytree.tree_map_only(torch.Tensor, one, x)


def outputs_of(f: Callable[..., Any], args: Any, kwargs: Any) -> list[Any]:
    with torch.no_grad():
        out = f(*args, **kwargs)
    return pytree.tree_leaves(out) if isinstance(out, tuple | list | dict) else [out]


def captured(f: Callable[..., Any], args: Any, kwargs: Any) -> fx.GraphModule:
    """A torch-level graph with one node that calls `f`; its inputs are the tensors in args."""
    graph = fx.Graph()

    def place(x: torch.Tensor) -> fx.Node:
        node = graph.placeholder(f"x{len(graph.nodes)}")
        node.meta["val"] = MODE.from_tensor(x)
        return node

    placed, named = pytree.tree_map_only(torch.Tensor, place, (args, kwargs))
    leaves = graph.call_function(_flattened(f), placed, named)
    count = len(outputs_of(f, *copied((args, kwargs))))
    graph.output(tuple(graph.call_function(_item, (leaves, k)) for k in range(count)))
    return fx.GraphModule({}, graph)


def _flattened(f: Callable[..., Any]) -> Callable[..., list[Any]]:
    def call(*args: Any, **kwargs: Any) -> list[Any]:
        return pytree.tree_leaves(f(*args, **kwargs))

    return call


def _item(x: list[Any], k: int) -> Any:
    return x[k]


def aten(f: Callable[..., Any], *args: Any, **kwargs: Any) -> GraphPair:
    with torch.no_grad():
        return normalize(captured(f, args, kwargs), Config(verify=True))


def lowered(f: Callable[..., Any], *args: Any, **kwargs: Any) -> LoopGraph:
    """The verified LoopGraph of f(*args)."""
    g = lower(aten(f, *args, **kwargs))
    verify(g)
    return g


def externs(g: LoopGraph) -> list[str]:
    return [n.op for n in g.nodes if isinstance(n, Extern)]


def nests(g: LoopGraph) -> list[Nest]:
    return [n for n in g.nodes if isinstance(n, Nest)]


def check(f: Callable[..., Any], *args: Any, tol: tuple[float, float] | None = None,
          exact_layout: bool = True, **kwargs: Any) -> LoopGraph:  # fmt: skip
    """Lower f(*args), run it, and assert that nobody can tell it from eager."""
    g = lowered(f, *args, **kwargs)
    ours, theirs = copied((args, kwargs)), copied((args, kwargs))
    mine = [x for x in pytree.tree_leaves(ours) if isinstance(x, torch.Tensor)]
    yours = [x for x in pytree.tree_leaves(theirs) if isinstance(x, torch.Tensor)]
    torch.manual_seed(0)
    want = outputs_of(f, *theirs)
    torch.manual_seed(0)
    got = vector_eval.run(g, mine)
    assert len(got) == len(want)
    for a, b in zip([*got, *mine], [*want, *yours], strict=True):
        assert isinstance(a, torch.Tensor) == isinstance(b, torch.Tensor)
        if isinstance(a, torch.Tensor):
            _close(a, b, tol, exact_layout)
    assert sharing([*got, *mine]) == sharing([*want, *yours])
    return g


def check_by_meaning(f: Callable[..., Any], *args: Any,
                     tol: tuple[float, float] | None = None) -> LoopGraph:  # fmt: skip
    """As `check`, by the slow interpreter that defines what a LoopGraph means; no externs."""
    g = lowered(f, *args)
    mine = [x for x in pytree.tree_leaves(copied(args)) if isinstance(x, torch.Tensor)]
    want = outputs_of(f, copied(args), {})
    storages = [torch.empty(0, dtype=x.dtype).set_(x.untyped_storage()) for x in mine]
    got = loop_eval.evaluate(g, [s.tolist() for s in storages])
    for values, b in zip(got, want, strict=True):
        a = torch.tensor(values, dtype=b.dtype).reshape(b.shape)
        _close(a, b, tol, False)
    return g


def _close(a: torch.Tensor, b: torch.Tensor, tol: tuple[float, float] | None,
           exact_layout: bool) -> None:  # fmt: skip
    rtol, atol = tol or (None, None)
    torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
    if exact_layout:
        assert strides(a) == strides(b), (strides(a), strides(b))


def strides(x: torch.Tensor) -> tuple[int, ...]:
    return tuple(s for n, s in zip(x.shape, x.stride(), strict=True) if n > 1 and x.numel())


def sharing(xs: list[Any]) -> list[int]:
    """For each tensor the first that it shares memory with."""
    keys = [x.untyped_storage()._cdata if isinstance(x, torch.Tensor) and x.numel() else -k - 1
            for k, x in enumerate(xs)]  # fmt: skip
    return [keys.index(k) for k in keys]
