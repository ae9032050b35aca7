"""What an index expression or a body says, remembered per interned node.

Everything here is a pure function of interned nodes, so a bounded cache per function is safe; the
caches are what keeps fusion of a thousand nests well under half a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from torchweld.ir.expr import (
    ZERO,
    Expr,
    FloorDiv,
    Ind,
    Int,
    Mod,
    Poly,
    SizeSym,
    Sym,
    atoms,
    from_terms,
    hinted,
    terms_of,
)
from torchweld.ir.loop import Buffer, Index, Load, Op, Scalar, children, scalars_in, walk
from torchweld.ir.loop_ops import CHECKS

_CACHE = 1 << 15


@dataclass(frozen=True, slots=True)
class Linear:
    """How an expression depends on symbols: `strides` where linear, `bent` where not."""

    strides: Mapping[Sym, Expr]
    bent: frozenset[Sym]

    def stride(self, sym: Sym) -> Expr | None:
        """The step per unit of `sym`: ZERO if absent, None if not linear in it."""
        return None if sym in self.bent else self.strides.get(sym, ZERO)


@lru_cache(_CACHE)
def symbols(e: Expr) -> frozenset[Expr]:
    """The leaves of `e` that vary in a kernel: loop indices and loaded values, not sizes."""
    if isinstance(e, Sym | Ind):
        return frozenset(() if isinstance(e, SizeSym) else (e,))
    return frozenset(a for a in atoms(e) if not isinstance(a, SizeSym))


@lru_cache(_CACHE)
def linear(e: Expr) -> Linear:
    """The linear form of `e`; what stands inside an Ind is not looked at."""
    steps: dict[Sym, dict[tuple[Expr, ...], int]] = {}
    bent: set[Sym] = set()
    for factors, coef in terms_of(e).items():
        plain = [f for f in factors if isinstance(f, Sym) and not isinstance(f, SizeSym)]
        for f in factors:
            if not isinstance(f, Sym):
                bent |= {s for s in symbols(f) if isinstance(s, Sym)}
        for s in plain:
            rest = tuple(f for f in factors if f is not s)
            if len(rest) + 1 != len(factors):
                bent.add(s)
            row = steps.setdefault(s, {})
            row[rest] = row.get(rest, 0) + coef
    strides = {s: from_terms(row) for s, row in steps.items()}
    # a product of two loop indices is linear in neither
    own = set(strides)
    bent |= {s for s, e in strides.items() if symbols(e) & own}
    return Linear(strides, frozenset(bent))


@lru_cache(_CACHE)
def digits(e: Expr) -> tuple[int, tuple[tuple[int, Sym], ...]] | None:
    """`e` as constant + mixed-radix number: (stride, symbol), least first; None if it is not one.

    Equal values then have equal digits: each stride exceeds what the smaller ones can add up to.
    """
    form = linear(e)
    if form.bent or len(symbols(e)) != len(form.strides) or len(atoms(e)) > len(form.strides):
        return None
    found: list[tuple[int, Sym]] = []
    for s, step in form.strides.items():
        if not isinstance(step, Int):
            return None
        found.append((step.n, s))
    found.sort(key=lambda x: abs(x[0]))
    span = 0
    for i, (n, s) in enumerate(found):
        if abs(n) <= span:
            return None
        if s.smax is None and i + 1 < len(found):
            return None
        span += abs(n) * (s.smax or 0)
    return terms_of(e).get((), 0), tuple(found)


@lru_cache(_CACHE)
def address(strides: tuple[Expr, ...], index: tuple[Expr, ...]) -> Expr:
    """The element distance from the buffer's offset."""
    total: Expr = ZERO
    for step, e in zip(strides, index, strict=True):
        total = total + step * e
    return total


@dataclass(frozen=True, slots=True)
class Body:
    """What a scalar holds: its distinct loads, index values, cost per point, and whether it fails.

    `checks`: an index check that may raise; `exprs`: the expressions of Index nodes.
    """

    loads: tuple[Load, ...]
    buffers: frozenset[Buffer]
    exprs: tuple[Expr, ...]
    flops: int
    size: int
    dear: bool
    checks: bool


_COST = {
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p"), 20),
    **dict.fromkeys(("tanh", "sigmoid"), 20),
    "philox": 100,
    **dict.fromkeys(("erf", "erfc", "sin", "cos", "tan", "asin", "acos", "atan", "atan2"), 30),
    **dict.fromkeys(("sinh", "cosh", "asinh", "acosh", "atanh", "pow", "lgamma", "erfinv"), 60),
    **dict.fromkeys(("div", "sqrt", "rsqrt", "hypot"), 4),
    **dict.fromkeys(("floor_div", "trunc_div", "mod", "fmod", "ipow"), 8),
}  # fmt: skip
_DEAR = 15


@lru_cache(_CACHE)
def body_facts(x: Scalar) -> Body:
    """The facts of a body, by one walk over its distinct nodes."""
    found: list[Load] = []
    exprs: list[Expr] = []
    flops = size = 0
    dear = checks = False
    for n in walk(x):
        size += 1
        if isinstance(n, Load):
            found.append(n)
        elif isinstance(n, Index):
            exprs.append(n.expr)
        elif isinstance(n, Op):
            cost = _COST.get(n.name, 1)
            flops += cost
            dear = dear or cost >= _DEAR
            checks = checks or n.name in CHECKS
    buffers = frozenset(ld.buffer for ld in found)
    return Body(tuple(found), buffers, tuple(exprs), flops, size, dear, checks)


@lru_cache(_CACHE)
def flops_along(x: Scalar, sym: Expr) -> int:
    """The cost of what changes along `sym`: the rest is computed outside of that loop."""
    moving: set[Scalar] = set()
    total = 0
    for n in walk(x):
        own = n.index if isinstance(n, Load) else (n.expr,) if isinstance(n, Index) else ()
        below = children(n)
        if any(sym in symbols(e) for e in own) or any(c in moving for c in below):
            moving.add(n)
            total += _COST.get(n.name, 1) if isinstance(n, Op) else 0
    return total


@lru_cache(_CACHE)
def index_scalars(index: tuple[Expr, ...]) -> tuple[Scalar, ...]:
    """The run-time scalars that a store index depends on."""
    return tuple(s for e in index for s in scalars_in(e))


class Substitution:
    """Replaces symbols in expressions and scalars; remembers what it did."""

    __slots__ = ("_exprs", "_scalars", "values")

    def __init__(self, values: Mapping[Expr, Expr]) -> None:
        self.values = values
        self._exprs: dict[Expr, Expr] = {}
        self._scalars: dict[Scalar, Scalar] = {}

    def expr(self, e: Expr) -> Expr:
        if isinstance(e, Int):
            return e
        hit = self._exprs.get(e)
        if hit is None:
            hit = self._exprs[e] = self._expr(e)
        return hit

    def _expr(self, e: Expr) -> Expr:
        match e:
            case Sym():
                return self.values.get(e, e)
            case Ind():
                assert isinstance(e.scalar, Scalar)
                return Ind.make(self.scalar(e.scalar), e.smin, e.smax)
            case FloorDiv():
                return self.expr(e.num) // self.expr(e.den)
            case Mod():
                return self.expr(e.num) % self.expr(e.den)
            case Poly():
                if not any(self.expr(s) is not s for s in atoms(e)):
                    return e
                return self._poly(e)
        return e

    def _poly(self, e: Poly) -> Expr:
        total: Expr = ZERO
        for coef, factors in e.terms:
            product: Expr = Int.make(coef)
            for f in factors:
                product = product * self.expr(f)
            total = total + product
        return total

    def index(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple([self.expr(e) for e in index])

    def scalar(self, x: Scalar) -> Scalar:
        hit = self._scalars.get(x)
        if hit is None:
            hit = self._scalars[x] = self._scalar(x)
        return hit

    def _scalar(self, x: Scalar) -> Scalar:
        match x:
            case Op():
                args = tuple([self.scalar(a) for a in x.args])
                return x if args == x.args else Op.make(x.name, args, x.dtype)
            case Load():
                return self.load(x, self.index(x.index))
            case Index():
                return Index.make(self.expr(x.expr))
        return x

    def load(self, x: Load, index: tuple[Expr, ...]) -> Scalar:
        """The load at its new index; subclasses replace loads of chosen buffers."""
        return x if index == x.index else Load.make(x.buffer, index)


class BufferSwap(Substitution):
    """A Substitution that also renames buffers."""

    __slots__ = ("buffers",)

    def __init__(self, buffers: Mapping[Buffer, Buffer]) -> None:
        super().__init__({})
        self.buffers = buffers

    def load(self, x: Load, index: tuple[Expr, ...]) -> Scalar:
        return Load.make(self.buffers.get(x.buffer, x.buffer), index)


def points(axes: tuple[Expr, ...]) -> int:
    """How many points a loop nest likely has: a cost. A symbolic size counts with its hint."""
    total = 1
    for n in axes:
        total *= n.n if type(n) is Int else extent(n)
    return total


def extent(size: Expr) -> int:
    """The size, or a guess for a symbolic one: its hint, else 1024."""
    if isinstance(size, Int):
        return size.n
    likely = hinted(size)
    if likely is not None:
        return max(likely, 0)
    return min(size.hi, 1024) if size.hi is not None else 1024


def apart(e: Expr, f: Expr) -> bool:
    """Whether two indices of one dimension never meet."""
    below = e.hi is not None and f.lo is not None and e.hi < f.lo
    return below or (f.hi is not None and e.lo is not None and f.hi < e.lo)
