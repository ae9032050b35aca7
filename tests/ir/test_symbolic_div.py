"""Quotients and remainders by symbolic sizes: simple where that is provable, right always."""

import operator
import random

import pytest

from torchweld.ir.expr import LoopSym, SizeSym, as_expr, evaluate, hinted, index_symbol
from torchweld.ir.symbolic_div import fits, largest, least

N = SizeSym.make("n", 2, None, 7)
M = SizeSym.make("m", 1, None, 5)
K = SizeSym.make("k", 3, None, 5)
ROW = index_symbol("i", M)
COLUMN = index_symbol("j", N)
FLAT = index_symbol("p", M * N * K * 768)
SMALL = index_symbol("c", as_expr(12))
LEAVES = (N, M, K, ROW, COLUMN, FLAT, SMALL)
DIVISORS = (N, M, K, N * M, 4 * N, N * M * K * 2, N + M, K - 1, 4 * M + 4 * N, as_expr(3))


def test_a_row_and_a_column_are_taken_apart_again():
    flat = ROW * N + COLUMN
    assert (flat // N, flat % N) == (ROW, COLUMN)


def test_a_divisor_may_be_a_sum_of_sizes():
    j = index_symbol("j", N + M)
    flat = ROW * (N + M) + j
    assert (flat // (N + M), flat % (N + M)) == (ROW, j)


def test_a_divisor_may_have_a_number_in_it():
    flat = (ROW * N + COLUMN) * 12 + SMALL
    assert (flat // (12 * N), flat // 12 % N, flat % 12) == (ROW, COLUMN, SMALL)


def test_the_digits_of_a_position_are_joined_to_the_position():
    a, b, c = FLAT // (N * K * 768), FLAT // 768 % (N * K), FLAT % 768
    assert a * N * K * 768 + b * 768 + c is FLAT


def test_digits_of_many_places_are_joined_whatever_is_a_number_and_what_a_size():
    inner = FLAT % (N * K)
    rows, columns = inner // K, inner % K  # of what is a remainder itself
    channel, outer = FLAT // (N * K) % 12, FLAT // (N * K) // 12
    assert outer * 12 * N * K + channel * N * K + rows * K + columns is FLAT


def test_a_position_below_twice_a_size_is_divided_to_0_or_1():
    half = index_symbol("p", 2 * N)
    assert (2 * N - 1) // N is as_expr(1)
    assert fits(half // N, as_expr(2)) and not fits(half // N, as_expr(1))


def test_bounds_of_a_remainder_are_numbers_or_sizes_whichever_is_enough():
    few = SizeSym.make("n", 2, 64, 7)
    rest = index_symbol("p", 2 * few) % few
    assert fits(rest, few) and fits(rest, as_expr(64)) and not fits(rest, few - 1)
    assert fits(SMALL % N, as_expr(12))


def test_the_order_of_divisions_does_not_matter():
    assert FLAT // N // K is FLAT // K // N is FLAT // (K * N)


def test_a_loop_index_fits_below_its_size_and_not_below_another():
    assert fits(ROW * N + COLUMN, M * N)
    assert not fits(ROW * N + COLUMN, M * N - 1)
    assert not fits(COLUMN, M)


def test_what_is_least_is_found_where_terms_have_no_bound_alone():
    assert least(N * K - N) == 4


def test_the_likely_value_of_an_expression_is_that_of_its_hints():
    assert hinted(N * M // 4 + 1) == 9
    assert hinted(N + ROW) is None


def _both(rng, depth, env):
    """A random expression and its values, computed apart."""
    if depth == 0 or rng.random() < 0.2:
        e = rng.choice((*LEAVES, as_expr(rng.randint(-5, 9))))
        return e, [evaluate(e, v) for v in env]
    a, x = _both(rng, depth - 1, env)
    op = rng.choice((operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod))
    if op in (operator.floordiv, operator.mod):
        b = rng.choice(DIVISORS)
        y = [evaluate(b, v) for v in env]
    else:
        b, y = _both(rng, depth - 1, env)
    return op(a, b), list(map(op, x, y))


def _values(rng):
    env = {N: rng.randint(2, 9), M: rng.randint(1, 9), K: rng.randint(3, 9)}
    for s in (ROW, COLUMN, FLAT, SMALL):
        size = evaluate(s.size, env) if isinstance(s, LoopSym) else s.smax + 1
        env[s] = rng.randint(0, size - 1)
    return env


@pytest.mark.parametrize("seed", range(4))
def test_random_expressions_have_the_values_and_bounds_of_their_operations(seed):
    rng = random.Random(seed)
    for _ in range(400):
        env = [_values(rng) for _ in range(4)]
        e, values = _both(rng, rng.randint(1, 4), env)
        assert [evaluate(e, v) for v in env] == values, e
        low, most = least(e), largest(e)
        for v, x in zip(env, values, strict=True):
            assert low is None or low <= x
            assert most is None or x <= evaluate(most, v)
