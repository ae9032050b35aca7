"""The exception tree, and refusals as values.

WeldError
  Unsupported          the frame or operator runs eagerly; never reaches the user in default mode
    GraphBreak         capture cannot go on here
    LoweringError      no generated code for this operator
    StateChanged       another thread changed what was being captured
  FullGraphError       a GraphBreak under fullgraph=True
  RecompileError       compilation under the stance "fail_on_recompile" (also a RuntimeError)
  PromiseError         a size that was marked as dynamic, where the code needs one size
  BackendError         compiler or loader failed
  UsageError           wrong argument of a public function (also a ValueError or TypeError)
  InternalError        a broken invariant of torchweld
Untouched              a graph failed that had written nothing yet; never reaches the user
"""

from __future__ import annotations

from dataclasses import dataclass

from torchweld.base.codes import CODES
from torchweld.base.loc import NOWHERE, Loc


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something was not done: a value that logs, `explain` and the report print.

    fix: what to do about it; None where that is what the code's row says.
    """

    code: str
    why: str
    at: Loc = NOWHERE
    fix: str | None = None

    def text(self) -> str:
        return render(self.code, self.why, self.at, self.fix)


def render(code: str, why: str, at: Loc, fix: str | None) -> str:
    """The four-line form of every message: what, at, why, fix."""
    row = CODES[code]
    lines = [f"{code}: {row.title}"]
    if at is not NOWHERE:
        lines.append(f"  at   {at.text()}")
    if why:
        lines.append(f"  why  {why}")
    lines.append(f"  fix  {fix or row.fix}")
    return "\n".join(lines)


class WeldError(Exception):
    """Base of everything torchweld raises. `code` is a row of `base.codes`."""

    def __init__(
        self, code: str, why: str = "", *, at: Loc = NOWHERE, fix: str | None = None
    ) -> None:
        self.code = code
        self.why = why
        self.at = at
        self.fix = fix
        super().__init__(render(code, why, at, fix))

    def refusal(self) -> Refusal:
        return Refusal(self.code, self.why, self.at, self.fix)


class Unsupported(WeldError):
    """torchweld cannot do this right, so eager does it."""


class GraphBreak(Unsupported):
    """Capture cannot continue past this instruction."""


class LoweringError(Unsupported):
    """This operator call has no generated code."""


class StateChanged(Unsupported):
    """Another thread changed what the capture had read: this once, eager does it."""


class FullGraphError(WeldError, RuntimeError):
    """A graph break although the user asked for one whole graph."""


class RecompileError(WeldError, RuntimeError):
    """Something would be compiled although the stance forbids it."""


class PromiseError(WeldError, RuntimeError):
    """A size was promised to vary, but the code works with one size only; or a call has sizes that
    were promised not to come."""


class BackendError(WeldError):
    """A compiler, loader or driver failed."""


class UsageError(WeldError, ValueError):
    """A public function was called with a wrong value."""


class UsageTypeError(WeldError, TypeError):
    """A public function was called with a wrong type."""


class InternalError(WeldError):
    """A broken invariant: a bug in torchweld."""

    def __init__(self, why: str, *, at: Loc = NOWHERE) -> None:
        super().__init__("W901", why, at=at)


class Untouched(Exception):
    """A graph that writes inputs has failed before the first write: its frame may run again."""
