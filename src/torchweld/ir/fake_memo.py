"""Remembers what an operator made of fake tensors: the layers of a model ask the same again.

A key is the operator, what the tensors look like, and the other arguments with their types. What is
remembered is how the results look and whose memory they share; a call that could depend on
anything else is not remembered. torch has a memo of its own behind this one, several times slower
than this because it also takes symbolic sizes and operators of every kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from torchweld.ir.nested import tensors_in

# When the table is full it is emptied: a model has a few hundred different calls.
_MOST = 20_000
_META = torch.device("meta")
# The result depends on what the tensors hold, on a generator, or is another kind of object.
_DEPENDENT = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_ATEN = torch.ops.aten
_UNFIT = frozenset((
    _ATEN.lift.default, _ATEN.lift_fresh.default, _ATEN.lift_fresh_copy.default,
))  # fmt: skip
_PLAIN = frozenset(
    (int, float, bool, complex, str, type(None), torch.dtype, torch.layout, torch.memory_format)
)


@dataclass(frozen=True, slots=True)
class _Look:
    """How a result looks.

    view_of: the position of the argument whose memory it shares. inference: whether it is a tensor
    of inference mode; views are what they are views of, in either mode.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    view_of: int | None
    inference: bool


# the looks of a tuple, of a list or of one tensor; None: not to be remembered
_Known = tuple[type, tuple[_Look, ...]] | None
_TABLE: dict[object, _Known] = {}


class _NoKeyError(Exception):
    """The call has an argument that no key can hold."""


def remembered(mode: FakeTensorMode, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
               run: Callable[[], Any]) -> Any:  # fmt: skip
    """What `run` returns, or would: `func` on `args` under `mode`."""
    if mode.in_kernel_invocation or not _fit(func):
        return run()
    try:
        key = (func, torch.get_default_dtype(), torch.is_inference_mode_enabled(),
               _key(mode, args), _key(mode, tuple(kwargs.items())) if kwargs else None)  # fmt: skip
    except _NoKeyError:
        return run()
    known = _TABLE.get(key, _TABLE)
    if known is None:
        return run()
    if known is not _TABLE:
        return _made(mode, known, args)  # type: ignore[arg-type]
    out = run()
    if len(_TABLE) >= _MOST:
        _TABLE.clear()
    _TABLE[key] = _known(func, args, out)
    return out


@lru_cache(maxsize=4096)
def _fit(func: Any) -> bool:
    """Whether the results of an operator follow from what its arguments look like."""
    if not isinstance(func, OpOverload) or func.namespace not in ("aten", "prims"):
        return False
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(),  # type: ignore[no-untyped-call]
        torch._C.DispatchKey.CompositeImplicitAutograd,
    )
    return not (
        composite or func in _UNFIT or func._schema.is_mutable
        or any(tag in func.tags for tag in _DEPENDENT)
    )  # fmt: skip


def _key(mode: FakeTensorMode, x: Any) -> Any:
    """What the result can depend on. Errors: _NoKeyError."""
    kind = type(x)
    if kind is FakeTensor:
        if (
            x.fake_mode is not mode or x.constant is not None or x.layout is not torch.strided
            or x._has_symbolic_sizes_strides or x.is_nested
        ):  # fmt: skip
            raise _NoKeyError
        return (FakeTensor, tuple(x.shape), x.stride(), x.storage_offset(), x.dtype, x.fake_device,
                x.is_conj(), x.is_neg(), x.is_inference())  # fmt: skip
    if kind in _PLAIN:
        return kind, x
    if kind is tuple or kind is list or kind is torch.Size:
        return tuple([_key(mode, item) for item in x])
    if kind is torch.device and (x.index is not None or x.type in ("cpu", "meta")):
        return x  # else it is the current device
    raise _NoKeyError


def _known(func: OpOverload, args: Sequence[Any], out: Any) -> _Known:
    """What to remember of a call."""
    kind = next((k for k in (tuple, list) if isinstance(out, k)), Tensor)
    items = (out,) if kind is Tensor else out
    looks = [_look(func, args, x) for x in items]
    if not looks or not any(isinstance(a, FakeTensor) for a in args):
        return None  # a factory's device may be the current one
    made = tuple(x for x in looks if x is not None)
    if None in looks or len({x.inference for x in made}) > 1:
        return None
    return kind, made


def _look(func: OpOverload, args: Sequence[Any], x: Any) -> _Look | None:
    """How one result looks; None if it is more than its looks."""
    if type(x) is not FakeTensor or x.layout is not torch.strided or x.is_nested:
        return None
    if x.constant is not None or x.requires_grad or x.is_conj() or x.is_neg():
        return None
    owner = next((i for i, a in enumerate(args) if isinstance(a, FakeTensor) and _shares(x, a)),
                 None)  # fmt: skip
    given = tensors_in(args, FakeTensor)
    if any(x is a for a in given) or (owner is not None) != _shares_memory(func):
        return None
    if owner is None and (x.storage_offset() or any(_shares(x, a) for a in given)):
        return None
    offset = int(x.storage_offset())
    return _Look(tuple(x.shape), x.stride(), offset, x.dtype, x.fake_device, owner,
                 x.is_inference())  # fmt: skip


def _shares_memory(func: OpOverload) -> bool:
    return bool(func.is_view) or func is _ATEN._unsafe_view.default


def _shares(a: Tensor, b: Tensor) -> bool:
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def _made(mode: FakeTensorMode, known: tuple[type, tuple[_Look, ...]], args: Sequence[Any]) -> Any:
    kind, looks = known
    inference = looks[0].inference
    if inference == torch.is_inference_mode_enabled():
        made = _all(mode, looks, args)
    else:
        with torch.inference_mode(inference):
            made = _all(mode, looks, args)
    return made if kind is list else tuple(made) if kind is tuple else made[0]


def _all(mode: FakeTensorMode, looks: tuple[_Look, ...], args: Sequence[Any]) -> list[FakeTensor]:
    with in_kernel_invocation_manager(mode):
        metas = [_meta(look, args) for look in looks]
    return [FakeTensor(mode, m, k.device) for m, k in zip(metas, looks, strict=True)]


def _meta(look: _Look, args: Sequence[Any]) -> Tensor:
    empty = torch.empty_strided(look.shape, look.strides, dtype=look.dtype, device=_META)
    if look.view_of is None:
        return empty
    memory = args[look.view_of].untyped_storage()
    return empty.set_(memory, look.offset, look.shape, look.strides)
