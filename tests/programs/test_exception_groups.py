# ruff: noqa: UP031
"""Exception groups and `except*`."""

import pytest
from program_calls import Programs, check

PROGRAMS = Programs()
stateless = PROGRAMS.stateless


class Renamed(ExceptionGroup):
    def derive(self, excs):
        return Renamed(self.message + "!", excs)


GIVEN = ExceptionGroup("out", [ValueError(1), TypeError(2)])


@stateless()
def eg_(x, y, n):
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
    except* ValueError as e:
        r = ("v", len(e.exceptions))
    except* TypeError as e:
        q = ("t", e.exceptions[0].args)
    return x + 1, r, q


@stateless()
def eg_sub_(x, y, n):
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
        except* ValueError:
            pass
    except ExceptionGroup as g:
        return x + len(g.exceptions), g.message, type(g.exceptions[0])


@stateless()
def eg_plain_(x, y, n):
    try:
        raise ValueError("a")
    except* ValueError as e:
        r = type(e).__name__, e.exceptions[0].args
    return x + 1, r


@stateless()
def eg_split_(x, y, n):
    g = ExceptionGroup("m", [ValueError(1), ExceptionGroup("n", [TypeError(2)])])
    a, b = g.split(TypeError)
    s = g.subgroup(ValueError)
    return (
        x + 1,
        a.message,
        len(b.exceptions),
        s.exceptions[0].args,
        g.derive([ValueError(5)]).message,
        str(g),
    )


@stateless()
def eg_else_(x, y, n):
    r = []
    try:
        r.append(1)
    except* ValueError:
        r.append(2)
    else:
        r.append(3)
    finally:
        r.append(4)
    return x + 1, r


@stateless()
def eg_nested_(x, y, n):
    r = []
    try:
        try:
            raise ExceptionGroup(
                "a",
                [ValueError(1), ExceptionGroup("b", [TypeError(2), ValueError(3)]), KeyError(n)],
            )
        except* ValueError as e:
            r.append([type(v).__name__ for v in e.exceptions])
            r.append(e.exceptions[1].message)
        except* TypeError as e:
            r.append(e.exceptions[0].exceptions[0].args)
    except ExceptionGroup as g:
        r.append((g.message, [v.args for v in g.exceptions], len(g.exceptions)))
    return x + 1, r


@stateless()
def eg_reraise_(x, y, n):
    r = []
    try:
        try:
            raise ExceptionGroup("a", [ValueError(1), TypeError(2), KeyError(3)])
        except* ValueError as e:
            raise
        except* TypeError as e:
            raise OSError("o") from e
    except ExceptionGroup as g:
        r.append(
            (
                g.message,
                [type(v).__name__ for v in g.exceptions],
                [getattr(v, "message", None) for v in g.exceptions],
            )
        )
    return x + 1, r


@stateless()
def eg_user_(x, y, n):
    g = Renamed("m", [ValueError(1), TypeError(2)])
    a, b = g.split(lambda e: isinstance(e, ValueError))
    return (
        x + 1,
        type(a).__name__,
        a.message,
        b.exceptions[0].args,
        g.subgroup((ValueError, TypeError)) is g,
        g.subgroup(KeyError),
    )


@stateless()
def eg_star_star_(x, y, n):
    try:
        try:
            raise ValueError(1)
        except* ExceptionGroup:
            pass
    except TypeError as e:
        return x + 1, str(e)


@stateless()
def eg_base_(x, y, n):
    return (
        x + 1,
        type(BaseExceptionGroup("a", [ValueError(1)])).__name__,
        str(ExceptionGroup("q", [ValueError(1)])),
        isinstance(ExceptionGroup("q", [ValueError(1)]), Exception),
    )


@stateless()
def eg_given_(x, y, n):
    return x + len(GIVEN.exceptions), GIVEN.message, GIVEN.split(ValueError)[0].exceptions[0].args


@stateless()
def notes_(x, y, n):
    try:
        e = ValueError("a")
        e.add_note("n1")
        e.add_note("n2")
        raise e
    except ValueError as q:
        return x + 1, q.__notes__


@stateless()
def eg_repr_(x, y, n):
    return (
        x + 1,
        repr(ExceptionGroup("m", [ValueError(1), KeyError("k")])),
        f"{ExceptionGroup('m', (ValueError(n),))!r}",
        "%s" % ExceptionGroup("m", (ValueError(n),)),
    )


@stateless()
def parts_have_a_cause_that_was_set(x, y, n):
    group = ExceptionGroup("g", [ValueError("a"), TypeError("b")])
    some, rest = group.split(ValueError)
    made = group.derive([OSError("c")])
    return x + 1, [e.__suppress_context__ for e in (group, some, rest, made)]


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)
