"""live_locals: what a resume function has to be given."""

from __future__ import annotations

import pytest
from dialect_evaluator import evaluate
from dialect_programs import PROGRAMS, countdown, outcome

from torchweld.frame.decode import decode
from torchweld.frame.instr import TERMINAL, Code
from torchweld.frame.liveness import ends_loop, live_locals


def at(fn, op, arg=None):
    """The code of a function and the index of its first instruction like this."""
    code = decode(fn.__code__)
    return code, next(
        i for i, instr in enumerate(code.instrs) if instr.op == op and arg in (None, instr.arg)
    )


def test_a_local_is_dead_after_its_last_read():
    def fn(x, y):
        z = x + 1
        y.mark()
        return z

    code, call = at(fn, "LOAD_ATTR", "mark")
    assert live_locals(code, 0) == {"x", "y"}
    assert live_locals(code, call) == {"z"}


def test_a_local_is_dead_before_it_is_overwritten():
    def fn(x, y):
        y.mark()
        x = 1
        return [x]

    code, call = at(fn, "LOAD_ATTR", "mark")
    assert live_locals(code, call) == set()


def test_a_loop_keeps_what_its_next_turn_reads():
    def fn(xs, scale):
        total = 0
        for x in xs:
            total += x * scale
        return total

    code, loop = at(fn, "FOR_ITER")
    assert live_locals(code, loop) == {"total", "scale"}


def test_a_handler_keeps_what_it_reads_alive_in_its_block():
    def fn(x, spare):
        try:
            spare = x.first()
            return [spare]
        except ValueError:
            return spare

    code, store = at(fn, "STORE_FAST", "spare")
    assert "spare" in live_locals(code, store - 1)


def test_a_block_does_not_keep_what_only_other_handlers_read():
    def fn(x, spare):
        try:
            x.first()
        except ValueError:
            return spare
        x.second()
        return None

    code, call = at(fn, "LOAD_ATTR", "second")
    assert live_locals(code, call) == set()


def test_a_cell_lives_while_its_closure_can_be_made():
    def fn(x, y):
        y.mark()
        x = 1
        return lambda: x

    code, call = at(fn, "LOAD_ATTR", "mark")
    assert live_locals(code, call) == {"x"}


def test_a_deletion_needs_the_local():
    def fn(x, y):
        y.mark()
        del x

    code, call = at(fn, "LOAD_ATTR", "mark")
    assert live_locals(code, call) == {"x"}


def test_super_without_arguments_needs_the_first_parameter():
    class Model:
        def fn(self, x):
            x.mark()
            return super().fn(x.y)

    code, call = at(Model.fn, "LOAD_ATTR", "mark")
    assert live_locals(code, call) == {"self", "__class__", "x"}


@pytest.mark.parametrize("row", PROGRAMS, ids=lambda row: row[0].__name__)
def test_programs_do_not_notice_when_their_dead_locals_are_dropped(row):
    def prune(frame, index):
        live = live_locals(frame.code, index)
        for name in [name for name in frame.locals if name not in live]:
            del frame.locals[name]

    fn, *args = row
    assert outcome(lambda *a: evaluate(fn, a, prune), args) == outcome(fn, args)


READS = ("LOAD_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR")


def reads_on_a_path(code: Code, start: int) -> set[str]:
    """The definition, tried out: a walk for each local until it is overwritten."""
    found = set()
    for name in code.varnames:
        seen, work = set(), [start]
        while work:
            index = work.pop()
            if index in seen:
                continue
            seen.add(index)
            instr = code.instrs[index]
            if row := code.handler(index):
                work.append(row.target)
            if (instr.op, instr.arg) == ("LOAD_GLOBAL", "super") and name == code.params[0]:
                found.add(name)
                break
            if instr.arg == name and instr.op in READS:
                found.add(name)
                break
            if instr.arg == name and instr.op == "STORE_FAST":
                continue
            if instr.target is not None:
                work.append(instr.target)
            if instr.op not in TERMINAL:
                work.append(index + 1)
    return found


FUNCTIONS = [*dict.fromkeys(row[0] for row in PROGRAMS), countdown]


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_live_locals_are_those_read_on_some_path(fn):
    code = decode(fn.__code__)
    cells = {*code.cellvars, *code.freevars}
    for index in range(len(code.instrs)):
        live = live_locals(code, index)
        assert live - cells == reads_on_a_path(code, index) - cells


def questions(fn):
    """What `ends_loop` says of each comparison."""
    code = decode(fn.__code__)
    return [ends_loop(code, i) for i, x in enumerate(code.instrs) if x.op == "COMPARE_OP"]


def test_a_question_that_ends_a_loop():
    def leaves(n):
        for i in range(9):
            if i >= n:
                n = i
                break

    def goes_on(n):
        if n > 3:
            n = 3
        for i in range(9):
            if i >= n:
                continue
            n = n - 1 if n > 5 else n

    def inner(n):
        for i in range(9):
            while n < i:
                n += 1
            if n == 3:
                n += 2

    assert questions(leaves) == [True]
    assert questions(goes_on) == [False] * 3
    assert questions(inner)[-2:] == [True, False]
