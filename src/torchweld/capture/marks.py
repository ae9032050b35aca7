"""What the user has said about a callable: run it eagerly, record it as one node, take its result
as a constant, capture another function in its place.

Marks that were set with torch's own functions are found too, where torch keeps them; that is looked
up in `sys.modules`, since torch._dynamo is never imported here.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Mark(Enum):
    """How a call of a marked callable is treated."""

    DISABLED = "runs eagerly, and so does what it calls"
    SHALLOW = "runs eagerly; what it calls may be compiled"
    ALLOWED = "one node of the graph"
    CONSTANT = "called while capturing; its result is a constant"


@dataclass(slots=True)
class Marked:
    """What is known of one callable. reason: of the one who marked it."""

    mark: Mark | None = None
    reason: str = ""
    substitute: Callable[..., Any] | None = None
    owner: object = None


_known: dict[int, Marked] = {}


def _record(fn: Any) -> Marked:
    """What is known of this callable, to be changed; forgotten when the callable dies."""
    key = id(fn)
    found = _known.get(key)
    if found is None:
        found = _known[key] = Marked()
        try:
            weakref.finalize(fn, _known.pop, key, None).atexit = False
        except TypeError:
            found.owner = fn  # it cannot be told when it dies, so it does not
    return found


def _plain(fn: Any) -> Any:
    """The function of a method: methods are made anew at each access."""
    return fn.__func__ if isinstance(fn, types.MethodType) else fn


def set_mark(fn: Any, mark: Mark, reason: str = "") -> None:
    """Treat calls of `fn` so from now on."""
    found = _record(_plain(fn))
    found.mark, found.reason = mark, reason


def set_substitute(fn: Any, substitute: Callable[..., Any]) -> None:
    """Capture `substitute` where `fn` is called."""
    _record(_plain(fn)).substitute = substitute


def mark_of(fn: Any) -> tuple[Mark, str] | None:
    """How calls of this callable are to be treated, and why; None: as usual."""
    found = _known.get(id(fn))
    if found is not None and found.mark is not None:
        return found.mark, found.reason
    return _torch_mark(fn)


def _torch_mark(fn: Any) -> tuple[Mark, str] | None:
    named = fn.__dict__ if isinstance(fn, types.FunctionType) else {}
    if named:
        # functools.wraps copies the marks of a function to its wrapper, all but this number
        own = named.get("_torchdynamo_wrapper_id", id(fn)) == id(fn)
        if named.get("_torchdynamo_disable") and own:
            deep = named.get("_torchdynamo_disable_recursive", True)
            mark = Mark.DISABLED if deep else Mark.SHALLOW
            return mark, str(named.get("_torchdynamo_disable_msg") or "")
        if named.get("_dynamo_marked_constant"):
            return Mark.CONSTANT, ""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None and id(fn) in rules._allowed_callable_ids:
        return Mark.ALLOWED, ""
    return None


def substitute_of(fn: Any) -> Callable[..., Any] | None:
    """The function to capture in the place of this one."""
    found = _known.get(id(fn))
    if found is not None and found.substitute is not None:
        return found.substitute
    functions = sys.modules.get("torch._dynamo.variables.functions")
    if functions is None:
        return None
    handlers = functions.PolyfilledFunctionVariable._get_polyfill_handlers()
    try:
        wrapped = handlers.get(fn)
    except TypeError:  # unhashable
        return None
    made = getattr(wrapped, "__torch_dynamo_polyfill__", None)
    # those of torch itself stand for functions that have handlers here
    own = isinstance(made, types.FunctionType) and not str(made.__module__).startswith("torch.")
    return made if own else None


def region_of(fn: Any) -> Any:
    """What a wrapper made by torch.compiler.nested_compile_region calls; None if it is not one."""
    if not isinstance(fn, types.FunctionType):
        return None
    return fn.__dict__.get("__marked_compile_region_fn__")
