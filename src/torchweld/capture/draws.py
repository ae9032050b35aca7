"""Generators of random numbers: what Python's `random` and NumPy draw inside a captured frame.

A draw must happen at every call, in the order of the program, and leave the generator in the state
that eager leaves. So the capture draws from a copy, and the residual program draws from the
generator itself before it runs the graph. After the frame has set a seed, what comes is known.
"""

from __future__ import annotations

import copy
import functools
import importlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from torchweld.capture.attrs import from_python
from torchweld.capture.late import NUMBERS, LateNumber
from torchweld.capture.session import Capture
from torchweld.capture.state import raised, refuse
from torchweld.capture.values.base import (
    Const,
    InstanceValue,
    Loose,
    NotConstant,
    SizeValue,
    Value,
    constant,
)
from torchweld.capture.values.owned import PreparedValue

# NumPy's by their names: it imports them when somebody asks for them
_KINDS = (("random", "Random"), ("numpy.random.mtrand", "RandomState"), ("torch._C", "Generator"),
          ("numpy.random._generator", "Generator"))  # fmt: skip


class Setting:
    """A setting of torch: what reads it, and what sets it to what was read."""

    __slots__ = ("read", "write")

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], Any]) -> None:
        self.read = read
        self.write = write


def _default_states() -> tuple[Any, ...]:
    """The states of the generators that operators draw from which are given none."""
    first = torch.get_rng_state()
    on_gpu: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return (first, torch.cuda.get_rng_state()) if on_gpu else (first,)


def _set_default_states(states: tuple[Any, ...]) -> None:
    for put, state in zip((torch.set_rng_state, torch.cuda.set_rng_state), states, strict=False):
        put(state)


# what the graph draws from
DEFAULT = Setting(_default_states, _set_default_states)


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
    real = x.real if isinstance(x, InstanceValue | Loose) else constant(x)
    if (type(real).__module__, type(real).__name__) not in _KINDS:
        raise refuse("W107", f"random numbers of a {x.cls().__name__}", cap.loc())
    may_draw(cap)
    return real


def may_draw(cap: Capture) -> None:
    """Errors: GraphBreak where code may not run now, or more than once."""
    if cap.pure or cap.builder.graph is not cap.builder.root:
        raise refuse("W106", "a random number in a function that may not run now", cap.loc())


def generator_of(cap: Capture, x: Value) -> Generator:
    """What is known about a generator. Errors: GraphBreak."""
    if isinstance(x, PreparedValue) and x.generator is not None:
        may_draw(cap)
        cap.sizes.of_drawn = functools.partial(drawn_size, cap)
        return x.generator
    real = _real(cap, x)
    found = cap.generators.get(id(real))
    if found is None:
        found = cap.generators[id(real)] = Generator(x, copy.deepcopy(real))
    cap.unguarded += 1
    cap.sizes.of_drawn = functools.partial(drawn_size, cap)
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
    if isinstance(now, np.ndarray):
        return _as_array(cap, now, method, x, given)
    if type(now) not in (*NUMBERS, str, list):
        generator.twin = before
        raise refuse("W120", f"a {type(now).__name__} is drawn", cap.loc())
    drawn = cap.late.draw(now, method, (x, *given))
    if generator.known and not any(_is_late(a) for a in given):
        return from_python(now)
    return _listed(cap, drawn) if type(now) is list else drawn


def _listed(cap: Capture, late: LateNumber) -> Value:
    """The list of numbers that is drawn as `late`."""
    made: Value = _arrays().drawn_list(cap, late.now, late)
    return made


def _as_array(*args: Any) -> Value:
    made: Value = _arrays().drawn_array(*args)
    return made


def _arrays() -> Any:
    """What draws more than a number, loaded when somebody does."""
    return importlib.import_module("torchweld.capture.arrays.drawn")


def set_seed(cap: Capture, method: Callable[..., Any], x: Value, args: list[Value]) -> None:
    """method(x, *args) sets a generator to a state that is always the same."""
    generator = generator_of(cap, x)
    given = [a if _is_late(a) else Const(_constant(cap, a)) for a in args]
    try:
        method(generator.twin, *(a.now if _is_late(a) else a.obj for a in given))  # type: ignore[attr-defined]
    except Exception as error:
        raise raised(type(error), *error.args) from None
    generator.known = is_known_seed(given)
    cap.late.draw(None, method, (x, *given))


def is_known_seed(given: list[Value]) -> bool:
    """Whether a seed is the same in every call, and not one that the system chooses."""
    first = given[0] if given else None
    return first is not None and not any(map(_is_late, given)) and (
        not isinstance(first, Const) or first.obj is not None)  # fmt: skip


def prepare(cap: Capture, fn: Callable[..., Any], args: list[Value]) -> Value:
    """fn(*args) makes a generator. Errors: Raised, GraphBreak."""
    may_draw(cap)
    given = [a if _is_late(a) else Const(_constant(cap, a)) for a in args]
    try:
        twin = fn(*(a.now if _is_late(a) else a.obj for a in given))  # type: ignore[attr-defined]
    except Exception as error:
        raise raised(type(error), *error.args) from None
    cap.unguarded += 1
    made = PreparedValue(cap.late.draw(twin, fn, tuple(given)), twin)
    made.generator = Generator(made, twin, is_known_seed(given))
    return made


def drawn_size(cap: Capture, x: LateNumber) -> SizeValue | None:
    """A drawn integer where a size, or a place in a tensor, is wanted: one that data decides."""
    if not cap.builder.takes_data:
        return None
    found: SizeValue | None = importlib.import_module("torchweld.capture.drawn").as_size(cap, x)
    return found


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
    if isinstance(generator, Setting):
        return generator.read()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "get_state"):
        return generator.get_state()
    return generator.bit_generator.state


def go_back(generator: Any, state: Any) -> None:
    """Set a generator to a state that it had."""
    if isinstance(generator, Setting):
        generator.write(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "set_state"):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state
