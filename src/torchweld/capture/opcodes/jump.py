"""Branches and return."""

from __future__ import annotations

import types
from collections.abc import Sequence

from torchweld.capture.functions.checks import choose, expect, expect_of_number
from torchweld.capture.identity import guard_changed
from torchweld.capture.numbers import buffer_decide, draw_decide
from torchweld.capture.open_numbers import ask
from torchweld.capture.ops import truth, user_method
from torchweld.capture.session import Capture
from torchweld.capture.state import VFrame, raised, refuse
from torchweld.capture.suspend import has_open_block
from torchweld.capture.symbolic import is_varying
from torchweld.capture.tables import opcode
from torchweld.capture.values.base import Const, GeneratorValue, TensorValue, Value
from torchweld.frame.instr import Instr


@opcode("JUMP")
def jump(cap: Capture, f: VFrame, i: Instr) -> None:
    _go(f, i)


def _go(f: VFrame, i: Instr) -> None:
    assert i.target is not None
    f.ip = i.target


def _branch(cap: Capture, f: VFrame, i: Instr, wanted: bool) -> None:
    if cap.sizes.is_open(f.stack[-1]) and _chosen(cap, f, i, wanted):
        return
    if (isinstance(f.stack[-1], TensorValue) or cap.sizes.is_open(f.stack[-1])) and (
            _expected(cap, f, i, wanted)):  # fmt: skip
        return
    if is_varying(f.stack[-1]):
        ask(cap, f, f.stack[-1])
    truth(cap, f.stack.pop(), lambda t: _go(f, i) if t is wanted else None)


def _expected(cap: Capture, f: VFrame, i: Instr, wanted: bool) -> bool:
    """Go on where the data decides between going on and raising."""
    assert i.target is not None
    near, far = (_raises(f.code.instrs, at) for at in (f.ip, i.target))
    test = f.stack[-1]
    if near is far or user_method(cap, test, "__bool__") is not None:
        return False
    if isinstance(test, TensorValue):
        known = test.fake.numel() != 1 or draw_decide(test) is not None or (
            buffer_decide(cap, test) is not None)  # fmt: skip
        if known or not cap.builder.takes_data:
            return False
        if not expect(cap, test, wanted is near):
            why = "it decides whether the frame raises, which writes to tensors from outside"
            raise refuse("W101", why, cap.loc(), "check outside of the compiled function")
    elif not expect_of_number(cap, test, wanted is near):
        return False
    f.stack.pop()
    if near:
        _go(f, i)
    return True


def _raises(code: Sequence[Instr], at: int) -> bool:
    """Whether nothing else than an exception can become of an instruction and those behind it."""
    for i in code[at : at + _LONGEST_MESSAGE]:
        if i.op == "RAISE":
            return True
        if i.target is not None or i.op in _LEAVES:
            return False
    return False


_LONGEST_MESSAGE = 100  # instructions that make what is raised
_LEAVES = frozenset(("RETURN_VALUE", "YIELD_VALUE", "RERAISE", "UNKNOWN"))


def _chosen(cap: Capture, f: VFrame, i: Instr, wanted: bool) -> bool:
    """Go on behind `n or 1` or `a if test else b`, numbers of which only the data decides which."""
    test, code = f.stack[-1], f.code.instrs
    assert i.target is not None
    first, behind = code[f.ip], code[i.target - 1]
    near: Value | None
    far: Value | None
    both = test.cls() is int and len(f.stack) > 1 and f.stack[-2] is test
    if first.op == "POP_TOP" and i.target == f.ip + 2 and both:  # `and`, `or`
        other = _loaded(f, behind)
        near, far, end = other, test, i.target
    elif behind.op == "JUMP" and i.target == f.ip + 2 and behind.target == i.target + 1:
        near, far, end = _loaded(f, first), _loaded(f, code[i.target]), i.target + 1
    else:
        return False
    if near is None or far is None:
        return False
    made = choose(cap, test, *((far, near) if wanted else (near, far)))
    if made is None:
        return False
    f.stack.pop()
    if first.op == "POP_TOP":
        f.stack.pop()
    f.stack.append(made)
    f.ip = end
    return True


def _loaded(f: VFrame, i: Instr) -> Value | None:
    """The number that an instruction loads, which does nothing else."""
    if i.op == "LOAD_CONST":
        return Const(i.arg) if type(i.arg) is int else None
    found = f.locals.get(i.arg) if i.op == "LOAD_FAST" else None
    return found if isinstance(found, Const) and found.cls() is int else None


@opcode("POP_JUMP_IF_TRUE")
def pop_jump_if_true(cap: Capture, f: VFrame, i: Instr) -> None:
    _branch(cap, f, i, True)


@opcode("POP_JUMP_IF_FALSE")
def pop_jump_if_false(cap: Capture, f: VFrame, i: Instr) -> None:
    _branch(cap, f, i, False)


def _is_none(x: Value) -> bool:
    return isinstance(x, Const) and x.cls() is types.NoneType


@opcode("POP_JUMP_IF_NONE")
def pop_jump_if_none(cap: Capture, f: VFrame, i: Instr) -> None:
    if _is_none(f.stack.pop()):
        _go(f, i)


@opcode("POP_JUMP_IF_NOT_NONE")
def pop_jump_if_not_none(cap: Capture, f: VFrame, i: Instr) -> None:
    if not _is_none(f.stack.pop()):
        _go(f, i)


def _leave(cap: Capture, value: Value) -> None:
    """The captured frame is done: what Python would do now, and what must be guarded at the end.

    A generator that is suspended inside of a block dies with the frame: GeneratorExit is raised
    where it waits, and what its handlers do is captured like everything else.
    """
    for made in cap.kept:
        if not isinstance(made, GeneratorValue) or made.finished:
            continue
        if made.kind is types.CoroutineType:
            raise refuse("W109", f"the coroutine {made.frame.code.name} is not awaited", cap.loc())
        if made.kind is types.AsyncGeneratorType and has_open_block(made):
            why = f"the asynchronous generator {made.frame.code.name} is to be closed by others"
            raise refuse("W109", why, cap.loc())
        if has_open_block(made):
            _close(cap, made, value)
    guard_changed(cap)
    cap.result = value


def _close(cap: Capture, gen: GeneratorValue, value: Value) -> None:
    """Raise GeneratorExit in a suspended generator; `_leave` goes on when it is gone."""
    frame = gen.frame

    def gone(_: Value) -> bool:
        _leave(cap, value)
        return True

    def failed(exc: Value) -> bool:
        if not issubclass(exc.cls(), GeneratorExit | StopIteration):
            raise refuse("W109", f"{frame.code.qualname} fails while it is closed", cap.loc())
        return gone(exc)

    def yielded(_: Value) -> None:
        raise refuse("W109", f"{frame.code.qualname} yields while it is closed", cap.loc())

    gen.finished = True
    frame.on_return = lambda result: (gone(result), None)[1]
    frame.on_raise, frame.on_yield = failed, yielded
    cap.frames.append(frame)
    raise raised(GeneratorExit)


@opcode("RETURN_VALUE")
def return_value(cap: Capture, f: VFrame, i: Instr) -> None:
    value = f.stack.pop()
    if cap.slices is not None:
        cap.slices.end(cap, f, value)
    cap.frames.pop()
    if not cap.frames and f.on_return is None:
        _leave(cap, value)
    else:
        cap.deliver(value, f.on_return)
