"""Gradients that the frame takes: backward() and torch.autograd.grad.

Autograd runs on the FakeTensors and finds what a backward reaches. The graph gets one node, a call
of torch.autograd.grad; what a backward does to `.grad` of the leaves is kept in grads.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from torchweld.capture import polyfills
from torchweld.capture.functions.hooks import hooks_in_frame
from torchweld.capture.grads import grad_of, is_none, leaves_of, set_grad
from torchweld.capture.leaf_reads import by_name
from torchweld.capture.modes import has_no_gaps
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, WithoutCopies, raised, refuse
from torchweld.capture.tables import function
from torchweld.capture.values.base import (
    NONE,
    Const,
    DictValue,
    ListValue,
    NotConstant,
    TensorValue,
    TupleValue,
    Value,
    boolean,
    constant,
)
from torchweld.ir.hooks import Enter, Hook, Leave, Pack
from torchweld.ir.source import Attr
from torchweld.ir.takes import GRAD, grad_before_hooks

Args = list[Value]
Kwargs = dict[str, Value]
_TOP_HOOKS: Any = torch._C._autograd._top_saved_tensors_default_hooks
# what else happens with a gradient
_HOOKS: dict[str, Any] = {
    "_backward_hooks": torch.Tensor.register_hook,
    "_post_accumulate_grad_hooks": torch.Tensor.register_post_accumulate_grad_hook,
}
_BACKWARD = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
_METHOD = ("self", "gradient", "retain_graph", "create_graph", "inputs")
_GRADS = ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "only_inputs",
          "allow_unused", "is_grads_batched", "materialize_grads")  # fmt: skip


@function(torch.Tensor.backward)
def tensor_backward(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    given = _bound("backward", _METHOD, args, kwargs)
    _backward(cap, given["self"], given.get("gradient", NONE), given, cont)


@function(torch.autograd.backward)
def autograd_backward(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    given = _bound("backward", _BACKWARD, args, kwargs)
    if not is_none(given.get("grad_variables", NONE)):
        raise refuse("W103", "backward with grad_variables", cap.loc())
    _backward(cap, given["tensors"], given.get("grad_tensors", NONE), given, cont)


@function(torch.autograd.grad)
def autograd_grad(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    given = _bound("grad", _GRADS, args, kwargs)
    if _flag(cap, given, "is_grads_batched") or not _flag(cap, given, "only_inputs", True):
        raise refuse("W103", "torch.autograd.grad of a batch of gradients", cap.loc())
    ends, inputs = _tensors(cap, given["outputs"]), _tensors(cap, given["inputs"])
    _prepare(cap, ends)
    for x in inputs:
        _guard_hooks(cap, x)
    outside = [x for x in inputs if x.source is not None]
    hidden = _reached(cap, ends)[1]
    if hidden and outside and not (len(inputs) == hidden == 1):
        raise refuse("W103", "gradients through what was computed outside", cap.loc())
    cap.builder.frees_outside |= hidden > 0
    options: dict[str, Value] = {
        "create_graph": boolean(_flag(cap, given, "create_graph")),
        "retain_graph": boolean(_retains(cap, given)),
        "allow_unused": given.get("allow_unused", NONE),
        "materialize_grads": given.get("materialize_grads", Const(False)),
    }
    made = _taken(cap, ends, inputs, given.get("grad_outputs", NONE), options)
    names = given["inputs"]
    if isinstance(names, DictValue):
        named = DictValue(dict)
        named.items.update(zip(names.items, made, strict=True))
        named.keys.update(names.keys)
        cap.deliver(named, cont)
        return
    cap.deliver(TupleValue(list(made)), cont)


@function(torch.optim.Optimizer.zero_grad)
def zero_grad(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """torch keeps its own compiler out of it; for us it is Python like any other."""
    inner: Any = torch.optim.Optimizer.zero_grad
    cap.call(Const(getattr(inner, "__wrapped__", inner)), args, kwargs, cont)


def _backward(cap: Capture, tensors: Value, gradients: Value, given: dict[str, Value],
              cont: Cont | None) -> None:  # fmt: skip
    """What a backward does to the leaves that it reaches.

    Errors: GraphBreak W103 for what autograd would do outside of the frame.
    """
    ends = _tensors(cap, tensors)
    _prepare(cap, ends)
    create = _flag(cap, given, "create_graph")
    if create and not torch.is_grad_enabled():
        raise refuse("W103", "backward with create_graph=True under no_grad", cap.loc())
    leaves, hidden = _reached(cap, ends)
    wanted = given.get("inputs", NONE)
    if not is_none(wanted):
        chosen = _tensors(cap, wanted)
        if not all(any(x is y for y in leaves) for x in chosen):
            raise refuse("W103", "backward to inputs that are no leaves of it", cap.loc())
        leaves = [x for x in leaves if any(x is y for y in chosen)]
    if hidden:
        raise refuse("W103", "a backward through what was computed outside", cap.loc())
    if not leaves:
        raise refuse("W103", "a backward that reaches no leaf", cap.loc())
    hooks = [_hooks_of(cap, leaf) for leaf in leaves]
    options: dict[str, Value] = {
        "retain_graph": boolean(_retains(cap, given)),
        "create_graph": boolean(create),
        "allow_unused": Const(True),
    }
    order: list[int] = []
    with _noted(leaves, order) if any(hooks) else nullcontext():
        hooked = [x for x, theirs in zip(leaves, hooks, strict=True) if theirs]
        found = _taken(cap, ends, leaves, gradients, options, hooked)
    if any(hooks):
        if create:
            raise refuse("W103", "hooks in a backward with create_graph=True", cap.loc())
        rows = [_row(cap, leaves[i], found[i], hooks[i]) for i in order]
        cap.call(Const(polyfills.accumulate), [ListValue([*rows])], {}, cont)
        return
    shared = [*_given_tensors(cap, gradients)]
    for leaf, gradient in zip(leaves, found, strict=True):
        if isinstance(gradient, TensorValue):
            again = create or any(gradient is x for x in shared)
            _accumulate(cap, leaf, gradient, again, create)
            shared.append(gradient)
    cap.deliver(NONE, cont)


@contextmanager
def _noted(leaves: list[TensorValue], order: list[int]) -> Iterator[None]:
    """Note in which order gradients arrive at the leaves, which is that of their hooks."""

    def noting(i: int) -> Callable[[object], None]:
        return lambda gradient: order.append(i)

    handles = [x.fake.register_hook(noting(i)) for i, x in enumerate(leaves)]  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _row(cap: Capture, leaf: TensorValue, gradient: Value, hooks: list[Value]) -> Value:
    """What `polyfills.accumulate` needs to know of a leaf."""
    before = grad_of(cap, leaf)
    if not isinstance(gradient, TensorValue) or (
            isinstance(before, TensorValue) and before.fake.requires_grad):  # fmt: skip
        raise refuse("W103", "hooks on a gradient that is not there or requires grad", cap.loc())
    return TupleValue([leaf, gradient, *(hooks or (NONE, NONE, NONE, NONE))])


def _accumulate(cap: Capture, leaf: TensorValue, gradient: TensorValue, shared: bool,
                create: bool) -> None:  # fmt: skip
    """leaf.grad += gradient, as autograd does it: in place, unless it can be differentiated.

    Source: the description of gradient layouts in the documentation of Tensor.grad.
    """
    before = grad_of(cap, leaf)
    if isinstance(before, TensorValue) and create:
        made = cap.builder.call("call_function", operator.add, [before, gradient], {}, cap.loc())
        set_grad(cap, leaf, made)
    elif isinstance(before, TensorValue):
        if before.fake.requires_grad:
            raise refuse("W103", "a gradient that requires grad is added to", cap.loc())
        cap.builder.call("call_method", "add_", [before, gradient], {}, cap.loc())
    elif shared or not _is_laid_out(gradient.fake, leaf.fake):
        plain = cap.builder.call("call_method", "detach", [leaf], {}, cap.loc())
        own = cap.builder.call("call_function", torch.empty_like, [plain], {}, cap.loc())
        cap.builder.call("call_method", "copy_", [own, gradient], {}, cap.loc())
        set_grad(cap, leaf, own)
    else:
        set_grad(cap, leaf, gradient)


def _is_laid_out(gradient: torch.Tensor, leaf: torch.Tensor) -> bool:
    """Whether a gradient has the layout in which autograd keeps it: that of the leaf."""
    if not has_no_gaps(leaf):
        return gradient.is_contiguous()
    return all(n == 1 or a == b for n, a, b in zip(
        leaf.shape, gradient.stride(), leaf.stride(), strict=True))  # fmt: skip


# ------------------------------------------------------------------------- what is asked
def _bound(name: str, params: tuple[str, ...], args: Args, kwargs: Kwargs) -> dict[str, Value]:
    given = dict(zip(params, args, strict=False))
    if len(args) > len(params) or not kwargs.keys() <= set(params) - given.keys() or (
            not given and params[0] not in kwargs):  # fmt: skip
        raise raised(TypeError, f"{name}() got unexpected arguments")
    return {**given, **kwargs}


def _flag(cap: Capture, given: dict[str, Value], name: str, default: bool = False) -> bool:
    try:
        return bool(constant(given.get(name, Const(default))))
    except NotConstant:
        raise refuse("W103", f"{name} that is not constant", cap.loc()) from None


def _retains(cap: Capture, given: dict[str, Value]) -> bool:
    chosen = not is_none(given.get("retain_graph", NONE))
    return _flag(cap, given, "retain_graph" if chosen else "create_graph")


def _tensors(cap: Capture, x: Value) -> list[TensorValue]:
    """One tensor, or several in a list, tuple or dict."""
    cap.unwrap(x)
    match x:
        case ListValue() | TupleValue():
            found: list[Any] = list(x.items)
        case DictValue() if x.complete:
            found = list(x.items.values())
        case _:
            found = [x]
    if not found or not all(isinstance(t, TensorValue) for t in found):
        raise refuse("W103", "gradients of something else than tensors", cap.loc())
    return found


def _given_tensors(cap: Capture, x: Value) -> list[TensorValue]:
    items = cap.force_items(x.items) if isinstance(x, ListValue | TupleValue) else [x]
    return [t for t in items if isinstance(t, TensorValue)]


# ------------------------------------------------------------------------- what is there
def _prepare(cap: Capture, ends: list[TensorValue]) -> None:
    """Errors: GraphBreak where autograd cannot be followed; WithoutCopies if fakes have no history
    because calls were copied."""
    cap.reads_grad = True
    if cap.pure or cap.builder.bodies:
        raise refuse("W103", "a backward in a function that torch runs", cap.loc())
    if cap.slices is not None:
        if cap.slices.repeated:
            raise WithoutCopies
        cap.slices = None
    if any(isinstance(n.target, Hook | Enter | Leave) for n in cap.builder.root.nodes):
        # what they do to the world may be seen in the frame behind the backward
        raise refuse("W103", "a backward that calls hooks from outside", cap.loc())
    for getter, plain in ((_default_hooks, None), (torch.is_anomaly_enabled, False)):
        if getter() is not plain:
            raise refuse("W103", "a backward under saved_tensors_hooks or detect_anomaly",
                         cap.loc())  # fmt: skip
        cap.guard("state", None, (getter, plain))
    if any(isinstance(n.target, Pack) for n in cap.builder.root.nodes):
        raise refuse("W103", "a backward of what saved_tensors_hooks have packed", cap.loc())
    if not any(x.fake.requires_grad for x in ends):
        raise refuse("W103", "a backward from what does not require grad", cap.loc())


def _default_hooks() -> object:
    """What packs the tensors that autograd saves."""
    return _TOP_HOOKS(True)


def _reached(cap: Capture, ends: list[TensorValue]) -> tuple[list[TensorValue], int]:
    """The leaves that a backward reaches; how many are behind tensors from outside."""
    found = [cap.builder.by_fake.get(id(x)) for x, _ in leaves_of([e.fake for e in ends])]
    known = [x for x in found if x is not None]
    return known, len(found) - len(known)


def _hooks_of(cap: Capture, x: TensorValue) -> list[Value]:
    """The hooks of a leaf, those before and behind accumulation: for each, the dict from outside
    and what the frame has registered. Empty if there are none."""
    real = cap.builder.reals.get(id(x))
    if real is None or x.source is None:
        return []
    registered = any(x is y for y in cap.builder.hooked)  # in the frame
    if not registered and not any(getattr(real, name) for name in _HOOKS):
        _guard_hooks(cap, x)
        return []
    found: list[Value] = []
    for name, method in _HOOKS.items():
        source = Attr.make(x.source, name)
        hooks = getattr(real, name)
        if hooks is None:
            cap.guard("equal", source, None)
        found.append(NONE if hooks is None else cap.wrap(hooks, source))
        found.append(ListValue(list(hooks_in_frame(cap, method, x))))
    _guard_dtype(cap, x, real)
    return found


def _guard_hooks(cap: Capture, x: TensorValue) -> None:
    """Errors: GraphBreak W103 if something else happens with a gradient than that it is kept."""
    real = cap.builder.reals.get(id(x))
    if real is None or x.source is None:
        return
    registered = any(x is y for y in cap.builder.hooked)  # in the frame
    for name in _HOOKS:
        hooks = getattr(real, name)
        if hooks or registered:
            raise refuse("W103", "hooks on the gradient of a tensor", cap.loc())
        source = Attr.make(x.source, name)
        if hooks is None:
            cap.guard("equal", source, None)
        else:
            cap.guard("predicate", source, operator.not_)
    if not real.is_leaf:
        if real.retains_grad:
            raise refuse("W103", "a gradient that is kept by retain_grad", cap.loc())
        cap.guard("equal", Attr.make(x.source, "retains_grad"), False)
    _guard_dtype(cap, x, real)


def _guard_dtype(cap: Capture, x: TensorValue, real: torch.Tensor) -> None:
    """Errors: GraphBreak W103 if gradients are kept in another dtype."""
    assert x.source is not None
    if real.is_leaf and hasattr(real, "grad_dtype"):
        if real.grad_dtype != real.dtype:
            raise refuse("W103", "a gradient of another dtype than its tensor's", cap.loc())
        cap.guard("is", Attr.make(x.source, "grad_dtype"), real.dtype)


def _taken(cap: Capture, ends: list[TensorValue], inputs: list[TensorValue], gradients: Value,
           options: dict[str, Value],
           hooked: Sequence[TensorValue] = ()) -> list[Value]:  # fmt: skip
    """The results of a node that calls torch.autograd.grad; hooked: inputs whose hooks the graph
    calls itself."""
    args: Args = [TupleValue(list(ends)), TupleValue(list(inputs)), cap.unwrap(gradients)]
    target = by_name(cap, GRAD)
    if hooked and target is GRAD:
        target, args = grad_before_hooks, [TupleValue([*hooked]), *args]
    with torch.autograd.set_multithreading_enabled(False):
        made = cap.builder.call("call_function", target, args, options, cap.loc())
    assert isinstance(made, TupleValue)
    cap.backwards += 1
    found = cap.force_items(made.items)
    if any(isinstance(g, TensorValue) and g.fake.layout != torch.strided for g in found):
        raise refuse("W112", "a gradient that is sparse", cap.loc())
    return found
