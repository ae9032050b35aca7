"""A vectorised interpreter of LoopGraph on torch tensors, independent of ir.loop_eval.

It runs whole models in seconds, so that lowering is checked on real sizes. Its arithmetic is that
of torch, element type by element type.
"""

from __future__ import annotations

import math

import torch

from torchweld.ir import loop_eval
from torchweld.ir.expr import Expr, FloorDiv, Ind, Int, Mod, Poly, Sym
from torchweld.ir.loop import (
    Buffer,
    Const,
    Extern,
    Index,
    Load,
    LoopGraph,
    Nest,
    Op,
    Scalar,
    Torch,
    View,
)
from torchweld.ir.loop_ops import CHECKS, FAILURES
from torchweld.lower.dtypes import dtype_of, torch_dtype


def run(g: LoopGraph, inputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """The outputs of `g`; mutated inputs are changed in place, aliases are views."""
    memory: dict[Buffer, torch.Tensor] = dict(zip(g.inputs, inputs, strict=True))
    for n in g.nodes:
        if isinstance(n, Nest):
            Points(n, memory).store()
        else:
            call(n, memory)
    return [None if v is None else window(v, memory) for v in g.outputs]


def ints(exprs: tuple[Expr, ...]) -> list[int]:
    return [e.value for e in exprs]


def window(v: View, memory: dict[Buffer, torch.Tensor]) -> torch.Tensor:
    base = memory[v.buffer]
    if v.whole:
        return base
    return torch.as_strided(base, ints(v.shape), ints(v.strides), v.offset.value)


def call(n: Extern, memory: dict[Buffer, torch.Tensor]) -> None:
    def argument(a):
        if isinstance(a, View):
            return window(a, memory)
        if isinstance(a, tuple):
            return [argument(x) for x in a]
        if isinstance(a, Torch):
            return torch.device(a.name) if a.kind == "device" else getattr(torch, a.name[6:])
        return a.value if isinstance(a, Expr) else a

    namespace, name, overload = n.op.split(".")
    op = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    result = op(*map(argument, n.args), **{k: argument(v) for k, v in n.kwargs})
    outs = list(result) if isinstance(result, tuple | list) else [result]
    for b, t in zip(n.outs, outs, strict=bool(n.outs)):
        assert list(t.shape) == ints(b.shape) and t.dtype == torch_dtype(b.dtype), (n.op, b)
        want = ints(b.strides)
        if t.layout is torch.strided and list(t.stride()) != want:
            t = torch.empty_strided(t.shape, want, dtype=t.dtype).copy_(t)
        memory[b] = t


class Points:
    """All points of a nest at once: one tensor dimension per axis."""

    def __init__(self, n: Nest, memory: dict[Buffer, torch.Tensor]) -> None:
        self.n, self.memory = n, memory
        axes = n.all_axes
        self.shape = [a.size.value for a in axes]
        self.env: dict[Expr, torch.Tensor] = {}
        for d, a in enumerate(axes):
            view = [1] * len(axes)
            view[d] = self.shape[d]
            self.env[a.sym] = torch.arange(self.shape[d]).reshape(view)
        self.known: dict[tuple[int, int], torch.Tensor] = {}

    def store(self) -> None:
        n = self.n
        if n.out not in self.memory:
            self.memory[n.out] = poison(n.out)
        out = self.memory[n.out]
        if 0 in self.shape[: len(n.axes)] or (n.reduce and n.reduce.is_scan and 0 in self.shape):
            return
        value = self.scalar(n.body, None).expand(self.shape).contiguous()
        shape = self.shape
        if n.reduce is not None and n.reduce.is_scan:
            value = SCANS[n.reduce.kind](value, len(shape) - 1)
        elif n.reduce is not None:
            shape = shape[: len(n.axes)]
            flat = value.reshape(*shape, math.prod(self.shape[len(n.axes) :]))
            value = reduced(n.reduce.kind, flat)
        for e, size in zip(n.index, n.out.shape, strict=True):
            i = self.expr(e, None)
            assert int(i.min()) >= 0 and int(i.max()) < size.value, "store out of range"
        inner = [] if len(shape) == len(self.shape) else [1] * (len(self.shape) - len(shape))
        index = [self.expr(e, None).expand(shape + inner).reshape(shape) for e in n.index]
        assert value.dtype == out.dtype, (value.dtype, out.dtype)
        write(out, index, value.expand(shape), n.mode)

    def expr(self, e: Expr, mask: torch.Tensor | None) -> torch.Tensor:
        match e:
            case Int():
                return torch.tensor(e.n)
            case Sym():
                return self.env[e]
            case Ind():
                return self.scalar(e.scalar, mask)
            case FloorDiv():
                return torch.div(self.expr(e.num, mask), self.expr(e.den, mask),
                                 rounding_mode="floor")  # fmt: skip
            case Mod():
                return torch.remainder(self.expr(e.num, mask), self.expr(e.den, mask))
            case Poly():
                total = torch.tensor(0)
                for coef, factors in e.terms:
                    term = torch.tensor(coef)
                    for f in factors:
                        term = term * self.expr(f, mask)
                    total = total + term
                return total
        raise TypeError(e)

    def scalar(self, x: Scalar, mask: torch.Tensor | None) -> torch.Tensor:
        key = (id(x), id(mask))
        if key not in self.known:
            value = self._scalar(x, mask)
            assert value.dtype == torch_dtype(x.dtype), (x, value.dtype)
            self.known[key] = value
        return self.known[key]

    def _scalar(self, x: Scalar, mask: torch.Tensor | None) -> torch.Tensor:
        match x:
            case Const():
                return torch.tensor(x.value, dtype=torch_dtype(x.dtype))
            case Index():
                return self.expr(x.expr, mask)
            case Load():
                return self.load(x, mask)
            case Op(name="where"):
                c = self.scalar(x.args[0], mask)
                yes = c if mask is None else c & mask
                no = ~c if mask is None else ~c & mask
                return torch.where(c, self.scalar(x.args[1], yes), self.scalar(x.args[2], no))
            case Op(name="cast"):
                return self.scalar(x.args[0], mask).to(torch_dtype(x.dtype))
            case Op() if x.name in CHECKS:
                i, size = (self.scalar(a, mask) for a in x.args)
                i = torch.where(i < 0, i + size, i) if x.name == "check_index" else i
                bad = (i < 0) | (i >= size)
                if bool((bad if mask is None else bad & mask).any()):
                    raise FAILURES[CHECKS[x.name]]("index out of range")
                return torch.where(bad, 0, i)
            case Op():
                return OPS[x.name](*(self.scalar(a, mask) for a in x.args))
        raise TypeError(x)

    def load(self, x: Load, mask: torch.Tensor | None) -> torch.Tensor:
        base = self.memory[x.buffer]
        if base.numel() == 0:
            return torch.zeros((), dtype=base.dtype)
        index = []
        for e, size in zip(x.index, x.buffer.shape, strict=True):
            i = self.expr(e, mask)
            if mask is None and 0 not in self.shape:
                assert int(i.min()) >= 0 and int(i.max()) < size.value, f"{x} out of range"
            index.append(i.clamp(0, size.value - 1))
        return base[tuple(index)] if index else base.reshape(())


def poison(b: Buffer) -> torch.Tensor:
    t = torch.empty_strided(ints(b.shape), ints(b.strides), dtype=torch_dtype(b.dtype))
    return t.fill_(math.nan if b.dtype.is_float else 1)


def reduced(kind: str, x: torch.Tensor) -> torch.Tensor:
    if kind == "any":
        return x.any(-1)
    if kind == "all":
        return x.all(-1)
    if kind == "sum":
        return x.sum(-1, dtype=x.dtype)
    if kind == "prod":
        return x.prod(-1, dtype=x.dtype)
    if not x.shape[-1]:
        return x.new_full(x.shape[:-1], loop_eval.neutral(kind, dtype_of(x.dtype)))
    return {"max": torch.amax, "min": torch.amin, "argmax": torch.argmax,
            "argmin": torch.argmin}[kind](x, -1)  # fmt: skip


def write(out: torch.Tensor, index: list[torch.Tensor], value: torch.Tensor, mode: str) -> None:
    if not index:
        index, out = [torch.zeros(value.shape, dtype=torch.int64)], out.reshape(1)
    if mode in ("set", "add"):
        out.index_put_(tuple(index), value, accumulate=mode == "add")
        return
    combine = {"mul": torch.mul, "max": torch.maximum, "min": torch.minimum}[mode]
    for place, v in zip(zip(*(i.flatten().tolist() for i in index), strict=True),
                        value.flatten(), strict=True):  # fmt: skip
        out[place] = combine(out[place], v)


SCANS = {
    "scan_sum": lambda x, d: x.cumsum(d, dtype=x.dtype),
    "scan_prod": lambda x, d: x.cumprod(d, dtype=x.dtype),
}


def _ipow(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.pow(a, b)


OPS = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "fma": lambda a, b, c: a * b + c,
    "floor_div": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc_div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "mod": torch.remainder, "fmod": torch.fmod, "neg": torch.neg, "abs": torch.abs,
    "max": torch.maximum, "min": torch.minimum, "pow": torch.pow, "ipow": _ipow,
    "round": torch.round, "sign": torch.sign, "and": torch.logical_and, "or": torch.logical_or,
    "xor": torch.logical_xor, "not": torch.logical_not, "bit_and": torch.bitwise_and,
    "bit_or": torch.bitwise_or, "bit_xor": torch.bitwise_xor, "bit_not": torch.bitwise_not,
    "shl": torch.bitwise_left_shift, "shr": torch.bitwise_right_shift,
}  # fmt: skip
_SAME = """
exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan atan2 sinh cosh tanh asinh
acosh atanh erf erfc erfinv lgamma sigmoid floor ceil trunc signbit copysign hypot nextafter isnan
isinf eq ne lt le gt ge
"""
for _name in _SAME.split():
    OPS[_name] = getattr(torch, _name)
