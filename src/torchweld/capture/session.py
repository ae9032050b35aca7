"""Capture: one run of the symbolic interpreter over one frame, and what it has found."""

from __future__ import annotations

import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.fx import Node

from torchweld.base.errors import GraphBreak, InternalError
from torchweld.base.loc import NOWHERE, Loc
from torchweld.capture.class_state import ClassAttr, ClassState
from torchweld.capture.fx_build import GraphBuilder
from torchweld.capture.handlers import OF_NUMBERS, RAISED, catches, handles
from torchweld.capture.late import NUMBERS, LateNumbers, is_scheduled
from torchweld.capture.state import Cont, Handed, Stuck, VFrame, refuse
from torchweld.capture.symbolic import Sizes, Varying
from torchweld.capture.values.base import (
    BoundValue,
    CellValue,
    Const,
    DictValue,
    GeneratorValue,
    InstanceValue,
    IteratorValue,
    Lazy,
    ListValue,
    Loose,
    Mutable,
    Slot,
    TensorValue,
    TupleValue,
    Value,
    is_plain,
)
from torchweld.frame.program import Dispatcher
from torchweld.ir.guard import Guard
from torchweld.ir.sizes import SizeEnv
from torchweld.ir.source import Attr, Pinned, Source, Token

# instructions that one capture may run before it gives up: far beyond the largest model
MAX_STEPS = 5_000_000


NOTHING_VARIES = Varying()

# where the code is that users do not look at
OWN_CODE = tuple(f"{Path(p).parent}/" for p in (torch.__file__, Path(__file__).parent))

_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator)

_active = threading.local()
_hooks: Any = torch._C._autograd


@functools.lru_cache(1024)
def is_library(filename: str) -> bool:
    """Whether this is no user's code. Asked for every guard."""
    return filename.startswith(OWN_CODE)


def is_compiling() -> bool:
    """Whether a capture is under way in this thread; also true for the code that is captured."""
    return bool(getattr(_active, "on", False))


class Compiling:
    """`with Compiling():` a capture is under way in this thread.

    Modes of the user's, as `with torch.device`, mean nothing to what captures and compiles. Hooks
    on what autograd saves, which are set around a call, are not to see what is saved of fake
    tensors, nor to become a part of the backward: they are called when the graph runs.
    """

    __slots__ = ("_hides", "_quiet")

    def __enter__(self) -> None:
        _active.on = True
        self._quiet = torch._C.DisableTorchFunction()
        self._quiet.__enter__()
        self._hides = _hooks._top_saved_tensors_default_hooks(False) is not None
        if self._hides:
            _hooks._push_saved_tensors_default_hooks(_same, _same)

    def __exit__(self, *exc: object) -> None:
        if self._hides:
            _hooks._pop_saved_tensors_default_hooks()
        self._quiet.__exit__(None, None, None)
        _active.on = False


def _same(x: Any) -> Any:
    return x


class WeakToken(Token):
    """A token that does not keep its object alive, where Python allows that.

    Sources are interned in a table that the garbage collector cannot see through; what an entry
    needs is kept by its guard program.
    """

    __slots__ = ("_address", "_ref")

    def __init__(self, obj: object) -> None:
        self._address = id(obj)
        try:
            self._ref: Callable[[], object] = weakref.ref(obj)
        except TypeError:
            self._ref = lambda: obj

    @property
    def obj(self) -> object:  # type: ignore[override]
        return self._ref()

    def __hash__(self) -> int:
        return self._address >> 4

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token) and other.obj is self.obj


class Private:
    """Real objects that only this capture knows (private.py), by their own id.

    made: all of them, kept alive. stand_ins: the Value that one of them stands for, where it is
    not the object itself. reals: the other way round, by the id of the Value. recipes: how those
    are made again that leave the frame.
    """

    __slots__ = ("made", "reals", "recipes", "stand_ins")

    def __init__(self) -> None:
        self.made: dict[int, object] = {}
        self.stand_ins: dict[int, Value] = {}
        self.reals: dict[int, object] = {}
        self.recipes: dict[int, Any] = {}

    def owns(self, source: Source | None) -> bool:
        """Whether a path starts at one of them."""
        if not self.made:
            return False
        while source is not None and not isinstance(source, Pinned):
            source = getattr(source, "base", None)
        return source is not None and id(source.token.obj) in self.made

    def has(self, obj: object) -> bool:
        """Whether an object is one of them, or of a class that is."""
        if not self.made:
            return False
        if isinstance(obj, property):
            return self.has(obj.fget) or self.has(obj.fset)
        if isinstance(obj, staticmethod | classmethod):
            return self.has(obj.__func__)
        if type(obj).__module__ in ("types", "typing"):  # list[A], A | None
            parts = (getattr(obj, "__origin__", None), *getattr(obj, "__args__", ()))
            return id(obj) in self.made or any(map(self.has, parts))
        return id(obj) in self.made or id(type(obj)) in self.made


class Capture:
    """Everything that changes while a frame is captured.

    frames: the virtual call stack, innermost last. objects: Value of each outside object by id.
    changed: outside objects that the frame changed, in the order of the first change: before which
    instruction the capture could stop to be without it (0: unknown), and the line.
    late: numbers that changed between calls, to be read when the compiled code runs. sizes: sizes
    that did, and what is made of them.
    locks: those that the frame took, of which it holds `held`.
    class_attrs: of classes, that are known to be assigned by somebody; class_writes: by the frame.
    class_states: of the classes that are guarded, and class_tables, what was in them; names: of
    the attributes that are read, and all that the code which is interpreted may read.
    stop: the number of the instruction before which the capture ends; 0 for the end of the frame.
    by_data: whether that makes something whose size only the data decides.
    shown: ids of dicts that a mapping proxy shows, as they were, and of classes in whose it looked.
    born: when a value was made that cannot leave the capture, by its id.
    is_rest: whether the frame is the rest of a broken one. in_block: and may be inside of a try or
    with block, or called from one.
    handles_risk: whether code of the frame handles an operator's error, or cleans up after it.
    catches_risk: of the first operator whose error may end in the frame: before which instruction
        the capture could stop, and the line.
    untouched: whether the frame runs again if the graph fails before it writes to an input.
    handed: what a generator hands out where the capture ends.
    outside_stop: before the first instruction that advances an iterator from outside.
    modes: calls that set modes of torch, with the state before, in order.
    slices: calls that may be repeated (slices.py); None for a capture that repeats none. For their
    sake: what was changed, what was looked at and from where, in order; how often an answer
    depended on an object in a way that no guard shows.
    copies: whether calls may be repeated at all. counters: see numbers.py.
    grads: tensors whose `.grad` the frame assigned, with what it is now, by the id of the value.
    backwards: how many backwards the frame has run.
    pure: ages from which on objects may be changed, innermost last. until: as long as what is known
    of these objects, the frame is to be broken where it cannot be captured.
    devices: the default devices, as they were set, of which `devices_before` from outside.
    later: objects that a deferred effect may change, by id: where the capture could stop before it.
    ids: of objects that the frame has made, by the id of their values.
    handles: of hooks that the frame has registered on modules; None for one that is removed.
    hooks_stay: whether some are not removed, so that all are registered as torch does it.
    contexts: context variables that the frame has set: (variable, value, token), the last one last.
    tensor_attrs: what the frame has put on tensors, by the id of the value and the name.
    warned: what is known of the filters of warnings (functions/warned.py).
    entered: blocks that the frame is in and that nobody else could leave, and why it cannot stop.
    weakly_held: objects that dicts and sets of weak references may hold.
    finalized: what the frame has made of classes with a `__del__`.
    released: whether a lock that was taken before the capture is released behind the graph.
    """

    pure: list[int]
    until: list[tuple[Source, Callable[[object], bool]]]
    contexts: list[tuple[object, Value, Value]]
    handles: list[Any]
    devices: list[Any]
    ids: dict[int, Value]
    class_states: dict[type, ClassState]
    class_tables: dict[type, dict[str, object]]
    later: dict[int, int]
    tensor_attrs: dict[tuple[int, str], tuple[TensorValue, Value]]
    counters: dict[Any, Any]
    entered: list[tuple[object, str]]
    warned: Any
    weakly_held: list[Value]

    def __init__(self, varying: Varying = NOTHING_VARIES, stop: int = 0,
                 copies: bool = True, by_data: bool = False) -> None:  # fmt: skip
        self.frames: list[VFrame] = []
        self.late = LateNumbers(varying.numbers, self.guard, self.loc)
        self.sizes = Sizes(varying, SizeEnv(self.loc))
        self.builder = GraphBuilder(self.late, self.sizes, self.force)
        self.builder.on_risk, self.builder.on_data = self.note_risk, self.note_data
        self.guards: dict[tuple[object, ...], Guard] = {}
        self.objects: dict[int, Value] = {}
        self.kept, self.pinned = list[object](), dict[int, Pinned]()
        self.finalized, self.private = list[Value](), Private()
        self.changed: dict[Mutable, tuple[int, Loc]] = {}
        self.marked: list[Mutable] = []
        self.touched: list[Value] = []
        self.asked: list[Source] = []
        self.unguarded = 0
        self.slices: Any = None
        self.copies = copies and varying.listed is None
        self.grads: dict[int, tuple[TensorValue, Value]] = {}
        self.backwards = 0
        self.shown: set[int] = set()
        self.locks, self.held = list[Any](), list[Any]()
        self.class_attrs = varying.attributes
        self.class_writes: dict[ClassAttr, Value | None] = {}
        self.class_states, self.class_tables, self.names = {}, {}, set[str]()
        self.globals_written: dict[tuple[int, str], tuple[dict[str, object], Value | None]] = {}
        self.handled: list[Value] = []
        self.cells: dict[int, CellValue] = {}
        self.state_restore: list[Callable[[], object]] = []
        self.modes_set: set[Any] = set()
        self.modes_before: dict[tuple[Any, ...], tuple[Callable[[], Any], Any]] = {}
        self.inference: dict[Value, tuple[Any, Node]] = {}  # inference modes that are entered
        self.reads_grad = False
        self.reads_inference = False
        self.functions: set[types.FunctionType] = set()
        self.effects: list[tuple[Value, list[Value], dict[str, Value]]] = []
        self.result: Value | None = None
        self.steps = 0
        self.stop, self.by_data = stop, by_data
        self.stops: tuple[int, ...] = ()
        self.outside_stop = 0
        self.handed: Handed | None = None
        self.is_rest = self.in_block = False
        self.handles_risk = self.untouched = False
        self.catches_risk: tuple[int, Loc] | None = None
        self.born: dict[int, tuple[object, int]] = {}
        self.modes: list[tuple[Any, tuple[Any, ...], Any]] = []
        self.inline_next: set[object] = set()
        self.substituted: set[int] = set()  # ids of functions whose stand-ins are interpreted
        self.stop_numbers: Callable[[Capture], tuple[int, ...]] = lambda _: ()
        self.wrapper: Callable[[Capture, object, Source], Value] | None = None
        self.caller: Callable[..., None] | None = None
        self.inner: Callable[..., Value] | None = None
        self.user_keys: dict[int, list[Any]] = {}  # by their hash
        self.parts: dict[int, Value] = {}  # exception groups of which others are parts, by their id
        self.generators: dict[int, Any] = {}  # of random numbers, by the id of the real one
        self.pure, self.until, self.contexts, self.handles, self.devices = [], [], [], [], []
        self.ids, self.later, self.tensor_attrs, self.counters = {}, {}, {}, {}
        self.devices_before, self.hooks_stay, self.released = 0, False, False
        self.entered, self.warned, self.weakly_held = [], None, []

    # -------------------------------------------------------------- locations
    @property
    def top(self) -> VFrame:
        return self.frames[-1]

    def loc(self) -> Loc:
        """The user line being executed: the innermost frame outside of torch's own code."""
        for frame in reversed(self.frames):
            if not is_library(frame.code.filename):
                return frame.loc()
        return self.frames[-1].loc() if self.frames else NOWHERE

    def deliver(self, value: Value, cont: Cont | None) -> None:
        """Hand a finished value to `cont`, or push it on the innermost frame."""
        if cont is None:
            self.frames[-1].stack.append(value)
        else:
            cont(value)

    def call(self, fn: Value, args: list[Value], kwargs: dict[str, Value],
             cont: Cont | None = None,
             on_raise: Callable[[Value], bool] | None = None) -> None:  # fmt: skip
        """Call a value: the result goes to `cont` now, or when the frame that this pushes returns.

        on_raise: asked about an exception that leaves that frame. Errors: Raised, GraphBreak.
        """
        if self.caller is None:
            raise InternalError("Capture.caller is not set")
        fn, args = _uncompiled(fn, args)
        if self.sizes.symbolic and type(fn) is Const and not kwargs:
            made = self.sizes.call(fn.obj, args)
            if made is not None:
                self.deliver(made, cont)
                return
        if self.late.active and type(fn) is Const and not kwargs:
            number = self.late.call(fn, args)
            if number is not None:
                self.deliver(number, cont)
                return
        self.caller(self, fn, args, kwargs, cont, on_raise)

    # ------------------------------------------------------------ the outside
    def wrap(self, obj: object, source: Source) -> Value:
        """The Value of an object from outside, guarded as its family asks."""
        if self.wrapper is None:
            raise InternalError("Capture.wrapper is not set")
        if id(obj) in self.later:
            why = "an object that a log record changes at the end"
            raise Stuck("W106", why, self.loc(), self.later[id(obj)])
        stands_for = self.private.stand_ins.get(id(obj))
        if stands_for is not None:
            return stands_for
        found = self._wrapped(obj, source)
        self.asked.append(source)
        self.touched.append(found)
        return found

    def _wrapped(self, obj: object, source: Source) -> Value:
        assert self.wrapper is not None
        listed = self.sizes.varying.listed
        if type(obj) in NUMBERS and (
                source in self.late.sources or is_scheduled(source) or (
                    listed is not None and listed.varies(obj, source))):  # fmt: skip
            leaf = self.late.leaf(obj, source)  # type: ignore[arg-type]
            self.sizes.hold(leaf, self.guard)
            return leaf
        if isinstance(obj, _OPERATORS):
            self.guard("is", source, obj)
            return Const(obj, source)
        if isinstance(obj, types.MethodType) and isinstance(obj.__func__, Dispatcher):
            self.guard("type", source, types.MethodType)
            self.guard("is", Attr.make(source, "__func__"), obj.__func__)
            bound = self.wrap(obj.__self__, Attr.make(source, "__self__"))
            return BoundValue(Const(obj.__func__.fn), bound, source)
        return self.wrapper(self, obj, source)

    def force(self, slot: Slot) -> Value:
        """The Value in a container's slot, read now if it was not read before."""
        return self.wrap(slot.obj, slot.source) if isinstance(slot, Lazy) else slot

    def unwrap(self, value: Value) -> Value:
        """The value with the lazily read items of its containers read (for `constant`)."""
        match value:
            case ListValue() | TupleValue():
                for item in self.force_items(value.items):
                    self.unwrap(item)
            case DictValue():
                for key, slot in value.items.items():
                    value.items[key] = self.unwrap(self.force(slot))
            case InstanceValue() if isinstance(value.payload, Const):
                return value.payload if is_plain(value) else value
            case InstanceValue() if value.payload is not None:
                return value.payload
        return value

    def force_items(self, items: list[Slot]) -> list[Value]:
        """All slots of a list, read; the list is updated in place."""
        for i, slot in enumerate(items):
            if isinstance(slot, Lazy):
                items[i] = self.wrap(slot.obj, slot.source)
        return items  # type: ignore[return-value]

    def pin(self, obj: object, label: str = "") -> Pinned:
        """The Source of an object that the entry itself keeps alive."""
        found = self.pinned.get(id(obj))
        if found is None:
            found = self.pinned[id(obj)] = pinned(obj, label)
            self.kept.append(obj)
        return found

    def guard(self, kind: str, source: Source | None, expected: object) -> None:
        """Record a fact; the same fact is recorded once."""
        if self.private.owns(source):
            return
        if kind == "type" and isinstance(expected, type) and issubclass(expected, torch.nn.Module):
            self.guard_class(expected)  # its methods may be replaced
        self.add_guard(kind, source, expected)

    def guard_class(self, kind: type) -> None:
        """Record that nothing of a class is assigned."""
        if kind not in self.class_states:
            self.class_states[kind] = ClassState(kind, self.names, self.class_tables)
            self.guard("class_version", self.pin(kind), self.class_states[kind])

    def add_guard(self, kind: str, source: Source | None, expected: object,
                  why: Loc | None = None) -> None:  # fmt: skip
        """Record a fact, made necessary by the line `why`, else by the present one."""
        try:
            key: tuple[object, ...] = (kind, source, type(expected), expected)
            hash(key)
        except TypeError:
            key = (kind, source, "id", id(expected))
            self.kept.append(expected)
        if key not in self.guards:
            self.guards[key] = Guard(kind, source, expected, why or self.loc())

    def guard_until(self, facts: Iterable[tuple[Source, Callable[[object], bool]]]) -> None:
        """See `until`."""
        for source, holds in facts:
            self.guard("predicate", source, holds)

    def close(self) -> None:
        """Let go of everything, real tensors among it: parts of a capture refer to one another.

        What a generator does when it dies it must do on time.
        """
        for value in self.objects.values():
            if isinstance(value, IteratorValue):
                value.step, value.real = lambda: None, None
            elif isinstance(value, GeneratorValue):
                value.read = value.real = None
        self.__dict__.clear()

    def restart(self, varying: Varying, copies: bool) -> None:
        """Forget everything; more is known of what varies."""
        stop, by_data = self.stop, self.by_data
        self.close()
        self.__init__(varying, stop, copies, by_data)  # type: ignore[misc]

    def note_birth(self, value: object, stops: tuple[int, ...]) -> None:
        """A value was made that cannot leave the capture, which could stop before it instead; or a
        class was looked into, which must not be written then."""
        self.born.setdefault(id(value), (value, stops[0] if stops else 0))

    def birth(self, value: object) -> int:
        """Before which instruction the capture could stop to be without a value; 0: unknown."""
        return self.born.get(id(value), (value, 0))[1]

    def note_risk(self, of_numbers: bool = False) -> None:
        """An operator is recorded that may raise because of its data; or arithmetic of numbers,
        whose errors are of other classes."""
        self.handles_risk = self.handles_risk or any(map(handles, self.frames))
        raised = OF_NUMBERS if of_numbers else RAISED
        if self.catches_risk is None and any(catches(f, raised) for f in self.frames):
            self.catches_risk = next(iter(self.stop_numbers(self)), 0), self.loc()

    def note_data(self) -> None:
        """A size is made that only the data decides: what depends on it is not copied."""
        self.unguarded += 1

    def mark(self, cell: Mutable) -> None:
        """The frame changed this object. Errors: GraphBreak inside of a function that torch runs
        later, or more than once, for what is not its own."""
        if self.pure and (cell.age < self.pure[-1] or cell.source is not None):
            raise GraphBreak("W106", "a side effect of a function that may not run now",
                             at=self.loc())  # fmt: skip
        if cell.real is not None and id(cell.real) in self.shown:
            raise refuse("W106", "a change of a dict that a mapping proxy shows", self.loc())
        cell.changed = True
        if cell not in self.changed:
            self.changed[cell] = next(iter(self.stop_numbers(self)), 0), self.loc()
        self.marked.append(cell)


def pinned(obj: object, label: str = "") -> Pinned:
    """See `Capture.pin`."""
    name = label or getattr(obj, "__qualname__", None) or type(obj).__name__
    return Pinned.make(WeakToken(obj), str(name))


def _uncompiled(fn: Value, args: list[Value]) -> tuple[Value, list[Value]]:
    """A function or module that was compiled on its own is captured as what it was made of."""
    if isinstance(fn, InstanceValue) and hasattr(fn.klass, "_torchweld_origin"):
        call = fn.klass.__call__
        return Const(call.fn if isinstance(call, Dispatcher) else call), [fn, *args]
    if isinstance(fn, Const) and not isinstance(fn, Loose) and isinstance(fn.obj, Dispatcher):
        return Const(fn.obj.fn), args
    return fn, args
