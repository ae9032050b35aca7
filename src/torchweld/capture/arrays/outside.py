"""Arrays that come from outside, and the border between arrays and tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torchweld.capture.arrays.dtypes import BY_DTYPE_ALONE, TORCH, is_plain
from torchweld.capture.arrays.functions import copied
from torchweld.capture.arrays.record import array_of, dtype_of, record
from torchweld.capture.policy import graph_call
from torchweld.capture.predicates import SameNumber
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.tables import function
from torchweld.capture.values.base import ArrayValue, Const, TensorValue, Value
from torchweld.capture.wrap import WRAPPERS, by_identity
from torchweld.frame.program import tensor_codes
from torchweld.ir.source import Applied, Source

Args = list[Value]
Kwargs = dict[str, Value]


def _array(cap: Capture, obj: np.ndarray[Any, Any], source: Source) -> Value:
    """An array is the tensor that shares its memory, which is an input of the graph."""
    if not is_plain(obj) or not BY_DTYPE_ALONE:
        kind = f"an array of {obj.dtype}"
        raise refuse("W112", f"{source.text()} is {kind}, read-only, or has negative strides",
                     cap.loc())  # fmt: skip
    cap.guard("type", source, np.ndarray)
    cap.guard("predicate", source, is_plain)
    shared = Applied.make(source, torch.from_numpy)
    tensor = torch.from_numpy(obj)
    cap.guard("tensor", shared, tensor_codes(tensor))
    found = array_of(cap, cap.builder.input(tensor, shared))
    return ArrayValue(found.tensor, False, source)


def _number(cap: Capture, obj: np.generic, source: Source) -> Value:
    cap.guard("predicate", source, SameNumber(obj))
    return Const(obj, source)


class _SameDtype:
    """Answers whether a dtype is equal to the one at capture."""

    __slots__ = ("obj",)

    def __init__(self, obj: np.dtype[Any]) -> None:
        self.obj = obj

    def __call__(self, other: object) -> bool:
        return isinstance(other, np.dtype) and other == self.obj

    def __hash__(self) -> int:
        return hash(self.obj)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameDtype) and self.obj == other.obj


def _dtype(cap: Capture, obj: np.dtype[Any], source: Source) -> Value:
    cap.guard("predicate", source, _SameDtype(obj))
    return Const(obj, source)


# ----------------------------------------------------------------------- tensors and arrays
@function(torch.Tensor.numpy)
def numpy_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """tensor.numpy(force=False): the array that shares the tensor's memory."""
    x, force = args[0], kwargs.get("force", Const(False))
    if len(args) > 1 or kwargs.keys() - {"force"} or not isinstance(force, Const):
        raise refuse("W103", "Tensor.numpy of these arguments", cap.loc())
    if not isinstance(x, TensorValue) or x.fake.device.type != "cpu":
        raise refuse("W102", "Tensor.numpy of a Tensor that is not on the CPU", cap.loc())
    if x.fake.is_conj() or x.fake.is_neg():
        raise refuse("W102", "Tensor.numpy of a conjugate", cap.loc())
    if x.fake.requires_grad:
        if not force.obj:
            raise refuse("W102", "Tensor.numpy of a Tensor that requires grad", cap.loc())
        x = record(cap, "detach", x)
    cap.deliver(array_of(cap, x), cont)


@function(torch.from_numpy)
def from_numpy(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    (x,) = args
    if not isinstance(x, ArrayValue) or x.scalar:
        raise refuse("W103", f"torch.from_numpy of a {x.cls().__name__}", cap.loc())
    cap.deliver(record(cap, "detach", x), cont)


def tensor_of(cap: Capture, fn: Any, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """torch.tensor, as_tensor, asarray of an array."""
    (x,) = args
    assert isinstance(x, ArrayValue)
    if kwargs.keys() - {"dtype", "device"}:
        raise refuse("W103", f"torch.{fn.__name__} of an array with {list(kwargs)}", cap.loc())
    copies = fn is torch.tensor or x.scalar
    given = copied(cap, x).tensor if copies else record(cap, "detach", x)
    if not kwargs:
        cap.deliver(given, cont)
        return
    graph_call(cap, torch.as_tensor, [given], kwargs, cont)


for _kind in {np.dtype(c).type for c in np.typecodes["All"]}:
    WRAPPERS.add(_kind, _number)
for _dtype_class in {type(d) for d in (*TORCH, *map(np.dtype, np.typecodes["All"]))}:
    WRAPPERS.add(_dtype_class, _dtype)
WRAPPERS.add(np.ndarray, _array)
_callables: tuple[type, ...] = (np.ufunc, type(np.sum))
for _callable in _callables:
    WRAPPERS.add(_callable, by_identity)

__all__ = ["dtype_of", "tensor_of"]
