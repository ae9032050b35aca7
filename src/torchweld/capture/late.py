"""Numbers from outside that changed between two calls: read when the compiled code runs.

Such a number is guarded by its type only. Arithmetic between such numbers is recorded, and computed
at the start of the call; if that raises, the frame runs eagerly. Of a comparison the outcome is
guarded. Whatever else asks for the value (a size, an operator that is not in the table below) fixes
it: the number is guarded by value after all.

A number that a generator of random numbers gives (draws.py), or the clock, is late too. No guard
can speak of it, so what would fix it ends the graph. A text that shows a late number is late like
it; looking into it fixes the number.
"""

from __future__ import annotations

import datetime
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from torchweld.base.errors import GraphBreak
from torchweld.base.loc import Loc
from torchweld.capture.predicates import SameNumber
from torchweld.capture.state import raised, refuse
from torchweld.capture.values.base import (
    Const,
    ListValue,
    SizeValue,
    TensorValue,
    TupleValue,
    Value,
)
from torchweld.capture.values.number import GraphNumber
from torchweld.ir.source import InstanceDict, Item, Source

_TIMES = (datetime.datetime, datetime.date, datetime.timedelta, datetime.time)
AddGuard = Callable[[str, Source, object], None]

_NUMBERS = (int, float)
# NumPy's, which are computed with as they are; what is decided by one fixes it
_SCALARS = (np.float64, np.float32, np.int64, np.int32)
INTEGERS = _SCALARS[2:]
NUMBERS = (*_NUMBERS, *_SCALARS)
_INFIX = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
          "//": operator.floordiv, "%": operator.mod, "**": operator.pow,
          "&": operator.and_, "|": operator.or_, "^": operator.xor}  # fmt: skip
_PREFIX = {"-": operator.neg, "+": operator.pos}
# the type of the result depends on the values
TYPE_VARIES = (operator.pow, min, max)
# functions of numbers without side effects
_PURE: tuple[Callable[..., Any], ...] = (
    float, int, abs, min, max, round, math.sqrt, math.exp, math.log, math.cos, math.sin, math.tanh,
    math.pow, math.floor, math.ceil, math.log2, math.log10, math.log1p, math.expm1, math.tan,
    math.atan, math.atan2, math.radians, math.degrees, math.hypot, math.fabs, math.trunc,
)  # fmt: skip


class LateNumber(Const):
    """A number that is read, or computed, when the compiled code runs.

    now: its value in the call that is captured. fn, args: how it is computed; None, () if it is
    read from `source`. fixed: the value is guarded, so it is a constant like any other. Reading
    `obj` fixes it. drawn: it is made of random numbers, or of the time. after: of the time after
    an operator, so that it is computed when the graph has run.
    """

    __slots__ = ("after", "args", "drawn", "fixed", "fn", "now", "owner")

    def __init__(self, owner: LateNumbers, now: Any, source: Source | None = None,
                 fn: Callable[..., Any] | None = None, args: tuple[Value, ...] = (),
                 drawn: bool = False, after: bool = False) -> None:  # fmt: skip
        Value.__init__(self, source)
        self.owner = owner
        self.now = now
        self.fn = fn
        self.args = args
        self.fixed = False
        made_of = [a for a in args if isinstance(a, LateNumber)]
        self.drawn: bool = drawn or any(a.drawn for a in made_of)
        self.after: bool = after or any(a.after for a in made_of)

    @property
    def obj(self) -> object:  # type: ignore[override]
        self.fix()
        return self.now

    def fix(self) -> None:
        """Guard the value of everything that the number is made of. Errors: GraphBreak if random
        numbers are among it."""
        if self.drawn:
            raise self.owner.undecided()
        if self.fixed:
            return
        self.fixed = True
        for part in self.args:
            if isinstance(part, LateNumber):
                part.fix()
        if self.source is not None and type(self.now) in _SCALARS:
            self.owner.guard("predicate", self.source, SameNumber(self.now))
        elif self.source is not None:
            self.owner.guard("equal", self.source, self.now)

    @property
    def sample(self) -> object:
        return self.now

    def cls(self) -> type:
        return type(self.now)

    def __repr__(self) -> str:
        return f"LateNumber({self.now!r})"


class LateTensor(LateNumber):
    """A tensor that is drawn when the compiled code runs. now: a fake one.

    value: the Value that is the tensor itself; None if the frame has a copy of it.
    """

    __slots__ = ("value",)

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.value: TensorValue | None = None


class LateNumbers:
    """The late numbers of one capture, in the order in which they are computed.

    computed: also what sets a generator of random numbers anew, which gives no number. active:
    whether there are any.
    """

    def __init__(self, sources: frozenset[Source], guard: AddGuard,
                 loc: Callable[[], Loc]) -> None:  # fmt: skip
        self.sources = sources
        self.guard = guard
        self.loc = loc
        self.leaves: dict[Source, LateNumber] = {}
        self.computed: list[LateNumber] = []
        self.active = bool(sources)

    def undecided(self) -> GraphBreak:
        """The error of asking for the value of a random number."""
        return refuse("W120", "its value is known only when the compiled code runs", self.loc())

    def leaf(self, obj: float, source: Source) -> LateNumber:
        """The number found at a source."""
        known = self.leaves.get(source)
        if known is None:
            self.guard("type", source, type(obj))
            known = self.leaves[source] = LateNumber(self, obj, source)
            self.active = True
        return known

    def draw(self, now: Any, fn: Callable[..., Any], args: tuple[Value, ...]) -> LateNumber:
        """What a call that changes a generator of random numbers gives."""
        made = LateNumber(self, now, None, fn, args, drawn=True)
        self.computed.append(made)
        self.active = True
        return made

    def tensor(self, fake: torch.Tensor, fn: Callable[..., Any],
               args: tuple[Value, ...]) -> LateTensor:  # fmt: skip
        """What a call gives that draws a tensor, which looks like `fake`."""
        made = LateTensor(self, fake, None, fn, args, drawn=True)
        self.computed.append(made)
        self.active = True
        return made

    def clock(self, fn: Callable[..., Any], args: tuple[Value, ...], after: bool) -> LateNumber:
        """What a clock shows. after: whether an operator was called before."""
        now = fn(*(a.obj for a in args))  # type: ignore[attr-defined]
        made = LateNumber(self, now, None, fn, args, drawn=True, after=after)
        self.computed.append(made)
        self.active = True
        return made

    def text(self, fn: Callable[..., str], args: list[Value]) -> LateNumber:
        """fn of late numbers, texts and constants, as a text."""
        now = fn(*(a.now if isinstance(a, LateNumber) else a.obj for a in args))  # type: ignore[attr-defined]
        made = LateNumber(self, now, None, fn, tuple(args))
        self.computed.append(made)
        return made

    def of_times(self, fn: Callable[..., Any], args: list[Value]) -> LateNumber:
        """fn of times and constants. Errors: Raised; GraphBreak if it gives anything else."""
        if not all(isinstance(a, Const) for a in args):
            raise refuse("W120", "a time with what is not constant", self.loc())
        try:
            now = fn(*(a.now if isinstance(a, LateNumber) else a.obj for a in args))  # type: ignore[attr-defined]
        except Exception as error:
            raise raised(type(error), *error.args) from None
        if not is_time(now) and type(now) not in (int, float, str):
            raise refuse("W120", f"a {type(now).__name__} of a time", self.loc())
        made = LateNumber(self, now, None, fn, tuple(args))
        self.computed.append(made)
        return made

    def binary(self, symbol: str, a: Value, b: Value) -> LateNumber | None:
        """a <symbol> b, or None if it is no arithmetic of late numbers, or sum of late texts."""
        fn: Any = _INFIX.get(symbol) or _INFIX.get(symbol.removesuffix("="))
        if fn is operator.add and are_late_texts([a, b]):
            return self.text(fn, [a, b])
        if fn is not None and any(isinstance(x, LateNumber) and is_time(x.now) for x in (a, b)):
            return self.of_times(fn, [a, b])
        return self._compute(fn, [a, b]) if fn is not None else None

    def unary(self, symbol: str, x: Value) -> LateNumber | None:
        fn: Any = _PREFIX.get(symbol)
        return self._compute(fn, [x]) if fn is not None else None

    def call(self, fn: Const, args: list[Value]) -> LateNumber | None:
        """A call of a pure function with late numbers, or None."""
        if not any(isinstance(a, LateNumber) for a in args):
            return None
        return next((self._compute(f, args) for f in _PURE if fn.obj is f), None)

    def decide(self, symbol: str, a: Value, b: Value) -> bool | np.bool_ | None:
        """a <symbol> b for numbers one of which is late: guarded to stay as it is. None if this is
        no such comparison, or one that depends on two late numbers."""
        parts, late = (a, b), [x for x in (a, b) if isinstance(x, LateNumber) and not x.fixed]
        if any(x.drawn for x in late):
            raise self.undecided()
        if not late or not all(isinstance(x, LateNumber) or _is_number(x) for x in parts):
            return None
        if any(type(x.now) not in NUMBERS for x in late):
            return None
        sources: set[Source] = set()
        tree = (_COMPARE[symbol], tuple(_tree(x, sources) for x in parts))
        if len(sources) != 1:
            return None
        (source,) = sources
        answer = evaluated(tree, self.leaves[source].now)
        self.guard("predicate", source, Decided(tree, bool(answer)))
        return answer  # type: ignore[no-any-return]

    def member(self, x: LateNumber, keys: frozenset[object]) -> bool | None:
        """Whether a number is one of these: guarded to stay as it is. None if it depends on two."""
        if x.drawn:
            raise self.undecided()
        return self.ask(is_one_of, x, keys)

    def ask(self, fn: Callable[..., bool], x: LateNumber, *given: object) -> bool | None:
        """fn(x, *given): guarded to stay as it is. None if it depends on two numbers."""
        sources: set[Source] = set()
        tree = (fn, (_tree(x, sources), *given))
        if len(sources) != 1:
            return None
        (source,) = sources
        answer = bool(evaluated(tree, self.leaves[source].now))
        self.guard("predicate", source, Decided(tree, answer))
        return answer

    def _compute(self, fn: Callable[..., Any], args: list[Value]) -> LateNumber | None:
        if not any(isinstance(a, LateNumber) and not a.fixed for a in args):
            return None
        if not all(isinstance(a, LateNumber) or _is_number(a) for a in args):
            return None
        values = [a.now if isinstance(a, LateNumber) else a.obj for a in args]  # type: ignore[attr-defined]
        try:
            now = fn(*values)
        except Exception:
            return None  # the interpreter raises it, on fixed values
        if type(now) not in NUMBERS:
            return None
        made = LateNumber(self, now, None, fn, tuple(args))
        if made.after and fn in TYPE_VARIES:
            return None  # it would be too late to run the frame eagerly
        self.computed.append(made)
        return made


def is_one_of(x: object, keys: frozenset[object]) -> bool:
    """What a guard asks for `x in keys`."""
    return x in keys


_COMPARE: dict[str, Callable[..., Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq,
    "!=": operator.ne,
}  # fmt: skip
LEAF = "late"


def _tree(x: Value, sources: set[Source]) -> Any:
    """How a number is made of late ones, as nested tuples."""
    if not isinstance(x, LateNumber) or x.fixed:
        return x.obj  # type: ignore[attr-defined]
    if x.source is not None:
        sources.add(x.source)
        return LEAF
    return x.fn, tuple(_tree(a, sources) for a in x.args)


def evaluated(tree: Any, leaf: float) -> Any:
    """The value of such a tree for a number."""
    if isinstance(tree, tuple):
        fn, args = tree
        return fn(*(evaluated(a, leaf) for a in args))
    return leaf if tree is LEAF else tree


def in_words(tree: Any, leaf: str = "x") -> str:
    """Such a tree as Python writes it. leaf: what the number is called."""
    if not isinstance(tree, tuple):
        return leaf if tree is LEAF else repr(tree)
    fn, args = tree
    said = [in_words(a, leaf) for a in args]
    symbol = next((s for s, f in (*_COMPARE.items(), *_INFIX.items()) if f is fn), None)
    if symbol is None:
        return f"{fn.__name__}({', '.join(said)})"
    return f"({f' {symbol} '.join(said)})"


_OPPOSITE = {
    operator.lt: operator.ge, operator.le: operator.gt, operator.gt: operator.le,
    operator.ge: operator.lt, operator.eq: operator.ne, operator.ne: operator.eq,
}  # fmt: skip


class Decided:
    """Answers whether a comparison of a number has the outcome that the capture relied on."""

    __slots__ = ("answer", "tree")

    def __init__(self, tree: Any, answer: bool) -> None:
        self.tree = tree
        self.answer = answer

    def __call__(self, value: Any) -> bool:
        try:
            return bool(evaluated(self.tree, self.number(value))) is self.answer
        except Exception:
            return False

    def number(self, value: Any) -> float:
        """The number that is compared, of what the guard finds."""
        found: float = value
        return found

    def text(self, leaf: str) -> str:
        """What held, of a number that is called so; for numbers that are no NaN."""
        fn, args = self.tree
        turned = not self.answer and fn in _OPPOSITE
        said = in_words((_OPPOSITE[fn], args) if turned else self.tree, leaf)
        said = said[1:-1] if said.startswith("(") else said
        return said if self.answer or turned else f"not {said}"

    def __repr__(self) -> str:
        return in_words(self.tree) if self.answer else f"not {in_words(self.tree)}"

    def __hash__(self) -> int:
        return hash(self.tree)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and (
            (other.tree, other.answer) == (self.tree, self.answer))  # fmt: skip


def is_time(x: object) -> bool:
    """Whether an object is a date, a time, or the time between two."""
    return type(x) in _TIMES


# attributes of torch's optimizers and schedulers that are there to change
_SCHEDULED = frozenset(("last_epoch", "_step_count", "num_bad_epochs", "cooldown_counter", "T_cur"))


def is_scheduled(source: Source) -> bool:
    """Whether a number changes from call to call, by where it is found: a learning rate, or what a
    scheduler counts."""
    if not isinstance(source, Item):
        return False
    base = source.base
    if source.key == "lr" and isinstance(base, Item) and base.sequence:
        return getattr(base.base, "key", None) == "param_groups" or (
            getattr(base.base, "name", None) == "param_groups")  # fmt: skip
    return source.key in _SCHEDULED and isinstance(base, InstanceDict)


def plain_number(x: Any) -> Any:
    """A number without the class that NumPy gives it."""
    return x.item() if type(x) in _SCALARS else x


def is_late_text(x: object) -> bool:
    """Whether a value is a text that shows late numbers."""
    return isinstance(x, LateNumber) and type(x.now) is str and not x.fixed


def _is_text(x: object) -> bool:
    return is_late_text(x) or (type(x) is Const and type(x.obj) is str)


def are_late_texts(parts: list[Value]) -> bool:
    """Whether values are texts, one of which shows late numbers."""
    return any(map(is_late_text, parts)) and all(map(_is_text, parts))


# numbers that have no value yet
_UNKNOWN = (SizeValue, GraphNumber)


def _is_number(x: Value) -> bool:
    return isinstance(x, Const) and type(x) not in _UNKNOWN and type(x.obj) in (bool, *NUMBERS)


# ------------------------------------------------------------------- operators on tensors
# operator or method -> positions and names of arguments whose value decides neither the shape nor
# the dtype of the result
_OTHER: tuple[int | str, ...] = (0, 1, "other")
_OPERATORS = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.iadd, operator.isub,
    operator.imul, operator.itruediv, operator.pow, operator.lt, operator.le, operator.gt,
    operator.ge, operator.eq, operator.ne,
)  # fmt: skip
_METHODS: dict[str, tuple[int | str, ...]] = {
    **dict.fromkeys(("add", "sub"), (*_OTHER, "alpha")),
    **dict.fromkeys(("mul", "div", "true_divide"), _OTHER),
    **dict.fromkeys(("addcmul", "addcdiv"), ("value",)),
    "lerp": (2, "weight"), "pow": (1, "exponent"),
    "fill": (1, "value"), "masked_fill": (2, "value"), "clamp": (1, 2, "min", "max"),
    "clamp_min": (1, "min"), "clamp_max": (1, "max"), "where": (2, "other"),
    "new_tensor": (1, "data"),
    "full_like": (1, "fill_value"), "new_full": (2, "fill_value"), "leaky_relu": (1,),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), _OTHER),
    **dict.fromkeys(("hardtanh", "threshold"), (1, 2)),
    "layer_norm": (4,), "rms_norm": (3,),
    # lists of tensors, and a number for all or a list of numbers
    **dict.fromkeys(("_foreach_add", "_foreach_sub"), (1, "scalar", "scalars", "alpha")),
    **dict.fromkeys(("_foreach_mul", "_foreach_div", "_foreach_maximum", "_foreach_minimum",
                     "_foreach_clamp_min", "_foreach_clamp_max"), (1, "scalar", "scalars")),
    "_foreach_pow": (0, 1, "self", "exponent"), "_foreach_lerp": (2, "weight"),
    **dict.fromkeys(("_foreach_addcmul", "_foreach_addcdiv"), (3, "value", "scalars")),
}  # fmt: skip
_TAKES: dict[object, tuple[int | str, ...]] = dict.fromkeys(_OPERATORS, (0, 1))
for _name, _places in _METHODS.items():
    for _spelling in (_name, _name + "_"):
        _TAKES[_spelling] = _places
        for _space in (torch, torch._C._nn):
            _function = getattr(_space, _spelling, None)
            if _function is not None:
                _TAKES[_function] = _places


_TAKES[torch.where] = (1, 2, "input", "other")
# what makes a tensor of a number: the place of the number
_MAKERS: dict[object, tuple[int | str, ...]] = {
    torch.tensor: (0,), torch.as_tensor: (0,), torch.full: (1, "fill_value")}  # fmt: skip
for _name in ("adam", "adamw", "sgd", "adagrad"):
    _fused = getattr(torch, f"_fused_{_name}_", None)
    if _fused is not None:
        _TAKES[_fused] = ("lr",)


def takes_number_only(target: object, place: int | str) -> bool:
    """Whether an operator reads a tensor with item() that it is given at this place."""
    return place in ("alpha", "value") and place in _TAKES.get(target, ()) and (
        "fill" not in str(getattr(target, "__name__", target)))  # fmt: skip


def takes_late(target: object, place: int | str, args: list[Value]) -> bool:
    """Whether an operator may get a late number at this place: its result looks the same then."""
    if target in _MAKERS:
        return place in _MAKERS[target]
    places = _TAKES.get(target)
    return places is not None and place in places and any(map(_has_tensor, args))


def _has_tensor(x: Value) -> bool:
    return isinstance(x, TensorValue) or (
        isinstance(x, ListValue | TupleValue) and any(isinstance(i, TensorValue) for i in x.items))
