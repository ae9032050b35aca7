"""A Program of a few equal stretches of work, lengthened to one of many.

    short    before  S1  S2  after
    long     before  S1  S2  X1 ... Xm  after

S2 is S1 with other tensors: other parameters, other results. So S2 turns the state that S1 leaves
into one of the same form, and can be run once more on the next parameters, any number of times,
before `after` goes on from there. Temporaries get new places in the arena, by the rule by which
those of any Program get theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchweld.base.errors import InternalError
from torchweld.ir.arena import Arena
from torchweld.ir.loop import LoopGraph
from torchweld.ir.program import (
    ALIGN,
    Alloc,
    Call,
    CallArg,
    Draw,
    Drop,
    GridLaunch,
    Instruction,
    Launch,
    MakeView,
    Patch,
    Program,
    Sizes,
    TensorArg,
    TensorSpec,
)
from torchweld.ir.program_sizes import at as program_at

# the stretch and the slot that an input belongs to
Label = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Inputs:
    """How the inputs of the short and the long Program correspond.

    labels: of those of the short one that belong to a stretch, by position. shared: its other
    positions -> positions in the long one. places: label -> position in the long one.
    more: stretches that the short Program lacks.
    results: labels of the short one's outputs that a stretch makes, by position. returned: the
    outputs of the long one, each a label or the position in the short one; by default the same.
    """

    labels: Mapping[int, Label]
    shared: Mapping[int, int]
    places: Mapping[Label, int]
    more: int
    results: Mapping[int, Label] = field(default_factory=dict)
    returned: tuple[int | Label, ...] = ()


def lengthen(short: Program, inputs: Inputs) -> Program | str:
    """The long Program; or why it cannot be made of this short one."""
    if short.n_inputs != len(inputs.labels) + len(inputs.shared):
        return "it has inputs of its own"
    if short.sizes is not None and any(i in inputs.labels for _, i, _ in short.sizes.readings):
        return "sizes are read of a parameter"
    if short.meta.get("mutated"):
        return "it writes to inputs"
    if short.host is not None:
        return "numbers are computed on the CPU"
    if short.prologue is not None and not inputs.shared.keys() >= set(short.prologue.frozen):
        return "it computes something of a stretch's parameters once"
    if any(isinstance(step, Draw) for step in short.steps):
        return "it draws random numbers"
    why = ""
    # what is special about the first stretch may reach into the next
    for s1 in range(1, max((k for k, _ in inputs.labels.values()), default=0) - 1):
        work = _Work(short, inputs, s1)
        why = work.find_results() or work.find() or work.compare() or work.check_after()
        if not why:
            return _Writer(work).program()
    return why


@dataclass(frozen=True, slots=True)
class Origin:
    """What a Program for a range of sizes was made of: one for a single choice can be made of it.

    inputs: how it was lengthened, None if it was not.
    """

    loop: LoopGraph
    inputs: Inputs | None = None


ORIGIN = "origin"  # Program.meta[ORIGIN]: its Origin


@dataclass(frozen=True, slots=True)
class Patched:
    """The numbers of a Program that depend on sizes, by the tensor or step that they belong to."""

    tensors: Mapping[int, tuple[Patch, ...]]
    steps: Mapping[int, tuple[Patch, ...]]

    @classmethod
    def of(cls, p: Program) -> Patched:
        found: tuple[dict[int, tuple[Patch, ...]], ...] = ({}, {})
        for patch in p.sizes.patches if p.sizes else ():
            rows = found[patch.what in _OF_STEPS]
            rows[patch.at] = (*rows.get(patch.at, ()), patch)
        return cls(*found)

    def tensor(self, t: int) -> tuple[Patch, ...]:
        return self.tensors.get(t, ())

    def step(self, i: int) -> tuple[Patch, ...]:
        return self.steps.get(i, ())

    def same_tensor(self, x: int, y: int) -> bool:
        return _anywhere(self.tensor(x)) == _anywhere(self.tensor(y))

    def same_step(self, i: int, j: int) -> bool:
        return _anywhere(self.step(i)) == _anywhere(self.step(j))


_OF_STEPS = ("extent", "grain", "blocks")


def _anywhere(patches: tuple[Patch, ...]) -> tuple[Patch, ...]:
    return tuple(replace(p, at=0) for p in patches)


@dataclass(slots=True)
class _Work:
    """s1: which stretch S1 is. cut: where S1, S2 and what comes after begin.

    first: the step at which a tensor is met. next: what each tensor of S1 is in S2.
    results: labels of the outputs that a stretch makes. owned: these, and what they are views of.
    """

    short: Program
    inputs: Inputs
    s1: int
    cut: tuple[int, int, int] = (0, 0, 0)
    first: dict[int, int] = field(default_factory=dict)
    next: dict[int, int] = field(default_factory=dict)
    results: dict[int, Label] = field(default_factory=dict)
    owned: set[int] = field(default_factory=set)
    patched: Patched = field(init=False)

    def __post_init__(self) -> None:
        self.patched = Patched.of(self.short)

    def find_results(self) -> str:
        """Which tensors the labelled outputs are. Answers what is wrong, if any."""
        outputs = self.short.outputs
        others = {t for i, t in enumerate(outputs) if i not in self.inputs.results}
        for i, label in self.inputs.results.items():
            t = outputs[i]
            if t is None or t < self.short.n_inputs or t in self.results or t in others:
                return "a result of a stretch is none of its own"
            self.results[t] = label
            self.owned.add(_root(self.short, t))
        self.owned |= self.results.keys()
        return "" if not self.owned & others else "results share memory"

    def find(self) -> str:
        """Stretch k begins where something of it is first read. Answers what is wrong, if any."""
        begins: dict[int, int] = {}
        n = self.short.n_inputs
        self.first = dict.fromkeys(range(n, n + self.short.n_constants), -1)
        for i, step in enumerate(self.short.steps):
            for t in tensors_of(step):
                self.first.setdefault(t, i)
                for k in range(1, self.inputs.labels.get(t, (0, 0))[0] + 1):
                    begins.setdefault(k, i)
        if not all(self.s1 + k in begins for k in (0, 1, 2)):
            return "the stretches have no parameters"
        a, b, c = (self._prepared(begins[self.s1 + k]) for k in (0, 1, 2))
        self.cut = a, b, c
        return "" if a < b and c - b == b - a else "the stretches have different lengths"

    def _prepared(self, step: int) -> int:
        """Where what the step needs is prepared, right before it."""
        while step > 0 and isinstance(self.short.steps[step - 1], Alloc | MakeView):
            step -= 1
        return step

    def compare(self) -> str:
        """Why S2 is not S1 with other tensors, if so."""
        a, b, c = self.cut
        steps = self.short.steps
        for i, (one, two) in enumerate(zip(steps[a:b], steps[b:c], strict=True)):
            if form_of(one) != form_of(two) or not self.patched.same_step(a + i, b + i):
                return "two stretches do different work"
            for x, y in zip(tensors_of(one), tensors_of(two), strict=True):
                if self.next.setdefault(x, y) != y or not self._follows(x, y):
                    return "two stretches use their tensors differently"
        moved = [y for x, y in self.next.items() if x != y]
        if len(set(moved)) < len(moved):
            return "two tensors of a stretch become one"
        return ""

    def _follows(self, x: int, y: int) -> bool:
        """Whether y may be to S2 what x is to S1: both theirs, made in them or right before."""
        a, b, c = self.cut
        if x < self.short.n_inputs or y < self.short.n_inputs:
            mine, yours = self.inputs.labels.get(x), self.inputs.labels.get(y)
            return x == y if mine is None else yours == (mine[0] + 1, mine[1])
        met, then = self.first[x], self.first[y]
        if x == y:
            return met < a
        mine, yours = self.results.get(x), self.results.get(y)
        if yours != (None if mine is None else (mine[0] + 1, mine[1])):
            return False
        old, new = self.short.tensors[x], self.short.tensors[y]
        alike = _shape(old) == _shape(new) and self.patched.same_tensor(x, y)
        alike = alike and (old.place != "fresh" or x in self.owned or not self._given(x, y))
        return alike and ((a <= met < b <= then < c) or (met < a <= then < b))

    def _given(self, *tensors: int) -> bool:
        """Whether the caller gets one of these, or a view of it, though no stretch is its name."""
        outputs = [t for t in self.short.outputs if t is not None]
        return any(_root(self.short, t) in tensors for t in outputs)

    def check_after(self) -> str:
        """What comes after may need S2, and what S2 could need, but nothing from further back."""
        a, _, c = self.cut
        back = {x for x, y in self.next.items() if x != y and self.first[x] < a}
        read = [t for step in self.short.steps[c:] for t in tensors_of(step)]
        outputs = [t for t in self.short.outputs if t is not None and t not in self.results]
        for t in (*read, *outputs):
            label = self.inputs.labels.get(t)
            if t in back or (label is not None and label[0] <= self.s1):
                return "something of an early stretch is read at the end"
        return ""


def check_same(a: Program, b: Program) -> None:
    """Errors: InternalError unless two Programs differ only in the numbers of their tensors."""
    if a.sizes is not None and b.sizes is not None and a.sizes.readings == b.sizes.readings:
        for more in (0, 60):
            values = [(lo or 2) + more for lo, _ in a.sizes.bounds]
            check_same(program_at(a, values), program_at(b, values))
        return
    same = {i: i for i in range(a.n_inputs)}
    if a.n_inputs != b.n_inputs or _forms(a) != _forms(b):
        raise InternalError("a lengthened Program does other work than the whole one")
    for one, two in zip(a.steps, b.steps, strict=True):
        for x, y in zip(tensors_of(one), tensors_of(two), strict=True):
            if same.setdefault(x, y) != y or _looks(a.tensors[x]) != _looks(b.tensors[y]):
                raise InternalError(f"a lengthened Program has tensor {x} where {y} should be")
    outputs = tuple(None if t is None else same.get(t, -1) for t in a.outputs)
    one_to_one = len(set(same.values())) == len(same)
    if outputs != b.outputs or a.arena_bytes != b.arena_bytes or not one_to_one:
        raise InternalError("a lengthened Program has other results than the whole one")


def _forms(p: Program) -> list[Instruction]:
    """The forms of the steps, functions named in the order in which they are first launched."""
    names: dict[str, str] = {}
    found: list[Instruction] = []
    for form in map(form_of, p.steps):
        if isinstance(form, (Launch, GridLaunch)):
            name = names.setdefault(form.function, f"f{len(names)}")
            form = replace(form, function=name)
        found.append(form)
    return found


class _Writer:
    """Writes the long Program. tensors: so far; ours: number in the short one -> number here."""

    def __init__(self, work: _Work) -> None:
        self.work = work
        self.short = work.short
        self.given = work.inputs
        self.like = self._inputs()  # number here -> in the short one, whose sizes it has
        self.tensors = [replace(self.short.tensors[t], index=i) for i, t in enumerate(self.like)]
        self.ours = dict(self.given.shared)
        grown = len(self.tensors) - self.short.n_inputs
        for t in range(self.short.n_inputs, len(self.short.tensors)):
            self.ours[t] = t + grown
        # behind the inputs as they were; where they stand in for others is decided by who reads
        number = self._namer({}, 0)
        self.tensors += [_moved(x, number) for x in self.short.tensors[self.short.n_inputs :]]
        self.like += range(self.short.n_inputs, len(self.short.tensors))

    def program(self) -> Program | str:
        _, b, c = self.work.cut
        steps, outputs = self.short.steps, self.short.outputs
        long = [_renamed(x, self._namer({}, 0)) for x in steps[:c]]
        first = self.work.first
        made = [t for t in self.ours if b <= first.get(t, -1) < c]
        stretch = {t: self.ours[t] for t in made}
        results = {label: self.ours[t] for t, label in self.work.results.items() if first[t] < c}
        for k in range(1, self.given.more + 1):
            stretch = self._stretch(stretch, made, k)
            long += [_renamed(x, self._namer(stretch, k)) for x in steps[b:c]]
            results |= {(label[0] + k, label[1]): stretch[t]
                        for t, label in self.work.results.items() if t in made}  # fmt: skip
        end = self._namer(stretch, self.given.more)
        long += [_renamed(x, end) for x in steps[c:]]
        kinds = [*range(c), *(list(range(b, c)) * self.given.more), *range(c, len(steps))]
        results |= {(label[0] + self.given.more, label[1]): self.ours[t]
                    for t, label in self.work.results.items() if first[t] >= c}  # fmt: skip
        returned = self.given.returned or tuple(range(len(outputs)))
        if results.keys() != {r for r in returned if isinstance(r, tuple)}:
            return "some results of the stretches are missing"
        once = self.short.prologue
        if once is not None:
            frozen = tuple(self.given.shared[i] for i in once.frozen)
            once = replace(once, frozen=frozen)
        return _placed(_rooted(replace(
            self.short, prologue=once, tensors=tuple(self.tensors), steps=tuple(long),
            n_inputs=len(self.given.shared) + len(self.given.places), sizes=self._sizes(kinds),
            outputs=tuple(results[r] if isinstance(r, tuple) else _named(end, outputs[r])
                          for r in returned),
        )))  # fmt: skip

    def _stretch(self, before: dict[int, int], made: list[int], k: int) -> dict[int, int]:
        """The numbers of stretch Xk: of what S1 made, it reads what the stretch before it made."""
        read = {x: before[y] for x, y in self.work.next.items() if x != y and y in before}
        first = len(self.tensors)
        here = read | {t: first + i for i, t in enumerate(made)}
        number = self._namer(here, k)
        self.tensors += [_moved(self.short.tensors[t], number) for t in made]
        self.like += made
        return here

    def _sizes(self, kinds: Sequence[int]) -> Sizes | None:
        """What depends on the sizes of a call. kinds: the short one's step that each step is."""
        sizes = self.short.sizes
        if sizes is None:
            return None
        readings = tuple((kind, self.given.shared[i], dim) for kind, i, dim in sizes.readings)
        patched = self.work.patched
        patches = [replace(p, at=n) for n, t in enumerate(self.like) for p in patched.tensor(t)]
        patches += [replace(p, at=n) for n, i in enumerate(kinds) for p in patched.step(i)]
        return replace(sizes, readings=readings, patches=tuple(patches))

    def _namer(self, here: Mapping[int, int], ahead: int) -> Callable[[int], int]:
        """Number in the short Program -> number here, in a stretch so many further on."""
        labels, places = self.given.labels, self.given.places

        def number(t: int) -> int:
            if t in labels:
                k, slot = labels[t]
                return places[k + ahead, slot]
            return here.get(t, self.ours[t])

        return number

    def _inputs(self) -> list[int]:
        """What the inputs of the long Program look like, in their order."""
        like = {self.given.shared[t]: t for t in self.given.shared}
        known = {label: t for t, label in self.given.labels.items()}
        any_of = {slot: t for (_, slot), t in known.items()}
        for (k, slot), place in self.given.places.items():
            like[place] = known.get((k, slot), any_of[slot])
        return [like[i] for i in range(len(like))]


def _rooted(p: Program) -> Program:
    """The Program with views that say what they are views of."""
    tensors = list(p.tensors)
    for step in p.steps:
        if isinstance(step, MakeView):
            tensors[step.tensor] = replace(tensors[step.tensor], index=step.source)
    return replace(p, tensors=tuple(tensors))


def _placed(p: Program) -> Program:
    """The Program with its temporaries in an arena, as fuse/memory.py places those of a Plan."""
    align = p.meta[ALIGN]
    assert isinstance(align, int)
    arena: Arena[int] = Arena(align)
    touched: list[dict[int, None]] = []
    last: dict[int, int] = {}
    for at, step in enumerate(p.steps):
        works = not isinstance(step, MakeView | Drop | Alloc)
        roots = dict.fromkeys(_root(p, t) for t in tensors_of(step)) if works else {}
        touched.append({t: None for t in roots if p.tensors[t].place == "arena"})
        last.update(dict.fromkeys(touched[-1], at))
    for at, now in enumerate(touched):
        for t in now:
            if t not in arena.slots:
                arena.take(t, _span(p.tensors[t]))
        for t in now:
            if last[t] == at:
                arena.give(t)
    tensors = list(p.tensors)
    for t, (offset, _) in arena.slots.items():
        tensors[t] = replace(tensors[t], index=offset)
    return replace(p, tensors=tuple(tensors), arena_bytes=arena.top)


def _root(p: Program, t: int) -> int:
    """The tensor that owns the memory."""
    while p.tensors[t].place == "view":
        t = p.tensors[t].index
    return t


def _span(x: TensorSpec) -> int:
    """Bytes from the start of the storage to behind the last element."""
    if 0 in x.sizes:
        return 0
    last = sum((n - 1) * step for n, step in zip(x.sizes, x.strides, strict=True))
    return (x.offset + last + 1) * x.dtype.bytes


def _named(number: Callable[[int], int], t: int | None) -> int | None:
    return None if t is None else number(t)


# ---------------------------------------------------------------- tensors of a step
def tensors_of(step: Instruction) -> tuple[int, ...]:
    """The tensors that a step names, in order, each as often as it does."""
    match step:
        case Launch() | GridLaunch():
            return step.args
        case Call():
            return (*_given(step.args), *_given(tuple(v for _, v in step.kwargs)), *step.results)
        case MakeView():
            return step.source, step.tensor
        case Alloc() | Drop():
            return (step.tensor,)
        case Draw():
            return step.seed, step.block


def _given(args: tuple[CallArg, ...]) -> list[int]:
    found: list[int] = []
    for a in args:
        if isinstance(a, TensorArg):
            found.append(a.tensor)
        elif isinstance(a, tuple):
            found += _given(a)
    return found


def form_of(step: Instruction) -> Instruction:
    """The step with every tensor 0: equal for steps that do the same."""
    return _renamed(step, lambda t: 0)


def _renamed(step: Instruction, number: Callable[[int], int]) -> Instruction:
    """The step with other tensors."""

    def arg(a: CallArg) -> CallArg:
        if isinstance(a, TensorArg):
            return TensorArg(number(a.tensor))
        return tuple(map(arg, a)) if isinstance(a, tuple) else a

    match step:
        case Launch() | GridLaunch():
            return replace(step, args=tuple(map(number, step.args)))
        case Call():
            kwargs = tuple((name, arg(v)) for name, v in step.kwargs)
            results = tuple(map(number, step.results))
            return Call(step.op, tuple(map(arg, step.args)), kwargs, results)
        case MakeView():
            return MakeView(number(step.tensor), number(step.source))
        case Alloc():
            return Alloc(number(step.tensor))
        case Drop():
            return Drop(number(step.tensor))
        case Draw():
            return replace(step, seed=number(step.seed), block=number(step.block))


def _looks(x: TensorSpec) -> TensorSpec:
    """The spec without the number of what it is a view of."""
    return replace(x, index=0) if x.place == "view" else x


def _shape(x: TensorSpec) -> TensorSpec:
    """The spec without its place in the arena."""
    return replace(x, index=0) if x.place == "arena" else _looks(x)


def _moved(x: TensorSpec, number: Callable[[int], int]) -> TensorSpec:
    return replace(x, index=number(x.index)) if x.place == "view" else x
