"""Which scatters may write straight into their first argument instead of into a copy of it.

A cache update is `new = index_copy(cache, ...)` in the functional graph, and `new` is copied into
`cache` at the end: two copies of the whole cache. When nobody reads the old value later, the store
can go into the input itself. The same holds for a value of the graph, such as a matrix product to
some of whose rows something is added.
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


# whose result is memory of its own
_OWNERS = _STORES | {f"aten.{name}.default" for name in ("mm", "addmm", "bmm", "baddbmm")}


def overwriting(pair: GraphPair) -> frozenset[Node]:
    """The stores that may change the memory of their first argument."""
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
    given = {n for n in returned if isinstance(n, Node)}
    for n in nodes:
        if str(n.target) in _STORES and _is_dying(n, given, order):
            found.add(n)
    return frozenset(found)


def returned(pair: GraphPair, over: frozenset[Node]) -> frozenset[Node]:
    """The nodes whose memory an output of the graph has. over: stores into their arguments."""
    found: set[Node] = set()
    waiting = list(pair.forward.output_node().all_input_nodes)
    while waiting:
        node = waiting.pop()
        found.add(node)
        source = node.args[0] if node.args else None
        if isinstance(source, Node) and source not in found and (node in over or _is_view(node)):
            waiting.append(source)
    return frozenset(found)


def _is_dying(store: Node, given: set[Node], order: dict[Node, int]) -> bool:
    """Whether the store is the last that is done with its first argument, which the graph made."""
    old = store.args[0]
    if not isinstance(old, Node) or str(old.target) not in _OWNERS:
        return False
    if any(v in given for v in (old, *_views(old))):
        return False
    return _dies(old, store, order)


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
        if _is_view(u):
            yield u
            yield from _views(u)


def _is_view(node: Node) -> bool:
    rule = LOWERINGS.get(str(node.target))
    return node.target is operator.getitem or (rule is not None and rule.kind == "view")


def _readers(old: Node) -> Iterator[Node]:
    """The nodes that read `old`, directly or through views."""
    yield from old.users
    for v in _views(old):
        yield from v.users
