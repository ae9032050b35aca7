"""Numbers that are not known while a frame is captured, as arguments of operators."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import torch

from torchweld.base.loc import NOWHERE, Loc
from torchweld.capture.bodies import outside_of_transforms
from torchweld.capture.late import LateNumber, plain_number, takes_late
from torchweld.capture.late_places import takes_float, takes_symbol
from torchweld.capture.state import VFrame, refuse
from torchweld.capture.symbolic import Sizes
from torchweld.capture.values.base import (
    Const,
    ListValue,
    NotConstant,
    SizeValue,
    SliceValue,
    TensorValue,
    TupleValue,
    Value,
)
from torchweld.capture.values.number import SAMPLE, GraphNumber
from torchweld.capture.values.sequences import GrowingList, UnreadTuple
from torchweld.frame.liveness import ends_loop
from torchweld.ir.graph import ASKED
from torchweld.ir.raising import base_name
from torchweld.ir.region import Region
from torchweld.ir.run_time_float import run_time_float
from torchweld.ir.size_makers import holds_number
from torchweld.ir.source import Applied, Source

if TYPE_CHECKING:
    from torchweld.capture.fx_build import GraphBuilder
    from torchweld.capture.session import Capture


class Row:
    """A list of numbers, some of which are known when the graph runs, for an operator on lists."""

    __slots__ = ("items",)

    def __init__(self, items: list[Value]) -> None:
        self.items = items


class Held:
    """A float that an operator gets as a torch.SymFloat."""

    __slots__ = ("value",)

    def __init__(self, value: LateNumber | GraphNumber) -> None:
        self.value = value

    def fake(self) -> Any:
        """The float for operators on fakes."""
        x = self.value
        if isinstance(x, LateNumber):
            return run_time_float(x, plain_number(x.now), lambda: x.obj)
        return run_time_float(x, SAMPLE, lambda: x.obj)


def is_open(x: object) -> bool:
    """Whether a value is a number that is known when the graph runs."""
    return isinstance(x, GraphNumber) or (isinstance(x, LateNumber) and not x.fixed)


def has_held(args: Iterable[object], kwargs: Mapping[str, object]) -> bool:
    """Whether there are such floats among arguments."""
    return any(isinstance(x, Held) for x in (*args, *kwargs.values()))


def let_go(args: Iterable[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments with numbers that are guarded by value in the place of such floats.

    Errors: GraphBreak for one that no guard can speak of.
    """
    return [_let_go(x) for x in args], {k: _let_go(x) for k, x in kwargs.items()}


def instead(builder: GraphBuilder, args: list[Any], kwargs: dict[str, Any],
            at: Loc) -> tuple[list[Any], dict[str, Any]] | None:  # fmt: skip
    """Other arguments for an operator that has refused these; None if there are none.

    An integer that a tensor holds takes the place of the tensor where the operator wants a number:
    as a size or a bound. Errors: as of `let_go`.
    """
    if has_held(args, kwargs):
        return let_go(args, kwargs)
    asked = builder.mode.asked
    if asked is None or not builder.takes_data:
        return None
    found = False

    def read(x: Any) -> Any:
        nonlocal found
        match x:
            case TensorValue() if x.fake is asked and asked.numel() == 1 and holds_number(asked):
                found = True
                return builder.whole_number(x, at)
            case ListValue():
                return ListValue([read(i) for i in x.items])
            case TupleValue():
                return TupleValue([read(i) for i in x.items], x.kind)
            case SliceValue():
                return SliceValue(tuple(read(p) for p in x.parts))
        return x

    given, named = [read(x) for x in args], {k: read(x) for k, x in kwargs.items()}
    return (given, named) if found else None


def _let_go(x: Any) -> Any:
    return Const(x.value.obj) if isinstance(x, Held) else x


def argument(builder: GraphBuilder, target: Any, place: int | str, x: Value,
             args: list[Value]) -> Any:  # fmt: skip
    """An argument of an operator; a late number that it cannot take becomes a size, or is fixed.

    Errors: NotConstant for a number that only the graph knows.
    """
    if isinstance(x, ListValue | TupleValue) and any(map(is_open, x.items)):
        return Row([builder.force(i) for i in x.items]) if takes_late(target, place, args) else x
    if not is_open(x):
        return x
    made = _as_tensor(builder, target, x, args) if builder.bodies else None
    return made or _settled(builder.sizes, target, place, x, args, not builder.bodies)


# what rounds a number, or computes with it in a wider type, whatever the dtype of its tensors is
_ROUND = frozenset(("add", "sub", "mul", "div", "truediv", "true_divide", "rsub", "iadd", "isub",
                    "imul", "itruediv", "lt", "le", "gt", "ge", "eq", "ne", "floordiv", "mod",
                    "floor_divide", "remainder", "fmod", "multiply", "subtract", "divide"))
# what puts a number into a tensor
_STORE = frozenset(("masked_fill", "where", "full", "full_like", "new_full", "fill", "clamp",
                    "clip", "clamp_min", "clamp_max", "setitem", "tensor", "scalar_tensor",
                    "as_tensor", "index_fill", "pad", "constant_pad_nd", "scatter", "hardtanh",
                    "threshold", "fill_diagonal"))  # fmt: skip
_HOLDS_ALL = (torch.float64, torch.int64, torch.bool)
# nobody exceeds them with a factor
_ROOMY = (torch.float32, torch.bfloat16)


def keep_in_range(builder: GraphBuilder, target: Any, args: list[Value],
                  kwargs: dict[str, Value]) -> None:  # fmt: skip
    """Guard of the numbers that an operator gets that its dtype holds them; where it does not,
    their values are guarded, since the operator refuses them."""
    late = [x for x in (*args, *kwargs.values())
            if isinstance(x, LateNumber) and not x.fixed and not x.drawn]  # fmt: skip
    name = base_name(target)
    if not late or (name in _ROUND and not kwargs):
        return
    found = [x.fake.dtype for x in args if isinstance(x, TensorValue)]
    found += [x.obj for x in (*args, *kwargs.values())
              if type(x) is Const and isinstance(x.obj, torch.dtype)]  # fmt: skip
    if not found and any(type(x.now) is float for x in late):
        found.append(torch.get_default_dtype())
    for dtype in found:
        if dtype.is_complex or dtype in _HOLDS_ALL or (dtype in _ROOMY and name not in _STORE):
            continue
        info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        for x in late:
            if builder.late.ask(is_within, x, float(info.min), float(info.max)) is False:
                x.fix()


def is_within(x: float, low: float, high: float) -> bool:
    """Whether a number is in a range, or is none that is finite."""
    return low <= x <= high or x - x != 0


def _settled(sizes: Sizes, target: Any, place: int | str, x: Value, args: list[Value],
             holds: bool) -> Value | Held:  # fmt: skip
    """holds: whether the operator may get a torch.SymFloat."""
    if takes_late(target, place, args):
        whole = sizes.number(x) if _among_integers(x, args) else None
        return x if whole is None else whole
    assert isinstance(x, LateNumber | GraphNumber)
    if holds and issubclass(x.cls(), float | np.floating):
        if takes_float(target, place, x):
            return x
        if takes_symbol(target, place, x):
            return Held(x)
    if not isinstance(x, LateNumber):
        raise NotConstant
    made = sizes.given(x)
    if made is None:
        x.fix()
    return x if made is None else made


# what does the same with a number as with a tensor without dimensions that holds it
_PLAIN = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.lt, operator.le,
    operator.gt, operator.ge, operator.eq, operator.ne, torch.add, torch.sub, torch.mul, torch.div,
    "add", "sub", "mul", "div",
)  # fmt: skip
_WIDE = (torch.float32, torch.float64)


def _as_tensor(builder: GraphBuilder, target: Any, x: Value,
              args: list[Value]) -> TensorValue | None:  # fmt: skip
    """The tensor, made in the graph around, for a number in a graph inside of a node, which has no
    numbers that change; None where it would not do the same."""
    tensors = [a.fake for a in args if isinstance(a, TensorValue)]
    if not isinstance(x, LateNumber) or x.drawn or type(x.now) not in (int, float) or not (
            target in _PLAIN and len(args) == 2 and len(tensors) == 1) or (
            tensors[0].dtype not in _WIDE):  # fmt: skip
        return None
    key = id(x), tensors[0].device
    if key not in builder.as_tensors:
        dtype = torch.float64 if type(x.now) is float else torch.int64
        bodies, graph = builder.bodies, builder.graph
        builder.bodies, builder.graph = [], builder.root
        try:
            with torch.no_grad(), outside_of_transforms():
                looks: dict[str, Value] = {"dtype": Const(dtype), "device": Const(key[1])}
                made = builder.call("call_function", torch.tensor, [x], looks, NOWHERE)
        finally:
            builder.bodies, builder.graph = bodies, graph
        assert isinstance(made, TensorValue)
        builder.as_tensors[key] = made
    return builder.as_tensors[key]


def _among_integers(x: Value, args: list[Value]) -> TypeGuard[LateNumber]:
    """Whether an integer meets tensors of integers only: it is computed with as a size is."""
    if not isinstance(x, LateNumber) or x.cls() is not int:
        return False
    dtypes = [a.fake.dtype for a in args if isinstance(a, TensorValue)]
    return bool(dtypes) and not any(d.is_floating_point or d.is_complex for d in dtypes)


def ask(cap: Capture, frame: VFrame, *given: Value) -> None:
    """An instruction asks for the truth of a number that varies, or compares such numbers.

    Errors: GraphBreak where it has asked something else before and may end a loop of operators,
    whose rounds are then compiled once instead of for each number; in any loop if that has led to
    many compilations. And where no guard can speak of the answer, since it depends on several
    floats.
    """
    if (cap.sizes.varying.unrolls and not cap.is_rest) or not _can_break(cap):
        return
    question, n_calls = tuple(map(_made_of, given)), cap.builder.n_calls
    before, then = frame.asked.setdefault(frame.ip, (question, n_calls))
    if before != question and (cap.sizes.varying.many or (
            n_calls > then and ends_loop(frame.code, frame.ip - 1))):  # fmt: skip
        raise refuse("W124", "how often this loop runs differs from call to call", cap.loc())
    read = {s for x in given if isinstance(x, LateNumber) and not x.drawn for s in _sources(x)}
    if len(read) > 1 and any(type(cap.late.leaves[s].now) is not int for s in read):
        raise refuse("W102", "it depends on several numbers that differ from call to call",
                     cap.loc())  # fmt: skip


def keep_apart(cap: Capture, why: str) -> None:
    """An instruction needs the value of a number that varies. Errors: GraphBreak, if the frame can
    be left."""
    if (cap.sizes.varying.many or cap.is_rest) and _can_break(cap):
        raise refuse("W102", why, cap.loc())


_SHORT = 2  # windows of the last two are filled by then


def keep_closed(cap: Capture, source: Source, n: int) -> None:
    """All items of a list or tuple are asked for, of which there are n now. Errors: GraphBreak, if
    their number was seen to vary."""
    if n > _SHORT and _has_varied(cap, source) and not cap.builder.bodies:
        raise refuse("W124", "how long this list is differs from call to call", cap.loc())


def steps_apart(cap: Capture, x: GrowingList | UnreadTuple) -> bool:
    """Whether a loop over a list or tuple that was not read is not unrolled."""
    if x.open is None or x.source is None:
        return False
    noted = isinstance(x, GrowingList) and x.source in cap.sizes.varying.lengths
    return noted or _has_varied(cap, x.source)


def _has_varied(cap: Capture, source: Source) -> bool:
    """Whether lists, or tuples, of several lengths were found here by the same code."""
    return source in cap.sizes.varying.lengths and Applied.make(source, len) in cap.late.sources


def _can_break(cap: Capture) -> bool:
    return not cap.builder.bodies and all(f.is_real() for f in cap.frames)


def _made_of(x: Value) -> object:
    """How a number is made of those that vary."""
    if isinstance(x, SizeValue):
        return x.number.node.value
    if isinstance(x, LateNumber) and not x.fixed:
        return x.source or (x.fn, *map(_made_of, x.args))
    return x.obj if isinstance(x, Const) else id(x)


def asked_numbers(cap: Capture, region: Region) -> set[Source]:
    """The numbers whose values some operator of a graph has to know, by where they are found."""
    names = region.graph.meta.get(ASKED, ())
    places = [n.name for n in region.graph.graph.nodes if n.op == "placeholder"]
    return {s for name, x in zip(places, cap.builder.places, strict=True)
            if name in names and isinstance(x, LateNumber) for s in _sources(x)}  # fmt: skip


def _sources(x: LateNumber) -> Iterator[Source]:
    if x.source is not None:
        yield x.source
    for part in x.args:
        if isinstance(part, LateNumber):
            yield from _sources(part)
