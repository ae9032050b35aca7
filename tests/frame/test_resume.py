"""Functions that are entered in the middle, and run piece by piece, do what they always do."""

from __future__ import annotations

import json
import sys
import traceback
import types
from textwrap import TextWrapper

import pytest
from dialect_programs import PROGRAMS, outcome
from stepper import function, run

from torchweld.frame.assemble import Unassemblable
from torchweld.frame.decode import decode
from torchweld.frame.places import layout
from torchweld.frame.points import Point, can_step, looked_at, original, sets_up
from torchweld.frame.resume import rejoin_code, resume_code
from torchweld.frame.steps import step_piece, wait_piece


@pytest.mark.parametrize("row", PROGRAMS, ids=lambda row: row[0].__name__)
def test_steps_and_then_the_rest_give_what_the_function_gives(row):
    fn, *args = row
    want = outcome(fn, args)
    for steps in range(300):
        count = []
        assert (steps, outcome(lambda *a: run(fn, a, steps, count), args)) == (steps, want)
        assert sys.exc_info() == (None, None, None), steps  # nothing is being handled any more
        if count[0] < steps:
            break


def ends(x):
    try:
        x["missing"]
    finally:
        x.pop(3)


def test_what_was_handled_is_in_the_way_of_an_exception_in_a_handler():
    code = decode(ends.__code__)
    places = layout(code).places
    (last,) = [i for i, x in enumerate(code.instrs) if x.op == "COPY"]
    point = Point(last, frozenset())
    assert (places[last].handled, places[last].depth, can_step(code, last)) == ((0,), 3, False)
    before, after = KeyError("missing"), IndexError("at 3")
    with pytest.raises(IndexError):
        function(resume_code(code, point), ends)(None, before, 0, after)
    assert sys.exc_info() == (None, None, None)


def functions_of(*modules):
    for module in modules:
        for value in vars(module).values():
            members = vars(value).values() if isinstance(value, type) else [value]
            yield from (m for m in members if isinstance(m, types.FunctionType))


def entered(fn):
    """The points where a function of the standard library can be entered, every variable bound."""
    code = decode(fn.__code__)
    for index, place in enumerate(layout(code).places):
        if place is not None and place.index == index:
            yield code, Point(index)


@pytest.mark.parametrize("module", [json.decoder, traceback, sys.modules["textwrap"], types])
def test_resumed_code_decodes_to_the_rest_of_the_function(module):
    for fn in functions_of(module):
        if decode(fn.__code__).is_generator:
            continue
        for code, point in entered(fn):
            resumed = decode(resume_code(code, point))
            shift = len(resumed.raw.co_code) - len(code.raw.co_code)
            offsets = [i.offset for i in code.instrs]
            rest = {i.offset - shift: i for i in resumed.instrs if i.offset >= shift}
            for instr in code.instrs:
                if instr.offset in rest and offsets.count(instr.offset) == 1:
                    found = rest[instr.offset]
                    assert (found.text(), found.line) == (instr.text(), instr.line)
            assert code.instrs[point.index].offset in rest


def behind_jumps(code, index):
    while index < len(code.instrs) and code.instrs[index].op == "JUMP":
        index = code.instrs[index].target
    return index


def test_every_instruction_that_has_a_step_goes_on_where_the_function_does():
    for fn in functions_of(sys.modules["textwrap"], json.decoder):
        code = decode(fn.__code__)
        for _, point in entered(fn):
            if not can_step(code, point.index):
                continue
            piece = step_piece(code, point)
            place = layout(code).places[point.index]
            after = {place.index + place.count, code.handler(point.index)}
            targets = {i.target for i in code.instrs[point.index :][: place.count]}
            rows = {r.target for r in after if not isinstance(r, int) and r is not None}
            ways = {place.index + place.count, *targets, *rows} - {None}
            assert {p.index for p in piece.points} <= {behind_jumps(code, way) for way in ways}


def outer(x, log):
    try:
        log.append("before")
        y = inner(x) + 1
    except ValueError as error:
        return str(error)
    return y


def inner(x):
    raise NotImplementedError


def call_of_inner():
    code = decode(outer.__code__)
    at = next(i for i, x in enumerate(code.instrs) if x.op == "CALL" and x.arg == (1, ())
              and code.instrs[i + 1].op == "LOAD_CONST")  # fmt: skip
    return code, Point(at, frozenset(("y", "error")) & looked_at(code, at))


def by_wait(replacement):
    """`outer` from its call of inner on, where `replacement` runs in the place of the call."""
    code, point = call_of_inner()
    piece = wait_piece(code, point)
    which, values = function(piece.code, outer)(3, None, None, None, replacement, (3,))
    return function(resume_code(code, piece.points[which]), outer)(*values)


def by_rejoin(replacement):
    code, point = call_of_inner()
    return function(rejoin_code(code, point), outer)(3, None, None, None, replacement, (3,))


@pytest.mark.parametrize("go_on", [by_wait, by_rejoin])
def test_a_waiting_frame_gets_the_result_of_the_call(go_on):
    assert go_on(lambda x: x * 2) == 7


@pytest.mark.parametrize("go_on", [by_wait, by_rejoin])
def test_a_waiting_frame_handles_an_exception_of_the_call(go_on):
    def fail(x):
        raise ValueError(f"no {x}")

    assert go_on(fail) == "no 3"


def test_the_traceback_of_a_rest_shows_the_line_of_the_call():
    def fail(x):
        raise KeyError(x)

    with pytest.raises(KeyError) as caught:
        by_rejoin(fail)
    assert "y = inner(x) + 1" in [entry.line for entry in traceback.extract_tb(caught.tb)]


def test_instructions_of_a_rest_are_those_of_the_function():
    code = decode(outer.__code__)
    for point in (p for c, p in entered(outer)):
        resumed = decode(resume_code(code, point))
        own = [i for i in range(len(resumed.instrs)) if not sets_up(resumed, i)]
        assert original(resumed, 0) is None
        assert original(resumed, own[0])[0] is code
        assert point.index in [original(resumed, i)[1] for i in own]


def test_the_call_that_a_rest_begins_with_is_the_one_that_the_function_waits_for():
    code, point = call_of_inner()
    resumed = decode(rejoin_code(code, point))
    call = next(i for i, x in enumerate(resumed.instrs) if x.op == "CALL_EX")
    assert sets_up(resumed, call)
    assert original(resumed, call) == (code, point.index)


def failing(x):
    first = x
    return first / 0


def test_the_traceback_of_a_step_shows_the_line_of_the_user():
    with pytest.raises(ZeroDivisionError) as caught:
        run(failing, (1,), 10, [])
    last = traceback.extract_tb(caught.tb)[-1]
    assert (last.name, last.line) == ("failing", "return first / 0")


def closing(n):
    def get():
        return n

    n = n + 1
    return get() + n


def test_the_rest_of_a_function_shares_its_cells():
    for steps in range(12):
        assert run(closing, (1,), steps, []) == 4


def test_a_frame_cannot_be_entered_between_parts_of_one_instruction():
    code = decode(TextWrapper._split_chunks.__code__)
    inside = [i for i, p in enumerate(layout(code).places) if p is None or p.index != i]
    for index in inside:
        with pytest.raises(Unassemblable):
            resume_code(code, Point(index))


def counting(n):
    """Handles what is thrown into it."""
    total = n
    for i in range(4):
        try:
            got = yield total + i
        except KeyError as error:
            got = error.args[0]
        total += got
    return total


def rest_of_counting(total, i, call, args):
    """`counting` as it is suspended in round `i`."""
    code = decode(counting.__code__)
    at = next(k for k, x in enumerate(code.instrs) if x.op == "YIELD_VALUE")
    state = {"n": None, "total": total, "i": i}
    left = iter(range(i + 1, 4))
    point = Point(at, looked_at(code, at).difference(state))
    made = function(rejoin_code(code, point), counting)
    return made(*(state.get(name) for name in code.varnames), left, call, args)


def test_the_rest_of_a_generator_is_a_generator():
    rest = rest_of_counting(10, 0, lambda x: x, (5,))
    assert isinstance(rest, types.GeneratorType)
    assert [next(rest), rest.send(1), rest.send(2)] == [16, 18, 21]
    with pytest.raises(StopIteration) as end:
        rest.send(3)
    assert end.value.value == 21


def test_an_exception_is_raised_where_a_generator_is_suspended():
    def fail(error):
        raise error

    rest = rest_of_counting(10, 1, fail, (KeyError(7),))
    assert next(rest) == 19
    rest = rest_of_counting(10, 1, fail, (ValueError("v"),))
    with pytest.raises(ValueError, match="v") as caught:
        next(rest)
    lines = [entry.line for entry in traceback.extract_tb(caught.tb)]
    assert "got = yield total + i" in lines
    assert rest.gi_frame is None


def endless(x):
    if x:
        while True:
            pass
    return 1


def test_a_branch_into_a_loop_of_nothing_but_its_jump_has_a_step():
    code = decode(endless.__code__)
    index = next(i for i, instr in enumerate(code.instrs) if instr.op == "POP_JUMP_IF_FALSE")
    inside, outside = (code.instrs[p.index].op for p in step_piece(code, Point(index)).points)
    assert (inside, outside) == ("JUMP", "LOAD_CONST")
