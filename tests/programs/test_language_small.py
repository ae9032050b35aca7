# ruff: noqa: UP031
# The programs are written as users write them.
"""What small programs still broke at: methods that functions ask for, texts, files, generators."""

import collections
import enum
import inspect
import io
import math
import operator
import sys
import types

import pytest
import torch
from eager_twin import check as check_calls
from program_calls import Programs, check

import torchweld

PROGRAMS = Programs()
stateless = PROGRAMS.stateless
X = torch.arange(4.0)


class Bits(enum.IntFlag):
    A = 1
    B = 2


class Asked(type):
    def __getattr__(cls, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return name + "!"


class Known(metaclass=Asked):
    pass


class Number:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value

    def __float__(self):
        return self.value + 0.5


class Rounded(Number):
    def __floor__(self):
        return "floor"

    def __ceil__(self):
        return "ceil"

    def __trunc__(self):
        return "trunc"

    def __length_hint__(self):
        return 7

    def __bytes__(self):
        return b"bytes"


class Sized(Rounded):
    def __len__(self):
        return 2


Pair = collections.namedtuple("Pair", "a b")


@stateless()
def several_flags_(x, y, n):
    return x + (Bits.A | Bits.B), x * Bits.A, Bits.A | 4, [Bits.B + n]


@stateless()
def a_metaclass_computes_(x, y, n):
    try:
        Known._hidden
    except AttributeError as error:
        return x + 1, Known.name, str(error), hasattr(Known, "_x"), getattr(Known, "other", 1)


@stateless()
def numbers_of_objects_(x, y, n):
    a, b = Number(n), Rounded(3)
    found = math.sqrt(a), math.floor(a), math.pow(2, a), hex(a), bin(b), chr(Number(97))
    asked = math.floor(b), math.ceil(b), math.trunc(b), bytes(b), operator.index(b)
    return x * found[0], found, asked, list(range(a, Number(9), b)), range(Number(2))


@stateless()
def lengths_of_objects_(x, y, n):
    return x + n, operator.length_hint(Rounded(1)), operator.length_hint(Sized(1))


@stateless()
def generators_are_asked_(x, y, n):
    def numbers():
        yield made.gi_running
        yield n

    made = numbers()
    seen = [made.gi_running, *made]
    return x * n, seen, made.gi_frame, made.gi_running, made.gi_code.co_name


@stateless()
def signatures_(x, y, n):
    def scaled(a, b=n, *rest, c: int = 3, **more):
        return a * b

    found = inspect.signature(scaled)
    given = found.bind(1, c=n)
    given.apply_defaults()
    table = scaled.__globals__
    names = list(found.parameters), found.parameters["c"].default, inspect.getfullargspec(scaled)
    return scaled(x), str(found), given.arguments, names[:2], names[2].args, table["X"] is X


@stateless()
def texts_(x, y, n):
    space = types.SimpleNamespace(a=n, b=[1])
    table = collections.defaultdict(list, {"a": [n]})
    chain = collections.ChainMap({"a": 1})
    return x + 1, repr(space), str(table), repr(chain), "a".maketrans("a", "b"), f"{space}"


@stateless()
def one_empty_tuple_(x, y, n):
    first, second = (), tuple(c for c in "")
    return x + n, first is second, x.shape[:0] is first, second is not None


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)


def test_texts_of_tensors_by_percent(capsys):
    def program(x):
        loss = x.mean()
        print("loss %.3f, %s, %d" % (loss, x, x.argmax()))
        print(Pair(x, "b"), "%r|%+.1e" % (loss, loss), "%5.2f%%" % loss)
        return x * 2

    torchweld.reset()
    compiled = torchweld.compile(program, fullgraph=True, backend="eager")
    for x in (X, X + 1):
        program(x)
        expected = capsys.readouterr().out
        compiled(x)
        assert capsys.readouterr().out == expected
    assert torchweld.statistics()["graphs"] == 1


def test_what_is_written_to_files(capsys):
    buffer = io.StringIO()

    def program(x, n):
        wrote = sys.stdout.write("first\n")
        sys.stdout.write(f"n is {n}\n")
        print("second", file=buffer)
        buffer.write(f"mean {x.mean()}")
        sys.stdout.flush()
        return x * 2 + wrote

    torchweld.reset()
    compiled = torchweld.compile(program, fullgraph=True, backend="eager")
    shown = []
    for fn in (program, compiled):
        buffer.truncate(0)
        buffer.seek(0)
        for n in range(3):
            assert torch.equal(fn(X, n), X * 2 + 6)
        shown.append((capsys.readouterr().out, buffer.getvalue()))
    assert shown[0] == shown[1]
    assert torchweld.statistics()["breaks"] == 0


def test_a_file_of_the_frame_is_written_and_read():
    def program(x, n):
        with io.StringIO() as buffer:
            print("n", n, file=buffer, end=";")
            wrote = buffer.write("abc")
            buffer.flush()
            text = buffer.getvalue()
        return x * wrote, text, buffer.closed

    check_calls(program, (X, 1))
