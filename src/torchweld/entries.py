"""Entries: a region's compiled graph, with guards and residual program around it.

An entry that its own effects end (`Region.passing`) is not worth a compilation before it is used
for the second time: until then its graph runs as it is.
"""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from torchweld.base import config, events
from torchweld.base.collection import collection_paused
from torchweld.base.errors import (
    InternalError,
    PromiseError,
    Refusal,
    StateChanged,
    UsageTypeError,
)
from torchweld.capture.guard_build import GuardBuilder, load
from torchweld.capture.modes import restoring
from torchweld.capture.overlap import safe_from_overlap
from torchweld.capture.residual import CALL, EAGER
from torchweld.capture.session import Compiling, is_compiling
from torchweld.capture.size_guards import size_guards
from torchweld.capture.symbolic import marked_dims
from torchweld.frame.program import Entry
from torchweld.graph_facts import examples, mark_owned
from torchweld.ir.expr import as_expr
from torchweld.ir.graph import BY_DATA, SETTINGS
from torchweld.ir.guard import Guard
from torchweld.ir.region import Region
from torchweld.pipeline import (
    OWN_BACKENDS,
    STATISTICS,
    Backend,
    put_off,
    wanted,
    weld_backend,
)
from torchweld.rests import Miss, names_of
from torchweld.runtime.overlap import overlap_check
from torchweld.sites import Made, Site, again, eager_call, locked

# held while something is compiled
LOCK = threading.RLock()
# after this many captures in vain it is no other thread's doing
_CHANGES = 10
# sizes that are compiled for themselves
_SPECIAL = (as_expr(0), as_expr(1))
# a graph with fewer operators that begins or ends at a break runs as it is
_FEW = 3


def build_entry(region: Region, fn: types.FunctionType, args: tuple[object, ...], site: Site,
                miss: Miss, like: Made | None = None) -> Entry:  # fmt: skip
    """Compile a region's graph and put guards and residual program around it.

    miss: what the dispatchers of its rests ask. like: of an entry for the same region, whose graph
    is compiled already. Errors: StateChanged if a guard fails already.
    """
    finish_inputs = region.finish.inputs if region.finish else ()
    wanted_sources = (*region.inputs, *finish_inputs)
    guards = guards_of(region)
    builder = GuardBuilder(guards, wanted_sources, len(args))
    program = builder.build()
    failing = program.explain(args)
    if failing >= 0:
        site.changes += 1
        why = f"a guard fails on what it was made of: {program.reasons[failing]}"
        raise StateChanged("W118", why) if site.changes < _CHANGES else InternalError(why)
    values = program.registers(args)
    call: Any
    if like is not None:
        call = _call_again(region, like)
    else:
        region.graph.meta[SETTINGS] = site.options.graph
        mark_owned(region, [values[builder.register(s)] for s in region.inputs])
        call = _first_call(region, [values[builder.register(s)] for s in region.inputs], site)
    check_promises(region, args, site)
    if region.env is not None and (decided := guards_of(region)) != guards:
        guards = decided  # with what the later stages have decided
        builder = GuardBuilder(guards, wanted_sources, len(args))
        program = builder.build()
    if events.wants("guards"):
        events.emit("guards", region.name, "\n" + "\n".join(g.text() for g in guards))
    eager = eager_call(fn, site)
    scope = {CALL: call, EAGER: again if region.locks else eager,
             **names_of(region, site, miss)}  # fmt: skip
    finish = make_finish(region, scope) if region.finish else None
    if region.locks and finish is not None:
        registers = [builder.register(s) for s in finish_inputs]
        run = locked(region.locks, program, registers, finish, eager)
        entry = Entry(program, [], None, run, registers[len(registers) - len(args) :])
    elif region.finish is not None and CALL in region.finish.consts:
        entry = Entry(program, [], None, finish, [builder.register(s) for s in finish_inputs])
    else:
        entry = Entry(
            program, [builder.register(s) for s in region.inputs], call, finish,
            [builder.register(s) for s in finish_inputs],
            region.result if region.result is not None else -1,
        )  # fmt: skip
    owns = like is None and site.options.backend in OWN_BACKENDS and not wanted()
    entry.info = Made(guards, region, STATISTICS.take_newest(), owns, program, call, like)
    if isinstance(call, Waiting):
        call.entry = weakref.ref(entry)
    elif like is None and site.kin is not None:
        site.kin.add(site.place, entry.info)
    return entry


def _first_call(region: Region, inputs: list[Any], site: Site) -> Callable[..., Any]:
    """What runs the graph; a backend gets the real inputs as examples."""
    if not _is_worth(region, site):
        return restoring(region.graph, region.graph.forward)
    STATISTICS.graphs += 1
    ends = _ends(region, site)
    if ends is not None:
        return Waiting(region, ends)
    return _backend_call(region, site.options.backend, examples(region.graph, inputs))


def _call_again(region: Region, like: Made) -> Callable[..., Any]:
    """What runs a graph that is compiled already: with buffers and CUDA graphs of its own, since
    parameters of others lie elsewhere."""
    STATISTICS.shared += 1
    if like.compiled is None or like.compiled.again is None:
        assert like.call is not None
        return like.call
    compiled = like.compiled.again()
    STATISTICS.add(compiled)
    return safe_from_overlap(region.graph, compiled.call, overlap_check())


def _backend_call(region: Region, backend: Backend, given: list[Any]) -> Callable[..., Any]:
    call = backend(region.graph, given)
    if not callable(call):
        raise UsageTypeError("W401", f"backend returned {type(call).__name__}, not a callable")
    return safe_from_overlap(region.graph, call, overlap_check())


def _is_worth(region: Region, site: Site) -> bool:
    """Whether a graph is worth a compilation: most breaks are a comparison of one number, and what
    leads to it is not. A backend of the user's gets every graph."""
    users = region.operators > 0 and site.options.backend is not weld_backend
    if users or region.operators >= _FEW or (region.resume is None and site.owner is None):
        return True
    if region.operators:
        why = Refusal("W119", f"{region.name} has {region.operators} operators here")
        events.emit("graph", "not compiled", why.text(), code=why.code, why=why.why)
    return False


def make_finish(region: Region, names: dict[str, Any]) -> Any:
    """The residual program as a function; `names` are what the pipeline gives to it."""
    assert region.finish is not None
    known = region.finish.consts
    scope: dict[str, Any] = {**known, **{k: v for k, v in names.items() if k in known}}
    exec(compile(region.finish.source, f"<torchweld {region.name}>", "exec"), scope)
    return scope.pop("finish")  # which refers to the scope


# ---------------------------------------------------------------- sizes that vary
def guards_of(region: Region) -> tuple[Guard, ...]:
    """What must hold for a region, with the relations between sizes so far."""
    if region.env is None:
        return region.guards
    return (*region.guards, *size_guards(region.env, region.readings))


def check_promises(region: Region, args: tuple[object, ...], site: Site) -> None:
    """Errors: PromiseError for what was promised to vary, where the code needs one size."""
    promised, env = site.promised, region.env
    for reading in region.readings:
        fact = None if env is None else env.fixed_by(reading.symbol)
        if fact is None or reading.kind == "stride" or fact.right in _SPECIAL:
            continue
        x, name = load(reading.source, args), reading.name(reading.source.text())
        said = isinstance(x, torch.Tensor) and reading.dim in marked_dims(x)
        if said or (promised is not None and promised.is_strict(x, reading)):
            how = "marked with mark_dynamic" if said else "said to vary in dynamic_shapes"
            raise PromiseError("W405", f"{name} was {how}, but only {fact.right.text()} fits",
                               at=fact.at)  # fmt: skip
    for guard in region.guards:
        if promised is not None and guard.source is not None and promised.is_fixed(guard):
            raise PromiseError("W405", f"{guard.source.text()} was said to vary in dynamic_shapes, "
                               f"but only {guard.expected!r} fits", at=guard.why)  # fmt: skip


# ---------------------------------------------------------------- entries that end by themselves
def _ends(region: Region, site: Site) -> Guard | None:
    """The guard that the entry's own effects end, if its compilation can wait for that reason.

    It cannot where later stages add guards, or where more than the graph is around its call.
    """
    waits = (site.options.backend is weld_backend and region.env is None and not region.locks
             and "passing" not in config.current().skip)  # fmt: skip
    if not waits or (region.finish is not None and any(
            x is torch._C._InferenceMode for x in region.finish.consts.values())):  # fmt: skip
        return None
    return None if any(BY_DATA in n.meta for n in region.graph.graph.nodes) else region.passing


class Waiting:
    """What runs a graph operator by operator at its first call, and has it compiled at the second.

    entry: whose graph it is, as soon as there is one.
    """

    __slots__ = ("_plain", "_region", "_used", "entry")

    def __init__(self, region: Region, why: Guard) -> None:
        self._region, self._used = region, False
        self._plain = restoring(region.graph, region.graph.forward)
        self.entry: Callable[[], Entry | None] = lambda: None
        name = why.source.text() if why.source is not None else why.kind
        put_off(region.graph, Refusal(
            "W121", f"{region.name} changes `{name}`, by which this graph is chosen", why.why))

    def __call__(self, *args: Any) -> Any:
        if not self._used:
            self._used = True
            return self._plain(*args)
        entry = self.entry()
        if entry is None or is_compiling() or not LOCK.acquire(blocking=False):
            return self._plain(*args)
        try:
            with Compiling(), collection_paused():
                call = _backend_call(self._region, weld_backend, [])
            entry.info.compiled = STATISTICS.take_newest()
            _replace(entry, call)
        finally:
            LOCK.release()
        return call(*args)


def _replace(entry: Entry, call: Callable[..., Any]) -> None:
    """Have an entry call this, wherever it calls the graph."""
    finish: Any = entry.finish
    if entry.call is None:
        finish.__globals__[CALL] = call
    else:
        entry.call = call
