"""The order of the stages, and the verify / dump / time / log bracket around each.

    frame -> capture -> graph -> lower -> fuse -> codegen -> runtime

`compile_graph` is everything behind a captured graph; `compile_frame` is a dispatcher's answer to
arguments that no entry fits.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from torchweld.base import config, events
from torchweld.base.errors import BackendError, Refusal, Unsupported, WeldError
from torchweld.capture.guard_build import GuardBuilder
from torchweld.capture.interp import capture
from torchweld.codegen.run import generate
from torchweld.frame.program import Dispatcher, Entry, torch_init
from torchweld.fuse.run import fuse
from torchweld.graph.autograd import needs_autograd
from torchweld.graph.run import normalize
from torchweld.ir.graph import VAL
from torchweld.ir.loop import writes
from torchweld.ir.loop_text import text as loop_text
from torchweld.ir.loop_verify import verify as verify_loop
from torchweld.ir.plan_text import text as plan_text
from torchweld.ir.program import Call, Launch, Program
from torchweld.ir.region import Region
from torchweld.lower.run import lower
from torchweld.runtime.executable import Executable, make_executable

INCLUDE = Path(__file__).parent / "codegen" / "include"
Backend = Callable[[GraphModule, list[Any]], Callable[..., Any]]

_serial = itertools.count()


@dataclass(slots=True)
class Compiled:
    """What became of one captured graph. kernels, externs: launches and ATen calls per call."""

    graph: GraphModule
    call: Callable[..., Any]
    executable: Executable | None = None
    refusal: Refusal | None = None

    @property
    def kernels(self) -> int:
        return self._count(Launch)

    @property
    def externs(self) -> int:
        return self._count(Call)

    def _count(self, kind: type) -> int:
        if self.executable is None:
            return 0
        return sum(isinstance(s, kind) for s in self.executable.program.steps)


@dataclass(slots=True)
class Statistics:
    """Counters since the last reset. graphs: captured; eager: frames that run eagerly."""

    captures: int = 0
    graphs: int = 0
    breaks: int = 0
    recompiles: int = 0
    kernels: int = 0
    externs: int = 0
    aten_graphs: int = 0
    internal_errors: int = 0
    compiled: list[Compiled] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        names = ("captures", "graphs", "breaks", "recompiles", "kernels", "externs", "aten_graphs",
                 "internal_errors")  # fmt: skip
        return {n: getattr(self, n) for n in names}


STATISTICS = Statistics()


def reset_statistics() -> None:
    fresh = Statistics()
    for name in Statistics.__slots__:  # type: ignore[attr-defined]
        setattr(STATISTICS, name, getattr(fresh, name))


# ---------------------------------------------------------------- graph -> call
def dump(number: int, stage: str, suffix: str, text: Callable[[], str], channel: str) -> None:
    """Show or write a stage's text form, if somebody asked for it."""
    cfg = config.current()
    if cfg.dump:
        folder = Path(cfg.dump)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:04d}_{stage}.{suffix}").write_text(text(), encoding="utf-8")
    if events.wants(channel):
        events.emit(channel, stage, "\n" + text())


def compile_graph(gm: GraphModule, example_inputs: list[Any] | None = None) -> Compiled:
    """Everything behind capture. Falls back to running `gm` through ATen, with the reason.

    Placeholders of `gm` carry FakeTensors in meta[VAL]. Errors: none in default mode; under
    TORCHWELD=strict internal errors are raised.
    """
    cfg = config.current()
    number = next(_serial)
    dump(number, "capture", "fx", lambda: gm.print_readable(print_output=False), "graph")
    fakes = [n.meta[VAL] for n in gm.graph.nodes if n.op == "placeholder"]
    if needs_autograd(gm, fakes):
        return _through_aten(gm, Refusal("W205", "an input requires grad and grad mode is on"))
    try:
        program = to_program(gm, number)
        with events.timed("runtime"):
            executable = make_executable(program, cfg, INCLUDE)
    except (Unsupported, BackendError) as error:
        if cfg.mode == "strict" and isinstance(error, BackendError):
            raise
        return _through_aten(gm, error.refusal())
    except Exception as error:
        if cfg.mode == "strict":
            raise
        STATISTICS.internal_errors += 1
        return _through_aten(gm, Refusal("W901", f"{type(error).__name__}: {error}"))
    compiled = Compiled(gm, executable, executable)
    STATISTICS.kernels += compiled.kernels
    STATISTICS.externs += compiled.externs
    return compiled


def to_program(gm: GraphModule, number: int) -> Program:
    """graph, lower, fuse, codegen. Errors: Unsupported with a reason."""
    cfg = config.current()
    with events.timed("graph"):
        pair = normalize(gm, cfg)
    dump(number, "graph", "fx", lambda: str(pair.forward), "graph")
    with events.timed("lower"):
        loop = lower(pair)
    dump(number, "lower", "loop", lambda: loop_text(loop), "loop")
    if cfg.verify:
        verify_loop(loop)
    with events.timed("fuse"):
        plan = fuse(loop, cfg)
    dump(number, "fuse", "plan", lambda: plan_text(plan), "fusion")
    with events.timed("codegen"):
        program = generate(plan)
    written = {b for node in loop.nodes for b in writes(node)}
    program.meta["mutated"] = tuple(i for i, b in enumerate(loop.inputs) if b in written)
    dump(number, "codegen", "cpp", lambda: "\n".join(a.source for a in program.artifacts),
         "output_code")  # fmt: skip
    return program


def _through_aten(gm: GraphModule, why: Refusal) -> Compiled:
    STATISTICS.aten_graphs += 1
    events.emit("graph", "runs in ATen", why.text(), code=why.code, why=why.why)
    return Compiled(gm, gm.forward, None, why)


def weld_backend(gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """The default backend."""
    compiled = compile_graph(gm, example_inputs)
    STATISTICS.compiled.append(compiled)
    return compiled.call


# ---------------------------------------------------------------- frame -> entry
@dataclass(frozen=True, slots=True)
class Options:
    """How one function is compiled."""

    backend: Backend = weld_backend
    fullgraph: bool = False
    dynamic: bool | None = None
    recompile_limit: int = 8


_ready = False


def prepare() -> None:
    """Teach the guard program where a tensor's metadata is; once per process."""
    global _ready
    if _ready:
        return
    _ready = True
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    samples = [torch.empty(2, 3), torch.empty((), dtype=torch.int64),
               torch.empty(4, 6, dtype=torch.bfloat16)[::2, 1:],
               torch.nn.Parameter(torch.empty(3))]  # fmt: skip
    torch_init(torch._C.TensorBase, str(library) if library.exists() else None, samples)


def compile_frame(dispatcher: Dispatcher, args: tuple[object, ...], options: Options) -> Entry | None:
    """An entry for these arguments, or None: then this call runs eagerly.

    Errors: FullGraphError under fullgraph; what the backend raises.
    """
    limit = options.recompile_limit
    if len(dispatcher.entries) >= limit:
        _report(Refusal("W114", f"{dispatcher.fn.__qualname__} has {limit} entries"))
        return None
    if dispatcher.entries:
        STATISTICS.recompiles += 1
        events.emit("recompiles", dispatcher.fn.__qualname__, _why_missed(dispatcher, args))
    STATISTICS.captures += 1
    try:
        with events.timed("capture", function=dispatcher.fn.__qualname__):
            region = capture(dispatcher.fn, args)
    except Unsupported as error:
        _report(error.refusal())
        raise
    except WeldError:
        raise
    STATISTICS.graphs += 1
    entry = build_entry(dispatcher, region, options)
    dispatcher.add(entry)
    return entry


def build_entry(dispatcher: Dispatcher, region: Region, options: Options) -> Entry:
    """Compile a region's graph and put guards and residual program around it."""
    inputs = [n.meta[VAL] for n in region.graph.graph.nodes if n.op == "placeholder"]
    call = options.backend(region.graph, inputs)
    finish_inputs = region.finish.inputs if region.finish else ()
    builder = GuardBuilder(region.guards, (*region.inputs, *finish_inputs), dispatcher.n_flat)
    program = builder.build()
    if events.wants("guards"):
        events.emit("guards", region.name, "\n" + "\n".join(g.text() for g in region.guards))
    finish = make_finish(region) if region.finish else None
    entry = Entry(
        program, [builder.register(s) for s in region.inputs], call, finish,
        [builder.register(s) for s in finish_inputs],
        region.result if region.result is not None else -1,
    )  # fmt: skip
    entry.info = region
    return entry


def make_finish(region: Region) -> Callable[..., Any]:
    """The residual program as a function."""
    assert region.finish is not None
    scope: dict[str, Any] = dict(region.finish.consts)
    exec(compile(region.finish.source, f"<torchweld {region.name}>", "exec"), scope)
    made: types.FunctionType = scope["finish"]
    return made


def _why_missed(dispatcher: Dispatcher, args: tuple[object, ...]) -> str:
    """What each entry's first failing guard is."""
    out = []
    for entry in dispatcher.entries:
        at = entry.program.explain(args)
        reasons = getattr(entry.program, "reasons", ())
        out.append(reasons[at] if 0 <= at < len(reasons) else f"guard {at}")
    return "; ".join(out)


def _report(why: Refusal) -> None:
    STATISTICS.breaks += 1
    STATISTICS.refusals.append(why)
    events.emit("graph_breaks", "frame runs eagerly", why.text(), code=why.code, why=why.why,
                at=f"{why.at.file}:{why.at.line}")  # fmt: skip
