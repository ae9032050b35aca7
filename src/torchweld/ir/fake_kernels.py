"""torch's kernels for fake tensors, run so that C++ does not import torch.distributed.tensor.

When torch's C++ looks for the __torch_dispatch__ of an argument's class, it first imports
torch.distributed.tensor, and with it sympy, to see whether the class is DTensor. It looks there for
every operator on a fake tensor outside of a mode, and whenever C++ wants to know its device. So,
while nobody has imported that module:

- torch's special kernels run under a mode, which comes before classes: `_Answers`;
- kernels for meta tensors, which no mode can see into, get twins of the fake tensors: the same
  class and the same storage, but on "meta" for C++, as fake tensors say they are at that moment.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format
from torch._subclasses import fake_impls, fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, UnsupportedFakeTensorException
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torchweld.ir.size_node import expr_of, node_of
from torchweld.ir.size_questions import decide_what_matters

_C: Any = torch._C
_FAKE_MODULE: Any = fake_tensor
_FAKE_IMPLS: Any = fake_impls
_REGISTRATIONS: Any = torch._meta_registrations
_FAKE = _C._TorchDispatchModeKey.FAKE


class _Answers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Does for fake tensors what their class does, before torch looks at classes."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        active = _C._get_dispatch_mode(_FAKE) is not None
        if active or not any(issubclass(t, FakeTensor) for t in types):
            return func(*args, **(kwargs or {}))
        return _FAKE_DISPATCH(func, types, args, kwargs or {})


_FAKE_DISPATCH: Any = FakeTensor.__torch_dispatch__


def _saves_import() -> bool:
    return "torch.distributed.tensor" not in sys.modules


def _answers() -> Any:
    return _Answers() if _saves_import() else nullcontext()  # type: ignore[no-untyped-call]


def _answered(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def answered(*args: Any, **kwargs: Any) -> Any:
        with _answers():
            return kernel(*args, **kwargs)

    return answered


@cache
def _suits_twins(func: object) -> bool:
    """Whether an operator changes no metadata, and writes at most to its first argument."""
    if not isinstance(func, OpOverload) or torch.Tag.inplace_view in func.tags:
        return False
    written = [a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments]
    return not any(written[1:])


class _Special(Exception):
    """An argument that only torch's own way is right for."""


def _twin(x: Any) -> Any:
    """A fake tensor's equal in the same storage, whose device C++ does not ask Python for."""
    if not isinstance(x, torch.Tensor):
        return x
    if type(x) is not FakeTensor or x.layout != torch.strided or x.is_quantized:
        raise _Special
    if x.is_conj() or x.is_neg():
        raise _Special
    if x.is_inference() == torch.is_inference_mode_enabled():
        return _twin_of_kind(x)
    with torch.inference_mode(x.is_inference()):  # views of it are what it is
        return _twin_of_kind(x)


def _twin_of_kind(x: Any) -> Any:
    """The twin of a tensor of the kind that tensors are made of now: inference tensors or not."""
    meta = torch.empty((), dtype=x.dtype, device="meta")
    meta.set_(x.untyped_storage(), x.storage_offset(), x.size(), x.stride())
    twin: Any = torch.Tensor._make_subclass(
        FakeTensor, meta, False, device_for_backend_keys=x.fake_device
    )
    vars(twin).update(vars(x))
    return twin


def _on_twins(mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of an operator's kernel for meta tensors, as torch runs it.

    Fake tensors answer for their devices in Python, by their class. Their twins are on "meta".
    """
    if not _saves_import():
        return NotImplemented
    flat, spec = pytree.tree_flatten((args, kwargs))
    try:
        twins = [_twin(x) for x in flat]
        twin_args, twin_kwargs = pytree.tree_unflatten(twins, spec)
        with fake_tensor.in_kernel_invocation_manager(mode):
            out = func(*twin_args, **twin_kwargs)
        if any(x is not t and x.size() != t.size() for x, t in zip(flat, twins, strict=True)):
            return NotImplemented  # a kernel has resized what it writes to: torch's own affair
        originals = {id(twin): x for twin, x in zip(twins, flat, strict=True)}
        out = pytree.tree_map(lambda x: originals.get(id(x), x), out)
        return mode.wrap_meta_outputs_with_default_device_logic(
            out, func, flat, device=kwargs.get("device")
        )
    except Exception:
        return NotImplemented  # torch says what is wrong


class Kernels:
    """torch's list of kernels for fake tensors, each with the mode around it, and ours."""

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        yield lambda func: func is _COPY, _on_twins
        yield lambda func: func in _CHOOSING, _answered(_however_chosen)
        for fits, kernel in _FAKE_MODULE.op_implementations_checks:
            yield fits, _answered(kernel)
        yield _suits_twins, _on_twins


def _however_chosen(mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of torch's kernel, which relies on the sizes only as far as its layout does: it
    also asks what a real kernel chooses its algorithm by."""
    nodes = [n for n in map(node_of, args[0].shape) if n is not None]
    if not nodes:
        return NotImplemented
    env = nodes[0].env

    def kernel() -> Any:
        return _FAKE_IMPLS.op_implementations_dict[func](mode, func, *args, **kwargs)

    if not decide_what_matters(env, lambda: _layouts(kernel())):
        return NotImplemented
    with env.silent():
        return kernel()


def resized(mode: Any, func: Any, args: Any) -> Any:
    """The result of a resampling whose sizes vary, for which torch would run all of it;
    NotImplemented for anything else."""
    if func in _RESIZING_BACK:
        return _resized_back(mode, *args[:3])
    if func not in _RESIZING:
        return NotImplemented
    x, size = args[:2]
    if all(node_of(n) is None for n in (*x.shape, *size)):
        return NotImplemented
    if any(n == 0 for n in (*x.shape[2:], *size)):
        raise UnsupportedFakeTensorException("a resampling without elements")
    form = suggest_memory_format(x)
    with mode:
        return torch.empty((*x.shape[:2], *size), dtype=x.dtype, device=x.device,
                           memory_format=form)  # fmt: skip


def _resized_back(mode: Any, gradient: torch.Tensor, size: Any, before: Any) -> Any:
    """The gradient of what was resampled, which is contiguous: C++ knows no symbols there."""
    if all(node_of(n) is None for n in (*gradient.shape, *size, *before)):
        return NotImplemented
    with mode:
        return torch.empty(tuple(before), dtype=gradient.dtype, device=gradient.device)


class _FloorDivision:
    """Context in which torch's kernels for poolings divide sizes without asking about them.

    torch 2.11 asks whether something remains of a quotient that is rounded down already, and each
    answer holds for some sizes only. Later versions divide as here.
    """

    def __enter__(self) -> None:
        self._before = _REGISTRATIONS.div_rtn
        _REGISTRATIONS.div_rtn = operator.floordiv

    def __exit__(self, *raised: object) -> None:
        _REGISTRATIONS.div_rtn = self._before


def dividing(func: Any) -> Any:
    """Context in which an operator's result is predicted."""
    return _FloorDivision() if _is_pooling(func) else nullcontext()


@cache
def _is_pooling(func: Any) -> bool:
    return "pool" in func.name() and hasattr(_REGISTRATIONS, "div_rtn")


def _layouts(x: Any) -> Any:
    """Sizes and strides of results."""
    if isinstance(x, torch.Tensor):
        return tuple(map(expr_of, (*x.shape, *x.stride())))
    return tuple(map(_layouts, x)) if isinstance(x, tuple) else x


_ATEN = torch.ops.aten
_COPY = _ATEN.copy_.default
_RESIZING = frozenset((
    _ATEN.upsample_bicubic2d.default, _ATEN._upsample_bicubic2d_aa.default,
    _ATEN.upsample_bilinear2d.default,
))  # fmt: skip
_RESIZING_BACK = frozenset((
    _ATEN.upsample_bicubic2d_backward.default, _ATEN._upsample_bicubic2d_aa_backward.default,
    _ATEN.upsample_bilinear2d_backward.default,
))  # fmt: skip
_CHOOSING = frozenset((
    _ATEN.convolution.default, _ATEN._convolution.default, _ATEN.convolution_backward.default,
))  # fmt: skip
