"""Sizes that vary from call to call: symbols, what is known of them, and what was decided by them.

A size is an Expr over Syms. Whoever asks a question whose answer depends on them ("are these
equal?", "is this at most 512?") gets the answer for the sizes at hand, and the answer becomes a
fact on which everything that was compiled relies. `SizeEnv.facts` are the weakest facts that say
all that was used: they are guarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torchweld.base.errors import Unsupported
from torchweld.base.loc import NOWHERE, Loc
from torchweld.ir.conditions import (
    OPERATIONS,
    Condition,
    Fact,
    Junction,
    Ratio,
    Relation,
    at_most,
    by_range,
    equal,
    fact_of,
    negation,
    normal,
    settled,
)
from torchweld.ir.expr import (
    Expr,
    FloorDiv,
    Int,
    Sym,
    atoms,
    evaluate,
    substitute,
    terms_of,
)
from torchweld.ir.residues import all_divided, residue_in
from torchweld.ir.size_bounds import Interval, Intervals, least, most
from torchweld.ir.size_values import Loose, Number, Rounded, is_computable, symbols_of

# What a size that varies is taken for where the answer only costs time.
USUAL = 64


@dataclass(frozen=True, slots=True)
class Size:
    """Where a symbol is read when the compiled code runs.

    kind: "size" or "stride" of a tensor, in dimension `dim`; "number": the input is an int. input:
    the position among the graph's inputs. hint: the value in the call that was captured.
    """

    symbol: Sym
    kind: str
    input: int
    dim: int
    hint: int


# ---------------------------------------------------------------- what is known
@dataclass(frozen=True, slots=True)
class Bounds:
    """lo <= symbol <= hi, and the lines that needed it."""

    lo: int | None
    hi: int | None
    lo_at: Loc = NOWHERE
    hi_at: Loc = NOWHERE


class UnknownSizeError(Unsupported):
    """The value of a number is needed that only the data decides."""


def let_be(c: Relation) -> None:
    """What is supposed is asked later."""


class SizeEnv:
    """The symbols of one capture, with their values now, and the facts that were used.

    where: the user's line that is executed now. hints: symbol -> value.
    """

    def __init__(self, where: Callable[[], Loc] = lambda: NOWHERE) -> None:
        self.where = where
        self.hints: dict[Expr, int] = {}
        self.bounds: dict[Sym, Bounds] = {}
        self.known_as: dict[Expr, Expr] = {}  # a symbol that is known by others
        self._simple: dict[Expr, Expr] = {}  # what was written so, as long as that stays
        self.version = 0  # grows with every fact
        self.residues: dict[Expr, tuple[int, int]] = {}  # symbol -> (d, r), where symbol % d is r
        self._solved: dict[Expr, Fact] = {}
        self._facts: dict[Relation, Loc] = {}
        self._intervals = Intervals()
        self._answer: Callable[[Condition], bool] | None = None
        self.unbacked: set[Expr] = set()  # symbols that only the data decides
        # told of what is supposed about these; it may raise
        self.asked: Callable[[Relation], None] = let_be
        # integers that are computed of floats when a call begins, and whether more may be
        self.computed: dict[Expr, Rounded] = {}
        self.computes = False
        self.remembered: dict[object, object] = {}  # what operators made of these sizes
        self._answers: dict[Relation, bool | None] = {}  # as long as no fact is added
        # numbers that were made of others, by how: what is asked of them does not change them
        self.nodes: dict[Any, Any] = {}

    # ------------------------------------------------------------ symbols
    def symbol(self, hint: int, lo: int | None = 2, hi: int | None = None) -> Sym:
        """A new symbol, whose value is `hint` now and always in these bounds."""
        made = Sym.make(f"s{len(self.hints)}", lo, hi)
        self.hints[made] = hint
        self.bounds[made] = Bounds(lo, hi, self.where(), self.where())
        return made

    def unknown(self, hint: int, lo: int | None = 0, hi: int | None = None) -> Sym:
        """A new symbol whose value only the data decides, always in these bounds.

        hint: a likely value, for what is a matter of cost alone, and for what is supposed.
        """
        made = Sym.make(f"u{len(self.hints)}", lo, hi)
        self.hints[made] = hint
        self.bounds[made] = Bounds(lo, hi, self.where(), self.where())
        self.unbacked.add(made)
        return made

    def rounded(self, fn: Callable[[float], int], value: Loose, now: float) -> Expr | None:
        """fn(value) as a symbol, which is computed when a call begins; None if it cannot be.

        now: the float.
        """
        written = self._written(value)
        for symbol, known in self.computed.items():
            if known.fn is fn and self._written(known.value) == written:
                return self.simplify(symbol)
        if not self.computes or not self.takes_facts or not is_computable(value) or any(
                map(self.is_open, symbols_of(value))):  # fmt: skip
            return None
        made = self.symbol(fn(now), None)
        self.computed[made] = Rounded(fn, value)
        if self.hint(made) < 2:  # which no size is that varies
            self.decide(equal(made, self.hint(made)))
        return self.simplify(made)

    def _written(self, x: Number) -> Number:
        """A number with every symbol that is known by others replaced."""
        match x:
            case Expr():
                return self.simplify(x)
            case Ratio():
                return Ratio(self.simplify(x.num), x.den)
            case Loose():
                return Loose(x.fn, tuple(map(self._written, x.args)))
        return x

    def hint(self, e: Expr) -> int:
        """The value of an expression now."""
        return e.n if isinstance(e, Int) else evaluate(e, self.hints)

    def least(self, e: Expr) -> int | None:
        """A lower bound of an expression, if one is known."""
        return self._intervals.of(self.simplify(e))[0]

    def simplify(self, e: Expr) -> Expr:
        """The expression with every symbol that is known by others replaced."""
        if not self.known_as:
            return e
        known = self._simple.get(e)
        if known is None:
            known = self._simple[e] = substitute(e, self.known_as)
        return known

    def symbol_of(self, e: Expr) -> Sym | None:
        """The symbol that a size is, though it may be known by its quotient; None if it is none."""
        e = self.simplify(e)
        if isinstance(e, Sym):
            return e
        for symbol in self.residues:
            if self.known_as[symbol] is e and isinstance(symbol, Sym):
                return symbol
        return None

    @contextmanager
    def answering(self, answer: Callable[[Condition], bool]) -> Iterator[None]:
        """Ask `answer` what does not follow from the facts, and take no facts down."""
        before, self._answer = self._answer, answer
        try:
            yield
        finally:
            self._answer = before

    def silent(self) -> AbstractContextManager[None]:
        """Answer by the values now, and take no facts down: for answers that nobody relies on."""
        return self.answering(self.truth_now)

    @property
    def takes_facts(self) -> bool:
        """Whether what is decided now becomes a fact."""
        return self._answer is None

    # ------------------------------------------------------------ questions
    def truth_now(self, c: Condition) -> bool:
        """Whether a condition holds for the values now."""
        match c:
            case bool():
                return c
            case Junction():
                return (all if c.every else any)(self.truth_now(p) for p in c.parts)
            case Relation():
                return OPERATIONS[c.op](self.hint(c.expr))

    def known(self, c: Condition) -> bool | None:
        """Whether a condition holds for all values that the facts allow; None: it depends."""
        match c:
            case bool():
                return c
            case Junction():
                answers = [self.known(p) for p in c.parts]
                if (not c.every) in answers:
                    return not c.every
                return None if None in answers else c.every
            case Relation():
                return self._known(c)

    def decide(self, c: Condition) -> bool:
        """Whether a condition holds; from now on that is a fact."""
        known = self.known(c)
        if known is not None:
            return known
        if self._answer is not None:
            return self._answer(c)
        if self.is_open(c):
            return self._supposed(c)
        now = self.truth_now(c)
        self._assume(c if now else negation(c))
        return now

    def is_open(self, c: Condition | Expr) -> bool:
        """Whether something depends on a symbol that only the data decides."""
        if not self.unbacked:
            return False
        match c:
            case Junction():
                return any(map(self.is_open, c.parts))
            case Relation():
                return self.is_open(c.expr)
            case Expr():
                return not self.unbacked.isdisjoint(atoms(self.simplify(c)))
        return False

    def given(self, c: Condition) -> None:
        """Take down what is known, and need not be asked."""
        asked, self.asked = self.asked, let_be
        try:
            self.suppose(c)
        finally:
            self.asked = asked

    def suppose(self, c: Condition) -> None:
        """Take down that a condition holds, whatever the values now are."""
        match c:
            case Junction(every=True):
                for part in c.parts:
                    self.suppose(part)
            case Junction():
                likely = (p for p in c.parts if not isinstance(p, bool) and self._likely(p))
                self.suppose(next(likely, c.parts[0]))
            case Relation() if self.known(c) is None:
                self.asked(c)
                self._add(normal(replace(c, expr=self.simplify(c.expr))))

    def _supposed(self, c: Condition) -> bool:
        """The likely answer to a question about what only the data decides, as a fact."""
        likely = self._likely(c)
        self.suppose(c if likely else negation(c))
        return likely

    def _likely(self, c: Condition) -> bool:
        """What is supposed: that sizes are none of the special ones, and not equal by chance."""
        known = self.known(c)
        if known is not None:
            return known
        match c:
            case Junction():
                return (all if c.every else any)(map(self._likely, c.parts))
            case Relation() if c.op != "<=" and self.is_open(c):
                return c.op == "!="
        return self.truth_now(c)

    def fixed(self, e: Expr) -> int:
        """The value of an expression; that it has this value is a fact from now on.

        Errors: UnknownSizeError where only the data decides it.
        """
        if self.is_open(e):
            self.asked(Relation("==", e - self.hint(e)))
            raise UnknownSizeError("W204", f"{e.text()} is a number that only the data decides")
        now = self.hint(e)
        self.decide(equal(e, now))
        return now

    def fixed_by(self, symbol: Expr) -> Fact | None:
        """The fact that leaves one value only for a symbol."""
        e = self.simplify(symbol)
        if isinstance(e, Int):
            found = self._solved.get(symbol)
            return found and replace(found, right=e)
        return None

    def _known(self, given: Relation) -> bool | None:
        if given in self._answers:
            return self._answers[given]
        c = normal(replace(given, expr=self.simplify(given.expr)))
        if c not in self._answers:
            self._answers[c] = self._answered(c)
        self._answers[given] = self._answers[c]
        return self._answers[c]

    def _answered(self, c: Relation) -> bool | None:
        if c in self._facts:
            return True
        if negation(c) in self._facts:
            return False
        for ranges in (self._intervals.of, self._range_by_facts):
            answer = by_range(c.op, *ranges(c.expr), c)
            if isinstance(answer, bool):
                return answer
        answer = settled(Relation(c.op, self._intervals.rebuilt(c.expr)))
        return answer if isinstance(answer, bool) else None

    def _range_by_facts(self, e: Expr) -> Interval:
        """The bounds of an expression, by those of its symbols and by what is below zero."""
        lo, hi = self._intervals.of(e)
        parts = terms_of(e).keys() - {()}
        for fact in self._facts:
            # what has no term in common with it says nothing that the bounds do not say
            if fact.op == "!=" or parts.isdisjoint(terms_of(fact.expr)):
                continue
            for sign in (1,) if fact.op == "<=" else (1, -1):
                below = fact.expr * sign  # <= 0
                hi = least(hi, self._intervals.of(e - below)[1])
                lo = most(lo, self._intervals.of(e + below)[0])
        return lo, hi

    # ------------------------------------------------------------ facts
    def _assume(self, c: Condition) -> None:
        match c:
            case Junction(every=True):
                for part in c.parts:
                    self.decide(part)
            case Junction():
                self.decide(next(p for p in c.parts if self.truth_now(p)))
            case Relation():
                self._add(normal(replace(c, expr=self.simplify(c.expr))))

    def _add(self, c: Relation) -> None:
        if c.op != "==":
            c = self._sharper(c)
        self.version += 1
        self._answers.clear()
        at = self.where()
        if c.op == "==" and (self._solve(c, at) or self._divide(c, at) or self._between(c, at)):
            return
        if c.op == "<=" and self._bound(c.expr, at):
            return
        self._take(c, at)

    def _sharper(self, c: Relation) -> Relation:
        """The same, as what is never on one side of 0 lets it be said: it is 0, or on the other."""
        lo, hi = self._range_by_facts(c.expr)
        if c.op == "<=":
            return Relation("==", c.expr) if lo == 0 else c
        side = c.expr if lo == 0 else -c.expr if hi == 0 else None
        return c if side is None else self._sharper(normal(Relation("<=", 1 - side)))

    def _take(self, c: Relation, at: Loc) -> None:
        self._facts[c] = at
        self._answers.clear()

    def _solve(self, c: Relation, at: Loc) -> bool:
        """Take an equality down as the value of a symbol, if it can be solved for one, or for the
        quotient by which one is known."""
        terms = terms_of(c.expr)
        found = {m[0]: n for m, n in terms.items() if len(m) == 1 and abs(n) == 1}
        sizes = {self._size_behind(x): x for x in found}
        for symbol in sorted(filter(None, sizes), key=self._solved_later):
            atom = sizes[symbol]
            rest = (atom * found[atom] - c.expr) * found[atom]
            if symbol in atoms(rest):
                continue
            if atom is not symbol:
                d, r = self.residues.pop(symbol)
                rest = rest * d + r
            self._solved[symbol] = Fact("==", symbol, rest, at)
            old = self.bounds.pop(symbol)
            self._intervals.forget(symbol)
            self._replace({symbol: rest})
            for bound in (at_most(old.lo, rest) if old.lo is not None else True,
                          at_most(rest, old.hi) if old.hi is not None else True):  # fmt: skip
                if isinstance(bound, Relation):
                    self._again(bound, at)
            return True
        return False

    def _size_behind(self, x: Expr) -> Sym | None:
        """The symbol that `x` is, or that is known by the quotient `x`."""
        if isinstance(x, FloorDiv) and isinstance(x.num, Sym) and isinstance(x.den, Int):
            return x.num if self.residues.get(x.num, (0, 0))[0] == x.den.n else None
        return x if isinstance(x, Sym) else None

    def _solved_later(self, symbol: Sym) -> tuple[bool, int]:
        """What only the data decides is solved for first, then the newest."""
        return symbol not in self.unbacked, -int(symbol.text()[1:])

    def _replace(self, known: dict[Expr, Expr]) -> None:
        """Write all that is known without these."""
        self.known_as = {s: substitute(e, known) for s, e in self.known_as.items()} | known
        self._simple.clear()
        before, self._facts = self._facts, {}
        self._answers.clear()
        for fact, line in before.items():
            self._again(Relation(fact.op, substitute(fact.expr, known)), line)

    def _divide(self, c: Relation, at: Loc) -> bool:
        """Take n % d == r down: n is d * (n // d) + r from now on, and so is what is made of it."""
        divided = all_divided(c.expr)
        for n, d in divided:
            self.decide(equal(n % d, 0))
        if divided:
            return True
        found = residue_in(c.expr)
        if found is None:
            return False
        x, d, r = found
        size, before = (x.num, x.den.value) if isinstance(x, FloorDiv) else (x, 1)
        old, rest = self.residues.get(size, (1, 0))
        if not isinstance(size, Sym) or size not in self.bounds or old != before:
            return False
        whole, r = d * old, r * old + rest
        self._solved[size] = Fact("==", size % whole, Int.make(r), at)
        self.residues[size] = (whole, r)
        self._limit(size, self.bounds[size])
        known = size // whole * whole + r
        self._replace({size: known, size % whole: Int.make(r), size // old: known // old})
        return True

    def _limit(self, symbol: Sym, b: Bounds) -> None:
        """Take bounds down, to the next numbers that leave the remainder that is known."""
        d, r = self.residues.get(symbol, (1, 0))
        lo = None if b.lo is None else b.lo + (r - b.lo) % d
        hi = None if b.hi is None else b.hi - (b.hi - r) % d
        self.bounds[symbol] = replace(b, lo=lo, hi=hi)
        self._intervals.narrow(symbol, lo, hi)

    def _pin(self, symbol: Sym, at: Loc) -> None:
        """Where bounds leave one quotient only, the symbol is a number."""
        d, r = self.residues.get(symbol, (0, 0))
        b = self.bounds[symbol]
        if d and b.lo is not None and b.hi is not None and b.lo // d == b.hi // d:
            del self.residues[symbol], self.bounds[symbol]
            self._intervals.forget(symbol)
            value = Int.make(b.lo // d * d + r)
            self._solved[symbol] = Fact("==", symbol, value, at)
            self._replace({symbol: value})

    def _between(self, c: Relation, at: Loc) -> bool:
        """Take x//d == n down as two bounds of x."""
        terms = terms_of(c.expr)
        found = [m[0] for m, n in terms.items() if m and len(m) == 1 and abs(n) == 1]
        if len(terms) > 2 or not found or not isinstance(found[0], FloorDiv):
            return False
        if len(terms) == 2 and () not in terms:
            return False
        for e in (c.expr, -c.expr):
            if self.known(Relation("<=", e)) is None and not self._bound(e, at):
                return False
        return True

    def _again(self, c: Relation, at: Loc) -> None:
        """Take a fact down once more, after its symbols have changed."""
        c = normal(c)
        if isinstance(settled(c), bool) or self._known(c):
            return
        if not (c.op == "<=" and self._bound(c.expr, at)):
            self._take(c, at)

    def _bound(self, e: Expr, at: Loc) -> bool:
        """Take `e <= 0` down as a bound of a symbol, if it is one."""
        terms = terms_of(e)
        if len(terms) > 2 or (len(terms) == 2 and () not in terms):
            return False
        ((m, n),) = [(m, n) for m, n in terms.items() if m]
        if len(m) != 1 or abs(n) != 1:
            return False
        if isinstance(m[0], FloorDiv):
            inner = _undivided(m[0], n, terms.get((), 0))
            if inner is None:
                return False
            if not self._bound(inner, at):
                self._take(normal(Relation("<=", inner)), at)
            return True
        if not isinstance(m[0], Sym) or m[0] not in self.bounds:
            return False
        symbol, constant = m[0], terms.get((), 0)
        old = self.bounds[symbol]
        new = (replace(old, hi=least(old.hi, -constant), hi_at=at) if n > 0 else
               replace(old, lo=most(old.lo, constant), lo_at=at))  # fmt: skip
        self._limit(symbol, new)
        self._answers.clear()
        self._pin(symbol, at)
        return True

    def supposed(self) -> tuple[Fact, ...]:
        """The facts about what only the data decides: to be asked when that is known."""
        return tuple(f for f in self.all_facts() if self._is_late(f))

    def facts(self) -> tuple[Fact, ...]:
        """The facts that can be guarded: see `all_facts`."""
        return tuple(f for f in self.all_facts() if not self._is_late(f))

    def _is_late(self, fact: Fact) -> bool:
        both = {*atoms(fact.left), *atoms(fact.right)} if self.unbacked else ()
        return not self.unbacked.isdisjoint(both)

    def all_facts(self) -> tuple[Fact, ...]:
        """The facts that say all that was used; those that follow from the others left out."""
        found = list(self._solved.values())
        for symbol, b in self.bounds.items():
            if b.lo is not None:
                found.append(Fact("<=", Int.make(b.lo), symbol, b.lo_at))
            if b.hi is not None:
                found.append(Fact("<=", symbol, Int.make(b.hi), b.hi_at))
        kept = dict(self._facts)
        for c, at in kept.items():
            del self._facts[c]
            self._answers.clear()
            if self._known(c) is None:
                self._facts[c] = at
        self._answers.clear()
        found += [fact_of(c, at) for c, at in self._facts.items()]
        self._facts = kept
        return tuple(found)


def _undivided(quotient: FloorDiv, sign: int, constant: int) -> Expr | None:
    """What is <= 0 where sign * quotient + constant is."""
    if not isinstance(quotient.den, Int):
        return None
    x, d = quotient.num, quotient.den.n
    return x - (d - 1 - constant * d) if sign > 0 else constant * d - x
