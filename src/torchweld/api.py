"""compile(), reset(), statistics(): the public functions that compiling itself needs."""

from __future__ import annotations

import contextlib
import copyreg
import functools
import importlib
import inspect
import sys
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchweld.base import config, events
from torchweld.base.errors import UsageError, UsageTypeError
from torchweld.capture.marks import Mark, follow, followers, mark_of
from torchweld.capture.originals import is_compiled_class
from torchweld.capture.session import is_compiling
from torchweld.frame import hook
from torchweld.frame.points import is_suspendable
from torchweld.frame.program import Dispatcher
from torchweld.frames import forget, miss, prepare
from torchweld.ir.graph import GraphSettings
from torchweld.module import Alike, own_call, uncompiled
from torchweld.pipeline import (
    STATISTICS,
    Backend,
    eager_backend,
    reset_statistics,
    weld_backend,
)
from torchweld.runtime import cudagraph
from torchweld.sites import Kin, Options, Site

__all__ = ["compile", "is_compiling", "memory_report", "reset", "statistics"]

MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "lite")
OPTION_TYPES: dict[str, type] = {"recompile_limit": int, "freeze": bool, "cudagraphs": bool,
                                 "memory_budget": float, "fixed_sizes": int}  # fmt: skip
# what a mode says about CUDA graphs: True wherever possible, False never, None where they pay
CUDA_GRAPHS = {"reduce-overhead": True, "max-autotune": True, "max-autotune-no-cudagraphs": False}
# options of torch's own compiler that say the same as one of ours
SAME_AS = {"triton.cudagraphs": "cudagraphs", "freezing": "freeze"}
# those that change how fast or how verbose its code is, and no result
NO_EFFECT = frozenset((
    "coordinate_descent_tuning", "coordinate_descent_check_all_directions", "epilogue_fusion",
    "fallback_random", "fx_graph_cache", "guard_filter_fn", "max_autotune", "max_autotune_gemm",
    "max_autotune_gemm_backends", "max_autotune_pointwise", "shape_padding", "size_asserts",
    "split_reductions",
))  # fmt: skip
# and beginnings of such names
NO_EFFECT_GROUPS = ("cpp.", "cuda.", "trace.", "triton.")

_sites: weakref.WeakSet[Site] = weakref.WeakSet()
# what was compiled of a module, which it does not know; of a function: in its __dict__
_modules = weakref.WeakKeyDictionary[
    torch.nn.Module, dict[object, tuple[Dispatcher, Callable[[], torch.nn.Module | None]]]]()
_methods = weakref.WeakKeyDictionary[
    torch.nn.Module, weakref.WeakKeyDictionary[types.FunctionType, dict[object, Any]]]()
# what they take over from each other
_kins = weakref.WeakKeyDictionary[
    types.FunctionType, weakref.WeakValueDictionary[object, Kin]]()
_alikes = weakref.WeakValueDictionary[object, Alike]()
# the same of functions that are made and compiled anew
_nested = weakref.WeakValueDictionary[object, Kin]()
_KEPT = "_torchweld_compiled"
_KEEP = 8


@dataclass(slots=True)
class _Kept:
    """What a function keeps of its compiled form, which holds the function: no cycle."""

    fn: Callable[[], types.FunctionType | None]
    code: types.CodeType
    site: Site
    made: Callable[[], Dispatcher | None] = lambda: None


def compile(model: Any = None, *, fullgraph: bool = False, dynamic: bool | None = None,
            backend: str | Backend | None = "torchweld", mode: str | None = None,
            options: dict[str, Any] | None = None, name: str | None = None, disable: bool = False,
            recompile_limit: int | None = None,
            isolate_recompiles: bool = False, dynamic_shapes: Any = None,
            shapes_spec: Any = None) -> Any:  # fmt: skip
    """Compile a function, method or nn.Module; also a decorator, with and without arguments.

    fullgraph: raise FullGraphError instead of running eagerly what cannot be captured.
    dynamic: None: sizes that differ between calls become symbols; True: all are symbols from the
        first call on; False: none ever is (docs/dynamic.md).
    backend: "torchweld", "eager", a backend that torch.compile knows, or a callable
        (GraphModule, example_inputs) -> callable. A callable that has parameters of the names
        `mode` and `options` gets what is given here.
    mode: as in torch.compile. CUDA graphs are used where they pay; "reduce-overhead" uses them
        wherever they are possible and says why they are not, "max-autotune-no-cudagraphs" never.
    options: {"recompile_limit": n}: entries per function before it runs eagerly (8);
        {"freeze": True}: you promise that parameters and buffers do not change in place any more;
        what depends on them alone is computed once and kept (docs/freeze.md);
        {"cudagraphs": bool}: CUDA graphs wherever possible, or never;
        {"memory_budget": x}: from 1, save for the backward what is fastest, to 0, compute
        everything again that can be (docs/training.md);
        {"fixed_sizes": n}: choices of sizes that are compiled for themselves in the background
        where that is faster, of a graph that serves a range (4; docs/dynamic.md).
        What torch's own compiler is asked for that changes no result is accepted (docs/surface.md).
    name: accepted; what is compiled is called after the function.
    disable: give the model back as it is.
    recompile_limit: the same as in `options`.
    isolate_recompiles: share no entries with other calls of compile() for the same function.
    dynamic_shapes: which sizes vary, by parameter: {"x": {0: Dim("rows")}}; the forms of
        torch.export and torch's ShapesSpec too (docs/dynamic.md). shapes_spec: the same.
    Errors: TypeError or ValueError that names the argument.
    """
    chosen = options_of(fullgraph, dynamic, backend, mode, options, disable, recompile_limit,
                        isolate_recompiles)  # fmt: skip
    given = [s for s in (dynamic_shapes, shapes_spec) if s is not None]
    if dynamic is not None and given:
        raise UsageError("W401", "dynamic and dynamic_shapes say the same in two ways")
    if model is None:
        return lambda fn: _compile(fn, _with_shapes(fn, chosen, given), disable)
    return _compile(model, _with_shapes(model, chosen, given), disable)


def _with_shapes(model: Any, options: Options, given: list[Any]) -> Options:
    """The options with what is said of sizes, here or by torch's decorator `dynamic_spec`."""
    fn = getattr(model, "forward", model) if isinstance(model, torch.nn.Module) else model
    attached = getattr(fn, "_dynamic_spec", None)
    if attached is not None:
        given = [*given, attached]
    if not given:
        return options
    if len(given) > 1:
        raise UsageError("W401", "the sizes that vary are given twice: as dynamic_shapes, as "
                                 "shapes_spec or by dynamic_spec")  # fmt: skip
    specs = importlib.import_module("torchweld.shape_specs")
    shapes = specs.read(given[0])
    shapes.check(model)
    return replace(options, shapes=shapes)


def options_of(fullgraph: Any, dynamic: Any, backend: Any, mode: Any, options: Any, disable: Any,
               limit: Any = None, apart: Any = False) -> Options:  # fmt: skip
    """How the stages are to compile. Errors: UsageError, UsageTypeError that name the argument."""
    _check_kinds(fullgraph, dynamic, options, disable, limit, apart)
    given, cfg = dict(options or {}), config.current()
    made, taken = _backend(backend, mode, given)
    if mode not in MODES and "mode" not in taken:
        raise UsageError("W401", f"mode is {mode!r}, not one of {', '.join(map(repr, MODES))}")
    for name in given:
        if name not in OPTION_TYPES and "options" not in taken:
            raise UsageError("W401", f"options has the unknown key {name!r}; known: "
                                     f"{', '.join(OPTION_TYPES)}")  # fmt: skip
    for name, value in given.items():
        kind = OPTION_TYPES.get(name, object)
        if not isinstance(value, (int, float) if kind is float else kind):
            raise UsageTypeError("W401", f"options[{name!r}] must be {kind.__name__}")
    most = given.get("recompile_limit", cfg.recompile_limit) if limit is None else limit
    budget = given.get("memory_budget", cfg.memory_budget)
    if not 0 <= budget <= 1:
        raise UsageError("W401", f"options['memory_budget'] is {budget}, not from 0 to 1")
    graph = GraphSettings(given.get("freeze", cfg.freeze),
                          given.get("cudagraphs", CUDA_GRAPHS.get(mode)), budget,
                          given.get("fixed_sizes"))  # fmt: skip
    return Options(made, fullgraph, dynamic, most, graph, object() if apart else None)


def _check_kinds(fullgraph: Any, dynamic: Any, options: Any, disable: Any, limit: Any,
                 apart: Any) -> None:  # fmt: skip
    flags = {"fullgraph": fullgraph, "disable": disable, "isolate_recompiles": apart}
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise UsageTypeError("W401", f"{name} must be a bool, not {type(value).__name__}")
    if dynamic is not None and not isinstance(dynamic, bool):
        raise UsageTypeError("W401", "dynamic must be None or a bool, not "
                                     f"{type(dynamic).__name__}")  # fmt: skip
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise UsageError("W401", f"recompile_limit is {limit!r}, not a number from 1 on")
    if options is not None and not isinstance(options, dict):
        raise UsageTypeError("W401", f"options must be a dict, not {type(options).__name__}")


def _backend(backend: Any, mode: Any, options: dict[str, Any]) -> tuple[Backend, set[str]]:
    """The backend, and which of mode and options it takes itself; what is not ours and changes
    nothing is taken out of the options."""
    if backend in ("torchweld", "inductor", "eager", None):
        for name in list(options):
            value = options.pop(name)
            if name in SAME_AS:
                options.setdefault(SAME_AS[name], value)
            elif name not in NO_EFFECT and not name.startswith(NO_EFFECT_GROUPS):
                options[name] = value
        return eager_backend if backend == "eager" else weld_backend, set()
    if isinstance(backend, str):
        from torchweld.workbench.adapter import resolve_backend

        found: Backend = resolve_backend(backend)
    elif callable(backend):
        found = backend
    else:
        raise UsageTypeError("W401", f"backend must be a name or a callable, not {backend!r}")
    wanted = {"mode": mode, "options": dict(options)}
    taken = {name for name in _parameters(found) if wanted.get(name)}
    if not taken:
        return found, taken
    return functools.partial(found, **{name: wanted[name] for name in taken}), taken


def _parameters(fn: Callable[..., Any]) -> set[str]:
    """The names that a callable can be given arguments by."""
    try:
        found = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # written in C
        return set()
    if any(p.kind is p.VAR_KEYWORD for p in found.values()):
        return {"mode", "options", *found}
    return set(found)


def _compile(model: Any, options: Options, disabled: bool) -> Any:
    if isinstance(model, classmethod | staticmethod):
        return type(model)(_compile(model.__func__, options, disabled))
    if not callable(model):
        raise UsageTypeError("W401", f"model must be callable, not {type(model).__name__}")
    if disabled or config.current().mode == "off" or isinstance(model, Dispatcher):
        return model
    mark = mark_of(model.__func__ if isinstance(model, types.MethodType) else model)
    if mark is not None and mark[0] is Mark.DISABLED:
        return model
    if isinstance(model, torch.nn.Module):
        return model if isinstance(model, torch.jit.ScriptModule) else _module(model, options)
    if isinstance(model, types.MethodType) and isinstance(model.__func__, types.FunctionType):
        return _method(model.__func__, model.__self__, options)
    if isinstance(model, types.MethodType) and isinstance(model.__func__, Dispatcher):
        return model
    if isinstance(model, types.FunctionType):
        return _shared(model, options, model.__dict__.setdefault(_KEPT, {}))
    return dispatcher(_function_of(model), options)


def _key(options: Options) -> tuple[object, ...]:
    """Equal for options that compile alike; what it names lives as long as the options do."""
    return (id(options.backend), options.fullgraph, options.dynamic, options.recompile_limit,
            options.graph, options.apart, id(options.shapes))  # fmt: skip


def _shared(fn: types.FunctionType, options: Options, kept: dict[object, _Kept],
            kin: Kin | None = None) -> Dispatcher:  # fmt: skip
    """The one compiled form of a function for these options, as long as somebody holds it; what was
    compiled is `kept`."""
    if any(k.fn() is not fn for k in kept.values()):  # functools.wraps copies __dict__
        kept = fn.__dict__[_KEPT] = {}
    found = kept.get(_key(options))
    if found is None:
        site = _site(fn, options) if kin is None else Site(options, kin=kin, place=fn.__code__)
        found = kept[_key(options)] = _Kept(weakref.ref(fn), fn.__code__, site)
        if len(kept) > _KEEP:
            del kept[next(iter(kept))]
    made = found.made()
    if made is None:
        made = dispatcher(fn, options, found.site)
        found.made = weakref.ref(made)
        for entry in found.site.entries if found.code is fn.__code__ else ():
            made.add(entry)
        if found.code is not fn.__code__:
            found.code = found.site.place = fn.__code__
    return made


def _site(fn: types.FunctionType, options: Options) -> Site:
    """A site for a function. Those that are made and compiled anew, as in
    `for k in scales: compile(lambda x: x * k)`, take over from each other what fits, from the
    second one on: what is compiled for the first one knows its closure."""
    code = fn.__code__
    if "<locals>" not in fn.__qualname__ or options.graph.freeze or is_suspendable(code):
        return Site(options, place=code)
    key = (id(code), id(fn.__globals__), _key(options))  # which live as long as the site
    kin = _nested.get(key)
    if kin is None:
        kin = _nested[key] = Kin(_KEEP)
        return Site(options, place=code, family=kin)
    return Site(options, kin=kin, place=code, given=True)


def _method(fn: types.FunctionType, owner: object, options: Options) -> Any:
    """A compiled method of an object. What is compiled for a module is its own, as where modules
    are compiled; for other objects it is the function's."""
    of_owner = None
    if isinstance(owner, torch.nn.Module) and not options.graph.freeze:
        # a module class may make its instances unhashable
        with contextlib.suppress(TypeError):
            of_owner = _methods.setdefault(owner, weakref.WeakKeyDictionary())
    if of_owner is None:
        return _shared(fn, options, fn.__dict__.setdefault(_KEPT, {})).__get__(owner)
    alike = _kins.setdefault(fn, weakref.WeakValueDictionary())
    kin = alike.setdefault(_key(options), Kin())
    return _shared(fn, options, of_owner.setdefault(fn, {}), kin).__get__(owner)


def _module(module: torch.nn.Module, options: Options) -> torch.nn.Module:
    """The one compiled form of a module for these options, as long as somebody holds it; what was
    compiled lives as long as the module."""
    if is_compiled_class(type(module)):
        return module
    try:
        kept = _modules.setdefault(module, {})
    except TypeError:  # a module class may make its instances unhashable
        return _alike(options).compiled(module)
    call, made_of = kept.get(_key(options), (None, _nothing))
    made = made_of()
    if made is None:
        made = _alike(options).compiled(module, call)
        kept[_key(options)] = (own_call(made), weakref.ref(made))
    return made


def _nothing() -> None:
    return None


def _alike(options: Options) -> Alike:
    """What modules share that are compiled with such options."""
    found = _alikes.get(_key(options))
    if found is None:
        # frozen code has the values of parameters in it
        found = _alikes[_key(options)] = Alike(lambda fn, kin: dispatcher(
            fn, options, Site(options, kin=None if options.graph.freeze else kin)))  # fmt: skip
    return found


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


def dispatcher(fn: types.FunctionType, options: Options, site: Site | None = None) -> Dispatcher:
    """The compiled form of one Python function."""
    prepare()
    if config.current().explain:
        importlib.import_module("torchweld.explanation").explain_at_exit()
    site = site or Site(options)
    made = Dispatcher(fn, functools.partial(miss, site=site), gives=site.given)
    functools.update_wrapper(made, fn)
    made.__dict__.pop(_KEPT, None)
    follow(made)
    _sites.add(site)
    return made


def _reduced(made: Dispatcher) -> Any:
    """Pickles as its name, where that is its own, else as what it was made of, as modules do."""
    found: Any = sys.modules.get(made.fn.__module__)
    for name in made.fn.__qualname__.split("."):
        found = getattr(found, name, None)
    if found is made:
        return made.fn.__qualname__
    return _itself, (made.fn.__wrapped__ if made.fn.__code__ is _CALL else made.fn,)  # type: ignore[attr-defined]


def _itself(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn


_CALL = _function_of(len).__code__  # of what calls a callable that is no function
copyreg.pickle(Dispatcher, _reduced)


def reset() -> None:
    """Forget everything compiled so far, in all functions, and the counters."""
    hook.detach_all()
    for made in followers():
        forget(made)
    for site in list(_sites):
        site.clear()
    reset_statistics()
    cudagraph.trim()
    events.clear()


def statistics() -> dict[str, int]:
    """Counters since the last reset: captures, graphs, breaks, kernels per call, ...; and what
    there is now: CUDA graphs, and sizes that have an Executable of their own.
    """
    return {**STATISTICS.counts(), **cudagraph.counts()}


def memory_report() -> cudagraph.MemoryReport:
    """What is held between calls: CUDA graphs and their pools, arenas, kept results. In bytes."""
    return cudagraph.memory_report()


def unshared(model: Any, options: Options) -> Any:
    """A compiled form that nothing is known of yet, and that nobody else gets."""
    if isinstance(model, torch.nn.Module):
        return Alike(lambda fn, kin: dispatcher(fn, options)).compiled(uncompiled(model))
    if isinstance(model, types.MethodType) and isinstance(model.__func__, types.FunctionType):
        return types.MethodType(dispatcher(model.__func__, options), model.__self__)
    fn = model if isinstance(model, types.FunctionType) else _function_of(model)
    return dispatcher(fn, options)
