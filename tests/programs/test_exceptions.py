# ruff: noqa: B030, F821, SIM107
# The programs are written as users write them.
"""try, except, finally, else; raise; exceptions that leave the function."""

import contextlib
import sys

import pytest
import torch
from eager_twin import check, check_refused

import torchweld

X = torch.arange(4.0)
Y = torch.ones(4)


class Problem(Exception):
    def __init__(self, code, text="t"):
        super().__init__(text)
        self.code = code


class Worse(Problem):
    def __str__(self):
        return f"worse {self.code}"


def fails(x, kind):
    if kind:
        raise kind("bad", 1) if kind is ValueError else kind(3)
    return x * 2


def test_try_except_else_finally():
    def program(x, kind):
        log = []
        try:
            y = fails(x, kind)
        except (ValueError, KeyError) as error:
            log.append(error.args)
            y = x
        except Problem as error:
            log.append((error.code, str(error), error.args))
            y = x + error.code
        else:
            log.append("else")
        finally:
            log.append("finally")
        return y + 1, log

    check(program, (X, None), (X, ValueError), (X, KeyError), (X, Problem), (X, Worse), graphs=5)


def test_finally_runs_on_return_and_break():
    def program(x):
        log = []

        def f():
            try:
                return 1
            finally:
                log.append("f")

        for i in range(3):
            try:
                if i == 1:
                    break
                continue
            finally:
                log.append(i)
        return x + f(), log

    check(program, (X,))


def test_finally_overrides_return():
    def f():
        try:
            return 1
        finally:
            return 2  # noqa: B012

    check(lambda x: x + f(), (X,))


def test_nested_and_reraised():
    def program(x):
        log = []
        try:
            try:
                raise KeyError("k")
            except KeyError:
                log.append("inner")
                raise
            finally:
                log.append("fin")
        except LookupError as error:
            log.append(type(error).__name__)
        return x + 1, log

    check(program, (X,))


def test_raise_from_and_context():
    def program(x):
        try:
            try:
                raise KeyError("k")
            except KeyError as error:
                raise ValueError("v") from error
        except ValueError as error:
            a = error.__cause__
        try:
            try:
                raise KeyError("k2")
            except KeyError:
                raise ValueError("v2")  # noqa: B904
        except ValueError as error:
            b = error.__context__
            c = error.__suppress_context__
        return x + 1, type(a).__name__, a.args, type(b).__name__, b.args, c

    check(program, (X,))


def test_exception_objects_as_values():
    def program(x):
        e = ValueError("a", 2)
        p = Worse(5)
        return (
            x + p.code,
            e.args,
            str(e),
            repr(e),
            str(p),
            isinstance(p, Exception),
            repr(KeyError("k")),
            str(KeyError("k")),
        )

    check(program, (X,))


def test_exception_returned():
    check(lambda x: (x + 1, ValueError("a", 2)), (X,))


def test_index_and_key_errors_are_caught():
    def program(x):
        out = []
        for f in (
            lambda: [1][4],
            lambda: {"a": 1}["b"],
            lambda: int("x"),
            lambda: 1 / 0,
            lambda: None.a,
        ):
            try:
                f()
            except Exception as error:
                out.append((type(error).__name__, error.args))
        return x + 1, out

    check(program, (X,))


def test_assertion_caught():
    def program(x):
        try:
            if x.shape[0] != 3:
                raise AssertionError(f"rows {x.shape[0]}")
        except AssertionError as error:
            return x + 1, str(error)
        return x

    check(program, (X,))


def test_exception_from_a_called_method_in_a_loop():
    def program(x):
        total = x
        for kind in (None, ValueError, None, KeyError):
            try:
                total = total + fails(x, kind)
            except LookupError:
                total = total - 1
            except ValueError:
                continue
        return total

    check(program, (X,), (Y,))


def test_exception_name_is_unbound_after_the_block():
    def program(x):
        try:
            raise ValueError
        except ValueError as error:
            pass
        try:
            return error
        except UnboundLocalError as gone:
            return x + 1, type(gone).__name__

    check(program, (X,))


def test_exception_that_leaves_runs_eagerly():
    def program(x):
        y = x + 1
        raise Problem(int(y.shape[0]))

    check_refused(program, X, code="W111", says="Problem")


def test_state_after_an_exception_that_leaves():
    def program(x, log):
        log.append(x)
        if len(log) == 1:
            raise ValueError("first")
        return x

    check_refused(program, X, [], code="W111", says="ValueError")


def test_bare_raise_without_exception():
    def program(x):
        y = x + 1
        try:
            raise
        except RuntimeError as error:
            return y, str(error)

    check(program, (X,))


def test_suppressing_lookup_order():
    def program(x):
        try:
            {}["a"]
        except Exception:
            try:
                [][1]
            except IndexError:
                x = x + 1
            try:
                raise
            except KeyError:
                x = x * 2
        return x

    check(program, (X,))


def test_exception_class_with_attributes_kept():
    def program(x):
        try:
            raise Problem(7, "text")
        except Problem as error:
            error.extra = x
            return error.extra + error.code, error.args

    check(program, (X,))


def test_catching_something_that_is_no_class():
    def program(x):
        y = x + 1
        try:
            try:
                raise ValueError
            except 3:
                pass
        except TypeError as error:
            return y, str(error)

    check(program, (X,))


def test_exception_group():
    def program(x):
        out = []
        try:
            raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
        except* ValueError as group:
            out.append(len(group.exceptions))
        except* KeyError:
            out.append("key")
        return x + 1, out

    import torchweld

    got = torchweld.compile(program, backend="eager")(X)
    assert torch.equal(got[0], X + 1)
    assert got[1] == [1, "key"]


def test_missing_global_raises_name_error():
    def program(x):
        y = x + 1
        try:
            return not_defined_anywhere
        except NameError as error:
            return y, str(error)

    check(program, (X,))


def test_tensor_shape_error_runs_eagerly():
    check_refused(lambda x: x + torch.ones(3), X, code="W104", says="add")


def test_exception_passed_in():
    def program(x, error):
        return x + 1, str(error), error.args

    check(program, (X, ValueError("v")))


def test_exception_with_its_own_init_does_not_leave():
    check_refused(lambda x: (x + 1, Problem(7, "text")), X, code="W107", says="Problem leaves")


def test_what_an_operator_raises_at_run_time_is_handled():
    def program(x, at, log):
        try:
            log.append(1)
            return x[at]
        except IndexError:
            return x - 1
        finally:
            log.append(2)

    check(program, (X, torch.tensor([1]), []), (X, torch.tensor([9]), []))


def test_what_an_operator_raises_in_an_inlined_call_is_suppressed():
    def pick(x, at):
        return x[at]

    def program(x, at):
        with torch.no_grad(), contextlib.suppress(IndexError):
            return pick(x, at)
        return x - 1

    check(program, (X, torch.tensor([1])), (X, torch.tensor([9])))


def test_an_error_in_a_finally_leaves_no_exception_that_is_handled():
    def f(y, table):
        try:
            table["missing"]
        finally:
            part = y.chunk(2)[-1]
            part.copy_(part * 3)  # which eager refuses: y has a gradient

    y = torch.ones(4, requires_grad=True) * 2
    compiled = torchweld.compile(f, backend="eager")
    with pytest.raises(RuntimeError, match="view") as caught:
        compiled(y, {})
    assert isinstance(caught.value.__context__, KeyError)
    assert sys.exc_info() == (None, None, None)


def test_a_stop_iteration_inside_of_a_generator_is_the_cause():
    def values(x):
        yield x
        raise StopIteration("end")

    def program(x):
        try:
            return list(values(x))
        except RuntimeError as error:
            why = error.__cause__
            return x + 1, str(error), why is error.__context__, why.args, (
                error.__suppress_context__)  # fmt: skip

    check(program, (X,))


def test_a_name_that_a_module_lacks():
    def program(x):
        try:
            from math import absent
        except ImportError as error:
            return x + 1, str(error)
        return x, absent

    check(program, (X,))
