"""torch.func and torch.vmap: the transform is one node, which holds the graph of its function.

The transform itself runs while capturing, on fake tensors, and calls the interpreter where it would
call the function: so the function sees what it would see, and the result is what it would be.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torch._functorch import apis, eager_transforms

from torchweld.base.errors import WeldError
from torchweld.capture.bodies import Body
from torchweld.capture.inner import (
    function_of,
    new_body,
    read_all,
    record,
    repeatable,
    runner,
)
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, Raised, refuse
from torchweld.capture.tables import function, method
from torchweld.capture.values.base import (
    Const,
    ListValue,
    NotConstant,
    PartialValue,
    Slot,
    TupleValue,
    Value,
    constant,
)
from torchweld.capture.wrappers import TRANSFORMS
from torchweld.ir.nested import (
    Pulled,
    Pushed,
    Transformed,
    applied,
    jvp_of,
    transformed,
    vjp_value,
)

Args = list[Value]
Kwargs = dict[str, Value]

_APIS: tuple[Callable[..., Any], ...] = (
    apis.vmap, apis.grad, apis.grad_and_value, eager_transforms.jacrev, eager_transforms.jacfwd,
    eager_transforms.functionalize,
)  # fmt: skip


def _made(api: Callable[..., Any]) -> None:
    """Calling `api` gives a function."""
    signature = inspect.signature(api)

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        given = dict(signature.bind(*args, **kwargs).arguments)
        fn = given.pop("func")
        options = tuple((name, constant(cap.unwrap(x))) for name, x in given.items())
        cap.deliver(partial_of(api, options, fn), cont)

    function(api)(handler)
    TRANSFORMS.update({c: (api, tuple(signature.parameters)) for c in _codes(api)})


def _codes(api: Callable[..., Any]) -> list[Any]:
    """The code of the functions that `api` makes."""
    found: Any = api
    return [c for c in found.__code__.co_consts if inspect.iscode(c) and "func" in c.co_freevars]


def partial_of(api: Any, options: tuple[tuple[str, Any], ...], fn: Value) -> Value:
    args: Args = [Const(api), Const(options), fn]
    return PartialValue(Const(transformed), args, {}, functools.partial)


@function(transformed)
def call_transformed(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """api(fn, **options)(*args, **kwargs)."""
    api, options, fn, *rest = args
    given = dict(constant(options))
    run_transform(cap, constant(api), given, fn, rest, kwargs, cont)


@function(eager_transforms.jvp)
def call_jvp(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    given = dict(_JVP.bind(*args, **kwargs).arguments)
    fn, primals, tangents = (given.pop(n) for n in ("func", "primals", "tangents"))
    options = {name: constant(cap.unwrap(x)) for name, x in given.items()}
    run_transform(cap, jvp_of, options, fn, [primals, tangents], {}, cont)


_JVP = inspect.signature(eager_transforms.jvp)


@function(eager_transforms.vjp)
def call_vjp(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """The function that vjp gives runs the forward again: then both are part of one graph."""
    fn, *primals = args
    options = {name: constant(cap.unwrap(x)) for name, x in kwargs.items()}
    drawn = cap.builder.mode.draws
    made: Args = []
    body = run_transform(cap, vjp_value, options, fn, primals, {}, made.append)
    if cap.builder.mode.draws != drawn:
        raise refuse("W103", "vjp of a function that draws random numbers", cap.loc())
    free: list[Slot] = [*body.free]
    target = Const(Pulled(options, runner(body)))
    given: Args = [TupleValue([*primals]), ListValue(free)]
    back = PartialValue(target, given, {}, functools.partial)
    (out,) = made
    parts = out.items if options.get("has_aux") and isinstance(out, TupleValue) else [out]
    cap.deliver(TupleValue([parts[0], back, *parts[1:]]), cont)


@function(eager_transforms.linearize)
def call_linearize(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """The function that it gives runs the forward again, with tangents."""
    fn, *primals = args
    drawn = cap.builder.mode.draws
    made: Args = []
    body = run_transform(cap, applied, {}, fn, primals, {}, made.append)
    if kwargs or cap.builder.mode.draws != drawn:
        raise refuse("W103", "linearize of a function that draws random numbers", cap.loc())
    free: list[Slot] = [*body.free]
    given: Args = [TupleValue([*primals]), ListValue(free)]
    forth = PartialValue(Const(Pushed(runner(body))), given, {}, functools.partial)
    cap.deliver(TupleValue([made[0], forth]), cont)


@method((Pulled, Pushed), "__call__")
def call_pulled(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    target, *given = args
    for x in given:
        read_all(cap, x)
    out = cap.builder.call("call_function", constant(target), given, kwargs, cap.loc())
    cap.deliver(out, cont)


def run_transform(cap: Capture, api: Callable[..., Any], options: dict[str, Any], fn: Value,
                  args: Args, kwargs: Kwargs, cont: Cont | None) -> Body:  # fmt: skip
    """One node for api(fn, **options)(*args, **kwargs)."""
    builder, at = cap.builder, cap.loc()
    name = api.__name__
    for x in (*args, *kwargs.values()):
        read_all(cap, x)
    body = new_body(cap, name)
    try:
        fakes = [builder.to_fake(x) for x in args]
        named = {k: builder.to_fake(x) for k, x in kwargs.items()}
    except NotConstant:
        raise refuse("W103", f"{name} of an argument that a graph cannot hold", at) from None
    inner = function_of(cap, body, fn)
    why = "a side effect of a function that is called for each chunk"
    chunks = api is apis.vmap and options.get("chunk_size") is not None
    try:
        with repeatable(cap, (body,), why) if chunks else nullcontext(), builder.mode:
            out = api(inner, **options)(*fakes, **named)
    except (Raised, WeldError):
        raise
    except Exception as error:
        raise refuse("W104", f"{name}: {type(error).__name__}: {error}", at) from None
    finally:
        builder.close(body)
    given = [builder.to_fx(x) for x in args], {k: builder.to_fx(x) for k, x in kwargs.items()}
    target = Transformed(api, options, runner(body))
    cap.deliver(record(cap, target, (*given, list(body.taken)), out), cont)
    return body


for _api in _APIS:
    _made(_api)
