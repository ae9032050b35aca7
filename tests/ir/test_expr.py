"""Index expressions: equal to Python's integers, inside their bounds, simplified where proved."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchweld.ir.expr import (
    ZERO,
    FloorDiv,
    Mod,
    Poly,
    Sym,
    as_expr,
    atoms,
    evaluate,
    index_symbol,
    rewrite,
    stride_of,
    substitute,
    terms_of,
)
from torchweld.ir.loop_parse import ExprReader
from torchweld.ir.text_tokens import Line

MANY = settings(deadline=None, max_examples=400, suppress_health_check=list(HealthCheck))
SYMS = (
    Sym.make("i", 0, 3), Sym.make("j", 0, 7), Sym.make("k", 0, 11), Sym.make("l", 0, 0),
    Sym.make("p", -3, 5), Sym.make("u", None, None), Sym.make("n", 1, None),
)  # fmt: skip
RANGES = [(s.smin if s.smin is not None else -20, s.smax if s.smax is not None else 20)
          for s in SYMS]  # fmt: skip


def axes(**sizes):
    return [index_symbol(name, as_expr(n)) for name, n in sizes.items()]


@st.composite
def programs(draw):
    """An expression and the Python function that it should equal."""
    env = {s: draw(st.integers(lo, hi)) for s, (lo, hi) in zip(SYMS, RANGES, strict=True)}
    pairs = [(s, env[s]) for s in SYMS] + [(as_expr(c), c) for c in (0, 1, -1, 4)]
    for _ in range(draw(st.integers(1, 10))):
        (x, vx), (y, vy) = (draw(st.sampled_from(pairs[-8:] + pairs[:3])) for _ in range(2))
        c = draw(st.sampled_from((1, 2, 3, 4, 6, 8, 12, 24)))
        kind = draw(st.integers(0, 7))
        made = [
            lambda: (x + y, vx + vy), lambda: (x - y, vx - vy), lambda: (x * c, vx * c),
            lambda: (x // c, vx // c), lambda: (x % c, vx % c), lambda: (x * c + y, vx * c + vy),
            lambda: (x * y, vx * vy) if len(terms_of(x)) * len(terms_of(y)) < 9 else (x, vx),
            lambda: (x - (x // c) * c, vx % c),
        ][kind]()  # fmt: skip
        pairs.append(made)
    return (*pairs[-1], env)


@MANY
@given(programs())
def test_an_expression_has_pythons_value(program):
    e, value, env = program
    assert evaluate(e, env) == value


@MANY
@given(programs())
def test_bounds_hold(program):
    e, value, _ = program
    assert (e.lo is None or e.lo <= value) and (e.hi is None or value <= e.hi)


@MANY
@given(programs())
def test_rebuilding_an_expression_changes_nothing(program):
    e, _, _ = program
    assert rewrite(e, lambda x: x if isinstance(x, Sym) else None) is e


@MANY
@given(programs())
def test_the_text_is_parsed_back_to_the_same_object(program):
    e, _, _ = program
    assert ExprReader(Line(1, e.text()), {s.name: s for s in SYMS}).sum() is e


@MANY
@given(programs(), st.integers(-5, 5))
def test_substitution_commutes_with_evaluation(program, at):
    e, _, env = program
    i, j, *_ = SYMS
    replaced = substitute(e, {i: j * 2 + at})
    assert evaluate(replaced, env) == evaluate(e, {**env, i: env[j] * 2 + at})


@MANY
@given(programs())
def test_a_stride_is_the_difference_of_neighbours(program):
    e, _, env = program
    i = SYMS[0]
    step = stride_of(e, i)
    if step is not None:
        assert evaluate(e, {**env, i: env[i] + 1}) - evaluate(e, env) == evaluate(step, env)


@st.composite
def reshapes(draw):
    """Factors of one number in two groupings: the shape before and after a reshape."""
    factors = draw(st.lists(st.sampled_from((2, 3, 4, 5)), min_size=1, max_size=4))

    def group():
        shape = [1]
        for f in factors:
            if draw(st.booleans()):
                shape.append(f)
            else:
                shape[-1] *= f
        return shape

    return group(), group()


def flatten(index, shape):
    out = ZERO
    for x, n in zip(index, shape, strict=True):
        out = out * n + x
    return out


def unflatten(flat, shape):
    out = []
    for n in reversed(shape):
        out.append(flat % n)
        flat = flat // n
    return out[::-1]


@MANY
@given(reshapes())
def test_reshaping_there_and_back_is_the_identity(shapes):
    a, b = shapes
    index = [index_symbol(f"a{d}", as_expr(n)) for d, n in enumerate(a)]
    index = [ZERO if n == 1 else x for x, n in zip(index, a, strict=True)]
    there = unflatten(flatten(index, a), b)
    assert flatten(there, b) is flatten(index, a)
    assert unflatten(flatten(there, b), a) == index


def test_a_small_remainder_does_not_matter_to_a_quotient():
    i, j = axes(i=100, j=4)
    assert (4 * i + j) // 8 is i // 2
    assert (4 * i + j) % 8 is 4 * (i % 2) + j


def test_a_quotient_by_the_inner_size_is_the_outer_index():
    i, j = axes(i=7, j=12)
    assert (i * 12 + j) // 12 is i
    assert (i * 12 + j) % 12 is j


def test_a_symbolic_size_divides_its_multiples():
    n, i = Sym.make("n", 1, None), Sym.make("i", 0, 9)
    assert (i * n) // n is i
    assert (i * n) % n is ZERO


def test_a_bounded_index_is_divided_by_a_larger_symbolic_size():
    n, (i, j) = Sym.make("n", 16, None), axes(i=4, j=12)
    assert (i * n + j) // n is i
    assert (i * n + j) % n is j


def test_quotient_and_remainder_of_one_number_join():
    (x,) = axes(x=1000)
    assert (x // 6) * 6 + x % 6 is x
    assert ((x // 2) % 3) * 2 + x % 2 is x % 6
    assert x - (x // 4) * 4 is x % 4


def test_a_quotient_of_a_remainder_is_a_remainder_of_a_quotient():
    (x,) = axes(x=1000)
    assert (x % 24) // 4 is (x // 4) % 6


def test_remainders_inside_a_remainder_are_dropped():
    i, j = axes(i=1000, j=1000)
    assert (i % 8 + j % 16) % 8 is (i + j) % 8


def test_a_shift_by_whole_multiples_leaves_the_quotient():
    (i,) = axes(i=100)
    assert (i + 9) // 4 is (i + 1) // 4 + 2


def test_division_by_zero_is_an_error():
    (i,) = axes(i=100)
    for bad in (0, -2):
        try:
            i // bad
        except ValueError:
            continue
        raise AssertionError("no ValueError")


def test_a_product_with_a_quotient_is_written_with_parentheses():
    (i,) = axes(i=100)
    assert (3 * (i // 4) - (i % 5)).text() == "3*(i//4) - i%5"
    assert (-(i // 4)).text() == "-(i//4)"


def test_equal_expressions_are_one_object_in_any_order_of_construction():
    i, j, k = axes(i=4, j=5, k=6)
    assert (i + 2 * j) + k is k + (j * 2 + i)
    assert isinstance(i * j + k, Poly)
    assert atoms((i // 2) % 3 + j) == {i, j}
    assert isinstance(i // 3, FloorDiv) and isinstance(j % 3, Mod)


def test_what_is_halved_again_and_again_is_one_quotient():
    n = Sym.make("n", 1, None)
    for _ in range(4):
        n = (n + 1) // 2
    assert n.text() == "(n + 15)//16"
