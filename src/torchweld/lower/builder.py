"""Builder: what a lowering may call to make nests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torchweld.base.errors import InternalError, LoweringError
from torchweld.ir.dtype import DType
from torchweld.ir.expr import ONE, ZERO, Expr
from torchweld.ir.loop import Axis, Buffer, Nest, Node, Reduce, View, axis
from torchweld.lower.tensor import (
    Idx,
    Spec,
    Tensor,
    dense,
    disjoint,
    lengthened,
    row_major,
    strided,
    whole,
)
from torchweld.lower.value import Val, constant

Body = Callable[[Idx], Val]


class Builder:
    """The program so far, and the FX node that is being lowered (its name and result Specs).

    used: which of its results anybody uses.
    overwrites: the node may write its result over its first argument.
    returned: the memory of its result is that of an output of the graph.
    """

    __slots__ = ("_names", "name", "nodes", "origins", "overwrites", "returned", "specs",
                 "used")  # fmt: skip

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.name = ""
        self.origins: tuple[str, ...] = ()
        self.specs: tuple[Spec, ...] = ()
        self.used: frozenset[int] = frozenset()
        self.overwrites = False
        self.returned = False
        self._names: set[str] = set()

    def begin(self, name: str, origins: tuple[str, ...], specs: tuple[Spec, ...]) -> None:
        """Turn to the FX node `name`."""
        self.name, self.origins, self.specs = name.replace("_default", ""), origins, specs
        self.used = frozenset()
        self.overwrites = self.returned = False

    @property
    def spec(self) -> Spec:
        """The Spec of the node's only (or first) result."""
        return self.specs[0]

    def buffer(self, spec: Spec, part: str = "", role: str = "temp",
               offset: Expr = ZERO) -> Buffer:  # fmt: skip
        """A new buffer for `spec`, named after the FX node and `part`."""
        base = f"{self.name}_{part}" if part else self.name
        name, n = base, 0
        while name in self._names:
            n += 1
            name = f"{base}_{n}"
        self._names.add(name)
        return Buffer.make(name, spec.dtype, spec.shape, spec.strides, offset, role, spec.device)

    def _target(self, spec: Spec, part: str) -> Buffer:
        """A buffer that nests write: gaps and overlaps of `spec` are not imitated, but for those
        behind rows, which are there on purpose."""
        if not spec.dtype.computed:
            raise LoweringError("W203", f"store of {spec.dtype.value} elements")
        if not dense(spec.shape, spec.strides) and not lengthened(spec.shape, spec.strides):
            spec = replace(spec, strides=row_major(spec.shape))
        return self.buffer(spec, part)

    def emit(self, body: Body, spec: Spec | None = None, part: str = "") -> Tensor:
        """A new tensor whose element at each index is `body(index)`, cast to its dtype."""
        spec = spec or self.spec
        out = self._target(spec, part)
        axes, idx = axes_of(spec.shape)
        value = body(idx).to(spec.dtype).s
        self.nodes.append(Nest(out, axes, idx, value, None, "set", self.origins))
        return whole(out)

    def blank(self, spec: Spec | None = None, part: str = "") -> Tensor:
        """A new tensor that nests are about to fill."""
        return whole(self._target(spec or self.spec, part))

    def based_on(self, t: Tensor) -> Tensor:
        """A copy of `t` to store into; `t` itself where the node may overwrite it."""
        b = t.buffer
        if self.overwrites and t.whole and disjoint(b.shape, b.strides):
            return t
        return self.emit(t.load)

    def temp(self, body: Body, like: Spec | Tensor, dtype: DType, part: str) -> Tensor:
        """`emit` into an intermediate with the shape of `like`, row-major."""
        device = like.device if isinstance(like, Spec) else like.buffer.device
        return self.emit(body, Spec(like.shape, row_major(like.shape), dtype, device), part)

    def store(self, out: Tensor, shape: Idx, index: Callable[[Idx], Idx], body: Body,
              mode: str = "set") -> None:  # fmt: skip
        """For every index of `shape`: out[index(idx)] = body(idx), combined by `mode`."""
        axes, idx = axes_of(shape)
        value = body(idx).to(out.dtype).s
        at = out.at(index(idx))
        self.nodes.append(Nest(out.buffer, axes, at, value, None, mode, self.origins))

    def reduce(self, kind: str, shape: Idx, dims: Sequence[int], body: Body, *,
               keepdim: bool = True, spec: Spec | None = None,
               part: str = "") -> Tensor:  # fmt: skip
        """REDUCE of `body` over `dims` of `shape`, in the body's dtype (argmax, argmin: i64).

        The result has `spec` if it is given and has that dtype; its dtype is never cast here.
        Shapes: `body` takes an index of `shape`; reduced dimensions stay with size 1 if `keepdim`.
        """
        reduced = set(dims)
        kept = tuple(ONE if d in reduced else n for d, n in enumerate(shape))
        axes, inner, idx = _split_axes(shape, reduced)
        value = body(idx)
        position = kind.startswith("arg")
        dtype = DType.I64 if position else value.dtype
        out_shape = kept if keepdim else tuple(n for d, n in enumerate(kept) if d not in reduced)
        if spec is None or spec.dtype is not dtype:
            spec = Spec(out_shape, row_major(out_shape), dtype, self.spec.device)
        out = self._target(spec, part)
        index = tuple(ZERO if d in reduced else i for d, i in enumerate(idx)
                      if keepdim or d not in reduced)  # fmt: skip
        if inner:
            how: Reduce | None = Reduce(kind, inner)
        else:
            how, value = None, constant(0, DType.I64) if position else value
        self.nodes.append(Nest(out, axes, index, value.s, how, "set", self.origins))
        return whole(out)

    def scan(self, kind: str, shape: Idx, dim: int, body: Body, spec: Spec, part: str) -> Tensor:
        """Inclusive scan of `body` along `dim`."""
        axes, inner, idx = _split_axes(shape, {dim})
        out = self._target(spec, part)
        how = Reduce(kind, inner) if inner else None
        self.nodes.append(Nest(out, axes, idx, body(idx).s, how, "set", self.origins))
        return whole(out)

    def copy(self, t: Tensor, spec: Spec | None = None, part: str = "copy") -> Tensor:
        """`t` in memory of its own (row-major unless `spec` says otherwise)."""
        if spec is None:
            spec = Spec(t.shape, row_major(t.shape), t.dtype, t.buffer.device)
        return self.emit(t.load, spec, part)

    def as_view(self, t: Tensor, strides: Idx) -> View:
        """`t` as a strided window, copied first if its index map is not one."""
        found = strided(t, strides)
        if found is None:
            if not t.dtype.computed:
                raise LoweringError("W203", f"copy of {t.dtype.value} elements")
            found = strided(self.copy(t), strides)
        if found is None:
            raise InternalError(f"copy of {t.buffer.name} has no strides")
        return found


def axes_of(shape: Idx) -> tuple[tuple[Axis, ...], Idx]:
    """One axis for each dimension that has more than one element, and the index they make."""
    axes: list[Axis] = []
    idx: list[Expr] = []
    for d, n in enumerate(shape):
        if n is ONE:
            idx.append(ZERO)
        else:
            a = axis(f"i{d}", n)
            axes.append(a)
            idx.append(a.sym)
    return tuple(axes), tuple(idx)


def _split_axes(shape: Idx, reduced: set[int]) -> tuple[tuple[Axis, ...], tuple[Axis, ...], Idx]:
    """Axes that stay, axes that are reduced, and the index into `shape` that they make."""
    outer: list[Axis] = []
    inner: list[Axis] = []
    idx: list[Expr] = []
    for d, n in enumerate(shape):
        if n is ONE:
            idx.append(ZERO)
            continue
        a = axis(f"r{d}" if d in reduced else f"i{d}", n)
        (inner if d in reduced else outer).append(a)
        idx.append(a.sym)
    return tuple(outer), tuple(inner), tuple(idx)


def broadcast(idx: Idx, shape: Idx) -> Idx:
    """The index into `shape` of a tensor that is broadcast to the rank and sizes of `idx`."""
    skip = len(idx) - len(shape)
    return tuple(ZERO if n is ONE else i for i, n in zip(idx[skip:], shape, strict=True))

