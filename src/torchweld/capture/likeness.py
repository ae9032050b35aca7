"""What two calls have in common: the structure of their arguments, with what may differ left out.

Arguments are alike if code that is given either of them cannot tell them apart without reading
an object from outside: the same containers, constants and functions, tensors that look the same,
and the same objects at the same places. Which objects those are is the list that goes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from torchweld.capture.values.base import (
    BoundValue,
    CellValue,
    Const,
    DictValue,
    FunctionValue,
    InstanceValue,
    Lazy,
    ListValue,
    PartialValue,
    SetValue,
    SizeValue,
    SliceValue,
    Slot,
    TensorValue,
    TupleValue,
)
from torchweld.capture.values.sequences import GrowingList, UnreadTuple
from torchweld.capture.values.unread import PassedTensor, twin_of
from torchweld.ir.expr import Expr
from torchweld.ir.nested import memory_of
from torchweld.ir.size_node import expr_of

_PLAIN = (bool, int, str, bytes, type(None), torch.dtype, torch.device)
_MOST = 2000  # objects in the arguments of one call


class Unlike(Exception):
    """The arguments hold something that is not compared."""


class Likeness:
    """key: equal for calls whose arguments are alike. values: the objects in it, in its order."""

    __slots__ = ("_at", "_kept", "_memories", "_tokens", "values")

    def __init__(self, args: Iterable[Slot], kwargs: dict[str, Any]) -> None:
        self.values: list[Any] = []
        self._at: dict[int, int] = {}
        self._kept: list[object] = []
        self._memories: dict[int, int] = {}
        self._tokens: list[Any] = []
        for arg in args:
            self.add(arg)
        for name, arg in kwargs.items():
            self._tokens.append(name)
            self.add(arg)

    def key(self, *more: Any) -> tuple[Any, ...]:
        return (*more, *self._tokens)

    def add(self, x: Any) -> None:
        """Errors: Unlike."""
        kind = type(x)
        if kind is Const:
            self._kept.append(x.obj)
            self._tokens.append(_constant(x.obj))
            return
        at = self._at.get(id(x))
        if at is not None:
            self._tokens.append(at)
            return
        self._at[id(x)] = len(self.values)
        self.values.append(x)
        walk = _WALKS.get(kind)
        if walk is None or len(self.values) > _MOST:
            raise Unlike
        walk(self, x)

    def say(self, *token: Any) -> None:
        self._tokens.append(token)

    def memory(self, fake: torch.Tensor) -> int:
        """The same number for tensors that share memory."""
        return self._memories.setdefault(memory_of(fake), len(self._memories))


def _constant(obj: Any) -> Any:
    if isinstance(obj, _PLAIN) and type(obj) in _PLAIN:
        return type(obj), obj
    if type(obj) in (float, complex):
        return type(obj), repr(obj)  # 0.0 is not -0.0
    return "object", id(obj)


def _tensor(like: Likeness, x: TensorValue) -> None:
    fake: Any = twin_of(x)
    if fake.constant is not None or fake.is_conj() or fake.is_neg():
        raise Unlike
    like.say("tensor", x.kind, x.source is None, *looks(fake), like.memory(fake))


def looks(fake: torch.Tensor) -> tuple[Any, ...]:
    """All that code can ask of a tensor without reading its elements; sizes that vary by their
    expressions."""
    layout: tuple[Any, ...] = (tuple(fake.shape), fake.stride(), fake.storage_offset())
    if fake._has_symbolic_sizes_strides:
        layout = tuple(map(expr_of, (*fake.shape, *fake.stride(), fake.storage_offset())))
    return (fake.dtype, *layout, fake.device, fake.requires_grad, fake.is_leaf,
            fake.is_inference())  # fmt: skip


def _size(like: Likeness, x: SizeValue) -> None:
    node = x.number.node
    value = node.value
    like.say("size", x.cls(), node.env.simplify(value) if isinstance(value, Expr) else value)


def _outside(like: Likeness, x: Any, kind: type) -> bool:
    """Whether an object came from outside: then its class is all that is compared."""
    if x.source is None:
        return False
    like.say("outside", type(x), kind)
    return True


def _lazy(like: Likeness, x: Lazy) -> None:
    like.say("unread", type(x.obj))


def _list(like: Likeness, x: ListValue) -> None:
    if not _outside(like, x, list):
        like.say("list", len(x.items))
        for item in x.items:
            like.add(item)


def _tuple(like: Likeness, x: TupleValue) -> None:
    if not _outside(like, x, x.kind):
        like.say("tuple", x.kind, len(x.items))
        for item in x.items:
            like.add(item)


def _dict(like: Likeness, x: DictValue) -> None:
    if not _outside(like, x, x.kind):
        like.say("dict", x.kind, len(x.items))
        like.add(x.factory)
        for key, item in x.items.items():
            like.add(x.keys[key])
            like.add(item)


def _set(like: Likeness, x: SetValue) -> None:
    if x.source is not None:
        raise Unlike
    like.say("set", x.kind, len(x.items))
    for item in x.items.values():
        like.add(item)


def _instance(like: Likeness, x: InstanceValue) -> None:
    if _outside(like, x, x.klass):
        return
    if x.klass is torch._C._InferenceMode:
        raise Unlike
    like.say("instance", x.klass, len(x.attrs), x.payload is None)
    for name, value in x.attrs.items():
        like.say(name, value is None)
        if value is not None:
            like.add(value)
    if x.payload is not None:
        like.add(x.payload)


def _slice(like: Likeness, x: SliceValue) -> None:
    like.say("slice")
    for part in x.parts:
        like.add(part)


def _bound(like: Likeness, x: BoundValue) -> None:
    like.say("bound", x.source is None)
    like.add(x.func)
    like.add(x.self_)


def _partial(like: Likeness, x: PartialValue) -> None:
    like.say("partial", x.source is None, x.kind, len(x.args), tuple(x.kwargs))
    like.add(x.func)
    for part in (*x.args, *x.kwargs.values()):
        like.add(part)


def _cell(like: Likeness, x: CellValue) -> None:
    if x.source is not None:
        raise Unlike
    like.say("cell", x.contents is None)
    if x.contents is not None:
        like.add(x.contents)


def _function(like: Likeness, x: FunctionValue) -> None:
    like.say("function", x.code, x.name, x.qualname, len(x.defaults), tuple(x.kwdefaults),
             tuple(x.attrs))  # fmt: skip
    like.add(x.globals)
    for part in (*x.closure, *x.defaults, *x.kwdefaults.values(), *x.attrs.values()):
        like.add(part)


_WALKS: dict[type, Callable[[Likeness, Any], None]] = {
    TensorValue: _tensor, PassedTensor: _tensor, Lazy: _lazy, ListValue: _list,
    GrowingList: _list, TupleValue: _tuple, UnreadTuple: _tuple, DictValue: _dict,
    SetValue: _set, InstanceValue: _instance, SliceValue: _slice, BoundValue: _bound,
    PartialValue: _partial, CellValue: _cell, FunctionValue: _function, SizeValue: _size,
}  # fmt: skip
