"""match statements."""

from __future__ import annotations

from torchweld.capture.attrs import MISSING, mro_lookup, watch_class
from torchweld.capture.comparison import contains
from torchweld.capture.functions.builtin import get_attr_or, len_
from torchweld.capture.functions.kinds import is_instance
from torchweld.capture.items import get_item
from torchweld.capture.ops import payload
from torchweld.capture.session import Capture
from torchweld.capture.state import VFrame, raised, refuse
from torchweld.capture.tables import opcode
from torchweld.capture.values.base import (
    NONE,
    Const,
    InstanceValue,
    TupleValue,
    Value,
    boolean,
    constant,
)
from torchweld.frame.instr import Instr

_MAPPING, _SEQUENCE = 1 << 6, 1 << 5  # Py_TPFLAGS_MAPPING, Py_TPFLAGS_SEQUENCE
_SELF = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


@opcode("GET_LEN")
def get_len(cap: Capture, f: VFrame, i: Instr) -> None:
    len_(cap, [f.stack[-1]], {}, None)


@opcode("MATCH_MAPPING")
def match_mapping(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.append(boolean(f.stack[-1].cls().__flags__ & _MAPPING))


@opcode("MATCH_SEQUENCE")
def match_sequence(cap: Capture, f: VFrame, i: Instr) -> None:
    f.stack.append(boolean(f.stack[-1].cls().__flags__ & _SEQUENCE))


@opcode("MATCH_KEYS")
def match_keys(cap: Capture, f: VFrame, i: Instr) -> None:
    """Stack: subject, keys -> the same, then the values or None."""
    subject, keys = f.stack[-2], f.stack[-1]
    assert isinstance(keys, TupleValue)
    wanted = list(cap.force_items(keys.items))
    if isinstance(subject, InstanceValue) and payload(subject) is subject:
        raise refuse("W107", f"match of a {subject.klass.__name__} as a mapping", cap.loc())

    def step(found: list[Value]) -> None:
        if len(found) == len(wanted):
            f.stack.append(TupleValue(list(found)))
            return
        key = wanted[len(found)]

        def known(has: bool) -> None:
            if has:
                get_item(cap, payload(subject), key, lambda v: step([*found, v]))
            else:
                f.stack.append(NONE)

        contains(cap, payload(subject), key, known)

    step([])


@opcode("MATCH_CLASS")
def match_class(cap: Capture, f: VFrame, i: Instr) -> None:
    """Stack: subject, class, keyword names -> the attributes or None."""
    subject, kind, names = f.popn(3)
    if not (isinstance(kind, Const) and isinstance(kind.obj, type)):
        raise raised(TypeError, "called match pattern must be a class")
    wanted = kind.obj
    is_instance(cap, subject, wanted, lambda yes: (
        _match_parts(cap, f, i, subject, wanted, names) if yes else f.push(NONE)))  # fmt: skip


def _match_parts(cap: Capture, f: VFrame, i: Instr, subject: Value, kind: type,
                 names: Value) -> None:  # fmt: skip
    """Push the attributes that a class pattern asks for, or None."""
    found: list[Value] = []
    positional = _positional(cap, kind, i.arg)
    if positional is None:  # int(x): the subject itself
        found.append(subject)
    wanted = [*(positional or ()), *constant(cap.unwrap(names))]

    def step(value: Value | None) -> None:
        if value is not None:
            found.append(value)
        at = len(found) - (positional is None)
        if at == len(wanted):
            f.stack.append(TupleValue(list(found)))
            return
        get_attr_or(cap, subject, wanted[at], step, lambda: f.push(NONE))

    step(None)


def _positional(cap: Capture, kind: type, n: int) -> list[str] | None:
    """Attribute names of positional patterns; None where the one pattern is the subject."""
    if n == 0:
        return []
    watch_class(cap, kind)
    match_args = mro_lookup(kind, "__match_args__")
    if match_args is MISSING:
        if n == 1 and issubclass(kind, _SELF):
            return None
        match_args = ()
    if len(match_args) < n:
        plural = "" if len(match_args) == 1 else "s"
        raise raised(TypeError, f"{kind.__name__}() accepts {len(match_args)} positional "
                                f"sub-pattern{plural} ({n} given)")  # fmt: skip
    return list(match_args[:n])
