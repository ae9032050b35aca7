"""Expr: integer index algebra, canonical by construction.

An Expr is a polynomial over atoms (symbols, floor divisions, remainders, values loaded at run
time). Construction expands and simplifies with the bounds of the atoms, so equal expressions are
nearly always the same object. Python's operators build; nothing here evaluates lazily.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd
from typing import ClassVar

from torchweld.base.intern import Interned

Monomial = tuple["Expr", ...]


class Expr(Interned):
    """An integer expression. `lo` and `hi` are proven inclusive bounds, None if unknown."""

    __slots__ = ("_text", "hi", "lo")
    _text: str
    lo: int | None
    hi: int | None

    def text(self) -> str:
        return self._text

    __repr__ = text

    def __add__(self, other: Expr | int) -> Expr:
        return _add(self, as_expr(other), 1)

    __radd__ = __add__

    def __sub__(self, other: Expr | int) -> Expr:
        return _add(self, as_expr(other), -1)

    def __rsub__(self, other: int) -> Expr:
        return _add(as_expr(other), self, -1)

    def __neg__(self) -> Expr:
        return _add(ZERO, self, -1)

    def __mul__(self, other: Expr | int) -> Expr:
        return _mul(self, as_expr(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: Expr | int) -> Expr:
        return _floordiv(self, as_expr(other))

    def __mod__(self, other: Expr | int) -> Expr:
        return _mod(self, as_expr(other))

    @property
    def value(self) -> int:
        """The integer, when this is a constant. Errors: TypeError otherwise."""
        raise TypeError(f"{self.text()} is not a constant")

    @property
    def is_const(self) -> bool:
        return isinstance(self, Int)


class Int(Expr):
    """A constant."""

    __slots__ = ("n",)
    _fields: ClassVar[tuple[str, ...]] = ("n",)
    n: int

    def _derive(self) -> None:
        _set(self, str(self.n), self.n, self.n)

    @property
    def value(self) -> int:
        return self.n


class Sym(Expr):
    """A named integer: a loop index or a size, with its bounds."""

    __slots__ = ("name", "smax", "smin")
    _fields: ClassVar[tuple[str, ...]] = ("name", "smin", "smax")
    name: str
    smin: int | None
    smax: int | None

    def _derive(self) -> None:
        _set(self, self.name, self.smin, self.smax)


class Ind(Expr):
    """The value of an integer scalar at run time (an index that was loaded), with its bounds."""

    __slots__ = ("scalar", "smax", "smin")
    _fields: ClassVar[tuple[str, ...]] = ("scalar", "smin", "smax")
    scalar: Interned
    smin: int
    smax: int

    def _derive(self) -> None:
        _set(self, f"<{self.scalar.text()}>", self.smin, self.smax)  # type: ignore[attr-defined]


class FloorDiv(Expr):
    """Floor of num / den; den is positive."""

    __slots__ = ("den", "num")
    _fields: ClassVar[tuple[str, ...]] = ("num", "den")
    num: Expr
    den: Expr

    def _derive(self) -> None:
        lo = hi = None
        if isinstance(self.den, Int):
            lo = None if self.num.lo is None else self.num.lo // self.den.n
            hi = None if self.num.hi is None else self.num.hi // self.den.n
        _set(self, f"({self.num.text()})//{_paren(self.den)}", lo, hi)


class Mod(Expr):
    """num - den * floor(num / den); den is positive."""

    __slots__ = ("den", "num")
    _fields: ClassVar[tuple[str, ...]] = ("num", "den")
    num: Expr
    den: Expr

    def _derive(self) -> None:
        hi = None if self.den.hi is None else self.den.hi - 1
        _set(self, f"({self.num.text()})%{_paren(self.den)}", 0, hi)


class Poly(Expr):
    """A sum of integer multiples of products of atoms; terms sorted by text."""

    __slots__ = ("terms",)
    _fields: ClassVar[tuple[str, ...]] = ("terms",)
    terms: tuple[tuple[int, Monomial], ...]

    def _derive(self) -> None:
        lo: int | None = 0
        hi: int | None = 0
        for coef, factors in self.terms:
            a, b = _bounds_of_term(coef, factors)
            lo = None if lo is None or a is None else lo + a
            hi = None if hi is None or b is None else hi + b
        _set(self, _poly_text(self.terms), lo, hi)


def _set(e: Expr, text: str, lo: int | None, hi: int | None) -> None:
    object.__setattr__(e, "_text", text)
    object.__setattr__(e, "lo", lo)
    object.__setattr__(e, "hi", hi)


def _paren(e: Expr) -> str:
    return e.text() if isinstance(e, Int | Sym) else f"({e.text()})"


def _poly_text(terms: tuple[tuple[int, Monomial], ...]) -> str:
    parts = []
    for coef, factors in terms:
        body = "*".join(f.text() for f in factors)
        if not factors:
            parts.append(str(coef))
        elif coef == 1:
            parts.append(body)
        else:
            parts.append(f"{coef}*{body}")
    return " + ".join(parts).replace("+ -", "- ")


def _bounds_of_term(coef: int, factors: Monomial) -> tuple[int | None, int | None]:
    lo: int | None = coef
    hi: int | None = coef
    for f in factors:
        if lo is None or hi is None or f.lo is None:
            return None, None
        if f.hi is None:
            # an unbounded non-negative factor keeps only the sign that is known
            lo, hi = (0, None) if lo >= 0 and f.lo >= 0 else (None, None)
            if lo is None:
                return None, None
            continue
        ends = (lo * f.lo, lo * f.hi, hi * f.lo, hi * f.hi)
        lo, hi = min(ends), max(ends)
    return lo, hi


ZERO: Expr = Int.make(0)
ONE: Expr = Int.make(1)


def as_expr(x: Expr | int) -> Expr:
    return x if isinstance(x, Expr) else Int.make(int(x))


def index_symbol(name: str, size: Expr) -> Sym:
    """The loop index `name` that runs over 0 <= name < size."""
    return Sym.make(name, 0, None if size.hi is None else max(size.hi - 1, 0))


def terms_of(e: Expr) -> dict[Monomial, int]:
    """The polynomial of `e`: product of atoms -> integer coefficient. () is the constant."""
    match e:
        case Int():
            return {(): e.n} if e.n else {}
        case Poly():
            return {factors: coef for coef, factors in e.terms}
        case _:
            return {(e,): 1}


def from_terms(terms: Mapping[Monomial, int]) -> Expr:
    """The canonical Expr of a polynomial."""
    kept = {m: c for m, c in terms.items() if c}
    if len(kept) > 1:
        kept = _join_div_mod(kept)
    if not kept:
        return ZERO
    if len(kept) == 1:
        ((factors, coef),) = kept.items()
        if not factors:
            return Int.make(coef)
        if coef == 1 and len(factors) == 1:
            return factors[0]
    ordered = sorted(kept.items(), key=lambda mc: (not mc[0], [f.text() for f in mc[0]]))
    return Poly.make(tuple((c, m) for m, c in ordered))


def _join_div_mod(terms: dict[Monomial, int]) -> dict[Monomial, int]:
    """b*(x//b) + x%b is x, for every common multiple."""
    for m, c in terms.items():
        if len(m) == 1 and isinstance(m[0], Mod) and isinstance(m[0].den, Int):
            x, b = m[0].num, m[0].den.n
            quotient = terms_of(_floordiv(x, Int.make(b)))
            if quotient and all(terms.get(k, 0) == v * c * b for k, v in quotient.items()):
                rest = {k: v for k, v in terms.items() if k != m and k not in quotient}
                return terms_of(from_terms(_sum(rest, terms_of(x), c)))
    return terms


def _sum(a: Mapping[Monomial, int], b: Mapping[Monomial, int], scale: int) -> dict[Monomial, int]:
    out = dict(a)
    for m, c in b.items():
        out[m] = out.get(m, 0) + scale * c
    return out


def _add(a: Expr, b: Expr, scale: int) -> Expr:
    if isinstance(a, Int) and isinstance(b, Int):
        return Int.make(a.n + scale * b.n)
    return from_terms(_sum(terms_of(a), terms_of(b), scale))


def _mul(a: Expr, b: Expr) -> Expr:
    if isinstance(a, Int) and isinstance(b, Int):
        return Int.make(a.n * b.n)
    out: dict[Monomial, int] = {}
    for ma, ca in terms_of(a).items():
        for mb, cb in terms_of(b).items():
            m = tuple(sorted((*ma, *mb), key=lambda e: e.text()))
            out[m] = out.get(m, 0) + ca * cb
    return from_terms(out)


def _floordiv(a: Expr, b: Expr) -> Expr:
    if b is ONE or a is ZERO:
        return a
    if not isinstance(b, Int):
        return ONE if a is b else FloorDiv.make(a, b)
    if b.n <= 0:
        raise ValueError(f"division of {a.text()} by {b.n}")
    if isinstance(a, Int):
        return Int.make(a.n // b.n)
    terms = terms_of(a)
    exact = {m: c // b.n for m, c in terms.items() if c % b.n == 0}
    rest = from_terms({m: c for m, c in terms.items() if c % b.n})
    if rest.lo is not None and rest.hi is not None and rest.lo // b.n == rest.hi // b.n:
        return from_terms(_sum(exact, terms_of(Int.make(rest.lo // b.n)), 1))
    return from_terms(_sum(exact, terms_of(_div_atom(rest, b.n)), 1))


def _div_atom(a: Expr, b: int) -> Expr:
    """a // b where no term of `a` is a multiple of b: share a common factor, flatten nesting."""
    terms = terms_of(a)
    constant = terms.get((), 0)
    common = b
    for m, c in terms.items():
        if m:
            common = gcd(common, c)
    if common > 1:
        inner = {m: c // common for m, c in terms.items() if m}
        inner[()] = constant // common
        return _floordiv(from_terms(inner), Int.make(b // common))
    if isinstance(a, FloorDiv) and isinstance(a.den, Int):
        return _floordiv(a.num, Int.make(a.den.n * b))
    return FloorDiv.make(a, Int.make(b))


def _mod(a: Expr, b: Expr) -> Expr:
    if b is ONE or a is ZERO:
        return ZERO
    if not isinstance(b, Int):
        return ZERO if a is b else Mod.make(a, b)
    if isinstance(a, Int):
        return Int.make(a.n % b.n)
    rest = from_terms({m: c % b.n if c % b.n <= b.n // 2 or c > 0 else c % b.n - b.n
                       for m, c in terms_of(a).items()})  # fmt: skip
    if rest.lo is not None and rest.hi is not None and rest.lo // b.n == rest.hi // b.n:
        return rest - (rest.lo // b.n) * b.n
    terms = terms_of(rest)
    common = b.n
    for c in terms.values():
        common = gcd(common, c)
    if common > 1:
        inner = from_terms({m: c // common for m, c in terms.items()})
        return _mul(Int.make(common), _mod(inner, Int.make(b.n // common)))
    if isinstance(rest, Mod) and isinstance(rest.den, Int) and rest.den.n % b.n == 0:
        return _mod(rest.num, b)
    return Mod.make(rest, b)


def rewrite(e: Expr, leaf: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild `e` with every atom for which `leaf` answers replaced by the answer."""
    hit = leaf(e)
    if hit is not None:
        return hit
    match e:
        case Poly():
            total: Expr = ZERO
            for coef, factors in e.terms:
                product: Expr = Int.make(coef)
                for f in factors:
                    product = product * rewrite(f, leaf)
                total = total + product
            return total
        case FloorDiv():
            return rewrite(e.num, leaf) // rewrite(e.den, leaf)
        case Mod():
            return rewrite(e.num, leaf) % rewrite(e.den, leaf)
        case _:
            return e


def substitute(e: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """`e` with symbols (or any atoms) replaced."""
    return rewrite(e, values.get)


def atoms(e: Expr) -> set[Expr]:
    """The Sym and Ind leaves of `e`."""
    match e:
        case Int():
            return set()
        case Poly():
            return set().union(*(atoms(f) for _, m in e.terms for f in m))
        case FloorDiv() | Mod():
            return atoms(e.num) | atoms(e.den)
        case _:
            return {e}


def evaluate(e: Expr, env: Mapping[Expr, int]) -> int:
    """The integer value of `e` with its atoms given. Errors: KeyError for a missing atom."""
    match e:
        case Int():
            return e.n
        case Poly():
            total = 0
            for coef, factors in e.terms:
                for f in factors:
                    coef *= evaluate(f, env)
                total += coef
            return total
        case FloorDiv():
            return evaluate(e.num, env) // evaluate(e.den, env)
        case Mod():
            return evaluate(e.num, env) % evaluate(e.den, env)
        case _:
            return env[e]


def stride_of(e: Expr, sym: Expr) -> Expr | None:
    """The coefficient of `sym` when `e` is linear in it, else None."""
    total: Expr = ZERO
    for m, c in terms_of(e).items():
        count = sum(f is sym for f in m)
        if count == 0:
            if any(sym in atoms(f) for f in m):
                return None
        elif count == 1 and not any(f is not sym and sym in atoms(f) for f in m):
            total = total + from_terms({tuple(f for f in m if f is not sym): c})
        else:
            return None
    return total
