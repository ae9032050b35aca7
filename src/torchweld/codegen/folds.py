"""Reductions and scans: what they collect in, one class per way of running them."""

from __future__ import annotations

from dataclasses import dataclass

from torchweld.base.errors import InternalError
from torchweld.codegen.cpp_types import COMPUTED
from torchweld.ir.dtype import DType
from torchweld.ir.loop import Nest, Reduce

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


def fold_of(n: Nest, name: str) -> Fold:
    """The Fold of a nest that reduces or scans."""
    r = n.reduce
    if r is None or r.kind not in KINDS:
        raise InternalError(f"{n.out.name}: reduction {r.kind if r else None!r}")
    op = KINDS[r.kind]
    positions = r.kind.startswith("arg")
    dtype = n.body.dtype.compute
    if dtype is DType.BOOL:
        if positions:
            dtype = DType.I32
        else:
            op = ON_BOOL[op]
    return Fold(name, op, _carried(r, op, dtype), positions, r.is_scan)


def _carried(r: Reduce, op: str, dtype: DType) -> DType:
    """Sums along a scan are carried in double precision, as eager does: they can be long."""
    return DType.F64 if r.is_scan and dtype.is_float and op in ("Sum", "Prod") else dtype
