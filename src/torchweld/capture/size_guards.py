"""Facts about sizes as guards, and as the postfix programs that the dispatcher runs."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Iterable
from typing import Any

from torchweld.base.errors import InternalError
from torchweld.frame.program import READS, Postfix
from torchweld.ir.conditions import Ratio
from torchweld.ir.expr import Expr, FloorDiv, Int, Mod, Poly, Sym
from torchweld.ir.guard import Guard, Reading, SizeRelation, relation_of
from torchweld.ir.size_values import Loose, Number, Rounded
from torchweld.ir.sizes import SizeEnv
from torchweld.ir.source import Source

_RELATIONS = {"==": Postfix.IS_ZERO, "!=": Postfix.NOT_ZERO, "<=": Postfix.AT_MOST_ZERO}


def size_guards(env: SizeEnv, readings: Iterable[Reading]) -> list[Guard]:
    """The relations that must hold for everything that was decided by these sizes to be right."""
    where: dict[Expr, Reading] = {r.symbol: r for r in readings}
    made = env.computed
    return [Guard("sizes", None, relation_of(fact, where, made), fact.at) for fact in env.facts()]


def operand(
    relation: SizeRelation, register: Callable[[Source], int]
) -> tuple[tuple[tuple[int, int, int], ...], tuple[int, ...]]:
    """What the op SIZES takes: what it reads, and the program over that."""
    reads = tuple((register(r.source), READS.index(r.kind), r.dim) for r in relation.readings)
    places: dict[Expr, int] = {r.symbol: i for i, r in enumerate(relation.readings)}
    code: list[int] = []
    made = dict(relation.computed)
    _write(relation.fact.left - relation.fact.right, places, made, code)
    return reads, (*code, int(_RELATIONS[relation.fact.op]))


def _write(e: Expr, places: dict[Expr, int], made: dict[Expr, Rounded],
           code: list[int]) -> None:  # fmt: skip
    """Append what pushes the value of `e`."""
    match e:
        case Int():
            code += (Postfix.PUSH, e.n)
        case Sym() if e in made:
            _write_float(made[e].value, places, made, code)
            code.append(_ROUNDINGS[made[e].fn])
        case Sym():
            code += (Postfix.LOAD, places[e])
        case Poly():
            for i, (coef, factors) in enumerate(e.terms):
                code += (Postfix.PUSH, coef)
                for f in factors:
                    _write(f, places, made, code)
                    code.append(Postfix.MUL)
                if i:
                    code.append(Postfix.ADD)
        case FloorDiv() | Mod():
            _write(e.num, places, made, code)
            _write(e.den, places, made, code)
            code.append(Postfix.FLOORDIV if isinstance(e, FloorDiv) else Postfix.MOD)
        case _:
            raise InternalError(f"no code for {e.text()}")


_ROUNDINGS: dict[Callable[..., Any], Postfix] = {
    math.trunc: Postfix.TRUNC, math.floor: Postfix.FLOOR, math.ceil: Postfix.CEIL,
    round: Postfix.ROUND,
}  # fmt: skip
_FLOATS: dict[Callable[..., Any], Postfix] = {
    operator.add: Postfix.F_ADD, operator.sub: Postfix.F_SUB, operator.mul: Postfix.F_MUL,
    operator.truediv: Postfix.F_DIV, operator.pow: Postfix.F_POW, math.sqrt: Postfix.F_SQRT,
    math.log: Postfix.F_LOG, math.log2: Postfix.F_LOG2, math.log10: Postfix.F_LOG10,
    math.exp: Postfix.F_EXP,
}  # fmt: skip


def _write_float(x: Number, places: dict[Expr, int], made: dict[Expr, Rounded],
                 code: list[int]) -> None:  # fmt: skip
    """Append what pushes the bits of a float; see `size_values.COMPUTABLE`."""
    match x:
        case Expr():
            _write(x, places, made, code)
            code.append(Postfix.FLOAT)
        case Ratio():
            _write(x.num, places, made, code)
            code += (Postfix.FLOAT, Postfix.PUSH, x.den, Postfix.FLOAT, Postfix.F_DIV)
        case Loose():
            if x.fn is operator.neg:
                code += (Postfix.PUSH, 0)
            for a in x.args:
                _write_float(a, places, made, code)
            if x.fn is not float:
                code.append(Postfix.F_SUB if x.fn is operator.neg else _FLOATS[x.fn])
        case _:
            code += (Postfix.PUSH, *struct.unpack("<q", struct.pack("<d", x)))


def evaluate(relation: SizeRelation, found: Callable[[Source], object]) -> bool:
    """Whether a relation holds for what is found at its sources now."""
    try:
        values = relation.values(lambda r: value_of(r, found(r.source)))
    except ArithmeticError:
        return False
    return relation.fact.holds(values)


def value_of(reading: Reading, x: object) -> int:
    """The value of a symbol, where `x` is what is found at its source."""
    if reading.kind == "number":
        return int(x)  # type: ignore[call-overload,no-any-return]
    parts = x.shape if reading.kind == "size" else x.stride()  # type: ignore[attr-defined]
    return int(parts[reading.dim])
