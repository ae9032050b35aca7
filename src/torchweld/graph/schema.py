"""Facts about ATen operators, read from their schemas and tags, remembered per operator."""

from __future__ import annotations

import operator
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from torchweld.ir.graph import VAL
from torchweld.ir.nested import memories_in, memory_of

aten = torch.ops.aten
prim = torch.ops.prim

# Answers a question about a tensor's metadata: nothing to record.
_QUERIES = frozenset(
    (
        prim.device.default,
        prim.layout.default,
        aten.is_contiguous.default,
        aten.is_contiguous.memory_format,
        aten.is_strides_like_format.default,
        aten.is_non_overlapping_and_dense.default,
        aten.is_same_size.default,
        aten.size.default,
        aten.sym_size.default,
        aten.stride.default,
        aten.sym_stride.default,
        aten.storage_offset.default,
        aten.sym_storage_offset.default,
        aten.numel.default,
        aten.sym_numel.default,
        aten.dim.default,
    )
)

# Batch statistics are written in training although the schema does not say so: the positions of
# the statistics and of the flag.
_HIDDEN_WRITES = {
    aten.native_batch_norm.default: ((3, 4), 5),
    aten.cudnn_batch_norm.default: ((3, 4), 5),
    aten.miopen_batch_norm.default: ((3, 4), 5),
}

# Operators that are to stay although nothing reads their results.
_EFFECTS = frozenset(("_assert", "_print", "sym_constrain", "_foreach_assert", "hooked"))

_MAYBE_INPUT = frozenset(("_unsafe_view",))


def is_effect_free_query(func: Any) -> bool:
    return func in _QUERIES


def changes_arguments(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this call writes to one of its arguments."""
    hidden = _HIDDEN_WRITES.get(func)
    if hidden is None:
        return bool(func._schema.is_mutable)
    places, flag = hidden
    written = [args[i] if i < len(args) else None for i in places]
    training = args[flag] if flag < len(args) else kwargs.get("training", True)
    return bool(training) and any(x is not None for x in written)


@cache
def is_composite(func: OpOverload) -> bool:
    """Whether the operator is only defined by other operators."""
    return bool(func._can_decompose())


@cache
def is_pointwise(func: Any) -> bool:
    """Whether each element of the result is made of the elements at its place."""
    return torch.Tag.pointwise in getattr(func, "tags", ())


def is_view(func: Any) -> bool:
    """Whether the result shares memory with the first argument."""
    if not isinstance(func, OpOverload):
        return False
    return func.is_view or func._schema.name.removeprefix("aten::") in _MAYBE_INPUT


@cache
def draws(func: Any) -> bool:
    """Whether the operator draws from a generator: it is never dropped, merged or moved."""
    return isinstance(func, OpOverload) and torch.Tag.nondeterministic_seeded in func.tags


@cache
def has_effect(func: Any) -> bool:
    """Whether the operator matters although its result is unused, or must run exactly once."""
    if not isinstance(func, OpOverload):
        return False
    name = func._schema.name.partition("::")[2]
    return (
        draws(func)
        or bool(func._schema.is_mutable)
        or not func._schema.returns
        or name.startswith(tuple(_EFFECTS))
    )


def has_effect_here(node: Node) -> bool:
    """As has_effect, of a call: attention without dropout is marked random, but draws nothing."""
    return has_effect(node.target) and not (draws(node.target) and _draws_nothing(node))


def draws_here(node: Node) -> bool:
    """Whether this call draws random numbers."""
    return draws(node.target) and not _draws_nothing(node)


def _draws_nothing(node: Node) -> bool:
    place = _DROPOUT.get(node.target)
    if place is None:
        return False
    p = node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p", 0.0)
    return bool(p == 0.0)


_DROPOUT: dict[Any, int] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: 3,
    aten._scaled_dot_product_flash_attention.default: 3,
    aten._scaled_dot_product_efficient_attention.default: 5,
    aten._scaled_dot_product_cudnn_attention.default: 5,
    aten._scaled_dot_product_fused_attention_overrideable.default: 4,
}


def view_chain(node: Node) -> list[Node]:
    """`node` and the nodes whose memory it shares, up to the one that owns it."""
    chain = [node]
    while (source := _viewed(chain[-1])) is not None:
        chain.append(source)
    return chain


def _viewed(node: Node) -> Node | None:
    """The node that `node` is a view of, or None if it owns its memory."""
    if node.op != "call_function" or not node.args:
        return None
    source = node.args[0]
    if not isinstance(source, Node):
        return None
    if node.target is operator.getitem:
        return _viewed(source)
    return source if is_view(node.target) else None


_IN_PLACE_OPERATORS = frozenset(
    ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor")
)


def writes_through_windows(node: Node) -> bool:
    """Whether a captured call writes to a tensor that `unfold` gave, or to a view of one."""
    written: Any = node.kwargs.get("out", node.args[0] if node.args else None)
    if not writes_in_place(node) or not isinstance(written, Node) or VAL not in written.meta:
        return False
    memory = memory_of(written.meta[VAL])
    while isinstance(written, Node) and memory in memories_in(written.meta.get(VAL)):
        if getattr(written.target, "__name__", written.target) == "unfold":
            return True
        written = written.args[0] if written.args else None
    return False


def writes_in_place(node: Node) -> bool:
    """Whether a captured call is an in-place operator, or one with out=, by its name."""
    target: Any = node.target
    name: str = target if isinstance(target, str) else getattr(target, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name in _IN_PLACE_OPERATORS or "out" in node.kwargs
