"""Where a fast exp, division, sigmoid or erf gives eager's result: what becomes f16 or bf16.

Their relative error of some 1e-6 vanishes in the rounding to 8 or 11 bits, if nothing in between
can magnify it. Products and quotients cannot, nor can a sum of exponentials; a difference can.
1 + erf(x) is a difference where x is negative: eager's own loses the digits that fast_erf has not.
"""

from __future__ import annotations

from collections.abc import Iterable

from torchweld.codegen.tiles import TiledNest
from torchweld.codegen.triton_types import NARROW
from torchweld.ir.dtype import DType
from torchweld.ir.expr import Expr, Ind, Int, atoms
from torchweld.ir.loop import Buffer, Const, Index, Load, Op, Scalar, const, walk

FAST = frozenset({"exp", "div", "sigmoid", "erf"})
PASSES_ON = frozenset({"mul", "div", "neg", "abs", "where", "max", "min"})

ONE = const(1.0, DType.F32)


def coarse(nests: Iterable[TiledNest], private: frozenset[Buffer]) -> frozenset[Scalar]:
    """The operators of FAST whose every use ends in a rounding to a narrow type."""
    users = _Users(private)
    for n in nests:
        users.add(n)
    return frozenset(
        x
        for x in users.known
        if isinstance(x, Op) and x.name in FAST and x.dtype is DType.F32 and users.rounded(x)
    )


def _positive(x: Scalar) -> bool:
    return isinstance(x, Const) and x.value > 0


class _Users:
    """Who uses the values of a kernel. A local passes its value on to whoever loads it."""

    def __init__(self, private: frozenset[Buffer]) -> None:
        self.known: dict[Scalar, None] = {}
        self._private = private
        self._by: dict[Scalar | Buffer, list[Op | Load | TiledNest | None]] = {}
        self._answer: dict[Scalar | Buffer, bool] = {}

    def add(self, n: TiledNest) -> None:
        self._by.setdefault(n.body, []).append(n)
        for x in walk(n.body):
            if x not in self.known:
                self.known[x] = None
                self._children(x)
        for e in n.index:
            self._index(e)

    def _children(self, x: Scalar) -> None:
        match x:
            case Op():
                for a in x.args:
                    self._by.setdefault(a, []).append(x)
            case Load():
                if x.buffer in self._private:
                    self._by.setdefault(x.buffer, []).append(x)
                for e in x.index:
                    self._index(e)
            case Index():
                self._index(x.expr)
            case Const():
                pass

    def _index(self, e: Expr) -> None:
        """What an index is made of must be exact."""
        for a in () if isinstance(e, Int) else atoms(e):
            if isinstance(a, Ind):
                assert isinstance(a.scalar, Scalar)
                for x in walk(a.scalar):
                    self._by.setdefault(x, []).append(None)

    def rounded(self, x: Scalar | Buffer) -> bool:
        """Whether every use of `x` ends in a rounding."""
        if x not in self._answer:
            self._answer[x] = False  # a cycle through a local is no rounding
            uses = self._by.get(x, [])
            self._answer[x] = bool(uses) and all(self._use(x, u) for u in uses)
        return self._answer[x]

    def _use(self, x: Scalar | Buffer, user: Op | Load | TiledNest | None) -> bool:
        match user:
            case Op() if isinstance(x, Op) and x.name == "erf":
                return user.name == "add" and ONE in user.args and self.rounded(user)
            case Op(name="cast"):
                return user.dtype in NARROW
            case Op(name="add") if isinstance(x, Op) and x.name == "exp":
                return any(map(_positive, user.args)) and self.rounded(user)
            case Op(name="where"):
                return x is not user.args[0] and self.rounded(user)
            case Op():
                return user.name in PASSES_ON and user.dtype is DType.F32 and self.rounded(user)
            case Load():
                return self.rounded(user)
            case TiledNest():
                summed = user.fold is None or self._positive_sum(user)
                return user.out in self._private and summed and self.rounded(user.out)
        return False

    def _positive_sum(self, n: TiledNest) -> bool:
        """Whether `n` sums up exponentials, or takes the largest of something."""
        assert n.fold is not None
        if n.fold.kind in ("max", "min"):
            return True
        x = n.body
        if isinstance(x, Load):
            x = next((b for b, users in self._by.items() if isinstance(b, Scalar) and any(
                isinstance(u, TiledNest) and u.out is x.buffer for u in users)), x)  # fmt: skip
        return n.fold.kind == "sum" and isinstance(x, Op) and x.name == "exp"
