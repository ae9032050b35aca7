"""The text form of a LoopGraph: `parse(text(g)) == g`. docs/ir.md has the grammar.

    x: f32[64, 32] input
    m: f32[64]
    y: f32[64, 32]

    m[i] = max over j:32 of x[i, j]  for i:64
    y[i, j] = v0 / (v0 + 1.0)  for i:64, j:32  # from silu
      with v0 = exp(x[i, j] - m[i])

    return y

Every scalar that is used twice has a name and is printed once, and so has one whose text is long.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import zip_longest

from torchweld.base.errors import InternalError
from torchweld.ir.dtype import DType
from torchweld.ir.expr import Expr, FloorDiv, Ind, Int, Mod, Poly, SizeSym, Sym, atoms
from torchweld.ir.loop import (
    Axis,
    Buffer,
    Const,
    Extern,
    ExternArg,
    Index,
    Load,
    LoopGraph,
    Nest,
    Node,
    Op,
    Reading,
    Scalar,
    Torch,
    View,
    contiguous,
    walk,
)
from torchweld.ir.loop_parse import parse as parse
from torchweld.ir.loop_verify import buffers_of

_INFIX = {
    "add": ("+", 2), "sub": ("-", 2), "mul": ("*", 3), "div": ("/", 3), "lt": ("<", 1),
    "le": ("<=", 1), "gt": (">", 1), "ge": (">=", 1), "eq": ("==", 1), "ne": ("!=", 1),
}  # fmt: skip
_COMPARE, _ATOM = 1, 4  # precedences; comparisons do not chain
_MODES = {"set": "=", "add": "+=", "mul": "*=", "max": "max=", "min": "min="}
_LONG = 72  # characters of one scalar from which it gets a name of its own
_PLAIN_ORIGIN = re.compile(r"[^\s,\"#]+")


def text(g: LoopGraph, more: tuple[Buffer, ...] = ()) -> str:
    """The whole graph, one statement a line. `more`: buffers to declare although it has no use."""
    parts = [size_line(s, r) for s, r in zip_longest(g.sizes, g.readings)]
    parts += [buffer_line(b) for b in (*buffers_of(g), *more)]
    parts.append("")
    parts += [node_text(n) for n in g.nodes]
    parts.append("")
    parts.append(f"return {', '.join(view_text(v) for v in g.outputs)}".rstrip())
    return "\n".join(parts) + "\n"


def size_line(s: Sym, r: Reading | None) -> str:
    """`size n in 2..  is size 0 of 1  hint 64`: dimension 0 of input 1."""
    ends = ("" if s.smin is None else s.smin, "" if s.smax is None else s.smax)
    where = "" if r is None else f"  is {r.kind} {r.dim} of {r.input}"
    hint = f"  hint {s.hint}" if isinstance(s, SizeSym) else ""
    return f"size {s.name} in {ends[0]}..{ends[1]}{where}{hint}"


def buffer_line(b: Buffer) -> str:
    """The declaration of a buffer; row-major strides, offset 0, cpu and temp go without saying."""
    device = "" if b.device == "cpu" else f" on {json.dumps(b.device)}"
    role = "" if b.role == "temp" else f" {b.role}"
    shape = f"{b.dtype.value}[{_list(b.shape)}]"
    return f"{b.name}: {shape}{_layout(b.shape, b.strides, b.offset)}{device}{role}"


def _layout(shape: tuple[Expr, ...], strides: tuple[Expr, ...], offset: Expr) -> str:
    out = "" if strides == contiguous(shape) else f" strides ({_list(strides)})"
    return out if isinstance(offset, Int) and offset.n == 0 else f"{out} offset {offset.text()}"


def _list(exprs: Iterable[Expr]) -> str:
    return ", ".join(e.text() for e in exprs)


def view_text(v: View | None) -> str:
    """A window onto a buffer: only its name if it shows the buffer as it was declared."""
    if v is None:
        return "none"
    again = f" again {v.again}" if v.again else ""
    if replace(v, again=0).whole:
        return f"{v.buffer.name}{again}"
    shown = f"[{_list(v.shape)}]{_layout(v.shape, v.strides, v.offset)}"
    return f"{v.buffer.name} as {shown}{again}"


def node_text(n: Node) -> str:
    return nest_text(n) if isinstance(n, Nest) else extern_text(n)


def axes_text(axes: Iterable[Axis]) -> str:
    return ", ".join(a.text() for a in axes)


def origins_text(origins: tuple[str, ...]) -> str:
    """The trailing comment that carries origins, or nothing."""
    if not origins:
        return ""
    shown = (o if _PLAIN_ORIGIN.fullmatch(o) else json.dumps(o) for o in origins)
    return f"  # from {', '.join(shown)}"


def nest_text(n: Nest, indent: str = "") -> str:
    """`out[index] = body  for axes`, then one `with` line per named scalar."""
    p = _Printer(n)
    reduced = f"{n.reduce.kind} over {axes_text(n.reduce.axes)} of " if n.reduce else ""
    loops = f"  for {axes_text(n.axes)}" if n.axes else ""
    target = f"{n.out.name}[{p.index(n.index)}]"
    head = f"{target} {_MODES[n.mode]} {reduced}{p.shown[n.body][0]}{loops}"
    lines = [head + origins_text(n.origins)]
    lines += [f"  with {name} = {value}" for name, value in p.named]
    return "\n".join(indent + line for line in lines)


class _Printer:
    """The texts of the scalars of one nest. `shown`: text and precedence of each."""

    def __init__(self, n: Nest) -> None:
        self.shown: dict[Scalar, tuple[str, int]] = {}
        self.named: list[tuple[str, str]] = []
        roots = (*(s for e in n.index for s in _uses(e)), n.body)
        order = list(dict.fromkeys(x for r in roots for x in walk(r)))
        count = Counter(roots)
        for x in order:
            count.update(_read_by(x))
        taken = {b.buffer.name for b in order if isinstance(b, Load)} | {n.out.name}
        taken |= {a.name for a in n.all_axes} | _names_in(order)
        names = (v for k in range(len(order) + len(taken)) if (v := f"v{k}") not in taken)
        for x in order:
            value, level = self._render(x)
            long = len(value) > _LONG and x is not n.body
            if long or (count[x] > 1 and not isinstance(x, Const)):
                name = next(names)
                self.named.append((name, value))
                value, level = name, _ATOM
            self.shown[x] = value, level

    def index(self, index: tuple[Expr, ...]) -> str:
        return ", ".join(self._expr(e) for e in index)

    def _render(self, x: Scalar) -> tuple[str, int]:
        match x:
            case Const():
                return const_text(x), _ATOM
            case Load():
                return f"{x.buffer.name}[{self.index(x.index)}]", _ATOM
            case Index():
                return f"index({self._expr(x.expr)})", _ATOM
            case Op(name=name) if name in _INFIX:
                sign, level = _INFIX[name]
                a, b = x.args
                left = self._arg(a, level + (level == _COMPARE))
                return f"{left} {sign} {self._arg(b, level + 1)}", level
            case Op():
                name = x.dtype.value if x.name == "cast" else x.name
                return f"{name}({', '.join(self._arg(a, 0) for a in x.args)})", _ATOM
        raise InternalError(f"no text for {type(x).__name__}")

    def _arg(self, x: Scalar, least: int) -> str:
        value, level = self.shown[x]
        return value if level >= least else f"({value})"

    def _expr(self, e: Expr) -> str:
        """Like `e.text()`, but with this nest's names in loaded indices."""
        if not any(isinstance(a, Ind) for a in atoms(e)):
            return e.text()
        match e:
            case Ind():
                assert isinstance(e.scalar, Scalar)
                return f"<{self._arg(e.scalar, 0)} in {e.smin}..{e.smax}>"
            case Poly():
                return " + ".join(
                    "*".join([str(c), *(f"({self._expr(f)})" for f in m)]) for c, m in e.terms
                )
            case FloorDiv():
                return f"({self._expr(e.num)})//({self._expr(e.den)})"
            case Mod():
                return f"({self._expr(e.num)})%({self._expr(e.den)})"
        raise InternalError(f"no text for {type(e).__name__}")


def _names_in(scalars: list[Scalar]) -> set[str]:
    """The symbols of all index expressions (sizes included): names that `with` must not take."""
    found: set[Expr] = set()
    for x in scalars:
        for e in x.index if isinstance(x, Load) else (x.expr,) if isinstance(x, Index) else ():
            found |= atoms(e)
    return {a.name for a in found if isinstance(a, Sym)}


def _read_by(x: Scalar) -> Iterator[Scalar]:
    """The scalars that the text of `x` mentions, as often as it does."""
    match x:
        case Op():
            yield from x.args
        case Load():
            for e in x.index:
                yield from _uses(e)
        case Index():
            yield from _uses(x.expr)


def _uses(e: Expr) -> Iterator[Scalar]:
    match e:
        case Ind():
            assert isinstance(e.scalar, Scalar)
            yield e.scalar
        case Poly():
            for _, factors in e.terms:
                for f in factors:
                    yield from _uses(f)
        case FloorDiv() | Mod():
            yield from _uses(e.num)
            yield from _uses(e.den)


def const_text(x: Const) -> str:
    """A literal; f32 and i64 need no suffix."""
    if x.dtype is DType.BOOL:
        return "true" if x.bits else "false"
    if not x.dtype.is_float:
        return f"{x.bits}" if x.dtype is DType.I64 else f"{x.bits}:{x.dtype.value}"
    shown = repr(x.value)
    if shown == "nan" and x.bits != 0x7FF8000000000000:
        shown = f"bits({x.bits:#x})"
    return shown if x.dtype is DType.F32 else f"{shown}:{x.dtype.value}"


def extern_text(n: Extern) -> str:
    """`outs = op(args)  writes buffers`."""
    outs = f"{', '.join(b.name for b in n.outs)} = " if n.outs else ""
    args = [arg_text(a) for a in n.args] + [f"{k}={arg_text(a)}" for k, a in n.kwargs]
    writes = f"  writes {', '.join(b.name for b in n.writes)}" if n.writes else ""
    return f"{outs}{n.op}({', '.join(args)}){writes}{origins_text(n.origins)}"


def arg_text(a: ExternArg) -> str:
    """An argument of an extern: a view, a torch constant, a number, a string, none or a list."""
    match a:
        case None | View():
            return view_text(a)
        case Torch():
            return f"@{a.kind}({json.dumps(a.name)})"
        case Expr():
            return f"{{{a.text()}}}"
        case bool():
            return "true" if a else "false"
        case str():
            return json.dumps(a)
        case complex():
            return f"complex({a.real!r}, {a.imag!r})"
        case tuple():
            return f"[{', '.join(arg_text(x) for x in a)}]"
        case int() | float():
            return repr(a)
    raise InternalError(f"no text for the argument {a!r}")
