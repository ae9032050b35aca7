# ruff: noqa: B028
# The programs are written as users write them.
"""Warnings that are recorded, raised or filtered in the frame."""

import warnings

import pytest
import torch
from eager_twin import check as check_calls
from program_calls import Programs, check

import torchweld

PROGRAMS = Programs()
stateless = PROGRAMS.stateless


class Late(UserWarning):
    """A warning with an `__init__` of its own."""

    def __init__(self, value):
        super().__init__(f"value {value}")
        self.value = value


def careful(x):
    warnings.warn("careful", RuntimeWarning, stacklevel=2)
    return x * 2


@stateless()
def recorded_(x, y, n):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        z = x + 1
        warnings.warn(f"n is {n}", RuntimeWarning)
        z = careful(z)
    return z + len(found), [(str(w.message), w.category, w.lineno, w.filename) for w in found]


@stateless()
def nothing_recorded_(x, y, n):
    with warnings.catch_warnings(record=True) as found:
        z = x * 2 + y
    assert not found
    return z, found


@stateless()
def filtered_(x, y, n):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", message="a.*z", category=UserWarning)
        warnings.warn("A to z")
        warnings.warn("b to z")
        warnings.warn("a to z", DeprecationWarning)
        z = x * 2 + y
    return z, [str(w.message) for w in found], found[0].message.args


@stateless()
def shown_once_by_place_(x, y, n):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for i in range(3):
            warnings.warn("same")
            warnings.warn(f"number {i}")
        before = len(found)
        warnings.simplefilter("default", UserWarning)
        careful(x)
    return x * 2 + y, before, len(found)


@stateless()
def nested_(x, y, n):
    with warnings.catch_warnings(record=True) as outer:
        warnings.simplefilter("always")
        warnings.warn("one")
        with warnings.catch_warnings(record=True) as inner:
            warnings.warn("two")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                warnings.warn("nobody sees it")
            warnings.warn("three")
        z = x * 3 + y
        warnings.warn("four")
    return z, [str(w.message) for w in outer], [str(w.message) for w in inner]


@stateless()
def an_exception_of_its_own_(x, y, n):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.warn(Late(n))
        warnings.warn(n, Late)
    return x * 3 + y, [w.message.value for w in found], issubclass(found[-1].category, UserWarning)


@stateless()
def an_action_for_the_block_(x, y, n):
    with warnings.catch_warnings(record=True, action="always", category=UserWarning) as found:
        warnings.warn("q")
        warnings.warn("r", ImportWarning)
    return x * 3 + y, len(found)


@stateless()
def raised_and_caught_(x, y, n):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            careful(x)
            z = x
        except RuntimeWarning as error:
            z, text = x + 1, str(error)
    return z * 2, text


@stateless()
def returned_(x, y, n):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.warn("kept")
    return x * 3 + y, [type(w).__name__ for w in found], [vars(w)["_category_name"] for w in found]


@stateless(breaks=2)
def a_break_inside_(x, y, n):
    """The block is entered before the first break, and recorded for real."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        z = x * 2 + y
        if z.sum() > 100:
            z = z - 1
        z = z * 3 - y
    return z, len(found)


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)


def test_what_is_recorded_shows_a_tensor():
    def program(x):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            y = x + 1
            warnings.warn(f"mean {y.mean():.1f}")
        return y * 2, found[0].message, len(found)

    check_calls(program, (torch.ones(3),), (torch.zeros(3),))


def test_nothing_is_shown_of_what_is_recorded_and_what_was_shown_once_is_shown_again():
    def program(x):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            careful(x)
        return x * 2 + len(found)

    def shown(fn):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("default")
            for _ in range(2):
                warnings.warn_explicit("a", UserWarning, "f", 1, registry=registry)
                fn(torch.ones(3))
                warnings.warn_explicit("a", UserWarning, "f", 1, registry=registry)
            return len(seen)

    torchweld.reset()
    registry = {}
    expected = shown(program)
    registry = {}
    assert shown(torchweld.compile(program, fullgraph=True, backend="eager")) == expected == 3


def test_filters_from_outside_that_raise_are_seen():
    def program(x):
        try:
            y = careful(x)
        except RuntimeWarning as error:
            return x - 1, str(error)
        return y, None

    torchweld.reset()
    compiled = torchweld.compile(program, fullgraph=True, backend="eager")
    for action, text in (("ignore", None), ("error", "careful"), ("ignore", None)):
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            for fn in (program, compiled):
                value, said = fn(torch.ones(3))
                assert (value[0].item(), said) == (2 if text is None else 0, text)
    assert torchweld.statistics()["graphs"] == 2


def test_filters_from_outside_decide_what_is_recorded():
    def program(x):
        with warnings.catch_warnings(record=True) as found:
            warnings.warn("maybe")
        return x * 2 + len(found)

    torchweld.reset()
    compiled = torchweld.compile(program, fullgraph=True, backend="eager")
    for action, n in (("ignore", 0), ("always", 1), ("ignore", 0)):
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            for fn in (program, compiled):
                assert fn(torch.ones(3))[0].item() == 2 + n
    assert torchweld.statistics()["graphs"] == 2


def test_an_operator_that_warns_is_recorded():
    def program(x):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            y = (x * 2 + 1).relu()
            y = torch.add(y, 1, out=torch.empty(2))
        return y * 2 - 1, [w.category for w in found]

    torchweld.reset()
    compiled = torchweld.compile(program, backend="eager")
    for _ in range(3):
        expected, got = program(torch.ones(3)), compiled(torch.ones(3))
        assert torch.equal(expected[0], got[0])
        assert expected[1] == got[1] == [UserWarning]
    assert torchweld.statistics()["breaks"] == 2  # the block, and the operator in it


def test_a_filter_inside_of_an_ordinary_block_raises():
    def program(x):
        y = x * 2
        with warnings.catch_warnings():
            warnings.filterwarnings("error", category=RuntimeWarning, module=__name__)
            warnings.filterwarnings("ignore", "nothing like that")
            try:
                careful(y)
            except RuntimeWarning:
                y = y + 1
        warnings.warn("at the end")
        return y

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        check_calls(program, (torch.ones(3),))
    assert [str(w.message) for w in seen] == ["at the end"] * 4
