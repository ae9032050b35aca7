"""Functions that torch calls: they are interpreted into a graph of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node

from torchweld.capture.bodies import Body, memory_behind
from torchweld.capture.modes import SETTERS, STEPS, restoring
from torchweld.capture.module import CapturedModule
from torchweld.capture.session import Capture
from torchweld.capture.state import refuse
from torchweld.capture.suspend import stops_of
from torchweld.capture.values.base import (
    NONE,
    Const,
    DictValue,
    ListValue,
    TensorValue,
    TupleValue,
    Value,
    next_age,
)
from torchweld.capture.wrap import complete
from torchweld.ir.graph import LOC, VAL
from torchweld.ir.nested import Nested, tensors_in


def new_body(cap: Capture, name: str) -> Body:
    """The graph of a function that the instruction which runs now hands to torch."""
    return Body(name, cap.loc(), stops_of(cap))


def runner(body: Body) -> Callable[..., Any]:
    """The body as a function; if it fails, it leaves no mode of torch behind."""
    gm = CapturedModule(torch.nn.Module(), body.graph)
    return restoring(gm, gm.forward)


def function_of(cap: Capture, body: Body, fn: Value, arranged: Callable[[list[Value]], list[Value]]
                = list) -> Callable[..., Any]:  # fmt: skip
    """`fn` for torch to call on fakes: it is interpreted into `body`.

    arranged: gives the arguments of `fn` from those that torch calls it with. Later calls, with
    arguments that look like the first ones, run the graph: then `fn` must have no effects.
    """
    builder = cap.builder
    first: list[Any] = []

    def called(*args: Any, **kwargs: Any) -> Any:
        looks = [(x.shape, x.stride(), x.dtype) for x in tensors_in((args, kwargs))]
        if first and first != [looks]:
            raise refuse("W103", f"{body.name} calls a function in several ways", body.at)
        if first:
            run = CapturedModule(torch.nn.Module(), body.graph).forward
            return run(*tensors_in((args, kwargs)), *(x.fake for x in body.free))
        first.append(looks)
        with unset_fake_temporarily():
            builder.open(body)
            given = [as_value(cap, body, x) for x in args]
            named = {k: as_value(cap, body, x) for k, x in kwargs.items()}
            made = inner_call(cap, fn, arranged(given), named)
            body.graph.output(builder.to_fx(made))
            out = builder.to_fake(made)
            builder.close(body)
        return out

    return called


def inner_call(cap: Capture, fn: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The result of a function whose graph ends with it. Errors: GraphBreak, Raised."""
    assert cap.inner is not None
    begun, known, undone = len(cap.modes), len(cap.modes_before), len(cap.state_restore)
    cap.modes_set.add(torch.is_grad_enabled)  # which the transform decides, not the frame
    made: Value = cap.inner(cap, fn, args, kwargs)
    if _differs(cap.modes[begun:]):
        raise refuse("W106", "a function that torch calls leaves a mode set", cap.loc())
    del cap.modes[begun:], cap.state_restore[undone:]  # all is as it was
    for key in list(cap.modes_before)[known:]:
        del cap.modes_before[key]
    read_all(cap, made)
    return made


def _differs(changes: list[tuple[Any, tuple[Any, ...], Any]]) -> bool:
    """Whether a mode is another one than before these changes."""
    before: dict[tuple[Any, ...], Any] = {}
    for fn, args, old in changes:
        if fn not in STEPS:
            before.setdefault((fn, *args[:-1]), (SETTERS[fn](*args), old))
    nested = sum((fn is torch.autocast_increment_nesting) - (fn is torch.autocast_decrement_nesting)
                 for fn, _, _ in changes)  # fmt: skip
    return nested != 0 or any(getter() != old for getter, old in before.values())


def as_value(cap: Capture, body: Body, x: Any) -> Value:
    """An argument that torch calls the function with."""
    if isinstance(x, torch.Tensor):
        value = TensorValue(body.input(x), x)
        cap.builder.by_fake.setdefault(id(x), value)
        cap.builder.kept.append(x)
        return value
    if isinstance(x, dict):
        made = DictValue(type(x))
        for key, item in x.items():
            made.items[key] = as_value(cap, body, item)
            made.keys[key] = Const(key)
        return made
    if isinstance(x, list):
        return ListValue([as_value(cap, body, i) for i in x])
    if isinstance(x, tuple):
        return TupleValue([as_value(cap, body, i) for i in x], type(x))
    return NONE if x is None else Const(x)


def read_all(cap: Capture, x: Value) -> None:
    """Read everything in nested containers that was not read yet."""
    if isinstance(x, ListValue | TupleValue):
        for item in cap.force_items(x.items):
            read_all(cap, item)
    elif isinstance(x, DictValue):
        complete(cap, x)
        for key, slot in x.items.items():
            value = x.items[key] = cap.force(slot)
            read_all(cap, value)


def record(cap: Capture, target: Nested, args: tuple[Any, ...], out: Any) -> Value:
    """The result of a node that holds a graph. out: its value on fakes."""
    at = cap.loc()
    node: Node = cap.builder.graph.call_function(target, args)
    node.meta[VAL], node.meta[LOC] = out, at
    cap.builder.n_calls += 1
    return cap.builder.wrap_result(node, out, at, 0)


@contextmanager
def repeatable(cap: Capture, bodies: Sequence[Body], why: str) -> Iterator[None]:
    """A block of a function that torch runs later, or more than once, or not at all: it changes
    nothing but its own objects. Errors: GraphBreak W106."""
    mode = cap.builder.mode
    before = (len(cap.effects), dict(cap.globals_written))
    outer, mode.noted = mode.noted, set()
    mode.watching += 1
    cap.pure.append(next_age())
    try:
        yield
        theirs = {memory_behind(n.meta[VAL]) for body in bodies for n in body.graph.nodes
                  if n.op == "placeholder"}  # fmt: skip
        if (len(cap.effects), cap.globals_written) != before or theirs & mode.noted:
            raise refuse("W106", why, cap.loc())
    finally:
        cap.pure.pop()
        mode.watching -= 1
        mode.noted = outer | mode.noted
