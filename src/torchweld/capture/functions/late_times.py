"""datetime: times that are read when the compiled code runs, and what is computed of them."""

from __future__ import annotations

import datetime
import operator
import types
from typing import Any

from torchweld.capture.attrs import builtin_attr, mro_lookup
from torchweld.capture.functions.system import clock
from torchweld.capture.late import LateNumber, is_time
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.values.base import Const, Value

Args = list[Value]
Kwargs = dict[str, Value]

def now(method: Any, cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """datetime.now(), date.today() of the class itself."""
    kind, *rest = args
    if not isinstance(kind, Const) or kind.obj not in (datetime.datetime, datetime.date):
        raise refuse("W107", "the time as another class", cap.loc())
    if kwargs.keys() == {"tz"}:
        rest, kwargs = [*rest, kwargs["tz"]], {}
    clock(getattr(kind.obj, method), cap, rest, kwargs, cont)


def attr(cap: Capture, obj: LateNumber, name: str, cont: Cont | None) -> None:
    """A part of a time, or a method of it."""
    raw = mro_lookup(type(obj.now), name)
    if obj.fixed or not is_time(obj.now):
        builtin_attr(cap, obj, name, cont)
    elif isinstance(raw, types.GetSetDescriptorType | types.MemberDescriptorType):
        cap.deliver(cap.late.of_times(operator.attrgetter(name), [obj]), cont)
    else:
        builtin_attr(cap, obj, name, cont)
