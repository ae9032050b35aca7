"""What a compiled module was made of: an original, whose class may be assigned later.

Parametrizations and weight norm give a module another class. The compiled module, which shares the
attributes of the original one, is then made an instance of the matching class before its next call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from torchweld.capture.session import Capture
from torchweld.capture.state import Cont
from torchweld.capture.tables import FUNCTIONS
from torchweld.capture.values.base import Const, InstanceValue, Value

ORIGINAL, ORIGIN = "_torchweld_original", "_torchweld_origin"
Remake = Callable[[type, "Original"], type]


class Original:
    """The original of one compiled module, held weakly. Called: its class, also when it is gone.

    remake: what makes the class of the compiled module out of the one of the original.
    """

    __slots__ = ("__weakref__", "_kind", "_made", "_module", "_remake")

    def __init__(self, module: torch.nn.Module, remake: Remake) -> None:
        self._module = weakref.ref(module)
        self._remake = remake
        self._kind: type = type(module)
        self._made: dict[type, Callable[[], Any]] = {}

    @property
    def __name__(self) -> str:
        return "class of the module that was compiled"

    def __call__(self) -> type:
        module = self._module()
        if module is not None:
            self._kind = type(module)
        return self._kind

    def class_of(self, kind: type) -> type:
        """The class of the compiled module while the original is a `kind`."""
        found: type | None = self._made.get(kind, lambda: None)()
        if found is None:
            found = self._remake(kind, self)
            self._made[kind] = weakref.ref(found)
        return found

    @property
    def lives(self) -> bool:
        """Whether somebody can still give it another class."""
        return self._module() is not None

    def follow(self, made: Any) -> None:
        """Give the compiled module its class, unless somebody else has given it one."""
        now = self()
        mine = vars(type(made)).get(ORIGIN)
        if mine is not None and mine is not now:
            object.__setattr__(made, "__class__", self.class_of(now))


def original_of(kind: type) -> Original | None:
    """What instances of a class were compiled of; None if it is no class of compiled modules."""
    found: Original | None = getattr(kind, ORIGINAL, None)
    return found


def origin_of(module: Any) -> Any:
    """The class of which a compiled module is a compiled instance now."""
    original = original_of(type(module))
    assert original is not None
    original.follow(module)
    return getattr(type(module), ORIGIN)


def follow_originals(args: tuple[object, ...]) -> None:
    """Give the first argument, if it is a compiled module, the class that it has by now."""
    original = original_of(type(args[0])) if args else None
    if original is not None:
        original.follow(args[0])


def _origin_of(cap: Capture, args: list[Value], kwargs: dict[str, Value],
               cont: Cont | None) -> None:  # fmt: skip
    """Known: it was followed, and is guarded, where the module was wrapped."""
    (module,) = args
    assert isinstance(module, InstanceValue)
    cap.deliver(Const(getattr(module.klass, ORIGIN)), cont)


def watch_original(cap: Capture, obj: object, kind: type) -> type:
    """The class of an object from outside; the class of its original, if it has one, is guarded."""
    original = original_of(kind)
    if original is None:
        return kind
    original.follow(obj)
    if original.lives:
        cap.guard("state", None, (original, original()))
    return type(obj)


FUNCTIONS.add(origin_of, _origin_of)
