"""Leave out what nobody needs: dead nodes, equal nests, plain copies."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchweld.fuse.deps import Deps, analyse, is_pure, predecessors, uses
from torchweld.fuse.facts import BufferSwap, body_facts, index_scalars
from torchweld.ir.loop import (
    Buffer,
    Extern,
    ExternArg,
    Load,
    LoopGraph,
    Nest,
    Node,
    View,
    writes,
)
from torchweld.ir.plan import Bundle, Kernel, Plan, Step


def drop_dead(g: LoopGraph) -> LoopGraph:
    """Without the nodes whose results nobody reads.

    Kept always: writes to inputs, externs that are not known to be pure, nests that may raise.
    """
    live = {v.buffer for v in g.outputs if v is not None}
    live |= set(g.inputs)
    kept: list[Node] = []
    for n in reversed(g.nodes):
        u = uses(n)
        if not (u.writes & live or _must_run(n)):
            continue
        live |= u.reads
        kept.append(n)
    return g if len(kept) == len(g.nodes) else replace(g, nodes=tuple(reversed(kept)))


def _must_run(n: Node) -> bool:
    if isinstance(n, Extern):
        return not is_pure(n)
    return may_raise(n)


def may_raise(n: Nest) -> bool:
    """Whether an index of `n` is checked at run time."""
    return body_facts(n.body).checks or any(body_facts(s).checks for s in index_scalars(n.index))


def checks_early(g: LoopGraph) -> LoopGraph:
    """With what may raise on a CPU, and what it is made of, before what writes to inputs.

    A call that fails has then left its inputs as they were, and the frame may run again in eager.
    """
    checks = [i for i, n in enumerate(g.nodes) if checks_on_host(n)]
    if not checks or not any(writes_input(n) for n in g.nodes[: checks[-1]]):
        return g
    before = predecessors(analyse(g))
    early: set[int] = set()
    waiting = checks
    while waiting:
        i = waiting.pop()
        if i not in early:
            early.add(i)
            waiting += before[i]
    order = [*sorted(early), *(i for i in range(len(g.nodes)) if i not in early)]
    return replace(g, nodes=tuple(g.nodes[i] for i in order))


def checks_before(g: LoopGraph, before: list[set[int]]) -> list[set[int]]:
    """The nodes that must have run before each, with the checks of indices that stand in front of
    a node that writes to an input."""
    checks = [i for i, n in enumerate(g.nodes) if checks_on_host(n)]
    for i, n in enumerate(g.nodes) if checks else ():
        if writes_input(n):
            before[i].update(c for c in checks if c < i)
    return before


def checks_on_host(n: Node) -> bool:
    """Whether a kernel on a CPU may raise; those of a GPU fail for good."""
    return isinstance(n, Nest) and n.out.device == "cpu" and may_raise(n)


def writes_input(n: Node) -> bool:
    return any(b.role == "input" for b in writes(n))


def checked_before_writes(plan: Plan) -> bool:
    """Whether no kernel may raise on a CPU at or behind the first step that writes to an input."""
    written = False
    for step in plan.steps:
        nodes = _nodes_of(step)
        written = written or any(map(writes_input, nodes))
        if written and any(map(checks_on_host, nodes)):
            return False
    return True


def _nodes_of(step: Step) -> tuple[Node, ...]:
    if isinstance(step, Kernel):
        return tuple(n for s in step.stages for n in s.nests)
    if isinstance(step, Bundle):
        return tuple(n for k in step.kernels for n in _nodes_of(k))
    return (step,) if isinstance(step, Extern) else ()


@dataclass(slots=True)
class _Renaming:
    """Buffers that are replaced by equal ones, applied to the nodes after."""

    buffers: dict[Buffer, Buffer]

    def node(self, n: Node) -> Node:
        if not any(b in self.buffers for b in uses(n).reads):
            return n
        if isinstance(n, Extern):
            return replace(n, args=self._args(n.args),
                           kwargs=tuple((k, self.arg(v)) for k, v in n.kwargs))  # fmt: skip
        swap = BufferSwap(self.buffers)
        return replace(n, index=swap.index(n.index), body=swap.scalar(n.body))

    def _args(self, args: tuple[ExternArg, ...]) -> tuple[ExternArg, ...]:
        return tuple(self.arg(a) for a in args)

    def arg(self, a: ExternArg) -> ExternArg:
        if isinstance(a, View):
            return self.view(a)
        return self._args(a) if isinstance(a, tuple) else a

    def view(self, v: View) -> View:
        return replace(v, buffer=self.buffers.get(v.buffer, v.buffer))


def share_equal(g: LoopGraph) -> LoopGraph:
    """Nests that compute the same into temporaries of one layout become one."""
    deps = analyse(g)
    returned = {v.buffer for v in g.outputs if v is not None}
    renaming = _Renaming({})
    seen: dict[object, tuple[int, Nest]] = {}
    nodes: list[Node] = []
    for at, old in enumerate(g.nodes):
        n = renaming.node(old)
        if not isinstance(n, Nest) or n.mode != "set" or deps.only_writer(n.out) is None:
            nodes.append(n)
            continue
        if n.out.role != "temp":
            nodes.append(n)
            continue
        b = n.out
        key = (n.body, n.index, n.axes, n.reduce, b.dtype, b.shape, b.strides, b.offset, b.device)
        twin = seen.get(key)
        if twin is not None and b not in returned and not _changed(deps, n, twin[0], at):
            renaming.buffers[b] = twin[1].out
            continue
        if twin is None or _changed(deps, n, twin[0], at):
            seen[key] = (at, n)
        nodes.append(n)
    return g if not renaming.buffers else replace(g, nodes=tuple(nodes))


def _changed(deps: Deps, n: Nest, after: int, before: int) -> bool:
    return any(deps.written_between(b, after, before) for b in uses(n).reads)


def drop_copies(g: LoopGraph) -> LoopGraph:
    """Without nests that copy a whole buffer into a temporary of the same layout.

    The copy stays if either side is returned (a result has storage of its own) or changes later.
    """
    deps = analyse(g)
    returned = {v.buffer for v in g.outputs if v is not None}
    renaming = _Renaming({})
    nodes: list[Node] = []
    for old in g.nodes:
        n = renaming.node(old)
        source = _copied(n) if isinstance(n, Nest) else None
        if not isinstance(n, Nest) or source is None or not _stable(deps, n, source, returned):
            nodes.append(n)
            continue
        renaming.buffers[n.out] = source
        if n.out in returned:
            returned.add(source)
    if not renaming.buffers:
        return g
    outputs = tuple(None if v is None else renaming.view(v) for v in g.outputs)
    return replace(g, nodes=tuple(nodes), outputs=outputs)


def _stable(deps: Deps, n: Nest, source: Buffer, returned: set[Buffer]) -> bool:
    """Whether the copy and its source hold the same for good, and nobody can tell them apart."""
    if source in returned or deps.only_writer(n.out) is None:
        return False
    if source.role == "temp":
        return deps.only_writer(source) is not None
    return source not in deps.writers and n.out not in returned


def _copied(n: Nest) -> Buffer | None:
    """The buffer that `n` copies as a whole into a temporary, if that is all it does."""
    if n.reduce is not None or n.mode != "set" or not isinstance(n.body, Load):
        return None
    a, b = n.body.buffer, n.out
    same = (a.dtype, a.shape, a.strides, a.offset, a.device) == (
        b.dtype, b.shape, b.strides, b.offset, b.device)  # fmt: skip
    if not same or b.role != "temp" or n.body.index != n.index:
        return None
    return a if covers(n) else None


def covers(n: Nest) -> bool:
    """Whether `n` writes every element of its buffer exactly once, dimension by axis."""
    left = {a.sym: a.size for a in n.axes}
    for e, size in zip(n.index, n.out.shape, strict=True):
        if e in left:
            if left.pop(e) is not size:  # type: ignore[call-overload]
                return False
        elif not (e.is_const and size.is_const and size.value == 1):
            return False
    return not left
