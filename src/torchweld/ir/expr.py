"""Expr: integer index algebra, canonical by construction.

An Expr is a polynomial over atoms (symbols, floor divisions, remainders, values loaded at run
time). Construction expands and simplifies with the bounds of the atoms, so equal expressions are
nearly always the same object. Python's operators build; nothing here evaluates lazily.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from math import gcd
from typing import ClassVar

from torchweld.base.intern import Interned
from torchweld.ir import symbolic_div

Monomial = tuple["Expr", ...]


class Expr(Interned):
    """An integer expression. `lo` and `hi` are proven inclusive bounds, None if unknown."""

    __slots__ = ("_text", "hi", "lo")
    _text: str | None
    lo: int | None
    hi: int | None
    # identity, without a Python frame per dictionary lookup
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def text(self) -> str:
        """How it is written; made on first use."""
        if self._text is None:
            object.__setattr__(self, "_text", self._write())
            assert self._text is not None
        return self._text

    def _write(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.text()

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


class SizeSym(Sym):
    """A size that is known when a call begins. hint: its likely value; only costs depend on it."""

    __slots__ = ("hint",)
    _fields: ClassVar[tuple[str, ...]] = ("name", "smin", "smax", "hint")
    hint: int


class LoopSym(Sym):
    """A loop index below `size`, which is symbolic."""

    __slots__ = ("size",)
    _fields: ClassVar[tuple[str, ...]] = ("name", "smin", "smax", "size")
    size: Expr


class Ind(Expr):
    """The value of an integer scalar at run time (an index that was loaded), with its bounds."""

    __slots__ = ("scalar", "smax", "smin")
    _fields: ClassVar[tuple[str, ...]] = ("scalar", "smin", "smax")
    scalar: Interned
    smin: int
    smax: int

    def _derive(self) -> None:
        _set(self, None, self.smin, self.smax)

    def _write(self) -> str:
        return f"<{self.scalar.text()}>"  # type: ignore[attr-defined]


class FloorDiv(Expr):
    """Floor of num / den; den is positive."""

    __slots__ = ("den", "num")
    _fields: ClassVar[tuple[str, ...]] = ("num", "den")
    num: Expr
    den: Expr

    def _derive(self) -> None:
        n, d = self.num, self.den
        lo = hi = None
        if d.lo is not None and d.lo > 0:
            if n.lo is not None:
                lo = n.lo // d.lo if n.lo < 0 else 0 if d.hi is None else n.lo // d.hi
            if n.hi is not None:
                hi = n.hi // d.lo if n.hi >= 0 else -1 if d.hi is None else n.hi // d.hi
        _set(self, None, lo, hi)

    def _write(self) -> str:
        return f"{_paren(self.num)}//{_paren(self.den)}"


class Mod(Expr):
    """num - den * floor(num / den); den is positive."""

    __slots__ = ("den", "num")
    _fields: ClassVar[tuple[str, ...]] = ("num", "den")
    num: Expr
    den: Expr

    def _derive(self) -> None:
        hi = None if self.den.hi is None else self.den.hi - 1
        if self.num.lo is not None and self.num.lo >= 0 and self.num.hi is not None:
            hi = self.num.hi if hi is None else min(hi, self.num.hi)
        _set(self, None, 0, hi)

    def _write(self) -> str:
        return f"{_paren(self.num)}%{_paren(self.den)}"


class Poly(Expr):
    """A sum of integer multiples of products of atoms; terms sorted by text."""

    __slots__ = ("terms",)
    _fields: ClassVar[tuple[str, ...]] = ("terms",)
    terms: tuple[tuple[int, Monomial], ...]

    def _derive(self) -> None:
        _set(self, None, *_range(self.terms))

    def _write(self) -> str:
        return _poly_text(self.terms)


def _set(e: Expr, text: str | None, lo: int | None, hi: int | None) -> None:
    object.__setattr__(e, "_text", text)
    object.__setattr__(e, "lo", lo)
    object.__setattr__(e, "hi", hi)


def _paren(e: Expr) -> str:
    return e.text() if isinstance(e, Int | Sym | Ind) else f"({e.text()})"


def _poly_text(terms: tuple[tuple[int, Monomial], ...]) -> str:
    """A term with a plus comes first if there is one: `3 - i`, not `-i + 3`."""
    out = ""
    first = next((t for t in terms if t[0] > 0), terms[0])
    for coef, factors in (first, *(t for t in terms if t is not first)):
        size = abs(coef)
        alone = size == 1 and len(factors) == 1 and (coef > 0 or out != "")
        body = [f.text() if alone else _paren(f) for f in factors]
        if size != 1 or not factors:
            body.insert(0, str(size))
        sign = ("-" if coef < 0 else "") if not out else (" - " if coef < 0 else " + ")
        out += sign + "*".join(body)
    return out


def _range(terms: Iterable[tuple[int, Monomial]]) -> tuple[int | None, int | None]:
    """Proven bounds of a sum of terms."""
    lo: int | None = 0
    hi: int | None = 0
    for coef, factors in terms:
        a, b = _range_of_term(coef, factors)
        lo = None if lo is None or a is None else lo + a
        hi = None if hi is None or b is None else hi + b
    return lo, hi


def _range_of_term(coef: int, factors: Monomial) -> tuple[int | None, int | None]:
    if len(factors) == 1:
        f = factors[0]
        a = None if f.lo is None else coef * f.lo
        b = None if f.hi is None else coef * f.hi
        return (a, b) if coef > 0 else (b, a)
    if all(f.lo is not None and f.hi is not None for f in factors):
        lo = hi = coef
        for f in factors:
            ends = (lo * (f.lo or 0), lo * (f.hi or 0), hi * (f.lo or 0), hi * (f.hi or 0))
            lo, hi = min(ends), max(ends)
        return lo, hi
    if any(f.lo is None or f.lo < 0 for f in factors):
        return None, None
    least = coef  # all factors are non-negative, and one at least has no upper bound
    for f in factors:
        least *= f.lo or 0
    return (least, None) if coef > 0 else (None, least)


@lru_cache(maxsize=4096)
def _int(n: int) -> Int:
    """Constants are made all the time: keep recent ones alive."""
    return Int.make(n)


ZERO: Expr = Int.make(0)
ONE: Expr = Int.make(1)


def as_expr(x: Expr | int) -> Expr:
    return x if isinstance(x, Expr) else _int(int(x))


def index_symbol(name: str, size: Expr) -> Sym:
    """The loop index `name` that runs over 0 <= name < size."""
    hi = None if size.hi is None else max(size.hi - 1, 0)
    if isinstance(size, Int):
        return Sym.make(name, 0, hi)
    return LoopSym.make(name, 0, hi, size)


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
    if len(kept) > 1 and _split_terms(kept):
        kept = _join(kept)
    if not kept:
        return ZERO
    if len(kept) == 1:
        ((factors, coef),) = kept.items()
        if not factors:
            return _int(coef)
        if coef == 1 and len(factors) == 1:
            return factors[0]
        return Poly.make(((coef, factors),))
    return Poly.make(tuple((kept[m], m) for m in sorted(kept, key=_order)))


def _order(m: Monomial) -> str:
    """Sort key of a term: by text, the constant last."""
    if len(m) == 1:
        return m[0].text()
    return "*".join(f.text() for f in m) if m else "\x7f"


def _split_terms(terms: Iterable[Monomial]) -> int:
    """How many terms are a quotient or a remainder; of sizes, with all that are inside of them."""
    n = 0
    for m in terms:
        if len(m) == 1 and isinstance(m[0], FloorDiv | Mod) and m[0].den.is_const:
            n += 1
            continue
        for f in m:
            if isinstance(f, FloorDiv | Mod) and (f.__class__ is Mod or not f.den.is_const):
                n += 1 if f.den.is_const else 1 + _split_terms(terms_of(f.num))
    return n


def _join(terms: dict[Monomial, int]) -> dict[Monomial, int]:
    """Put quotients and remainders of one number together, while that makes the sum simpler.

    b*(x//b) + x%b -> x            k*b*(x//b) - k*x -> -k*(x%b)
    b*((x//b)%k) + x%b -> x%(b*k)
    """
    size = (_split_terms(terms), len(terms))
    for m, c in terms.items():
        for better in _joined(terms, m, c):
            found = {m: c for m, c in better.items() if c}
            if (_split_terms(found), len(found)) < size:
                return _join(found)
    return terms


def _joined(terms: dict[Monomial, int], m: Monomial, c: int) -> Iterator[dict[Monomial, int]]:
    """Other ways to write the sum, each by an identity on the term `m`."""
    yield from symbolic_div.joined(terms, m, c)
    if len(m) != 1 or not isinstance(m[0], FloorDiv | Mod) or not isinstance(m[0].den, Int):
        return
    x, b = m[0].num, m[0].den
    rest = {k: v for k, v in terms.items() if k != m}
    if isinstance(m[0], FloorDiv):
        if c % b.n == 0 and any(k in rest for k in terms_of(x)):
            k = c // b.n  # c*(x//b) = k*x - k*(x%b)
            yield _sum(_sum(rest, terms_of(x), k), terms_of(_mod(x, b)), -k)
        return
    quotient = _floordiv(x, b)
    if any(k in rest for k in terms_of(quotient)):
        yield _sum(_sum(rest, terms_of(x), c), terms_of(quotient), -c * b.n)
    for other, v in rest.items():
        if v == c * b.n and len(other) == 1 and isinstance(other[0], Mod):
            outer = other[0].den
            if isinstance(outer, Int) and _mod(quotient, outer) is other[0]:
                whole = _mod(x, _int(b.n * outer.n))
                yield _sum({j: u for j, u in rest.items() if j != other}, terms_of(whole), c)


def _sum(a: Mapping[Monomial, int], b: Mapping[Monomial, int], scale: int) -> dict[Monomial, int]:
    out = dict(a)
    for m, c in b.items():
        out[m] = out.get(m, 0) + scale * c
    return out


def _add(a: Expr, b: Expr, scale: int) -> Expr:
    if isinstance(b, Int):
        if b.n == 0:
            return a
        if isinstance(a, Int):
            return _int(a.n + scale * b.n)
    elif a is ZERO and scale == 1:
        return b
    return from_terms(_sum(terms_of(a), terms_of(b), scale))


def _mul(a: Expr, b: Expr) -> Expr:
    if isinstance(a, Int):
        a, b = b, a
    if isinstance(b, Int):
        return _scale(a, b.n)
    out: dict[Monomial, int] = {}
    for ma, ca in terms_of(a).items():
        for mb, cb in terms_of(b).items():
            m = tuple(sorted((*ma, *mb), key=Expr.text))
            out[m] = out.get(m, 0) + ca * cb
    return from_terms(out)


def _scale(a: Expr, n: int) -> Expr:
    if n in (0, 1):
        return a if n else ZERO
    if isinstance(a, Int):
        return _int(a.n * n)
    if isinstance(a, Poly):
        scaled = tuple((c * n, m) for c, m in a.terms)
        only = scaled[0][0] == 1 and len(scaled) == len(scaled[0][1]) == 1
        return scaled[0][1][0] if only else Poly.make(scaled)
    return Poly.make(((n, (a,)),))


def _residue(c: int, b: int) -> int:
    """A representative of c modulo b with the sign of c where that is the smaller one."""
    r = c % b
    return r - b if c < 0 and r > b // 2 else r


def _one_quotient(terms: Mapping[Monomial, int], b: int) -> int | None:
    """The value of sum // b if the bounds show that there is only one."""
    lo = hi = 0
    for m, c in terms.items():
        if not m:
            lo += c
            hi += c
            continue
        least, most = _range_of_term(c, m)
        if least is None or most is None:
            return None
        lo += least
        hi += most
    return lo // b if lo // b == hi // b else None


def _split(terms: Mapping[Monomial, int], b: int) -> tuple[int, Expr, Expr] | None:
    """(g, x, r) with sum = g*x + r, 0 <= r < g and g a divisor of b, if there is such a g."""
    tried = {gcd(c, b) for m, c in terms.items() if m} - {1, b}
    for g in sorted(tried, reverse=True):
        rest = {m: c % g if not m else c for m, c in terms.items() if c % g}
        k = _one_quotient(rest, g)
        if k is not None:
            big = {m: (c - rest[m] if not m and m in rest else c) // g
                   for m, c in terms.items() if m not in rest or not m}  # fmt: skip
            big[()] = big.get((), 0) + k
            rest[()] = rest.get((), 0) - k * g
            return g, from_terms(big), from_terms(rest)
    return None


def _floordiv(a: Expr, b: Expr) -> Expr:
    if b is ONE or a is ZERO:
        return a
    if not isinstance(b, Int):
        return ONE if a is b else symbolic_div.symbolic_div(a, b)[0]
    n = b.n
    if n <= 0:
        raise ValueError(f"division of {a.text()} by {n}")
    if isinstance(a, Int):
        return _int(a.n // n)
    exact: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for m, c in terms_of(a).items():
        r = _residue(c, n) if m else c % n
        if r:
            rest[m] = r
        if c != r:
            exact[m] = (c - r) // n
    k = _one_quotient(rest, n)
    if k is not None:
        exact[()] = exact.get((), 0) + k
        return from_terms(exact)
    q = _quotient(rest, n)
    return from_terms(_sum(exact, terms_of(q), 1)) if exact else q


def _quotient(terms: dict[Monomial, int], b: int) -> Expr:
    """sum // b, where no coefficient is a multiple of b and the bounds decide nothing."""
    split = _split(terms, b)
    if split is not None:
        g, x, _ = split
        return _floordiv(x, _int(b // g))
    c = terms.get((), 0)
    (m, k), *more = ((m, k) for m, k in terms.items() if m)
    if c and k == 1 and not more and len(m) == 1:
        x = m[0]
        if isinstance(x, FloorDiv) and isinstance(x.den, Int):  # halved again and again
            return _floordiv(x.num + c * x.den.n, _int(x.den.n * b))
    a = from_terms(terms)
    if isinstance(a, FloorDiv):
        if isinstance(a.den, Int):
            return _floordiv(a.num, _int(a.den.n * b))
        return _floordiv(_floordiv(a.num, _int(b)), a.den)
    if isinstance(a, Mod) and isinstance(a.den, Int) and a.den.n % b == 0:
        return _mod(_floordiv(a.num, _int(b)), _int(a.den.n // b))
    return FloorDiv.make(a, _int(b))


def _mod(a: Expr, b: Expr) -> Expr:
    if b is ONE or a is ZERO:
        return ZERO
    if not isinstance(b, Int):
        return ZERO if a is b else symbolic_div.symbolic_div(a, b)[1]
    n = b.n
    if n <= 0:
        raise ValueError(f"remainder of {a.text()} by {n}")
    if isinstance(a, Int):
        return _int(a.n % n)
    rest = {m: r for m, c in terms_of(a).items() if (r := _residue(c, n) if m else c % n)}
    only = _one_quotient(rest, n)
    if only is not None:
        rest[()] = rest.get((), 0) - only * n
        return from_terms(rest)
    for m, c in rest.items():
        if len(m) == 1 and isinstance(m[0], Mod):
            inner = m[0]
            if isinstance(inner.den, Int) and c * inner.den.n % n == 0:
                del rest[m]  # (c*(x%d) + y) % n = (c*x + y) % n if n divides c*d
                return _mod(from_terms(_sum(rest, terms_of(inner.num), c)), b)
    split = _split(rest, n)
    if split is not None:
        g, x, small = split
        return _scale(_mod(x, _int(n // g)), g) + small
    return Mod.make(from_terms(rest), b)


def rewrite(e: Expr, leaf: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild `e` with every atom for which `leaf` answers replaced by the answer."""
    hit = leaf(e)
    if hit is not None:
        return hit
    match e:
        case Poly():
            total: Expr = ZERO
            for coef, factors in e.terms:
                product: Expr = _int(coef)
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


def hinted(e: Expr) -> int | None:
    """The likely value of `e`, if it is made of sizes alone."""
    if isinstance(e, Int):
        return e.n
    found = atoms(e)
    if not all(isinstance(a, SizeSym) for a in found):
        return None
    return evaluate(e, {a: a.hint for a in found if isinstance(a, SizeSym)})


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
