"""A size that a number divides is known by its quotient, and what is made of it gets simple."""

import itertools

import pytest

from torchweld.ir.conditions import at_most, equal
from torchweld.ir.expr import evaluate
from torchweld.ir.size_values import complexity, tidied
from torchweld.ir.sizes import SizeEnv


def facts(env):
    return [f.text() for f in env.facts()]


def symbols(*hints):
    env = SizeEnv()
    return env, *(env.symbol(h) for h in hints)


def test_a_remainder_that_is_known_makes_quotients_exact():
    env, n = symbols(10)
    assert env.decide(equal(n % 4, 2))
    assert env.simplify(n % 4).text() == "2"
    assert env.simplify((n - 2) // 4) is env.simplify(n // 4)
    assert env.symbol_of(env.simplify(n)) is n
    assert facts(env) == ["s0%4 == 2", "2 <= s0"]


def test_a_product_that_is_equal_to_that_of_quotients_divides_each_size():
    env, n, m, b = symbols(10, 12, 3)
    assert env.decide(equal(b * n * m, b * (n // 2) * (m // 3) * 6))
    assert facts(env)[:2] == ["s0%2 == 0", "s1%3 == 0"]


def test_a_product_that_differs_is_no_division():
    env, n, m = symbols(11, 12)
    assert not env.decide(equal(n * m, (n // 2) * (m // 3) * 6))
    assert not env.residues


def test_bounds_that_leave_one_quotient_fix_the_size():
    env, n = symbols(10)
    env.decide(equal(n % 4, 2))
    env.decide(at_most(n // 4, 2))
    env.decide(at_most(2, n // 4))
    assert env.simplify(n).text() == "10"
    assert facts(env) == ["s0 == 10"]


@pytest.mark.parametrize("d", [3, 4, 7])
def test_rounding_up_is_d_times_a_quotient(d):
    _, n = symbols(10)
    padded = n + (-n) % d
    found = tidied(padded)
    assert complexity(found) < complexity(padded)
    assert (found % d).text() == "0"
    for value in range(1, 40):
        assert evaluate(found, {n: value}) == -(-value // d) * d


def test_facts_hold_of_exactly_the_values_that_give_the_same_answers():
    for h, d in itertools.product((6, 9), (2, 3)):
        env, n = symbols(h)
        answer = env.decide(equal(n, n // d * d))
        for value in range(2, 30):
            same = (value == value // d * d) == answer
            assert all(f.holds({n: value}) for f in env.facts()) == same


@pytest.mark.parametrize(("factor", "d"), [(4, 7), (8, 7), (6, 4)])
def test_rounding_up_a_multiple_of_a_size_is_d_times_a_quotient(factor, d):
    _, n = symbols(10)
    found = tidied(n * factor + (-(n * factor)) % d)
    assert (found % d).text() == "0"
    for value in range(1, 40):
        assert evaluate(found, {n: value}) == -(-value * factor // d) * d


def test_a_remainder_of_a_known_quotient_is_one_of_the_size():
    env, n = symbols(40)
    env.decide(equal(n % 4, 0))
    env.decide(equal((-(n // 4)) % 5, 0))
    assert env.simplify(n // 10 * 10) is env.simplify(n)
    assert facts(env) == ["s0%20 == 0", "20 <= s0"]


def test_equal_quotients_of_known_remainders_make_the_sizes_equal():
    env, n, m = symbols(12, 12)
    for size in (n, m):
        env.decide(equal(size % 4, 0))
    assert env.decide(equal(n // 4, m // 4))
    assert env.simplify(n) is env.simplify(m)
    assert facts(env) == ["s0%4 == 0", "s1 == 4*(s0//4)", "4 <= s0"]


def test_a_remainder_that_is_not_one_of_two_is_the_other():
    env, n = symbols(10)
    assert not env.decide(equal(n % 2, 1))
    assert facts(env) == ["s0%2 == 0", "2 <= s0"]
