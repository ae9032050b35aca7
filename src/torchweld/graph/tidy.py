"""Removes what a functional graph computes in vain: no-op views and copies, repeats, dead nodes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from torchweld.base.config import Config
from torchweld.graph.schema import has_effect_here, is_view, view_chain
from torchweld.ir.graph import VAL
from torchweld.ir.launches import LAUNCHED, LAUNCHES
from torchweld.ir.size_node import expr_of, is_number

aten = torch.ops.aten

_COPIES = frozenset((aten.clone.default, aten._to_copy.default, aten.lift_fresh_copy.default))
_VIEWS = frozenset((aten.view.default, aten._unsafe_view.default, aten.reshape.default))
_SCRATCH = frozenset(
    (
        aten.empty.memory_format,
        aten.empty_like.default,
        aten.empty_strided.default,
        aten.empty_permuted.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
    )
)


def simplify(graph: Graph, keep: frozenset[Node]) -> None:
    """Replace views and copies by an equal earlier node.

    keep: nodes (the new values of inputs) that a chain of views must go on passing through.
    """
    for node in list(graph.nodes):
        if node.op != "call_function" or node in keep:
            continue
        same = _equal_node(node, keep)
        if same is not None:
            _replace(graph, node, same)
        elif node.target in _VIEWS:
            _skip_inner_view(node, keep)


def _equal_node(node: Node, keep: frozenset[Node]) -> Node | None:
    value = node.meta[VAL]
    if not isinstance(value, Tensor):
        return None
    if node.target in _COPIES:
        source = node.args[0]
        assert isinstance(source, Node)
        return source if _geometry(source.meta[VAL])[:-1] == _geometry(value)[:-1] else None
    if not is_view(node.target) and node.target is not operator.getitem:
        return None
    wanted = _geometry(value)
    for earlier in view_chain(node)[1:]:
        if _geometry(earlier.meta[VAL]) == wanted:
            return earlier
        if earlier in keep:
            return None
    return None


def _geometry(x: Any) -> tuple[object, ...]:
    """What makes two views of one memory equal; the offset comes last."""
    places: tuple[Any, ...] = (x.size(), x.stride(), x.storage_offset())
    if x._has_symbolic_sizes_strides:  # equal where they are written alike: nothing is decided
        places = (tuple(map(expr_of, places[0])), tuple(map(expr_of, places[1])),
                  expr_of(places[2]))  # fmt: skip
    return (x.dtype, x.device, *places[:2], x.is_conj(), x.is_neg(), places[2])


def _skip_inner_view(node: Node, keep: frozenset[Node]) -> None:
    """view(view(x)) is view(x) when all are contiguous."""
    inner = node.args[0]
    if not isinstance(inner, Node) or inner.target not in _VIEWS or inner in keep:
        return
    source = inner.args[0]
    assert isinstance(source, Node)
    chain = (source, inner, node)
    if all(n.meta[VAL].is_contiguous() for n in chain):
        node.replace_input_with(inner, source)


def merge_repeats(graph: Graph, keep: frozenset[Node]) -> None:
    """Compute equal expressions once. Random, effectful and uninitialised ones are not equal."""
    seen: dict[object, Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target in _SCRATCH or has_effect_here(node):
            continue
        key = (node.target, _key(node.args), _key(node.kwargs))
        first = seen.setdefault(key, node)
        if first is not node and node not in keep:
            _replace(graph, node, first)


def _key(x: Any) -> object:
    """A hashable form that is equal only for arguments of equal type and value."""
    if isinstance(x, Node):
        return x
    if isinstance(x, (tuple, list)):
        return tuple(_key(item) for item in x)
    if isinstance(x, dict):
        return tuple((name, _key(item)) for name, item in sorted(x.items()))
    if is_number(x):
        return (type(x), x.node.value)
    return (type(x), repr(x) if isinstance(x, (float, complex)) else x)


def drop_dead(graph: Graph, keep: frozenset[Node]) -> None:
    """Erase what nothing reads, unless it draws random numbers or has another effect."""
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users and not has_effect_here(node):
            graph.erase_node(node)


def _replace(graph: Graph, node: Node, other: Node) -> None:
    node.replace_all_uses_with(other)
    graph.erase_node(node)


Pass = Callable[[Graph, frozenset[Node]], None]

PASSES: tuple[tuple[str, Pass], ...] = (
    ("simplify", simplify),
    ("cse", merge_repeats),
    ("dce", drop_dead),
)


def tidy(graph: Graph, updates: Sequence[Node], cfg: Config) -> None:
    """Run the passes that cfg.skip does not name. `updates`: the new values of mutated inputs."""
    keep = frozenset(updates)
    for name, run in PASSES:
        if name not in cfg.skip:
            run(graph, keep)


def name_blanks(graph: Graph) -> None:
    """Say of each launch of a kernel of the user's which of the tensors that it writes to hold
    nothing yet: they are not copied before."""
    for node in graph.nodes:
        if node.target is LAUNCHED:
            tensors, number = node.args[:2]
            node.args = (tensors, number, [i for i in LAUNCHES[number].written
                                           if tensors[i].target in _SCRATCH])  # fmt: skip
