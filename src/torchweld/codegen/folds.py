"""Reductions and scans: what they collect in, one class per way of running them."""

from __future__ import annotations

from dataclasses import dataclass

from torchweld.base.errors import InternalError
from torchweld.codegen.cpp_types import COMPUTED
from torchweld.codegen.sizes import likely
from torchweld.ir.dtype import DType
from torchweld.ir.expr import Expr, Int
from torchweld.ir.loop import Nest

KINDS = {
    "sum": "Sum", "prod": "Prod", "max": "Max", "min": "Min", "any": "Any", "all": "All",
    "argmax": "Max", "argmin": "Min",
    "scan_sum": "Sum", "scan_prod": "Prod", "scan_max": "Max", "scan_min": "Min",
}  # fmt: skip
ON_BOOL = {"Sum": "Any", "Max": "Any", "Prod": "All", "Min": "All", "Any": "Any", "All": "All"}
MODES = {"set": "Set", "add": "Sum", "mul": "Prod", "max": "Max", "min": "Min"}


@dataclass(frozen=True, slots=True)
class Fold:
    """How one nest's values are combined: `op` is a struct of the header, `dtype` what it holds."""

    name: str
    op: str
    dtype: DType
    positions: bool  # argmax, argmin
    scan: bool

    @property
    def computed(self) -> str:
        return COMPUTED[self.dtype]

    @property
    def start(self) -> str:
        """The value before anything was seen, as a C++ expression."""
        if self.dtype is DType.BOOL:
            return "true" if self.op == "All" else "false"
        return f"{self.op}::start<{self.computed}>"

    @property
    def lane_type(self) -> str:
        return "i32" if self.dtype is DType.BOOL else self.computed


# from how many f32 values per accumulator a plain sum would lose too much: then it runs in f64.
# A row is spread over at least 16 accumulators, and its horizontal sum is a tree.
LONG_COLUMN = 1024
LONG_ROW = 1 << 18


def collected(n: Nest, by_lane: bool) -> DType:
    """The dtype in which a nest's values are combined; `by_lane`: one accumulator per lane."""
    r = n.reduce
    assert r is not None
    dtype = n.body.dtype.compute
    if not dtype.is_float or r.kind.removeprefix("scan_") not in ("sum", "prod"):
        return dtype
    if r.is_scan:
        return DType.F64  # as in eager: a scan can be long, and is one chain
    count = 1
    for a in r.axes:
        count *= _many(a.size, by_lane)
    return DType.F64 if count >= (LONG_COLUMN if by_lane else LONG_ROW) else dtype


def _many(size: Expr, by_lane: bool) -> int:
    """For how many values an accumulator has to be good: of a size without bound for more than it
    likely has."""
    if isinstance(size, Int):
        return size.n
    if size.hi is not None:
        return size.hi
    return LONG_COLUMN if by_lane else likely(size) * 16


def fold_of(n: Nest, name: str, by_lane: bool = False) -> Fold:
    """The Fold of a nest that reduces or scans."""
    r = n.reduce
    if r is None or r.kind not in KINDS:
        raise InternalError(f"{n.out.name}: reduction {r.kind if r else None!r}")
    op = KINDS[r.kind]
    positions = r.kind.startswith("arg")
    dtype = collected(n, by_lane)
    if dtype is DType.BOOL:
        if positions:
            dtype = DType.I32
        else:
            op = ON_BOOL[op]
    return Fold(name, op, dtype, positions, r.is_scan)
