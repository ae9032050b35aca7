"""Random graphs: the text form is exact, the verifier accepts them, evaluation is a function."""

import copy
import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ir.strategies import EXTERNS, inputs_of, loop_graphs

from torchweld.ir.loop_eval import evaluate
from torchweld.ir.loop_text import parse, text
from torchweld.ir.loop_verify import verify

SLOW = settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))


def bits(values):
    """Comparable: NaN equals NaN, -0.0 differs from 0.0, True from 1."""
    if values is None:
        return None
    return ["nan" if v != v else (type(v), v, math.copysign(1, v)) for v in values]


@SLOW
@given(loop_graphs())
def test_the_text_form_round_trips_exactly(g):
    assert parse(text(g)) == g


@SLOW
@given(loop_graphs())
def test_random_graphs_are_well_formed(g):
    verify(g)


@SLOW
@given(st.data())
def test_evaluation_is_deterministic_and_survives_the_text_form(data):
    g = data.draw(loop_graphs())
    inputs = data.draw(inputs_of(g))
    again = copy.deepcopy(inputs)
    first = evaluate(g, inputs, EXTERNS)
    second = evaluate(parse(text(g)), again, EXTERNS)
    assert list(map(bits, first)) == list(map(bits, second))
    assert list(map(bits, inputs)) == list(map(bits, again))
