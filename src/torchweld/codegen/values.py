"""Scalars as named C++ values: every shared value once, as far out as it can be computed.

Loads that may lie out of bounds where a `where` does not take them are masked by its condition.
"""

from __future__ import annotations

from collections.abc import Callable

from torchweld.base.errors import InternalError, Unsupported
from torchweld.codegen.cpp_index import depends, lane_step, scalar_text, vector_text
from torchweld.codegen.cpp_ops import LONG, cast_text, op_text
from torchweld.codegen.cpp_types import literal
from torchweld.codegen.guarded import Guard, Guarded, loaded
from torchweld.codegen.levels import Nesting, Val
from torchweld.codegen.places import Memory, Place
from torchweld.ir.dtype import DType
from torchweld.ir.expr import Expr, Ind, Int, Sym, atoms
from torchweld.ir.loop import Buffer, Const, Index, Load, Op, const


class Values(Nesting, Guarded[Val]):
    """The values of one kernel. Subclassed by the printer of whole kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[Buffer, Place] = {}
        self.bound: dict[Buffer, Val] = {}  # register and scalar locals
        self.unstable: set[Buffer] = set()  # written in the open stage, or to memory: never hoisted
        self.lane: Sym | None = None  # the symbol of the open vector loop
        self.names: dict[Expr, str] = {}
        self.used: set[str] = set()
        self.checks = False
        self.long_calls = 0
        self._count = 0

    # --- naming

    def fresh(self, prefix: str = "v") -> str:
        self._count += 1
        return f"{prefix}{self._count - 1}"

    def name(self, text: str, vec: bool, level: int) -> Val:
        """A new name for `text`, declared at `level` (vectors: in the vector loop)."""
        if vec:
            level = self.innermost
        v = Val(self.fresh(), vec, level)
        self.line(f"auto {v.text} = {text};", level)
        return v

    def remember(self, key: object, v: Val) -> Val:
        self.levels[v.level].memo[key] = v
        return v

    def forget(self) -> None:
        """Something was stored: values of the innermost loop may be out of date."""
        self.levels[self.innermost].memo.clear()

    def as_vector(self, v: Val) -> str:
        return v.text if v.vec else f"splat({v.text}, k)"

    # --- scalars

    def constant(self, x: Const) -> Val:
        return Val(literal(x), False, 0)

    def _index(self, x: Index, guard: Guard | None) -> Val:
        return self.index(x.expr, guard)

    def _op(self, x: Op, guard: Guard | None) -> Val:
        args = [self.value(a, guard) for a in x.args]
        vec = any(a.vec for a in args)
        texts = [self.as_vector(a) if vec else a.text for a in args]
        self.long_calls += x.name in LONG
        return self.name(op_text(x, texts, vec), vec, max(a.level for a in args))

    def _cast(self, x: Op, guard: Guard | None) -> Val:
        source = x.args[0]
        if isinstance(source, Index) and x.dtype is DType.I32:
            return self.index(source.expr, guard, "i32")
        return self.convert(self.value(x.args[0], guard), x.args[0].dtype, x.dtype)

    def convert(self, v: Val, src: DType, dst: DType) -> Val:
        text = None if src is dst else cast_text(src, dst, v.text, v.vec)
        return v if text is None else self.name(text, v.vec, v.level)

    def _where(self, x: Op, guard: Guard | None) -> Val:
        cond, yes, no = x.args
        c = self.value(cond, guard)
        a = self.value(yes, Guard(guard, cond, True) if self.unsafe(yes) else None)
        b = self.value(no, Guard(guard, cond, False) if self.unsafe(no) else None)
        vec = c.vec or a.vec or b.vec
        texts = [self.as_vector(v) if vec else v.text for v in (c, a, b)]
        return self.name(f"where({', '.join(texts)})", vec, max(c.level, a.level, b.level))

    def _check(self, x: Op, guard: Guard | None) -> Val:
        self.checks = True
        i, n = (self.value(a, guard) for a in x.args)
        g = None if guard is None else self.condition(guard)
        level = max(i.level, n.level, g.level if g else 0)
        if i.vec or n.vec or (g is not None and g.vec):
            text = f"{x.name}({self.as_vector(i)}, {self.as_vector(n)}, {self._k(g)}, bad)"
            return self.name(text, True, level)
        text = f"{x.name}({i.text}, {n.text}, {g.text if g else 'true'}, bad)"
        return self.name(text, False, level)

    # --- guards

    def condition(self, g: Guard) -> Val:
        """The bool under which a guarded value is needed."""
        hit = self.recall(g)
        if hit is not None:
            return hit
        c = self.value(g.cond, g.outer)
        if not g.wanted:
            c = self.name(f"bnot({c.text})", c.vec, c.level)
        if g.outer is not None:
            o = self.condition(g.outer)
            vec = c.vec or o.vec
            texts = [self.as_vector(v) if vec else v.text for v in (o, c)]
            c = self.name(f"band({texts[0]}, {texts[1]})", vec, max(c.level, o.level))
        return self.remember(g, c)

    def _k(self, g: Val | None) -> str:
        return "k" if g is None else f"guard(k, {self.as_vector(g)})"

    # --- indices

    def spread(self, e: Expr, guard: Guard | None) -> tuple[int, bool]:
        """The level at which `e` is known, and whether a loaded index in it varies by lane."""
        level, varies = 0, False
        for a in () if isinstance(e, Int) else atoms(e):
            if isinstance(a, Ind):
                v = self.value(loaded(a), guard)
                level, varies = max(level, v.level), varies or v.vec
            elif a in self.depth_of:
                level = max(level, self.depth_of[a])
            else:
                raise InternalError(f"index {e.text()} uses {a.text()} outside of its loop")
        return level, varies

    def scalar_leaf(self, guard: Guard | None) -> Callable[[Expr], str]:
        def leaf(a: Expr) -> str:
            if isinstance(a, Ind):
                return self.value(loaded(a), guard).text
            return self.names[a]

        return leaf

    def vector_leaf(self, guard: Guard | None) -> Callable[[Expr], str]:
        def leaf(a: Expr) -> str:
            if isinstance(a, Ind):
                x = loaded(a)
                v = self.value(x, guard)
                return self.as_vector(self.convert(v, x.dtype, DType.I64))
            if a is self.lane:
                return f"iota(i64({self.names[a]}), i64(1), k)"
            text = str(a.n) if isinstance(a, Int) else self.names[a]
            return f"splat(i64({text}), k)"

        return leaf

    def size_text(self, e: Expr) -> str:
        """A size of the kernel. Errors: Unsupported W204 for a symbol that no call supplies."""
        return scalar_text(e, self._size_name)

    def _size_name(self, e: Expr) -> str:
        if e not in self.names:
            raise Unsupported("W204", f"a kernel over {e.text()}, which no call supplies")
        return self.names[e]

    def offset_text(self, e: Expr, guard: Guard | None) -> str:
        return scalar_text(e, self.scalar_leaf(guard))

    def address(self, p: Place, e: Expr, guard: Guard | None) -> str:
        self.used.add(p.name)
        text = self.offset_text(e, guard)
        return p.name if text == "0" else f"{p.name} + {text}"

    def lane_offsets(self, e: Expr, guard: Guard | None, varies: bool, k: str) -> str:
        """The offsets of all lanes, for gathers and scatters."""
        if varies:
            return f"as_offsets({vector_text(e, self.vector_leaf(guard))}, {k})"
        assert self.lane is not None
        c = self.names[self.lane]
        return f"each_lane({k}, {c}, [&](i64 {c}) {{ return {self.offset_text(e, guard)}; }})"

    def index(self, e: Expr, guard: Guard | None = None, kind: str = "i64") -> Val:
        """The value of an index expression, as i64, or as i32 for one that fits."""
        level, varies = self.spread(e, guard)
        lane = self.lane
        if varies:
            v = self.name(vector_text(e, self.vector_leaf(guard)), True, level)
            return v if kind == "i64" else self.convert(v, DType.I64, DType.I32)
        if lane is None or not depends(e, lane):
            if isinstance(e, Int):
                return Val(f"{kind}({e.n})", False, 0)
            return self.name(f"{kind}({self.offset_text(e, guard)})", False, level)
        step = lane_step(e, lane)
        if step is None:
            v = self.name(f"as_vec({self.lane_offsets(e, guard, False, 'k')})", True, level)
            return v if kind == "i64" else self.convert(v, DType.I64, DType.I32)
        start = f"{kind}({self.offset_text(e, guard)})"
        return self.name(f"iota({start}, {kind}({step}), k)", True, level)

    # --- loads

    def _load(self, x: Load, guard: Guard | None) -> Val:
        if x.buffer in self.bound:
            return self.bound[x.buffer]
        p = self.places.get(x.buffer)
        if p is None:
            raise InternalError(f"{x.buffer.name} is read before the kernel wrote it")
        if p.empty:
            zero: float | int = 0.0 if x.dtype.is_float else 0
            return Val(literal(const(zero, x.dtype)), False, 0)
        e = p.offset(x.index)
        level, varies = self.spread(e, guard)
        g = None if guard is None else self.condition(guard)
        level = max(level, g.level if g else 0, self._floor(x.buffer, p))
        lane = self.lane
        if varies or (g is not None and g.vec) or (lane is not None and depends(e, lane)):
            return self.name(self._vector_load(p, e, guard, g, varies), True, level)
        mask = "" if g is None else f", {g.text}"
        return self.name(f"get({self.address(p, e, guard)}{mask})", False, level)

    def _floor(self, b: Buffer, p: Place) -> int:
        """The outermost level at which `b` may be read."""
        if b in self.unstable:
            return self.innermost
        return 0 if isinstance(p, Memory) else min(self.private_level, self.innermost)

    private_level = 1  # private arrays change with each grid point (or strip of lanes)

    def _vector_load(self, p: Place, e: Expr, guard: Guard | None, g: Val | None,
                     varies: bool) -> str:  # fmt: skip
        k = self._k(g)
        step = None if varies or self.lane is None else lane_step(e, self.lane)
        if step is None:
            self.used.add(p.name)
            return f"gather({p.name}, {self.lane_offsets(e, guard, varies, k)}, {k})"
        at = self.address(p, e, guard)
        if step == 1:
            return f"load({at}, {k})"
        if step == 0 and g is None:
            return f"splat(get({at}), k)"
        return f"strided({at}, {step}, {k})"
