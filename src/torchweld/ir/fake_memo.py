"""Remembers what an operator made of fake tensors: the layers of a model ask the same again.

A key is the operator, what the tensors look like, and the other arguments with their types. What is
remembered is how the results look and whose memory they share; a call that could depend on
anything else is not remembered. torch has a memo of its own behind this one, several times slower
than this because it also takes operators of every kind.

Calls on symbolic sizes are remembered by their SizeEnv. What was asked about them in the first such
call are facts since then, so the second would ask nothing new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from torchweld.ir.expr import Expr, Int
from torchweld.ir.nested import memory_of, tensors_in
from torchweld.ir.size_node import node_of, symbolic
from torchweld.ir.sizes import SizeEnv

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

    shape: tuple[int | Expr, ...]
    strides: tuple[int | Expr, ...]
    offset: int | Expr
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
    envs: list[SizeEnv] = []
    try:
        key = (func, torch.get_default_dtype(), torch.is_inference_mode_enabled(),
               _key(mode, args, envs), _key(mode, tuple(kwargs.items()), envs) if kwargs else None)
        table = _table(envs)
    except _NoKeyError:
        return run()
    known = table.get(key, _TABLE)
    if known is None:
        return run()
    if known is not _TABLE:
        return _made(mode, known, args, envs)
    out = run()
    if len(table) >= _MOST:
        table.clear()
    table[key] = _known(func, args, out)
    return out


def _table(envs: Sequence[SizeEnv]) -> dict[object, Any]:
    """Where a call is remembered. envs: of its symbolic sizes. Errors: _NoKeyError."""
    if not envs:
        return _TABLE
    if any(env is not envs[0] for env in envs) or not envs[0].takes_facts:
        raise _NoKeyError
    return envs[0].remembered


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


def _key(mode: FakeTensorMode, x: Any, envs: list[SizeEnv]) -> Any:
    """What the result can depend on; `envs` get those of symbolic sizes. Errors: _NoKeyError."""
    kind = type(x)
    if kind is FakeTensor:
        if (
            x.fake_mode is not mode or x.constant is not None or x.layout is not torch.strided
            or x.is_nested
        ):  # fmt: skip
            raise _NoKeyError
        return (FakeTensor, *_place(x, envs), x.dtype, x.fake_device,
                x.is_conj(), x.is_neg(), x.is_inference())  # fmt: skip
    if kind in _PLAIN:
        return kind, x
    if kind is tuple or kind is list or kind is torch.Size:
        return tuple([_key(mode, item, envs) for item in x])
    if kind is torch.device and (x.index is not None or x.type in ("cpu", "meta")):
        return x  # else it is the current device
    if kind is torch.SymInt:
        return int, _number(x, envs)
    raise _NoKeyError


def _place(x: Tensor, envs: list[SizeEnv]) -> tuple[Any, Any, Any]:
    """Sizes, strides and offset. Errors: _NoKeyError."""
    if not x._has_symbolic_sizes_strides:
        return tuple(x.shape), x.stride(), x.storage_offset()
    sizes, strides = (tuple([_number(n, envs) for n in row]) for row in (x.shape, x.stride()))
    return sizes, strides, _number(x.storage_offset(), envs)


def _number(n: Any, envs: list[SizeEnv]) -> int | Expr:
    """A size as a number or an expression. Errors: _NoKeyError for a symbol that is not ours."""
    if type(n) is int:
        return n
    node = node_of(n)
    if node is None or not isinstance(node.value, Expr):
        raise _NoKeyError
    envs.append(node.env)
    e = node.env.simplify(node.value)
    return e.n if isinstance(e, Int) else e


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
    try:
        shape, strides, offset = _place(x, [])
    except _NoKeyError:
        return None
    if owner is None and (offset != 0 or any(_shares(x, a) for a in given)):
        return None
    return _Look(shape, strides, offset, x.dtype, x.fake_device, owner, x.is_inference())


def _shares_memory(func: OpOverload) -> bool:
    return bool(func.is_view) or func is _ATEN._unsafe_view.default


def _shares(a: Tensor, b: Tensor) -> bool:
    return memory_of(a) == memory_of(b)


def _made(mode: FakeTensorMode, known: tuple[type, tuple[_Look, ...]], args: Sequence[Any],
          envs: Sequence[SizeEnv]) -> Any:  # fmt: skip
    kind, looks = known
    inference = looks[0].inference
    if inference == torch.is_inference_mode_enabled():
        made = _all(mode, looks, args, envs)
    else:
        with torch.inference_mode(inference):
            made = _all(mode, looks, args, envs)
    return made if kind is list else tuple(made) if kind is tuple else made[0]


def _all(mode: FakeTensorMode, looks: tuple[_Look, ...], args: Sequence[Any],
         envs: Sequence[SizeEnv]) -> list[FakeTensor]:  # fmt: skip
    silent: Any = envs[0].silent() if envs else nullcontext()
    with silent, in_kernel_invocation_manager(mode):
        metas = [_meta(look, args, envs) for look in looks]
    return [FakeTensor(mode, m, k.device) for m, k in zip(metas, looks, strict=True)]


def _meta(look: _Look, args: Sequence[Any], envs: Sequence[SizeEnv]) -> Tensor:
    shape, strides, offset = (_given(n, envs) for n in (look.shape, look.strides, look.offset))
    empty: Tensor = torch.empty_strided(shape, strides, dtype=look.dtype, device=_META)
    if look.view_of is None:
        return empty
    memory = args[look.view_of].untyped_storage()
    return empty.set_(memory, offset, shape, strides)


def _given(x: Any, envs: Sequence[SizeEnv]) -> Any:
    """Numbers as torch takes them."""
    if isinstance(x, tuple):
        return tuple([_given(n, envs) for n in x]) if envs else x
    return symbolic(envs[0], x) if isinstance(x, Expr) else x
