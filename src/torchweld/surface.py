"""What users and libraries say about their functions: the companions of compile().

Each has the name and the arguments that it has in torch.compiler.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from torchweld.base.errors import UsageError, UsageTypeError
from torchweld.capture.marks import STANCES, Mark, change_stance, set_mark, set_substitute
from torchweld.frame import hook
from torchweld.frame.program import Dispatcher
from torchweld.module import Alike, uncompiled

__all__ = [
    "allow_in_graph", "assume_constant_result", "disable", "nested_compile_region",
    "set_stance", "substitute_in_graph",
]  # fmt: skip


def _need_callable(name: str, fn: Any) -> None:
    if not callable(fn):
        raise UsageTypeError("W401", f"{name} takes a callable, not {type(fn).__name__}")


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Mark a function, module or class so that it is never captured; also a decorator.

    recursive: nor is what it calls; False: that may be compiled.
    reason: shown by explain() and in the error under fullgraph=True.
    """
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    if isinstance(fn, classmethod | staticmethod):
        return type(fn)(disable(fn.__func__, recursive, reason=reason))
    _need_callable("disable", fn)
    if isinstance(fn, torch.nn.Module):
        return Alike(lambda call, kin: disable(call, recursive, reason=reason),
                     each=False).compiled(uncompiled(fn))  # fmt: skip
    if isinstance(fn, type):
        return _disabled_class(fn, recursive, reason)
    made = (_quiet if recursive else _shallow)(fn.fn if isinstance(fn, Dispatcher) else fn)
    set_mark(made, Mark.DISABLED if recursive else Mark.SHALLOW, reason or "")
    return made


def _disabled_class(kind: type, recursive: bool, reason: str | None) -> type:
    """The class itself, whose construction and calls run eagerly from now on."""
    named = ("__init__", "__call__", *(("_call_impl",) * issubclass(kind, torch.nn.Module)))
    for name in named:
        inner = getattr(kind, name, None)
        if isinstance(inner, types.FunctionType):
            setattr(kind, name, disable(inner, recursive, reason=reason))
    return kind


def _quiet(fn: Any) -> types.FunctionType:
    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return call  # type: ignore[return-value]


def _shallow(fn: Any) -> types.FunctionType:
    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if hook.active():
            return hook.run_hooked(fn, *args, **kwargs)
        return fn(*args, **kwargs)

    return call  # type: ignore[return-value]


# every disabled function has one of these two code objects
hook.set_quiet(_quiet(len).__code__)
hook.set_skip(_shallow(len).__code__)


def allow_in_graph(fn: Any) -> Any:
    """Record calls of `fn` (or of each in a list) as one graph node; it is not looked into.

    It runs when the graph is compiled: everything that it computes must come from its arguments.
    """
    if isinstance(fn, list | tuple):
        return [allow_in_graph(f) for f in fn]
    _need_callable("allow_in_graph", fn)
    set_mark(fn, Mark.ALLOWED)
    return fn


def assume_constant_result(fn: Any) -> Any:
    """Call `fn` while capturing and take its result as a constant. Nothing checks that it is."""
    inner = fn.__func__ if isinstance(fn, classmethod | staticmethod) else fn
    _need_callable("assume_constant_result", inner)
    set_mark(inner, Mark.CONSTANT)
    return fn


def substitute_in_graph(original_fn: Any, *, can_constant_fold_through: bool = False,
                        skip_signature_check: bool = False) -> Callable[[Any], Any]:  # fmt: skip
    """Decorator: capture the decorated Python function where `original_fn` is called.

    Both must do the same. What it returns calls `original_fn`. can_constant_fold_through: accepted;
    what is constant is always computed while capturing.
    Errors: TypeError if the parameters of the two differ.
    """
    _need_callable("substitute_in_graph", original_fn)

    def decorate(substitute: Any) -> Any:
        if not isinstance(substitute, types.FunctionType):
            raise UsageTypeError("W401", "a substitute is a Python function, not "
                                         f"{type(substitute).__name__}")  # fmt: skip
        if not skip_signature_check:
            _need_same_parameters(original_fn, substitute)

        @functools.wraps(substitute)
        def call(*args: Any, **kwargs: Any) -> Any:
            return original_fn(*args, **kwargs)

        for known in (original_fn, call):
            set_substitute(known, substitute)
        return call

    return decorate


def _parameters(fn: Any) -> tuple[object, ...] | None:
    """What callers may give; None if `fn` does not say, or takes anything."""
    try:
        found = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if {p.kind for p in found} == set(variable):
        return None
    only = inspect.Parameter.POSITIONAL_ONLY
    return tuple((p.kind, "" if p.kind in (*variable, only) else p.name, p.default) for p in found)


def _need_same_parameters(original: Any, substitute: types.FunctionType) -> None:
    one, other = _parameters(original), _parameters(substitute)
    if one is not None and other is not None and one != other:
        raise UsageTypeError("W401", f"{original} and {substitute.__qualname__} take other "
                                     "arguments; see skip_signature_check")  # fmt: skip


def nested_compile_region(fn: Any = None, options: Any = None, max_reuse_entries: int = 8,
                          reuse_hash_fn: Any = None) -> Any:  # fmt: skip
    """Mark a function that a model calls many times. Accepted as it is: equal kernels are compiled
    once wherever they come from."""
    if fn is None:
        return nested_compile_region
    _need_callable("nested_compile_region", fn)
    return fn


class set_stance:
    """set_stance(name): set it now, `with set_stance(name):` inside the block, or decorate.

    stance: "default"; "force_eager"; "eager_on_recompile": what is not compiled yet runs eagerly;
        "fail_on_recompile": it raises RecompileError; "eager_then_compile": compiled at the second
        call.
    skip_guard_eval_unsafe: accepted; guards are always checked.
    Errors: ValueError for an unknown stance, and for `force_backend`, which torchweld has not.
    """

    def __init__(self, stance: str = "default", *, skip_guard_eval_unsafe: bool = False,
                 force_backend: object = None) -> None:  # fmt: skip
        if stance not in STANCES:
            raise UsageError("W401", f"stance is {stance!r}, not one of {', '.join(STANCES)}")
        if force_backend is not None:
            raise UsageError("W401", "force_backend: pass backend= to torchweld.compile")
        self.stance = stance
        self.before = change_stance(stance)

    def __enter__(self) -> None:
        change_stance(self.stance)

    def __exit__(self, *exc: object) -> None:
        change_stance(self.before)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        change_stance(self.before)

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            before = change_stance(self.stance)
            try:
                return fn(*args, **kwargs)
            finally:
                change_stance(before)

        return call
