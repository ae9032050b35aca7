"""Programs: the stages between a captured graph and its Programs, in their order.

    graph -> lower -> fuse -> codegen

Of a graph that needs gradients there are two: a forward one, and a backward one for each set of
results that got a gradient, made when that first happens. Of many equal layers a few go through
the stages, and the Programs are lengthened (ADR 0024).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch.fx import GraphModule

from torchweld.base import config, events
from torchweld.base.config import Config
from torchweld.base.errors import InternalError, Unsupported
from torchweld.capture.modes import ambient
from torchweld.capture.module import CapturedModule
from torchweld.codegen.run import generate
from torchweld.fuse.run import fuse
from torchweld.fuse.tidy import checked_before_writes
from torchweld.graph.backward import backward
from torchweld.graph.joint import joint
from torchweld.graph.repeats import Repeats, find_repeats, inputs_of, shortened
from torchweld.graph.run import normalize
from torchweld.graph.stretched import Stretched, agrees, stretched
from torchweld.graph_facts import dump, owned_inputs, settings_of
from torchweld.ir.expr import Sym
from torchweld.ir.graph import GraphPair, Joint, take_apart
from torchweld.ir.lengthen import ORIGIN, Inputs, Origin, check_same, lengthen
from torchweld.ir.loop import LoopGraph, written_inputs
from torchweld.ir.loop_text import text as loop_text
from torchweld.ir.loop_verify import verify as verify_loop
from torchweld.ir.plan_text import text as plan_text
from torchweld.ir.program import HostPart, Program, Prologue
from torchweld.lower.freeze import freeze
from torchweld.lower.host import split_host
from torchweld.lower.run import lower

# for the results whose gradients are given: the Program, which outputs are the gradients, the
# symbols that it is given last as numbers, and which kept values eager does not read
Half = tuple[Program, tuple[int | None, ...], tuple[Sym, ...], frozenset[int]]
MakeBackward = Callable[[Sequence[bool]], Half]


def to_program(gm: GraphModule, number: int, frozen: bool | None = None) -> Program:
    """graph, lower, fuse, codegen. frozen: by default what the graph's settings say.

    Errors: Unsupported with a reason.

    Of many equal layers a few are compiled, and the Program is lengthened, where that can be done.
    """
    cfg = config.current()
    freezes = settings_of(gm).freeze if frozen is None else frozen
    whole = "repeats" in cfg.skip or freezes
    found = None if whole else find_repeats(gm.graph)
    if found is None:
        return _whole_program(gm, number, freezes)
    few = CapturedModule(gm, shortened(gm.graph, found))
    few.meta.update(gm.meta)
    long = _lengthened(_whole_program(few, number, freezes), inputs_of(gm.graph, found))
    if isinstance(long, str):
        events.emit("graph", "repeats", outcome=f"compiled whole: {long}")
        return _whole_program(gm, number, freezes)
    if cfg.verify:
        check_same(long, _whole_program(gm, number, freezes))
    outcome = f"compiled {found.kept} of {found.count} equal stretches"
    events.emit("graph", "repeats", outcome=outcome)
    return long


def _whole_program(gm: GraphModule, number: int, freezes: bool) -> Program:
    cfg = config.current()
    with events.timed("graph"):
        pair = normalize(gm, cfg)
    dump(number, "graph", "fx", lambda: str(pair.forward), "graph")
    with events.timed("lower"):
        fixed = owned_inputs(gm) if freezes else frozenset()
        parts = freeze(lower(pair), fixed - frozenset(pair.mutated))
    program = _with_host(parts.main, number)
    if parts.prologue is None:
        return program
    prologue = loops_to_program(parts.prologue, number, "prologue_")
    return replace(program, prologue=Prologue(prologue, parts.frozen))


def _with_host(loop: LoopGraph, number: int) -> Program:
    """The Program of a LoopGraph; what it computes on the CPU for kernels of a GPU goes first."""
    parts = split_host(loop)
    if parts is None:
        return loops_to_program(loop, number)
    program = loops_to_program(parts.main, number)
    host = loops_to_program(parts.host, number, "host_")
    written = {parts.takes[i] for i in host.meta["mutated"]}  # type: ignore[attr-defined]
    changed = written.union(program.meta["mutated"])  # type: ignore[arg-type]
    program.meta["mutated"], program.meta["checks_first"] = tuple(sorted(changed)), False
    return replace(program, host=HostPart(host, parts.takes, parts.crossing, parts.gives))


def loops_to_program(loop: LoopGraph, number: int, part: str = "") -> Program:
    """fuse, codegen. part: which of the graph's programs this is, for the names of dumps."""
    cfg = config.current()
    dump(number, f"{part}lower", "loop", lambda: loop_text(loop), "loop")
    if cfg.verify:
        verify_loop(loop)
    with events.timed("fuse"):
        plan = fuse(loop, cfg)
    dump(number, f"{part}fuse", "plan", lambda: plan_text(plan), "fusion")
    with events.timed("codegen"):
        program = generate(plan)
    program.meta["mutated"] = written_inputs(loop)
    program.meta["checks_first"] = checked_before_writes(plan)
    if loop.sizes:
        program.meta[ORIGIN] = Origin(loop)
    dump(number, f"{part}codegen", "cpp", lambda: "\n".join(a.source for a in program.artifacts),
         "output_code")  # fmt: skip
    return program


def _lengthened(short: Program, inputs: Inputs) -> Program | str:
    """As lengthen; what it was made of is known."""
    long, origin = lengthen(short, inputs), short.meta.get(ORIGIN)
    if isinstance(long, str) or not isinstance(origin, Origin):
        return long
    return replace(long, meta={**long.meta, ORIGIN: Origin(origin.loop, inputs)})


def _lowered(pair: GraphPair) -> LoopGraph:
    with events.timed("lower"):
        return lower(pair)


# ---------------------------------------------------------------- with gradients
def to_halves(gm: GraphModule, number: int) -> tuple[Joint, Program, MakeBackward]:
    """What is known of the joint graph, the forward Program, and what makes the backward ones.

    Errors: as to_program.
    """
    cfg = replace(config.current(), memory_budget=settings_of(gm).memory_budget)
    found = None if "repeats" in cfg.skip else find_repeats(gm.graph)
    made = None if found is None else _stretched_halves(gm, number, found, cfg)
    if made is not None:
        return made
    with events.timed("graph"):
        parts = joint(gm, cfg)
    return parts, _forward(parts, number), lambda given: _cut(parts, given, number, cfg)


def _forward(parts: Joint, number: int) -> Program:
    dump(number, "graph", "fx", lambda: str(parts.forward.forward), "graph")
    return loops_to_program(_lowered(parts.forward), number)


def _cut(parts: Joint, given: Sequence[bool], number: int,
         cfg: Config) -> Half:  # fmt: skip
    with events.timed("graph"):
        cut = backward(parts, given, cfg)
    return _backward_program(cut.pair, number), cut.gradients, cut.numbers, cut.unread


def _backward_program(pair: GraphPair, number: int) -> Program:
    dump(number, "backward_graph", "fx", lambda: str(pair.forward), "graph")
    return loops_to_program(_lowered(pair), number, "backward_")


def _stretched_halves(gm: GraphModule, number: int, found: Repeats,
                      cfg: Config) -> tuple[Joint, Program, MakeBackward] | None:  # fmt: skip
    """As to_halves, from a few of many equal stretches; None if that cannot be."""
    few = CapturedModule(gm, shortened(gm.graph, found))
    few.meta.update(gm.meta)
    with events.timed("graph"):
        parts = joint(few, cfg)
    seen = stretched(gm.graph, few.graph, found, parts)
    long = seen if isinstance(seen, str) else _lengthened(_forward(parts, number), seen.forward)
    take_apart(few.graph)
    if isinstance(seen, str) or isinstance(long, str):
        why = seen if isinstance(seen, str) else long
        events.emit("graph", "repeats", outcome=f"compiled whole: {why}")
        take_apart(parts.graph)
        return None
    again = _Whole(gm, number, found, cfg, ambient(), torch.is_grad_enabled())
    if cfg.verify:
        check_same(long, _forward(again.joint(seen), number))
    outcome = f"compiled {found.kept} of {found.count} equal stretches, to be differentiated"
    events.emit("graph", "repeats", outcome=outcome)

    def make(given: Sequence[bool]) -> Half:
        return _stretched_backward(seen, given, again)

    return seen.long, long, make


def _stretched_backward(seen: Stretched, given: Sequence[bool],
                        again: _Whole) -> Half:  # fmt: skip
    with events.timed("graph"):
        cut = backward(seen.short, given, again.cfg)
    found = seen.backward(cut, given)
    if not isinstance(found, str):
        inputs, whole = found
        long = _lengthened(_backward_program(cut.pair, again.number), inputs)
        if isinstance(long, Program):
            if again.cfg.verify:
                check_same(long, again.backward(seen, given)[0])
            events.emit("graph", "repeats", outcome="backward lengthened")
            return long, whole.gradients, whole.numbers, whole.unread
        found = long
    events.emit("graph", "repeats", outcome=f"backward compiled whole: {found}")
    return again.backward(seen, given)


@dataclass(slots=True)
class _Whole:
    """How the joint graph of all stretches is made, should that of a few not do.

    around, grad: the modes in which the graph was captured.
    """

    gm: GraphModule
    number: int
    found: Repeats
    cfg: Config
    around: Callable[[], AbstractContextManager[object]]
    grad: bool

    def joint(self, seen: Stretched) -> Joint:
        """Errors: Unsupported W201 if it saves other values than were foreseen."""
        with self.around(), torch.set_grad_enabled(self.grad), events.timed("graph"):
            parts = joint(self.gm, self.cfg)
        if not agrees(seen, parts, self.gm.graph, self.found):
            why = "the whole graph saves other values than its equal stretches"
            if self.cfg.verify:
                raise InternalError(why)
            raise Unsupported("W201", why)
        return parts

    def backward(self, seen: Stretched, given: Sequence[bool]) -> Half:
        return _cut(self.joint(seen), given, self.number, self.cfg)
