"""Let the kernel of a row finish what the row's results are needed for.

    s = sum over i of f(m[i], x[i, k])    ->    t[i] = f(m[i], x[i, k]);  s = sum over i of t[i]

m is a reduction per row: its kernel has one block per row and computes t there, where m still is
in a register. The sum over rows then reads one value each, in the few blocks that it has.
"""

from __future__ import annotations

from dataclasses import replace

from torchweld.fuse.deps import Deps, analyse
from torchweld.fuse.facts import body_facts, points
from torchweld.fuse.inline import index_symbols
from torchweld.fuse.parts import fresh_name
from torchweld.fuse.target import Machine
from torchweld.ir.expr import ZERO
from torchweld.ir.loop import Buffer, Load, LoopGraph, Nest, Node, contiguous


def finish_rows(g: LoopGraph, machine: Machine) -> LoopGraph:
    """The graph with reductions over row results cut into a nest per row and the reduction."""
    deps = analyse(g)
    names = {b.name for u in deps.uses for b in u.reads | u.writes}
    nodes: list[Node] = []
    for n in g.nodes:
        if isinstance(n, Nest) and machine(n.out.device).finish_rows and _over_rows(g, deps, n):
            nodes += _finished(n, names)
        else:
            nodes.append(n)
    return g if len(nodes) == len(g.nodes) else replace(g, nodes=tuple(nodes))


def _over_rows(g: LoopGraph, deps: Deps, n: Nest) -> bool:
    """Whether `n` reduces over many rows, in fewer blocks, something made of their results."""
    if n.reduce is None or n.reduce.is_scan or isinstance(n.body, Load):
        return False
    if points(tuple(a.size for a in n.axes)) * 2 > points(tuple(a.size for a in n.all_axes)):
        return False
    own = {a.sym for a in n.all_axes}
    for ld in body_facts(n.body).loads:
        at = deps.only_writer(ld.buffer)
        writer = None if at is None else g.nodes[at]
        if isinstance(writer, Nest) and writer.reduce and index_symbols(ld.index) == own:
            return True
    return False


def _finished(n: Nest, names: set[str]) -> tuple[Nest, Nest]:
    shape = tuple(a.size for a in n.all_axes)
    rows = Buffer.make(
        fresh_name(n.out.name + "_rows", names), n.body.dtype, shape, contiguous(shape), ZERO,
        "temp", n.out.device,
    )  # fmt: skip
    index = tuple(a.sym for a in n.all_axes)
    first = Nest(rows, n.all_axes, index, n.body, origins=n.origins)
    return first, replace(n, body=Load.make(rows, index))
