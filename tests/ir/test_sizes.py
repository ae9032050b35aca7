"""Symbols, decisions by them, and the facts that are left."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchweld.base.loc import Loc
from torchweld.ir.conditions import at_most, equal, junction, less, negation
from torchweld.ir.expr import Sym
from torchweld.ir.fake import FakeMode
from torchweld.ir.size_node import SizeNode, expr_of, plain, symbolic
from torchweld.ir.sizes import SizeEnv


def said(env):
    return [f.text() for f in env.facts()]


def two(a=7, b=12):
    env = SizeEnv()
    return env, env.symbol(a), env.symbol(b)


def test_a_decision_is_a_fact():
    env, a, b = two()
    assert env.decide(less(a, b))
    assert said(env) == ["2 <= s0", "2 <= s1", "s0 + 1 <= s1"]


def test_what_bounds_say_costs_no_fact():
    env, a, b = two()
    assert not env.decide(equal(a, 1))
    assert env.decide(less(a, a * b))
    assert env.decide(equal((64 * a) // (2 * a), 32))
    assert said(env) == ["2 <= s0", "2 <= s1"]


def test_the_tightest_bound_is_kept():
    env, a, _ = two()
    env.decide(at_most(a, 100))
    env.decide(at_most(a, 50))
    env.decide(at_most(a, 70))
    assert said(env) == ["2 <= s0", "s0 <= 50", "2 <= s1"]


def test_equal_sizes_become_one_symbol():
    env, a, b = two(7, 7)
    assert env.decide(equal(a * 3, b * 3))
    assert env.simplify(b + 1) is a + 1
    assert said(env) == ["s1 == s0", "2 <= s0"]


def test_a_fixed_size_is_a_constant():
    env, a, b = two()
    env.decide(at_most(a + b, 100))
    assert env.fixed(a) == 7
    assert said(env) == ["s0 == 7", "2 <= s1", "s1 <= 93"]


def test_a_bound_of_a_quotient_is_one_of_the_size():
    env, a, _ = two()
    env.decide(equal((a + 3) // 4, 2))
    assert said(env) == ["5 <= s0", "s0 <= 8", "2 <= s1"]


def test_of_an_alternative_the_part_that_holds_is_a_fact():
    env, a, b = two()
    assert env.decide(junction(False, equal(a, b), less(a, 9)))
    assert said(env) == ["2 <= s0", "s0 <= 8", "2 <= s1"]


def test_silent_answers_leave_no_facts():
    env, a, b = two()
    with env.silent():
        assert env.decide(less(a, b))
    assert said(env) == ["2 <= s0", "2 <= s1"]


def test_a_fact_names_the_line_that_needed_it():
    here = Loc("model.py", 3)
    env = SizeEnv(lambda: here)
    env.decide(at_most(env.symbol(4), 8))
    assert {f.at for f in env.facts()} == {here}


def test_facts_are_told_in_other_names():
    env, a, b = two()
    env.decide(at_most(a + b, 100))
    fact = env.facts()[-1]
    assert fact.text({a: "x.shape[0]", b: "n"}) == "n + x.shape[0] <= 100"


def _expressions(a, b):
    leaves = st.sampled_from([a, b, a * b, a + b, a - b])
    return st.tuples(leaves, st.integers(-9, 9), st.sampled_from(["+", "*", "//", "%"])).map(
        lambda t: {
            "+": t[0] + t[1],
            "*": t[0] * t[1],
            "//": t[0] // max(abs(t[1]), 1),
            "%": t[0] % max(abs(t[1]), 1),
        }[t[2]]
    )


@given(st.data(), st.integers(2, 12), st.integers(2, 12))
@settings(max_examples=300, deadline=None)
def test_whatever_satisfies_the_facts_gets_the_same_answers(data, x, y):
    env, a, b = two(x, y)
    asked = []
    for _ in range(data.draw(st.integers(1, 5))):
        left, right = data.draw(_expressions(a, b)), data.draw(_expressions(a, b))
        make = data.draw(st.sampled_from([equal, at_most, less]))
        c = make(left, right)
        if data.draw(st.booleans()):
            c = junction(data.draw(st.booleans()), c, negation(equal(a, right)))
        asked.append((c, env.decide(c)))
    facts = env.facts()
    assert all(f.holds({a: x, b: y}) for f in facts)
    for v, w in itertools.product(range(14), range(14)):
        if all(f.holds({a: v, b: w}) for f in facts):
            other = SizeEnv()
            other.hints = {a: v, b: w}
            assert [other.truth_now(c) for c, _ in asked] == [answer for _, answer in asked]


# ---------------------------------------------------------------- as torch's numbers
@pytest.fixture
def numbers():
    env, a, b = two()
    return env, symbolic(env, a), symbolic(env, b)


def test_arithmetic_of_torch_numbers_is_ours(numbers):
    _, a, b = numbers
    assert str((a + b) // 3 * 2) == "2*((s0 + s1)//3)"
    assert plain(a - a) == 0
    assert str(math.floor(a * 1.5)) == "s0 + s0//2"
    assert torch.sym_max(a, b).node.hint == 12


@pytest.mark.parametrize("den", [-3, -1, 1, 4])
@pytest.mark.parametrize("value", [2, 7, 12])
def test_division_is_pythons(value, den):
    env = SizeEnv()
    n = symbolic(env, env.symbol(value))
    assert env.hint(expr_of(n // den)) == value // den
    assert env.hint(expr_of(n % den)) == value % den
    assert env.hint(expr_of(-n // den)) == -value // den


def test_a_number_that_becomes_an_int_is_fixed(numbers):
    env, a, _ = numbers
    assert int(a) == 7
    assert said(env)[0] == "s0 == 7"


def test_a_float_that_is_rounded_fixes_what_it_is_made_of(numbers):
    env, a, _ = numbers
    assert math.floor(a * 0.7) == 4
    assert said(env) == ["s0 == 7", "2 <= s1"]


def fakes():
    env, a, b = two()
    mode = FakeMode(allow_non_fake_inputs=False, static_shapes=True)
    mode.cache_enabled = False
    with mode:
        return env, mode, torch.empty(symbolic(env, a), symbolic(env, b))


def test_operators_on_fake_tensors_decide_by_us():
    env, mode, x = fakes()
    with mode:
        y = torch.softmax(x @ x.t(), -1)
        z = torch.cat([y, y[1:]]).reshape(-1)
    assert expr_of(z.shape[0]).text() == "2*s0*s0 - s0"
    assert said(env) == ["2 <= s0", "2 <= s1"]


def test_a_view_keeps_its_strides_as_expressions():
    _, mode, x = fakes()
    with mode:
        y = x.unflatten(0, (1, -1)).transpose(1, 2)
    assert [str(n) for n in y.stride()] == ["s0*s1", "1", "s1"]
    assert isinstance(expr_of(y.shape[1]), Sym)


def test_broadcasting_unequal_sizes_raises_as_eager_does():
    _, mode, x = fakes()
    with mode, pytest.raises(RuntimeError, match="must match"):
        torch.add(x, x.t())


def test_a_remainder_by_a_size_that_is_known_by_another_keeps_its_sign():
    env, a, b = two(17, 5)
    other = env.symbol(5)
    env.decide(equal(other, b))
    assert env.hint(expr_of(symbolic(env, a) % torch.SymInt(SizeNode(env, other, 5)))) == 2


def test_a_size_divided_by_a_larger_one_leaves_itself():
    env, a, _ = two(30)
    env.decide(at_most(6, a))
    n = symbolic(env, (a + 1) // 7)
    assert str(n % (7 * n)) == "(s0 + 1)//7"
    assert plain(n // (7 * n)) == 0


def test_quotients_that_cancel_with_what_they_divide_have_bounds():
    env, a, b = two()
    assert env.known(at_most(a, (a + 6) // 7 * 7)) is True
    assert env.known(less((a + 6) // 7 * 7, a + 7)) is True
    assert env.known(less(a // 2 * b, (a // 2 + 1) * b)) is True
    assert env.known(less((a + 6) // 7 * 7, a + 6)) is None


def test_of_a_size_and_its_least_value_the_size_is_the_larger_without_a_fact(numbers):
    env, a, _ = numbers
    half = (a + 1) // 2
    assert torch.sym_max(half, 1).node.value is half.node.value
    assert torch.sym_min(1, half) == 1
    assert said(env) == ["2 <= s0", "2 <= s1"]
