"""Index expressions as C++ text, and how they move along the vectorised loop."""

from __future__ import annotations

from collections.abc import Callable

from torchweld.base.errors import InternalError
from torchweld.codegen.sizes import likely
from torchweld.ir.expr import (
    ZERO,
    Expr,
    FloorDiv,
    Ind,
    Int,
    Mod,
    Poly,
    Sym,
    atoms,
    terms_of,
)
from torchweld.ir.loop import Buffer

BLOCK = 16  # the widest vector: loops step to multiples of it


def flat(buffer_strides: tuple[Expr, ...], index: tuple[Expr, ...]) -> Expr:
    """The element offset of `index`."""
    total: Expr = ZERO
    for e, s in zip(index, buffer_strides, strict=True):
        total = total + e * s
    return total


def memory_bytes(b: Buffer) -> int:
    """What a tensor likely takes, elements read twice counted twice."""
    total = b.dtype.bytes
    for n in b.shape:
        total *= likely(n)
    return total


def offset_in(buffer: Buffer, index: tuple[Expr, ...]) -> Expr:
    """Where `index` lies from the first element of the buffer, in elements."""
    return flat(buffer.strides, index)


def scalar_text(e: Expr, leaf: Callable[[Expr], str]) -> str:
    """`e` as an i64 expression; `leaf` names symbols and loaded values."""
    match e:
        case Int():
            return str(e.n) if abs(e.n) < 1 << 31 else f"i64({e.n})"
        case Poly():
            return sum_text(e, lambda f: scalar_text(f, leaf))
        case FloorDiv() | Mod():
            return _div_text(e, leaf)
        case _:
            return leaf(e)


def sum_text(e: Poly, text_of: Callable[[Expr], str]) -> str:
    """`e` with `text_of` printing its factors: infix, which both languages read alike."""
    parts: list[tuple[int, int, str]] = []
    for coef, factors in e.terms:
        names = [paren(text_of(f)) for f in factors]
        if abs(coef) != 1 or not names:
            names.append(text_of(Int.make(abs(coef))))
        parts.append((coef < 0, not factors, " * ".join(names)))
    # a fixed order whatever the symbols were called, so that equal kernels have equal texts
    parts.sort(key=lambda p: (p[0], p[1], -len(p[2]), p[2]))
    first, *rest = parts
    text = f"-{first[2]}" if first[0] else first[2]
    return text + "".join(f" - {t}" if neg else f" + {t}" for neg, _, t in rest)


def _div_text(e: FloorDiv | Mod, leaf: Callable[[Expr], str]) -> str:
    num, den = paren(scalar_text(e.num, leaf)), paren(scalar_text(e.den, leaf))
    division = isinstance(e, FloorDiv)
    if e.num.lo is None or e.num.lo < 0:
        return f"{'div_floor' if division else 'mod_floor'}({num}, {den})"
    return f"{num} {'/' if division else '%'} {den}"


def paren(text: str) -> str:
    return f"({text})" if " " in text else text


def vector_text(e: Expr, leaf: Callable[[Expr], str]) -> str:
    """`e` as a vec<i64> expression; `leaf` gives every atom, and every constant, as a vector."""
    match e:
        case Poly():
            terms = []
            for coef, factors in e.terms:
                names = [vector_text(f, leaf) for f in factors]
                if coef != 1 or not names:
                    names.append(leaf(Int.make(coef)))
                terms.append(" * ".join(names))
            return "(" + " + ".join(terms) + ")"
        case FloorDiv():
            return f"floor_div({vector_text(e.num, leaf)}, {vector_text(e.den, leaf)})"
        case Mod():
            return f"mod({vector_text(e.num, leaf)}, {vector_text(e.den, leaf)})"
        case _:
            return leaf(e)


def depends(e: Expr, lane: Sym) -> bool:
    return e is lane or (not isinstance(e, Int | Sym) and lane in atoms(e))


def lane_step(e: Expr, lane: Sym) -> int | None:
    """How far `e` moves from one lane to the next inside a block of BLOCK aligned iterations.

    None when it does not move evenly, or depends on loaded values that vary.
    """
    if e is lane:
        return 1
    if not depends(e, lane):
        return 0
    match e:
        case Poly():
            return _poly_step(e, lane)
        case FloorDiv() | Mod():
            if not depends(e.den, lane) and lane_step(e.num, lane) == 0:
                return 0
            if not _block_aligned(e.num, e.den, lane):
                return None
            return 0 if isinstance(e, FloorDiv) else 1
        case Ind():
            return None
        case _:
            raise InternalError(f"index atom {e.text()}")


def _poly_step(e: Poly, lane: Sym) -> int | None:
    total = 0
    for coef, factors in e.terms:
        moving = [f for f in factors if depends(f, lane)]
        if not moving:
            continue
        step = lane_step(moving[0], lane)
        if step is None or (step and len(factors) > 1) or len(moving) > 1:
            return None
        total += coef * step
    return total


def _block_aligned(num: Expr, den: Expr, lane: Sym) -> bool:
    """Whether `num` is the lane plus multiples of BLOCK, and `den` a multiple of BLOCK."""
    if not isinstance(den, Int) or den.n % BLOCK:
        return False
    terms = terms_of(num)
    if terms.get((lane,)) != 1:
        return False
    return all(
        m == (lane,) or (c % BLOCK == 0 and not any(depends(f, lane) for f in m))
        for m, c in terms.items()
    )


def constant(e: Expr, what: str) -> int:
    """The value of a size that must be static. Errors: InternalError naming `what`."""
    if not isinstance(e, Int):
        raise InternalError(f"{what} is {e.text()}: generated code needs static sizes")
    return e.n
