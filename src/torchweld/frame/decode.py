"""A CPython code object in the dialect of `instr`, for the running version of Python."""

from __future__ import annotations

import inspect
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from types import CodeType

from torchweld.frame.instr import TERMINAL, Code, Instr, Protected
from torchweld.frame.translate import Malformed, RawCode, Record, State, Translator, lowest
from torchweld.frame.versions import EXTENDED_ARG, OPNAMES, TABLE

_CACHE_LIMIT = 4096

# Keyed by identity, since code objects compare by value; `Code.raw` keeps the key valid.
_decoded: dict[int, Code] = {}


def decode(code: CodeType) -> Code:
    """The code object in the dialect; what cannot be said in it is an UNKNOWN instruction.

    Unreachable instructions are left out.
    Cost: about 3 us an instruction, nothing when it was decoded before.
    """
    known = _decoded.get(id(code))
    if known is not None:
        return known
    fresh = _decode(code)
    if len(_decoded) >= _CACHE_LIMIT:
        for key in list(islice(_decoded, _CACHE_LIMIT // 4)):
            _decoded.pop(key, None)
    return _decoded.setdefault(id(code), fresh)


def _decode(code: CodeType) -> Code:
    words = RawCode(code.co_code, EXTENDED_ARG)
    walk = Walk(code, words)
    records = walk.records()
    offsets = [record[2] for record in records]
    params = code.co_argcount + code.co_kwonlyargcount
    varargs = varkw = None
    if code.co_flags & inspect.CO_VARARGS:
        varargs = code.co_varnames[params]
        params += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        varkw = code.co_varnames[params]
        params += 1
    return Code(
        raw=code,
        name=code.co_name,
        qualname=code.co_qualname,
        filename=code.co_filename,
        firstlineno=code.co_firstlineno,
        instrs=tuple(_instructions(code, records, offsets)),
        argcount=code.co_argcount,
        posonly=code.co_posonlyargcount,
        kwonly=code.co_kwonlyargcount,
        varargs=varargs,
        varkw=varkw,
        params=code.co_varnames[:params],
        varnames=code.co_varnames,
        cellvars=code.co_cellvars,
        freevars=code.co_freevars,
        flags=code.co_flags,
        protected=tuple(walk.protected(offsets)),
    )


def walk_of(code: CodeType) -> Walk:
    """The walk over a code object, done: the raw code and CPython's stack at each of its places."""
    walk = Walk(code, RawCode(code.co_code, EXTENDED_ARG))
    walk.records()
    return walk


class Walk:
    """Follows the code along jumps and exception edges, each instruction once."""

    def __init__(self, code: CodeType, words: RawCode) -> None:
        self.words = words
        self.t = Translator(code, OPNAMES, words)
        self.table = list(table_rows(code.co_exceptiontable))
        self.depths: list[int | None] = [None] * len(self.table)
        self.cover = self._cover()

    def _cover(self) -> list[int]:
        """For each instruction the row of the exception table that is for it, or -1."""
        cover = [-1] * len(self.words.ops)
        for row in reversed(range(len(self.table))):
            start, end, *_ = self.table[row]
            span = range(self.words.index(start), self.words.index(end))
            cover[span.start : span.stop] = [row] * len(span)
        return cover

    def records(self) -> list[Record]:
        """What the reachable instructions say, in the order of the code."""
        t = self.t
        t.flow(0, 0, ())
        runs: dict[int, list[Record]] = {}
        visited = bytearray(len(self.words.ops) + 1)
        while t.work:
            start = t.work.pop()
            if not visited[start]:
                t.out = runs[start] = []
                self._run(start, visited)
        return [record for start in sorted(runs) for record in runs[start]]

    def _run(self, start: int, visited: bytearray) -> None:
        """Translate from `start` up to the end of the flow or to what is translated already."""
        t = self.t
        ops, args, cover, states = self.words.ops, t.args, self.cover, t.states
        starts, offsets, out = t.starts, t.offsets, t.out
        state = states[start]
        assert state is not None
        t.depth, t.nulls = state
        for index in range(start, len(ops)):
            size = len(out)
            t.index, t.offset, t.after = index, offsets[index], starts[index + 1]
            try:
                now = self._reach(index)
                if visited[index]:
                    return
                visited[index] = 1
                TABLE[ops[index]](t, args[index])
                if cover[index] >= 0 and out and out[-1][2] == t.offset:
                    self._enter(cover[index], now)
            except (Malformed, LookupError):
                del out[size:]
                out.append(("UNKNOWN", t.opnames[index], t.offset, -1))
                return
            if out and out[-1][0] in TERMINAL:
                return
        out.append(("UNKNOWN", "end of code", starts[-1], -1))

    def _reach(self, index: int) -> State:
        """The stack here, which every way into the instruction brings alike."""
        t = self.t
        state = (t.depth, t.nulls)
        known = t.states[index]
        if known is None:
            t.states[index] = state
        elif known != state:
            raise Malformed
        return state

    def _enter(self, row: int, state: State) -> None:
        """An instruction of this row of the exception table is there, so its target can be."""
        if self.depths[row] is not None:
            return
        _, _, target, raw_depth, lasti = self.table[row]
        depth, nulls = lowest(state, raw_depth)
        self.t.flow(target, depth + lasti + 1, nulls)
        self.depths[row] = depth

    def protected(self, offsets: list[int]) -> Iterator[Protected]:
        """The exception table over instruction indices; neighbours that agree are one range."""
        last: Protected | None = None
        for (start, end, target, _, lasti), depth in zip(self.table, self.depths, strict=True):
            first, stop = bisect_left(offsets, start), bisect_left(offsets, end)
            if depth is None or first == stop:
                continue
            row = Protected(first, stop, bisect_left(offsets, target), depth, lasti)
            if last is None:
                last = row
            elif (last.end, last.target, last.depth, last.lasti) == (
                first, row.target, depth, lasti,
            ):  # fmt: skip
                last = Protected(last.start, stop, row.target, depth, lasti)
            else:
                yield last
                last = row
        if last is not None:
            yield last


def _instructions(code: CodeType, records: list[Record], offsets: list[int]) -> Iterator[Instr]:
    """Records with lines, and with indices instead of offsets."""
    lines = code.co_lines()
    end, line = 0, code.co_firstlineno
    for op, arg, offset, target in records:
        while offset >= end:
            span = next(lines, None)
            if span is None:
                break
            end = span[1]
            # what has no line of its own belongs to the line before it
            line = line if span[2] is None else span[2]
        index = None if target < 0 else bisect_left(offsets, target)
        yield Instr(op, arg, offset, line, index)


def table_rows(table: bytes) -> Iterator[tuple[int, int, int, int, bool]]:
    """(start, end, target, depth, lasti), in bytes of code, of numbers in groups of six bits."""
    groups = iter(table)
    for byte in groups:
        start = 2 * _number(byte, groups)
        size = 2 * _number(next(groups), groups)
        target = 2 * _number(next(groups), groups)
        flags = _number(next(groups), groups)
        yield start, start + size, target, flags >> 1, bool(flags & 1)


def _number(byte: int, groups: Iterator[int]) -> int:
    """Bit 7 starts a row, bit 6 says that another group follows."""
    value = byte & 63
    while byte & 64:
        byte = next(groups)
        value = value << 6 | byte & 63
    return value
