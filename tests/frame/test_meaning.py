"""Decoded code means what CPython does: programs run natively and by the evaluator."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
from dialect_evaluator import evaluate
from dialect_programs import PROGRAMS, countdown, delegate, outcome, traced


@pytest.mark.parametrize("row", PROGRAMS, ids=lambda row: row[0].__name__)
def test_evaluated_program_gives_what_cpython_gives(row):
    fn, *args = row
    assert outcome(lambda *a: evaluate(fn, a), args) == outcome(fn, args)


@pytest.mark.parametrize("fn", [countdown, delegate])
def test_evaluated_generator_yields_what_cpython_yields(fn):
    def drive(gen):
        seen = [next(gen)]
        for value in range(5):
            try:
                seen.append(gen.send(value))
            except StopIteration as stop:
                seen.append(stop.value)
                break
        return seen

    assert drive(evaluate(fn, (3,))) == drive(fn(3))


def test_exception_thrown_into_an_evaluated_generator_reaches_its_handler():
    def drive(gen):
        return [next(gen), next(gen), gen.throw(ValueError("thrown")), *gen]

    assert drive(evaluate(countdown, (2,))) == drive(countdown(2))


def test_what_is_executed_is_the_same_in_all_versions():
    """The layout of the code differs, and with it jumps; what is done does not."""
    golden = Path(__file__).parent / "golden" / "trace.txt"
    seen = []

    def note(frame, index):
        instr = frame.code.instrs[index]
        if instr.op.startswith("POP_JUMP"):
            seen.append("POP_JUMP")  # either sense
        elif instr.op != "JUMP":
            seen.append(instr.text())

    evaluate(traced, ([3, 0, "a", 4], partial(nullcontext, []), 7), note)
    assert "\n".join(seen) + "\n" == golden.read_text()
