"""Type parameters and aliases (PEP 695), from Python 3.12 on: the programs are texts, which an
older Python refuses."""

import sys
import types

import pytest
import torch
from eager_twin import Twins

import torchweld

X = torch.arange(4.0)
KNOWN = hasattr(types.FunctionType, "__type_params__")
PROGRAMS = {
    "functions": """
def program(x, n):
    def first[T](items: list[T]) -> T:
        return items[0]

    def bounded[T: int, S: (str, bytes), *Ts, **P](a: T) -> T:
        return a

    shown = [(repr(p), p.__name__) for p in bounded.__type_params__]
    limits = bounded.__type_params__[0].__bound__, bounded.__type_params__[1].__constraints__
    return first([x]) * n + bounded(1), shown, limits, first.__type_params__[0].__module__
""",
    "classes": """
def program(x, n):
    class Box[T]:
        scale = n

        def __init__(self, held: T):
            self.held = held

        def get[U](self, by: U) -> T:
            return self.held * self.scale + by

    class Named[T](Box[T]):
        pass

    names = [p.__name__ for p in Box.__type_params__]
    return Box[int](x).get(1), Named(x).get(2), names, Named[int].__args__, Named.__name__
""",
    "a data class": """
import dataclasses

def program(x, n):
    @dataclasses.dataclass
    class Pair[T]:
        a: T
        b: int = 2

    made = Pair(x * 2 + n)
    return made.a + 1, made.b, [f.name for f in dataclasses.fields(made)]
""",
    "aliases": """
def program(x, n):
    type Number = int | float
    type Table[K] = dict[K, Number]
    name = Table.__type_params__[0].__name__
    return x * 2 + n, Number.__value__, Table.__name__, name, Number.__module__, str(Table[int])
""",
}
LEAVES = """
def program(x, n):
    class Box[T]:
        held = n

        def get(self) -> T:
            return self.held + x

    def same[U](value: U) -> U:
        return value

    type Boxes[K] = dict[K, Box]
    return x * 2 + Box().get(), Box, same, Boxes
"""


def made(text):
    names = {"__name__": __name__}
    exec(compile(text, __file__, "exec"), names)
    return names["program"]


if KNOWN:

    @pytest.mark.parametrize("name", PROGRAMS)
    def test_program(name):
        torchweld.reset()
        program = made(PROGRAMS[name])
        compiled = torchweld.compile(program, fullgraph=True, backend="eager")
        for x, n in ((X, 2), (X + 1, 2), (X, 3)):
            Twins().equal(program(x, n), compiled(x, n))
        counts = torchweld.statistics()
        assert (counts["breaks"], counts["internal_errors"]) == (0, 0)

    @pytest.mark.parametrize("text", [LEAVES])
    def test_what_leaves_the_frame_is_made_anew(text):
        def look(value, box, same, boxes):
            params = box.__type_params__, same.__type_params__, boxes.__type_params__
            held = boxes.__value__.__args__[1] is box
            parts = [p.__name__ for (p,) in params], box().get(), same(4), held
            return value, parts, str(box[int]), repr(boxes)

        torchweld.reset()
        program = made(text)
        compiled = torchweld.compile(program, fullgraph=True, backend="eager")
        for n in (2, 2, 3):
            Twins().equal(look(*program(X, n)), look(*compiled(X, n)))
        first, second = compiled(X, 2), compiled(X, 2)
        assert first[1].__type_params__[0] is not second[1].__type_params__[0]
        assert torchweld.statistics()["breaks"] == 0


def test_an_older_python_refuses_them():
    if sys.version_info < (3, 12):
        with pytest.raises(SyntaxError):
            made(PROGRAMS["functions"])
    else:
        assert KNOWN
