"""Launch list terms <-> torch objects: dtypes, operators, their arguments and results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._ops import OpOverload

from torchweld.base.errors import InternalError
from torchweld.ir.dtype import DType
from torchweld.ir.program import Call, CallArg, TensorArg, TensorSpec, TorchArg

TORCH_DTYPE = {
    DType.F64: torch.float64, DType.F32: torch.float32, DType.F16: torch.float16,
    DType.BF16: torch.bfloat16, DType.I64: torch.int64, DType.I32: torch.int32,
    DType.I16: torch.int16, DType.I8: torch.int8, DType.U8: torch.uint8, DType.BOOL: torch.bool,
    DType.C64: torch.complex64, DType.C128: torch.complex128,
    DType.F8E4M3FN: torch.float8_e4m3fn, DType.F8E5M2: torch.float8_e5m2,
    DType.F8E4M3FNUZ: torch.float8_e4m3fnuz, DType.F8E5M2FNUZ: torch.float8_e5m2fnuz,
}  # fmt: skip

_CONSTANT_TYPES = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}


def resolve(op: str) -> OpOverload:
    """The operator "namespace.name.overload".

    Errors: InternalError if torch has no such operator.
    """
    space, _, rest = op.partition(".")
    name, _, overload = rest.rpartition(".")
    try:
        found = getattr(getattr(getattr(torch.ops, space), name), overload)
    except AttributeError:
        raise InternalError(f"torch has no operator {op!r}") from None
    if not isinstance(found, OpOverload):
        raise InternalError(f"{op!r} is not an operator overload")
    return found


def constant(arg: TorchArg) -> object:
    """The torch object that a TorchArg names."""
    if arg.kind == "device":
        return torch.device(arg.name)
    value = getattr(torch, arg.name.removeprefix("torch."), None)
    if arg.kind not in _CONSTANT_TYPES or not isinstance(value, _CONSTANT_TYPES[arg.kind]):
        raise InternalError(f"no torch constant {arg.kind} {arg.name!r}")
    return value


def decode(arg: CallArg, tensor: Callable[[int], object]) -> object:
    """The value of an argument, with `tensor` answering for tensor numbers."""
    if isinstance(arg, TensorArg):
        return tensor(arg.tensor)
    if isinstance(arg, TorchArg):
        return constant(arg)
    return [decode(a, tensor) for a in arg] if isinstance(arg, tuple) else arg


def callable_for(op: OpOverload, call: Call, plain: Callable[..., Any]) -> Callable[..., Any]:
    """What calls the operator: `plain`, or what first reads numbers that are in tensors."""
    names = [a.name for a in op._schema.arguments]
    numbers = frozenset(a.name for a in op._schema.arguments if "Tensor" not in str(a.type))
    at = frozenset(i for i, a in enumerate(call.args)
                   if isinstance(a, TensorArg) and names[i] in numbers)  # fmt: skip
    by_name = frozenset(k for k, a in call.kwargs if isinstance(a, TensorArg) and k in numbers)
    if not at and not by_name:
        return plain

    def reading(*args: Any, **kwargs: Any) -> Any:
        return plain(*(a.item() if i in at else a for i, a in enumerate(args)),
                     **{k: a.item() if k in by_name else a for k, a in kwargs.items()})  # fmt: skip

    return reading


def tensors_in(result: object) -> Iterator[torch.Tensor]:
    """The tensors that an operator returned, lists expanded, in order."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for part in result:
            yield from tensors_in(part)


def same_strides(sizes: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether both strides address the same elements (axes of one element do not count)."""
    return 0 in sizes or all(
        p == q for n, p, q in zip(sizes, a, b, strict=True) if n > 1
    )  # fmt: skip


def promised(op: str, t: torch.Tensor, spec: TensorSpec, verify: bool) -> torch.Tensor:
    """The tensor in the layout of its spec: itself, or a copy if the strides differ.

    The storage offset does not matter: kernels get pointers with the offset applied, and views are
    taken relative to the source. Nor do the strides of a tensor that is opaque (packed weights).
    Errors: InternalError if shape or dtype differ; under verify also if the strides do.
    """
    dtype = TORCH_DTYPE.get(spec.dtype, t.dtype)
    if tuple(t.shape) != spec.sizes or t.dtype != dtype:
        raise InternalError(
            f"{op} gave {t.dtype} {tuple(t.shape)}, the launch list says {dtype} {spec.sizes}"
        )
    if t.layout is not torch.strided or same_strides(spec.sizes, t.stride(), spec.strides):
        return t
    if verify:
        raise InternalError(f"{op} gave strides {t.stride()}, not {spec.strides}")
    return torch.empty_strided(spec.sizes, spec.strides, dtype=t.dtype, device=t.device).copy_(t)


class KeepsInputs:
    """What runs a Program and has no use for the memory of its inputs before the call ends."""

    def __call__(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        raise NotImplementedError

    def consume(self, inputs: list[Any], /) -> tuple[Any, ...]:
        """A call."""
        return self(*inputs)
