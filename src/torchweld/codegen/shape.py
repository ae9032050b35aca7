"""What a stage needs to be printed: its loops in order, its vector width, its reductions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchweld.base.errors import InternalError
from torchweld.codegen.cpp_index import depends, offset_in
from torchweld.codegen.folds import collected
from torchweld.codegen.sizes import likely
from torchweld.ir.dtype import DType
from torchweld.ir.expr import ONE, Expr, Int, Sym
from torchweld.ir.loop import (
    Axis,
    Buffer,
    Const,
    Index,
    Load,
    Nest,
    Op,
    Scalar,
    children,
    scalars_in,
    walk,
)
from torchweld.ir.plan import Kernel, Stage

WIDE = frozenset({DType.F64, DType.I64})
CHEAP = frozenset(
    [
        "add",
        "sub",
        "mul",
        "fma",
        "neg",
        "abs",
        "max",
        "min",
        "cast",
        "where",
        "and",
        "or",
        "not",
        "xor",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
    ]
)


def size(a: Axis) -> int:
    """The static number of iterations. Errors: InternalError for a symbolic size."""
    if not isinstance(a.size, Int):
        raise InternalError(f"loop {a.text()}: generated code needs static sizes")
    return a.size.n


def void(axes: Iterable[Axis]) -> bool:
    """Whether it is known that nothing is ever visited."""
    return any(isinstance(a.size, Int) and a.size.n == 0 for a in axes)


def visits(axes: Iterable[Axis]) -> int:
    """How many points there likely are: a cost."""
    total = 1
    for a in axes:
        total *= likely(a.size)
    return total


def product(axes: Iterable[Axis]) -> int:
    total = 1
    for a in axes:
        total *= size(a)
    return total


@dataclass(frozen=True, slots=True)
class Shape:
    """A stage in the order in which it is printed.

    loops: outermost first; `lane`: the vectorised symbol, None for a plain loop. `width`: the bytes
    of the widest value that varies by lane. `depth[i]`: how many loops lie outside of what nest i
    reduces over (or scans along); len(loops) for a pointwise nest.
    """

    loops: tuple[Axis, ...]
    lane: Sym | None
    width: int
    depth: tuple[int, ...]
    chains: int = 1


def shape_of(kernel: Kernel, stage: Stage) -> Shape:
    """How to print `stage`. Errors: InternalError if its reductions need different loop orders."""
    loops = _order(stage)
    depth = tuple(_depth(n, loops) for n in stage.nests)
    if kernel.lanes is not None:
        lane: Sym | None = kernel.lanes.sym
    else:
        registers = frozenset(x.buffer for x in kernel.locals if x.kind == "register")
        parallel = bool(loops) and not _sequential(stage, loops[-1], registers)
        lane = loops[-1].sym if parallel else None
    width = 4 if lane is None else _width(stage, lane, kernel.lanes is not None)
    return Shape(loops, lane, width, depth, _chains(stage, loops, lane, width))


def _order(stage: Stage) -> tuple[Axis, ...]:
    """The loops with everything that is reduced or scanned last."""
    loops = stage.loops
    for n in stage.nests:
        if n.reduce is None:
            continue
        inner = {a.sym for a in n.reduce.axes}
        k = len(loops) - len(inner)
        if {a.sym for a in loops[k:]} == inner:
            continue
        loops = (*(a for a in loops if a.sym not in inner), *(a for a in loops if a.sym in inner))
    return loops


def _depth(n: Nest, loops: tuple[Axis, ...]) -> int:
    if n.reduce is None:
        return len(loops)
    if not n.reduce.axes:
        raise InternalError(f"{n.out.name} reduces over no loop at all")
    inner = {a.sym for a in n.reduce.axes}
    k = len(loops) - len(inner)
    if {a.sym for a in loops[k:]} != inner:
        names = ", ".join(a.name for a in n.reduce.axes)
        raise InternalError(f"{n.out.name} reduces over {names}, which are not innermost")
    return k


def _sequential(stage: Stage, last: Axis, registers: frozenset[Buffer]) -> bool:
    """Whether the last loop must run one iteration after the other."""
    for n in stage.nests:
        if n.reduce is None:
            continue
        if n.reduce.is_scan:
            return True
        if n.reduce.kind.startswith("arg") and not _narrow(n.reduce.axes):
            return True
    return _feeds_back(stage, last.sym, registers)


def _narrow(axes: Iterable[Axis]) -> bool:
    """Whether positions over `axes` fit in 32 bits."""
    total: Expr = ONE
    for a in axes:
        total = total * a.size
    return total.hi is not None and total.hi < 1 << 31


def _feeds_back(stage: Stage, lane: Sym, registers: frozenset[Buffer]) -> bool:
    """Whether a buffer is written and read at different places of the same loop."""
    pointwise = [n for n in stage.nests if n.reduce is None or n.reduce.is_scan]
    stores = {n.out: n for n in pointwise if n.out not in registers}
    for n in stage.nests:
        for root in (n.body, *_index_scalars(n.index)):
            for s in walk(root):
                w = stores.get(s.buffer) if isinstance(s, Load) else None
                if w is None or not isinstance(s, Load):
                    continue
                there, here = offset_in(w.out, w.index), offset_in(w.out, s.index)
                if there is not here or not depends(there, lane):
                    return True
    return False


def _index_scalars(index: tuple[Expr, ...]) -> list[Scalar]:
    return [s for e in index for s in scalars_in(e)]


def _width(stage: Stage, lane: Sym, by_lane: bool) -> int:
    """8 if anything that varies by lane has 8 bytes, else 4."""
    known: dict[Scalar, bool] = {}
    for n in stage.nests:
        if n.body.dtype in WIDE or (n.out.dtype in WIDE and n.reduce is None):
            return 8
        if n.reduce is not None and collected(n, by_lane) in WIDE:
            return 8
        for root in (n.body, *_index_scalars(n.index)):
            if any(s.dtype in WIDE for s in _varying(root, lane, known)):
                return 8
    return 4


def _varying(root: Scalar, lane: Sym, known: dict[Scalar, bool]) -> list[Scalar]:
    """What varies by lane under `root`; an index that is only used as i32 does not count."""
    found = []
    for s in walk(root):
        known[s] = varies(s, lane, known)
        if not known[s]:
            continue
        if not isinstance(s, Index):
            found.append(s)
        if not (isinstance(s, Op) and s.name == "cast" and s.dtype is DType.I32):
            found += [c for c in children(s) if isinstance(c, Index) and known[c]]
    return found


def varies(s: Scalar, lane: Sym, known: dict[Scalar, bool]) -> bool:
    if isinstance(s, Const):
        return False
    if isinstance(s, Load) and any(depends(e, lane) for e in s.index):
        return True
    if isinstance(s, Index) and depends(s.expr, lane):
        return True
    return any(known[c] for c in children(s))


def _chains(stage: Stage, loops: tuple[Axis, ...], lane: Sym | None, width: int) -> int:
    """How many accumulators hide the latency of the adds of a row: fewer if there is other work."""
    if lane is None or not loops or loops[-1].sym is not lane:
        return 1
    if not any(n.reduce for n in stage.nests):
        return 1
    work = sum(_cost(s) for n in stage.nests for s in walk(n.body))
    chains = 4 if work <= 6 else 2 if work <= 14 else 1
    while chains > 1 and likely(loops[-1].size) < chains * 2 * 64 // width:
        chains //= 2
    return chains


def _cost(s: Scalar) -> int:
    if isinstance(s, Const | Load | Index):
        return 1 if isinstance(s, Load) else 0
    return 1 if isinstance(s, Op) and s.name in CHEAP else 8
