"""Code objects that run one instruction of a function and give back where the function goes on.

step     the one instruction at a point
wait     for a frame that waits for a call: something else is called in the place of the call

They take the flat state at their point (points.py) and return (which, values):
`Piece.points[which]` is where the function goes on, `values` the flat state there. They never run
what comes after.
"""

from __future__ import annotations

from functools import lru_cache

from torchweld.frame.assemble import Body, Label, Unassemblable, rebuilt
from torchweld.frame.instr import TERMINAL, Code, Instr, effect
from torchweld.frame.places import Place, layout
from torchweld.frame.points import (
    CALLEE,
    Piece,
    Point,
    can_step,
    cell_names,
    lists_variables,
    looked_at,
    needed,
    place_at,
)
from torchweld.frame.versions import LOOP_END, NULL_ABOVE, ROWS
from torchweld.frame.writer import CELL_ARGS, LOCAL_ARGS, PAIR_ARGS, Names, Writer

# Operands below those that an instruction pops.
_PEEKS = frozenset(
    ("DICT_MERGE", "DICT_UPDATE", "LIST_APPEND", "LIST_EXTEND", "MAP_ADD", "SET_ADD", "SET_UPDATE")
)
# DICT_MERGE names the callable in its error: it lies under the positional arguments.
_MERGE_BELOW = 2
_CALLS = frozenset(("CALL", "CALL_EX"))
# What an inlined comprehension does with what it saved of a local, which may have no value.
_OF_HOLES = frozenset(("STORE_FAST", "SWAP"))
# Instructions that may push a NULL or a method beside their value -> (name, mask of the argument)
_PLAIN = {
    "LOAD_GLOBAL": ("LOAD_GLOBAL", ~1), "LOAD_METHOD": ("LOAD_ATTR", ~0),
    "LOAD_SUPER_ATTR": ("LOAD_SUPER_ATTR", ~1),
    "LOAD_ATTR": ("LOAD_ATTR", ~0 if "LOAD_METHOD" in ROWS else ~1),
}  # fmt: skip


@lru_cache(maxsize=1024)
def step_piece(code: Code, point: Point) -> Piece:
    """The instruction at a point. Errors: Unassemblable."""
    place = place_at(code, point.index)
    if not can_step(code, point.index):
        raise Unassemblable(f"{code.instrs[point.index].text()} has no step")
    instrs = code.instrs[place.index : place.index + place.count]
    base, pushed = _operands(place.depth, instrs)
    after = _afterwards(point, place.depth, instrs)
    if any(h >= base for h in point.holes) and not _OF_HOLES.issuperset(i.op for i in instrs):
        raise Unassemblable("an instruction on what was kept of a variable without a value")
    if base and instrs[-1].op in _CALLS and lists_variables(code, instrs[-1]):
        raise Unassemblable("a call that may list the variables, of which the stack's are some")
    deepest = _deepest(code, place, instrs)
    names = Names(code, place.depth, spare=max(0, deepest - place.depth))
    out = Writer(code, names, instrs[0].line)
    out.enter(code, point)
    _push_handled(out, place.handled, names, base)
    fillers = _push_operands(out, place, point, base, instrs[-1].op)
    start, end, jump = Label(), Label(), Label()
    out.protect(start)
    _copy(out, code, place, jump)
    out.mark(end)
    exits = _Exits(out, code, after, place.handled, fillers)
    if instrs[-1].op not in TERMINAL:
        exits.leave(place.index + place.count, base, base + pushed)
    target = next((i.target for i in instrs if i.target is not None), None)
    if target is not None:
        out.mark(jump)
        for name in LOOP_END if instrs[-1].op == "FOR_ITER" else ():
            out.emit(name)
        exits.leave(target, base, place_at(code, target).depth)
    exits.catch(start, end, place.index)
    return exits.piece()


@lru_cache(maxsize=1024)
def wait_piece(code: Code, point: Point) -> Piece:
    """For a frame that waits for the call at the point, whose operands are gone from the stack.

    The last two parameters are a callable and a tuple of its arguments, which the piece calls in
    the place of the call. Errors: Unassemblable.
    """
    at = point.index
    after = place_at(code, at + 1)
    depth = after.depth - 1
    row = code.handler(at)
    reach = max(after.depth, row.depth + row.lasti + 1 if row is not None else 0)
    names = Names(code, depth, CALLEE, reach - depth)
    out = Writer(code, names, code.instrs[at].line)
    out.enter(code, point)
    _push_handled(out, after.handled, names, depth)
    start, end = out.call()
    exits = _Exits(out, code, point, after.handled)
    exits.leave(at + 1, depth, depth + 1)
    exits.catch(start, end, at)
    return exits.piece()


def _operands(depth: int, instrs: tuple[Instr, ...]) -> tuple[int, int]:
    """The lowest slot that the instructions touch, and how many values they leave above it."""
    now = lowest = depth
    for instr in instrs:
        pops, pushes = effect(instr)
        reach = now - pops
        if instr.op in _PEEKS:
            reach -= instr.arg + (_MERGE_BELOW if instr.op == "DICT_MERGE" else 0)
        lowest = min(lowest, reach)
        now += pushes - pops
    return max(lowest, 0), now - max(lowest, 0)


def _afterwards(point: Point, depth: int, instrs: tuple[Instr, ...]) -> Point:
    """A point with what has no value, locals and slots of the stack, behind the instructions."""
    unbound, holes = set(point.unbound), set(point.holes)
    for instr in instrs:
        top = depth - 1
        if instr.op == "STORE_FAST" and top in holes:
            unbound.add(instr.arg)
        elif instr.op == "STORE_FAST":
            unbound.discard(instr.arg)
        elif instr.op == "LOAD_FAST_AND_CLEAR" and instr.arg in unbound:
            holes.add(depth)
        elif instr.op in ("DELETE_FAST", "LOAD_FAST_AND_CLEAR"):
            unbound.add(instr.arg)
        elif instr.op == "SWAP":
            other = depth - instr.arg
            holes = {{top: other, other: top}.get(h, h) for h in holes}
        pops, pushes = effect(instr)
        depth += pushes - pops
        holes = {h for h in holes if h < depth}
    return Point(point.index, frozenset(unbound), frozenset(holes))


def _deepest(code: Code, place: Place, instrs: tuple[Instr, ...]) -> int:
    """The largest stack at what follows the instructions."""
    found = [place.depth + sum(b - a for a, b in map(effect, instrs))]
    found += [place_at(code, i.target).depth for i in instrs if i.target is not None]
    row = code.handler(place.index)
    if row is not None:
        found.append(row.depth + row.lasti + 1)
    return max(found)


def _push_handled(out: Writer, handled: tuple[int, ...], names: Names, below: int) -> None:
    """Make the exceptions that are being handled known to the interpreter."""
    for slot in handled:
        if slot >= below:
            raise Unassemblable("an instruction on the exception that was handled before")
        out.load(names.stack[slot])
        out.emit("PUSH_EXC_INFO")
        out.emit("POP_TOP")


def _push_operands(out: Writer, place: Place, point: Point, base: int,
                   op: str) -> tuple[int, ...]:  # fmt: skip
    """The stack from slot `base` on; a call gets its NULL. The slots below which lies a filler, in
    the place of a NULL that the instruction reaches across but does not use."""
    fillers = []
    for slot in range(base, place.depth + 1):
        for at in place.nulls:
            if at != slot or at < base or (at == base and (NULL_ABOVE or op not in _CALLS)):
                continue
            if op in _CALLS:
                out.emit("PUSH_NULL")
            elif op in _PEEKS:
                out.const(None)
                fillers.append(slot)
            else:
                raise Unassemblable(f"{op} across the callable of a call")
        if slot in point.holes:
            out.hole(out.names.stack[slot])
        elif slot < place.depth:
            out.load(out.names.stack[slot])
    return tuple(fillers)


def _copy(out: Writer, code: Code, place: Place, jump: Label) -> None:
    """The raw instructions of a place, jumping to `jump`."""
    plan = layout(code)
    n_locals = len(code.varnames)
    for at in range(place.first, place.last + 1):
        name, arg = plan.opnames[at], plan.words.args[at]
        name, mask = _PLAIN.get(name, (name, ~0))
        if (name in CELL_ARGS or name in LOCAL_ARGS) and arg >= n_locals:
            arg += out.names.added
        if name in PAIR_ARGS and max(arg >> 4, arg & 15) >= n_locals:
            raise Unassemblable("a cell in a pair of instructions")
        if "TO_BOOL" in ROWS and (name == "UNARY_NOT" or name.endswith(("IF_TRUE", "IF_FALSE"))):
            out.emit("TO_BOOL")
        if "JUMP" in name or name == "FOR_ITER":
            out.emit(name.replace("BACKWARD", "FORWARD"), jump)
        else:
            out.emit(name, arg & mask)


def _landing(code: Code, index: int) -> int:
    """Where a way that leads to `index` comes out behind jumps.

    The rest of a round of a loop is one whether its test jumps back itself or, as compiled for
    3.12, a jump does that follows it.
    """
    seen = {index}
    while code.instrs[index].op == "JUMP":
        target = code.instrs[index].target
        assert target is not None
        place = layout(code).places[target]
        if target in seen or place is None or place.index != target:
            break
        seen.add(target)
        index = target
    return index


class _Exits:
    """The ends of a piece: each gives back where the function goes on, and the state there.

    after: what has no value there.
    """

    def __init__(self, out: Writer, code: Code, after: Point, handled: tuple[int, ...],
                 fillers: tuple[int, ...] = ()) -> None:  # fmt: skip
        self.out, self.code, self.after = out, code, after
        self.handled, self.names = handled, out.names
        self.fillers = fillers
        self.points: list[Point] = []

    def leave(self, index: int, base: int, depth: int) -> None:
        """Go on at `index`: the slots from `base` on are on the stack, the others in variables."""
        out, code = self.out, self.code
        for slot in range(depth - 1, base - 1, -1):
            out.store(self.names.stack[slot])
            if slot in self.fillers:
                out.emit("POP_TOP")
        for _ in self.handled:
            out.emit("POP_EXCEPT")
        place = place_at(code, index)
        if place.depth != depth or place.handled != self.handled:
            raise Unassemblable(f"the stack at instruction {index} is another one")
        self._give(index, depth)

    def catch(self, start: Label, end: Label, index: int) -> None:
        """What the frame does with an exception of the instruction."""
        row = self.code.handler(index)
        if row is None:
            if self.handled:
                raise Unassemblable("an exception leaves a handler that is not protected")
            self._let_go(start, end)
            return
        target = Label()
        out, handled = self.out, self.handled
        out.mark(target)
        out.cover(start, end, target, len(handled))
        slots = self.names.stack
        out.store(slots[row.depth + row.lasti])
        for _ in handled:
            out.emit("POP_EXCEPT")
        if row.lasti:
            out.const(0)
            out.store(slots[row.depth])
        self._give(row.target, row.depth)

    def _let_go(self, start: Label, end: Label) -> None:
        """An exception that leaves the piece: the stack may hold it, and it holds this frame."""
        out, target = self.out, Label()
        out.mark(target)
        out.cover(start, end, target, 0)
        for name in self.names.stack:
            out.const(None)
            out.store(name)
        out.emit("RERAISE", 0)

    def _give(self, index: int, kept: int) -> None:
        """The state at `index`, where the lowest slots of the stack are as behind the piece."""
        out, code = self.out, self.code
        index = _landing(code, index)
        depth = place_at(code, index).depth
        holes = frozenset(h for h in self.after.holes if h < kept)
        point = Point(index, self.after.unbound & looked_at(code, index), holes)
        bound = needed(code, point)
        out.const(len(self.points))
        self.points.append(point)
        for name in code.varnames:
            if name in bound and name not in code.cellvars:
                out.load(name)
            else:
                out.const(None)
        for slot, name in enumerate(self.names.stack[:depth]):
            if slot in point.holes:
                out.const(None)
            else:
                out.load(name)
        for name, param in zip(cell_names(code), self.names.cells, strict=True):
            if name in bound:
                out.load(param)
            else:
                out.const(None)
        out.emit("BUILD_TUPLE", len(code.varnames) + depth + len(self.names.cells))
        out.emit("BUILD_TUPLE", 2)
        out.emit("RETURN_VALUE")

    def piece(self) -> Piece:
        out, code = self.out, self.code
        text = out.finish()
        names = self.names
        stack = code.raw.co_stacksize + len(names.all) + 8
        body = Body(text, out.lines(code.firstlineno), tuple(out.rows()), names.all, names.params,
                    tuple(out.consts), stack)  # fmt: skip
        made = rebuilt(code.raw, body)
        return Piece(made, tuple(self.points))
