"""Which scatters may write straight into an input that the graph mutates anyway.

A cache update is `new = index_copy(cache, ...)` in the functional graph, and `new` is copied into
`cache` at the end: two copies of the whole cache. When nobody reads the old value later, the store
can go into the input itself.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

from torch.fx import Node
from torch.fx.node import map_arg

from torchweld.ir.graph import GraphPair
from torchweld.lower.registry import LOWERINGS

_STORES = frozenset(
    f"aten.{name}" for name in (
        "index_put.default", "_unsafe_index_put.default", "scatter.src", "scatter.value",
        "scatter.reduce", "scatter.value_reduce", "scatter_add.default", "scatter_reduce.two",
        "index_copy.default", "index_add.default", "index_fill.int_Scalar",
        "index_fill.int_Tensor", "slice_scatter.default", "select_scatter.default",
        "diagonal_scatter.default",
    )
)  # fmt: skip


def overwriting(pair: GraphPair) -> frozenset[Node]:
    """The stores that may change the memory of the input at the start of their chain."""
    nodes = list(pair.forward.nodes)
    order = {n: k for k, n in enumerate(nodes)}
    places = [n for n in nodes if n.op == "placeholder"]
    returned = nodes[-1].args[0]
    assert isinstance(returned, tuple | list)
    found: set[Node] = set()
    for value, p in zip(returned, pair.mutated, strict=False):
        if isinstance(value, Node):
            chain = _chain(value, places[p])
            steps = list(zip([places[p], *chain], chain, strict=False))
            if steps and all(_dies(old, store, order) for old, store in steps):
                found.update(chain)
    return frozenset(found)


def _chain(value: Node, start: Node) -> list[Node]:
    """The stores that lead from `start` to `value`, first to last; empty if other nodes do."""
    chain: list[Node] = []
    while value is not start:
        if str(value.target) not in _STORES or not isinstance(value.args[0], Node):
            return []
        chain.append(value)
        value = value.args[0]
    return chain[::-1]


def _dies(old: Node, store: Node, order: dict[Node, int]) -> bool:
    """Whether `store` is the last reader of `old` and reads it as its first argument only."""
    others: list[Node] = []
    map_arg((store.args[1:], store.kwargs), others.append)
    if old in others or any(v in others for v in _views(old)):
        return False
    return all(order[u] < order[store] for u in _readers(old) if u is not store)


def _views(old: Node) -> Iterator[Node]:
    """The nodes that are windows onto `old`, directly or through others."""
    for u in old.users:
        rule = LOWERINGS.get(str(u.target))
        if u.target is operator.getitem or (rule is not None and rule.kind == "view"):
            yield u
            yield from _views(u)


def _readers(old: Node) -> Iterator[Node]:
    """The nodes that read `old`, directly or through views."""
    yield from old.users
    for v in _views(old):
        yield from v.users
