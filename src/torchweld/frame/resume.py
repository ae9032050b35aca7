"""Code objects that enter a function in the middle: the rest of it as a function of its own.

resume   the rest of the function from a point on
rejoin   the same for a frame that waits for a call: it begins with a call

Both are made from the code object of the function, whose name and lines they keep: what sets the
frame up is put in front of the function's own code. Their parameters are the flat state at the
point (points.py). The rest of a generator or coroutine is one too; where it was suspended, it waits
for what is sent as for the result of a call.
"""

from __future__ import annotations

from functools import lru_cache
from types import CodeType

from torchweld.frame.assemble import Body, Label, Unassemblable, rebuilt
from torchweld.frame.decode import table_rows
from torchweld.frame.instr import Code
from torchweld.frame.places import Place, layout
from torchweld.frame.points import CALLEE, Origin, Point, cell_names, place_at
from torchweld.frame.translate import RawCode
from torchweld.frame.versions import OPNAMES
from torchweld.frame.writer import CELL_ARGS, LOCAL_ARGS, PAIR_ARGS, Names, Writer


@lru_cache(maxsize=1024)
def resume_code(code: Code, point: Point) -> CodeType:
    """The function from a point on. Errors: Unassemblable."""
    place = place_at(code, point.index)
    names = Names(code, place.depth)
    out = Writer(code, names, None, rest=True)
    out.enter(code, point)
    _push_stack(out, place, point, place.depth)
    out.drop(names.cells)
    return _with_rest(out, code, place, None)


@lru_cache(maxsize=1024)
def rejoin_code(code: Code, point: Point) -> CodeType:
    """The function from a call on that it waits for. As in wait_piece, the operands of the call are
    gone, and two parameters say what is called instead. Errors: Unassemblable."""
    at, place = point.index, place_at(code, point.index + 1)
    names = Names(code, place.depth - 1, CALLEE)
    out = Writer(code, names, code.instrs[at].line, rest=True)
    out.enter(code, point)
    _push_stack(out, place, point, place.depth - 1)
    out.drop(names.cells)
    start, end = out.call()
    for null in place.nulls:
        if null == place.depth:
            out.emit("PUSH_NULL")
    found = None
    for row in table_rows(code.raw.co_exceptiontable):
        if row[0] <= code.instrs[at].offset < row[1]:
            found = row
            break
    if found is not None:
        handler = Label(found[2])
        out.cover(start, end, handler, found[3], found[4])
        return _with_rest(out, code, place, at, handler)
    return _with_rest(out, code, place, at)


def _push_stack(out: Writer, place: Place, point: Point, depth: int) -> None:
    """The lowest `depth` values of the stack and the NULLs around them; their variables are gone.

    A hole is what the comprehension itself would push there, so that the rest can be broken again.
    """
    nulls = [n for n in place.nulls if n <= depth]
    for slot, name in enumerate(out.names.stack[:depth]):
        while nulls and nulls[0] == slot:
            out.emit("PUSH_NULL")
            nulls.pop(0)
        if slot in point.holes:
            out.hole(name)
            continue
        out.load(name)
        if slot in place.handled:
            out.emit("PUSH_EXC_INFO")
            out.emit("POP_TOP")
    for _ in nulls:
        out.emit("PUSH_NULL")
    stack = out.names.stack
    out.drop(tuple(name for slot, name in enumerate(stack) if slot not in point.holes))


def _with_rest(out: Writer, code: Code, place: Place, call: int | None,
               *labels: Label) -> CodeType:  # fmt: skip
    """What was written, and then the function's own code from a place on. labels: places in it."""
    words, names = layout(code).words, out.names
    body, start = Label(), Label(words.starts[place.first])
    out.line = None
    out.emit("JUMP_FORWARD", start)
    for label in (body, start, *labels):
        out.mark(label)
    text = out.finish() + _moved(code, words, names.added)
    rows = [*out.rows()]
    rows += [(a + body.offset, b + body.offset, c + body.offset, d, e)
             for a, b, c, d, e in table_rows(code.raw.co_exceptiontable)]  # fmt: skip
    # lines are relative to the line before, and those of the function to its first line
    lines = out.lines(code.firstlineno, ends_at=code.firstlineno) + code.raw.co_linetable
    consts = (*code.raw.co_consts, Origin(code, body.offset, call))
    return rebuilt(code.raw, Body(text, lines, tuple(rows), names.all, names.params, consts,
                                  code.raw.co_stacksize + 5))  # fmt: skip


def _moved(code: Code, words: RawCode, added: int) -> bytes:
    """The function's own code, whose cells have moved by the added parameters."""
    raw, n_locals = bytearray(code.raw.co_code), len(code.varnames)
    if not cell_names(code):
        return bytes(raw)
    for at, offset in enumerate(words.offsets):
        name, arg = OPNAMES[words.ops[at]], words.args[at]
        if name in PAIR_ARGS:
            if max(arg >> 4, arg & 15) >= n_locals:
                raise Unassemblable("a cell in a pair of instructions")
        elif (name in CELL_ARGS or name in LOCAL_ARGS) and arg >= n_locals:
            _patch(raw, words.starts[at], offset, arg + added)
    return bytes(raw)


def _patch(raw: bytearray, start: int, offset: int, arg: int) -> None:
    for at in range(offset, start - 1, -2):
        raw[at + 1] = arg & 255
        arg >>= 8
    if arg:
        raise Unassemblable("the number of a cell does not fit")
