"""Scalar algebra that is exact in every bit, payloads of NaNs aside.

Not here because they are not exact: x + 0 (turns -0.0 into 0.0), x * 0, x - x, float distribution.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

from torchweld.fuse.facts import Substitution
from torchweld.ir.dtype import FLOAT8, DType
from torchweld.ir.expr import Expr
from torchweld.ir.loop import Const, LoopGraph, Nest, Op, Scalar, const

Rule = Callable[[tuple[Scalar, ...], DType], Scalar | None]

# every value of the key is a value of the listed types
_INSIDE: dict[DType, frozenset[DType]] = {
    DType.BOOL: frozenset(t for t in DType if t.computed),
    DType.U8: frozenset({DType.I16, DType.I32, DType.I64, DType.F16, DType.BF16, DType.F32,
                         DType.F64}),
    DType.I8: frozenset({DType.I16, DType.I32, DType.I64, DType.F16, DType.BF16, DType.F32,
                         DType.F64}),
    DType.I16: frozenset({DType.I32, DType.I64, DType.F32, DType.F64}),
    DType.I32: frozenset({DType.I64, DType.F64}),
    DType.F16: frozenset({DType.F32, DType.F64}),
    DType.BF16: frozenset({DType.F32, DType.F64}),
    DType.F32: frozenset({DType.F64}),
    **dict.fromkeys(FLOAT8, frozenset({DType.F16, DType.BF16, DType.F32, DType.F64})),
}  # fmt: skip

_ONE = struct.unpack("<Q", struct.pack("<d", 1.0))[0]
_MINUS_ZERO = struct.unpack("<Q", struct.pack("<d", -0.0))[0]


class _Simplifier(Substitution):
    """Bottom-up rewriting by the table of rules; one memo for the whole graph."""

    def __init__(self) -> None:
        super().__init__({})

    def expr(self, e: Expr) -> Expr:
        return e  # index expressions are canonical already

    def scalar(self, x: Scalar) -> Scalar:
        if not isinstance(x, Op):
            return x
        hit = self._scalars.get(x)
        if hit is None:
            args = tuple(self.scalar(a) for a in x.args)
            hit = self._scalars[x] = rule(x.name, args, x.dtype)
        return hit


def simplify(g: LoopGraph) -> LoopGraph:
    """Every body with exact identities applied."""
    s = _Simplifier()
    nodes = []
    changed = False
    for n in g.nodes:
        if isinstance(n, Nest):
            body = s.scalar(n.body)
            if body is not n.body:
                n = replace(n, body=body)
                changed = True
        nodes.append(n)
    return replace(g, nodes=tuple(nodes)) if changed else g


def rule(name: str, args: tuple[Scalar, ...], dtype: DType) -> Scalar:
    """The operator applied to arguments, or something equal and smaller."""
    row = _RULES.get(name)
    if row is not None:
        found = row(args, dtype)
        if found is not None:
            return found
    return Op.make(name, args, dtype)


def _cast(args: tuple[Scalar, ...], dtype: DType) -> Scalar | None:
    (x,) = args
    if x.dtype is dtype:
        return x
    if isinstance(x, Const) and not x.dtype.is_float and not dtype.is_float:
        return const(_wrapped(int(x.value), dtype), dtype)
    if not (isinstance(x, Op) and x.name == "cast"):
        return None
    (inner,) = x.args
    if x.dtype not in _INSIDE.get(inner.dtype, ()):
        return None
    if inner.dtype is dtype:
        return inner
    # the wide value in between is the narrow one exactly, so converting it is the same; a float
    # out of an integer's range is converted as the machine likes, so that path stays as written
    if dtype.is_float or dtype is DType.BOOL or not inner.dtype.is_float:
        return _cast((inner,), dtype) or Op.make("cast", (inner,), dtype)
    return None


def _wrapped(value: int, dtype: DType) -> int:
    if dtype is DType.BOOL:
        return int(value != 0)
    bits = 8 * dtype.bytes
    value &= (1 << bits) - 1
    signed = dtype is not DType.U8
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def _is(x: Scalar, bits: int, integer: int) -> bool:
    if not isinstance(x, Const) or x.dtype is DType.BOOL:
        return False
    return x.bits == (bits if x.dtype.is_float else integer)


def _mul(args: tuple[Scalar, ...], dtype: DType) -> Scalar | None:
    a, b = args
    return a if _is(b, _ONE, 1) else b if _is(a, _ONE, 1) else None


def _div(args: tuple[Scalar, ...], dtype: DType) -> Scalar | None:
    return args[0] if _is(args[1], _ONE, 1) else None


def _add(args: tuple[Scalar, ...], dtype: DType) -> Scalar | None:
    a, b = args
    return a if _is(b, _MINUS_ZERO, 0) else b if _is(a, _MINUS_ZERO, 0) else None


def _sub(args: tuple[Scalar, ...], dtype: DType) -> Scalar | None:
    return args[0] if _is(args[1], 0, 0) else None


def _where(args: tuple[Scalar, ...], dtype: DType) -> Scalar | None:
    c, a, b = args
    if isinstance(c, Const):
        return a if c.value else b
    return a if a is b else None


def _and(args: tuple[Scalar, ...], dtype: DType) -> Scalar | None:
    return _logic(args, neutral=True)


def _or(args: tuple[Scalar, ...], dtype: DType) -> Scalar | None:
    return _logic(args, neutral=False)


def _logic(args: tuple[Scalar, ...], neutral: bool) -> Scalar | None:
    a, b = args
    if a is b:
        return a
    for x, other in ((a, b), (b, a)):
        if isinstance(x, Const):
            return other if bool(x.value) is neutral else x
    return None


def _twice(name: str) -> Rule:
    def undo(args: tuple[Scalar, ...], dtype: DType) -> Scalar | None:
        (x,) = args
        return x.args[0] if isinstance(x, Op) and x.name == name else None

    return undo


_RULES: dict[str, Rule] = {
    "cast": _cast, "mul": _mul, "div": _div, "add": _add, "sub": _sub, "where": _where,
    "and": _and, "or": _or, "not": _twice("not"), "neg": _twice("neg"),
    "bit_not": _twice("bit_not"),
}  # fmt: skip


