"""Which outputs of a graph with gradients autograd gets as results, and how the others follow.

A view of an input, or of memory that another output shares, is no result of its own: autograd must
know what it is a view of. It is made from the input or the result by the same views, outside of
the compiled graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from torchweld.base.errors import Unsupported
from torchweld.graph.functional import is_base, is_wrapped, share_storage, unwrap
from torchweld.graph.outputs import view_of
from torchweld.graph.record import Recorder
from torchweld.ir.graph import Returned

_CREATION: Any = torch._C._autograd._get_creation_meta
_KINDS: Any = torch._C._autograd.CreationMeta
# views that know where they come from; the others must not be changed in place later
_ORDINARY = (_KINDS.DEFAULT, _KINDS.MULTI_OUTPUT_NODE)

View = tuple[Any, tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Plan:
    """results: what autograd gets. bases: for each, the output that it is, or (if the flag is set)
    is the base of. sources: for each output, the result or (if the flag is set) the input that it
    is made from."""

    results: list[Tensor]
    bases: tuple[tuple[int, bool], ...]
    sources: tuple[tuple[int, bool], ...]


def plan_outputs(outs: Sequence[Any], inputs: Sequence[Tensor], made: Sequence[Any],
                 as_views: bool) -> Plan:  # fmt: skip
    """What becomes of each output.

    made: everything that the captured graph produced, to find the bases of views.
    as_views: whether views stay views although nobody has their base. Who gets them under no_grad,
        at a break, may give them another shape, which changes the history of a view.
    Errors: Unsupported W201 for views of a tensor that is out of reach.
    """
    results: list[Tensor] = []
    bases: list[tuple[int, bool]] = []
    sources: list[tuple[int, bool]] = []
    for i, out in enumerate(outs):
        if not is_wrapped(out):
            raise Unsupported("W201", f"an output that is a {type(out).__name__}, not a tensor")
        of = next((j for j, x in enumerate(inputs) if share_storage(x, out)), None)
        if of is not None:
            sources.append((of, True))
            continue
        apart = not (as_views and out.requires_grad and out._is_view()) and not any(
            o is not out and is_wrapped(o) and share_storage(o, out) for o in outs)  # fmt: skip
        whole = out if apart else _base(out, [*outs, *made])
        at = next((k for k, r in enumerate(results) if r is whole), None)
        if at is None:
            at = len(results)
            results.append(whole)
            same = next((j for j, o in enumerate(outs) if o is whole), None)
            bases.append((i, True) if same is None else (same, False))
        sources.append((at, False))
    return Plan(results, tuple(bases), tuple(sources))


def _base(out: Tensor, made: Sequence[Any]) -> Tensor:
    for x in made:
        if is_wrapped(x) and share_storage(x, out) and is_base(x):
            found: Tensor = x
            return found
    raise Unsupported("W201", "outputs that are views of a tensor that is out of reach")


def views_from(recorder: Recorder, out: Tensor, source: tuple[int, bool],
               results: Sequence[Tensor], inputs: Sequence[Tensor]) -> Returned:  # fmt: skip
    """How `out` is made from its source.

    Errors: Unsupported W201 if its autograd history is not that of such views.
    """
    place, of_input = source
    base = inputs[place] if of_input else results[place]
    if out is base:
        return Returned(place, of_input, (), out.requires_grad)
    if out._is_view() and not (out.requires_grad == base.requires_grad
                               and _CREATION(out) in _ORDINARY):  # fmt: skip
        raise Unsupported("W201", "an output that is a view with a history of its own")
    if out.requires_grad and not out._is_view():
        raise Unsupported("W201", "an output that autograd does not know as a view")
    steps = _views(recorder.node_of(view_of(out, base)), recorder.node_of(unwrap(base)))
    if not steps and not out.requires_grad:  # `x.data`, which is another object
        steps = ((torch.ops.aten.detach.default, (), {}),)
    return Returned(place, of_input, steps, out.requires_grad)


def _views(node: Node, start: Node) -> tuple[View, ...]:
    """The operators that lead from `start` to `node`."""
    if node is start:
        return ()
    source = node.args[0] if node.args else None
    if not isinstance(source, Node) or len(node.all_input_nodes) != 1:
        raise Unsupported("W201", "an output that is a view cannot be derived from its base")
    return (*_views(source, start), (node.target, tuple(node.args[1:]), dict(node.kwargs)))
