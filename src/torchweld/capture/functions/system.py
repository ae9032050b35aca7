"""What a frame asks the system: clocks, the process, which files there are."""

from __future__ import annotations

import functools
import pprint
from collections.abc import Callable
from typing import Any

from torchweld.capture.attrs import from_python
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.values.base import Const, NotConstant, Value, constant

Args = list[Value]
Kwargs = dict[str, Value]


def _constants(cap: Capture, fn: Callable[..., Any], args: Args, kwargs: Kwargs) -> list[Any]:
    try:
        if not kwargs:
            return [constant(cap.unwrap(a)) for a in args]
    except NotConstant:
        pass
    raise refuse("W107", f"{fn.__name__} of a value that is not constant", cap.loc())


def clock(fn: Callable[..., Any], cap: Capture, args: Args, kwargs: Kwargs,
          cont: Cont | None) -> None:  # fmt: skip
    """A time is read before the graph runs, or after it if an operator was called before.

    Errors: GraphBreak where the code may not run now.
    """
    if cap.pure or cap.builder.graph is not cap.builder.root:
        raise refuse("W106", "the time in a function that may not run now", cap.loc())
    given = _constants(cap, fn, args, kwargs)
    cap.unguarded += 1
    try:
        made = cap.late.clock(fn, tuple(map(from_python, given)), cap.builder.n_calls > 0)
    except Exception as error:
        raise raised(type(error), *error.args) from None
    cap.deliver(made, cont)


def reading(fn: Callable[..., Any], cap: Capture, args: Args, kwargs: Kwargs,
            cont: Cont | None) -> None:  # fmt: skip
    """An answer that is asked for again before the next call, and guarded."""
    getter = functools.partial(fn, *_constants(cap, fn, args, kwargs))
    try:
        found = getter()
    except Exception as error:
        raise raised(type(error), *error.args) from None
    cap.guard("state", None, (_Reading(getter), found))
    cap.deliver(from_python(found), cont)


def print_pretty(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """pprint.pprint: a text that is printed."""
    cap.call(Const(_printed), args, kwargs, cont)


def _printed(x: object, stream: Any = None, *args: Any, **named: Any) -> None:
    print(pprint.pformat(x, *args, **named), file=stream)


class _Reading:
    """A function of the system with its arguments; equal ones ask the same."""

    __slots__ = ("__name__", "args", "func")

    def __init__(self, getter: functools.partial[Any]) -> None:
        self.func = getter.func
        self.args = getter.args
        self.__name__ = getter.func.__name__

    def __call__(self) -> Any:
        return self.func(*self.args)

    def __hash__(self) -> int:
        return hash((self.func, self.args))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reading) and (self.func, self.args) == (other.func, other.args)
