"""softmax(Q K^T) V written out by hand, as one attention operator.

What is recognised, on tensors of any device:

    scores = bmm(q, k transposed), with expands and reshapes around, as matmul makes them
    scores = scores * or / a number
    scores = scores + masks, or masked_fill or where with a number that hides
    p = softmax(scores, last axis), possibly in float32 and cast back
    out = bmm(p, v)

and what torch makes of its own operator where it finds no kernel for fake tensors (ViT on an H200
with torch 2.11, for one, while eager runs cuDNN's).

The operator that torch picks for the device (flash, memory-efficient, cuDNN) never writes the
scores to memory. It gives 0 for a row in which everything is masked by -inf, where softmax gives
NaN: such rows are made NaN.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from torchweld.graph.rewrites.masks import Hiding, Masks, constant
from torchweld.graph.rewrites.node import RESHAPES, arg, behind_views, new_node, only_user, tensor
from torchweld.graph.rewrites.relayout import Relayout, moved
from torchweld.ir.graph import VAL

aten = torch.ops.aten
attention = aten.scaled_dot_product_attention.default

_HALVES = (torch.bfloat16, torch.float16)
_FLOATS = frozenset((torch.bfloat16, torch.float16, torch.float32))
_SCALINGS: dict[Any, Callable[[float], float]] = {
    aten.mul.Scalar: float, aten.mul.Tensor: float,
    aten.div.Scalar: lambda n: 1 / n, aten.div.Tensor: lambda n: 1 / n,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Mask:
    """What is done to scores. added: masks that are added to them. where: they are `fill` where it
    is true (or, unless it `hides`, false).
    """

    added: tuple[Node, ...] = ()
    where: Node | None = None
    hides: bool = True
    fill: float = 0.0


@dataclass(frozen=True, slots=True)
class _Match:
    """The parts of one attention. Shapes: query [.., L, E], key [.., S, E], value [.., S, D];
    if `flipped`, key [.., E, S].

    lead: the leading sizes of the scores; a part may have their product instead.
    safe: rows in which everything is masked are 0. last: the node whose value the attention is.
    added: a mask that is added to the scores; hidden: one that is true where a score counts not.
    """

    query: Node
    key: Node
    flipped: bool
    value: Node
    scale: float
    mask: _Mask
    lead: torch.Size
    safe: bool
    last: Node


def fuse_attention(graph: Graph) -> None:
    """Replace every bmm(softmax(...), v) that can be one attention.

    Errors: Unsupported W201 where strides of an output cannot be kept; the graph is then of no use.
    """
    layout, masks = Relayout(graph), Masks(graph)
    for node in list(graph.find_nodes(op="call_function", target=aten.bmm.default)):
        found = _match(node)
        hiding = None if found is None else _hiding(found, masks)
        if found is not None and hiding is not None:
            _replace(graph, node, found, hiding, layout)
    layout.run()


# ---------------------------------------------------------------- one operator for all kernels

# The operators that torch takes attention apart into: where the mask, the dropout probability and
# the causal flag are.
KERNELS: dict[Any, tuple[int | None, int, int]] = {
    aten._scaled_dot_product_flash_attention.default: (None, 3, 4),
    aten._scaled_dot_product_efficient_attention.default: (3, 5, 6),
    aten._scaled_dot_product_cudnn_attention.default: (3, 5, 6),
}


def name_attention(graph: Graph) -> None:
    """Attention without dropout, of which only the result is read, under its general name.

    The operator picks the kernel again at run time, as eager does.
    """
    for node in [n for n in graph.nodes if n.target in KERNELS]:
        mask_at, dropout_at, causal_at = KERNELS[node.target]
        users = list(node.users)
        if any(u.target is not operator.getitem or u.args[1] != 0 for u in users) or not users:
            continue
        if arg(node, dropout_at, "dropout_p", 0.0) != 0.0:
            continue
        query, key, value = node.args[:3]
        assert isinstance(query, Node) and isinstance(key, Node)
        mask = None if mask_at is None else arg(node, mask_at, "attn_bias")
        causal = arg(node, causal_at, "is_causal", False)
        if mask is not None and causal:  # which the general operator does not take together
            continue
        grouped = tensor(query).shape[-3] != tensor(key).shape[-3]
        with graph.inserting_before(node):
            new = new_node(
                graph, attention,
                (query, key, value, mask, 0.0, causal),
                {"scale": node.kwargs.get("scale"), "enable_gqa": grouped}, like=node,
            )  # fmt: skip
        new.meta[VAL] = node.meta[VAL][0]  # of the kernel that torch had picked
        for user in users:
            user.replace_all_uses_with(new)


# ---------------------------------------------------------------- matching


def _match(out: Node) -> _Match | None:
    """The attention whose last product is `out`."""
    weights, value = out.args
    assert isinstance(weights, Node) and isinstance(value, Node)
    softmax = _source(weights)
    if softmax is None or softmax.target not in (aten._softmax.default, aten._safe_softmax.default):
        return None
    shape = tensor(softmax).shape
    if softmax.args[1] not in (-1, len(shape) - 1) or len(shape) not in (3, 4):
        return None
    inner = softmax.args[0]
    assert isinstance(inner, Node)
    scores, mask = _unmasked(inner)
    scores, scale = _unscaled(scores)
    product = scores if scores.target is aten.bmm.default else _source(scores)
    if product is None or product.target is not aten.bmm.default or only_user(product) is None:
        return None
    query, key_t = product.args
    assert isinstance(query, Node) and isinstance(key_t, Node)
    safe = softmax.target is aten._safe_softmax.default
    last = _narrowed(out) if safe else out
    wide = last is not out  # torch took its operator apart, and computed it in f32
    q, by_q = _operand(query, shape[:-2], wide)
    k, by_k, flipped = _key(key_t, shape[:-2], wide)
    v, by_v = _operand(value, shape[:-2], wide)
    types = {tensor(x).dtype for x in (q, k, v)}
    if len(types) != 1 or not types <= _FLOATS or by_v != 1.0 or tensor(product).numel() == 0:
        return None
    if tensor(last).dtype not in types:
        return None
    return _Match(q, k, flipped, v, scale * by_q * by_k, mask, shape[:-2], safe, last)


def _source(x: Node) -> Node | None:
    """What `x` is a reshaped or converted form of; None if something else reads it on the way."""
    while x.target in RESHAPES or x.target in (aten._to_copy.default, aten.expand.default):
        source = x.args[0]
        assert isinstance(source, Node)
        if only_user(source) is None or tensor(source).numel() != tensor(x).numel():
            return None
        x = source
    return x if only_user(x) is not None else None


def _unmasked(scores: Node) -> tuple[Node, _Mask]:
    """The scores before masks were added or something was filled in, and what that was."""
    x, added = _source(scores), []
    while x is not None and x.target is aten.add.Tensor and arg(x, 2, "alpha", 1) == 1:
        found = _added(x)
        if found is None:
            break
        scores, mask = found
        added.append(mask)
        x = _source(scores)
    if x is None or added:
        return scores if x is None else x, _Mask(tuple(added))
    return _filled(x) or (x, _Mask())


def _added(x: Node) -> tuple[Node, Node] | None:
    """The scores and the mask of which `x` is the sum."""
    for a, b in (x.args[:2], x.args[1::-1]):
        if isinstance(a, Node) and isinstance(b, Node) and _is_scores(a, x) and _is_mask(b, x):
            return a, b
    return None


def _filled(x: Node) -> tuple[Node, _Mask] | None:
    """The scores that `x` has a number in the place of, where, and which."""
    if x.target in (aten.masked_fill.Scalar, aten.masked_fill.Tensor):
        a, where, number = x.args
        hides = True
    elif x.target is aten.where.self:
        where, a, number = x.args
        hides = constant(a) is not None
        a, number = (number, a) if hides else (a, number)
    else:
        return None
    fill = constant(number)
    if not isinstance(a, Node) or not isinstance(where, Node) or fill is None:
        return None
    if tensor(where).dim() < 2 or not _is_scores(a, x):
        return None
    return a, _Mask(where=where, hides=hides, fill=fill)


def _is_scores(a: Node, total: Node) -> bool:
    return tensor(a).shape == tensor(total).shape and only_user(a) is not None


def _is_mask(b: Node, total: Node) -> bool:
    """Whether `b` can be an operator's mask: made elsewhere, and broadcast to the scores."""
    mask = tensor(b)
    return mask.is_floating_point() and mask.dim() <= tensor(total).dim() and mask.dim() >= 2


def _unscaled(x: Node) -> tuple[Node, float]:
    """The scores before they were multiplied or divided by a number."""
    y = _source(x)
    if y is None or y.target not in _SCALINGS:
        return x, 1.0
    source, number = y.args[:2]
    if not isinstance(source, Node) or not isinstance(number, (int, float)) or number <= 0:
        return x, 1.0
    return source, _SCALINGS[y.target](number)


def _narrowed(out: Node) -> Node:
    """The conversion to half precision that reads `out`, behind reshapes; else `out`."""
    user = behind_views(out)
    if user is None or user.target is not aten._to_copy.default:
        return out
    return user if tensor(user).dtype in _HALVES and tensor(out).dtype is torch.float32 else out


def _key(x: Node, lead: torch.Size, wide: bool) -> tuple[Node, float, bool]:
    """The key that `x` [N, E, S] is the transpose of, and what it is scaled by; or `x` itself, and
    True."""
    y, factor = _operand(x, lead, wide)
    rank = tensor(y).dim()
    if y.target is aten.transpose.int and {n % rank for n in y.args[1:]} == {rank - 2, rank - 1}:  # type: ignore[operator]
        source = y.args[0]
        assert isinstance(source, Node)
        z, more = _operand(source, lead, wide)
        return z, factor * more, False
    return y, factor, True


def _operand(x: Node, lead: torch.Size, wide: bool) -> tuple[Node, float]:
    """What the operand `x` [N, A, B] was made from by reshapes, copies and scaling, if that is a
    tensor [*lead, A, B]; and the number that it was scaled by.

    wide: a conversion from half precision to f32 was part of it.
    """
    wanted = (*lead, *tensor(x).shape[-2:])
    found, y, by, factor = x, x, 1.0, 1.0
    while True:
        if tuple(tensor(y).shape) == wanted:
            found, factor = y, by
        source, number = _step_back(y, wide)
        if source is None:
            return found, factor
        y, by = source, by * number


def _step_back(x: Node, wide: bool) -> tuple[Node | None, float]:
    """The node of which `x` has the elements, in order, times a number."""
    source = x.args[0] if x.op == "call_function" and x.args else None
    if not isinstance(source, Node) or not isinstance(source.meta.get(VAL), torch.Tensor):
        return None, 1.0
    if tensor(source).numel() != tensor(x).numel():
        return None, 1.0
    if x.target in RESHAPES or x.target in (aten.expand.default, aten.clone.default):
        return source, 1.0
    if x.target is aten._to_copy.default and wide and tensor(source).dtype in _HALVES:
        return source, 1.0
    if x.target in _SCALINGS and isinstance(x.args[1], (int, float)) and x.args[1] > 0:
        return source, _SCALINGS[x.target](x.args[1])
    return None, 1.0


# ---------------------------------------------------------------- replacing


def _hiding(m: _Match, masks: Masks) -> Hiding | None:
    """The mask for the operator; None if there is none that does what was written."""
    dtype = tensor(m.query).dtype
    if m.mask.added and m.safe:  # torch's own, which is for this operator
        (mask,) = m.mask.added
        same = tensor(mask).dtype is dtype
        return Hiding(mask if same else masks.make(aten._to_copy.default, mask, dtype=dtype))
    if m.mask.added:
        return masks.added(list(m.mask.added), dtype)
    if m.mask.where is None:
        return Hiding(None)
    return masks.filled(m.mask.where, m.mask.hides, m.mask.fill, dtype)


def _replace(graph: Graph, out: Node, m: _Match, hiding: Hiding, layout: Relayout) -> None:
    """Put the attention operator in the place of its result, or of the reshape that follows."""
    target = m.last
    user = only_user(target)
    shape = (*m.lead, *tensor(out).shape[1:])
    if tuple(tensor(target).shape) != shape and user is not None and user.target in RESHAPES:
        target = user if tuple(tensor(user).shape) == shape else target
    with graph.inserting_before(target):
        new = _attend(graph, out, m, hiding)
        if tensor(new).shape != tensor(target).shape:
            dense = {"memory_format": torch.contiguous_format}
            new = new_node(graph, aten.clone.default, (new,), dense, like=out)
            new = new_node(graph, aten.view.default, (new, list(tensor(target).shape)), like=out)
    target.replace_all_uses_with(new)
    if moved(target.meta[VAL], new.meta[VAL]):
        layout.original[new] = target.meta[VAL]


def _attend(graph: Graph, out: Node, m: _Match, hiding: Hiding) -> Node:
    def add(op: Any, *args: Any, **kwargs: Any) -> Node:
        return new_node(graph, op, args, kwargs, like=out)

    flat = len(m.lead) == 1

    def four(x: Node) -> Node:  # fused kernels take [batch, heads, length, size]
        return add(aten.unsqueeze.default, x, 1) if flat and tensor(x).dim() == 3 else x

    def operand(x: Node) -> Node:
        wanted = [*m.lead, *tensor(x).shape[-2:]]
        if list(tensor(x).shape) != wanted:
            if not tensor(x).is_contiguous():
                x = add(aten.clone.default, x, memory_format=torch.contiguous_format)
            x = add(aten.view.default, x, wanted)
        return four(x)

    query, value = operand(m.query), operand(m.value)
    key = operand(m.key)
    if m.flipped:
        key = add(aten.transpose.int, key, -2, -1)
    mask = None if hiding.mask is None else four(hiding.mask)
    new = add(attention, query, key, value, mask, scale=m.scale)
    if hiding.empty is not None and not m.safe:
        new = add(aten.masked_fill.Scalar, new, four(hiding.empty), math.nan)
    return add(aten.squeeze.dim, new, 1) if flat else new
