"""Plan steps -> the launch list: tensors by number, allocations, launches, ATen calls, views."""

from __future__ import annotations

from torchweld.base.errors import InternalError
from torchweld.codegen.sizes import likely, symbols_of
from torchweld.codegen.tiles import blocks_of, bundle_blocks
from torchweld.codegen.triton_index import reaches_of
from torchweld.ir.dtype import DType
from torchweld.ir.expr import ONE, ZERO, Expr, Int, Sym, as_expr
from torchweld.ir.loop import Axis, Buffer, Extern, ExternArg, Torch, View
from torchweld.ir.philox import DRAW
from torchweld.ir.plan import Bundle, Free, Kernel, Plan
from torchweld.ir.program import (
    Alloc,
    Call,
    CallArg,
    Draw,
    Drop,
    GridLaunch,
    Instruction,
    Launch,
    MakeView,
    Patch,
    SizeArg,
    Sizes,
    TensorArg,
    TensorSpec,
    TorchArg,
)
from torchweld.ir.program_sizes import Table


def extent_of(k: Kernel) -> Expr:
    """How many indices a call of the kernel runs over."""
    axes: tuple[Axis, ...] = k.grid or ((k.lanes,) if k.lanes is not None else ())
    total: Expr = ONE
    for a in axes:
        total = total * a.size
    return total


def _made(step: object) -> tuple[Buffer, ...]:
    """The memory that is there after a step."""
    if isinstance(step, Extern):
        return step.outs
    return step.args if isinstance(step, Kernel | Bundle) else ()


class Assembler:
    """Numbers the tensors of a Plan while its steps become instructions."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tensors: list[TensorSpec] = []
        self.steps: list[Instruction] = []
        self.number: dict[Buffer, int] = {}
        self._slots = {s.buffer: s for s in plan.slots}
        self._fresh = set(plan.fresh)
        self._views: dict[View, int] = {}
        self._drawn: set[Buffer] = set()
        self._table = Table(plan.graph.sizes)
        self._patches: list[Patch] = []
        self._numbers: dict[Sym, int] = {}
        self._limits: list[Expr] = []  # what has to fit in 32 bits
        given = [b for b in plan.graph.inputs if b.role == "input"]
        for i, b in enumerate(given):
            self._bind(b, "input", i)
        for i, b in enumerate(plan.graph.inputs[len(given) :]):
            self._bind(b, "const", i)

    def assemble(self, functions: dict[str, str]) -> None:
        """Every step in order. functions: kernel name -> name of its function.

        Views that are returned are made behind the step that makes their memory: the work of equal
        layers is then equal (ir/lengthen.py).
        """
        returned: dict[Buffer, list[View]] = {}
        for v in self.plan.graph.outputs:
            if v is not None and not v.whole and v.buffer not in self.number:
                returned.setdefault(v.buffer, []).append(v)
        for step in self.plan.steps:
            match step:
                case Kernel():
                    self._launch(step, functions[step.name])
                case Bundle():
                    self._grid_launch(step, functions[step.name], as_expr(bundle_blocks(step)))
                case Extern(op=op) if op == DRAW:
                    self._draw(step)
                case Extern():
                    self._call(step)
                case Free() if step.buffer not in self._drawn:
                    self.steps.append(Drop(self.number[step.buffer]))
                    self._forget_views(step.buffer)
            for b in _made(step):
                for v in returned.pop(b, ()):
                    self._view(v)

    def outputs(self) -> tuple[int | None, ...]:
        """The tensor number of each output; views of inputs are made at the end of the call."""
        return tuple(None if v is None else self._view(v) for v in self.plan.graph.outputs)

    def _add(self, spec: TensorSpec) -> int:
        self.tensors.append(spec)
        return len(self.tensors) - 1

    def _bind(self, b: Buffer, place: str, index: int) -> int:
        self.number[b] = self._strided(place, index, b.dtype, b.device, b)
        return self.number[b]

    def _strided(self, place: str, index: int, dtype: DType, device: str, x: Buffer | View) -> int:
        """A new tensor with the sizes, strides and offset of `x`; what is symbolic is patched."""
        n = len(self.tensors)
        sizes = tuple(self._int(e, "size", n, d) for d, e in enumerate(x.shape))
        strides = tuple(self._int(e, "stride", n, d) for d, e in enumerate(x.strides))
        offset = self._int(x.offset, "offset", n)
        return self._add(TensorSpec(place, index, dtype, sizes, strides, offset, device))

    def _int(self, e: Expr, what: str, at: int, dim: int = 0) -> int:
        """The value of a size, or its hint, with a patch for what a call knows better."""
        if isinstance(e, Int):
            return e.n
        self._patches.append(Patch(what, at, dim, self._table.row(e)))
        return likely(e)

    def sizes(self) -> Sizes | None:
        """What depends on the sizes of a call; None if the graph has no symbolic size."""
        g = self.plan.graph
        if not g.sizes:
            return None
        if len(g.readings) != len(g.sizes):
            raise InternalError(f"sizes {g.sizes}, but only {len(g.readings)} readings")
        readings = tuple((r.kind, r.input, r.dim) for r in g.readings)
        bounds = tuple((s.smin, s.smax) for s in g.sizes)
        limits = tuple(dict.fromkeys(self._table.row(e) for e in self._limits))
        return Sizes(readings, bounds, tuple(self._table.code), tuple(self._patches), limits)

    def _tensor(self, b: Buffer) -> int:
        """The number of `b`, given memory at its first use."""
        if b in self.number:
            return self.number[b]
        if b in self._fresh:
            n = self._bind(b, "fresh", 0)
            self.steps.append(Alloc(n))
            return n
        slot = self._slots.get(b)
        if slot is None:
            raise InternalError(f"{b.name} has no memory: neither slot, fresh, input nor result")
        return self._bind(b, "arena", slot.offset)

    def _view(self, v: View) -> int:
        base = self._tensor(v.buffer)
        if v.whole:
            return base
        if v not in self._views:
            b = v.buffer
            self._views[v] = self._strided("view", base, b.dtype, b.device, v)
            self.steps.append(MakeView(self._views[v], base))
        return self._views[v]

    def _forget_views(self, b: Buffer) -> None:
        """Views of a released tensor hold its memory: they go with it."""
        for v in [v for v in self._views if v.buffer is b]:
            self.steps.append(Drop(self._views.pop(v)))

    def _launch(self, k: Kernel, function: str) -> None:
        if k.tile is not None:
            self._grid_launch(k, function, blocks_of(k))
            return
        args = self._args(k)
        extent = extent_of(k)
        if extent is not ZERO:
            n = self._int(extent, "extent", len(self.steps))
            self.steps.append(Launch(function, args, n, max(k.grain, 1)))

    def _grid_launch(self, k: Kernel | Bundle, function: str, blocks: Expr) -> None:
        args = self._args(k)
        if blocks is ZERO:
            return
        if isinstance(k, Kernel):
            self._limits += [e for e in reaches_of(k) if not isinstance(e, Int)]
        n = self._int(blocks, "blocks", len(self.steps))
        self.steps.append(GridLaunch(function, args, n))

    def _args(self, k: Kernel | Bundle) -> tuple[int, ...]:
        """The tensors of a launch: its buffers, then its symbolic sizes."""
        return (*(self._tensor(b) for b in k.args), *map(self._symbol, symbols_of(k)))

    def _symbol(self, s: Sym) -> int:
        """The tensor that is the value of a symbolic size."""
        if s not in self._numbers:
            n = len(self.tensors)
            index = self._int(s, "index", n)
            self._numbers[s] = self._add(TensorSpec("number", index, DType.I64, (), (), 0))
        return self._numbers[s]

    def _draw(self, x: Extern) -> None:
        device, count = x.args
        seed, block = (self._bind(b, "state", 0) for b in x.outs)
        self._drawn |= set(x.outs)
        if not isinstance(device, str) or not isinstance(count, int):
            raise InternalError(f"{DRAW} of {x.args}")
        self.steps.append(Draw(device, count, seed, block))

    def _call(self, x: Extern) -> None:
        args = tuple(self._arg(a) for a in x.args)
        kwargs = tuple((name, self._arg(a)) for name, a in x.kwargs)
        results = tuple(self._bind(b, "extern", 0) for b in x.outs)
        self.steps.append(Call(x.op, args, kwargs, results))

    def _arg(self, a: ExternArg) -> CallArg:
        match a:
            case View():
                return TensorArg(self._view(a))
            case Torch():
                return TorchArg(a.kind, a.name)
            case Expr():
                return a.n if isinstance(a, Int) else SizeArg(self._table.row(a))
            case tuple():
                return tuple(self._arg(x) for x in a)
            case _:
                return a
