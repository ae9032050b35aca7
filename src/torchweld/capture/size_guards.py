"""Facts about sizes as guards, and as the postfix programs that the dispatcher runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torchweld.base.errors import InternalError
from torchweld.frame.program import READS, Postfix
from torchweld.ir.expr import Expr, FloorDiv, Int, Mod, Poly, Sym
from torchweld.ir.guard import Guard, Reading, SizeRelation, relation_of
from torchweld.ir.sizes import SizeEnv
from torchweld.ir.source import Source

_RELATIONS = {"==": Postfix.IS_ZERO, "!=": Postfix.NOT_ZERO, "<=": Postfix.AT_MOST_ZERO}


def size_guards(env: SizeEnv, readings: Iterable[Reading]) -> list[Guard]:
    """The relations that must hold for everything that was decided by these sizes to be right."""
    where: dict[Expr, Reading] = {r.symbol: r for r in readings}
    return [Guard("sizes", None, relation_of(fact, where), fact.at) for fact in env.facts()]


def operand(
    relation: SizeRelation, register: Callable[[Source], int]
) -> tuple[tuple[tuple[int, int, int], ...], tuple[int, ...]]:
    """What the op SIZES takes: what it reads, and the program over that."""
    reads = tuple((register(r.source), READS.index(r.kind), r.dim) for r in relation.readings)
    places: dict[Expr, int] = {r.symbol: i for i, r in enumerate(relation.readings)}
    code: list[int] = []
    _write(relation.fact.left - relation.fact.right, places, code)
    return reads, (*code, int(_RELATIONS[relation.fact.op]))


def _write(e: Expr, places: dict[Expr, int], code: list[int]) -> None:
    """Append what pushes the value of `e`."""
    match e:
        case Int():
            code += (Postfix.PUSH, e.n)
        case Sym():
            code += (Postfix.LOAD, places[e])
        case Poly():
            for i, (coef, factors) in enumerate(e.terms):
                code += (Postfix.PUSH, coef)
                for f in factors:
                    _write(f, places, code)
                    code.append(Postfix.MUL)
                if i:
                    code.append(Postfix.ADD)
        case FloorDiv() | Mod():
            _write(e.num, places, code)
            _write(e.den, places, code)
            code.append(Postfix.FLOORDIV if isinstance(e, FloorDiv) else Postfix.MOD)
        case _:
            raise InternalError(f"no code for {e.text()}")


def evaluate(relation: SizeRelation, found: Callable[[Source], object]) -> bool:
    """Whether a relation holds for what is found at its sources now."""
    values: dict[Expr, int] = {}
    for r in relation.readings:
        x: object = found(r.source)
        values[r.symbol] = value_of(r, x)
    return relation.fact.holds(values)


def value_of(reading: Reading, x: object) -> int:
    """The value of a symbol, where `x` is what is found at its source."""
    if reading.kind == "number":
        return int(x)  # type: ignore[call-overload,no-any-return]
    parts = x.shape if reading.kind == "size" else x.stride()  # type: ignore[attr-defined]
    return int(parts[reading.dim])
