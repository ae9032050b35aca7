"""What is the same at every call, taken out of the program.

Such a program is two: the prologue computes constants, once, from inputs that are frozen or from
nothing at all (a mask that an operator reads); the main program takes them as further inputs. On
the way frozen weights of products and convolutions are packed for the library that computes them.

Not every value that could be a constant is made one: a table of a million elements that a kernel
would otherwise compute as it goes, from a few numbers, is better left where it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from torchweld.ir.loop import (
    Buffer,
    Extern,
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
from torchweld.lower.prepack import prepack
from torchweld.lower.swap import Swap
from torchweld.lower.tensor import numel

SMALL = 1 << 20  # bytes that a constant may have whatever it is made of
_SPACES = ("aten", "mkldnn")


@dataclass(frozen=True, slots=True)
class Frozen:
    """A LoopGraph in two. frozen: the positions of the inputs that the prologue takes.

    main: `main.inputs` are the inputs, all of them, then the prologue's outputs as constants.
    """

    main: LoopGraph
    prologue: LoopGraph | None
    frozen: tuple[int, ...]


def freeze(g: LoopGraph, positions: frozenset[int]) -> Frozen:
    """`g` split, given the positions of inputs whose contents never change.

    A graph of symbolic sizes stays whole: what is the same at every call has one size.
    """
    if g.sizes:
        return Frozen(g, None, ())
    known = constants(g, positions)
    if positions and all(b.device == "cpu" for b in g.inputs):
        g = prepack(g, {b for b in known.buffers if _worth(b, known, True)})
        known = constants(g, positions)
    return split(g, known, positions)


@dataclass(slots=True)
class Constants:
    """Buffers that hold the same at every call, and the positions of the nodes that write them.

    roots: the frozen inputs that each of them depends on.
    """

    buffers: set[Buffer]
    nodes: set[int]
    roots: dict[Buffer, frozenset[Buffer]] = field(default_factory=dict)


def constants(g: LoopGraph, positions: frozenset[int]) -> Constants:
    """The largest set of nodes that depend on nothing but frozen inputs, and have no effect.

    What is returned is none: a caller may change it.
    """
    touched = [(reads(n), writes(n)) for n in g.nodes]
    written = {b for _, w in touched for b in w}
    returned = {v.buffer for v in g.outputs if v is not None}
    fixed = {b for i, b in enumerate(g.inputs) if i in positions} - written
    nodes = set(range(len(g.nodes)))
    found = fixed | (written - returned - set(g.inputs))
    _leave_out(nodes, found, touched)  # what depends on other inputs: most nodes
    for at in [at for at in nodes if not _same_every_time(g.nodes[at])]:
        nodes.discard(at)
        found -= touched[at][1]
    _leave_out(nodes, found, touched)
    out = Constants(found, nodes, {b: frozenset((b,)) for b in fixed})
    for at in sorted(nodes):
        r, w = touched[at]
        roots = frozenset().union(*(out.roots.get(b, frozenset()) for b in r))
        for b in w:
            out.roots[b] = out.roots.get(b, frozenset()) | roots
    return out


def _leave_out(nodes: set[int], found: set[Buffer],
               touched: list[tuple[set[Buffer], set[Buffer]]]) -> None:  # fmt: skip
    """Leave out the nodes that touch other buffers than those found, and these nodes' own."""
    before = len(nodes) + 1
    while len(nodes) < before:  # what reads a buffer mostly comes behind what writes it
        before = len(nodes)
        for at in sorted(nodes):
            r, w = touched[at]
            if not (r <= found and w <= found):
                nodes.discard(at)
                found -= w


def _same_every_time(n: Node) -> bool:
    """Whether equal operands give an equal result, and nothing else happens."""
    if isinstance(n, Nest):
        scalars = (n.body, *(s for e in n.index for s in scalars_in(e)))
        return not any(isinstance(x, Op) and x.name.startswith("check_")
                       for s in scalars for x in walk(s))  # fmt: skip
    space, name, overload = n.op.split(".")
    if space not in _SPACES or n.writes or not reads(n):
        return False
    op = getattr(getattr(getattr(torch.ops, space), name), overload)
    return torch.Tag.nondeterministic_seeded not in op.tags and not op._schema.is_mutable


def split(g: LoopGraph, known: Constants, positions: frozenset[int]) -> Frozen:
    """The prologue that makes the constants that are worth it, and the program that reads them."""
    crossing, main = _frontier(g, known)
    if not crossing:
        return Frozen(g, None, ())
    consts = {b: _as_constant(b) for b in crossing}
    swap = Swap(consts)
    outputs = tuple(None if v is None else swap.view(v) for v in g.outputs)
    nodes = tuple(swap.node(g.nodes[at]) for at in main)
    made = replace(g, inputs=(*g.inputs, *consts.values()), nodes=nodes, outputs=outputs)
    inner = tuple(g.nodes[at] for at in sorted(_needed(g, known, crossing)))
    used = {b for n in inner for b in reads(n)}
    frozen = tuple(i for i in sorted(positions) if g.inputs[i] in used)
    results = tuple(View(b, b.shape, b.strides, b.offset) for b in crossing)
    prologue = LoopGraph(tuple(g.inputs[i] for i in frozen), inner, results, g.sizes)
    return Frozen(made, prologue, frozen)


def _as_constant(b: Buffer) -> Buffer:
    return Buffer.make(b.name, b.dtype, b.shape, b.strides, b.offset, "const", b.device)


def _frontier(g: LoopGraph, known: Constants) -> tuple[list[Buffer], list[int]]:
    """The constants that the main program reads, and the positions of its nodes.

    Backwards: what it reads becomes a constant if that is worth it, else its nodes stay in the
    main program, which then reads what they read.
    """
    main = [at for at in range(len(g.nodes)) if at not in known.nodes]
    wanted = {b for at in main for b in reads(g.nodes[at])}
    stored = {b for n in g.nodes if isinstance(n, Extern) or n.reduce for b in writes(n)}
    stored |= {b for at in main if isinstance(g.nodes[at], Extern) for b in reads(g.nodes[at])}
    chosen: dict[Buffer, bool] = {}
    for at in sorted(known.nodes, reverse=True):
        n = g.nodes[at]
        outs = sorted(writes(n) & wanted, key=lambda b: b.name)
        for b in outs:
            chosen.setdefault(b, _worth(b, known, b in stored))
        if not all(chosen[b] for b in outs):
            chosen.update(dict.fromkeys(outs, False))
            main.append(at)
            wanted |= reads(n)
            if isinstance(n, Extern):
                stored |= reads(n)
    return [b for b in chosen if chosen[b]][::-1], sorted(main)


def _worth(b: Buffer, known: Constants, needs_memory: bool) -> bool:
    """Whether a constant costs less than computing it. needs_memory: it would be stored anyway."""
    roots = known.roots.get(b, frozenset())
    size = numel(b.shape) * b.dtype.bytes
    from_size = sum(numel(r.shape) * r.dtype.bytes for r in roots)
    if not roots:  # a kernel makes it as it goes, unless an operator reads it
        return needs_memory and size <= SMALL
    return size <= SMALL or (needs_memory and size <= 2 * from_size)


def _needed(g: LoopGraph, known: Constants, crossing: list[Buffer]) -> set[int]:
    """The nodes that the crossing constants are made by."""
    wanted, out = set(crossing), set[int]()
    for at in sorted(known.nodes, reverse=True):
        if writes(g.nodes[at]) & wanted:
            out.add(at)
            wanted |= reads(g.nodes[at])
    return out


