"""sys._getframe: the frames of the captured functions, as Python shows them."""

from __future__ import annotations

from collections.abc import Callable

from torchweld.capture.functions.scopes import local_names
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, VFrame, refuse
from torchweld.capture.tables import GETATTR
from torchweld.capture.values.base import Const, Value
from torchweld.frame.points import is_rest


class FrameValue(Value):
    """A frame of the capture, by its place in the stack of calls."""

    __slots__ = ("at",)

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def cls(self) -> type:
        raise _looked_at()


def frame(cap: Capture, args: list[Value], kwargs: dict[str, Value], cont: Cont | None) -> None:
    """The frame that is so many calls further out. Errors: GraphBreak for one outside."""
    depth = args[0].obj if args and isinstance(args[0], Const) else 0
    if not isinstance(depth, int) or len(args) > 1:
        raise _looked_at(cap)
    cap.deliver(_at(cap, len(cap.frames) - 1 - depth), cont)


def _at(cap: Capture, at: int) -> FrameValue:
    if at < 0 or any(is_rest(f.code.raw) for f in cap.frames[at:]):
        raise _looked_at(cap)
    return FrameValue(at)


def _looked_at(cap: Capture | None = None) -> Exception:
    why = "a frame, of which more is looked at than its names"
    return refuse("W122", why, cap.loc()) if cap else refuse("W122", why)


def _attr(cap: Capture, x: FrameValue, name: str, cont: Cont | None) -> None:
    made = _ATTRS.get(name)
    if made is None or x.at >= len(cap.frames):
        raise _looked_at(cap)
    cap.deliver(made(cap, x, cap.frames[x.at]), cont)


_ATTRS: dict[str, Callable[[Capture, FrameValue, VFrame], Value]] = {
    "f_code": lambda cap, x, f: Const(f.code.raw),
    "f_lineno": lambda cap, x, f: Const(f.loc().line),
    "f_globals": lambda cap, x, f: cap.wrap(f.globals, f.globals_source),
    "f_locals": lambda cap, x, f: local_names(cap, f),
    "f_back": lambda cap, x, f: _at(cap, x.at - 1),
}
GETATTR.add(FrameValue, _attr)
