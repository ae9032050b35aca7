"""Which node must run before which, and why: dependencies through buffers.

RAW: reads what the other wrote. WAR: writes what the other read. WAW: both write. Externs with side
effects (random numbers, unknown operators) additionally keep their order among themselves.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from torchweld.fuse.facts import body_facts, index_scalars
from torchweld.ir.loop import Buffer, Extern, LoopGraph, Nest, Node, views_of

# operators that only compute: they may be dropped when unused and run in any order
PURE = frozenset(
    f"aten.{name}"
    for name in (
        "mm.default", "bmm.default", "addmm.default", "baddbmm.default", "dot.default",
        "mv.default", "convolution.default", "linear.default", "matmul.default",
        "topk.default", "sort.default", "sort.stable", "argsort.default", "cumsum.default",
        "max_pool2d_with_indices.default", "avg_pool2d.default", "_adaptive_avg_pool2d.default",
        "upsample_bilinear2d.vec", "upsample_nearest2d.vec", "native_layer_norm.default",
        "native_group_norm.default", "_softmax.default", "_log_softmax.default",
        "embedding.default", "index.Tensor", "gather.default", "index_select.default",
        "constant_pad_nd.default", "cat.default", "clone.default", "_to_copy.default",
    )
) | {"mkldnn._linear_pointwise.default", "mkldnn._convolution_pointwise.default"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Uses:
    """The buffers one node touches, and whether its order among such nodes matters."""

    reads: frozenset[Buffer]
    writes: frozenset[Buffer]
    effect: bool = False


def uses(n: Node) -> Uses:
    """What `n` reads and writes."""
    if isinstance(n, Nest):
        read = body_facts(n.body).buffers
        for s in index_scalars(n.index):
            read |= body_facts(s).buffers
        if n.mode != "set":
            read |= {n.out}
        return Uses(read, frozenset((n.out,)))
    views = views_of(n.args) + views_of(tuple(v for _, v in n.kwargs))
    return Uses(
        frozenset(v.buffer for v in views), frozenset(n.outs) | frozenset(n.writes),
        effect=n.op not in PURE or bool(n.writes),
    )  # fmt: skip


@dataclass(slots=True)
class Deps:
    """Positions of readers and writers of each buffer, and the dependency edges between nodes."""

    uses: list[Uses]
    readers: dict[Buffer, list[int]] = field(default_factory=dict)
    writers: dict[Buffer, list[int]] = field(default_factory=dict)

    def written_between(self, b: Buffer, after: int, before: int) -> bool:
        """Whether a node strictly between two positions writes `b`."""
        at = self.writers.get(b)
        if not at:
            return False
        return bisect_right(at, after) < bisect_left(at, before)

    def only_writer(self, b: Buffer) -> int | None:
        """The position of the one node that writes `b`; None if there are several or none."""
        at = self.writers.get(b, ())
        return at[0] if len(at) == 1 else None


def analyse(g: LoopGraph) -> Deps:
    """Who reads and writes what, by position."""
    deps = Deps([uses(n) for n in g.nodes])
    for at, u in enumerate(deps.uses):
        for b in u.reads:
            deps.readers.setdefault(b, []).append(at)
        for b in u.writes:
            deps.writers.setdefault(b, []).append(at)
    return deps


def predecessors(deps: Deps) -> list[set[int]]:
    """For each node the nodes that must have run: RAW, WAR, WAW and the order of effects.

    Cost: linear in reads and writes but for buffers that several nodes write.
    """
    before: list[set[int]] = [set() for _ in deps.uses]
    writers: dict[Buffer, list[int]] = {}
    readers: dict[Buffer, list[int]] = {}
    last_effect: int | None = None
    for at, u in enumerate(deps.uses):
        for b in u.reads:
            before[at].update(writers.get(b, ()))
            readers.setdefault(b, []).append(at)
        for b in u.writes:
            before[at].update(writers.get(b, ()))
            before[at].update(readers.get(b, ()))
            writers.setdefault(b, []).append(at)
        if u.effect:
            if last_effect is not None:
                before[at].add(last_effect)
            last_effect = at
        before[at].discard(at)
    return before


def is_pure(n: Extern) -> bool:
    """Whether the call only computes its results."""
    return n.op in PURE and not n.writes
