"""The plan that fuses nothing: every nest its own kernel, every temporary its own slot."""

from torchweld.ir.expr import Ind, atoms
from torchweld.ir.loop import Extern, LoopGraph, Nest, reads
from torchweld.ir.loop_eval import Storage
from torchweld.ir.loop_verify import buffers_of
from torchweld.ir.plan import Kernel, Plan, Slot, Stage


def plain_plan(g: LoopGraph) -> Plan:
    steps = []
    for k, n in enumerate(g.nodes):
        steps.append(n if isinstance(n, Extern) else plain_kernel(f"k{k}", n))
    extern = {b for n in g.nodes if isinstance(n, Extern) for b in n.outs}
    returned = {v.buffer for v in g.outputs if v is not None}
    temps = [b for b in buffers_of(g) if b.role == "temp" and b not in extern]
    slots, at = [], 0
    for b in temps:
        if b not in returned:
            size = Storage(b, {}).extent * b.dtype.bytes
            slots.append(Slot(b, at, size))
            at += -(-size // 64) * 64
    return Plan(g, tuple(steps), tuple(slots), tuple(b for b in temps if b in returned), at)


def plain_kernel(name: str, n: Nest) -> Kernel:
    args = tuple(dict.fromkeys([*sorted(reads(n), key=lambda b: b.name), n.out]))
    scattered = any(isinstance(a, Ind) for e in n.index for a in atoms(e))
    inner = n.reduce.axes if n.reduce else n.axes if scattered else ()
    grid = () if scattered and not n.reduce else n.axes
    return Kernel(name, grid, None, (Stage(inner, (n,)),), (), args, 1, n.origins)
