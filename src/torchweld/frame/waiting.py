"""Generators that wait in a captured frame while the frame is broken.

In the capture such a generator is a frame among others, and Python cannot put its state into a real
one. What stands for it holds the state: the rest of the frame, when it is captured, goes on with
it, and for eager code it is a real generator that begins in the middle of the function.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from types import CellType, CodeType, FunctionType, GeneratorType
from typing import Any
from weakref import WeakValueDictionary

from torchweld.frame.decode import decode
from torchweld.frame.hook import set_skip
from torchweld.frame.points import Point
from torchweld.frame.resume import rejoin_code, resume_code

Values = tuple[Any, ...]
At = tuple[CodeType, dict[str, object], Point]


class Place:
    """Where a generator waits: `rests` goes on there.

    at: the functions that are left, outermost first, and where each of them is: the last one at
    `how`, the others in a call of the next one. closes: whether code runs when it is closed.
    """

    __slots__ = ("__weakref__", "at", "closes", "how", "rests")

    def __init__(self, at: Sequence[At], how: str) -> None:
        self.at, self.how = at, how
        self.rests = rests_at(at, how)
        code, _, point = at[0]
        row = decode(code).handler(point.index)
        self.closes = row is not None and (
            decode(code).instrs[row.target].op != "STOPITERATION_ERROR")  # fmt: skip

    def generator(self, state: Values, call: Callable[..., Any], args: Values) -> Any:
        """A real generator that goes on from here; if it waits for something, for what a call gives
        it."""
        return self.rests[0](*state, call, args) if self.how == "yield" else self.rests[0](*state)


def rests_at(at: Sequence[At], how: str) -> list[FunctionType]:
    """Functions that go on in the middle of others, the outermost first; each gets the next one.

    how: "resume" for before an instruction; "rejoin" and "yield" for one that waits for a call, or
    for what a generator is sent. Errors: Unassemblable.
    """
    codes = [rejoin_code(decode(code), point) for code, _, point in at[:-1]]
    code, _, point = at[-1]
    codes.append((resume_code if how == "resume" else rejoin_code)(decode(code), point))
    return [function(c, globals_) for c, (_, globals_, _) in zip(codes, at, strict=True)]


_places: WeakValueDictionary[object, Place] = WeakValueDictionary()


def place_of(at: Sequence[At], how: str) -> Place:
    """The one Place there, so that guards can ask for it. Errors: Unassemblable."""
    key = (*((id(code), id(globals_), point) for code, globals_, point in at), how)
    made = _places.get(key)  # which keeps alive what the key is about
    return made or _places.setdefault(key, Place(at, how))


class WaitingGenerator(Generator[Any, Any, Any]):
    """Stands for a generator that captured code has made.

    place, state: where it waits, and the flat state there (points.py). place is None when it has
    ended, and when eager code has gone on with it, as a real one.
    """

    __slots__ = ("_real", "place", "state")

    def __init__(self, place: Place | None, state: Values) -> None:
        self._real: Any = _ENDED
        self.move(place, state)

    def move(self, place: Place | None, state: Values) -> None:
        """Captured code has gone on with it, up to another place or its end."""
        self.place: Place | None = place
        self.state = state

    def fail(self, thrown: list[BaseException]) -> None:
        """What goes on next with it gets an exception."""
        self.move(None, ())
        self._real = _failing(thrown)

    def send(self, value: Any) -> Any:
        place, state = self.place, self.state
        if place is not None:
            self.move(None, ())
            self._real = place.generator(state, give, (value,))
            value = None if place.how == "yield" else value
        return self._real.send(value)

    def throw(self, *error: Any) -> Any:
        place, state = self.place, self.state
        thrown = [_instance(*error)]
        error = ()  # no frame that it passes through may hold it: its traceback holds the frame
        if place is not None:
            self.move(None, ())
            self._real = place.generator(state, raise_thrown, (thrown,))
            if place.how == "yield":
                return next(self._real)
        return self._real.throw(thrown.pop())

    def __del__(self) -> None:
        if self.place is not None and self.place.closes:
            self.close()

    def __getattr__(self, name: str) -> Any:
        """gi_frame and the like, as one that is made for the question has them."""
        place = self.place
        real = self._real if place is None else place.generator(self.state, give, (None,))
        return getattr(real, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # for isinstance
        return GeneratorType

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError("cannot pickle 'generator' object")


_NOTHING: tuple[Any, ...] = ()
_ENDED: Generator[Any, Any, Any] = (x for x in _NOTHING)
next(_ENDED, None)


def function(code: CodeType, globals_: dict[str, object]) -> FunctionType:
    """A piece or rest as a function. Its cells are parameters, so it needs none of its own.

    The frame hook leaves it alone: pieces are not to be compiled, and rests have dispatchers.
    """
    set_skip(code)
    closure = tuple(CellType() for _ in code.co_freevars)
    return FunctionType(code, globals_, code.co_name, None, closure)


def give(value: Any) -> Any:
    """What a generator waits for, as the result of a call."""
    return value


def raise_thrown(thrown: list[BaseException]) -> None:
    """What is raised where a frame waits. It is taken out of the list: see `throw`."""
    raise thrown.pop()


def _failing(thrown: list[BaseException]) -> Generator[Any, Any, Any]:
    raise thrown.pop()
    yield


def _instance(kind: Any, value: Any = None, traceback: Any = None) -> BaseException:
    """The exception that `throw` is asked to raise. Errors: TypeError if that is none."""
    given = value if isinstance(value, BaseException) else kind
    error = given
    if isinstance(given, type) and issubclass(given, BaseException):
        error = given() if value is None else given(value)
    if not isinstance(error, BaseException):
        raise TypeError("exceptions must be classes or instances deriving from BaseException, "
                        f"not {type(error).__name__}")  # fmt: skip
    return error if traceback is None else error.with_traceback(traceback)
