"""TiledKernel -> Triton function. Equal kernels have equal texts, wherever they stand."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from torchweld.base.errors import InternalError, Unsupported
from torchweld.codegen.cpp_index import paren
from torchweld.codegen.sizes import symbols_of
from torchweld.codegen.tiles import (
    OnePass,
    TiledKernel,
    TiledNest,
    TiledStage,
    check_order,
    index_scalars,
    one_pass,
    tiled,
)
from torchweld.codegen.triton_align import Shift, shift_for
from torchweld.codegen.triton_float8 import float8_text
from torchweld.codegen.triton_folds import TileFolds, collected
from torchweld.codegen.triton_index import LIMIT, Splits, index_text, wide
from torchweld.codegen.triton_ops import narrowed
from torchweld.codegen.triton_random import RANDOM_TEXT
from torchweld.codegen.triton_types import COMPUTED, NARROW, signature_type
from torchweld.codegen.triton_values import POINTS, STEPS, Val
from torchweld.ir.dtype import DType
from torchweld.ir.expr import ZERO, Int, Sym
from torchweld.ir.loop import Buffer, Load, Op, Scalar, loads
from torchweld.ir.plan import Kernel
from torchweld.ir.program import Artifact

IMPORTS = """\
import triton
import triton.language as tl
import weld_triton as weld
"""
HEAD = """

@triton.jit
"""
ATOMIC = frozenset({DType.F64, DType.F32, DType.F16, DType.BF16, DType.I64, DType.I32})


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """A kernel as text, with @ where its name goes. role: what it does, in a word.

    parts: texts of the functions that it calls.
    """

    role: str
    text: str
    options: tuple[tuple[str, int | str], ...]
    parts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Equal kernels have equal names, in whatever graph they are."""
        whole = f"{''.join(self.parts)}{self.text}{self.options}"
        key = hashlib.sha256(whole.encode()).hexdigest()
        return f"{self.role}_{key[:10]}"

    def artifact(self) -> Artifact:
        texts = (*self.parts, self.text.replace("@", self.name, 1))
        whole = "".join(texts)
        own = (RANDOM_TEXT if "philox(" in whole else "") + float8_text(whole)
        source = IMPORTS + own + "".join(HEAD + t for t in texts)
        return Artifact("triton", source, (self.name,), self.options)


def print_tiled(kernel: Kernel) -> TritonKernel:
    """The Triton form of a kernel with a tile. Errors: Unsupported W202 for what it cannot be."""
    return TilePrinter(tiled(kernel)).kernel()


class TilePrinter(TileFolds):
    """Prints one kernel. part: its block, and its points if a mask needs them, are parameters."""

    def __init__(self, t: TiledKernel, part: bool = False) -> None:
        super().__init__(t)
        k = t.kernel
        self.part = part
        self.head = ""  # of the open loop
        self.known_steps: dict[Sym, tuple[str, int, Val | None, str, Val | None]] = {}
        self.shifts: dict[Sym, Shift | None] = {}
        self.done_reads: set[Buffer] = set()  # since the last barrier
        self.done_writes: set[Buffer] = set()
        self.loaded: set[Buffer] = set()
        for n in (n for s in t.stages for n in s.nests):
            for x in (n.body, *index_scalars(n.index)):
                self.loaded |= {ld.buffer for ld in loads(x)}
            self.loaded |= {n.out} if n.mode != "set" else set()
        self.sizes.update({s: f"z{i}" for i, s in enumerate(symbols_of(k))})
        self.params = [f"t{i}" for i in range(len(k.args))]
        cuda = any(b.device != "cpu" for b in k.args)
        for name, b in zip(self.params, k.args, strict=True):
            here = self.by_value if cuda and b.device == "cpu" else self.pointers
            here[b] = name

    # --- the function

    def kernel(self) -> TritonKernel:
        for z in self.sizes.values():  # no value is larger: the driver looks
            self.line(f"{z} = {z}.to(tl.int32)")
        self._points()
        stages = self.tiled.stages
        while stages:
            both = one_pass(stages, self.private)
            if both is None:
                self._stage(stages[0])
            else:
                self._together(both)
            stages = stages[1 if both is None else 2 + len(both.between) :]
        given = ["block", *(["points"] if self.tiled.masked else [])] if self.part else []
        head = f"def @({', '.join([*self.params, *self.sizes.values(), *given])}):"
        text = "\n".join([head, *(f"    {line}" for line in self.lines or ["pass"])])
        return TritonKernel(self._role(), text + "\n", self._options())

    def _points(self) -> None:
        t = self.tiled
        if t.point is None:
            return
        block = "block" if self.part else "tl.program_id(0)"
        if t.total.is_const and t.total.value > LIMIT:
            block += ".to(tl.int64)"
        if t.points == 1:
            self.line(f"p = {block}")
            return
        self.split = Splits(t.point, block, t.points, self._before, self.extent_text).text
        text = f"{block} * {t.points} + tl.arange(0, {t.points})"
        self.line(f"p = ({text})[:, None]" if self.by_row else f"p = {text}")
        if t.masked:
            self.line(f"in_p = p < {'points' if self.part else self.extent_text(t.total)}")
            self.point_mask = Val("in_p", POINTS)

    def _before(self, text: str) -> None:
        """A line in front of the loop that is open."""
        self.line(text, inner=False)

    def _role(self) -> str:
        nests = [n for s in self.tiled.stages for n in s.nests]
        folds = [n.fold for n in nests if n.fold is not None]
        if any(n.atomic for n in nests):
            return "scatter"
        if any(f.scan for f in folds):
            return "scan"
        return "reduce" if folds else "map"

    def _options(self) -> tuple[tuple[str, int | str], ...]:
        t = self.tiled
        kinds = " ".join([*(self.parameter(b) for b in t.kernel.args), *["i64"] * len(self.sizes)])
        found: list[tuple[str, int | str]] = [
            ("signature", kinds), ("num_warps", t.tile.warps), ("num_stages", t.tile.stages),
        ]  # fmt: skip
        return (*found, ("debug", 1)) if self.checks else tuple(found)

    def parameter(self, b: Buffer) -> str:
        if b in self.by_value:
            return "i8" if b.dtype is DType.BOOL else signature_type(b.dtype)
        aligned = b.offset * b.dtype.bytes % 16 is ZERO
        return f"*{signature_type(b.dtype)}" + (":16" if aligned else "")

    # --- stages

    def _enter(self, stage: TiledStage) -> None:
        """Name the steps of a stage that is one tile, or say that a loop will."""
        self.stage = stage
        self.step_mask = None
        check_order(stage, self.private)
        self.unstable = {n.out for n in stage.nests if n.out not in self.private}
        self.shift = self._shift(stage)
        if stage.step is None or stage.looped:
            return
        known = self.known_steps.get(stage.step)
        if known is None:
            self._steps(stage, self._lanes(stage), str(len(self.known_steps)), False)
            self.known_steps[stage.step] = (
                self.step_name, self.step_dims, self.step_mask, self.aligned_name, self.group_mask,
            )  # fmt: skip
            return
        self.step_name, self.step_dims, self.step_mask, self.aligned_name, self.group_mask = known

    def _shift(self, stage: TiledStage) -> Shift | None:
        if stage.step is None or stage.lanes == 1:
            return None
        if stage.step not in self.shifts:
            written = {n.out for s in self.tiled.stages for n in s.nests}
            found = shift_for(self.tiled.stages, stage.step, written, self.private)
            self.shifts[stage.step] = found
        return self.shifts[stage.step]

    def _steps(self, stage: TiledStage, lanes: str, number: str, inner: bool) -> None:
        """Define the steps r of a tile, and where they lie in the row."""
        self.step_name, self.aligned_name = f"r{number}", f"w{number}"
        self.step_mask = self.group_mask = None
        self.step_dims = self.steps
        r, w, n = self.step_name, self.aligned_name, paren(self.extent_text(stage.extent))
        if self.shift is None:
            self.line(f"{r} = {lanes}")
            if stage.masked:
                self.line(f"in_{r} = {r} < {n}")
                self.step_mask = Val(f"in_{r}", STEPS, inner)
            return
        amount, group = self.shift.amount, self.shift.group
        self.step_dims |= self.reach(amount, None)[0]
        shift = index_text(amount, self.leaf(None, wide(amount)))
        self.line(f"{w} = {lanes}")
        self.line(f"{r} = {w} - ({shift})")
        self.line(f"in_{r} = ({r} >= 0) & ({r} < {n})")
        self.line(f"in_{w} = {w} // {group} * {group} < {n} + ({shift})")
        self.step_mask = Val(f"in_{r}", self.step_dims, inner)
        self.group_mask = Val(f"in_{w}", self.step_dims, inner)

    def _lanes(self, stage: TiledStage) -> str:
        text = f"tl.arange(0, {stage.lanes})"
        return f"{text}[None, :]" if self.by_row else text

    def _stage(self, stage: TiledStage) -> None:
        if stage.extent is ZERO:
            self._nothing(stage)
            return
        self._enter(stage)
        if stage.looped:
            self._loop(stage)
            return
        for n in stage.nests:
            self._order(n)
            if n.fold is None:
                self._emit(n)
            elif n.fold.scan:
                self._store_as(n, self.scanned(n, None), collected(n))
            else:
                self._finish(n, self.whole(n))

    def _nothing(self, stage: TiledStage) -> None:
        """A stage whose loops are empty: reductions give their neutral elements."""
        self.stage = stage
        for n in stage.nests:
            if n.fold is not None and not n.fold.scan:
                arg = n.fold.kind.startswith("arg")
                dtype = DType.I32 if arg else collected(n)
                start = "0" if arg else self.start(n)
                self._order(n)
                self._finish(n, self.name(f"tl.full([], {start}, {COMPUTED[dtype]})", 0, False))

    def _finish(self, n: TiledNest, v: Val) -> None:
        """Store what a fold has become."""
        assert n.fold is not None
        arg = n.fold.kind.startswith("arg")
        self.step_mask, mask = None, self.step_mask
        stage, self.stage = self.stage, None
        self._store_as(n, v, self.position_type(n) if arg else collected(n))
        self.stage, self.step_mask = stage, mask

    def _loop(self, stage: TiledStage) -> None:
        running = {n: self.begin(n) for n in stage.nests if n.fold is not None}
        self._open(stage)
        for n in stage.nests:
            self._order(n)
            if n.fold is None:
                self._emit(n)
            elif n.fold.scan:
                self._store_as(n, self.scanned(n, running[n]), collected(n))
            else:
                self.advance(running[n])
        self._close()
        for n, run in running.items():
            if n.fold is not None and not n.fold.scan:
                self._finish(n, self.finish(run))

    def _open(self, stage: TiledStage) -> None:
        s = self.fresh("s")
        read = {ld.buffer for n in stage.nests for ld in loads(n.body)}
        # loads that run ahead must not overtake a store to what they read
        depth = 1 if read & self.unstable else self.tiled.tile.stages
        beyond = self.shift.group - 1 if self.shift else 0
        over = f"0, {self.extent_text(stage.extent + beyond)}, {stage.lanes}"
        steps = f"tl.range({over}, num_stages={depth})" if depth > 1 else f"range({over})"
        self.head = f"for {s} in {steps}:"
        self.body = []
        long = stage.extent.is_const and stage.extent.value > LIMIT
        one = f"tl.full([], {s}, {COMPUTED[DType.I64 if long else DType.I32]})"
        self._steps(stage, f"{s} + {self._lanes(stage)}" if stage.lanes > 1 else one, "", True)
        if _crossing(stage, self.private):
            self._barrier()

    def _close(self) -> None:
        assert self.body is not None
        body, self.body = self.body, None
        self.line(self.head)
        self.lines += [f"    {line}" for line in body]
        self.inner_memo.clear()
        for b in [b for b, (v, _) in self.bound.items() if v.inner]:
            del self.bound[b]
        self.step_mask = None

    def _together(self, both: OnePass) -> None:
        """Two stages of a long row in one pass, and what stands between them."""
        self._enter(both.second)
        self._enter(both.first)
        self.paired = both.second
        pairs = {n: self.begin_pair(n, n in both.finite) for n in both.pairs}
        folds = [n for n in (*both.first.nests, *both.rest) if n.fold is not None]
        running = {n: self.begin(n) for n in folds if n not in pairs}
        self._open(both.first)
        for n in (*both.first.nests, *both.rest):
            self._order(n)
            if n in pairs:
                self.advance_pair(pairs[n])
            elif n.fold is None:
                self._emit(n)
            else:
                self.advance(running[n])
        self._close()
        for n, run in running.items():
            self._finish(n, self.finish(run))
        for n, pair in pairs.items():
            top, total = self.finish_pair(pair)
            self._finish(n, top)
            self._order(both.pairs[n])
            self._finish(both.pairs[n], total)
        self.paired = None
        for stage in both.between:
            self._stage(stage)

    # --- order in memory

    def _order(self, n: TiledNest) -> None:
        """A barrier if `n` touches memory that other threads of the block may have in hand."""
        roots: list[Scalar] = [n.body, *index_scalars(n.index)]
        found = [ld for x in roots for ld in loads(x)]
        reads = {ld.buffer for ld in found if ld.buffer in self.pointers and not self.recall(ld)}
        writes = {n.out} - self.private
        if n.mode != "set":
            reads |= writes
        if reads & self.done_writes or writes & (self.done_writes | self.done_reads):
            self._barrier()
        self.done_reads |= reads
        self.done_writes |= writes

    def _barrier(self) -> None:
        self.line("tl.debug_barrier()")
        self.done_reads.clear()
        self.done_writes.clear()

    # --- stores

    def _emit(self, n: TiledNest) -> None:
        """Computes and stores a pointwise nest."""
        body = n.body
        self.prepare(body)
        stored = n.out not in self.private and n.mode == "set"
        if stored and n.out.dtype in NARROW and _is_cast(body, n.out.dtype):
            assert isinstance(body, Op)
            body = body.args[0]  # the store rounds
        v = self.tensor(body, self.value(body))
        self._store_as(n, v, body.dtype)

    def _store_as(self, n: TiledNest, v: Val, dtype: DType) -> None:
        """Store `v`, which has `dtype` in registers (f32 where that is narrow)."""
        if n.out in self.private:
            if n.fold is not None and n.out.dtype in NARROW:
                v = self.convert(v, dtype, DType.F32)
                dtype = DType.F32
            v = self.convert(v, dtype, n.out.dtype)
            self.bound[n.out] = (v, n.index)
            self.forget(n.out)
            return
        if n.out not in self.pointers:
            raise InternalError(f"{n.out.name} is neither an argument nor local")
        if any(isinstance(size, Int) and size.n == 0 for size in n.out.shape):
            return
        v = self.convert(v, dtype, DType.F32 if n.out.dtype in NARROW else n.out.dtype)
        if n.atomic:
            self._atomic(n, v)
        else:
            self._store(n, v if n.mode == "set" else self._combined(n, v))

    def _combined(self, n: TiledNest, v: Val) -> Val:
        """`v` combined with what memory holds at its place."""
        old = self.value(Load.make(n.out, n.index))
        dims = old.dims | v.dims
        texts = {"add": f"{old.text} + {v.text}", "mul": f"{old.text} * {v.text}"}
        if n.mode in texts:
            return self.name(texts[n.mode], dims, True)
        if n.out.dtype is DType.BOOL:
            return self.name(f"{old.text} {'|' if n.mode == 'max' else '&'} {v.text}", dims, True)
        table = "weld" if n.out.dtype.is_float else "tl"
        return self.name(f"{table}.{n.mode}imum({old.text}, {v.text})", dims, True)

    def _store(self, n: TiledNest, v: Val) -> None:
        kept = n.out in self.loaded
        if n.out.dtype in NARROW:
            text = narrowed(v.text, n.out.dtype)
            narrow = self.name(text, v.dims, v.inner) if kept else Val(text, v.dims)
        else:
            narrow = v
        want = v.dims | (self.full if self.stage is not None else self.full & POINTS)
        dims, _ = self.reach(n.offset, None)
        pointer = self.pointers[n.out]
        if want & ~dims:
            pointer = f"tl.broadcast_to({pointer}, {self.shape(want)})"
        mask = self.mask(want, None)
        inside = f", mask={mask.text}" if mask else ""
        self.line(f"tl.store({self.address(pointer, n.offset, None)}, {narrow.text}{inside})")
        if not kept:
            return
        self.forget(n.out)
        if n.mode == "set":  # what was just stored need not be loaded at the same place
            again = v
            if n.out.dtype in NARROW:
                again = self.name(f"{narrow.text}.to(tl.float32)", v.dims, v.inner)
            self.remember(Load.make(n.out, n.index), again)

    def _atomic(self, n: TiledNest, v: Val) -> None:
        if n.out.dtype not in ATOMIC:
            why = f"{n.out.name}: several points add to one {n.out.dtype.value}: no atomics for it"
            raise Unsupported("W202", why)
        want = self.full if self.stage is not None else self.full & POINTS
        text = v.text if n.out.dtype not in NARROW else narrowed(v.text, n.out.dtype)
        far = wide(n.offset)
        at = index_text(n.offset, self.leaf(None, far), self.near(far))
        dims, _ = self.reach(n.offset, None)
        if want and not dims:
            integer = "tl.int64" if wide(n.offset) else "tl.int32"
            at = f"tl.full({self.shape(want)}, {at}, {integer})"
        elif want & ~dims:
            at = f"tl.broadcast_to({at}, {self.shape(want)})"
        mask = self.mask(want, None)
        inside = mask.text if mask else ""
        if not want:  # a block of one: there is no compare-and-swap in a loop on scalars
            at, inside = f"{at} + tl.arange(0, 1)", "tl.full([1], 1, tl.int1)"
        elif mask is None:
            inside = f"tl.full({self.shape(want)}, 1, tl.int1)"
        name = self.pointers[n.out]
        self.line(f"weld.atomic_{n.mode}({name}, {at}, {text}, {inside})")
        self.forget(n.out)


def _crossing(stage: TiledStage, private: frozenset[Buffer]) -> bool:
    """Whether a tile may touch memory that another nest wrote in the tile before."""
    for n in stage.nests:
        for m in stage.nests:
            touched = {m.out} | {ld.buffer for ld in loads(m.body)}
            if m is not n and n.out not in private and n.out in touched:
                return True
    return False


def _is_cast(x: Scalar, dtype: DType) -> bool:
    return isinstance(x, Op) and x.name == "cast" and x.dtype is dtype
