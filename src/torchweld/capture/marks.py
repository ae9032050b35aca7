"""What the user has said about callables, tensors and the process, where the capture can see it.

A callable: run it eagerly, record it as one node, take its result as a constant, capture another
function in its place. Marks that were set with torch's own functions are found too, where torch
keeps them; that is looked up in `sys.modules`, since torch._dynamo is never imported here.

The process: the stance, one for all threads. torch's own counts for what is about to be compiled.

A tensor: which sizes change. Kept as attributes of the tensor, under the names where torch keeps
them, so that marks made with either library are facts for both.
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import torch

from torchweld.frame.program import Dispatcher


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
            deep = named.get("_torchdynamo_disable_recursive", False)
            mark = Mark.DISABLED if deep else Mark.SHALLOW
            return mark, str(named.get("_torchdynamo_disable_msg") or "")
        if named.get("_dynamo_marked_constant"):
            return Mark.CONSTANT, ""
        if named.get("_dynamo_forbidden"):
            return Mark.SHALLOW, "torch forbids it in compiled code"
    rules = sys.modules.get("torch._dynamo.trace_rules")  # another thread may just import it
    if rules is not None and id(fn) in getattr(rules, "_allowed_callable_ids", ()):
        return Mark.ALLOWED, ""
    return None


def substitute_of(fn: Any) -> Callable[..., Any] | None:
    """The function to capture in the place of this one."""
    found = _known.get(id(fn))
    if found is not None and found.substitute is not None:
        return found.substitute
    if fn is torch.manual_seed and fn is not torch.random.manual_seed:
        return torch.random.manual_seed  # torch._dynamo disables it for itself
    if isinstance(fn, types.FunctionType) and fn.__name__.startswith(("_init_group", "_fused_")):
        return _of_optimizer(fn)
    functions = sys.modules.get("torch._dynamo.variables.functions")
    kept = getattr(functions, "PolyfilledFunctionVariable", None)
    if kept is None:
        return None
    handlers = kept._get_polyfill_handlers()
    try:
        wrapped = handlers.get(fn)
    except TypeError:  # unhashable
        return None
    made = getattr(wrapped, "__torch_dynamo_polyfill__", None)
    # those of torch itself stand for functions that have handlers here
    own = isinstance(made, types.FunctionType) and not str(made.__module__).startswith("torch.")
    return made if own else None


def _of_optimizer(fn: types.FunctionType) -> Callable[..., Any] | None:
    """What torch._dynamo wraps when it begins to work: it captures optimizers another way."""
    if not str(fn.__module__).startswith("torch.optim."):
        return None
    inner: Callable[..., Any] | None = fn.__dict__.get("_torchdynamo_orig_callable")
    return inner


def region_of(fn: Any) -> Any:
    """What a wrapper made by torch.compiler.nested_compile_region calls; None if it is not one."""
    if not isinstance(fn, types.FunctionType):
        return None
    return fn.__dict__.get("__marked_compile_region_fn__")


# ---------------------------------------------------------------- tensors and steps
class DimRange(NamedTuple):
    """The sizes that a marked dimension may have; None is no bound."""

    dim: int
    min: int | None
    max: int | None


def _each(index: int | Iterable[int]) -> tuple[int, ...]:
    return (index,) if isinstance(index, int) else tuple(index)


def _add(t: torch.Tensor, name: str, item: object) -> None:
    """Add to a set that is kept on the tensor."""
    kept = t.__dict__.setdefault(name, set())
    kept.add(item)
    t.__dict__["_has_dynamo_dim_marking"] = True


def _put(t: torch.Tensor, name: str, key: int, value: object) -> None:
    if value is not None:
        t.__dict__.setdefault(name, {})[key] = value


def mark_dynamic(t: torch.Tensor, index: int | Iterable[int], *, hint_override: int | None = None,
                 min: int | None = None, max: int | None = None,
                 specialize_on: list[Any] | None = None) -> None:  # fmt: skip
    """Say that these dimensions change from call to call, within the bounds.

    Call it on the tensor before the compiled function gets it. hint_override, specialize_on: kept
    for torch.compile, and not used here.
    """
    for i in _each(index):
        _add(t, "_dynamo_dynamic_indices", i)
        _add(t, "_dynamo_dynamic_range", DimRange(i, min, max))
        _put(t, "_dynamo_hint_overrides", i, hint_override)
        _put(t, "_specialize_on", i, specialize_on)


def maybe_mark_dynamic(t: torch.Tensor, index: int | Iterable[int]) -> None:
    """Say that these dimensions may change; where code needs one size, that is no error."""
    for i in _each(index):
        _add(t, "_dynamo_weak_dynamic_indices", i)


def mark_unbacked(t: torch.Tensor, index: int | Iterable[int], *,
                  hint_override: int | None = None, strict: bool = False,
                  specialize_on: list[Any] | None = None) -> None:  # fmt: skip
    """Say that these dimensions change, and that no code needs one size of them."""
    for i in _each(index):
        _add(t, "_dynamo_strict_unbacked_indices" if strict else "_dynamo_unbacked_indices", i)
        _put(t, "_dynamo_hint_overrides", i, hint_override)
        _put(t, "_specialize_on", i, specialize_on)


def mark_static(t: Any, index: int | Iterable[int] | None = None) -> None:
    """Say that these dimensions, or all, never change; of a class, its numbers."""
    if isinstance(t, type):
        t._dynamo_marked_static = True  # type: ignore[attr-defined]
        return
    for i in range(t.dim()) if index is None else _each(index):
        _add(t, "_dynamo_static_indices", i)


def mark_static_address(t: torch.Tensor, guard: bool = True) -> None:
    """Say that the memory of this tensor stays where it is."""
    t.__dict__["_dynamo_static_input_type"] = "guarded" if guard else "unguarded"


def cudagraph_mark_step_begin() -> None:
    """Say that a new step begins. Nothing needs to be done: results of CUDA graphs stay valid."""


def is_exporting() -> bool:
    """Whether torch.export is at work."""
    return bool(torch.compiler.is_exporting())


def graph_break(msg: str = "") -> None:
    """End the graph here when compiling; nothing in eager code."""


SIZE_MARKS = (mark_dynamic, maybe_mark_dynamic, mark_unbacked, mark_static, mark_static_address)


# ---------------------------------------------------------------- the process
# stance -> what it means
STANCES = {
    "default": "compile what is not compiled yet",
    "force_eager": "run everything eagerly, what is compiled included",
    "eager_on_recompile": "run eagerly what is not compiled yet",
    "fail_on_recompile": "raise an error where something would be compiled",
    "eager_then_compile": "run the first call of each function eagerly, compile at the second",
    "aot_eager_then_compile": "the same",
}

_stance = "default"
_dispatchers: weakref.WeakSet[Dispatcher] = weakref.WeakSet()


def current_stance() -> str:
    """The stance in force: ours, unless only torch's differs from the default."""
    if _stance != "default":
        return _stance
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    theirs = getattr(getattr(dynamo, "_stance", None), "stance", "default")
    return theirs if theirs in STANCES else "default"


def follow(dispatcher: Dispatcher) -> None:
    """Keep a compiled function informed of the stance, as long as it lives."""
    _dispatchers.add(dispatcher)
    dispatcher.enabled = _stance != "force_eager"


def followers() -> list[Dispatcher]:
    """The compiled functions that are alive."""
    return list(_dispatchers)


def change_stance(stance: str) -> str:
    """Set the stance; what it was before."""
    global _stance
    before, _stance = _stance, stance
    for dispatcher in followers():
        dispatcher.enabled = stance != "force_eager"
    return before


# in a compiled function it ends the graph: what follows is compiled or not under another stance
set_mark(change_stance, Mark.DISABLED, "it decides what is compiled")
