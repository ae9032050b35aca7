"""Where temporaries live: slots of one arena that are reused when their last reader is done.

Slots are aligned as the target wants. A temporary that the caller gets (or a view of it) is fresh:
a tensor of its own. So is one that lies on another device. One whose size is known only at run
time, or that is large on a GPU, is a tensor that is freed behind its last reader: results of
operators can have its memory then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchweld.fuse.target import Machine
from torchweld.ir.arena import Arena
from torchweld.ir.expr import Int
from torchweld.ir.loop import Buffer, Extern, LoopGraph, views_of
from torchweld.ir.plan import Bundle, Free, Kernel, Slot, Step


@dataclass(frozen=True, slots=True)
class Memory:
    """Steps with Free in place, and where each temporary lives."""

    steps: tuple[Step, ...]
    slots: tuple[Slot, ...]
    fresh: tuple[Buffer, ...]
    arena_bytes: int
    device: str  # of the arena
    align: int


def buffers_of(s: Step) -> tuple[Buffer, ...]:
    """The buffers in memory that a step touches, each once; alike for steps that do the same."""
    if isinstance(s, Kernel | Bundle):
        return tuple(dict.fromkeys(s.args))
    if isinstance(s, Extern):
        views = views_of(s.args) + views_of(tuple(v for _, v in s.kwargs))
        return tuple(dict.fromkeys((*(v.buffer for v in views), *s.outs, *s.writes)))
    return (s.buffer,)


def span_bytes(b: Buffer) -> int | None:
    """Bytes from the start of the storage to behind the last element; None if not constant."""
    last = 0
    for n, step in zip(b.shape, b.strides, strict=True):
        if not isinstance(n, Int) or not isinstance(step, Int):
            return None
        if n.n == 0:
            return 0
        last += (n.n - 1) * step.n
    if not isinstance(b.offset, Int):
        return None
    return (b.offset.n + last + 1) * b.dtype.bytes


def plan_memory(g: LoopGraph, steps: list[Step], machine: Machine) -> Memory:
    """Lifetimes over the steps, best-fit slots in one arena, Free after the last use of others."""
    last: dict[Buffer, int] = {}
    for at, s in enumerate(steps):
        for b in buffers_of(s):
            last[b] = at
    returned = {v.buffer for v in g.outputs if v is not None}
    external = {b for s in steps if isinstance(s, Extern) for b in s.outs}
    device = _arena_device(g, last, external)
    arena: Arena[Buffer] = Arena(machine(device).align)
    fresh: list[Buffer] = []
    freed: set[Buffer] = set()  # fresh for as long as somebody reads them
    out: list[Step] = []
    seen: set[Buffer] = set()
    for at, s in enumerate(steps):
        touched = buffers_of(s)
        for b in touched:
            if b in seen:
                continue
            seen.add(b)
            if b.role != "temp" or b in external:
                continue
            size = span_bytes(b)
            most = machine(b.device).apart
            alone = size is None or (most is not None and size >= most)
            if b in returned or alone or b.device != device:
                fresh.append(b)
                freed |= {b} if alone else set()
            elif size is not None:
                arena.take(b, size)
        out.append(s)
        for b in touched:
            if last[b] != at or b.role != "temp" or b in returned:
                continue
            if b in external or b in freed:
                out.append(Free(b))
            elif b in arena.live:
                arena.give(b)
    fresh += [b for b in _unwritten(g, seen) if b not in fresh]
    slots = tuple(Slot(b, offset, size) for b, (offset, size) in arena.slots.items())
    return Memory(tuple(out), slots, tuple(fresh), arena.top, device, arena.align)


def _arena_device(g: LoopGraph, used: Iterable[Buffer], external: set[Buffer]) -> str:
    """The arena is on one device: the one with most bytes of temporaries."""
    returned = {v.buffer for v in g.outputs if v is not None}
    total: dict[str, int] = {}
    for b in used:
        if b.role == "temp" and b not in returned and b not in external:
            total[b.device] = total.get(b.device, 0) + (span_bytes(b) or 0)
    return max(total, key=lambda d: total[d], default="cpu")


def _unwritten(g: LoopGraph, seen: set[Buffer]) -> list[Buffer]:
    """Returned temporaries that no step touches: they have no elements."""
    rest = [v.buffer for v in g.outputs if v is not None and v.buffer not in seen]
    return [b for b in dict.fromkeys(rest) if b.role == "temp"]
