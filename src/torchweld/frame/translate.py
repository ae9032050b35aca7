"""From raw CPython instructions to the dialect: the state that the rows of a version work on.

CPython's stack holds NULLs beside callables; the dialect's does not. The translator therefore
walks the code with a model of the stack: the number of values (`depth`) and, in `nulls`, the
depths at which a NULL lies (a NULL at p lies on top of p values). The method pair of LOAD_METHOD
counts as a NULL and one value, since the dialect pushes the bound attribute. With that, every
call protocol tells by the place of the last NULL whether its extra slot holds a value.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from types import CodeType
from typing import Any

from torchweld.frame.instr import EFFECTS, effect_of

Nulls = tuple[int, ...]
State = tuple[int, Nulls]
Record = tuple[str, Any, int, int]  # op, argument, offset, offset of the target or -1

_LOCAL, _CELL, _AMBIGUOUS = range(3)
_TESTS = frozenset(("POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE", "TO_BOOL", "UNARY_NOT"))
_PEEPS = frozenset(("COPY", "SWAP"))


class Malformed(Exception):
    """This instruction cannot be said in the dialect; the walk ends there with UNKNOWN."""


class Translator:
    """The walk over one code object: where it is, the model of the stack, what was written."""

    __slots__ = (
        "after",
        "args",
        "consts",
        "depth",
        "index",
        "kinds",
        "kwnames",
        "names",
        "nulls",
        "offset",
        "offsets",
        "opnames",
        "out",
        "place",
        "prologue",
        "sealed",
        "slots",
        "starts",
        "states",
        "work",
    )

    def __init__(self, code: CodeType, opnames: list[str], words: RawCode) -> None:
        own = tuple(name for name in code.co_cellvars if name not in code.co_varnames)
        cells = frozenset(code.co_cellvars)
        twice = cells.intersection(code.co_freevars)
        self.names = code.co_names
        self.consts = code.co_consts
        self.slots: tuple[str, ...] = code.co_varnames + own + code.co_freevars
        n_locals = len(code.co_varnames)
        self.kinds = [
            _LOCAL if i < n_locals and name not in cells
            else _AMBIGUOUS if name in twice
            else _CELL
            for i, name in enumerate(self.slots)
        ]  # fmt: skip
        self.opnames = [opnames[op] for op in words.ops]
        self.starts = words.starts
        self.offsets = words.offsets
        self.args = words.args
        self.place = {start: i for i, start in enumerate(words.starts[:-1])}
        self.prologue = self.opnames.index("RESUME") if "RESUME" in self.opnames else 0
        self.states: list[State | None] = [None] * len(words.ops)
        self.work: list[int] = []
        self.sealed: set[int] = set()
        self.kwnames: tuple[str, ...] = ()
        self.out: list[Record] = []
        self.index = self.offset = self.after = self.depth = 0
        self.nulls: Nulls = ()

    def emit(self, op: str, arg: Any = None, target: int = -1) -> None:
        """Write one dialect instruction and apply its fall-through effect to the stack."""
        row = EFFECTS[op]
        pops, pushes = row if isinstance(row, tuple) else row(arg)
        base = self.depth - pops
        if base < 0 or (self.nulls and self.nulls[-1] > base and op not in _PEEPS):
            raise Malformed
        self.depth = base + pushes
        self.out.append((op, arg, self.offset, target))

    def push_null(self) -> None:
        self.nulls = (*self.nulls, self.depth)

    def pop_null(self, at: int) -> bool:
        """Take the last NULL off if it lies on top of `at` values."""
        if not self.nulls or self.nulls[-1] != at:
            return False
        self.nulls = self.nulls[:-1]
        return True

    def flow(self, start: int, depth: int, nulls: Nulls) -> None:
        """The instruction at offset `start` is reached with this stack."""
        index = self.place.get(start)
        if index is None or start in self.sealed:
            raise Malformed
        known = self.states[index]
        if known is None:
            self.states[index] = (depth, nulls)
            self.work.append(index)
        elif known != (depth, nulls):
            raise Malformed

    def values(self, raw: int, depth: int) -> int:
        """How many of the `raw` slots below `depth` values are values; the lowest has to be."""
        if not self.nulls:
            return raw
        left, at, null = len(self.nulls), depth, False
        for _ in range(raw):
            null = left > 0 and self.nulls[left - 1] == at
            if null:
                left -= 1
            else:
                at -= 1
        if null:
            raise Malformed
        return depth - at

    def absorb(self, op: str) -> Any:
        """Take back the instruction just written, which has to be this one: its argument."""
        if not self.out or self.out[-1][0] != op or self.out[-1][2] != self.offsets[self.index - 1]:
            raise Malformed
        arg = self.out.pop()[1]
        pops, pushes = effect_of(op, arg)
        self.depth += pops - pushes
        self.sealed.add(self.starts[self.index])
        return arg

    def last(self) -> str:
        """The op just written by the previous raw instruction, or nothing."""
        if not self.out or self.out[-1][2] != self.offsets[self.index - 1]:
            return ""
        return self.out[-1][0]

    def next_name(self) -> str:
        following = self.index + 1
        return self.opnames[following] if following < len(self.opnames) else ""


def lowest(state: State, raw: int) -> State:
    """The lowest `raw` slots of a stack."""
    depth, nulls = state
    if raw > depth + len(nulls):
        raise Malformed
    kept = tuple(at for below, at in enumerate(nulls) if at + below < raw)
    return raw - len(kept), kept


class RawCode:
    """co_code split into instructions: EXTENDED_ARG folded, caches left out.

    `starts` are the offsets that jumps use (of the first EXTENDED_ARG), with the end of the code
    as one more; `offsets` are those of the instructions proper, as tracebacks use them.
    """

    __slots__ = ("args", "offsets", "ops", "starts")

    def __init__(self, raw: bytes, extended_arg: int) -> None:
        self.starts: list[int] = []
        self.offsets: list[int] = []
        self.ops: list[int] = []
        self.args: list[int] = []
        high, start = 0, -1
        for offset in range(0, len(raw), 2):
            op = raw[offset]
            if op == 0:  # CACHE
                continue
            if start < 0:
                start = offset
            if op == extended_arg:
                high = (high | raw[offset + 1]) << 8
                continue
            self.starts.append(start)
            self.offsets.append(offset)
            self.ops.append(op)
            self.args.append(high | raw[offset + 1])
            high, start = 0, -1
        self.starts.append(len(raw))

    def index(self, start: int) -> int:
        return bisect_left(self.starts, start)


Row = Callable[[Translator, int], None]
Rows = Mapping[str, Row]


# The rows that more than one version uses, as functions that make them.


def unknown(t: Translator, arg: int) -> None:
    raise Malformed


def drop(t: Translator, arg: int) -> None:
    """Says nothing in the dialect."""


def plain(op: str, value: Any = None) -> Row:
    """One dialect op with a fixed argument."""

    def row(t: Translator, arg: int) -> None:
        t.emit(op, value)

    return row


def then_pop(op: str) -> Row:
    """An op that leaves no value in old versions and one to drop in newer ones."""

    def row(t: Translator, arg: int) -> None:
        t.emit(op)
        t.emit("POP_TOP")

    return row


def counted(op: str) -> Row:
    """The raw argument is the dialect's."""

    def row(t: Translator, arg: int) -> None:
        t.emit(op, arg)

    return row


def chosen(op: str, choices: tuple[Any, ...]) -> Row:
    """The raw argument is an index into a table."""

    def row(t: Translator, arg: int) -> None:
        t.emit(op, choices[arg])

    return row


def by_number(ops: tuple[tuple[str, Any], ...]) -> Row:
    """The raw argument chooses the op: the intrinsics; index 0 is invalid and left out."""

    def row(t: Translator, arg: int) -> None:
        op, value = ops[arg - 1]
        t.emit(op, value)

    return row


def named(op: str) -> Row:
    def row(t: Translator, arg: int) -> None:
        t.emit(op, t.names[arg])

    return row


def local(op: str, of_cell: str | None) -> Row:
    """A slot of the frame; a slot that holds a cell makes it the op `of_cell`."""

    def row(t: Translator, arg: int) -> None:
        kind = t.kinds[arg]
        if kind == _LOCAL:
            t.emit(op, t.slots[arg])
        elif kind == _CELL and of_cell:
            t.emit(of_cell, t.slots[arg])
        else:
            raise Malformed

    return row


def cell(op: str) -> Row:
    """What is in a cell, or the cell itself."""

    def row(t: Translator, arg: int) -> None:
        if t.kinds[arg] != _CELL:
            raise Malformed
        t.emit(op, t.slots[arg])

    return row


def pair(first: Row, second: Row) -> Row:
    """A superinstruction: two arguments of four bits."""

    def row(t: Translator, arg: int) -> None:
        first(t, arg >> 4)
        second(t, arg & 15)

    return row


def in_turn(first: Row, second: Row) -> Row:
    """Two instructions in one; the first takes the argument."""

    def row(t: Translator, arg: int) -> None:
        first(t, arg)
        second(t, 0)

    return row


def callee(op: str, shift: int, flag: int, *, above: bool) -> Row:
    """A name to be loaded with a NULL for the call, below or above, when `arg & flag`."""

    def row(t: Translator, arg: int) -> None:
        if arg & flag and not above:
            # below the value that the op leaves, hence below its operands
            t.nulls = (*t.nulls, t.depth - effect_of(op, None)[0])
            _emit_over_null(t, op, t.names[arg >> shift])
        else:
            t.emit(op, t.names[arg >> shift])
            if arg & flag:
                t.push_null()

    return row


def _emit_over_null(t: Translator, op: str, arg: Any) -> None:
    nulls = t.nulls
    t.nulls = nulls[:-1]
    t.emit(op, arg)
    t.nulls = nulls


def push_null(t: Translator, arg: int) -> None:
    t.push_null()


def kw_names(t: Translator, arg: int) -> None:
    t.kwnames = t.consts[arg]


def call(*, above: bool) -> Row:
    """A call; without its NULL the slot of the NULL holds one value more: callee or argument."""

    def row(t: Translator, arg: int) -> None:
        kwnames, t.kwnames = t.kwnames, ()
        has_null = t.pop_null(t.depth - arg - (0 if above else 1))
        t.emit("CALL", (arg if has_null else arg + 1, kwnames))

    return row


def call_ex(*, above: bool) -> Row:
    def row(t: Translator, arg: int) -> None:
        has_kwargs = bool(arg & 1)
        if not t.pop_null(t.depth - 1 - has_kwargs - (0 if above else 1)):
            raise Malformed
        t.emit("CALL_EX", has_kwargs)

    return row


def peep(op: str) -> Row:
    """COPY and SWAP: counts slots from the top."""

    def row(t: Translator, arg: int) -> None:
        t.emit(op, t.values(arg, t.depth))

    return row


def into(op: str) -> Row:
    """Adds to the container that lies `arg` slots below what is added."""
    pops = effect_of(op, None)[0]

    def row(t: Translator, arg: int) -> None:
        t.emit(op, t.values(arg, t.depth - pops))

    return row


def reraise(t: Translator, arg: int) -> None:
    t.emit("RERAISE", t.values(arg + 1, t.depth) - 1 if arg else 0)


def jump(op: str, way: int = 1, skip: tuple[str, ...] = ()) -> Row:
    """A jump relative to the next instruction, over the clean-up `skip` at its target."""
    pops, pushes = effect_of(op, None, jump=True)

    def row(t: Translator, arg: int) -> None:
        target = t.after + way * 2 * arg
        if skip:
            target = _past(t, target, skip)
        depth, nulls = t.depth - pops + pushes, t.nulls
        t.emit(op, None, target)
        t.flow(target, depth, nulls)

    return row


def _past(t: Translator, target: int, skip: tuple[str, ...]) -> int:
    index = t.place.get(target, -1)
    end = index + len(skip)
    if index < 0 or tuple(t.opnames[index:end]) != skip:
        raise Malformed
    return t.starts[end]


def jump_or_pop(op: str) -> Row:
    """Keeps the value when it jumps: said as newer compilers do, by a copy."""
    test = jump(op)

    def row(t: Translator, arg: int) -> None:
        t.emit("COPY", 1)
        test(t, arg)
        t.emit("POP_TOP")

    return row


def to_bool(t: Translator, arg: int) -> None:
    """bool(value), unless what follows tests the truth of its operand anyway."""
    if t.next_name() not in _TESTS:
        t.emit("UNARY", "bool")


def make_cell(t: Translator, arg: int) -> None:
    """Those before RESUME belong to the entry of the frame, which the dialect does not show."""
    if t.index > t.prologue:
        cell("MAKE_CELL")(t, arg)


def unpack_ex(t: Translator, arg: int) -> None:
    t.emit("UNPACK_EX", (arg & 0xFF, arg >> 8))


def load_const(t: Translator, arg: int) -> None:
    t.emit("LOAD_CONST", t.consts[arg])


def successor(base: Rows, gone: Iterable[str], new: Rows) -> Rows:
    """The rows of a version from those of its predecessor."""
    left_out = frozenset(gone)
    return {**{name: row for name, row in base.items() if name not in left_out}, **new}
