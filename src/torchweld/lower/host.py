"""What a graph for a GPU computes on the CPU, taken out of it and run before the rest.

The counters of an optimizer are numbers on the CPU, and what a step makes of them are numbers that
kernels take by value. A program that only takes such numbers can be a CUDA graph; one that computes
them between its kernels cannot.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchweld.ir.loop import (
    Buffer,
    LoopGraph,
    Nest,
    Node,
    Op,
    View,
    reads,
    scalars_in,
    walk,
    writes,
)
from torchweld.lower.swap import Swap


@dataclass(frozen=True, slots=True)
class HostParts:
    """A LoopGraph in two. main: its inputs are those of the whole, then results of `host`.

    takes: the positions of the inputs that `host` gets. crossing: how many of its results `main`
    takes behind the inputs; the others are outputs of the whole, at the positions `gives`, where
    `main` has None.
    """

    main: LoopGraph
    host: LoopGraph
    takes: tuple[int, ...]
    crossing: int
    gives: tuple[int, ...]


def split_host(g: LoopGraph) -> HostParts | None:
    """The parts of a graph for a GPU; None if it computes nothing on the CPU that can go first.

    Constants, which a prologue makes, stay behind all inputs of `main`.
    """
    buffers = {b for n in g.nodes for b in reads(n) | writes(n)}
    if g.sizes or all(b.device == "cpu" for b in buffers):
        return None
    first = _going_first(g)
    if not first or _read_before_written(g, first):
        return None
    host = [n for at, n in enumerate(g.nodes) if at in first]
    main = [n for at, n in enumerate(g.nodes) if at not in first]
    inputs = set(g.inputs)
    made = {b for n in host for b in writes(n)} - inputs
    wanted = {b for n in main for b in reads(n)}
    crossing = {b: _as_input(b) for b in sorted(made & wanted, key=lambda b: b.name)}
    gives = tuple(i for i, v in enumerate(g.outputs) if v is not None and v.buffer in made)
    swap = Swap(crossing)
    constants = tuple(b for b in g.inputs if b.role == "const")
    given = tuple(b for b in g.inputs if b.role != "const")
    outputs = tuple(None if i in gives else v for i, v in enumerate(g.outputs))
    used = {b for n in host for b in reads(n) | writes(n)}
    takes = tuple(i for i, b in enumerate(g.inputs) if b in used)
    results = (*(View(b, b.shape, b.strides, b.offset) for b in crossing),
               *(g.outputs[i] for i in gives))  # fmt: skip
    return HostParts(
        replace(g, inputs=(*given, *crossing.values(), *constants),
                nodes=tuple(map(swap.node, main)), outputs=outputs),
        replace(g, inputs=tuple(g.inputs[i] for i in takes), nodes=tuple(host), outputs=results),
        takes, len(crossing), gives,
    )  # fmt: skip


def _as_input(b: Buffer) -> Buffer:
    return Buffer.make(b.name, b.dtype, b.shape, b.strides, b.offset, "input", b.device)


def _going_first(g: LoopGraph) -> set[int]:
    """The positions of the nodes that only touch the CPU, and wait for no other node."""
    found = {at for at, n in enumerate(g.nodes) if _is_host(n)}
    while True:
        others = {b for at, n in enumerate(g.nodes) if at not in found for b in writes(n)}
        kept = {at for at in found if not (reads(g.nodes[at]) | writes(g.nodes[at])) & others}
        if kept == found:
            return found
        found = kept


def _is_host(n: Node) -> bool:
    if not isinstance(n, Nest):
        return False
    if any(b.device != "cpu" or b.role == "const" for b in reads(n) | writes(n)):
        return False
    scalars = (n.body, *(s for e in n.index for s in scalars_in(e)))
    return not any(isinstance(x, Op) and x.name.startswith("check_")
                   for s in scalars for x in walk(s))  # fmt: skip


def _read_before_written(g: LoopGraph, first: set[int]) -> bool:
    """Whether a node that stays reads what is written, by one that goes first, after it."""
    seen: set[Buffer] = set()
    for at, n in enumerate(g.nodes):
        if at not in first:
            seen |= reads(n)
        elif writes(n) & seen:
            return True
    return False
