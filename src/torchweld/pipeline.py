"""The order of the stages, and the verify / dump / time / log bracket around each.

    frame -> capture -> graph -> lower -> fuse -> codegen -> runtime

`compile_graph` is everything behind a captured graph (programs.py: up to its Programs); frames.py
is what leads to one. What happens is counted in STATISTICS, and told in notes to whoever listens.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import operator
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchweld.base import config, events
from torchweld.base.errors import (
    BackendError,
    Refusal,
    Unsupported,
    Untouched,
    WeldError,
)
from torchweld.base.loc import NOWHERE, Loc
from torchweld.capture.late_inputs import (
    number_places,
    numbers_as_tensors,
    settle_numbers,
    with_tensors,
)
from torchweld.capture.modes import RUNS_AGAIN, ambient, restoring
from torchweld.capture.session import Compiling
from torchweld.graph.autograd import (
    check_views,
    check_writes,
    inference_inputs,
    needs_autograd,
    outputs_require_grad,
)
from torchweld.graph.symbols import env_of
from torchweld.graph_facts import dump, owned_inputs, settings_of, values_of_inputs
from torchweld.ir.graph import (
    ASKED,
    BY_DATA,
    KEPT,
    LOC,
    RELATIONS,
    VAL,
    GraphSettings,
    Joint,
    let_go,
    operator_name,
    take_apart,
)
from torchweld.ir.guard import Guard
from torchweld.ir.lengthen import ORIGIN, Origin
from torchweld.ir.program import Call, GridLaunch, Launch, Program
from torchweld.ir.size_node import is_number
from torchweld.runtime import triton_service
from torchweld.runtime.cudagraph import Borrowing
from torchweld.runtime.cudagraph_plan import Lending
from torchweld.runtime.executable import Executable, make_executable
from torchweld.runtime.gradients import Differentiable, Gradients
from torchweld.runtime.sized import SizedExecutable

if TYPE_CHECKING:
    from torchweld.programs import MakeBackward

INCLUDE = Path(__file__).parent / "codegen" / "include"
Backend = Callable[[GraphModule, list[Any]], Callable[..., Any]]

# loaded for the first graph on a GPU whose numbers are computed on the CPU
_HOST_FIRST = "torchweld.runtime.host_first"
_serial = itertools.count()
# refusals that are remembered, and compiled graphs after which dead ones are looked for
_KEEP = 1000


@dataclass(slots=True, eq=False, weakref_slot=True)
class Compiled:
    """What became of one captured graph. kernels, externs: launches and ATen calls per call.

    differentiable: whether autograd can go through it. backwards: what was compiled for that when
    it first did. parts: the pieces of a graph in which the data decides sizes. again: makes the
    same, with buffers and CUDA graphs of its own; None if the same one serves everybody.
    """

    call: Callable[..., Any]
    executable: Executable | None = None
    refusal: Refusal | None = None
    differentiable: bool = False
    backwards: list[Executable] = field(default_factory=list)
    parts: list[Compiled] = field(default_factory=list)
    again: Callable[[], Compiled] | None = None

    @property
    def kernels(self) -> int:
        return sum(_count(e, Launch, GridLaunch) for e in self._executables())

    @property
    def externs(self) -> int:
        return sum(_count(e, Call) for e in self._executables())

    def text(self) -> str:
        """How the graph runs, in words."""
        if self.parts:
            inside = "; then ".join(p.text() for p in self.parts)
            return f"pieces around what makes sizes: {inside}"
        if self.refusal is not None:
            return f"ATen calls ({self.refusal.code}: {self.refusal.why})"
        assert self.executable is not None
        parts = [_in_words(self.executable)]
        parts += [f"backward: {_in_words(e)}" for e in self.backwards]
        if self.differentiable and not self.backwards:
            parts.append("backward: compiled when it first runs")
        return "; ".join(parts)

    def _executables(self) -> list[Executable]:
        own = [] if self.executable is None else [self.executable]
        return [*own, *self.backwards, *(e for p in self.parts for e in p._executables())]


def _count(executable: Executable, *kinds: type) -> int:
    return sum(isinstance(s, kinds) for s in executable.program.steps)


def _in_words(executable: Executable) -> str:
    counts = ((_count(executable, Launch, GridLaunch), "generated kernel"),
              (_count(executable, Call), "ATen call"))  # fmt: skip
    words = ", ".join(f"{n} {what}{'s' * (n != 1)}" for n, what in counts)
    if executable.program.sizes is None:
        return words
    words = f"{words} for a range of sizes"
    alone = executable.fixed() if isinstance(executable, SizedExecutable) else ()
    return f"{words}, {len(alone)} of them compiled alone" if alone else words


@dataclass(slots=True)
class Statistics:
    """Counters since the last reset. graphs: captured; eager: frames that run eagerly; pieces: that
    were compiled of graphs in which the data decides sizes; shared: entries that took over what was
    compiled for another module."""

    captures: int = 0
    graphs: int = 0
    breaks: int = 0
    recompiles: int = 0
    kernels: int = 0
    externs: int = 0
    aten_graphs: int = 0
    internal_errors: int = 0
    pieces: int = 0
    shared: int = 0
    refusals: list[Refusal] = field(default_factory=list)
    newest: Compiled | None = None
    alive: list[weakref.ref[Compiled]] = field(default_factory=list)

    @property
    def compiled(self) -> list[Compiled]:
        """The compiled graphs that some entry still uses, oldest first."""
        return [c for c in (ref() for ref in self.alive) if c is not None]

    def add(self, compiled: Compiled) -> None:
        """Count a graph without keeping it alive; whoever takes it does that."""
        if len(self.alive) >= _KEEP and len(self.alive) >= 2 * len(self.compiled):
            self.alive = [ref for ref in self.alive if ref() is not None]
        self.alive.append(weakref.ref(compiled))
        self.newest = compiled

    def take_newest(self) -> Compiled | None:
        """What became of the last graph; asked once, by the one who had it compiled."""
        found, self.newest = self.newest, None
        return found

    def refuse(self, why: Refusal) -> None:
        """Count a break; the oldest reasons are forgotten."""
        self.breaks += 1
        self.refusals.append(why)
        del self.refusals[:-_KEEP]

    def counts(self) -> dict[str, int]:
        names = ("captures", "graphs", "breaks", "recompiles", "kernels", "externs", "aten_graphs",
                 "internal_errors", "pieces", "shared")  # fmt: skip
        return {n: getattr(self, n) for n in names}


STATISTICS = Statistics()


def reset_statistics() -> None:
    fresh = Statistics()
    for name in Statistics.__slots__:
        setattr(STATISTICS, name, getattr(fresh, name))


# ---------------------------------------------------------------- notes for explain()
# attribute of a function of torchweld's: the user's function that it calls
STANDS_FOR = "_torchweld_stands_for"
# of each kind of note, the oldest are kept
_KEEP_NOTES = 10_000


@dataclass(frozen=True, slots=True)
class Miss:
    """One reason. what: `name` was this, is that. fix: what helps. at: the line that asked."""

    what: str
    fix: str = ""
    at: Loc = NOWHERE

    def text(self) -> str:
        """`model.py:12: what; fix`."""
        said = f"{self.what}; {self.fix}" if self.fix else self.what
        return said if self.at is NOWHERE else f"{self.at.file}:{self.at.line}: {said}"


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph. runs: what became of it, in words; empty with a backend of the user's."""

    of: Named
    graph: GraphModule
    guards: tuple[Guard, ...]
    runs: str

    def operators(self) -> Counter[str]:
        """How often each operator is called in the graph."""
        nodes = [n for n in self.graph.graph.nodes if n.op.startswith("call")]
        return Counter(operator_name(n) for n in nodes if not _is_getitem(n) and not _is_size(n))


@dataclass(frozen=True, slots=True)
class Eager:
    """A frame, or the part of it that `why` names, that runs eagerly."""

    of: Named
    why: Refusal


@dataclass(frozen=True, slots=True)
class Recompiled:
    """A function that was captured again. count: entries that it had before."""

    of: Named
    count: int
    why: tuple[Miss, ...]

    def text(self) -> str:
        """A line for each reason: `recompiled model.py:12: scale was 0.5, is 0.7; ...`."""
        begin = f"{self.of.at.file}:{self.of.at.line}"
        reasons = [m.text() if m.at is not NOWHERE else f"{begin}: {m.text()}" for m in self.why]
        return "\n".join(f"recompiled {r}" for r in reasons)


@dataclass(slots=True, eq=False)
class Notes:
    """What happened, in order."""

    captured: list[Captured] = field(default_factory=list)
    eager: list[Eager] = field(default_factory=list)
    recompiled: list[Recompiled] = field(default_factory=list)

    def add(self, note: Captured | Eager | Recompiled) -> None:
        kept: list[object] = getattr(self, type(note).__name__.lower())
        if len(kept) < _KEEP_NOTES:
            kept.append(note)


_listeners: list[Notes] = []


def listen() -> Notes:
    """Notes of what any thread compiles from now on."""
    made = Notes()
    _listeners.append(made)
    return made


@contextmanager
def listening() -> Iterator[Notes]:
    """Notes of what any thread compiles inside the block."""
    made = listen()
    try:
        yield made
    finally:
        _listeners.remove(made)


def wanted() -> bool:
    """Whether somebody listens."""
    return bool(_listeners)


def note(event: Captured | Eager | Recompiled) -> None:
    """Tell whoever listens."""
    for listener in list(_listeners):
        listener.add(event)


@dataclass(frozen=True, slots=True)
class Named:
    """What the user calls a function, and where it begins."""

    name: str
    at: Loc


def named(fn: Any) -> Named:
    """The user's function behind `fn`: torchweld's own that call one say which."""
    shown = getattr(fn, STANDS_FOR, fn)
    shown = shown if isinstance(shown, types.FunctionType) else fn
    code = shown.__code__
    return Named(shown.__qualname__, Loc(code.co_filename, code.co_firstlineno))


def _is_getitem(node: Node) -> bool:
    """Taking one of several results is no operator."""
    if node.target is not operator.getitem or not isinstance(node.args[0], Node):
        return False
    return not isinstance(node.args[0].meta.get(VAL), torch.Tensor)


def _is_size(node: Node) -> bool:
    """Arithmetic of sizes and what is asked about them are no operators."""
    return RELATIONS in node.meta or (
        LOC not in node.meta and not isinstance(node.meta.get(VAL), torch.Tensor))  # fmt: skip


# ---------------------------------------------------------------- graph -> call
def compile_graph(gm: GraphModule, example_inputs: list[Any] | None = None) -> Compiled:
    """Everything behind capture. Falls back to running `gm` through ATen, with the reason.

    Placeholders of `gm` carry FakeTensors in meta[VAL]. Errors: none in default mode; under
    TORCHWELD=strict internal errors are raised.
    """
    cfg = config.current()
    number = next(_serial)
    dump(number, "capture", "fx", lambda: gm.print_readable(print_output=False), "graph")
    fakes = values_of_inputs(gm)
    if any(f.device.type == "cuda" for f in fakes if isinstance(f, torch.Tensor)):
        triton_service.warm(cfg)
    settings = settings_of(gm)
    records = needs_autograd(gm, fakes)
    if records and settings.freeze:
        why = Refusal("W207", "an input requires grad and grad mode is on")
        events.emit("graph", "not frozen", why.text(), code=why.code, why=why.why)
    try:
        check_views(gm)
        if records and outputs_require_grad(gm):
            return _counted(_differentiable(Halves(gm, *_programs().to_halves(gm, number))))
        if records:
            check_writes(gm)
        freezes = settings.freeze and not records
        program: Program = _programs().to_program(gm, number, frozen=freezes)
        return _counted(_without_gradients(gm, program))
    except (Unsupported, BackendError) as error:
        if cfg.mode == "strict" and isinstance(error, BackendError):
            raise
        why = error.refusal()
        own = records and why.code != "W208"
        return through_aten(gm, Refusal("W205", why.why, why.at) if own else why)
    except Exception as error:
        if cfg.mode == "strict":
            raise
        STATISTICS.internal_errors += 1
        return through_aten(gm, Refusal("W901", f"{type(error).__name__}: {error}"))


def _without_gradients(gm: GraphModule, program: Program) -> Compiled:
    executable = _executable(program, owned_inputs(gm), settings_of(gm), numbers=_numbers(gm))
    executable.explain = _explaining(gm, program)
    executable.eager = restoring(gm, gm.forward)
    again = functools.partial(_without_gradients, gm, program)
    return Compiled(executable, executable, again=again)


def _explaining(gm: GraphModule, program: Program) -> Callable[..., Any]:
    """What raises eager's error, of the inputs of a call in which a kernel failed."""
    clean = not program.meta["mutated"] or program.meta["checks_first"]
    if clean and gm.meta.get(RUNS_AGAIN):
        return _untouched

    def explain(*inputs: Any) -> None:
        importlib.import_module("torchweld.failures").raise_as_eager(gm, inputs, clean)

    return explain


def _untouched(*_: object) -> None:
    raise Untouched


def _programs() -> Any:
    """The stages that make Programs. Loading them is half of the import of a compiler."""
    return importlib.import_module("torchweld.programs")


def _executable(program: Program, owned: frozenset[int], settings: GraphSettings,
                lending: Lending | None = None, borrowing: Borrowing | None = None,
                numbers: frozenset[int] = frozenset()) -> Executable:  # fmt: skip
    cfg = config.current()
    with events.timed("runtime"):
        origin = program.meta.get(ORIGIN)
        fixed = functools.partial(_fixed, origin) if isinstance(origin, Origin) else None
        most = cfg.fixed_sizes if settings.fixed_sizes is None else settings.fixed_sizes
        made = make_executable(program, cfg, INCLUDE, owned, settings.cuda_graphs, lending,
                               borrowing, numbers, fixed if most > 0 else None, most)  # fmt: skip
        if program.host is None:
            return made
        host = make_executable(program.host.program, cfg, INCLUDE)
        both: Executable = importlib.import_module(_HOST_FIRST).HostFirst(host, made, program.host)
        return both


def _fixed(origin: Origin, values: tuple[int, ...]) -> Program:
    """The Program for one choice of sizes; what makes it is loaded when first needed."""
    made: Program = importlib.import_module("torchweld.fixing").ask(origin, INCLUDE, values)
    return made


def _numbers(gm: GraphModule) -> frozenset[int]:
    """The positions of the inputs that are ints."""
    return frozenset(i for i, v in enumerate(values_of_inputs(gm)) if is_number(v))


def _counted(compiled: Compiled) -> Compiled:
    STATISTICS.kernels += compiled.kernels
    STATISTICS.externs += compiled.externs
    return compiled


class Halves:
    """A graph through which autograd goes, as Programs. make: that of the backward, by which of
    the gradients are given."""

    def __init__(self, gm: GraphModule, parts: Joint, program: Program, make: MakeBackward) -> None:
        self.gm, self.parts, self.program = gm, parts, program
        self.make: MakeBackward = functools.cache(make)
        owned = owned_inputs(gm)
        self.static = frozenset(k for k, i in enumerate(parts.kept_inputs) if i in owned)
        env = env_of(parts.forward.forward) if parts.forward.sizes else None
        self.known = () if env is None else env.all_facts()
        gm.meta[KEPT] = True
        weakref.finalize(self, _free, gm, parts.graph).atexit = False


def _differentiable(halves: Halves) -> Compiled:
    gm, parts, program = halves.gm, halves.parts, halves.program
    executable = _executable(program, owned_inputs(gm), settings_of(gm), _lending(parts),
                             numbers=_numbers(gm))  # fmt: skip
    plain = restoring(gm, gm.forward)
    executable.explain = _explaining(gm, program)
    again = functools.partial(_differentiable, halves)
    compiled = Compiled(plain, executable, differentiable=any(parts.tangents), again=again)
    build = functools.partial(_backward, weakref.ref(compiled), halves)
    compiled.call = Differentiable(
        parts, executable, build, plain, ambient(), parts.forward.mutated, inference_inputs(gm)
    )
    return compiled


def _free(gm: GraphModule, graph: Graph) -> None:
    """What Halves leave behind."""
    let_go(gm)
    take_apart(graph)


def _backward(compiled: weakref.ref[Compiled], halves: Halves,
              given: tuple[bool, ...]) -> Gradients | None:  # fmt: skip
    """The compiled backward for the results whose gradients are given, None if there is none:
    then the captured graph is differentiated. Facts about sizes that are not guarded are asked at
    each call."""
    cfg, parts = config.current(), halves.parts
    try:
        with Compiling():
            program, places, numbers, unread = halves.make(given)
            executable = _executable(program, halves.static, settings_of(halves.gm),
                                     Lending(least=0), _borrowing(compiled(), parts))  # fmt: skip
    except Exception as error:
        if cfg.mode == "strict":
            raise
        what = error.refusal() if isinstance(error, WeldError) else Refusal(
            "W901", f"{type(error).__name__}: {error}")  # fmt: skip
        STATISTICS.internal_errors += not isinstance(error, Unsupported)
        events.emit("graph", "backward runs in ATen", what.text(), code=what.code, why=what.why)
        return None
    STATISTICS.kernels += _count(executable, Launch, GridLaunch)
    STATISTICS.externs += _count(executable, Call)
    owner = compiled()
    if owner is not None:
        owner.backwards.append(executable)
    env = env_of(parts.forward.forward) if parts.forward.sizes else None
    facts = () if env is None else tuple(f for f in env.all_facts() if f not in halves.known)
    return Gradients(executable, places, numbers, facts, unread)


def _lending(parts: Joint) -> Lending:
    """What a forward lends to its backwards."""
    return Lending(len(parts.saved), parts.kept_results)


def _borrowing(compiled: Compiled | None, parts: Joint) -> Borrowing | None:
    """Which inputs of the backwards are outputs of the forward."""
    if compiled is None or compiled.executable is None:
        return None
    n_results, n_saved = len(parts.tangents), len(parts.saved)
    outputs = (*parts.kept_results, *range(n_results, n_results + n_saved))
    sources = dict(enumerate(outputs, len(parts.kept_inputs)))
    return Borrowing(compiled.executable, _lending(parts), sources)


def through_aten(gm: GraphModule, why: Refusal) -> Compiled:
    STATISTICS.aten_graphs += 1
    events.emit("graph", "runs in ATen", why.text(), code=why.code, why=why.why)
    return Compiled(gm.forward, None, why)


def put_off(gm: GraphModule, why: Refusal) -> None:
    """Note that a graph is not compiled yet; what compiles for a GPU starts meanwhile."""
    events.emit("graph", "not compiled yet", why.text(), code=why.code, why=why.why)
    if any(f.device.type == "cuda" for f in values_of_inputs(gm) if isinstance(f, torch.Tensor)):
        triton_service.warm(config.current())
    STATISTICS.add(Compiled(gm.forward, None, why))


def weld_backend(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """The default backend."""
    settle_numbers(gm)
    if any(BY_DATA in n.meta for n in gm.graph.nodes):
        compiled = _compile_in_steps(gm)
    else:
        compiled = compile_with_numbers(gm) if number_places(gm) else compile_graph(gm)
    STATISTICS.add(compiled)
    return compiled.call


def _compile_in_steps(gm: GraphModule) -> Compiled:
    """A graph in which the data decides sizes, in pieces; what does it is loaded when first
    needed."""
    made: Compiled = importlib.import_module("torchweld.pieces").compile_in_pieces(gm)
    return made


def compile_with_numbers(gm: GraphModule) -> Compiled:
    """As compile_graph, of a graph that takes Python numbers."""
    tensors = numbers_as_tensors(gm)
    gm.meta[ASKED] = set()
    tensors.meta.update(gm.meta)
    compiled = compile_graph(tensors)
    if compiled.refusal is None or compiled.refusal.code != "W208":
        del gm.meta[ASKED]  # an operator could do without
    if compiled.executable is None:
        compiled.call = gm.forward
        return compiled
    return _taking_numbers(compiled, number_places(gm))


def _taking_numbers(compiled: Compiled, places: list[int]) -> Compiled:
    """Python numbers at these places become the tensors that a graph takes."""
    compiled.call, again = with_tensors(compiled.call, places), compiled.again
    if again is not None:
        compiled.again = lambda: _taking_numbers(again(), places)
    return compiled


def eager_backend(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Runs the captured graph as it is."""
    return gm.forward


# which know of sizes that only the data decides, and whose graphs nobody else keeps
OWN_BACKENDS = (weld_backend, eager_backend)
