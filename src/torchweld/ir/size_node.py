"""SizeNode: what torch.SymInt, SymFloat and SymBool hold, over our own expressions.

torch's C++ takes any object with these methods for a symbolic number. Integers are Exprs, truth
values are Conditions. A float is a Ratio of integers while that is exact; any other float is Loose:
known by how it is computed, and only good as an argument of an operator. What asks for more fixes
the sizes that it is made of.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchweld.ir.conditions import (
    Condition,
    Junction,
    Ratio,
    Relation,
    at_most,
    ceil_ratio,
    condition_text,
    equal,
    floor_ratio,
    junction,
    less,
    negation,
    round_ratio,
)
from torchweld.ir.expr import ONE, Expr, Int, as_expr
from torchweld.ir.size_values import (
    LARGEST,
    QUESTIONS,
    Loose,
    Number,
    Shown,
    common,
    complexity,
    exact,
    leaves_of,
    symbols_of,
    tidied,
)
from torchweld.ir.sizes import SizeEnv

_MOST = 60  # symbols, numbers and operations of one size


class SizeNode:
    """One symbolic number. hint: its value now."""

    __slots__ = ("env", "hint", "value")
    constant = fx_node = None
    shape_env = QUESTIONS

    def __init__(self, env: SizeEnv, value: Number | Condition, hint: Any) -> None:
        self.env = env
        self.value = value
        self.hint = hint

    # ------------------------------------------------------------ kinds
    def is_int(self) -> bool:
        return isinstance(self.value, Expr)

    def is_bool(self) -> bool:
        return isinstance(self.value, bool | Relation | Junction)

    def is_float(self) -> bool:
        return isinstance(self.value, float | Ratio | Loose)

    @property
    def pytype(self) -> type:
        return type(self.hint)

    @property
    def _hint(self) -> Any:
        return self.hint

    @property
    def expr(self) -> Any:
        return Shown(self)

    def is_constant(self) -> bool:
        return isinstance(self.value, Int | bool | float)

    def is_symbolic(self) -> bool:
        return not self.is_constant()

    def has_hint(self) -> bool:
        return not self.is_open()

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def maybe_as_int(self) -> int | None:
        return self.value.n if isinstance(self.value, Int) else None

    def maybe_as_float(self) -> float | None:
        return self.value if isinstance(self.value, float) else None

    def maybe_as_bool(self) -> bool | None:
        return self.value if isinstance(self.value, bool) else None

    def condition(self) -> Condition:
        """This truth value, or whether this number is not zero."""
        match self.value:
            case Expr():
                return negation(equal(self.value, 0))
            case bool() | Relation() | Junction():
                return self.value
        return bool(self.fixed())

    def clone(self) -> SizeNode:
        return self

    def str(self) -> Any:
        match self.value:
            case Expr():
                return self.value.text()
            case Ratio():
                return f"({self.value.num.text()})/{self.value.den}"
            case bool() | Relation() | Junction():
                return condition_text(self.value)
        return str(self.hint)

    def _graph_repr(self) -> Any:
        return self.str()

    __str__ = __repr__ = str

    def wrap_int(self, n: int) -> SizeNode:
        known: SizeNode | None = self.env.nodes.get(n)
        return known or self.env.nodes.setdefault(n, SizeNode(self.env, as_expr(n), n))

    def wrap_float(self, x: float) -> SizeNode:
        return SizeNode(self.env, float(x), float(x))

    def wrap_bool(self, x: bool) -> SizeNode:
        return SizeNode(self.env, x, x)

    def _int(self, e: Expr) -> SizeNode:
        e = tidied(e)
        if complexity(e) > _MOST:  # torch asks about it, and each answer would take longer
            return self.wrap_int(self.env.fixed(e))
        return SizeNode(self.env, e, self.env.hint(e))

    def _bool(self, c: Condition) -> SizeNode:
        return SizeNode(self.env, c, self.env.truth_now(c))

    def _float(self, fn: Callable[..., float], *nodes: SizeNode) -> SizeNode:
        hint = float(fn(*(n.hint for n in nodes)))
        if all(n.is_constant() for n in nodes):
            return SizeNode(self.env, hint, hint)
        return SizeNode(self.env, Loose(fn, tuple(n.number() for n in nodes)), hint)

    def number(self) -> Number:
        assert not isinstance(self.value, bool | Relation | Junction)
        return self.value

    def whole(self) -> Expr:
        """This integer as an expression; any other number is fixed."""
        return self.value if isinstance(self.value, Expr) else as_expr(int(self.fixed()))

    def fixed(self) -> Any:
        """The value now, of which everything is a fact from now on."""
        if self.is_bool():
            return self.env.decide(self.condition())
        if isinstance(self.value, Expr):
            return self.env.fixed(self.value)
        for leaf in leaves_of(self.value):
            leaf.fn()
        for symbol in symbols_of(self.value):
            self.env.fixed(symbol)  # which raises for one that only the data decides
        return self.hint

    # ------------------------------------------------------------ asking
    def int_(self) -> int:
        return int(self.fixed())

    def bool_(self) -> bool:
        return self.env.decide(self.condition())

    def guard_int(self, file: Any, line: int) -> int:
        return int(self.fixed())

    def guard_float(self, file: Any, line: int) -> float:
        return float(self.fixed())

    def guard_bool(self, file: Any, line: int) -> bool:
        return self.env.decide(self.condition())

    def guard_or_false(self, file: Any, line: int) -> bool:
        return self._unless_open(False)

    def guard_or_true(self, file: Any, line: int) -> bool:
        return self._unless_open(True)

    guard_size_oblivious = guard_or_false

    def expect_true(self, file: Any, line: int) -> bool:
        """A check of torch's: it holds, or the compiled code does not run."""
        c = self.condition()
        if self.env.known(c) is None and self.env.is_open(c):
            self.env.suppose(c)
            return True
        return self.env.decide(c)

    def _unless_open(self, otherwise: bool) -> bool:
        """Whether it holds; `otherwise` if only the data decides it, which is right either way."""
        c = self.condition()
        known = self.env.known(c)
        if known is None and self.env.is_open(c):
            return otherwise
        return self.env.decide(c)

    def is_open(self) -> bool:
        """Whether only the data decides it."""
        if self.is_bool():
            return self.env.known(self.condition()) is None and self.env.is_open(self.condition())
        return any(map(self.env.is_open, symbols_of(self.value)))

    def statically_known_true(self, file: Any, line: int) -> bool:
        return self.env.known(self.condition()) is True

    # ------------------------------------------------------------ integers and floats
    def _arithmetic(self, fn: Callable[[Any, Any], Any], other: SizeNode) -> SizeNode:
        a, b = self.value, other.value
        if isinstance(a, Expr) and isinstance(b, Expr):
            known: SizeNode | None = self.env.nodes.get((fn, a, b))
            if known is None:
                known = self._int(fn(a, b))
                if not isinstance(known.value, Int):  # which may be fixed
                    self.env.nodes[fn, a, b] = known  # torch asks for the same again and again
            return known
        found = exact(fn, self.value, other.value)
        if found is not None and _is_small(self, other):
            return SizeNode(self.env, found, fn(self.hint, other.hint))
        return self._float(fn, self, other)

    def add(self, other: SizeNode) -> SizeNode:
        return self._arithmetic(operator.add, other)

    def sub(self, other: SizeNode) -> SizeNode:
        return self._arithmetic(operator.sub, other)

    def mul(self, other: SizeNode) -> SizeNode:
        return self._arithmetic(operator.mul, other)

    def neg(self) -> SizeNode:
        return self.wrap_int(0).sub(self) if self.is_int() else self._float(operator.neg, self)

    def pos(self) -> SizeNode:
        return self

    def abs(self) -> SizeNode:
        if not self.is_int():
            return self._float(abs, self)
        return self if self.env.decide(at_most(0, self.whole())) else self.neg()

    def _divided(self, other: SizeNode) -> tuple[Expr, Expr]:
        """Numerator and positive denominator. Errors: ZeroDivisionError."""
        num, den = map(self.env.simplify, (self.whole(), other.whole()))
        if not isinstance(den, Int) and self.env.decide(equal(den, 0)):
            den = as_expr(0)
        if isinstance(den, Int) and den.n == 0:
            raise ZeroDivisionError("integer division or modulo by zero")
        return (num, den) if self.env.decide(less(0, den)) else (-num, -den)

    def _fits(self, num: Expr, den: Expr) -> bool:
        """Whether it is known that 0 <= num < den, where the algebra may not know it."""
        known = self.env.known
        return not den.is_const and known(less(num, den)) is True and known(at_most(0, num)) is True

    def int_floordiv(self, other: SizeNode) -> SizeNode:
        num, den = self._divided(other)
        return self.wrap_int(0) if self._fits(num, den) else self._int(num // den)

    def floordiv(self, other: SizeNode) -> SizeNode:
        if self.is_int() and other.is_int():
            return self.int_floordiv(other)
        return self._float(operator.floordiv, self, other)

    def mod(self, other: SizeNode) -> SizeNode:
        if not (self.is_int() and other.is_int()):
            return self._float(operator.mod, self, other)
        num, den = self._divided(other)
        rest = num if self._fits(num, den) else num % den
        return self._int(-rest if den is not self.env.simplify(other.whole()) else rest)

    def int_truediv(self, other: SizeNode) -> SizeNode:
        den = other.value
        if isinstance(den, Int) and 0 < den.n < LARGEST and _is_small(self):
            return SizeNode(self.env, Ratio(self.whole(), den.n), self.hint / den.n)
        return self._float(operator.truediv, self, other)

    def float_truediv(self, other: SizeNode) -> SizeNode:
        return self._float(operator.truediv, self, other)

    def truediv(self, other: SizeNode) -> SizeNode:
        return (self.int_truediv if self.is_int() and other.is_int() else self.float_truediv)(other)

    def pow_by_natural(self, other: SizeNode) -> SizeNode:
        n, out = int(other.fixed()), as_expr(1)
        if n > 8:
            return self.wrap_int(int(self.fixed()) ** n)
        for _ in range(n):
            out = out * self.whole()
        return self._int(out)

    def float_pow(self, other: SizeNode) -> SizeNode:
        return self._float(operator.pow, self, other)

    def pow(self, other: SizeNode) -> SizeNode:
        natural = self.is_int() and other.is_int() and other.hint >= 0
        return self.pow_by_natural(other) if natural else self.float_pow(other)

    def lshift(self, other: SizeNode) -> SizeNode:
        return self._int(self.whole() * 2 ** int(other.fixed()))

    def rshift(self, other: SizeNode) -> SizeNode:
        return self._int(self.whole() // 2 ** int(other.fixed()))

    def sym_min(self, other: SizeNode) -> SizeNode:
        return self if self._is_least(other) else other

    def sym_max(self, other: SizeNode) -> SizeNode:
        for x, least in ((self, other), (other, self)):
            # of sizes that may be 0 torch makes steps in memory, which do not count then
            if least.value is ONE and self.env.is_open(x.whole()):
                return x
        return other if self._is_least(other) else self

    def _is_least(self, other: SizeNode) -> bool:
        """Whether this is at most the other one, or decidedly not less: no fact if they may be
        equal, and one of them is always the result."""
        if other.le(self).statically_known_true("", 0):
            return False
        return self.le(other).bool_()

    def sym_sum(self, parts: Sequence[SizeNode]) -> SizeNode:
        total = as_expr(0)
        for part in parts:
            total = total + part.whole()
        return self._int(total)

    def sym_ite(self, then: SizeNode, otherwise: SizeNode) -> SizeNode:
        return then if self.bool_() else otherwise

    # ------------------------------------------------------------ floats to integers
    def sym_float(self) -> SizeNode:
        if not self.is_int():
            return self
        if _is_small(self):
            return SizeNode(self.env, Ratio(self.whole(), 1), float(self.hint))
        return self._float(float, self)

    def floor(self) -> SizeNode:
        return self._rounded(floor_ratio, math.floor)

    def ceil(self) -> SizeNode:
        return self._rounded(ceil_ratio, math.ceil)

    def trunc(self) -> SizeNode:
        if isinstance(self.value, Ratio) and self.env.decide(at_most(0, self.value.num)):
            return self.floor()
        return self._rounded(ceil_ratio, math.trunc)

    sym_int = trunc

    def round(self, ndigits: int | None = None) -> SizeNode:
        if self.is_int():
            return self
        if isinstance(self.value, Ratio) and ndigits is None:
            return self._int(round_ratio(self.value))
        if isinstance(self.value, Loose) and ndigits is None:
            made = self.env.rounded(round, self.value, self.hint)
            if made is not None:
                return self._int(made)
        found = round(self.fixed(), ndigits)
        return self.wrap_float(found) if isinstance(found, float) else self.wrap_int(found)

    def is_integer(self) -> SizeNode:
        if isinstance(self.value, Ratio):
            return self._bool(equal(self.value.num % self.value.den, 0))
        return self.wrap_bool(float(self.fixed()).is_integer())

    def _rounded(self, exact: Callable[[Ratio], Expr], fn: Callable[[float], int]) -> SizeNode:
        if self.is_int():
            return self
        if isinstance(self.value, Ratio):
            return self._int(exact(self.value))
        if isinstance(self.value, Loose):
            made = self.env.rounded(fn, self.value, self.hint)
            if made is not None:
                return self._int(made)
        return self.wrap_int(fn(self.fixed()))

    # ------------------------------------------------------------ comparisons
    def _compared(self, make: Callable[[Expr, Expr], Condition], fn: Callable[[Any, Any], bool],
                  other: SizeNode) -> SizeNode:  # fmt: skip
        if isinstance(self.value, Expr) and isinstance(other.value, Expr):
            key = fn, self.value, other.value
            made: SizeNode = self.env.nodes.get(key) or self.env.nodes.setdefault(
                key, self._bool(make(self.value, other.value)))
            return made
        a, b = common(self.value), common(other.value)
        if a is not None and b is not None:
            return self._bool(make(a.num * b.den, b.num * a.den))
        return self.wrap_bool(fn(self.fixed(), other.fixed()))

    def eq(self, other: SizeNode) -> SizeNode:
        return self._compared(equal, operator.eq, other)

    def ne(self, other: SizeNode) -> SizeNode:
        return self._compared(lambda a, b: negation(equal(a, b)), operator.ne, other)

    def lt(self, other: SizeNode) -> SizeNode:
        return self._compared(less, operator.lt, other)

    def le(self, other: SizeNode) -> SizeNode:
        return self._compared(at_most, operator.le, other)

    def gt(self, other: SizeNode) -> SizeNode:
        return self._compared(lambda a, b: less(b, a), operator.gt, other)

    def ge(self, other: SizeNode) -> SizeNode:
        return self._compared(lambda a, b: at_most(b, a), operator.ge, other)

    def sym_and(self, other: SizeNode) -> SizeNode:
        return self._bool(junction(True, self.condition(), other.condition()))

    def sym_or(self, other: SizeNode) -> SizeNode:
        return self._bool(junction(False, self.condition(), other.condition()))

    and_, or_ = sym_and, sym_or

    def sym_not(self) -> SizeNode:
        return self._bool(negation(self.condition()))

    # ------------------------------------------------------------ layouts
    def is_contiguous(self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> SizeNode:
        return self._dense(sizes, strides, range(len(sizes) - 1, -1, -1))

    def is_channels_last_contiguous_2d(self, sizes: Sequence[SizeNode],
                                       strides: Sequence[SizeNode]) -> SizeNode:  # fmt: skip
        return self._dense(sizes, strides, (1, 3, 2, 0))

    def is_channels_last_contiguous_3d(self, sizes: Sequence[SizeNode],
                                       strides: Sequence[SizeNode]) -> SizeNode:  # fmt: skip
        return self._dense(sizes, strides, (1, 4, 3, 2, 0))

    def _dense(self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode],
               order: Sequence[int]) -> SizeNode:  # fmt: skip
        """Whether the elements follow one another, the dimension order[0] first."""
        if len(order) != len(sizes):
            return self.wrap_bool(False)
        key = (tuple(order), *(s.value for s in sizes), *(s.value for s in strides))
        known: SizeNode | None = self.env.nodes.get(key)
        return known or self.env.nodes.setdefault(
            key, self._bool(self._follows(sizes, strides, order)))

    def _follows(self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode],
                 order: Sequence[int]) -> Condition:  # fmt: skip
        n, parts = as_expr(1), list[Condition]()
        for d in order:
            size = sizes[d].whole()
            parts.append(junction(False, equal(size, 1), equal(strides[d].whole(), n)))
            n = n * size
        empty = (equal(s.whole(), 0) for s in sizes)
        return junction(False, *empty, junction(True, *parts))

    def is_channels_last_strides_2d(self, sizes: Sequence[SizeNode],
                                    strides: Sequence[SizeNode]) -> SizeNode:  # fmt: skip
        return self._channels_last(sizes, strides, (1, 3, 2, 0))

    def is_channels_last_strides_3d(self, sizes: Sequence[SizeNode],
                                    strides: Sequence[SizeNode]) -> SizeNode:  # fmt: skip
        return self._channels_last(sizes, strides, (1, 4, 3, 2, 0))

    def _channels_last(self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode],
                       order: Sequence[int]) -> SizeNode:  # fmt: skip
        """As torch decides whether strides are those of channels last: each is at least what lies
        inside of it, and the channels' is not 0."""
        if len(order) != len(sizes):
            return self.wrap_bool(False)
        decide, inner = self.env.decide, as_expr(0)
        channels = strides[1].whole()
        if decide(equal(channels, 0)):
            return self.wrap_bool(False)
        for d in order:
            size, step = sizes[d].whole(), strides[d].whole()
            if decide(equal(size, 0)) or decide(less(step, inner)):
                return self.wrap_bool(False)
            if d == 0 and decide(equal(inner, channels)):
                return self.wrap_bool(False)
            inner = step * size
        return self.wrap_bool(True)

    def is_non_overlapping_and_dense(self, sizes: Sequence[SizeNode],
                                     strides: Sequence[SizeNode]) -> SizeNode:  # fmt: skip
        rank = len(sizes)
        order = sorted(range(rank), key=lambda d: (strides[d].hint, -d))
        order = [d for d in order if sizes[d].hint > 1] + [d for d in order if sizes[d].hint <= 1]
        return self._dense(sizes, strides, order)

    def is_non_overlapping_and_dense_indicator(
        self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]
    ) -> SizeNode:
        return self.wrap_int(int(self.is_non_overlapping_and_dense(sizes, strides).bool_()))


def _bits(fn: Callable[[int, int], int]) -> Callable[[SizeNode, SizeNode], SizeNode]:
    return lambda self, other: self.wrap_int(fn(int(self.fixed()), int(other.fixed())))


for _name in ("and", "or", "xor"):
    setattr(SizeNode, f"bitwise_{_name}", _bits(getattr(operator, f"__{_name}__")))


def _math(name: str) -> Callable[[SizeNode], SizeNode]:
    fn = getattr(math, name)
    return lambda self: self._float(fn, self)


for _name in ("sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "log2"):
    setattr(SizeNode, f"sym_{_name}", _math(_name))


def _is_small(*nodes: SizeNode) -> bool:
    """Whether sizes of any tensor that fits into memory stay integers when they become floats."""
    return all(abs(n.hint) < 2**40 for n in nodes)


# ---------------------------------------------------------------- torch's numbers
_SYM_INT: Any = torch.SymInt
_SYM_FLOAT: Any = torch.SymFloat


def symbolic(env: SizeEnv, value: Number, hint: float = 0.0) -> Any:
    """A number as torch takes it: an int, or a torch.SymInt; a float, or a torch.SymFloat.

    hint: the value now of a float.
    """
    if isinstance(value, Expr):
        e = env.simplify(value)
        return e.n if isinstance(e, Int) else _SYM_INT(SizeNode(env, e, env.hint(e)))
    return value if isinstance(value, float) else _SYM_FLOAT(SizeNode(env, value, hint))


def node_of(x: object) -> SizeNode | None:
    """Our node inside of a symbolic number."""
    node = getattr(x, "node", None)
    return node if isinstance(node, SizeNode) else None


def expr_of(x: Any) -> Expr:
    """A size, an int or one of our torch.SymInts, as an expression. Errors: TypeError."""
    if type(x) is int:
        return as_expr(x)
    node = node_of(x)
    if node is None or not isinstance(node.value, Expr):
        raise TypeError(f"{x!r} is no size of ours")
    return node.env.simplify(node.value)


def plain(x: Any) -> Any:
    """A symbolic number that is constant by what is known as a Python number; else `x`."""
    node = node_of(x)
    if node is None:
        return x
    value = node.value
    if isinstance(value, Expr):
        value = node.env.simplify(value)
        return value.n if isinstance(value, Int) else x
    return value if isinstance(value, bool | float) else x


def is_number(x: object) -> bool:
    """Whether a number is symbolic, and ours."""
    return isinstance(x, torch.SymInt | torch.SymFloat) and node_of(x) is not None


def fresh(x: Any) -> Any:
    """A size as all that is known by now lets it be."""
    node = node_of(x)
    if node is None or not isinstance(node.value, Expr):
        return x
    return symbolic(node.env, node.value)


def hint_of(x: Any) -> Any:
    """The value now of a number that may be symbolic."""
    node = node_of(x)
    return x if node is None else node.hint
