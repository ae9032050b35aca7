"""enumerate, zip, map, filter, reversed and itertools, interpreted from polyfills."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from torchweld.capture.functions import polyfills
from torchweld.capture.functions.builtin import polyfill
from torchweld.capture.items import resume
from torchweld.capture.ops import payload, user_method
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.tables import CLASSES, klass, method
from torchweld.capture.values.base import (
    Const,
    DictValue,
    GeneratorValue,
    IteratorValue,
    Value,
    ViewValue,
)
from torchweld.capture.wrap import complete

Args = list[Value]
Kwargs = dict[str, Value]


def _class_polyfill(kind: Any, fn: Any) -> None:
    value = Const(fn)

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        cap.call(value, args, kwargs, cont)

    CLASSES.add(kind, handler)


for _kind, _fn in (
    (map, polyfills.map_), (filter, polyfills.filter_), (zip, polyfills.zip_),
    (enumerate, polyfills.enumerate_), (itertools.chain, polyfills.chain_),
    (itertools.islice, polyfills.islice_), (itertools.pairwise, polyfills.pairwise_),
    (itertools.accumulate, polyfills.accumulate_), (itertools.zip_longest, polyfills.zip_longest_),
    (itertools.product, polyfills.product_), (itertools.count, polyfills.count_),
    (itertools.cycle, polyfills.cycle_), (itertools.starmap, polyfills.starmap_),
    (itertools.takewhile, polyfills.takewhile_), (itertools.dropwhile, polyfills.dropwhile_),
    (itertools.groupby, polyfills.groupby_),
):  # fmt: skip
    _class_polyfill(_kind, _fn)
polyfill(functools.reduce, polyfills.reduce_)


@method(itertools.chain, "from_iterable")
def chain_from_iterable(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.call(Const(polyfills.chain_from_iterable), args[-1:], {}, cont)


@klass(itertools.repeat)
def repeat(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if len(args) > 1 or "times" in kwargs:
        cap.call(Const(polyfills.repeat_), args, kwargs, cont)
    else:
        cap.deliver(IteratorValue(lambda: args[0], itertools.repeat), cont)


@klass(reversed)
def reversed_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    (x,) = args
    hook = user_method(x, "__reversed__")
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
            return value

        if view.what == "items":
            raise refuse("W107", "reversed(items())", cap.loc())
        cap.deliver(IteratorValue(step, reversed), cont)
        return
    cap.call(Const(polyfills.reversed_), [x], {}, cont)


@method(type(i for i in ()), "send")
def generator_send(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    gen = args[0]
    assert isinstance(gen, GeneratorValue)
    resume(cap, gen, args[1], lambda v: cap.deliver(v, cont), _stop)


def _stop(result: Value) -> None:
    raise raised(StopIteration)


@method(type(i for i in ()), "close")
def generator_close(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    gen = args[0]
    assert isinstance(gen, GeneratorValue)
    if gen.frame.code.protected and not gen.finished:
        raise refuse("W107", "close of a generator with open blocks", cap.loc())
    gen.finished = True
    cap.deliver(Const(None), cont)


@method(type(i for i in ()), "throw")
def generator_throw(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    raise refuse("W107", "throw into a generator", cap.loc())
