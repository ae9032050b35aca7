"""What a kernel moves and computes: the numbers behind fusion and tiling."""

from __future__ import annotations

from functools import lru_cache

from torchweld.fuse.facts import body_facts, points
from torchweld.ir.loop import Buffer, Nest, loads
from torchweld.ir.plan import Kernel, Plan, kernels_of

THREAD_BYTES = 16 << 10  # a thread is worth starting for this much traffic ...
THREAD_FLOPS = 20_000  # ... or this much arithmetic


@lru_cache(1 << 14)
def size_of(b: Buffer) -> int:
    """Bytes of the elements of a buffer."""
    return points(b.shape) * b.dtype.bytes


def bytes_of(k: Kernel) -> int:
    """Bytes that a kernel moves when each buffer goes through the memory bus once.

    A buffer counts with the elements that the kernel touches, at most its size.
    """
    touched: dict[Buffer, int] = {}
    inside = {x.buffer for x in k.locals}
    for st in k.stages:
        for n in st.nests:
            everything = points(tuple(a.size for a in n.all_axes))
            for ld in loads(n.body):
                if ld.buffer not in inside:
                    touched[ld.buffer] = touched.get(ld.buffer, 0) + everything
            if n.out not in inside:
                stored = everything if n.reduce is None else points(tuple(a.size for a in n.axes))
                touched[n.out] = touched.get(n.out, 0) + stored
    return sum(min(count * b.dtype.bytes, size_of(b)) for b, count in touched.items())


def flops_of_nest(n: Nest) -> int:
    """Scalar operations of a nest, transcendental ones weighted."""
    return points(tuple(a.size for a in n.all_axes)) * (body_facts(n.body).flops + 1)


def flops_of(k: Kernel) -> int:
    """Scalar operations of a kernel."""
    return sum(flops_of_nest(n) for st in k.stages for n in st.nests)


def moved(plan: Plan) -> int:
    """Bytes that all kernels of a plan move."""
    return sum(map(bytes_of, kernels_of(plan.steps)))


def launch_points(k: Kernel) -> int:
    """How many points a call of the kernel ranges over."""
    if k.grid:
        return points(tuple(a.size for a in k.grid))
    return points((k.lanes.size,)) if k.lanes is not None else 1


def grain_of(k: Kernel) -> int:
    """The least number of points that is worth a thread."""
    total = launch_points(k)
    if total <= 1:
        return 1
    worth = max(bytes_of(k) / THREAD_BYTES, flops_of(k) / THREAD_FLOPS)
    grain = max(1, round(total / worth)) if worth > 0 else total
    if not k.grid:  # strips of whole cache lines
        grain = -(-grain // 64) * 64
    return grain
