"""enumerate, zip, map, filter, reversed and itertools, interpreted from polyfills."""

from __future__ import annotations

import collections
import functools
import itertools
import types
from collections.abc import Callable
from typing import Any

from torchweld.capture import polyfills
from torchweld.capture.attrs import MISSING, builtin_attr, mro_lookup
from torchweld.capture.functions.builtin import polyfill, stop_with
from torchweld.capture.generator_frames import resume, throw
from torchweld.capture.items import iterable
from torchweld.capture.ops import lacking, payload, real_call, user_method
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, Raised, raised, refuse
from torchweld.capture.suspend import has_open_block
from torchweld.capture.tables import CLASSES, GETATTR, klass, method
from torchweld.capture.values.base import (
    NONE,
    BoundValue,
    Const,
    DictValue,
    FunctionValue,
    GeneratorValue,
    InstanceValue,
    IteratorValue,
    ListValue,
    PartialValue,
    TupleValue,
    Value,
    ViewValue,
    boolean,
)
from torchweld.capture.values.sequences import DequeValue
from torchweld.capture.wrap import complete

Args = list[Value]
Kwargs = dict[str, Value]


def _class_polyfill(kind: Any, fn: Any) -> None:
    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        _check(kind, args, kwargs)
        _with_iterators(cap, kind, args, 0, lambda: call_as(cap, kind, fn, args, kwargs, cont))

    CLASSES.add(kind, handler)


def _check(kind: Any, args: Args, kwargs: Kwargs) -> None:
    """Raise what the class raises for such arguments: too few or many of them, bad numbers."""
    walked = range(len(args))[_WALKED.get(kind, slice(0, 1))]
    named = {k: () if k in _NAMES else _plain(v) for k, v in kwargs.items()}
    given = [() if i in walked else _plain(x) for i, x in enumerate(args)]
    if NotImplemented in given or NotImplemented in named.values():
        return
    real_call(lambda: bool(kind(*given, **named)))


def _plain(x: Value) -> object:
    """A number or text; what else there is stands for itself, if it is nothing that is counted."""
    if type(x) is Const:
        return x.obj if isinstance(x.obj, int | float | str | None) else len
    return len if isinstance(x, FunctionValue | BoundValue | PartialValue) else NotImplemented


def _with_iterators(cap: Capture, kind: Any, args: Args, start: int,
                    then: Callable[[], None]) -> None:  # fmt: skip
    """Ask what is iterated over for its iterator, or its items, as the class does when it is
    called, before `then`. What a built-in container gives does not depend on when it is asked."""
    for i in range(len(args))[_WALKED.get(kind, slice(0, 1))]:
        x = args[i]
        own = isinstance(x, InstanceValue) or (type(x) is Const and not iterable(cap, x))
        if i < start or not (own or kind in _POOLS):
            continue

        def go_on(made: Value, i: int = i) -> None:
            args[i] = made
            _with_iterators(cap, kind, args, i + 1, then)

        cap.call(Const(tuple if kind in _POOLS else iter), [x], {}, go_on)
        return
    then()


# which arguments a class iterates over, if not the first one; chain asks each when it comes to it
_WALKED: dict[Any, slice] = {
    map: slice(1, None), filter: slice(1, 2), zip: slice(None), itertools.chain: slice(0),
    itertools.zip_longest: slice(None), itertools.product: slice(None), itertools.count: slice(0),
    itertools.starmap: slice(1, 2), itertools.takewhile: slice(1, 2), itertools.compress: slice(2),
    itertools.dropwhile: slice(1, 2), itertools.filterfalse: slice(1, 2),
}
_NAMES = ("iterable", "data", "selectors")
# those that take all items at once
_POOLS = frozenset((
    itertools.product, itertools.combinations, itertools.combinations_with_replacement,
    itertools.permutations,
))  # fmt: skip


def call_as(cap: Capture, kind: type, fn: Any, args: Args, kwargs: Kwargs,
             cont: Cont | None) -> None:  # fmt: skip
    """Call a generator function whose generators stand for iterators of another class."""

    def named(made: Value) -> None:
        assert isinstance(made, GeneratorValue)
        made.kind = kind
        cap.deliver(made, cont)

    cap.call(Const(fn), args, kwargs, named)


for _kind, _fn in (
    (map, polyfills.map_), (filter, polyfills.filter_), (zip, polyfills.zip_),
    (enumerate, polyfills.enumerate_), (itertools.chain, polyfills.chain_),
    (itertools.islice, polyfills.islice_), (itertools.pairwise, polyfills.pairwise_),
    (itertools.accumulate, polyfills.accumulate_), (itertools.zip_longest, polyfills.zip_longest_),
    (itertools.product, polyfills.product_), (itertools.count, polyfills.count_),
    (itertools.cycle, polyfills.cycle_), (itertools.starmap, polyfills.starmap_),
    (itertools.takewhile, polyfills.takewhile_), (itertools.dropwhile, polyfills.dropwhile_),
    (itertools.groupby, polyfills.groupby_), (itertools.combinations, polyfills.combinations_),
    (itertools.combinations_with_replacement, polyfills.combinations_with_replacement_),
    (itertools.permutations, polyfills.permutations_), (itertools.compress, polyfills.compress_),
    (itertools.filterfalse, polyfills.filterfalse_),
):  # fmt: skip
    _class_polyfill(_kind, _fn)


def batched(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if "strict" in kwargs:  # Python 3.13 has it, and 3.12 says that there is none
        raise refuse("W107", "itertools.batched with strict", cap.loc())
    call_as(cap, _BATCHED, polyfills.batched_, args, kwargs, cont)


_BATCHED: Any = getattr(itertools, "batched", None)  # from Python 3.12 on
if _BATCHED is not None:
    CLASSES.add(_BATCHED, batched)
polyfill(functools.reduce, polyfills.reduce_)
polyfill(collections._count_elements, polyfills.count_elements)  # type: ignore[attr-defined]
polyfill(itertools.tee, polyfills.tee_)
polyfill(functools.cmp_to_key, polyfills.cmp_to_key_)


@method(itertools.chain, "from_iterable")
def chain_from_iterable(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    call_as(cap, itertools.chain, polyfills.chain_from_iterable, args[-1:], {}, cont)


@klass(itertools.repeat)
def repeat(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if len(args) > 1 or "times" in kwargs:
        call_as(cap, itertools.repeat, polyfills.repeat_, args, kwargs, cont)
    else:
        cap.deliver(IteratorValue(lambda: args[0], itertools.repeat), cont)


@klass(reversed)
def reversed_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if len(args) != 1 or kwargs:
        raise raised(TypeError, f"reversed expected 1 argument, got {len(args)}")
    (x,) = args
    hook = user_method(cap, x, "__reversed__")
    if hook is not None:
        cap.call(Const(hook), [x], {}, cont)
        return
    box = payload(x)
    view = ViewValue(box, "keys") if isinstance(box, DictValue) else box
    if isinstance(view, ViewValue):
        complete(cap, view.of)
        keys = list(view.of.items)

        def step() -> Value | None:
            if not keys:
                return None
            key = keys.pop()
            value = cap.force(view.of.items[key])
            if view.what == "keys":
                return view.of.keys[key]
            return value if view.what == "values" else TupleValue([view.of.keys[key], value])

        cap.deliver(IteratorValue(step, _REVERSED_VIEWS[view.what]), cont)
        return
    if not any(hasattr(x.cls(), name) for name in ("__reversed__", "__getitem__")):
        raise lacking(cap, x, "__reversed__", f"'{x.cls().__name__}' object is not reversible")
    kind = next((type(reversed(k())) for k in _REVERSIBLE if box.cls() is k), reversed)
    if isinstance(x, Const) and type(x.obj) is range:
        kind = type(iter(range(0)))
    own = isinstance(box, ListValue | DequeValue)  # whose own __reversed__ asks nobody
    call_as(cap, kind, polyfills.reversed_, [box if own else x], {}, cont)


_REVERSIBLE: tuple[Any, ...] = (list, collections.deque)
_REVERSED_VIEWS: dict[str, type] = {
    "keys": type(reversed({})), "values": type(reversed({}.values())),
    "items": type(reversed({}.items())),
}  # fmt: skip


@method((types.GeneratorType, types.CoroutineType), "send")
def generator_send(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    gen = args[0]
    assert isinstance(gen, GeneratorValue)
    resume(cap, gen, args[1], lambda v: cap.deliver(v, cont), stop_with)


def new_exception(kind: type[BaseException]) -> InstanceValue:
    exc = InstanceValue(kind)
    exc.attrs["args"] = TupleValue([])
    return exc


@method((types.GeneratorType, types.CoroutineType), "close")
def generator_close(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    gen = args[0]
    assert isinstance(gen, GeneratorValue)
    if gen.finished or not has_open_block(gen):
        gen.finished = True
        if gen.source is not None:
            cap.mark(gen)
        cap.deliver(Const(None), cont)
        return

    def yielded(_: Value) -> None:
        raise raised(RuntimeError, "generator ignored GeneratorExit")

    def on_raise(exc: Value) -> bool:
        if not issubclass(exc.cls(), GeneratorExit | StopIteration):
            return False
        cap.deliver(Const(None), cont)
        return True

    _throw_caught(cap, gen, new_exception(GeneratorExit), yielded,
                  lambda _: cap.deliver(Const(None), cont), on_raise)  # fmt: skip


def _throw_caught(cap: Capture, gen: GeneratorValue, exc: Value, yielded: Cont, finished: Cont,
                  on_raise: Callable[[Value], bool]) -> None:  # fmt: skip
    """throw(), with a say about what comes out of the generator."""
    depth = len(cap.frames)
    try:
        throw(cap, gen, exc, yielded, finished)
    except Raised as error:
        if len(cap.frames) <= depth:
            if not on_raise(error.value):
                raise
            return
        _ask_first(gen, on_raise)
        raise
    else:
        _ask_first(gen, on_raise)


def _ask_first(gen: GeneratorValue, on_raise: Callable[[Value], bool]) -> None:
    before = gen.frame.on_raise

    def both(exc: Value) -> bool:
        return (before is not None and before(exc)) or on_raise(exc)

    gen.frame.on_raise = both


@method((types.GeneratorType, types.CoroutineType), "throw")
def generator_throw(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    gen, given = args[0], args[1]
    assert isinstance(gen, GeneratorValue)
    if isinstance(given, Const) and isinstance(given.obj, type):
        value = args[2] if len(args) > 2 else None
        if value is None or (isinstance(value, Const) and value.obj is None):
            cap.call(given, [], {}, lambda made: _throw_into(cap, gen, made, cont))
            return
        given = value
    _throw_into(cap, gen, given, cont)


def _throw_into(cap: Capture, gen: GeneratorValue, exc: Value, cont: Cont | None) -> None:
    throw(cap, gen, exc, lambda v: cap.deliver(v, cont), stop_with)


# ------------------------------------------------------------------ what a generator is asked for
def _generator_attr(cap: Capture, gen: GeneratorValue, name: str, cont: Cont | None) -> None:
    kind = gen.cls()
    prefix = _PREFIXES.get(kind)
    if prefix is None or not name.startswith(prefix) or mro_lookup(kind, name) is MISSING:
        builtin_attr(cap, gen, name, cont)
    elif name.endswith("_code"):
        cap.deliver(Const(gen.frame.code.raw), cont)
    elif name.endswith("_running"):
        cap.deliver(boolean(gen.running), cont)
    elif gen.finished and name.endswith("_frame"):
        cap.deliver(NONE, cont)
    else:
        raise refuse("W122", f"{name} of a generator", cap.loc())


_PREFIXES: dict[type, str] = {types.GeneratorType: "gi_", types.CoroutineType: "cr_",
             types.AsyncGeneratorType: "ag_"}  # fmt: skip
GETATTR.add(GeneratorValue, _generator_attr)
