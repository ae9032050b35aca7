"""torch.autograd.Function.

Without gradients, `apply` is a call of `forward`. With gradients, it is a node that holds the
graphs of `forward` and `backward`, which autograd runs as it runs the two functions.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch._C._functorch import TransformType
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.fx import Node

from torchweld.capture import polyfills
from torchweld.capture.bodies import Body, in_transform, transforms_around, wants_gradient
from torchweld.capture.inner import inner_call, new_body, record, repeatable, runner
from torchweld.capture.modes import SET_GRAD
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.tables import function
from torchweld.capture.values.base import (
    Const,
    InstanceValue,
    ListValue,
    TensorValue,
    TupleValue,
    Value,
    boolean,
    constant,
    is_constant,
)
from torchweld.ir.nested import CustomFunction, Marks, Pullback

_OWN_CONTEXT = torch.autograd.Function.setup_context
# as the class holds it: a classmethod, or from torch 2.14 on its twin in C
_APPLY: Any = vars(torch.autograd.Function)["apply"]
_ONCE = once_differentiable(lambda ctx: None).__code__
# of so many results any may have no gradient where `backward` asks to be told so
_TOLD = 2


@function(getattr(_APPLY, "__func__", _APPLY))
def apply(cap: Capture, args: list[Value], kwargs: dict[str, Value], cont: Cont | None) -> None:
    """Interpreted with a context that only remembers what it is told."""
    kind, *given = args
    if not isinstance(kind, Const) or kwargs:
        raise refuse("W107", "apply of an autograd.Function in an unusual way", cap.loc())
    real: Any = kind.obj
    given = [cap.unwrap(a) for a in given]
    needs = [isinstance(a, TensorValue) and wants_gradient(a.fake) for a in given]
    context = InstanceValue(FunctionCtx)
    context.attrs["needs_input_grad"] = TupleValue([boolean(n) for n in needs])
    if cap.builder.any_layout:
        raise refuse("W103", f"{real.__qualname__}.apply in a backward", cap.loc())
    if torch.is_grad_enabled() and any(needs):
        _check_transforms(cap, real)
        cap.deliver(_with_gradients(cap, kind, context, given), cont)
        return

    def finish(made: Value) -> None:
        cap.deliver(_plain_result(cap, real, context, made, given), cont)

    cap.call(_forward(real), [kind, context, *given], {}, finish)


def _check_transforms(cap: Capture, real: Any) -> None:
    """Transforms that know what to do with a Function that has nothing but a backward."""
    around = transforms_around()
    vmaps = TransformType.Vmap in around
    fits = real.setup_context is not _OWN_CONTEXT and around <= {TransformType.Grad,
                                                                 TransformType.Vmap}  # fmt: skip
    if around and not (fits and (real.generate_vmap_rule or not vmaps)):
        raise refuse("W103", f"{real.__qualname__}.apply inside of a transform", cap.loc())


def _forward(real: Any) -> Value:
    separate = real.setup_context is not _OWN_CONTEXT
    return Const(polyfills.apply_and_set_up if separate else polyfills.apply_forward)


def _outputs(made: Value) -> list[Any]:
    return list(made.items) if isinstance(made, TupleValue) else [made]


def _plain_result(cap: Capture, real: Any, context: InstanceValue, made: Value,
                  given: list[Value]) -> Value:  # fmt: skip
    """An input that is returned is the same object if it is marked as written, else a view."""
    dirty = _marked(context, "dirty_tensors")
    outs = _outputs(made)
    if not all(any(x is out for out in outs) for x in dirty):
        raise refuse("W107", f"{real.__qualname__} does not return what it writes", cap.loc())

    def seen(out: Any) -> Any:
        kept = any(out is x for x in dirty) or not any(out is x for x in given)
        if kept or not isinstance(out, TensorValue):
            return out
        return cap.builder.call("call_method", "view_as", [out, out], {}, cap.loc())

    shown = [seen(out) for out in outs]
    if all(a is b for a, b in zip(shown, outs, strict=True)):
        return made
    return TupleValue([*shown], made.cls()) if isinstance(made, TupleValue) else shown[0]


def _with_gradients(cap: Capture, kind: Const, context: InstanceValue,
                    given: list[Value]) -> Value:  # fmt: skip
    """The result of `apply`, as one node. Errors: GraphBreak, Raised."""
    builder, real = cap.builder, kind.obj
    assert isinstance(real, type)
    tensors = [x for x in given if isinstance(x, TensorValue)]
    own = list({id(x): x for x in tensors}.values())
    forward = new_body(cap, f"{real.__qualname__}.forward")
    nodes = [builder.node_of(x) for x in own]
    try:
        builder.open(forward)
        for node, x in zip(nodes, own, strict=True):
            forward.take(node, x)
        made = inner_call(cap, _forward(real), [kind, context, *given], {})
        _check_kinds(cap, real, made)
        marks = _marks(cap, real, context, made, own)
        backward, saved = _backwards(cap, kind, context, made, given, marks)
        forward.graph.output((builder.to_fx(made), saved))
    finally:
        builder.close(forward)
    places = tuple(own.index(x) for x in tensors)
    sources = _sources(cap, forward, saved, marks) if in_transform() else None
    target = CustomFunction(real.__name__, runner(forward), backward, places, marks,
                            _is_once(real), sources)  # fmt: skip
    free = forward.free[len(own) :]
    with builder.mode:
        out = target([x.fake for x in own], [x.fake for x in free])
    return record(cap, target, (nodes, [builder.node_of(x) for x in free]), out)


def _sources(cap: Capture, forward: Body, saved: list[Node], marks: Marks) -> tuple[int, ...]:
    """What is saved, by its place among the inputs and the results of `forward`."""
    results: Any = forward.graph.output_node().args[0][0]  # type: ignore[index]
    known = [*forward.graph.find_nodes(op="placeholder"),
             *(results if isinstance(results, tuple | list) else [results])]  # fmt: skip
    if marks.dirty or not all(n in known for n in saved):
        why = f"{forward.name} inside of a transform writes, or saves what it does not return"
        raise refuse("W103", why, cap.loc())
    return tuple(known.index(n) for n in saved)


def _is_once(real: Any) -> bool:
    """Whether its gradients have no gradients."""
    return getattr(real.backward, "__code__", None) is _ONCE


def _check_kinds(cap: Capture, real: Any, made: Value) -> None:
    outs = _outputs(made)
    tensors = [x for x in outs if isinstance(x, TensorValue)]
    if len({id(x) for x in tensors}) != len(tensors) or not all(
            isinstance(x, TensorValue) or is_constant(x) for x in outs):  # fmt: skip
        raise refuse("W107", f"{real.__qualname__} returns an unusual result", cap.loc())


def _said(context: InstanceValue, name: str) -> Value | None:
    return context.attrs.get(name)


def _marked(context: InstanceValue, name: str) -> list[Any]:
    found = _said(context, name)
    return list(found.items) if isinstance(found, TupleValue) else []


def _marks(cap: Capture, real: Any, context: InstanceValue, made: Value,
           own: list[TensorValue]) -> Marks:  # fmt: skip
    """What `forward` has told its context. Errors: GraphBreak."""
    outs = _outputs(made)
    marked, written = _marked(context, "non_differentiable"), _marked(context, "dirty_tensors")
    if not all(any(x is y for y in own) and any(x is y for y in outs) for x in written):
        raise refuse("W107", f"{real.__qualname__} does not return what it writes", cap.loc())
    told = _said(context, "materialize_grads")
    zeros = told is None or constant(told) is not False
    fixed = tuple(i for i, x in enumerate(outs) if any(x is m for m in marked))
    if not zeros and len(outs) - len(fixed) > _TOLD:
        raise refuse("W107", f"{real.__qualname__} with so many gradients that may not be there",
                     cap.loc())  # fmt: skip
    dirty = tuple(i for i, x in enumerate(own) if any(x is m for m in written))
    return Marks(fixed, dirty, zeros)


def _backwards(cap: Capture, kind: Const, context: InstanceValue, made: Value, given: list[Value],
               marks: Marks) -> tuple[dict[tuple[bool, ...], Pullback], list[Node]]:  # fmt: skip
    """`backward` for each pattern of gradients that may be there, and what is saved for them."""
    real, outs = kind.obj, _outputs(made)
    may = [isinstance(x, TensorValue) and (marks.zeros or i not in marks.fixed)
           for i, x in enumerate(outs)]  # fmt: skip
    patterns = [tuple(may)]
    if not marks.zeros:
        choices = itertools.product(*((True, False) if m else (False,) for m in may))
        patterns = [p for p in choices if any(p)]
    found: dict[tuple[bool, ...], Pullback] = {}
    saved: dict[Node, None] = {}
    for there in patterns:
        assert isinstance(real, type)
        body = new_body(cap, f"{real.__qualname__}.backward")
        shown = [x if t else None for x, t in zip(outs, there, strict=True)]
        _capture_backward(cap, body, kind, context, shown, given)
        saved.update(dict.fromkeys(body.taken))
        names = list(saved)
        found[there] = Pullback(runner(body), tuple(names.index(n) for n in body.taken))
    return found, list(saved)


def _capture_backward(cap: Capture, body: Body, kind: Const, context: InstanceValue,
                      outs: list[Any], given: list[Value]) -> None:  # fmt: skip
    """The graph of `backward`, which runs later: it reads what it needs from `forward`'s."""
    builder, real = cap.builder, kind.obj
    twin = InstanceValue(FunctionCtx)
    saved = _said(context, "to_save")
    twin.attrs.update(context.attrs)
    twin.attrs["saved_tensors"] = saved if isinstance(saved, TupleValue) else TupleValue([])
    builder.open(body)
    builder.any_layout += 1
    try:
        with torch.no_grad(), torch._C._DisableAutocast(), repeatable(
                cap, (body,), f"a side effect of {body.name}"):  # fmt: skip
            grads: list[Value] = [_gradient_of(cap, body, x) for x in outs]
            twin.age = cap.pure[-1]
            result = inner_call(cap, Const(real.backward), [twin, *grads], {})  # type: ignore[attr-defined]
            body.graph.output(builder.to_fx(ListValue(_returned(cap, body, result, given))))
    finally:
        builder.any_layout -= 1
        builder.close(body)
    if not _is_once(real) and any(n.target is SET_GRAD for n in body.graph.nodes):
        raise refuse("W106", f"{body.name} sets the grad mode", cap.loc())


def _gradient_of(cap: Capture, body: Body, out: Any) -> Value:
    """What backward gets for a result: a tensor like it."""
    if not isinstance(out, TensorValue):
        return Const(None)
    with cap.builder.mode:
        fake = torch.empty_like(out.fake)
    cap.builder.kept.append(fake)
    return TensorValue(body.input(fake), fake)


def _returned(cap: Capture, body: Body, result: Value, given: list[Value]) -> list[Any]:
    """The gradients of the tensors among the arguments of `forward`."""
    found = list(result.items) if isinstance(result, TupleValue | ListValue) else [result]
    grads = [cap.force(x) for x in found]
    rest = grads[len(given) :]
    if len(grads) < len(given) or not all(isinstance(x, Const) and x.obj is None for x in rest):
        raise refuse("W107", f"{body.name} returns {len(grads)} gradients", cap.loc())
    for grad, x in zip(grads, given, strict=False):
        none = isinstance(grad, Const) and grad.obj is None
        if not none and not (isinstance(grad, TensorValue) and isinstance(x, TensorValue)):
            raise refuse("W107", f"{body.name} returns a {grad.cls().__name__}", cap.loc())
    return [g for g, x in zip(grads, given, strict=False) if isinstance(x, TensorValue)]
