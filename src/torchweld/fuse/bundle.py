"""Bundles: small kernels that have nothing to do with each other run as one launch.

A kernel that moves little spends its time on starting. Those that neither read nor write what
another one writes, directly or through what runs in between, share the blocks of one launch; each
keeps its own tile. A bundle stands where its first kernel stood, or behind what the others need.

    k0  mm  k1  k2      k1 needs mm, k0 is needed by k2      ->      mm  [k0 k1]  k2

This comes before memory is planned: what the kernels of a bundle touch lives at the same time.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from torchweld.fuse.cost import bytes_of, flops_of, launch_points
from torchweld.fuse.deps import Deps, Uses, predecessors, uses
from torchweld.fuse.facts import body_facts, points
from torchweld.fuse.group import loads_of
from torchweld.fuse.target import Machine
from torchweld.ir.loop import Nest
from torchweld.ir.plan import Bundle, Free, Kernel, Step, Tile

MEMBERS = 64
PARAMS = 240  # pointers: half of the 4 KB that every CUDA driver passes to a kernel
BODIES = 8  # different ones: they are compiled in one go, and share registers
OPERATIONS = 600  # of these together
# What a bundle touches is in the L2 cache (50 MB) until kernels that once stood next to it come.
BYTES = 32 << 20
# Steps between the first kernel of a bundle and its last, but for what needs no other step: equal
# layers are bundled alike if layers do not reach into one another.
REACH = 24
TRIED = 4  # bundles that are tried for one kernel
SPARE = 132 * 32  # warps: half of the machine. A kernel of so few may have idle ones

Place = tuple[int, ...]  # places are compared as tuples: (3, -1) lies right behind (3,)


@dataclass(slots=True)
class _Bundle:
    """A bundle that is being filled. until: the first place of what needs one of its kernels."""

    key: Hashable
    first: int
    at: Place
    kernels: dict[int, Kernel] = field(default_factory=dict)  # by number of the step
    until: Place | None = None
    bytes: int = 0
    bodies: dict[Hashable, int] = field(default_factory=dict)  # operations of each

    @property
    def warps(self) -> int:
        return max(_tile(k).warps for k in self.kernels.values())


@dataclass(slots=True)
class _Order:
    """Where each step will stand. homes: the bundle of each small kernel."""

    steps: list[Step]
    before: list[set[int]]
    places: list[Place] = field(default_factory=list)
    homes: dict[int, _Bundle] = field(default_factory=dict)
    open: dict[Hashable, list[_Bundle]] = field(default_factory=dict)
    moved: int = 0

    def place(self, at: int) -> Place:
        return self.homes[at].at if at in self.homes else self.places[at]


def bundle_small(steps: list[Step], machine: Machine) -> list[Step]:
    """The steps, small independent kernels in bundles, in an order that respects what they need."""
    small = [isinstance(s, Kernel) and _small(s, machine) for s in steps]
    if sum(small) < 2:
        return steps
    order = _Order(steps, predecessors(Deps([_uses(s) for s in steps])))
    for at in range(len(steps)):
        order.places.append((at,))
        if small[at]:
            _find_home(order, at)
        for p in order.before[at]:
            home = order.homes.get(p)
            if home is not None:
                here = order.place(at)
                home.until = here if home.until is None else min(home.until, here)
    return _ordered(order, machine)


def _small(k: Kernel, machine: Machine) -> bool:
    if k.tile is None or not k.args:
        return False
    target = machine(device_of(k))
    if target.share is None or not launch_points(k) or not _is_static(k):
        return False
    own = max(bytes_of(k) * target.ns_per_byte, flops_of(k) * target.ns_per_flop)
    return own <= target.ns_per_launch


def _is_static(k: Kernel) -> bool:
    """Whether all its sizes are known: then so are its blocks."""
    axes = (*k.grid, *(a for st in k.stages for a in st.loops))
    return all(a.size.is_const for a in axes) and all(n.is_const for b in k.args for n in b.strides)


def device_of(k: Kernel) -> str:
    return k.stages[0].nests[0].out.device


def _uses(s: Step) -> Uses:
    """What a step reads and writes in memory."""
    if isinstance(s, Kernel):
        nests = [n for st in s.stages for n in st.nests]
        reads = {ld.buffer for n in nests for ld in loads_of(n)}
        reads |= {n.out for n in nests if n.mode != "set"}
        here = frozenset(s.args)
        return Uses(here & reads, here & {n.out for n in nests})
    assert not isinstance(s, Bundle | Free)
    return uses(s)


# ---------------------------------------------------------------- which bundle


def _find_home(order: _Order, at: int) -> None:
    """Put a small kernel into a bundle that it may join, or begin one."""
    k = order.steps[at]
    assert isinstance(k, Kernel)
    before = order.before[at]
    key = device_of(k), bool(before)
    known = order.open.setdefault(key, [])
    after = max((order.place(p) for p in before), default=())
    for b in reversed(known[-TRIED:]):
        if before and at - b.first > REACH:
            break
        # something that needs the bundle may be needed by the kernel: it lies in between
        if b.until is not None and after >= b.until:
            continue
        if before & b.kernels.keys() or not _fits(b, k):
            continue
        if after >= b.at:
            order.moved += 1
            b.at = (*after, -order.moved)
        _add(b, at, k)
        order.homes[at] = b
        return
    b = _Bundle(key, at, (at,))
    _add(b, at, k)
    order.homes[at] = b
    known.append(b)


def _add(b: _Bundle, at: int, k: Kernel) -> None:
    b.kernels[at] = k
    b.bytes += bytes_of(k)
    b.bodies[_likeness(k)] = operations(k)


def _fits(b: _Bundle, k: Kernel) -> bool:
    """Whether the limits of a launch, and of the text of one, allow another kernel."""
    if len(b.kernels) >= MEMBERS or b.bytes + bytes_of(k) > BYTES:
        return False
    args = {x for other in b.kernels.values() for x in other.args} | set(k.args)
    bodies = {**b.bodies, _likeness(k): operations(k)}
    if len(args) > PARAMS or len(bodies) > BODIES or sum(bodies.values()) > OPERATIONS:
        return False
    warps = max(b.warps, _tile(k).warps)
    return all(_runs_with(x, warps) for x in (k, *b.kernels.values()))


def _runs_with(k: Kernel, warps: int) -> bool:
    """Whether blocks of so many warps cost the kernel nothing."""
    tile = _tile(k)
    return tile.warps == warps or -(-launch_points(k) // tile.points) * warps <= SPARE


def _tile(k: Kernel) -> Tile:
    assert k.tile is not None
    return k.tile


def operations(k: Kernel) -> int:
    """How long the text of a kernel is, about: what it computes, loads and stores."""
    nests = [n for st in k.stages for n in st.nests]
    return sum(body_facts(n.body).size + 1 for n in nests)


def _likeness(k: Kernel) -> Hashable:
    """Equal for kernels whose texts will be equal; seldom for others."""
    stages = tuple((tuple(a.size for a in st.loops), tuple(map(_outline, st.nests)))
                   for st in k.stages)  # fmt: skip
    types = tuple(b.dtype for b in k.args)
    flat = len(k.grid) <= 1 and not any(st.loops for st in k.stages)
    return stages, types, k.tile, () if flat else tuple(a.size for a in k.grid)


def _outline(n: Nest) -> Hashable:
    return n.mode, n.reduce and n.reduce.kind, n.body.dtype, body_facts(n.body).flops


# ---------------------------------------------------------------- the order


def _ordered(order: _Order, machine: Machine) -> list[Step]:
    """Bundles and the other steps, by place."""
    first = {b.first: b for b in order.homes.values()}
    left = [at for at in range(len(order.steps)) if at not in order.homes or at in first]
    out: list[Step] = []
    count = 0
    for at in sorted(left, key=order.place):
        b = first.get(at)
        if b is None or len(b.kernels) == 1:
            out.append(order.steps[at])
            continue
        out.append(_closed(b, f"b{count}", machine))
        count += 1
    return out


def _closed(b: _Bundle, name: str, machine: Machine) -> Bundle:
    """Kernels whose blocks run longest come first: the others fill the machine beside them."""
    kernels = sorted(b.kernels.values(), key=_steps, reverse=True)
    share = machine(device_of(kernels[0])).share
    assert share is not None
    tiles = zip(kernels, share(kernels), strict=True)
    return Bundle(name, tuple(replace(k, tile=t) for k, t in tiles))


def _steps(k: Kernel) -> int:
    """Steps of a block through the loops of the kernel."""
    loop = _tile(k).loop
    return sum(-(-points(tuple(a.size for a in st.loops)) // loop) for st in k.stages)
