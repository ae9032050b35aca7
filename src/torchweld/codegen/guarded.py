"""Which scalars are needed where: what both languages' printers know about a `where`.

A load that may lie out of bounds, or an index that may be bad, counts only where the `where` around
it takes that branch: it is computed under a Guard. Everything else is computed once and shared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from torchweld.base.errors import InternalError
from torchweld.ir.expr import Expr, Ind, Int, atoms
from torchweld.ir.loop import Buffer, Const, Index, Load, Op, Scalar, children, walk
from torchweld.ir.loop_ops import CHECKS
from torchweld.ir.symbolic_div import fits

V = TypeVar("V")  # a value that has been printed


@dataclass(frozen=True, slots=True)
class Guard:
    """A value is needed only where `cond` is `wanted`, inside of `outer`."""

    outer: Guard | None
    cond: Scalar
    wanted: bool


class Guarded(Generic[V]):
    """Prints scalars, each once. Subclasses say how values are kept and kinds are printed."""

    def __init__(self) -> None:
        super().__init__()
        self._unsafe: dict[Scalar, bool] = {}

    # --- what a subclass gives

    def recall(self, key: object) -> V | None:
        """The value that was remembered for `key`, if it still holds."""
        raise NotImplementedError

    def remember(self, key: object, v: V) -> V:
        raise NotImplementedError

    def constant(self, x: Const) -> V:
        raise NotImplementedError

    def in_registers(self, b: Buffer) -> bool:
        """Whether a load of `b` touches no memory."""
        return False

    def in_push_order(self, found: list[Scalar]) -> list[Scalar]:
        """The children of a scalar in the order in which a stack takes them."""
        return found

    def _load(self, x: Load, guard: Guard | None) -> V:
        raise NotImplementedError

    def _index(self, x: Index, guard: Guard | None) -> V:
        raise NotImplementedError

    def _where(self, x: Op, guard: Guard | None) -> V:
        raise NotImplementedError

    def _check(self, x: Op, guard: Guard | None) -> V:
        raise NotImplementedError

    def _cast(self, x: Op, guard: Guard | None) -> V:
        raise NotImplementedError

    def _op(self, x: Op, guard: Guard | None) -> V:
        raise NotImplementedError

    # --- scalars

    def value(self, x: Scalar, guard: Guard | None = None) -> V:
        if isinstance(x, Const):
            return self.constant(x)
        if guard is not None and not self.unsafe(x):
            guard = None
        key = (x, guard) if guard else x
        hit = self.recall(key)
        if hit is None:
            hit = self.remember(key, self.compute(x, guard))
        return hit

    def prepare(self, x: Scalar) -> None:
        """Name everything that `x` needs unguarded, leaves first: `value` never recurses deeply."""
        seen: set[Scalar] = set()
        stack: list[tuple[Scalar, bool]] = [(x, False)]
        while stack:
            s, ready = stack.pop()
            if ready:
                self.value(s)
            elif s not in seen and not isinstance(s, Const | Index):
                seen.add(s)
                if s is not x:
                    stack.append((s, True))
                found = self.in_push_order(self._unguarded(s))
                stack += [(c, False) for c in found if c not in seen]

    def _unguarded(self, s: Scalar) -> list[Scalar]:
        """The children of `s` that are computed whatever a `where` decides."""
        if isinstance(s, Op) and s.name == "where":
            return [s.args[0], *(a for a in s.args[1:] if not self.unsafe(a))]
        return list(children(s))

    def compute(self, x: Scalar, guard: Guard | None) -> V:
        match x:
            case Load():
                return self._load(x, guard)
            case Index():
                return self._index(x, guard)
            case Op(name="where"):
                return self._where(x, guard)
            case Op() if x.name in CHECKS:
                return self._check(x, guard)
            case Op(name="cast"):
                return self._cast(x, guard)
            case Op():
                return self._op(x, guard)
        raise InternalError(f"scalar {type(x).__name__} has no text")

    # --- guards

    def unsafe(self, x: Scalar) -> bool:
        """Whether computing `x` may touch memory out of bounds, or report a bad index."""
        if x not in self._unsafe:
            for s in walk(x):
                if s not in self._unsafe:
                    self._unsafe[s] = self._unsafe_here(s)
        return self._unsafe[x]

    def _unsafe_here(self, s: Scalar) -> bool:
        match s:
            case Const():
                return False
            case Index():
                return any(self._ind_unsafe(e) for e in atoms(s.expr))
            case Op():
                return s.name in CHECKS or any(self._unsafe[a] for a in s.args)
            case Load():
                if self.in_registers(s.buffer):
                    return False
                return not _inside(s) or any(self._ind_unsafe(a) for e in s.index for a in atoms(e))
        raise InternalError(f"scalar {type(s).__name__}")

    def _ind_unsafe(self, a: Expr) -> bool:
        return isinstance(a, Ind) and self._unsafe[loaded(a)]


def loaded(a: Ind) -> Scalar:
    """The scalar that an index expression reads."""
    assert isinstance(a.scalar, Scalar)
    return a.scalar


def _inside(x: Load) -> bool:
    """Whether bounds prove that a load stays inside of its buffer."""
    return all(map(_below, x.index, x.buffer.shape))


def _below(e: Expr, n: Expr) -> bool:
    if e.lo is None or e.lo < 0:
        return False
    if isinstance(n, Int) and e.hi is not None and e.hi < n.n:
        return True
    return not (isinstance(e, Int) and isinstance(n, Int)) and fits(e, n)
