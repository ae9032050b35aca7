"""What the code of a frame says of it: whether it would handle the error of an operator, and what
becomes of a result."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Iterator, Sequence
from contextlib import _GeneratorContextManager
from itertools import pairwise
from types import FunctionType

from torchweld.capture.state import VFrame
from torchweld.capture.values.base import (
    BoundValue,
    Const,
    GeneratorValue,
    InstanceValue,
    Value,
)
from torchweld.frame.decode import decode
from torchweld.frame.instr import Code, Instr, Protected

# what operators raise because of their data (bad indices, failed checks); NotImplementedError, a
# RuntimeError too, says that there is no kernel, which caches of transformers handle
RAISED = (IndexError, RuntimeError)
# and what arithmetic of numbers raises
OF_NUMBERS = (OverflowError, ValueError, ZeroDivisionError)
Kinds = tuple[type[Exception], ...]

# what the classes behind `except` are usually written with
_CLASSES = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF", "LOAD_ATTR", "BUILD_TUPLE")


def _rows(frame: VFrame) -> Iterator[Protected]:
    """Where an exception goes at the place where a frame is now: to the innermost handler, and on
    from there if it is raised again."""
    row = frame.code.handler(frame.ip - 1)
    while row is not None:
        yield row
        row = frame.code.handler(row.target)


def handles(frame: VFrame) -> bool:
    """Whether an exception where a frame is now runs code of it; leaving a mode of torch does not
    count, since it is not really entered.
    """
    return any(_runs_code(frame, row) for row in _rows(frame))


def _runs_code(frame: VFrame, row: Protected) -> bool:
    if not _is_with(frame, row):
        return frame.code.instrs[row.target].op == "PUSH_EXC_INFO"
    leave, _ = _leaving(frame, row)
    if leave is contextlib.nullcontext.__exit__:
        return False
    return str(getattr(leave, "__module__", None)).split(".")[0] != "torch"


def tests_next(frame: VFrame) -> bool:
    """Whether what the instruction that runs now gives is the test of a branch, and nothing else: a
    Tensor does there what its value does."""
    return frame.code.instrs[frame.ip].op in ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE")


def catches(frame: VFrame, raised: Kinds = RAISED) -> bool:
    """Whether an operator's error may end where a frame is now: in an `except` that matches it, or
    in a manager of a `with` that may swallow it. What only cleans up, and what names an unrelated
    class, does not.
    """
    return any(_may_end(frame, row, raised) for row in _rows(frame))


def _may_end(frame: VFrame, row: Protected, raised: Kinds) -> bool:
    if _is_with(frame, row):
        return _may_swallow(*_leaving(frame, row))
    code = frame.code.instrs
    if code[row.target].op != "PUSH_EXC_INFO":
        return False
    at = row.target + 1
    if code[at].op == "POP_TOP":
        return True
    while (match := _match_behind(code, at)) is not None:
        jump = code[match + 1].target
        if jump is None or any(_may_match(frame, x, raised) for x in code[at:match]):
            return True
        at = jump
    return False


def _match_behind(code: Sequence[Instr], at: int) -> int | None:
    """Where the expression at an instruction is matched with an exception; None if it is not."""
    while code[at].op in _CLASSES:
        at += 1
    return at if code[at].op == "CHECK_EXC_MATCH" else None


def _is_with(frame: VFrame, row: Protected) -> bool:
    ops = [x.op for x in frame.code.instrs[row.target : row.target + 2]]
    return ops == ["PUSH_EXC_INFO", "WITH_EXCEPT_START"]


def _leaving(frame: VFrame, row: Protected) -> tuple[object, Value | None]:
    """The function that leaves the with block of a row, and what manages it."""
    leave = frame.stack[row.depth - 1] if row.depth <= len(frame.stack) else None
    bound = leave if isinstance(leave, BoundValue) else None
    real = bound.func if bound is not None else leave
    return (real.obj if isinstance(real, Const) else None), bound and bound.self_


def _may_swallow(leave: object, manager: Value | None) -> bool:
    """Whether an `__exit__` may end an exception: it has a `return` of something else than None or
    False, or leaves a generator that goes on behind a handler. What is not written in Python
    (locks, files) returns None.
    """
    if not isinstance(leave, FunctionType) or str(leave.__module__).split(".")[0] == "torch":
        return False
    if leave is _GeneratorContextManager.__exit__ and isinstance(manager, InstanceValue):
        made = manager.attrs.get("gen")
        if not isinstance(made, GeneratorValue) or made.read is not None:
            return True
        return _ends_some(made.frame.code)
    code = decode(leave.__code__).instrs
    returned = [code[i - 1] for i, x in enumerate(code) if x.op == "RETURN_VALUE"]
    return any(x.op != "LOAD_CONST" or x.arg for x in returned)


def _ends_some(code: Code) -> bool:
    """Whether a handler of the code ends the exception, instead of raising it again."""
    return any(x.op == "POP_EXCEPT" and after.op != "RERAISE"
               for x, after in pairwise(code.instrs))  # fmt: skip


def _may_match(frame: VFrame, named: Instr, raised: Kinds) -> bool:
    if named.op == "BUILD_TUPLE":
        return False
    if named.op != "LOAD_GLOBAL":
        return True
    kind = frame.globals.get(named.arg, getattr(builtins, str(named.arg), None))
    if not isinstance(kind, type):
        return True
    return any(issubclass(r, kind) for r in raised)
