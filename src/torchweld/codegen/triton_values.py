"""Scalars as named tile values: every shared value once, and outside of the loop if it can be.

A value has dimensions: POINTS if it differs between the points of the block, STEPS if it differs
between the steps of a stage. Triton broadcasts where both meet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torchweld.base.errors import InternalError, Unsupported
from torchweld.codegen.cpp_index import flat, memory_bytes
from torchweld.codegen.guarded import Guard, Guarded, loaded
from torchweld.codegen.sizes import likely
from torchweld.codegen.tiles import TiledKernel, TiledStage
from torchweld.codegen.triton_align import Shift, row_start, shift_of
from torchweld.codegen.triton_coarse import coarse
from torchweld.codegen.triton_index import Split, index_text, wide, wide_value
from torchweld.codegen.triton_ops import cast_text, fast_text, infix, needs_type, op_text
from torchweld.codegen.triton_types import NARROW, keeps_type, literal, minus_zero, typed
from torchweld.ir.dtype import DType
from torchweld.ir.expr import Expr, Ind, Int, Sym, atoms
from torchweld.ir.loop import Buffer, Const, Index, Load, Op, Scalar, const, loads, walk

POINTS, STEPS = 1, 2
STREAM = 64 << 20  # bytes: more than the L2 cache of any GPU so far


@dataclass(frozen=True, slots=True)
class Val:
    """A Triton expression without side effects. inner: it is known in the open loop only.

    literal: a Python number, whose type is that of what it meets.
    """

    text: str
    dims: int = 0
    inner: bool = False
    literal: bool = False


class TileValues(Guarded[Val]):
    """The values of one kernel. Subclassed by the printer of whole kernels."""

    def __init__(self, tiled: TiledKernel) -> None:
        super().__init__()
        self.tiled = tiled
        self.lines: list[str] = []
        self.body: list[str] | None = None  # the lines of the open loop
        self.memo: dict[object, Val] = {}
        self.inner_memo: dict[object, Val] = {}
        self.bound: dict[Buffer, tuple[Val, tuple[Expr, ...]]] = {}  # locals
        self.private = frozenset(x.buffer for x in tiled.kernel.locals)
        self.pointers: dict[Buffer, str] = {}
        self.by_value: dict[Buffer, str] = {}  # CPU scalars
        self.stage: TiledStage | None = None
        self.paired: TiledStage | None = None  # the stage that runs in one pass with the open one
        self.step_name = ""
        self.step_mask: Val | None = None
        self.point_mask: Val | None = None
        self.shift: Shift | None = None  # of the open stage, whose steps then begin at it
        self.step_dims = 0  # the dimensions of r: the points' too where their rows are shifted
        self.aligned_name = ""
        self.group_mask: Val | None = None
        self.unstable: set[Buffer] = set()  # written in the open stage: never hoisted
        nests = [n for s in tiled.stages for n in s.nests]
        self.coarse = coarse(nests, self.private)
        self.checks = False
        self.sizes: dict[Expr, str] = {}  # symbolic sizes, which are parameters
        self.split: Split = lambda e: None
        self._count = 0
        self._reads: dict[Scalar, frozenset[Buffer]] = {}

    # --- names and lines

    def fresh(self, prefix: str = "v") -> str:
        self._count += 1
        return f"{prefix}{self._count - 1}"

    def line(self, text: str, inner: bool = True) -> None:
        """Add a line to the open loop, or before it."""
        lines = self.body if inner and self.body is not None else self.lines
        lines.append(text)

    def name(self, text: str, dims: int, inner: bool) -> Val:
        v = Val(self.fresh(), dims, inner and self.body is not None)
        self.line(f"{v.text} = {text}", v.inner)
        return v

    def remember(self, key: object, v: Val) -> Val:
        (self.inner_memo if v.inner and self.body is not None else self.memo)[key] = v
        return v

    def recall(self, key: object) -> Val | None:
        return self.inner_memo.get(key) or self.memo.get(key)

    def forget(self, b: Buffer) -> None:
        """`b` was written: values that were read from it are out of date."""
        for memo in (self.memo, self.inner_memo):
            stale = [k for k in memo if b in self.reads_of(k)]
            for key in stale:
                del memo[key]

    def reads_of(self, key: object) -> frozenset[Buffer]:
        match key:
            case Scalar():
                if key not in self._reads:
                    self._reads[key] = frozenset(ld.buffer for ld in loads(key))
                return self._reads[key]
            case Guard():
                outer = self.reads_of(key.outer) if key.outer else frozenset()
                return self.reads_of(key.cond) | outer
            case (x, guard):
                return self.reads_of(x) | self.reads_of(guard)
        return frozenset()

    def shape(self, dims: int, group: int = 1) -> str:
        """The tile shape of a value with these dimensions, in the kernel's rank.

        group: how many steps share a value.
        """
        lanes = self.stage.lanes // group if self.stage and dims & STEPS else 1
        if not self.by_row:
            return f"[{self.tiled.points if dims & POINTS else lanes}]" if dims else "[]"
        return f"[{self.tiled.points if dims & POINTS else 1}, {lanes}]" if dims else "[]"

    @property
    def steps(self) -> int:
        """The dimension of what differs by step: none in a stage that takes one step at a time."""
        return STEPS if self.stage is not None and self.stage.lanes > 1 else 0

    @property
    def full(self) -> int:
        """The dimensions of a whole tile of the open stage."""
        return self.steps | (POINTS if self.tiled.points > 1 else 0)

    @property
    def by_row(self) -> bool:
        """Whether tiles have two axes, points and steps."""
        t = self.tiled
        return t.points > 1 and any(s.lanes > 1 for s in t.stages)

    def spread(self, v: Val, dims: int) -> str:
        """`v` with at least these dimensions."""
        if v.dims | dims == v.dims:
            return v.text
        if v.literal:
            raise InternalError("a literal has no type of its own")
        return f"tl.broadcast_to({v.text}, {self.shape(v.dims | dims)})"

    # --- scalars

    def constant(self, x: Const) -> Val:
        v = Val(literal(x), literal=True)
        return self.tensor(x, v) if minus_zero(x) else v

    def in_registers(self, b: Buffer) -> bool:
        return b in self.bound

    def in_push_order(self, found: list[Scalar]) -> list[Scalar]:
        return found[::-1]

    def _index(self, x: Index, guard: Guard | None) -> Val:
        return self.index(x.expr, guard, DType.I64)

    def tensor(self, x: Scalar, v: Val) -> Val:
        """`v`, the value of `x`, as something that has a type."""
        if not v.literal:
            return v
        assert isinstance(x, Const)
        return self.recall(x) or self.remember(x, self.name(typed(x), 0, False))

    def _arguments(self, x: Op, args: list[Val], plain: bool) -> list[Val]:
        """`args` with a type where a literal would get another one. plain: written infix."""
        if all(a.literal for a in args):
            args = [self.tensor(x.args[0], args[0]), *args[1:]]
        return [
            self.tensor(s, a) if a.literal and needs_type(x, s, plain) else a
            for s, a in zip(x.args, args, strict=True)
        ]

    def _op(self, x: Op, guard: Guard | None) -> Val:
        args = self._arguments(x, [self.value(a, guard) for a in x.args], infix(x))
        dims, inner = joined(args)
        texts = [_operand(a) for a in args]
        if x in self.coarse:
            by_row = bool(dims & STEPS) and not (args[-1].dims & STEPS or args[-1].literal)
            return self.name(fast_text(x, texts, by_row), dims, inner)
        return self.name(op_text(x, texts), dims, inner)

    def _cast(self, x: Op, guard: Guard | None) -> Val:
        source = x.args[0]
        if isinstance(source, Index) and x.dtype is DType.I32:
            return self.index(source.expr, guard, DType.I32)
        return self.convert(self.tensor(source, self.value(source, guard)), source.dtype, x.dtype)

    def convert(self, v: Val, src: DType, dst: DType) -> Val:
        text = None if src is dst else cast_text(src, dst, v.text)
        return v if text is None else self.name(text, v.dims, v.inner)

    def _where(self, x: Op, guard: Guard | None) -> Val:
        cond, yes, no = x.args
        c = self.tensor(cond, self.value(cond, guard))
        a = self.value(yes, Guard(guard, cond, True) if self.unsafe(yes) else None)
        b = self.value(no, Guard(guard, cond, False) if self.unsafe(no) else None)
        a, b = (self.tensor(s, v) if v.literal and not keeps_type(s) else v
                for s, v in ((yes, a), (no, b)))  # fmt: skip
        dims, inner = joined([c, a, b])
        return self.name(f"tl.where({c.text}, {a.text}, {b.text})", dims, inner)

    def _check(self, x: Op, guard: Guard | None) -> Val:
        self.checks = True
        i, n = (self.tensor(a, self.value(a, guard)) for a in x.args)
        dims, inner = joined([i, n])
        mask = self.mask(dims, guard)
        mask = mask or self.tensor(const(True, DType.BOOL), Val("True", literal=True))
        dims, inner = joined([i, n, mask])
        return self.name(f"weld.{x.name}({i.text}, {n.text}, {mask.text})", dims, inner)

    # --- guards and masks

    def condition(self, g: Guard) -> Val:
        """The bool under which a guarded value is needed."""
        hit = self.recall(g)
        if hit is not None:
            return hit
        c = self.tensor(g.cond, self.value(g.cond, g.outer))
        if not g.wanted:
            c = self.name(f"~{c.text}", c.dims, c.inner)
        if g.outer is not None:
            o = self.condition(g.outer)
            c = self.name(f"{o.text} & {c.text}", *joined([o, c]))
        return self.remember(g, c)

    def mask(self, dims: int, guard: Guard | None, steps: Val | None = None) -> Val | None:
        """Where an access with these dimensions is inside of the kernel; None: everywhere.

        steps: a mask of the steps that the access may use instead of the exact one.
        """
        parts = [self.condition(guard)] if guard is not None else []
        dims |= parts[0].dims if parts else 0
        steps = steps or self.step_mask
        if steps is not None and dims & STEPS:
            parts.insert(0, steps)
        if self.point_mask is not None and dims & POINTS:
            parts.insert(0, self.point_mask)
        if not parts:
            return None
        text = " & ".join(p.text for p in parts)
        return Val(text, *joined(parts))

    # --- indices

    def leaf(self, guard: Guard | None, big: bool) -> Callable[[Expr], str]:
        def text(a: Expr) -> str:
            if isinstance(a, Ind):
                x = loaded(a)
                v = self.tensor(x, self.value(x, guard))
                return self.convert(v, x.dtype, DType.I64 if big else DType.I32).text
            found = self.symbol(a)
            return f"{found}.to(tl.int64)" if big else found

        return text

    def near(self, big: bool) -> Split:
        """What names quotients of positions, in 32 bits."""
        return (lambda e: None) if big else self.split

    def symbol(self, a: Expr) -> str:
        if a is self.tiled.point:
            return "p"
        if self.stage is not None and a is self.stage.step:
            return self.step_name
        if a in self.sizes:
            return self.sizes[a]
        raise InternalError(f"index {a.text()} is used outside of its loop")

    def extent_text(self, e: Expr) -> str:
        """A size of the kernel."""
        return index_text(e, self.leaf(None, False))

    def reach(self, e: Expr, guard: Guard | None) -> tuple[int, bool]:
        """The dimensions of an index expression, and whether it is known in the open loop only."""
        dims, inner = 0, False
        for a in () if isinstance(e, Int) else atoms(e):
            if isinstance(a, Ind):
                v = self.value(loaded(a), guard)
                dims, inner = dims | v.dims, inner or v.inner
            elif a in self.sizes:
                continue
            elif a is self.tiled.point:
                dims |= POINTS if self.tiled.points > 1 else 0
            else:
                self.symbol(a)
                dims, inner = dims | self.step_dims, True
        return dims, inner

    def index(self, e: Expr, guard: Guard | None, dtype: DType) -> Val:
        """The value of an index expression, as i64 or as i32."""
        if isinstance(e, Int):
            c = const(e.n, dtype)
            return self.tensor(c, Val(literal(c), literal=True))
        big = dtype is DType.I64 and wide_value(e)
        text = index_text(e, self.leaf(guard, big), self.near(big))
        if dtype is DType.I64 and not big:
            text = f"({text}).to(tl.int64)" if " " in text else f"{text}.to(tl.int64)"
        if isinstance(e, Sym) and dtype is DType.I32:
            return Val(text, *self.reach(e, guard))
        return self.name(text, *self.reach(e, guard))

    # --- loads

    def _load(self, x: Load, guard: Guard | None) -> Val:
        if x.buffer in self.bound:
            return self._local(x)
        if x.buffer in self.by_value:
            return self._argument(x)
        pointer = self.pointers.get(x.buffer)
        if x.buffer in self.private:
            why = f"local {x.buffer.name} in a tile: it is read outside of the loop that writes it"
            raise Unsupported("W202", why)
        if pointer is None:
            raise InternalError(f"{x.buffer.name} is read before the kernel wrote it")
        if any(isinstance(n, Int) and n.n == 0 for n in x.buffer.shape):
            zero: float | int = 0.0 if x.dtype.is_float else 0
            return self.tensor(c := const(zero, x.dtype), Val(literal(c), literal=True))
        e = flat(x.buffer.strides, x.index)
        dims, inner = self.reach(e, guard)
        aligned = None if guard else self.aligned(x)
        mask = self.mask(dims, guard, self.group_mask if aligned else None)
        if mask is not None:
            if mask.dims and not dims:  # a block needs a block of pointers
                pointer = f"tl.broadcast_to({pointer}, {self.shape(mask.dims)})"
            dims, inner = dims | mask.dims, inner or mask.inner
        inner = inner or x.buffer in self.unstable
        text = f"tl.load({aligned or self.address(pointer, e, guard)}"
        text += f", mask={mask.text}" if mask else ""
        text += self.policy(x) + ")"
        if x.dtype in NARROW:
            text += ".to(tl.float32)"
        return self.name(text, dims, inner)

    def aligned(self, x: Load) -> str | None:
        """The address of a row's tile from its aligned start, if the open stage has one for it."""
        step = self.stage.step if self.stage else None
        if self.shift is None or step is None or x.buffer in self.unstable:
            return None
        if shift_of(x, step) != self.shift:
            return None
        start = row_start(x, step)
        assert start is not None
        start = start // self.shift.group * self.shift.group
        text = index_text(start, self.leaf(None, wide(start)), self.near(wide(start)))
        return f"{self.pointers[x.buffer]} + ({text} + {self.aligned_name})"

    def policy(self, x: Load) -> str:
        """How long the cache should keep what is loaded: until a later pass over the row, or not.

        A tensor that no cache holds makes room at once, if every element of it is read once.
        """
        if self.stage is not None and self.stage.looped:
            later = self.tiled.stages[self.tiled.stages.index(self.stage) + 1 :]
            if any(x in walk(n.body) for s in later if s is not self.paired for n in s.nests):
                return ', eviction_policy="evict_last"'
        extent = likely(self.stage.extent) if self.stage else 1
        once = likely(self.tiled.total) * extent * x.dtype.bytes <= memory_bytes(x.buffer)
        gathered = any(
            isinstance(a, Ind) for e in x.index if not isinstance(e, Int) for a in atoms(e)
        )
        large = once and not gathered and memory_bytes(x.buffer) >= STREAM
        return ', eviction_policy="evict_first"' if large else ""

    def address(self, pointer: str, e: Expr, guard: Guard | None) -> str:
        text = index_text(e, self.leaf(guard, wide(e)), self.near(wide(e)))
        if text == "0":
            return pointer
        return f"{pointer} + ({text})" if " " in text else f"{pointer} + {text}"

    def _local(self, x: Load) -> Val:
        v, index = self.bound[x.buffer]
        if v.dims & STEPS and x.index != index:
            raise InternalError(f"local {x.buffer.name} is read where it was not written")
        return v

    def _argument(self, x: Load) -> Val:
        text = self.by_value[x.buffer]
        if x.dtype is DType.BOOL:
            return self.name(f"{text} != 0", 0, False)
        return self.name(f"{text}.to(tl.float32)", 0, False) if x.dtype in NARROW else Val(text)


def joined(vals: list[Val]) -> tuple[int, bool]:
    """The dimensions of what is made of `vals`, and whether it is known in the open loop only."""
    dims = 0
    for v in vals:
        dims |= v.dims
    return dims, any(v.inner for v in vals)


def _operand(v: Val) -> str:
    return f"({v.text})" if v.literal and v.text.startswith("-") else v.text
