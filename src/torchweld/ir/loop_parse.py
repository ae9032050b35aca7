"""Reads the text form of a LoopGraph (loop_text writes it)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

from torchweld.ir.dtype import DType
from torchweld.ir.expr import ZERO, Expr, Ind, Int, SizeSym, Sym, as_expr
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
    Reduce,
    Scalar,
    Torch,
    View,
    axis,
    const,
    contiguous,
)
from torchweld.ir.loop_ops import BOOL, INDEX, LOGIC, OPS, SELECT
from torchweld.ir.text_tokens import Line, lines_of

_DTYPES = {d.value: d for d in DType}
_SUMS = {"+": "add", "-": "sub"}
_PRODUCTS = {"*": "mul", "/": "div"}
_COMPARISONS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
_MODES = {"=": "set", "+=": "add", "*=": "mul"}
_FLOAT_WORDS = {"nan": math.nan, "inf": math.inf}
_LITERALS: dict[str, ExternArg] = {"none": None, "true": True, "false": False, **_FLOAT_WORDS}


def parse(source: str) -> LoopGraph:
    """The graph that the text describes. Errors: InternalError naming the line."""
    reader = Reader()
    lines = lines_of(source)
    at = 0
    while at < len(lines):
        at = reader.statement(lines, at)
    return reader.graph()


class Reader:
    """What was declared so far; `statement` reads one more."""

    def __init__(self) -> None:
        self.sizes: dict[str, Sym] = {}
        self.readings: list[Reading] = []
        self.buffers: dict[str, Buffer] = {}
        self.nodes: list[Node] = []
        self.outputs: tuple[View | None, ...] = ()

    def graph(self) -> LoopGraph:
        inputs = tuple(b for b in self.buffers.values() if b.role != "temp")
        sizes = tuple(self.sizes.values())
        return LoopGraph(inputs, tuple(self.nodes), self.outputs, sizes, tuple(self.readings))

    def statement(self, lines: list[Line], at: int) -> int:
        """Read the statement at line `at`; answers where the next one starts."""
        line = lines[at]
        if line.peek(1).text == ":":
            self._buffer(line)
        elif line.peek().text == "size" and line.peek(1).kind == "name":
            self._size(line)
        elif line.take("return"):
            self.outputs = self._returned(line)
        else:
            node, at = self.node(lines, at)
            self.nodes.append(node)
            return at
        line.end()
        return at + 1

    def node(self, lines: list[Line], at: int) -> tuple[Node, int]:
        """One nest with its `with` lines, or one extern, and the line after it."""
        line = lines[at]
        after = at + 1
        while after < len(lines) and lines[after].peek().text == "with":
            after += 1
        if line.peek(1).text == "[":
            return NestReader(self, line, lines[at + 1 : after]).nest(), after
        return self._extern(line), after

    def buffer(self, line: Line) -> Buffer:
        name = line.name()
        if name not in self.buffers:
            line.fail(f"buffer {name} is not declared")
        return self.buffers[name]

    def _size(self, line: Line) -> None:
        line.expect("size")
        name = line.name()
        line.expect("in")
        low = None if line.peek().text == ".." else line.integer()
        line.expect("..")
        high = None if not line.peek().text.lstrip("-").isdigit() else line.integer()
        if line.take("is"):
            kind = line.name()
            dim = line.integer()
            line.expect("of")
            self.readings.append(Reading(kind, line.integer(), dim))
        hinted = line.take("hint")
        self.sizes[name] = (
            SizeSym.make(name, low, high, line.integer()) if hinted else Sym.make(name, low, high)
        )

    def _buffer(self, line: Line) -> None:
        name = line.name()
        line.expect(":")
        kind = line.name()
        if kind not in _DTYPES or name in self.buffers:
            line.fail(f"{kind} is no dtype, or {name} was declared before")
        shape, strides, offset = self.layout(line)
        device = line.string() if line.take("on") else "cpu"
        role = line.name() if line.peek().kind == "name" else "temp"
        b = Buffer.make(name, _DTYPES[kind], shape, strides, offset, role, device)
        self.buffers[name] = b

    def layout(self, line: Line) -> tuple[tuple[Expr, ...], tuple[Expr, ...], Expr]:
        """`[shape] strides (...) offset n`; the last two may be left out."""
        line.expect("[")
        shape = self.exprs(line, "]")
        strides = contiguous(shape)
        if line.take("strides"):
            line.expect("(")
            strides = self.exprs(line, ")")
        return shape, strides, ExprReader(line, self.sizes).sum() if line.take("offset") else ZERO

    def exprs(self, line: Line, close: str) -> tuple[Expr, ...]:
        reader = ExprReader(line, self.sizes)
        return tuple(_until(line, close, reader.sum))

    def axes(self, line: Line) -> tuple[Axis, ...]:
        out = []
        while True:
            name = line.name()
            line.expect(":")
            out.append(axis(name, ExprReader(line, self.sizes).sum()))
            if not line.take(","):
                return tuple(out)

    def _returned(self, line: Line) -> tuple[View | None, ...]:
        out: list[View | None] = []
        while line.peek().kind == "name":
            out.append(None if line.take("none") else self.view(line))
            line.take(",")
        return tuple(out)

    def view(self, line: Line) -> View:
        b = self.buffer(line)
        form = self.layout(line) if line.take("as") else (b.shape, b.strides, b.offset)
        again = ExprReader(line, self.sizes).sum() if line.take("again") else ZERO
        return View(b, *form, again.n if isinstance(again, Int) else 0)

    def _extern(self, line: Line) -> Extern:
        outs: list[Buffer] = []
        while line.peek(1).text in (",", "="):
            outs.append(self.buffer(line))
            line.next()
        op = line.name()
        args: list[ExternArg] = []
        kwargs: list[tuple[str, ExternArg]] = []
        line.expect("(")
        while not line.take(")"):
            if line.peek(1).text == "=":
                key = line.name()
                line.expect("=")
                kwargs.append((key, self.arg(line)))
            else:
                args.append(self.arg(line))
            line.take(",")
        written: list[Buffer] = []
        if line.take("writes"):
            written.append(self.buffer(line))
            while line.take(","):
                written.append(self.buffer(line))
        line.end()
        return Extern(tuple(outs), op, tuple(args), tuple(kwargs), tuple(written), line.origins)

    def arg(self, line: Line) -> ExternArg:
        """One argument of an extern."""
        token = line.peek()
        if line.take("["):
            return tuple(_until(line, "]", lambda: self.arg(line)))
        if line.take("{"):
            (e,) = self.exprs(line, "}")
            return e
        if line.take("@"):
            kind = line.name()
            line.expect("(")
            name = line.string()
            line.expect(")")
            return Torch(kind, name)
        if token.kind == "string":
            return line.string()
        if token.text == "complex" and line.peek(1).text == "(":
            line.at += 2
            real, imag = _until(line, ")", lambda: _number(line))
            return complex(real, imag)
        if token.kind == "name" and token.text not in self.buffers and token.text in _LITERALS:
            line.next()
            return _LITERALS[token.text]
        return self.view(line) if token.kind == "name" else _number(line)


T = TypeVar("T")


def _until(line: Line, close: str, item: Callable[[], T]) -> list[T]:
    out: list[T] = []
    while not line.take(close):
        out.append(item())
        if line.peek().text != close:
            line.expect(",")
    return out


def _number(line: Line) -> int | float:
    """A signed integer, decimal, nan or inf."""
    minus = line.take("-")
    token = line.next()
    if token.text in _FLOAT_WORDS:
        value: int | float = _FLOAT_WORDS[token.text]
    elif token.kind == "number":
        whole = token.text.isdigit() or token.text.startswith("0x")
        value = int(token.text, 0) if whole else float(token.text)
    else:
        line.fail(f"expected a number, found {token.text!r}")
    return -value if minus else value


class ExprReader:
    """Integer index expressions: + - * // % over integers, symbols, and loaded indices."""

    def __init__(self, line: Line, symbols: Mapping[str, Expr], scalars: NestReader | None = None):
        self.line = line
        self.symbols = symbols
        self.scalars = scalars

    def sum(self) -> Expr:
        out = self._product()
        while self.line.peek().text in ("+", "-"):
            minus = self.line.next().text == "-"
            term = self._product()
            out = out - term if minus else out + term
        return out

    def _product(self) -> Expr:
        out = self._factor()
        while self.line.peek().text in ("*", "//", "%"):
            sign, other = self.line.next().text, self._factor()
            out = out * other if sign == "*" else out // other if sign == "//" else out % other
        return out

    def _factor(self) -> Expr:
        line = self.line
        if line.take("-"):
            return -self._factor()
        if line.take("("):
            out = self.sum()
            line.expect(")")
            return out
        if self.scalars is not None and line.take("<"):
            return self._loaded(self.scalars)
        if line.peek().kind == "number":
            return as_expr(line.integer())
        name = line.name()
        if name not in self.symbols:
            line.fail(f"index symbol {name} is not in scope")
        return self.symbols[name]

    def _loaded(self, scalars: NestReader) -> Expr:
        scalar = scalars.scalar(self.line)
        self.line.expect("in")
        low = self.line.integer()
        self.line.expect("..")
        high = self.line.integer()
        self.line.expect(">")
        return Ind.make(scalar, low, high)


class NestReader:
    """One nest: its head line and its `with` lines."""

    def __init__(self, outer: Reader, head: Line, named: list[Line]) -> None:
        self.outer = outer
        self.head = head
        self.named = named
        self.symbols: dict[str, Expr] = dict(outer.sizes)
        self.scalars: dict[str, Scalar] = {}

    def nest(self) -> Nest:
        """The axes first (the other parts use them), then names, target and body."""
        line = self.head
        axes = self._axes_after("for")
        out = self.outer.buffer(line)
        start = line.at
        reduce = self._reduce()
        self.symbols |= {a.name: a.sym for a in (*axes, *(reduce.axes if reduce else ()))}
        for each in self.named:
            self._name(each)
        line.at = start
        line.expect("[")
        index = self._index(line)
        mode = self._mode()
        if reduce is not None:
            place = line.find("of")
            assert place is not None
            line.at = place + 1
        body = self.scalar(line)
        line.end()
        return Nest(out, axes, index, body, reduce, mode, line.origins)

    def _axes_after(self, word: str) -> tuple[Axis, ...]:
        """Read the clause behind `word`, and cut it off the line."""
        line = self.head
        place = line.find(word)
        if place is None:
            return ()
        line.at = place + 1
        axes = self.outer.axes(line)
        line.end()
        line.at = 0
        del line.tokens[place:]
        return axes

    def _reduce(self) -> Reduce | None:
        line = self.head
        place = line.find("over")
        if place is None:
            return None
        line.at = place - 1
        kind = line.name()
        line.expect("over")
        axes = self.outer.axes(line)
        line.expect("of")
        return Reduce(kind, axes)

    def _mode(self) -> str:
        line = self.head
        sign = line.next().text
        if sign in ("max", "min"):
            line.expect("=")
            return sign
        if sign not in _MODES:
            line.fail(f"expected = or a store mode, found {sign!r}")
        return _MODES[sign]

    def _name(self, line: Line) -> None:
        line.expect("with")
        name = line.name()
        line.expect("=")
        self.scalars[name] = self.scalar(line)
        line.end()

    def _index(self, line: Line) -> tuple[Expr, ...]:
        return tuple(_until(line, "]", ExprReader(line, self.symbols, self).sum))

    def scalar(self, line: Line) -> Scalar:
        """A comparison, sum, product or atom."""
        left = self._sum(line)
        if line.peek().text in _COMPARISONS and line.peek().kind == "sign":
            name = _COMPARISONS[line.next().text]
            return Op.make(name, (left, self._sum(line)), DType.BOOL)
        return left

    def _sum(self, line: Line) -> Scalar:
        return self._chain(line, _SUMS, self._product)

    def _product(self, line: Line) -> Scalar:
        return self._chain(line, _PRODUCTS, self._atom)

    def _chain(self, line: Line, signs: dict[str, str], part: Callable[[Line], Scalar]) -> Scalar:
        out = part(line)
        while line.peek().text in signs and line.peek().kind == "sign":
            name = signs[line.next().text]
            out = Op.make(name, (out, part(line)), out.dtype)
        return out

    def _atom(self, line: Line) -> Scalar:
        token, following = line.peek(), line.peek(1).text
        if line.take("("):
            out = self.scalar(line)
            line.expect(")")
            return out
        if token.kind == "name" and following == "[":
            b = self.outer.buffer(line)
            line.expect("[")
            return Load.make(b, self._index(line))
        if token.kind == "name" and following == "(" and token.text != "bits":
            return self._call(line)
        if token.text in self.scalars:
            line.next()
            return self.scalars[token.text]
        return self._literal(line)

    def _call(self, line: Line) -> Scalar:
        name = line.name()
        line.expect("(")
        if name == "index":
            e = ExprReader(line, self.symbols, self).sum()
            line.expect(")")
            return Index.make(e)
        args = tuple(_until(line, ")", lambda: self.scalar(line)))
        if name in _DTYPES:
            return Op.make("cast", args, _DTYPES[name])
        if name not in OPS or not args:
            line.fail(f"no operator {name}, or no arguments")
        return Op.make(name, args, _result(name, args))

    def _literal(self, line: Line) -> Const:
        if line.peek().text in ("true", "false"):
            return const(line.next().text == "true", DType.BOOL)
        if line.take("bits"):
            line.expect("(")
            value = _number(line)
            line.expect(")")
            return Const.make(int(value), self._suffix(line, DType.F32))
        value = _number(line)
        dtype = self._suffix(line, DType.F32 if isinstance(value, float) else DType.I64)
        return const(value, dtype)

    def _suffix(self, line: Line, default: DType) -> DType:
        if not line.take(":"):
            return default
        name = line.name()
        if name not in _DTYPES:
            line.fail(f"{name} is no dtype")
        return _DTYPES[name]


def _result(name: str, args: tuple[Scalar, ...]) -> DType:
    """The result dtype that the operator's rule gives."""
    rule = OPS[name].rule
    if rule in (BOOL, LOGIC):
        return DType.BOOL
    if rule == INDEX:
        return DType.I64
    return args[-1].dtype if rule == SELECT else args[0].dtype
