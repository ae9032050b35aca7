"""What a CUDA graph of a Program would be: pure functions, no GPU needed.

`analyse` says for every tensor who touches its memory, or why the Program cannot be a graph;
`roles` turns that into how a graph finds each tensor (enum role in _graph.h says what they mean).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from torch._ops import OpOverload

from torchweld.ir.dtype import DType
from torchweld.ir.program import (
    Alloc,
    Call,
    CallArg,
    Drop,
    GridLaunch,
    Launch,
    MakeView,
    Program,
    TensorArg,
    TensorSpec,
    TorchArg,
)
from torchweld.runtime.calls import resolve

# Host time that a graph saves per kernel of ours and per operator, and what a copy inside of a
# graph moves: one H200, docs/cuda.md.
LAUNCH_SECONDS, CALL_SECONDS = 3.5e-6, 14e-6
COPY_SECONDS_PER_BYTE = 2 / 4e12
# Results of operators from this size on are given out without a copy.
LEND_BYTES = 2 << 20
# So many results, and as many changed inputs: a training step that returns its gradients.
MANY_RESULTS = 8
# An input that an operator reads is copied without a thought up to this size.
SMALL_BYTES = 64 << 10

# Places of numbers that kernels may take by value: known before the graph is launched.
_NUMBERS = ("input", "const", "state", "number")
# Places of what a Program makes and may give out.
_OWN = ("extern", "fresh")
_RANDOM = "nondeterministic_seeded"
_TAGS = {
    _RANDOM: "draws random numbers",
    "dynamic_output_shape": "has a result whose shape depends on data",
    "data_dependent_output": "reads data on the CPU",
}


class Role(IntEnum):
    """How a graph finds a tensor: the values of enum role in _graph.h."""

    NONE = 0
    STATIC = 1
    PATCH = 2
    VALUE = 3
    COPY = 4
    OUT = 5
    HELD = 6


@dataclass(frozen=True, slots=True)
class NoGraph:
    """Why a Program is not run as a CUDA graph."""

    why: str


@dataclass(frozen=True, slots=True)
class Lending:
    """What of its outputs a graph lends, of those that are not made by our kernels alone.

    saved: the last so many outputs are read by a backward: they are lent, whoever makes them; None
    for a Program that is no forward. kept: positions of outputs that the backward reads besides.
    least: other outputs are lent from this size on; None: as GraphPlan.lend_bytes says.
    """

    saved: int | None = None
    kept: tuple[int, ...] = ()
    least: int | None = None


NOTHING_SAVED = Lending()


def _dear_bytes(saved_seconds: float) -> float:
    """What is not worth a copy per call."""
    return saved_seconds / 4 / COPY_SECONDS_PER_BYTE


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """Who touches what.

    root: by tensor, the tensor whose memory it is in. launched, called: roots that our kernels and
    that operators touch; numbers: what kernels take by value. made: roots of the outputs
    that the Program makes. tail: the steps that make the outputs' views; n_shown: how many of them
    outputs need that are not saved. held: roots that are lent whatever their size.
    """

    program: Program
    root: tuple[int, ...]
    launched: frozenset[int]
    called: frozenset[int]
    numbers: frozenset[int]
    mutated: frozenset[int]
    made: tuple[int, ...]
    tail: tuple[int, ...]
    n_shown: int
    held: frozenset[int]
    lending: Lending
    launches: int
    calls: int

    def heavy(self) -> frozenset[int]:
        """Inputs that are not worth a copy per call."""
        limit = _dear_bytes(self.saved_seconds())
        return frozenset(n for n in self.given if span(self.program.tensors[n]) > limit)

    def saved_seconds(self) -> float:
        """Host time that a graph saves per call."""
        return self.launches * LAUNCH_SECONDS + self.calls * CALL_SECONDS

    def lend_bytes(self) -> float:
        """From which size on operators' results are lent that no backward reads.

        While results of a forward are lent, the next call needs memory of its own for all that is
        saved: they are copied unless that is dear. Of a step that changes its parameters the
        results are gradients, which the next step replaces.
        """
        if self.lending.least is not None:
            return self.lending.least
        if self.lending.saved:
            return max(LEND_BYTES, _dear_bytes(self.saved_seconds()))
        return SMALL_BYTES if self.is_step() else LEND_BYTES

    def is_step(self) -> bool:
        """Whether it is a step that changes its parameters and gives their gradients."""
        return len(self.mutated) >= len(self.made) >= MANY_RESULTS

    @property
    def given(self) -> range:
        """The inputs and the constants."""
        return range(self.program.n_inputs + self.program.n_constants)


def analyse(
    p: Program, forced: bool = False, lending: Lending = NOTHING_SAVED
) -> GraphPlan | NoGraph:
    """Who touches what, or why the Program cannot be a graph.

    forced: the user promises that operators of other namespaces only work on the GPU.
    """
    why = _impossible(p, forced)
    if why:
        return NoGraph(why)
    root = _roots(p)
    launches = [s for s in p.steps if isinstance(s, GridLaunch) and s.blocks]
    calls = [s for s in p.steps if isinstance(s, Call)]
    numbers = {n for s in launches for n in s.args if p.tensors[n].device == "cpu"}
    launched = {root[n] for s in launches for n in s.args} - numbers
    called = {root[n] for c in calls for n in (*_numbers_in(c), *c.results)}
    called -= {n for n in called if p.tensors[n].place == "extern" and p.tensors[n].device == "cpu"}
    why = _strangers(p, numbers, called) or _escaping(p, root)
    if why:
        return NoGraph(why)
    given = p.n_inputs + p.n_constants
    out = [n for n in p.outputs if n is not None]
    results = p.outputs[: len(p.outputs) - (lending.saved or 0)]
    shown = _tail(p, [n for n in results if n is not None])
    found = p.meta.get("mutated", ())
    return GraphPlan(
        p, root, frozenset(launched), frozenset(called), frozenset(numbers),
        frozenset(found if isinstance(found, tuple) else ()),
        tuple(dict.fromkeys(root[n] for n in out if root[n] >= given)),
        (*shown, *(i for i in _tail(p, out) if i not in shown)), len(shown),
        _held(p, root, lending), lending, len(launches), len(calls),
    )  # fmt: skip


def span(s: TensorSpec) -> int:
    """Bytes from the first to the last element."""
    if 0 in s.sizes:
        return 0
    last = sum((n - 1) * step for n, step in zip(s.sizes, s.strides, strict=True))
    return (1 + last) * s.dtype.bytes


def working_bytes(plan: GraphPlan) -> int:
    """The most that is alive at once of what a graph of the Program holds only while it runs."""
    p, now, most = plan.program, 0, 0
    alive: dict[int, int] = {}
    for s in p.steps:
        made = (s.tensor,) if isinstance(s, Alloc) else s.results if isinstance(s, Call) else ()
        for n in made:
            alive[n] = 0 if n in plan.made or plan.root[n] != n else span(p.tensors[n])
            now += alive[n]
        if isinstance(s, Drop):
            now -= alive.pop(s.tensor, 0)
        most = max(most, now)
    return most + p.arena_bytes


def releases(
    plan: GraphPlan, at: Sequence[int], blocks: Sequence[tuple[int, int]]
) -> tuple[frozenset[int], tuple[int, ...]]:
    """Which inputs lie in these blocks, and when each block is free: step, block, step, block...

    at: the inputs' addresses. blocks: (address, bytes). A block that an output shares never is.
    """
    p, order = plan.program, sorted((a, a + n, k) for k, (a, n) in enumerate(blocks))
    starts = [start for start, _, _ in order]
    inside: dict[int, int] = {}
    for n, address in enumerate(at):
        k = bisect.bisect_right(starts, address) - 1
        if k >= 0 and address < order[k][1]:
            inside[n] = order[k][2]
    last = dict.fromkeys(range(len(blocks)), 0)
    for i, s in enumerate(p.steps):
        for n in _used(s):
            if plan.root[n] in inside:
                last[inside[plan.root[n]]] = i
    for root in (plan.root[n] for n in p.outputs if n is not None):
        if root in inside:
            last.pop(inside[root], None)
    pairs = sorted((step, block) for block, step in last.items())
    return frozenset(inside), tuple(number for pair in pairs for number in pair)


def roles(
    plan: GraphPlan, static: frozenset[int], lend: bool, forced: bool = False
) -> bytes | NoGraph:
    """How a graph finds each tensor, or why it would not pay.

    static: inputs that operators read and that stay where they are. lend: whether large results
    of operators are given out as they are. forced: pay what it costs.
    """
    p = plan.program
    found = bytearray(len(p.tensors))
    for n in plan.given:
        found[n] = _input_role(plan, n, static)
    for n in plan.made:
        found[n] = _output_role(plan, n, lend)
    for n in plan.numbers:
        found[n] = Role.VALUE
    why = _uncopyable(plan, found)
    if not why and not forced:
        why = _does_not_pay(plan, copied_bytes(plan, bytes(found)))
    return NoGraph(why) if why else bytes(found)


def copied_bytes(plan: GraphPlan, found: bytes) -> int:
    """What a graph with these roles copies in every call."""
    total = 0
    for n, role in enumerate(found):
        if role in (Role.COPY, Role.OUT):
            total += span(plan.program.tensors[n]) * (1 + (n in plan.mutated))
    return total


def _input_role(plan: GraphPlan, n: int, static: frozenset[int]) -> Role:
    if n in plan.called:
        return Role.STATIC if n in static else Role.COPY
    return Role.PATCH if n in plan.launched else Role.NONE


def held_outputs(p: Program, lending: Lending) -> frozenset[int]:
    """Positions of the outputs that a graph of the Program holds for a backward."""
    root = _roots(p)
    held = _held(p, root, lending)
    return frozenset(k for k, n in enumerate(p.outputs) if n is not None and root[n] in held
                     and p.tensors[root[n]].place in _OWN)  # fmt: skip


def _held(p: Program, root: tuple[int, ...], lending: Lending) -> frozenset[int]:
    """What a backward reads: it is to be where it was. Small results that others see are not."""
    first = len(p.outputs) - (lending.saved or 0)
    saved = {n for n in p.outputs[first:] if n is not None}
    results = {n for k in lending.kept if (n := p.outputs[k]) is not None}
    results = {n for n in results if span(p.tensors[root[n]]) > SMALL_BYTES}
    return frozenset(root[n] for n in (*saved, *results))


def _output_role(plan: GraphPlan, n: int, lend: bool) -> Role:
    spec = plan.program.tensors[n]
    if lend and spec.place in _OWN and (n in plan.held or _is_small_gradient(plan, spec)):
        return Role.HELD
    if n not in plan.called:
        return Role.PATCH
    large = lend and spec.place == "extern" and span(spec) >= plan.lend_bytes()
    return Role.HELD if large else Role.OUT


def _is_small_gradient(plan: GraphPlan, spec: TensorSpec) -> bool:
    """Of a bias or a norm: there are many, and a tensor on lent memory is sooner made."""
    return plan.lending.least == 0 and span(spec) <= SMALL_BYTES


def _uncopyable(plan: GraphPlan, found: bytearray) -> str:
    """Copying a tensor with gaps back would overwrite what lies in them."""
    for n, role in enumerate(found):
        s = plan.program.tensors[n]
        if role in (Role.COPY, Role.OUT) and s.dtype is DType.OTHER:
            return f"tensor {n} has a type that cannot be copied"
        if role == Role.COPY and n in plan.mutated and span(s) != _elements(s) * s.dtype.bytes:
            return f"an operator writes to input {n}, which is not dense"
    return ""


def _does_not_pay(plan: GraphPlan, copied: int) -> str:
    steps = plan.launches + plan.calls
    if steps < 2:
        return f"{steps} kernel or operator: a launch list is as fast"
    if copied * COPY_SECONDS_PER_BYTE > plan.saved_seconds():
        return f"{copied} bytes would be copied in and out of the graph"
    return ""


# ---------------------------------------------------------------- refusals
def _impossible(p: Program, forced: bool) -> str:
    devices = {s.device for s in p.tensors if s.device != "cpu"}
    if len(devices) != 1 or not all(d.startswith("cuda") for d in devices):
        return f"tensors on {', '.join(sorted(devices)) or 'no GPU'}"
    for s in p.steps:
        if isinstance(s, Launch):
            return f"{s.function} runs on the CPU"
        why = _call_refusal(s, forced) if isinstance(s, Call) else ""
        if why:
            return why
    return ""


def _call_refusal(c: Call, forced: bool) -> str:
    op = resolve(c.op)
    if op.namespace == "torchweld" and op._schema.name != "torchweld::launched":
        return f"{c.op} runs Python code of the user's"
    if op.namespace not in ("aten", "prims") and not forced:
        return f"{c.op} is not ATen's: what it does on the CPU would be left out"
    for tag in op.tags:
        if tag.name in _TAGS and not (tag.name == _RANDOM and _drops_nothing(c, op)):
            return f"{c.op} {_TAGS[tag.name]}"
    if any(_names_cpu(a) for a in (*c.args, *(v for _, v in c.kwargs))):
        return f"{c.op} works on the CPU"
    return ""


def _drops_nothing(c: Call, op: OpOverload) -> bool:
    """Attention without dropout draws no random numbers, though its operator is marked so."""
    given = dict(c.kwargs)
    for i, a in enumerate(op._schema.arguments):
        if a.name == "dropout_p":
            value = c.args[i] if i < len(c.args) else given.get(a.name, a.default_value)
            return value == 0
    return False


def _names_cpu(arg: CallArg) -> bool:
    if isinstance(arg, tuple):
        return any(_names_cpu(a) for a in arg)
    return isinstance(arg, TorchArg) and arg.kind == "device" and arg.name.startswith("cpu")


def _strangers(p: Program, numbers: set[int], called: set[int]) -> str:
    """CPU tensors may only be numbers that kernels take by value, or results that nobody uses."""
    used = {n for s in p.steps for n in _used(s)} | set(p.outputs)
    for n, s in enumerate(p.tensors):
        if s.device != "cpu" or (s.place == "extern" and n not in used):
            continue
        if n in called:
            return f"an operator reads tensor {n}, which is on the CPU"
        if n in numbers and s.place not in _NUMBERS:
            return f"tensor {n} is computed on the CPU"
        if s.place not in _NUMBERS:
            return f"tensor {n} is on the CPU"
    return ""


def _used(step: object) -> Iterator[int]:
    """The tensors that a step reads."""
    if isinstance(step, GridLaunch):
        yield from step.args
    elif isinstance(step, MakeView):
        yield step.source
    elif isinstance(step, Call):
        yield from _numbers_in(step)


def _escaping(p: Program, root: tuple[int, ...]) -> str:
    """Outputs must be made anew per call: by Alloc, by an operator, or as a MakeView."""
    made = {n for c in p.steps if isinstance(c, Call) for n in c.results}
    viewed = {s.tensor: s.source for s in p.steps if isinstance(s, MakeView)}
    for n in p.outputs:
        while n in viewed:
            n = viewed[n]
        if n is not None and n in made and root[n] != n:
            return f"output {n} shares memory with what its operator was given"
    return ""


# ---------------------------------------------------------------- who is where
def _roots(p: Program) -> tuple[int, ...]:
    """By tensor, the tensor whose memory it is in: through views and through aliasing operators."""
    root = list(range(len(p.tensors)))
    for s in p.steps:
        if isinstance(s, MakeView):
            root[s.tensor] = root[s.source]
        elif isinstance(s, Call):
            for result, source in _aliases(s, resolve(s.op)):
                root[result] = root[source]
    return tuple(root)


def _aliases(c: Call, op: OpOverload) -> Iterator[tuple[int, int]]:
    """(result, argument) of every result that may share an argument's memory."""
    sources: dict[str, int] = {}
    schema = op._schema
    given = dict(c.kwargs)
    for i, a in enumerate(schema.arguments):
        value = c.args[i] if i < len(c.args) and not a.kwarg_only else given.get(a.name)
        found = list(_tensors(value))
        if a.alias_info is not None and found:
            sources.update((name, found[0]) for name in a.alias_info.before_set)
    for result, r in zip(c.results, schema.returns, strict=False):
        if r.alias_info is None:
            continue
        for name in r.alias_info.before_set:
            if name in sources:
                yield result, sources[name]
    if len(c.results) > len(schema.returns) and sources:  # a list of views
        yield from ((n, next(iter(sources.values()))) for n in c.results)


def _numbers_in(c: Call) -> Iterator[int]:
    for a in (*c.args, *(v for _, v in c.kwargs)):
        yield from _tensors(a)


def _tensors(arg: object) -> Iterator[int]:
    if isinstance(arg, TensorArg):
        yield arg.tensor
    elif isinstance(arg, tuple):
        for a in arg:
            yield from _tensors(a)


def _tail(p: Program, out: list[int]) -> tuple[int, ...]:
    """The MakeView steps that outputs are made by, in order."""
    steps = {s.tensor: (i, s.source) for i, s in enumerate(p.steps) if isinstance(s, MakeView)}
    needed: set[int] = set()
    for n in out:
        while n in steps:
            i, n = steps[n]
            needed.add(i)
    return tuple(sorted(needed))


def _elements(s: TensorSpec) -> int:
    n = 1
    for size in s.sizes:
        n *= size
    return n
