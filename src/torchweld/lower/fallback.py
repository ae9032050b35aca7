"""An operator call without a lowering becomes an Extern: ATen runs it, nothing is unsupported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch._ops import OpOverload
from torch.fx import Node

from torchweld.base.errors import LoweringError
from torchweld.ir.loop import Buffer, Extern, ExternArg, Torch
from torchweld.lower.builder import Builder
from torchweld.lower.sizes import SYMBOLIC, size
from torchweld.lower.tensor import Spec, Tensor, exprs, spec_of, whole

# operators whose real results differ from the metadata that torch predicts for them
_MISPREDICTED = frozenset({
    "aten._embedding_bag.default", "aten._embedding_bag_forward_only.default",
    "aten._batch_norm_with_update_functional.default",
    "aten._native_batch_norm_legit_functional.default", "aten._native_batch_norm_legit.no_stats",
    "aten.mkldnn_rnn_layer.default",
})  # fmt: skip

# a result that an operator was not asked for is None
Lowered: TypeAlias = Tensor | tuple["Lowered | None", ...]
Env: TypeAlias = dict[Node, Lowered]

_TORCH_KINDS = (
    (torch.dtype, "dtype"), (torch.device, "device"), (torch.layout, "layout"),
    (torch.memory_format, "memory_format"),
)  # fmt: skip
# results that share memory with the argument, which is therefore copied into memory of its own
REINTERPRET = frozenset({
    "aten.view.dtype", "aten.view_as_real.default", "aten.view_as_complex.default",
    "aten.real.default", "aten.imag.default", "aten._conj.default", "aten._neg_view.default",
    "aten.resolve_conj.default", "aten.resolve_neg.default",
})  # fmt: skip


def lower_extern(b: Builder, node: Node, env: Env) -> Lowered:
    """The call as it stands, on strided windows of its operands.

    Errors: LoweringError W201 for an operator that mutates or whose result aliases an argument,
    W203 for results that no buffer describes.
    """
    op = node.target
    assert isinstance(op, OpOverload)
    name = str(op)
    copies = name in REINTERPRET
    if not copies:
        _refuse_aliasing(op, name)
    args = tuple(_argument(b, a, env, copies) for a in node.args)
    kwargs = tuple((k, _argument(b, v, env, copies)) for k, v in node.kwargs.items())
    result = node.meta.get("val")
    every = result if isinstance(result, tuple | list) else () if result is None else (result,)
    vals = _asked_for(op, node, every)
    outs: list[Buffer | None] = []
    for k, v in enumerate(vals):
        # an int of a tuple is a size: who reads it has it as a constant
        if not isinstance(v, torch.Tensor | None) and not (type(v) is int and len(vals) > 1):
            raise LoweringError("W203", f"{name} returns a {type(v).__name__}")
        named = str(k) if len(vals) > 1 else ""
        outs.append(b.buffer(spec_of(v), named) if isinstance(v, torch.Tensor) else None)
    made = tuple(o for o in outs if o is not None)
    b.nodes.append(Extern(made, name, args, kwargs, (), b.origins))
    tensors = tuple(None if o is None else whole(o) for o in outs)
    return whole(made[0]) if isinstance(result, torch.Tensor) else tensors


def _asked_for(op: OpOverload, node: Node, vals: Sequence[object]) -> Sequence[object]:
    """The results, None where a mask among the arguments says that nobody wants one: some fake
    kernels make a tensor all the same, ATen's return nothing."""
    names = [a.name for a in op._schema.arguments]
    given = [m for n, m in (*zip(names, node.args, strict=False), *node.kwargs.items())
             if n in ("output_mask", "grad_input_mask")]  # fmt: skip
    if not given or not isinstance(given[0], tuple | list) or len(given[0]) != len(vals):
        return vals
    return [v if wanted else None for v, wanted in zip(vals, given[0], strict=True)]


def _refuse_aliasing(op: OpOverload, name: str) -> None:
    schema = op._schema
    if name in _MISPREDICTED:
        raise LoweringError("W203", f"the results of {name} are not as predicted")
    if schema.is_mutable:
        raise LoweringError("W201", f"{name} changes its arguments")
    if any(r.alias_info is not None for r in schema.returns):
        raise LoweringError("W202", f"the result of {name} is a view of its argument")


def _argument(b: Builder, a: object, env: Env, copies: bool) -> ExternArg:
    if isinstance(a, Node):
        return _tensor_argument(b, a, env, copies)
    if a is None or isinstance(a, bool | int | float | complex | str):
        return a
    if isinstance(a, tuple | list):
        return tuple(_argument(b, x, env, copies) for x in a)
    for cls, kind in _TORCH_KINDS:
        if isinstance(a, cls):
            return Torch(kind, str(a))
    if isinstance(a, SYMBOLIC):
        return size(a)
    raise LoweringError("W202", f"argument of type {type(a).__name__}")


def _tensor_argument(b: Builder, a: Node, env: Env, copies: bool) -> ExternArg:
    t = env[a]
    if not isinstance(t, Tensor):
        raise LoweringError("W202", f"{a.name} is not one tensor")
    view = b.as_view(t, exprs(a.meta["val"].stride()))
    if not copies:
        return view
    spec = Spec(view.shape, view.strides, t.dtype, t.buffer.device)
    own = b.buffer(spec, "own")
    fmt = Torch("memory_format", "torch.preserve_format")
    b.nodes.append(Extern((own,), "aten.clone.default", (view,), (("memory_format", fmt),), (),
                    b.origins))  # fmt: skip
    return b.as_view(whole(own), view.strides)
