"""Generators of random numbers: what Python's `random` and NumPy draw inside a captured frame.

A draw must happen at every call, in the order of the program, and leave the generator in the state
that eager leaves. So the capture draws from a copy, and the residual program draws from the
generator itself before it runs the graph. After the frame has set a seed, what comes is known.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchweld.capture.late import LateNumber
from torchweld.capture.session import Capture
from torchweld.capture.state import raised, refuse
from torchweld.capture.values.base import Const, InstanceValue, NotConstant, Value, constant

# NumPy's by their names: it imports them when somebody asks for them
_KINDS = (("random", "Random"), ("numpy.random.mtrand", "RandomState"),
          ("numpy.random._generator", "Generator"))  # fmt: skip


@dataclass(slots=True)
class Generator:
    """One generator of this capture.

    value: what it is in the frame. twin: a copy of the real one, as it is at this point of the
    frame. known: whether that is its state in every call.
    """

    value: Value
    twin: Any
    known: bool = False


def _real(cap: Capture, x: Value) -> Any:
    """The real generator. Errors: GraphBreak for one that the capture cannot follow."""
    real = x.real if isinstance(x, InstanceValue) else constant(x)
    if (type(real).__module__, type(real).__name__) not in _KINDS:
        raise refuse("W107", f"random numbers of a {x.cls().__name__}", cap.loc())
    if cap.pure or cap.builder.graph is not cap.builder.root:
        raise refuse("W106", "a random number in a function that may not run now", cap.loc())
    return real


def generator_of(cap: Capture, x: Value) -> Generator:
    """What is known about a generator from outside. Errors: GraphBreak."""
    real = _real(cap, x)
    found = cap.generators.get(id(real))
    if found is None:
        found = cap.generators[id(real)] = Generator(x, copy.deepcopy(real))
    cap.unguarded += 1
    return found


def draw(cap: Capture, method: Callable[..., Any], x: Value, args: list[Value]) -> Value:
    """The number that method(x, *args) gives in each call.

    Errors: Raised what the method raises; GraphBreak if it gives anything but a number.
    """
    generator = generator_of(cap, x)
    given = [a if _is_late(a) else Const(_constant(cap, a)) for a in args]
    before = copy.deepcopy(generator.twin)
    try:
        now = method(generator.twin, *(a.now if _is_late(a) else a.obj for a in given))  # type: ignore[attr-defined]
    except Exception as error:
        generator.twin = before
        raise raised(type(error), *error.args) from None
    if type(now) not in (int, float):
        generator.twin = before
        raise refuse("W120", f"a {type(now).__name__} is drawn", cap.loc())
    drawn = cap.late.draw(now, method, (x, *given))
    known = generator.known and not any(_is_late(a) for a in given)
    return Const(now) if known else drawn


def set_seed(cap: Capture, method: Callable[..., Any], x: Value, args: list[Value]) -> None:
    """method(x, *args) sets a generator to a state that is always the same."""
    generator = generator_of(cap, x)
    given = [_constant(cap, a) for a in args]
    if not given or given[0] is None:
        raise refuse("W107", "a seed that the system chooses", cap.loc())
    try:
        method(generator.twin, *given)
    except Exception as error:
        raise raised(type(error), *error.args) from None
    generator.known = True
    cap.late.draw(None, method, (x, *map(Const, given)))


def _is_late(x: Value) -> bool:
    return isinstance(x, LateNumber) and not x.fixed


def _constant(cap: Capture, x: Value) -> Any:
    try:
        return constant(cap.unwrap(x))
    except NotConstant:
        raise refuse("W107", f"a {x.cls().__name__} decides what is drawn", cap.loc()) from None


# ------------------------------------------------------------------ in the residual program
def state_of(generator: Any) -> Any:
    """The state of a generator, to go back to."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "get_state"):
        return generator.get_state()
    return generator.bit_generator.state


def go_back(generator: Any, state: Any) -> None:
    """Set a generator to a state that it had."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "set_state"):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state
