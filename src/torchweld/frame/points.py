"""Points at which a function can be entered in the middle, and what it needs there.

The flat state at a point is: the local variables, the values on the stack, the cells. A local that
has no value or is not needed is None in it.
"""

from __future__ import annotations

import inspect
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType

from torchweld.frame.assemble import Unassemblable
from torchweld.frame.instr import Code, Instr, effect
from torchweld.frame.liveness import live_locals
from torchweld.frame.places import Place, layout

# the last parameters of code that waits for a call: what to call, and the tuple of its arguments
CALLEE = (".call", ".args")
_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
# Instructions that a step cannot run: they end or suspend the frame.
_NO_STEPS = frozenset((
    "JUMP", "RERAISE", "RETURN_VALUE", "UNKNOWN", "SEND", "YIELD_VALUE", "RETURN_GENERATOR",
    "END_ASYNC_FOR", "CLEANUP_THROW", "PUSH_EXC_INFO", "POP_EXCEPT", "LOAD_CLOSURE_AND_CLEAR",
    "STORE_CLOSURE", "MAKE_CELL",
))  # fmt: skip
_OF_SUPER = ("__class__",)
# What looks at the variables of the frame by other ways than its instructions.
_LOOKERS = frozenset(("dir", "eval", "exec", "locals", "vars"))
# What its objects may die for: then the variables live as long as the function.
_WEAK = frozenset(("weakref", "proxy", "WeakKeyDictionary", "WeakMethod", "WeakSet",
                   "WeakValueDictionary", "finalize"))  # fmt: skip
_WITHOUT_ARGUMENTS = frozenset(("dir", "locals", "vars"))  # else they look at their argument


@dataclass(frozen=True, slots=True)
class Point:
    """Before which dialect instruction a function is entered, and with what kind of state.

    unbound: locals that have no value there and are looked at. holes: slots of the stack that hold
    no value (what an inlined comprehension saved of an unbound local).
    """

    index: int
    unbound: frozenset[str] = frozenset()
    holes: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The function that resumed code is the rest of, and by how much its code has moved.

    call: the instruction in whose place the code begins with a call. It is the last constant of the
    code.
    """

    code: Code
    shift: int
    call: int | None


def original(code: Code, index: int) -> tuple[Code, int] | None:
    """The function that `code` is or is the rest of, and an instruction's index there.

    None if that instruction only sets the rest up.
    """
    origin = code.raw.co_consts[-1] if code.raw.co_consts else None
    if not isinstance(origin, Origin):
        return code, index
    offset = code.instrs[index].offset
    if offset < origin.shift:
        calls = origin.call is not None and code.instrs[index].op == "CALL_EX"
        return (origin.code, origin.call) if calls and origin.call is not None else None
    ordinal = index - bisect_left(code.instrs, offset, key=_offset)
    first = bisect_left(origin.code.instrs, offset - origin.shift, key=_offset)
    return origin.code, first + ordinal


def is_rest(code: CodeType) -> bool:
    """Whether a code object is the rest of a function."""
    return bool(code.co_consts) and isinstance(code.co_consts[-1], Origin)


def is_suspendable(code: CodeType) -> bool:
    """Whether a call of the code gives a generator or coroutine, and none that has begun."""
    return bool(code.co_flags & _SUSPENDABLE) and not is_rest(code)


def sets_up(code: Code, index: int) -> bool:
    """Whether an instruction is not the function's own but sets its rest up."""
    origin = code.raw.co_consts[-1] if code.raw.co_consts else None
    return isinstance(origin, Origin) and code.instrs[index].offset < origin.shift


def _offset(instr: Instr) -> int:
    return instr.offset


@dataclass(frozen=True, slots=True)
class Piece:
    """A step or a wait. points: where the function goes on."""

    code: CodeType
    points: tuple[Point, ...]


def cell_names(code: Code) -> tuple[str, ...]:
    """The cells of a frame in the order of its flat state."""
    return (*code.cellvars, *code.freevars)


def lists_variables(code: Code, call: Instr) -> bool:
    """Whether a call may be one that asks for all variables of the function, by name."""
    names = _LOOKERS.intersection(code.raw.co_names)
    others = call.op == "CALL" and call.arg[0] > 0 and names <= _WITHOUT_ARGUMENTS
    return bool(names) and not others


def looked_at(code: Code, index: int) -> frozenset[str]:
    """The names of locals and cells that the function may still look at from here on."""
    if (_LOOKERS | _WEAK).intersection(code.raw.co_names):
        return frozenset((*code.varnames, *cell_names(code)))
    if "super" in code.raw.co_names:
        # super() looks at them when it is called, which may be after the name was loaded
        return live_locals(code, index).union(_OF_SUPER, code.params[:1])
    return live_locals(code, index)


def needed(code: Code, point: Point) -> frozenset[str]:
    """Those of them that have a value."""
    return looked_at(code, point.index) - point.unbound


def depth_at(code: Code, index: int) -> int:
    """How many values are on the stack before an instruction. Errors: Unassemblable."""
    return place_at(code, index).depth


def can_step(code: Code, index: int) -> bool:
    """Whether there is a step for this instruction."""
    place = layout(code).places[index]
    if place is None:
        return False
    instrs = code.instrs[place.index : place.index + place.count]
    if any(i.op in _NO_STEPS for i in instrs):
        return False
    # a step has the exceptions that are handled, not those that were handled before them
    return not place.handled or max(place.handled) < _lowest(place.depth, instrs)


def _lowest(depth: int, instrs: Iterable[Instr]) -> int:
    """The lowest slot of the stack that the instructions touch."""
    lowest = depth
    for instr in instrs:
        pops, pushes = effect(instr)
        lowest = min(lowest, depth - pops)
        depth += pushes - pops
    return lowest


def place_at(code: Code, index: int) -> Place:
    """Where an instruction lies. Errors: Unassemblable if the function cannot be entered there."""
    place = layout(code).places[index]
    if place is None or place.index != index:
        raise Unassemblable(f"{code.qualname} cannot be entered at instruction {index}")
    return place
