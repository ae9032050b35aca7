"""The tables of the capture: who answers for which opcode, function, method and attribute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchweld.base.registry import Registry
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, VFrame
from torchweld.capture.values.base import Value
from torchweld.frame.instr import Instr

OpcodeHandler = Callable[[Capture, VFrame, Instr], None]
AttrHandler = Callable[[Capture, Any, str, Cont | None], None]
# (capture, positional arguments, keyword arguments, continuation)
CallHandler = Callable[[Capture, list[Value], dict[str, Value], Cont | None], None]

OPCODES: Registry[str, OpcodeHandler] = Registry("opcode handlers")
GETATTR: Registry[type, AttrHandler] = Registry("attribute handlers by family")
# handlers of methods of built-in types; the first positional argument is the receiver
METHODS: Registry[tuple[type, str], CallHandler] = Registry("methods of built-in types")
# handlers of functions, by the function object
FUNCTIONS: Registry[Any, CallHandler] = Registry("functions")
# the same of functions that are not imported here, by module and qualified name
NAMED: Registry[tuple[str, str], CallHandler] = Registry("functions by name")
# handlers of constructing a class, by the class
CLASSES: Registry[type, CallHandler] = Registry("classes")


def opcode(name: str) -> Callable[[OpcodeHandler], OpcodeHandler]:
    return OPCODES.register(name)


def function(*fns: Any) -> Callable[[CallHandler], CallHandler]:
    return FUNCTIONS.register(*fns)


def klass(*kinds: type) -> Callable[[CallHandler], CallHandler]:
    return CLASSES.register(*kinds)


def method(kind: type | tuple[type, ...], *names: str) -> Callable[[CallHandler], CallHandler]:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return METHODS.register(*((k, n) for k in kinds for n in names))
