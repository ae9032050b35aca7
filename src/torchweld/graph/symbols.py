"""Symbolic sizes of a graph: which there are, and where they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.fx import Graph, Node

from torchweld.ir.expr import Expr, Sym
from torchweld.ir.graph import VAL
from torchweld.ir.size_node import SizeNode, is_number, node_of, plain, symbolic
from torchweld.ir.size_values import symbols_of
from torchweld.ir.sizes import Size, SizeEnv


def numbers_in(places: Sequence[Node]) -> dict[int, Any]:
    """The positions of the placeholders that are symbolic numbers, and these."""
    return {i: plain(n.meta[VAL]) for i, n in enumerate(places) if is_number(n.meta.get(VAL))}


def sizes_of(graph: Graph) -> tuple[Size, ...]:
    """Where the symbols of a graph are read: each once, of the first input that has it."""
    found: dict[Expr, Size] = {}

    def read(x: Any, kind: str, place: int, dim: int) -> None:
        node = node_of(x)
        if node is None or not isinstance(node.value, Expr):
            return
        symbol = node.env.symbol_of(node.value)
        if symbol is not None:
            found.setdefault(symbol, Size(symbol, kind, place, dim, node.hint))

    values = [n.meta[VAL] for n in graph.find_nodes(op="placeholder")]
    for i, value in enumerate(values):
        if not isinstance(value, Tensor):
            read(value, "number", i, 0)
            continue
        for d, size in enumerate(value.shape):
            read(size, "size", i, d)
    for i, value in enumerate(values):
        for d, step in enumerate(value.stride() if isinstance(value, Tensor) else ()):
            read(step, "stride", i, d)
    return tuple(found.values())


def env_of(graph: Graph) -> SizeEnv | None:
    """What is known of the symbols of a graph; None if it has none."""
    return next((n.env for n in _nodes_in(graph)), None)


def place_unread(graph: Graph, after: Node | None) -> tuple[Sym, ...]:
    """Give the graph a number as an input for each symbol that no other input tells.

    after: the last of its inputs, None if it has none.
    """
    read = {row.symbol for row in sizes_of(graph)}
    missing: dict[Sym, SizeEnv] = {}
    for node in _nodes_in(graph):
        value = node.env.simplify(node.value) if isinstance(node.value, Expr) else node.value
        for symbol in sorted(symbols_of(value), key=lambda s: s.text()):
            known = node.env.simplify(symbol)
            missing.update((s, node.env) for s in symbols_of(known) if s not in read)
    first = next(iter(graph.nodes))
    with graph.inserting_before(first) if after is None else graph.inserting_after(after):
        for symbol, env in reversed(missing.items()):
            place = graph.placeholder(symbol.text())
            place.meta[VAL] = symbolic(env, symbol)
    return tuple(missing)


def _nodes_in(graph: Graph) -> Iterator[SizeNode]:
    for node in graph.nodes:
        yield from _held((node.meta.get(VAL), node.args, tuple(node.kwargs.values())))


def _held(x: object) -> Iterator[SizeNode]:
    """Our nodes in arguments, and in the metadata of tensors."""
    parts: Iterable[object] = ()
    if isinstance(x, Tensor):
        if x._has_symbolic_sizes_strides:
            parts = (*x.shape, *x.stride(), x.storage_offset())
    elif isinstance(x, tuple | list):
        parts = x
    else:
        node = node_of(x)
        if node is not None:
            yield node
    for part in parts:
        yield from _held(part)
