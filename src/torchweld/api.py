"""compile(), disable(), reset(), is_compiling(), explain(): the public functions."""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule

from torchweld.base import config, events
from torchweld.base.errors import (
    FullGraphError,
    Refusal,
    Unsupported,
    UsageError,
    UsageTypeError,
    WeldError,
)
from torchweld.frame.program import Dispatcher, Entry
from torchweld.ir.guard import Guard
from torchweld.module import compiled_module
from torchweld.pipeline import (
    STATISTICS,
    Backend,
    Options,
    compile_frame,
    prepare,
    reset_statistics,
    weld_backend,
)

MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "lite")
OPTION_TYPES: dict[str, type] = {"recompile_limit": int}

_dispatchers: weakref.WeakSet[Dispatcher] = weakref.WeakSet()
_compiling = threading.local()


def compile(model: Any = None, *, fullgraph: bool = False, dynamic: bool | None = None,
            backend: str | Backend = "torchweld", mode: str | None = None,
            options: dict[str, Any] | None = None, disable: bool = False) -> Any:  # fmt: skip
    """Compile a function, method or nn.Module; also a decorator, with and without arguments.

    fullgraph: raise FullGraphError instead of running eagerly what cannot be captured.
    dynamic: accepted; every shape is compiled for itself for now.
    backend: "torchweld", "eager", a backend that torch.compile knows, or a callable
        (GraphModule, example_inputs) -> callable.
    mode: as in torch.compile; modes differ on CUDA only.
    options: {"recompile_limit": n}: entries per function before it runs eagerly (8).
    disable: give the model back as it is.
    Errors: TypeError or ValueError that names the argument.
    """
    chosen = _options(fullgraph, dynamic, backend, mode, options, disable)
    if model is None:
        return lambda fn: _compile(fn, chosen, disable)
    return _compile(model, chosen, disable)


def _options(fullgraph: Any, dynamic: Any, backend: Any, mode: Any, options: Any,
             disable: Any) -> Options:  # fmt: skip
    for name, value in (("fullgraph", fullgraph), ("disable", disable)):
        if not isinstance(value, bool):
            raise UsageTypeError("W401", f"{name} must be a bool, not {type(value).__name__}")
    if dynamic is not None and not isinstance(dynamic, bool):
        raise UsageTypeError("W401", f"dynamic must be None or a bool, not {type(dynamic).__name__}")
    if mode not in MODES:
        raise UsageError("W401", f"mode is {mode!r}, not one of {', '.join(map(repr, MODES))}")
    if options is not None and not isinstance(options, dict):
        raise UsageTypeError("W401", f"options must be a dict, not {type(options).__name__}")
    for name, value in (options or {}).items():
        if name not in OPTION_TYPES:
            raise UsageError("W401", f"options has the unknown key {name!r}; known: "
                                     f"{', '.join(OPTION_TYPES)}")  # fmt: skip
        if not isinstance(value, OPTION_TYPES[name]):
            raise UsageTypeError("W401", f"options[{name!r}] must be {OPTION_TYPES[name].__name__}")
    limit = (options or {}).get("recompile_limit", config.current().recompile_limit)
    return Options(_backend(backend), fullgraph, dynamic, limit)


def _backend(backend: Any) -> Backend:
    if backend in ("torchweld", "inductor"):
        return weld_backend
    if backend == "eager":
        return lambda gm, inputs: gm.forward
    if isinstance(backend, str):
        from torchweld.workbench.adapter import resolve_backend

        return resolve_backend(backend)
    if not callable(backend):
        raise UsageTypeError("W401", f"backend must be a name or a callable, not {backend!r}")
    return _checked(backend)


def _checked(backend: Backend) -> Backend:
    @functools.wraps(backend, updated=())
    def call(gm: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        made = backend(gm, inputs)
        if not callable(made):
            raise UsageTypeError("W401", f"backend returned {type(made).__name__}, not a callable")
        return made

    return call


def _compile(model: Any, options: Options, disabled: bool) -> Any:
    if isinstance(model, torch.nn.Module):
        return model if disabled else compiled_module(model, lambda fn: dispatcher(fn, options))
    if not callable(model):
        raise UsageTypeError("W401", f"model must be callable, not {type(model).__name__}")
    if disabled or config.current().mode == "off":
        return model
    if isinstance(model, Dispatcher):
        return model
    if isinstance(model, types.MethodType) and isinstance(model.__func__, types.FunctionType):
        return dispatcher(model.__func__, options).__get__(model.__self__)
    if isinstance(model, types.FunctionType):
        return dispatcher(model, options)
    return dispatcher(_function_of(model), options)


def _function_of(model: Callable[..., Any]) -> types.FunctionType:
    """A Python function that calls a callable which is not one."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        if isinstance(getattr(model, name, None), str):
            setattr(call, name, getattr(model, name))
    call.__wrapped__ = model  # type: ignore[attr-defined]
    assert isinstance(call, types.FunctionType)
    return call


def dispatcher(fn: types.FunctionType, options: Options) -> Dispatcher:
    """The compiled form of one Python function."""
    prepare()
    made = Dispatcher(fn, functools.partial(_miss, options=options))
    functools.update_wrapper(made, fn)
    _dispatchers.add(made)
    return made


def _miss(made: Dispatcher, args: tuple[object, ...], *, options: Options) -> Entry | None:
    """Called by the dispatcher when no entry fits. None: this call runs eagerly."""
    if config.current().mode == "off" or getattr(_compiling, "active", False):
        return None
    _compiling.active = True
    try:
        return compile_frame(made, args, options)
    except Unsupported as error:
        if options.fullgraph:
            raise FullGraphError("W403", str(error), at=error.at) from None
        if config.current().mode == "strict" and error.code not in ("W113", "W111"):
            raise
        return None
    except WeldError:
        raise
    except Exception as error:
        if config.current().mode == "strict" or options.backend is not weld_backend:
            raise
        STATISTICS.internal_errors += 1
        why = Refusal("W901", f"{type(error).__name__}: {error}")
        events.emit("graph_breaks", "internal error", why.text(), code=why.code, why=why.why)
        return None
    finally:
        _compiling.active = False


def is_compiling() -> bool:
    """Whether a capture is under way in this thread."""
    return bool(getattr(_compiling, "active", False))


def disable(fn: Any = None, *, reason: str | None = None) -> Any:
    """Mark a function so that it is never captured; also a decorator with arguments."""
    if fn is None:
        return functools.partial(disable, reason=reason)
    if isinstance(fn, torch.nn.Module):
        return disable(fn.__call__, reason=reason)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    call._torchweld_disable = True  # type: ignore[attr-defined]
    return call


def reset() -> None:
    """Forget everything compiled so far, in all functions, and the counters."""
    for made in list(_dispatchers):
        made.clear()
    reset_statistics()
    events.clear()


def statistics() -> dict[str, int]:
    """Counters since the last reset: captures, graphs, breaks, kernels per call, ..."""
    return STATISTICS.counts()


@dataclass(slots=True)
class Explanation:
    """What capturing one call found."""

    graphs: list[GraphModule] = field(default_factory=list)
    breaks: list[Refusal] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"graphs: {len(self.graphs)}   breaks: {len(self.breaks)}   "
                 f"guards: {len(self.guards)}"]  # fmt: skip
        for i, gm in enumerate(self.graphs):
            calls = [n for n in gm.graph.nodes if n.op.startswith("call")]
            lines.append(f"graph {i}: {len(calls)} operations")
        lines += [why.text() for why in self.breaks]
        lines += ["guards:", *("  " + g.text() for g in self.guards)] if self.guards else []
        return "\n".join(lines)


def explain(fn: Any) -> Callable[..., Explanation]:
    """explain(fn)(*args): run `fn` once and tell what was captured, what broke, what is guarded."""

    def run(*args: Any, **kwargs: Any) -> Explanation:
        out = Explanation()

        def backend(gm: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            out.graphs.append(gm)
            return gm.forward

        before = len(STATISTICS.refusals)
        made = compile(fn, backend=backend)
        made(*args, **kwargs)
        out.breaks = STATISTICS.refusals[before:]
        target = type(made).__call__ if isinstance(made, torch.nn.Module) else made
        inner = getattr(target, "__func__", target)
        for entry in inner.entries:
            out.guards += entry.info.guards
        return out

    return run
