"""contextvars: variables that are read now, and set and reset once the graph has run."""

from __future__ import annotations

import contextvars
import functools
from typing import Any

from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.suspend import stops_of
from torchweld.capture.values.base import (
    NONE,
    Const,
    InstanceValue,
    Value,
    constant,
)
from torchweld.ir.source import Source

Args = list[Value]
Kwargs = dict[str, Value]


class Setting:
    """One assignment to a context variable, which a frame may take back."""

    __slots__ = ("token",)

    def set(self, variable: contextvars.ContextVar[Any], value: object) -> None:
        self.token = variable.set(value)

    def reset(self, variable: contextvars.ContextVar[Any]) -> None:
        variable.reset(self.token)


def _real(cap: Capture, variable: Value) -> Any:
    """The variable itself."""
    if isinstance(variable, InstanceValue):
        if variable.source is None:
            raise refuse("W107", "a context variable made in the frame", cap.loc())
        cap.guard("is", variable.source, variable.real)
        return variable.real
    return constant(variable)


def token(cap: Capture, obj: Any, source: Source) -> Value:
    """One from outside is another object in every call: it is no use to guard it."""
    raise refuse("W107", "a context variable is reset to what was set elsewhere", cap.loc())


def get(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """What the frame has set; else it is read now, and the compiled code is for this value."""
    variable, *default = args
    real = _real(cap, variable)
    for known, value, _ in reversed(cap.contexts):
        if known is real:
            cap.deliver(value, cont)
            return
    ask = functools.partial(real.get, *map(constant, default))
    try:
        found = ask()
    except LookupError:
        raise refuse("W107", "a context variable without a value", cap.loc()) from None
    if found is not None and type(found) not in (bool, int, float, str):
        raise refuse("W107", f"a context variable with a {type(found).__name__}", cap.loc())
    cap.guard("state", None, (ask, found))
    cap.deliver(Const(found), cont)


def put(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """The token stays in the capture, which ends before if it cannot."""
    variable, value = args
    if cap.pure:
        raise refuse("W106", "a context variable is set in a function that may not run now",
                     cap.loc())  # fmt: skip
    setting, token = InstanceValue(Setting), InstanceValue(contextvars.Token)
    token.attrs["setting"] = setting
    cap.note_birth(token, stops_of(cap))
    cap.contexts.append((_real(cap, variable), value, token))
    cap.effects.append((Const(Setting.set), [setting, variable, value], {}))
    cap.deliver(token, cont)


def reset(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    variable, token = args
    real = _real(cap, variable)
    last = next((c for c in reversed(cap.contexts) if c[0] is real), None)
    if last is None or last[2] is not token or not isinstance(token, InstanceValue):
        raise refuse("W107", "a context variable is reset to what was set elsewhere", cap.loc())
    cap.contexts.remove(last)
    setting = token.attrs["setting"]
    assert setting is not None
    cap.effects.append((Const(Setting.reset), [setting, variable], {}))
    cap.deliver(NONE, cont)
