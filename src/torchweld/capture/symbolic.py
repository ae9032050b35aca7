"""Sizes that vary, while a frame is captured: which they are, and numbers that are made of them.

Which sizes of a tensor vary is known before: they changed between two calls, or somebody said so.
A number that is made of such sizes is a SizeValue. Arithmetic on it is symbolic, a comparison is
decided by the sizes at hand and becomes a guard, and whatever else asks for the number fixes the
sizes that it is made of.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node

from torchweld.base.errors import PromiseError
from torchweld.capture.by_data import DataSizes, Made
from torchweld.capture.class_state import ClassAttr
from torchweld.capture.late import INTEGERS, AddGuard, LateNumber
from torchweld.capture.named_sources import Listed
from torchweld.capture.promises import Promised, Wiring
from torchweld.capture.values.base import (
    Const,
    SizeValue,
    Slot,
    TensorValue,
    TupleValue,
    Value,
)
from torchweld.ir.conditions import Ratio, equal
from torchweld.ir.expr import (
    Expr,
    Int,
    Sym,
    as_expr,
    atoms,
    substitute,
)
from torchweld.ir.graph import VAL
from torchweld.ir.guard import Reading
from torchweld.ir.size_node import hint_of, node_of, plain, symbolic
from torchweld.ir.size_values import Loose
from torchweld.ir.size_writer import SizeWriter
from torchweld.ir.sizes import SizeEnv
from torchweld.ir.source import Applied, Item, Source

_ATEN = torch.ops.aten
_READ = {"size": _ATEN.sym_size.int, "stride": _ATEN.sym_stride.int}
_NUMBERS = (int, float)


@dataclass(frozen=True, slots=True)
class Varying:
    """What changes from call to call.

    numbers: sources of numbers. parts: (source of a tensor, "size" or "stride", dimension). all: so
    does every size of every input that is no parameter. allowed: False if no size may vary.
    integers: whether numbers may become sizes. attributes: of classes, that are assigned.
    by_data: whether sizes that only the data decides are captured; supposes: and whether more may
    be supposed of them than is known. lengths: of lists. unrolls: whether loops that run as often
    as a number says that varies are unrolled for each. promised: what was said of the
    arguments. listed: inputs that somebody has listed. counters: whether those that hold the
    same are supposed to do so in the next call. anew: functions that are other objects with the
    same code. many: whether so much was compiled that the frame is rather broken.
    """

    numbers: frozenset[Source] = frozenset()
    parts: frozenset[tuple[Source, str, int]] = frozenset()
    all: bool = False
    allowed: bool = True
    integers: bool = False
    attributes: frozenset[ClassAttr] = frozenset()
    by_data: bool = True
    supposes: bool = True
    lengths: frozenset[Source] = frozenset()
    unrolls: bool = True
    promised: Promised | None = None
    listed: Listed | None = None
    counters: bool = True
    anew: frozenset[Source] = frozenset()
    many: bool = False


def is_varying(x: object) -> bool:
    """Whether a value is a number that is not known exactly."""
    return isinstance(x, SizeValue) or (isinstance(x, LateNumber) and not x.fixed)


def _is_number(x: Value) -> bool:
    return is_varying(x) or (type(x) is Const and type(x.obj) in (bool, int, float)) or (
        isinstance(x, LateNumber))  # fmt: skip


def number_value(x: Any) -> Const:
    """A number that may be symbolic as a Value; truth is decided."""
    x = plain(x)
    if isinstance(x, torch.SymBool):
        node = node_of(x)
        return SizeValue(x) if node is not None and node.is_open() else Const(bool(x))
    return SizeValue(x) if isinstance(x, torch.SymInt | torch.SymFloat) else Const(x)


def _round(x: Any, digits: int | None = None) -> Any:
    """round(x, digits): torch's rounds an integer to no tens, hundreds and so on."""
    node = node_of(x)
    if digits is None or node is None or not node.is_int():
        return round(x, digits)
    tens = 10 ** -operator.index(digits) if operator.index(digits) < 0 else 1
    return round(x / tens) * tens


# functions of numbers, and how torch computes them of symbolic ones
_CALLS: dict[Any, Callable[..., Any]] = {
    min: min, max: max, pow: pow, abs: abs, int: torch.sym_int, float: torch.sym_float,
    math.floor: math.floor,
    math.ceil: math.ceil, math.trunc: math.trunc, torch.sym_int: torch.sym_int,
    torch.sym_float: torch.sym_float, torch.sym_max: max, torch.sym_min: min,
    math.sqrt: torch.sym_sqrt if hasattr(torch, "sym_sqrt") else torch._sym_sqrt,  # type: ignore[attr-defined]
    divmod: lambda a, b: (a // b, a % b), operator.index: lambda a: a, round: _round,
}  # fmt: skip


def _loose(fn: Callable[..., float]) -> Callable[..., Any]:
    """A function of numbers to a float that is known by how it is computed."""

    def compute(*args: Any) -> Any:
        node = next(n for n in map(node_of, args) if n is not None)
        now = fn(*map(hint_of, args))  # the errors of eager
        return symbolic(node.env, Loose(fn, tuple(map(_inside, args))), now)

    return compute


def _inside(x: Any) -> Any:
    """What a SizeNode holds of a number."""
    node = node_of(x)
    return node.number() if node is not None else as_expr(x) if type(x) is int else float(x)


_CALLS.update({fn: _loose(fn) for fn in (math.log, math.exp, math.log2, math.log10)})


@dataclass(frozen=True, slots=True)
class Form:
    """A tensor as the capture takes it: sizes and strides, and what its guard demands of them."""

    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    guarded: tuple[tuple[int | None, ...], tuple[int | None, ...]]


def _attributes(x: torch.Tensor) -> Mapping[str, Any]:
    """What the user has said of a tensor is among its attributes."""
    return x.__dict__ if type(x) is torch.Tensor else {}


def marked_dims(x: torch.Tensor) -> set[int]:
    """The dimensions that were marked to vary without fail."""
    return set[int]().union(*(_attributes(x).get(name, ()) for name in _MARKS))


_MARKS = ("_dynamo_dynamic_indices", "_dynamo_unbacked_indices", "_dynamo_strict_unbacked_indices")


def _bounds(x: torch.Tensor) -> list[tuple[int, int, float]]:
    """(dimension, least, most), as it was marked with torchweld or torch."""
    return [(b.dim, b.min or 0, math.inf if b.max is None else b.max)
            for b in _attributes(x).get("_dynamo_dynamic_range", ())]  # fmt: skip


@dataclass(slots=True, eq=False)
class Sizes:
    """The symbols of one capture. readings: symbol -> where it is found."""

    varying: Varying
    env: SizeEnv
    readings: dict[Expr, Reading] = field(default_factory=dict)
    numbers: dict[int, SizeValue] = field(default_factory=dict)
    nodes: dict[Expr, Node] = field(default_factory=dict)
    wiring: Wiring | None = None
    data: DataSizes = field(init=False)
    of_drawn: Callable[[LateNumber], SizeValue | None] = lambda _: None

    def __post_init__(self) -> None:
        self.data = DataSizes(self.env, self.varying.supposes)
        self.env.computes = True
        if self.varying.promised is not None:
            self.wiring = Wiring(self.env, self.varying.promised)
    kept: list[object] = field(default_factory=list)

    @property
    def active(self) -> bool:
        """Whether some size is a symbol, or may become one."""
        return bool(self.readings or self.varying.parts or self.varying.all)

    @property
    def symbolic(self) -> bool:
        """Whether there are symbols."""
        return bool(self.readings or self.data.found)

    # ------------------------------------------------------------ symbols
    def symbol(self, source: Source, kind: str, dim: int, hint: int, lo: int | None = 2,
               hi: int | None = None) -> Sym:  # fmt: skip
        made = self.env.symbol(hint, lo, hi)
        self.readings[made] = Reading(made, source, kind, dim)
        return made

    def form_of(self, x: torch.Tensor, source: Source) -> Form | None:
        """How a tensor from outside looks; None if nothing about it varies."""
        dims = self._dims(x, source)
        if not dims and not any(self._steps_freely(x, source, d) for d in range(x.dim())):
            return None
        sizes = [self._size(x, source, d) if d in dims else as_expr(n)
                 for d, n in enumerate(x.shape)]  # fmt: skip
        strides = self._strides(x, source, sizes)
        guarded = tuple(None if d in dims else n for d, n in enumerate(x.shape))
        numbers = [symbolic(self.env, e) for e in (*sizes, *strides)]
        self.kept.append(x)
        loose = tuple(None if not isinstance(e, Int) else e.n for e in strides)
        return Form(tuple(numbers[: x.dim()]), tuple(numbers[x.dim() :]), (guarded, loose))

    def _dims(self, x: torch.Tensor, source: Source) -> set[int]:
        """The dimensions whose size varies: 0 and 1 are special everywhere."""
        wanted = {d for d in range(x.dim()) if (source, "size", d) in self.varying.parts}
        listed = self.varying.listed
        named = set[int]() if listed is None else listed.dims(x, source)
        if not self.varying.allowed:
            return {d for d in named if x.shape[d] > 1}
        own, marked = _attributes(x), marked_dims(x)
        for d, lo, hi in _bounds(x):
            if d in marked and not lo <= x.shape[d] <= hi:
                most = f" to {hi}" * (hi < math.inf)
                why = f"is {x.shape[d]}, but was marked to be from {lo}{most}"
                raise PromiseError("W406", f"{source.text()}.shape[{d}] {why}", at=self.env.where())
        if self.varying.all and type(x) is torch.Tensor and not is_owned(source):
            wanted.update(range(x.dim()))
        if self.varying.promised is not None:
            said = self.varying.promised.varying(x)
            wanted = wanted if said is None else said
        wanted |= marked | named | set(own.get("_dynamo_weak_dynamic_indices", ()))
        wanted -= set(own.get("_dynamo_static_indices", ())) - marked
        return {d for d in wanted if x.shape[d] > 1}

    def _size(self, x: torch.Tensor, source: Source, d: int) -> Expr:
        least, most = 2, None
        for dim, lo, hi in _bounds(x):
            if dim == d:
                least, most = max(2, lo), int(hi) if hi < math.inf else None
        made = self.symbol(source, "size", d, int(x.shape[d]), least, most)
        said = self.varying.promised and self.varying.promised.of(x)
        if said and self.wiring is not None:
            self.wiring.bind(made, said.get(d, ()))
        return made

    def _strides(self, x: torch.Tensor, source: Source, sizes: list[Expr]) -> list[Expr]:
        """Strides as expressions of the sizes where the elements follow one another."""
        steps = x.stride()
        out: list[Expr] = [as_expr(n) for n in steps]
        running, own = as_expr(1), set[int]()
        for d in sorted(range(x.dim()), key=lambda d: (steps[d], x.shape[d], -d)):
            if self._steps_freely(x, source, d):
                out[d] = self.symbol(source, "stride", d, int(steps[d]), None)
                own.add(d)
            elif steps[d] == self.env.hint(running):
                out[d] = running
            elif (source, "stride", d) in self.varying.parts and steps[d] > 1:
                out[d] = self.symbol(source, "stride", d, int(steps[d]))
                own.add(d)
            if x.shape[d] != 1:
                running = out[d] * sizes[d]
        for d, e in enumerate(out):
            if not isinstance(e, Int) and d not in own:
                made = self.symbol(source, "stride", d, int(steps[d]), None)
                self.env.decide(equal(made, e))
        return out

    def _steps_freely(self, x: torch.Tensor, source: Source, d: int) -> bool:
        """Whether a stride varies that no element is found by."""
        return x.shape[d] == 1 and self.varying.allowed and (
            (source, "stride", d) in self.varying.parts)  # fmt: skip

    def number(self, x: LateNumber) -> SizeValue | None:
        """A late number as a symbol; None if it is no integer, nor computed of some."""
        if x.drawn and not x.after and type(x.now) is int and id(x) not in self.numbers:
            found = self._computed(x) if x.fn in _EXACT else self.of_drawn(x)
            if isinstance(found, SizeValue):
                self.numbers[id(x)] = found
                self.kept.append(x)
        if x.drawn:
            return self.numbers.get(id(x))
        whole = type(x.now) is int or (x.source is None and x.fn in _FLOATS)
        if x.fixed or not whole or not self.varying.integers:
            return None
        known = self.numbers.get(id(x))
        if known is not None:
            return known
        if x.source is not None:
            e = self.symbol(x.source, "number", 0, int(x.now), None)
            promise = self.varying.promised and self.varying.promised.numbers.get(x.source)
            if promise and self.wiring is not None:
                self.wiring.bind(e, (promise,))
            made: Const | None = number_value(symbolic(self.env, e))
        else:
            made = self._computed(x)
        if not isinstance(made, SizeValue):
            return None
        self.numbers[id(x)] = made
        self.kept.append(x)
        return made

    def given(self, x: LateNumber) -> SizeValue | None:
        """A late number that an operator gets as a size or place: one of NumPy's too."""
        if type(x.now) not in INTEGERS or x.source is None or x.fixed or x.drawn:
            return self.number(x)
        return self.number(x.owner.leaf(int(x.now), Applied.make(x.source, int)))

    def hold(self, x: LateNumber, guard: AddGuard) -> None:
        """Guard what was promised of a number."""
        promised = self.varying.promised
        assert x.source is not None
        if promised is None or x.source not in promised.numbers:
            return
        bounds = promised.bounds(x.source)
        if bounds is None:
            self.number(x)
        elif (bounds.lo, bounds.hi) != (None, None):
            guard("predicate", x.source, bounds)

    def _computed(self, x: LateNumber) -> Const | None:
        how = _CALLS.get(x.fn) if x.fn in _ROUNDINGS or x.fn in _FLOATS else None
        if x.fn not in _EXACT and how is None and x.fn not in _FLOATS:
            return None
        args = [self.as_number(a) for a in x.args]
        if None in args:
            return None
        assert x.fn is not None
        return number_value((how or x.fn)(*args))

    # ------------------------------------------------------------ values
    def as_number(self, x: Value) -> Any:
        """A plain or symbolic number; None if the value is another thing."""
        if isinstance(x, SizeValue):
            return bool(x.number) if x.cls() is bool else plain(x.number)
        if isinstance(x, LateNumber):
            made = self.number(x)
            return x.obj if made is None else made.number
        return x.obj if isinstance(x, Const) and _is_number(x) else None

    def compute(self, fn: Callable[..., Any], args: Iterable[Value]) -> Any:
        """fn of numbers, some of which are symbolic; NotImplemented if it is nothing of ours."""
        given = list(args)
        if not any(map(is_varying, given)) or not all(map(_is_number, given)):
            return NotImplemented
        return fn(*(self.as_number(a) for a in given))

    def is_open(self, x: Slot) -> bool:
        """Whether a value is a number that only the data decides."""
        return isinstance(x, SizeValue) and x.number.node.is_open()

    def call(self, fn: object, args: list[Value]) -> Value | None:
        """A call of a function of numbers; None if it is nothing of ours."""
        try:
            how = _CALLS.get(fn)
        except TypeError:  # unhashable
            return None
        if how is None:
            return None
        if how in (min, max) and any(map(self.is_open, args)):
            return None  # a number of its own, if the facts do not say which it is
        out = self.compute(how, args)
        if out is NotImplemented:
            return None
        if isinstance(out, tuple):
            return TupleValue([number_value(n) for n in out])
        return number_value(out)

    # ------------------------------------------------------------ what runs later
    def node(self, graph: Graph, value: Any, tensors: Mapping[Source, TensorValue],
             number: Callable[[Source | Expr], Node]) -> Any:  # fmt: skip
        """A symbolic number in the captured graph: a node, or a plain number."""
        return self.writer(graph, tensors, number).write(value)

    def writer(self, graph: Graph, tensors: Mapping[Source, TensorValue],
               number: Callable[[Source | Expr], Node]) -> SizeWriter:  # fmt: skip
        """What writes numbers into the captured graph."""

        def read(e: Expr) -> Node:
            value = symbolic(self.env, e)
            made = self.data.found.get(e)
            if made is not None:
                return made.read(graph, value)
            if e in self.env.computed:
                return number(e)
            reading = self.readings[e]
            if reading.kind == "number":
                return number(reading.source)
            tensor = tensors[reading.source]
            node = graph.call_function(_READ[reading.kind], (tensor.node, reading.dim))
            node.meta[VAL] = value
            return node

        return SizeWriter(self.env, graph, read, self.nodes)

    def text(self, value: Any, param: Callable[[Source], str], bind: Callable[[object], str],
             made: Callable[[Made], str]) -> str:  # fmt: skip
        """A symbolic number as a Python expression over what is found at the sources, and what the
        graph makes."""
        match value:
            case Expr():
                value = self.env.simplify(value)
                shown: dict[Expr, Expr] = {
                    s: Sym.make(r.name(param(r.source)), None, None)
                    for s, r in self.readings.items() if s in atoms(value)
                }  # fmt: skip
                for s, how in self.env.computed.items():
                    if s in atoms(value):
                        name = self._call_text(how.fn, (how.value,), param, bind, made)
                        shown[s] = Sym.make(name, None, None)
                for s, m in self.data.found.items():
                    if s in atoms(value):
                        name = made(m) if isinstance(m, Made) else (
                            self._call_text(m.fn, m.args, param, bind, made))  # fmt: skip
                        shown[s] = Sym.make(name, None, None)
                return f"({substitute(value, shown).text()})"
            case Ratio():
                return f"({self.text(value.num, param, bind, made)} / {value.den})"
            case Loose():
                return self._call_text(value.fn, value.args, param, bind, made)
        return repr(value)

    def _call_text(self, fn: object, args: tuple[object, ...], param: Callable[[Source], str],
                   bind: Callable[[object], str], made: Callable[[Made], str]) -> str:  # fmt: skip
        inside = ", ".join(self.text(a, param, bind, made) for a in args)
        return f"{bind(fn)}({inside})"


# what is the same function of symbols
_EXACT = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg,
          operator.pos)  # fmt: skip


# and what is computed of floats when a call begins (SizeEnv.rounded)
_ROUNDINGS = (int, math.floor, math.ceil, math.trunc, round)
_FLOATS = (operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.pow,
           float, math.sqrt, math.log, math.log2, math.log10, math.exp)  # fmt: skip


def is_owned(source: Source) -> bool:
    """Whether a tensor is a parameter or buffer of a module."""
    return isinstance(source, Item) and isinstance(source.base, Item) and (
        source.base.key in ("_parameters", "_buffers"))  # fmt: skip


__all__ = ["Form", "Sizes", "Varying", "is_varying", "number_value"]
