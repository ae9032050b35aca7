"""Programs for a range of sizes: their table of sizes, and the Program of one choice of them.

The table is computed by a postfix program over a stack:

    const n    push n                   row n      push row n of the table
    add mul    of two values            div mod    floor division, and its remainder
    store 0    the value on top becomes the next row
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from torchweld.base.errors import InternalError
from torchweld.ir.expr import Expr, FloorDiv, Int, Mod, Poly, Sym
from torchweld.ir.program import (
    Call,
    CallArg,
    GridLaunch,
    Instruction,
    Launch,
    Patch,
    Program,
    SizeArg,
    Sizes,
    TensorSpec,
)

_TWO: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "mul": operator.mul, "div": operator.floordiv, "mod": operator.mod,
}  # fmt: skip


class Table:
    """The rows that a Program asks for while it is made: symbols first, then other expressions."""

    def __init__(self, symbols: Sequence[Sym]) -> None:
        self.rows: dict[Expr, int] = {s: k for k, s in enumerate(symbols)}
        self.code: list[tuple[str, int]] = []

    def row(self, e: Expr) -> int:
        """The row of `e`, added if there is none. Errors: InternalError for another symbol."""
        if e not in self.rows:
            self.code += [*self._push(e), ("store", 0)]
            self.rows[e] = len(self.rows)
        return self.rows[e]

    def _push(self, e: Expr) -> list[tuple[str, int]]:
        if e in self.rows:
            return [("row", self.rows[e])]
        match e:
            case Int():
                return [("const", e.n)]
            case Poly():
                return self._sum(e)
            case FloorDiv():
                return [*self._push(e.num), *self._push(e.den), ("div", 0)]
            case Mod():
                return [*self._push(e.num), *self._push(e.den), ("mod", 0)]
        raise InternalError(f"{e.text()} is no size of the graph")

    def _sum(self, e: Poly) -> list[tuple[str, int]]:
        code: list[tuple[str, int]] = []
        for at, (coef, factors) in enumerate(e.terms):
            code.append(("const", coef))
            for f in factors:
                code += [*self._push(f), ("mul", 0)]
            code += [("add", 0)] if at else []
        return code


def table_of(sizes: Sizes, values: Sequence[int]) -> list[int]:
    """The whole table. values: one for each reading."""
    rows, stack = list(values), list[int]()
    for operation, n in sizes.code:
        if operation == "const":
            stack.append(n)
        elif operation == "row":
            stack.append(rows[n])
        elif operation == "store":
            rows.append(stack.pop())
        else:
            b = stack.pop()
            stack[-1] = _TWO[operation](stack[-1], b)
    return rows


def at(p: Program, values: Sequence[int]) -> Program:
    """The Program of one choice of sizes: nothing in it is symbolic.

    Steps that are the same for all sizes are the same objects; a launch may be of no points.
    """
    if p.sizes is None:
        return p
    rows = table_of(p.sizes, values)
    by_tensor: dict[int, list[Patch]] = {}
    by_step: dict[int, dict[str, int]] = {}
    arena = p.arena_bytes
    for patch in p.sizes.patches:
        if patch.what == "arena":
            arena = rows[patch.row]
        elif patch.what in ("extent", "grain", "blocks"):
            by_step.setdefault(patch.at, {})[patch.what] = rows[patch.row]
        else:
            by_tensor.setdefault(patch.at, []).append(patch)
    tensors = tuple(
        _spec(t, by_tensor[n], rows) if n in by_tensor else t for n, t in enumerate(p.tensors)
    )
    steps = tuple(_step(s, by_step.get(n, {}), rows) for n, s in enumerate(p.steps))
    return replace(p, tensors=tensors, steps=steps, arena_bytes=arena, sizes=None)


def _spec(t: TensorSpec, patches: Iterable[Patch], rows: Sequence[int]) -> TensorSpec:
    sizes, strides = list(t.sizes), list(t.strides)
    index, offset = t.index, t.offset
    for p in patches:
        n = rows[p.row]
        if p.what == "size":
            sizes[p.dim] = n
        elif p.what == "stride":
            strides[p.dim] = n
        elif p.what == "offset":
            offset = n
        else:
            index = n
    return replace(t, index=index, sizes=tuple(sizes), strides=tuple(strides), offset=offset)


def _step(s: Instruction, changed: dict[str, int], rows: Sequence[int]) -> Instruction:
    match s:
        case Launch():
            extent, grain = changed.get("extent", s.extent), changed.get("grain", s.grain)
            return replace(s, extent=extent, grain=max(grain, 1)) if changed else s
        case GridLaunch():
            return replace(s, blocks=changed["blocks"]) if changed else s
        case Call():
            args = tuple(_arg(a, rows) for a in s.args)
            kwargs = tuple((name, _arg(a, rows)) for name, a in s.kwargs)
            return s if args == s.args and kwargs == s.kwargs else replace(s, args=args,
                                                                           kwargs=kwargs)
    return s


def takes_sizes(s: Instruction) -> bool:
    """Whether an argument of the step is a number that depends on the sizes of a call."""
    return isinstance(s, Call) and any(map(_is_size, (*s.args, *(v for _, v in s.kwargs))))


def _is_size(a: CallArg) -> bool:
    return isinstance(a, SizeArg) or (isinstance(a, tuple) and any(map(_is_size, a)))


def _arg(a: CallArg, rows: Sequence[int]) -> CallArg:
    if isinstance(a, SizeArg):
        return rows[a.row]
    return tuple(_arg(x, rows) for x in a) if isinstance(a, tuple) else a
