"""Region: what capture hands to the pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch.fx import GraphModule

from torchweld.base.errors import Refusal
from torchweld.ir.guard import Guard
from torchweld.ir.source import Source


@dataclass(frozen=True, slots=True)
class Finish:
    """The residual program: brings the world to the state after the frame, as Python source.

    It defines `finish(outs, *values)`: outs are the graph's outputs, values are loaded from
    `inputs`; `consts` are the names that the source may use. It replays mutations and builds the
    return value (or calls the resume function).
    """

    source: str
    inputs: tuple[Source, ...]
    consts: dict[str, object] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Resume:
    """Where the rest of a broken frame goes on: nothing yet makes one."""

    offset: int
    stack_depth: int


@dataclass(frozen=True, slots=True)
class Region:
    """One captured stretch of a frame.

    graph: torch-level FX graph; each placeholder has meta["val"] (a FakeTensor) in the order of
        `inputs`; its output node is a tuple of tensors.
    result: index of the graph output that is the frame's return value, when that is all there is
        to do; else None and `finish` says the rest.
    """

    name: str
    graph: GraphModule
    inputs: tuple[Source, ...]
    guards: tuple[Guard, ...]
    result: int | None
    finish: Finish | None
    resume: Resume | None = None
    stopped: Refusal | None = None
