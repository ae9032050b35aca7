"""What leads to a graph: dispatchers and the frame hook ask, entries answer.

`compile_frame` is a dispatcher's answer to arguments that no entry fits; `on_frame` is the frame
hook's, about what eager code calls.
"""

from __future__ import annotations

import _thread
import functools
import importlib
import logging
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.autograd.function import FunctionCtx

from torchweld.base import config, events
from torchweld.base.collection import collection_paused
from torchweld.base.errors import (
    FullGraphError,
    InternalError,
    PromiseError,
    RecompileError,
    Refusal,
    StateChanged,
    Unsupported,
    WeldError,
)
from torchweld.capture.class_writes import Written
from torchweld.capture.functions.whole import whole_codes
from torchweld.capture.guard_build import GuardBuilder
from torchweld.capture.interp import capture
from torchweld.capture.marks import Mark, current_stance, mark_of
from torchweld.capture.named_sources import listed
from torchweld.capture.open_numbers import asked_numbers
from torchweld.capture.originals import follow_originals
from torchweld.capture.session import Capture, Compiling, is_compiling
from torchweld.capture.state import Anew, Stuck
from torchweld.capture.wrap import is_empty_cell
from torchweld.data_sizes import CODES as BY_DATA
from torchweld.entries import LOCK, build_entry
from torchweld.frame import hook
from torchweld.frame.assemble import Unassemblable
from torchweld.frame.decode import decode
from torchweld.frame.hook import FrameView
from torchweld.frame.points import is_suspendable
from torchweld.frame.program import Dispatcher, Entry, torch_init
from torchweld.ir.guard import Guard
from torchweld.ir.region import Region
from torchweld.ir.source import Local
from torchweld.pipeline import (
    STATISTICS,
    Captured,
    Eager,
    Miss,
    Named,
    Recompiled,
    named,
    note,
    wanted,
)
from torchweld.rests import origin_of
from torchweld.sites import REGION, Made, Site, eager_call, fits

_LOG = logging.getLogger("torchweld")
# While one thread compiles, the others run eagerly what is not compiled yet; under fullgraph=True,
# which has no eager code, they wait this many seconds.
_PATIENCE = 60.0
# there was nothing to compile, which fullgraph does not mind
_HARMLESS = ("W113",)
# nothing can be compiled in front of these, or nothing behind them
_WHOLE = ("W113", "W115", "W116", "W122", "W123")
# how many places a broken frame is tried to be left at
_ATTEMPTS = 6
# after so many stretches without an operator in a row, the rest of a frame runs eagerly
_EMPTY = 6
_ready = False


def prepare() -> None:
    """Be the one that the frame hook asks, and teach the guard program where a tensor's metadata
    is; the latter once per process."""
    global _ready
    hook.install(on_frame, on_frame)
    if _ready:
        return
    _ready = True
    for code in whole_codes():
        hook.set_quiet(code)
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    empty = functools.partial(torch.empty, device="cpu")
    samples = [empty(2, 3), empty((), dtype=torch.int64), torch.nn.Parameter(empty(3)),
               empty(4, 6, dtype=torch.bfloat16)[::2, 1:]]  # fmt: skip
    with torch.inference_mode():
        samples.append(empty(2))
    torch_init(torch._C.TensorBase, str(library) if library.exists() else None, samples)


def miss(made: Dispatcher, args: tuple[object, ...], *, site: Site) -> Entry | None:
    """Called by a dispatcher when no entry fits. None: this call runs eagerly."""
    if config.current().mode == "off" or is_compiling():
        return None
    with Compiling():
        return compile_frame(made, args, site)


def compile_frame(dispatcher: Dispatcher, args: tuple[object, ...], site: Site) -> Entry | None:
    """An entry for these arguments, or None: then this call runs eagerly.

    What cannot be captured gets an entry too, which runs it eagerly. Errors: FullGraphError under
    fullgraph; what the backend raises.
    """
    if not LOCK.acquire(timeout=_PATIENCE if site.options.fullgraph else 0):
        return None
    try:
        follow_originals(args)
        for made in dispatcher.entries:
            if fits(made.program, args):  # made by another thread, or nothing that matters changed
                return made
        fn: Any = dispatcher.fn
        entry = _taken_over(fn, args, site)
        if entry is None:
            if _declines(site, named(fn), dispatcher.entries, args):
                return None
            if (site.options.shapes is not None or listed() is not None) and site.owner is None:
                importlib.import_module("torchweld.shapes").look_up(site, fn, args)
            entry = _entry_or_eager(fn, args, site, dispatcher.entries)
        dispatcher.add(entry)
        site.entries[:] = dispatcher.entries
        return entry
    except StateChanged as error:
        events.emit("capture", "in vain", error.why, code=error.code)
        return None
    finally:
        site.promised = None
        LOCK.release()


def _taken_over(fn: types.FunctionType, args: tuple[object, ...], site: Site) -> Entry | None:
    """An entry with what was compiled for another module of the same class, or another function of
    the same code, if that fits."""
    is_full = len(site.entries) >= site.options.recompile_limit
    if site.kin is None or is_full or current_stance() == "force_eager":
        return None
    if site.given:
        site.place = fn.__code__  # which may be assigned
    like = site.kin.fitting(site.place, args)
    if like is None or like.region is None:
        if site.given and not site.entries:
            _variation().learn(site, site.kin.made(site.place), args, sizes=False)
        return None
    entry = build_entry(like.region, fn, args, site, miss, like)
    _tell(entry, fn)
    return entry


def _variation() -> Any:
    """What learns from changes, which a first compilation needs not."""
    return importlib.import_module("torchweld.variation")


def _tell(entry: Entry, fn: types.FunctionType) -> None:
    """Note a graph for whoever listens."""
    if wanted():
        runs = entry.info.compiled.text() if entry.info.compiled is not None else ""
        note(Captured(named(fn), entry.info.region.graph, entry.info.guards, runs))


def why_missed(entries: Sequence[Entry], args: tuple[object, ...]) -> tuple[Miss, ...]:
    """Why these entries do not fit, in words; the words are loaded when they are first needed."""
    found: tuple[Miss, ...] = importlib.import_module("torchweld.misses").why_missed(entries, args)
    return found


def forget(dispatcher: Dispatcher) -> None:
    """Drop everything that was compiled of a function."""
    dispatcher.clear()
    assert isinstance(dispatcher.miss, functools.partial)
    dispatcher.miss.keywords["site"].clear()


def _declines(site: Site, of: Named, entries: Sequence[Entry],
              args: tuple[object, ...]) -> bool:  # fmt: skip
    """Whether the stance wants this call to run eagerly. Errors: RecompileError."""
    now = current_stance()
    if now == "default":
        return False
    if now == "fail_on_recompile":
        reasons = "; ".join(m.text() for m in why_missed(entries, args)) or "not compiled yet"
        raise RecompileError("W404", f"{of.name}, fail_on_recompile: {reasons}",
                             at=of.at)  # fmt: skip
    first, site.warm = not site.warm, True
    return first if now.endswith("eager_then_compile") else True


def _entry_or_eager(fn: types.FunctionType, args: tuple[object, ...], site: Site,
                    entries: Sequence[Entry]) -> Entry:  # fmt: skip
    if is_suspendable(fn.__code__):
        return _generator_entry(fn, args, site)
    options, strict = site.options, config.current().mode == "strict"
    if len(entries) >= options.recompile_limit:
        _give_up(named(fn), site, entries, args)
        return eager_entry(fn, args, site, (), hooked=False)
    if entries:
        _recompile(named(fn), site, entries, args)
    cap = Capture(site.varying(), copies=site.copies)
    try:
        with collection_paused():
            return _captured(cap, fn, args, site)
    except Round:
        entry = _stopped_before([cap.outside_stop], fn, args, site)
        if entry is not None:
            return entry
    except Unsupported as error:
        if isinstance(error, StateChanged) or (error.code == "W113" and site.code is not None):
            raise
        stops_here = (options.fullgraph or strict) and error.code not in _HARMLESS
        entry = None if stops_here else _broken(cap, error, fn, args, site)
        if error.code != "W113" or site.owner is None:
            _report(error.refusal(), named(fn), broken=entry is not None)
        if options.fullgraph and error.code not in _HARMLESS:
            raise FullGraphError("W403", str(error), at=error.at) from None
        if strict and error.code not in (*_HARMLESS, "W111"):
            raise
        if entry is not None:
            return entry
    except InternalError as error:
        if strict:
            raise
        report_internal(error)
    finally:
        cap.guard_until(cap.until)
        guards = tuple(cap.guards.values())
        cap.close()
    return eager_entry(fn, args, site, guards)


def _broken(cap: Capture, error: Unsupported, fn: types.FunctionType, args: tuple[object, ...],
            site: Site) -> Entry | None:  # fmt: skip
    """An entry for the frame up to where its capture failed; None if it has to run eagerly.

    The capture is made again and ends before the instruction that failed, or before one further
    out or earlier, until the state there can be handed over.
    """
    if error.code in _WHOLE or site.empty >= _EMPTY:
        return None
    if error.code == "W111" and not cap.builder.n_calls:
        return None  # there is nothing but the exception
    stops = [*cap.stops]
    if isinstance(error, Stuck):
        stops.insert(0, error.born)
    entry = _stopped_before(stops, fn, args, site, error.code in BY_DATA, cap.until)
    if entry is not None or not cap.sizes.data.found or not site.by_data:
        return entry
    site.by_data = False  # where the data makes a size may be a place that can be left
    again = Capture(site.varying(), copies=site.copies)
    try:
        return _captured(again, fn, args, site)
    except Unsupported as found:
        return _broken(again, found, fn, args, site)
    finally:
        again.close()


def _stopped_before(stops: list[int], fn: types.FunctionType, args: tuple[object, ...],
                    site: Site, data: bool = False, until: Any = ()) -> Entry | None:  # fmt: skip
    """An entry that ends before one of these instructions, or before those that they lead to."""
    tried = set[int]()
    while stops and len(tried) < _ATTEMPTS:
        stop = stops.pop(0)
        if stop < 1 or stop in tried:
            continue
        tried.add(stop)
        again = Capture(site.varying(), stop, site.copies, data)
        again.guard_until(until)
        try:
            return _captured(again, fn, args, site)
        except StateChanged:
            raise
        except Round:
            stops.insert(0, again.outside_stop)
        except Stuck as stuck:
            stops.insert(0, stuck.born)
        except Unsupported:
            continue
        finally:
            again.close()
    return None


def _captured(cap: Capture, fn: types.FunctionType, args: tuple[object, ...], site: Site) -> Entry:
    """Errors: Unsupported; InternalError for whatever goes wrong in the capture itself."""
    STATISTICS.captures += not cap.stop
    try:
        with events.timed("capture", function=fn.__qualname__):
            region = _region(cap, fn, args, site)
    except WeldError:
        raise
    except Exception as error:
        if config.current().mode == "strict":
            raise
        raise InternalError(f"{type(error).__name__}: {error}") from error
    if region.resume is not None and 0 < cap.outside_stop < (cap.stop or cap.steps) and (
            origin_of(region.resume.frames) in site.seen):  # fmt: skip
        raise Round
    if cap.handed is not None and not region.operators and site.empty >= _EMPTY:
        raise Unsupported("W113", f"{region.name} runs no tensor operation")
    entry = build_entry(region, fn, args, site, miss)
    asked = asked_numbers(cap, region) - site.fixed
    if asked:
        site.fixed |= asked
        cap.restart(site.varying(), site.copies)
        return _captured(cap, fn, args, site)
    _tell(entry, fn)
    return entry


def _region(cap: Capture, fn: types.FunctionType, args: tuple[object, ...],
            site: Site) -> Region:  # fmt: skip
    """What is captured, from the start again when a class attribute turns out to be assigned, or
    when calls must not be copied."""
    while True:
        cap.hooks_stay = site.hooks_stay
        try:
            return capture(cap, fn, args)
        except Written as found:
            site.attributes.add(found.attr)
        except Anew as found:
            setattr(site, found.fact, found.value)
        cap.restart(site.varying(), site.copies)


class Round(Exception):
    """A rest begins in one round of a loop and ends in the next one."""


def report_internal(error: WeldError) -> None:
    STATISTICS.internal_errors += 1
    events.emit("graph_breaks", "internal error", str(error), code="W901", why=error.why)


def _generator_entry(fn: types.FunctionType, args: tuple[object, ...], site: Site) -> Entry:
    """An entry that makes a generator, whose stretches are compiled when it is resumed; what does
    that is loaded when it is first needed."""
    try:
        begin = importlib.import_module("torchweld.generators").starter(fn, site, miss)
    except Unassemblable as error:
        _report(Refusal("W109", f"{fn.__qualname__}: {error}", named(fn).at), named(fn))
        return eager_entry(fn, args, site, ())
    return _plain_entry(fn, begin, args, ())


# ---------------------------------------------------------------- eager code and what it calls
def eager_entry(fn: types.FunctionType, args: tuple[object, ...], site: Site,
                guards: Sequence[Guard], hooked: bool = True) -> Entry:  # fmt: skip
    """An entry that runs `fn` itself while these guards hold. hooked: see eager_call."""
    return _plain_entry(fn, eager_call(fn, site, hooked), args, guards)


def _plain_entry(fn: types.FunctionType, run: Callable[..., Any], args: tuple[object, ...],
                 guards: Sequence[Guard]) -> Entry:  # fmt: skip
    """An entry that gives its arguments to `run`, behind a first one."""
    names = (*decode(fn.__code__).params, fn.__name__)
    flat = [Local.make(i, names[i]) for i in range(len(args))]
    builder = GuardBuilder(guards, flat, len(args))
    program = builder.build()
    made = Entry(program, [], None, run, [builder.register(s) for s in flat])
    made.info = Made(tuple(guards), None)
    return made


_LIBRARIES = frozenset((
    *sys.stdlib_module_names, "torch", "torchweld", "typing_extensions", "numpy", "triton",
    "_pytest", "pluggy", "pytest",
)) - {"__main__"}  # fmt: skip
# torch's own modules that are worth a graph; most others are one operator
_COMPOSED = frozenset(
    kind.forward.__code__ for kind in (
        torch.nn.Sequential, torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer,
        torch.nn.TransformerDecoderLayer, torch.nn.TransformerEncoder, torch.nn.TransformerDecoder,
    )
)  # fmt: skip
# code that got no tensor in this many calls is not asked about again
_IDLE = 4
# comprehensions, and what operators mean for a subclass or in a mode
_LEFT = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "__torch_function__",
         "__torch_dispatch__")  # fmt: skip


def _is_skipped(view: FrameView) -> bool:
    """Whether frames of this code are never compiled on their own.

    The wrappers that decorators make are: their code is shared by what has nothing in common.
    """
    code = view.code
    fn: Any = view.function
    if _is_wrapper(fn):
        return True
    if view.locals and isinstance(view.locals[0], FunctionCtx):
        return True  # of autograd: what is written to it is for C to read
    if code.co_name in _LEFT or code.co_filename.startswith("<frozen"):
        return True
    if code in _COMPOSED:
        return False
    module = str(fn.__module__)
    return module.split(".")[0] in _LIBRARIES or (
        getattr(sys.modules.get(module), "__dict__", None) is not fn.__globals__)  # fmt: skip


def _is_wrapper(fn: Any) -> bool:
    """Whether a function closes over another one that was not made in the same call."""
    inside = fn.__qualname__.rpartition(".")[0]
    for cell in fn.__closure__ or ():
        held = None if is_empty_cell(cell) else cell.cell_contents
        held = getattr(held, "__func__", held)
        if callable(held) and not isinstance(held, torch.nn.Module | type) and (
                getattr(held, "__qualname__", "").rpartition(".")[0] != inside):  # fmt: skip
            return True
    return False


def on_frame(view: FrameView) -> tuple[weakref.ReferenceType[Entry], ...] | None:
    """Entries for a frame that eager code starts; None: frames of its code are let alone."""
    outer: Site | None = getattr(REGION, "site", None)
    if outer is None or is_compiling():
        return ()
    args = (*view.locals, view.function) if view.code.co_freevars else view.locals
    mark = mark_of(view.function)
    if mark is not None:
        return _marked_frame(view, mark[0])
    if _is_skipped(view):
        return None
    root = outer if outer.root is None else outer.root()
    if root is None:
        return ()  # it was forgotten meanwhile
    site = root.inner.get(id(view.code))
    if site is None:
        site = Site(outer.options, code=view.code, root=weakref.ref(root),
                    given=bool(view.code.co_freevars))  # fmt: skip
        root.inner[id(view.code)] = site
    if not _has_tensors(view.locals):
        site.idle += 1
        return _as_before(view) if site.idle < _IDLE else None
    if not LOCK.acquire(blocking=False):
        return _as_before(view)
    try:
        if any(fits(e.program, args) for e in site.entries) or (
                _declines(site, named(view.function), site.entries, args)):  # fmt: skip
            return _as_before(view)
        with Compiling():
            entry = _inner_entry(view, args, site)
    except (PromiseError, RecompileError) as error:
        REGION.failed = error
        return _as_before(view)
    except StateChanged:
        return _as_before(view)
    finally:
        LOCK.release()
    if entry is None:
        return None
    site.entries.append(entry)
    return (*_as_before(view), weakref.ref(entry))


def _as_before(view: FrameView) -> tuple[weakref.ReferenceType[Entry], ...]:
    """The entries that the code has; with them as the answer, the hook asks again next time."""
    known = hook.state(view.code)
    return known if isinstance(known, tuple) else ()  # type: ignore[return-value]


def _marked_frame(view: FrameView, mark: Mark) -> tuple[weakref.ReferenceType[Entry], ...] | None:
    """As on_frame, for a function that the user, or torch.compiler.disable, has marked."""
    if mark is Mark.DISABLED:
        hook.set_quiet(view.code)
    inner: Any = getattr(view.function, "_torchdynamo_orig_callable", None)
    if mark is Mark.SHALLOW and isinstance(inner, types.FunctionType):
        hook.set_skip(inner.__code__)
        return ()  # other functions share the code of this wrapper
    return None


def _has_tensors(values: tuple[object, ...]) -> bool:
    """Whether these arguments lead to tensors, as far as one can see at a glance."""
    return any(
        isinstance(v, torch.Tensor | torch.nn.Module)
        or (isinstance(v, list | tuple) and any(isinstance(i, torch.Tensor) for i in v))
        or (isinstance(v, dict) and any(isinstance(i, torch.Tensor) for i in dict.values(v)))
        for v in values
    )


def _inner_entry(view: FrameView, args: tuple[object, ...], site: Site) -> Entry | None:
    if len(site.entries) >= site.options.recompile_limit:
        _give_up(named(view.function), site, site.entries, args)
        return None
    try:
        fn: Any = view.function
        return _entry_or_eager(fn, args, site, site.entries)
    except (PromiseError, StateChanged):
        raise
    except Unsupported:
        return None  # nothing to compile
    except KeyboardInterrupt:
        _thread.interrupt_main()  # the hook cannot raise it
        return None
    except Exception as error:
        report_internal(InternalError(f"{type(error).__name__}: {error}"))
        return None


def _recompile(of: Named, site: Site, entries: Sequence[Entry],
               args: tuple[object, ...]) -> None:  # fmt: skip
    """Say why the entries do not fit, and learn from it."""
    STATISTICS.recompiles += 1
    why = why_missed(entries, args)
    told = Recompiled(of, len(entries), why)
    events.emit("recompiles", of.name, told.text(), why=[m.text() for m in why])
    note(told)
    _variation().learn(site, [e.info for e in entries], args)


def _give_up(of: Named, site: Site, entries: Sequence[Entry],
             args: tuple[object, ...]) -> None:  # fmt: skip
    """Say, once, that a function was compiled too often to go on."""
    reasons = importlib.import_module("torchweld.misses").summary(entries, args)
    why = Refusal("W114", f"{of.name} was compiled {len(entries)} times, and runs eagerly "
                  f"where none fits{': ' * bool(reasons)}{reasons}", of.at)  # fmt: skip
    _report(why, of)
    if not site.spent:
        site.spent = True
        _LOG.warning("%s", why.text())


def _report(why: Refusal, of: Named, *, broken: bool = False) -> None:
    """A break. broken: the frame is compiled on both sides of it; else it runs eagerly."""
    STATISTICS.refuse(why)
    note(Eager(of, why))
    events.emit("graph_breaks", "graph ends" if broken else "frame runs eagerly", why.text(),
                code=why.code, why=why.why, at=f"{why.at.file}:{why.at.line}")  # fmt: skip
