"""The state of a capture: the virtual call stack, the graph so far, the guards so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torchweld.base.errors import GraphBreak
from torchweld.base.loc import NOWHERE, Loc
from torchweld.capture.values.base import CellValue, Const, DictValue, InstanceValue, Value
from torchweld.frame.instr import Code
from torchweld.ir.source import Source

Cont = Callable[[Value], None]
# Python code in the place of what is written in C
_OWN = str(Path(__file__).parent)


class Raised(Exception):
    """A Python exception raised by the captured program. `value`: the abstract exception object."""

    def __init__(self, value: Value) -> None:
        super().__init__(repr(value))
        self.value = value


def raised(kind: type[BaseException], *args: object) -> Raised:
    """The captured program raises `kind(*args)`."""
    exc = InstanceValue(kind)
    exc.attrs["args"] = Const(tuple(args))
    return Raised(exc)


def stop_inside(exc: Value, says: str = "generator raised StopIteration") -> Raised:
    """PEP 479: what a StopIteration that leaves a generator becomes."""
    error = raised(RuntimeError, says)
    assert isinstance(error.value, InstanceValue)
    error.value.attrs["__cause__"] = error.value.attrs["__context__"] = exc
    error.value.attrs["__suppress_context__"] = Const(True)
    return error


class Anew(Exception):
    """The frame must be captured anew, now that something is known of its site: fact, value."""

    fact: str
    value: bool


class WithoutCopies(Anew):
    """The frame takes gradients of what copied calls made: it must be captured without copies."""

    fact, value = "copies", False


class WithoutSupposed(Anew):
    """The frame could not run again where what was supposed is wrong: nothing may be supposed."""

    fact, value = "supposes", False


class HooksStay(Anew):
    """The frame registers hooks of modules and does not remove them: their numbers are seen."""

    fact, value = "hooks_stay", True


class Handed(Exception):
    """The generator that is captured hands a value out. how: see `ir.region.Resume.hands`."""

    def __init__(self, how: str, value: Value) -> None:
        super().__init__(how)
        self.how = how
        self.value = value


@dataclass(slots=True, eq=False)
class VFrame:
    """One virtual frame.

    on_return: what happens with the result; None pushes it on the caller's stack.
    on_raise: asked when an exception leaves the frame; True means that it was dealt with.
    exc: exceptions being handled, innermost last.
    names: of the body of a class statement, what it has defined.
    scope: the dict that locals() has given.
    started: the number of the instruction that it is at, among all that the capture has run.
    driven: the generator whose frame it is, if the frame below runs it in a `for` or by next().
    asked: what was asked of numbers that vary, and how many operators there were, by the index of
    the instruction.
    """

    code: Code
    globals: dict[str, object]
    globals_source: Source
    locals: dict[str, Value] = field(default_factory=dict)
    cells: dict[str, CellValue] = field(default_factory=dict)
    stack: list[Value] = field(default_factory=list)
    ip: int = 0
    exc: list[Value] = field(default_factory=list)
    on_return: Cont | None = None
    on_raise: Callable[[Value], bool] | None = None
    on_yield: Cont | None = None
    function: Value | None = None
    names: dict[str, Value] | None = None
    scope: DictValue | None = None
    started: int = 0
    driven: Value | None = None
    asked: dict[int, tuple[object, int]] = field(default_factory=dict)

    def loc(self) -> Loc:
        i = max(self.ip - 1, 0)
        if i >= len(self.code.instrs):
            return NOWHERE
        return Loc(self.code.filename, self.code.instrs[i].line)

    def is_real(self) -> bool:
        """Whether Python would have the same frame, waiting for nothing but results of calls."""
        plain = (self.on_return, self.on_raise, self.on_yield, self.names) == (None,) * 4
        return plain and not self.code.filename.startswith(_OWN)

    def can_wait(self) -> bool:
        """Whether it may be there when the graph ends: a real one, or a generator that the frame
        below can be told to run again."""
        return self.is_real() or (
            self.driven is not None and not self.code.filename.startswith(_OWN))  # fmt: skip

    def push(self, value: Value) -> None:
        self.stack.append(value)

    def pop(self) -> Value:
        return self.stack.pop()

    def popn(self, n: int) -> list[Value]:
        if n == 0:
            return []
        out = self.stack[-n:]
        del self.stack[-n:]
        return out


class Stuck(GraphBreak):
    """The state of the frame holds a value that cannot be made again outside of the capture.

    born: the number of the instruction that made it.
    """

    def __init__(self, code: str, why: str, at: Loc, born: int) -> None:
        super().__init__(code, why, at=at)
        self.born = born


def refuse(code: str, why: str, at: Loc = NOWHERE, fix: str | None = None) -> GraphBreak:
    """The GraphBreak to raise when the capture cannot go on. fix: see `Refusal`."""
    return GraphBreak(code, why, at=at, fix=fix)
