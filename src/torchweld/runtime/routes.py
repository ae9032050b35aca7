"""How the native driver calls an operator: which route can express it, and the rows for it."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from torchweld.ir.dtype import DType
from torchweld.ir.program import Call, CallArg, TensorArg, TensorSpec, TorchArg
from torchweld.ir.raising import may_raise
from torchweld.runtime.calls import constant, decode

PYTHON, SHIM, INTO = range(3)
_WORD, _TENSOR, _BOX, _LIST, _STRING, _OBJECT = range(6)

# Matmuls whose functions the driver calls itself: device, operator -> position in its table, name
# in torch, how many tensors they take. With gelu instead of relu: the position behind.
_INTO = {
    ("cpu", "aten.mm.default"): (0, "aoti_torch_cpu_mm_out", 2),
    ("cpu", "aten.bmm.default"): (1, "aoti_torch_cpu_bmm_out", 2),
    ("cpu", "aten.addmm.default"): (2, "aoti_torch_cpu_addmm_out", 3),
    ("cpu", "aten.baddbmm.default"): (3, "aoti_torch_cpu_baddbmm_out", 3),
    ("cuda", "aten.mm.default"): (4, "aoti_torch_cuda_mm_out", 2),
    ("cuda", "aten.bmm.default"): (5, "aoti_torch_cuda_bmm_out", 2),
    ("cuda", "aten.addmm.default"): (6, "aoti_torch_cuda_addmm_out", 3),
    ("cuda", "aten.baddbmm.default"): (7, "aoti_torch_cuda_baddbmm_out", 3),
    ("cuda", "aten._addmm_activation.default"): (8, "aoti_torch_cuda__addmm_activation", 3),
}
_INTO_DTYPES = (DType.F32, DType.F64, DType.BF16, DType.F16)
# Namespaces whose kernels are C++: others may be Python, whose exceptions the shim would lose.
_SHIM_SPACES = ("aten", "mkldnn", "quantized", "mkl")


@dataclass(frozen=True, slots=True)
class Route:
    """The kind of a call row and its `detail` (see parse_call in _build.c)."""

    kind: int
    detail: object


class _NoWord(Exception):
    """An argument that the stable interface cannot carry."""


def choose(
    c: Call,
    op: OpOverload,
    tensors: tuple[TensorSpec, ...],
    missing: frozenset[str],
    codes: Mapping[torch.dtype, int],
) -> Route:
    """The cheapest route that can express the call."""
    into = _into(c, tensors, missing)
    if into is not None:
        return into
    told = c.op.partition(".")[0] in _SHIM_SPACES and not _draws_and_fails(op)
    if told and "aoti_torch_call_dispatcher" not in missing:
        try:
            return _shim(c, op, missing, codes)
        except _NoWord:
            pass
    return Route(PYTHON, None)


def _draws_and_fails(op: OpOverload) -> bool:
    """Whether an operator may have drawn when it raises. What fails through the shim, which loses
    the exception, is called once more in Python, and would draw again."""
    return torch.Tag.nondeterministic_seeded in op.tags and may_raise(op, of_integers=False)


def _into(c: Call, tensors: tuple[TensorSpec, ...], missing: frozenset[str]) -> Route | None:
    numbers = [a.tensor for a in c.args if isinstance(a, TensorArg)]
    if len(numbers) != len(c.args) or len(c.results) != 1 or not numbers:
        return None
    specs = [tensors[n] for n in (*numbers, *c.results)]
    device = specs[0].device
    which, function, count = _INTO.get((device.partition(":")[0], c.op), (0, "", 0))
    if not count or function in missing or len(numbers) != count:
        return None
    factors = {"beta": 1.0, "alpha": 1.0, "use_gelu": 0.0}
    for name, value in c.kwargs:
        if name not in factors or count < 3 or not isinstance(value, (int, float)):
            return None
        factors[name] = float(value)
    plain = all(
        s.dtype == specs[0].dtype and s.dtype in _INTO_DTYPES and s.device == device
        and 0 not in s.sizes
        for s in specs
    )  # fmt: skip
    if not plain or not _rows(specs[-1]):
        return None
    words = tuple((_TENSOR, n) for n in numbers)
    return Route(INTO, (which + int(factors["use_gelu"]), words, factors["beta"],
                        factors["alpha"]))  # fmt: skip


def _rows(s: TensorSpec) -> bool:
    """Whether a product can be written there: row after row, perhaps with gaps between the rows."""
    step = 1
    for d in reversed(range(len(s.sizes))):
        gaps = d == len(s.sizes) - 2 and s.strides[d] > step
        if s.strides[d] != step and not gaps:
            return False
        step = s.strides[d] * s.sizes[d]
    return True


def _shim(
    c: Call, op: OpOverload, missing: frozenset[str], codes: Mapping[torch.dtype, int]
) -> Route:
    schema = op._schema
    if any(r.real_type.kind() != "TensorType" for r in schema.returns):
        raise _NoWord
    given = dict(c.kwargs)
    words = []
    for i, a in enumerate(schema.arguments):
        if i < len(c.args) and not a.kwarg_only:
            value: object = c.args[i]
        elif a.name in given:
            value = given[a.name]
        elif a.has_default_value():
            value = a.default_value
        else:
            raise _NoWord
        words.append(_word(a.real_type, value, missing, codes))
    space, name, overload = c.op.split(".")
    which = "" if overload == "default" else overload
    return Route(SHIM, (f"{space}::{name}", which, tuple(words), len(schema.returns)))


def _bits(value: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


def _word(
    kind: Any, value: Any, missing: frozenset[str], codes: Mapping[torch.dtype, int]
) -> tuple[int, object]:
    """The row that puts an argument of a schema type on the dispatcher's stack."""
    name = kind.kind()
    if name == "OptionalType":
        if value is None:
            return (_WORD, 0)
        if {"torch_new_stable_ivalue", "_Znwm"} <= missing:
            raise _NoWord
        return (_BOX, (_word(kind.getElementType(), value, missing, codes),))
    if name == "ListType":
        if "torch_new_list_reserve_size" in missing or not isinstance(value, (tuple, list)):
            raise _NoWord
        inner = kind.getElementType()
        return (_LIST, tuple(_word(inner, v, missing, codes) for v in value))
    if name == "StringType":
        if "torch_new_string_handle" in missing or not isinstance(value, str):
            raise _NoWord
        return (_STRING, value)
    if name not in _SCALARS:
        raise _NoWord
    return _SCALARS[name](value, codes)


def _tensor_word(value: Any, codes: Mapping[torch.dtype, int]) -> tuple[int, object]:
    if not isinstance(value, TensorArg):
        raise _NoWord
    return (_TENSOR, value.tensor)


def _int_word(value: Any, codes: Mapping[torch.dtype, int]) -> tuple[int, object]:
    if not isinstance(value, int):
        raise _NoWord
    return (_WORD, int(value) & (2**64 - 1))


def _float_word(value: Any, codes: Mapping[torch.dtype, int]) -> tuple[int, object]:
    if not isinstance(value, (int, float)):
        raise _NoWord
    return (_WORD, _bits(float(value)))


def _dtype_word(value: Any, codes: Mapping[torch.dtype, int]) -> tuple[int, object]:
    dtype = constant(value) if isinstance(value, TorchArg) and value.kind == "dtype" else None
    if not isinstance(dtype, torch.dtype) or dtype not in codes:
        raise _NoWord
    return (_WORD, codes[dtype])


# Numbers (`Scalar`), devices, layouts and memory formats are not here: the stable interface has no
# word for the first, and for the others the encoding differs between torch versions.
_SCALARS = {
    "TensorType": _tensor_word,
    "IntType": _int_word,
    "SymIntType": _int_word,
    "BoolType": _int_word,
    "FloatType": _float_word,
    "ScalarTypeType": _dtype_word,
}


def python_row(arg: CallArg) -> tuple[int, object]:
    """The row that makes a Python argument."""
    if isinstance(arg, TensorArg):
        return (_TENSOR, arg.tensor)
    if isinstance(arg, tuple) and _mentions_tensor(arg):
        return (_LIST, tuple(python_row(a) for a in arg))
    return (_OBJECT, decode(arg, _no_tensor))


def _mentions_tensor(arg: CallArg) -> bool:
    if isinstance(arg, tuple):
        return any(_mentions_tensor(a) for a in arg)
    return isinstance(arg, TensorArg)


def _no_tensor(number: int) -> object:
    raise AssertionError(number)
