"""The globals of a module, read and written by name and as a dict."""

import sys

import torch
from eager_twin import check

X = torch.arange(4.0)
LEVEL = 3


def test_globals_are_read_as_a_dict():
    def program(x):
        return x + globals()["LEVEL"], "nope" in globals(), globals().get("LEVEL")

    check(program, (X,))


def test_what_is_written_to_the_dict_is_a_global():
    def program(x, n):
        globals()["written"] = n
        first = written  # noqa: F821
        globals().update(written=n + 1)
        return x + first, written  # noqa: F821

    check(program, (X, 1), (X, 2), graphs=2)
    assert globals().pop("written") == 3


def test_a_global_that_was_set_is_in_the_dict_and_in_the_module():
    def program(x, n):
        global LEVEL
        before = LEVEL
        LEVEL = n
        seen = globals()["LEVEL"], module.LEVEL
        LEVEL = before
        return x + 1, seen, module.LEVEL

    module = sys.modules[__name__]
    check(program, (X, 7))


def test_a_global_can_be_deleted():
    def program(x):
        global gone
        gone = 1
        del gone
        try:
            return gone
        except NameError as error:
            return x + 1, str(error)

    check(program, (X,))
    assert "gone" not in globals()


class Named:
    shared = 1

    def __init__(self):
        self.own = 2


class Listed:
    def __dir__(self):
        return ["b", "a"]


class Slotted:
    __slots__ = ("first", "second")

    def __init__(self):
        self.second = 1


def test_locals_are_those_that_have_a_value():
    def program(x, n):
        a = 1
        before = locals()
        b = 2
        after = locals()
        del a
        return x + after["b"], before is after, sorted(before), sorted(locals()), b

    check(program, (X, 2))


def test_locals_of_an_inner_function_have_the_free_variables():
    def program(x, n):
        def inner(q):
            return sorted(locals()), n + q

        return x + 1, inner(3)

    check(program, (X, 2))


def test_vars_of_the_frame_of_classes_and_of_modules():
    def program(x):
        o = Named()
        o.new = 3
        return x + 1, sorted(vars()), vars(o), vars(Named)["shared"], vars(sys)["maxsize"]

    check(program, (X,))


def test_dir_lists_what_python_lists():
    def program(x, n):
        o = Named()
        o.late = n
        plain = [name for name in dir(o) if not name.startswith("_")]
        slots = [name for name in dir(Slotted()) if not name.startswith("_")]
        return x + 1, dir(), plain, slots, dir(Listed()), "append" in dir([]), len(dir(Named))

    check(program, (X, 2))


def test_an_expression_is_evaluated_in_the_names_of_the_frame():
    def program(x, k):
        return x + eval("sum(k) + LEVEL"), eval(" x.shape[0]")

    check(program, (X, [1, 2]))
