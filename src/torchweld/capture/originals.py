"""What a compiled module was made of: an original, whose class may be assigned later.

Parametrizations and weight norm give a module another class. The compiled module, which shares the
attributes of the original one, is then made an instance of the matching class before its next call.
"""

from __future__ import annotations

from typing import Any

import torch

from torchweld.capture.session import Capture
from torchweld.capture.state import Cont
from torchweld.capture.tables import FUNCTIONS
from torchweld.capture.values.base import Const, InstanceValue, Value
from torchweld.ir.source import Attr, Source

# of a compiled module: the module that it was made of. Of its class: the class of that one, and
# what has a `class_of`: the class of compiled modules that are made of another one.
ORIGINAL, ORIGIN, ALIKE = "_torchweld_original", "_torchweld_origin", "_torchweld_alike"


def is_compiled_class(kind: type) -> bool:
    """Whether instances of a class are compiled modules."""
    return hasattr(kind, ORIGIN)


def original_of(module: Any) -> torch.nn.Module | None:
    """What a compiled module was made of; None if its class was only called."""
    found: torch.nn.Module | None = getattr(module, ORIGINAL, None)
    return found


def follow(module: Any) -> None:
    """Give a compiled module the class that its original has by now, unless somebody else has given
    it one."""
    original, own = original_of(module), vars(type(module)).get(ORIGIN)
    if original is not None and own is not None and own is not type(original):
        alike = getattr(type(module), ALIKE)
        object.__setattr__(module, "__class__", alike.class_of(type(original)))


def origin_of(module: Any) -> Any:
    """The class of which a compiled module is a compiled instance now."""
    follow(module)
    return getattr(type(module), ORIGIN)


def follow_originals(args: tuple[object, ...]) -> None:
    """Give the first argument, if it is a compiled module, the class that it has by now."""
    if args and is_compiled_class(type(args[0])):
        follow(args[0])


def _origin_of(cap: Capture, args: list[Value], kwargs: dict[str, Value],
               cont: Cont | None) -> None:  # fmt: skip
    """Known: it was followed, and is guarded, where the module was wrapped."""
    (module,) = args
    assert isinstance(module, InstanceValue)
    cap.deliver(Const(getattr(module.klass, ORIGIN)), cont)


def watch_original(cap: Capture, obj: object, kind: type, source: Source) -> type:
    """The class of an object from outside; the class of its original, if it has one, is guarded."""
    if not is_compiled_class(kind):
        return kind
    follow(obj)
    original = original_of(obj)
    if original is not None:
        cap.add_guard("type", Attr.make(source, ORIGINAL), type(original))
    return type(obj)


FUNCTIONS.add(origin_of, _origin_of)
