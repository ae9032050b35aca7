"""Region: what capture hands to the pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CodeType

from torch.fx import GraphModule

from torchweld.ir.guard import Guard, Reading
from torchweld.ir.sizes import SizeEnv
from torchweld.ir.source import Source


@dataclass(frozen=True, slots=True)
class Finish:
    """The residual program: brings the world to the state after the frame, as Python source.

    It defines `finish(outs, *values)`: outs are the graph's outputs, values are loaded from
    `inputs`; `consts` are the names that the source may use. It replays mutations and builds the
    return value; in a broken frame it gives the state to the pieces that go on.
    """

    source: str
    inputs: tuple[Source, ...]
    consts: dict[str, object] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Suspended:
    """One frame that has not ended: its code, the dialect instruction that it is at, its globals.

    unbound, holes: as in `frame.points.Point`.
    """

    code: CodeType
    index: int
    unbound: frozenset[str]
    holes: frozenset[int]
    globals: dict[str, object] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a broken frame goes on, outermost frame first.

    The last frame runs the instruction that it is at, the others wait for a call.
    hands: what a generator waits for, which is the only frame then: "yield" for what is sent to it,
    "from" for the result of what it delegates to; else nothing.
    by_data: whether the instruction makes something whose size only the data decides.
    varying: what varies of the state: the frame's number, the position in its flat state, "size" or
        "stride" of a tensor and the dimension, or "number".
    driven: the numbers of the frames that are generators of the frame before, which runs them in a
        `for` or by next() and will run them again; the generators follow the states.
    """

    frames: tuple[Suspended, ...]
    hands: str = ""
    by_data: bool = False
    varying: tuple[tuple[int, int, str, int], ...] = ()
    driven: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Region:
    """One captured stretch of a frame.

    graph: torch-level FX graph; each placeholder has meta["val"] (a FakeTensor) in the order of
        `inputs`; its output node is a tuple of tensors.
    result: index of the graph output that is the frame's return value, when that is all there is
        to do; else None and `finish` says the rest.
    env, readings: the symbols of sizes that vary, and where they are found; the facts of `env` must
        hold, those included that later stages add.
    locks: what is to be held meanwhile, if the frame takes locks; then `finish` calls the graph.
    resume: if the frame was captured up to a break only. operators: calls in the graph.
    passing: a guard that what the frame does makes fail, so that its next call needs another entry.
    """

    name: str
    graph: GraphModule
    inputs: tuple[Source, ...]
    guards: tuple[Guard, ...]
    result: int | None
    finish: Finish | None
    resume: Resume | None = None
    operators: int = 0
    env: SizeEnv | None = field(default=None, compare=False)
    readings: tuple[Reading, ...] = ()
    locks: tuple[object, ...] = field(default=(), compare=False)
    passing: Guard | None = field(default=None, compare=False)
