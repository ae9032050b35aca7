"""Raw bytecode that is written by hand: instructions, jumps, and the tables beside the code.

All jumps of CPython are relative since 3.11, so a code object stays valid when something is put in
front of it and its line and exception tables are moved by as much.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType

from torchweld.frame.versions import CACHES, EXTENDED_ARG

Row = tuple[int, int, int, int, bool]  # start, end, target in bytes, raw depth, lasti

_MAX_RUN = 8  # code units that one entry of the line table can cover
_NO_LINE, _LINE = 15, 13  # kinds of entries of the line table


class Unassemblable(Exception):
    """The code cannot be rewritten; the message says why."""


class Label:
    """A place in the code that is being written, or `beyond` bytes after it."""

    __slots__ = ("beyond", "offset")

    def __init__(self, beyond: int = 0) -> None:
        self.offset = 0
        self.beyond = beyond


@dataclass(slots=True)
class _Item:
    """One instruction; `arg` is a label for a forward jump. units: with EXTENDED_ARG and caches."""

    op: int
    arg: int | Label
    line: int | None
    units: int = 0


@dataclass(slots=True)
class Assembler:
    """Instructions and labels in order, and what protects them. line: of what is emitted next."""

    items: list[_Item | Label] = field(default_factory=list)
    covers: list[tuple[Label, Label, Label, int, bool]] = field(default_factory=list)
    line: int | None = None

    def emit(self, name: str, arg: int | Label = 0) -> None:
        self.items.append(_Item(dis.opmap[name], arg, self.line))

    def mark(self, label: Label) -> None:
        self.items.append(label)

    def cover(self, start: Label, end: Label, target: Label, depth: int,
              lasti: bool = False) -> None:  # fmt: skip
        """An exception between two labels cuts the stack to `depth` and goes to `target`."""
        self.covers.append((start, end, target, depth, lasti))

    def finish(self) -> bytes:
        """The code; labels have their offsets afterwards."""
        for item in self.items:
            if isinstance(item, _Item):
                item.units = 1 + CACHES.get(item.op, 0)
        while not self._settle():
            pass
        return b"".join(self._bytes(i) for i in self.items if isinstance(i, _Item))

    def _settle(self) -> bool:
        """Place everything; False if an argument then needs more room."""
        offset, ends = 0, []
        for item in self.items:
            if isinstance(item, Label):
                item.offset = offset + item.beyond
            else:
                offset += 2 * item.units
                ends.append((item, offset))
        settled = True
        for item, end in ends:
            if isinstance(item.arg, Label) and item.arg.offset < end:
                raise Unassemblable("a jump backwards")
            needed = 1 + CACHES.get(item.op, 0) + _extensions(self._value(item, end))
            if needed > item.units:
                item.units = needed
                settled = False
        return settled

    def _value(self, item: _Item, end: int) -> int:
        return (item.arg.offset - end) // 2 if isinstance(item.arg, Label) else item.arg

    def _bytes(self, item: _Item) -> bytes:
        caches = CACHES.get(item.op, 0)
        extra = item.units - 1 - caches
        value = self._value(item, self._end(item))
        out = bytearray()
        for shift in range(extra, 0, -1):
            out += bytes((EXTENDED_ARG, value >> 8 * shift & 255))
        return bytes(out + bytes((item.op, value & 255)) + bytes(2 * caches))

    def _end(self, wanted: _Item) -> int:
        """Where an instruction that jumps ends; asked for jumps only, which are few."""
        if not isinstance(wanted.arg, Label):
            return 0
        offset = 0
        for item in self.items:
            if isinstance(item, _Item):
                offset += 2 * item.units
                if item is wanted:
                    break
        return offset

    def rows(self) -> Iterator[Row]:
        """The exception table of the code."""
        for start, end, target, depth, lasti in self.covers:
            yield start.offset, end.offset, target.offset, depth, lasti

    def lines(self, first: int, ends_at: int | None = None) -> bytes:
        """The line table of the code, for a code object whose first line is `first`.

        ends_at: the line that what follows is relative to; the last instruction gets it.
        """
        out, at = bytearray(), first
        items = [i for i in self.items if isinstance(i, _Item)]
        if ends_at is not None and any(i.line is not None for i in items):
            items[-1].line = ends_at
        for line, units in _runs(items):
            while units:
                size = min(units, _MAX_RUN)
                units -= size
                if line is None:
                    out.append(0x80 | _NO_LINE << 3 | size - 1)
                else:
                    out.append(0x80 | _LINE << 3 | size - 1)
                    out += _signed(line - at)
                    at = line
        return bytes(out)


def _runs(items: Iterable[_Item]) -> Iterator[tuple[int | None, int]]:
    """(line, code units) for neighbours of one line."""
    line, units = None, 0
    for item in items:
        if item.line != line and units:
            yield line, units
            units = 0
        line = item.line
        units += item.units
    if units:
        yield line, units


def _extensions(value: int) -> int:
    """How many EXTENDED_ARG an argument needs."""
    return max(0, (value.bit_length() + 7) // 8 - 1)


def _signed(value: int) -> bytes:
    """A number in groups of six bits, low ones first; the lowest bit is the sign."""
    value = -value << 1 | 1 if value < 0 else value << 1
    out = bytearray()
    while value > 63:
        out.append(value & 63 | 64)
        value >>= 6
    out.append(value)
    return bytes(out)


def exception_table(rows: Iterable[Row]) -> bytes:
    """The encoding of `co_exceptiontable`: numbers in groups of six bits, high ones first."""
    out = bytearray()
    for start, end, target, depth, lasti in rows:
        fields = (start // 2, (end - start) // 2, target // 2, depth << 1 | lasti)
        for i, value in enumerate(fields):
            groups = [value & 63]
            while value > 63:
                value >>= 6
                groups.append(value & 63 | 64)
            groups.reverse()
            if i == 0:
                groups[0] |= 128
            out += bytes(groups)
    return bytes(out)


@dataclass(frozen=True, slots=True)
class Body:
    """What a rewritten code object runs. locals: the first `params` are positional parameters."""

    text: bytes
    lines: bytes
    rows: tuple[Row, ...]
    locals: tuple[str, ...]
    params: int
    consts: tuple[object, ...]
    stack: int


def rebuilt(code: CodeType, body: Body) -> CodeType:
    """The code object with another body, under the same name."""
    gone = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    # a piece of a generator is a function; COPY_FREE_VARS may come first
    if dis.opmap["RETURN_GENERATOR"] not in body.text[:4:2]:
        gone |= inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    return code.replace(
        co_argcount=body.params, co_posonlyargcount=0, co_kwonlyargcount=0,
        co_nlocals=len(body.locals), co_varnames=body.locals, co_flags=code.co_flags & ~gone,
        co_code=body.text, co_linetable=body.lines,
        co_exceptiontable=exception_table(body.rows),
        co_consts=body.consts, co_stacksize=body.stack,
    )  # fmt: skip
