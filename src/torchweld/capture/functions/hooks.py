"""Hooks of tensors and modules that wait for gradients.

A hook of a tensor that the graph makes, and those of a module, are nodes (ir/hooks.py): functions
from outside are called as they are when the gradient is there, functions made in the frame are
graphs. A hook of a tensor from outside is registered when the graph has run.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterator
from operator import getitem
from typing import Any

import torch
from torch.utils.hooks import BackwardHook, RemovableHandle

from torchweld.base.errors import GraphBreak
from torchweld.capture.inner import as_value, inner_call, new_body, repeatable, runner
from torchweld.capture.object_ids import IsObject
from torchweld.capture.outside_functions import real_function
from torchweld.capture.policy import inline_anyway
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.suspend import stops_of
from torchweld.capture.tables import function, klass
from torchweld.capture.values.base import (
    NONE,
    BoundValue,
    Const,
    InstanceValue,
    ListValue,
    TensorValue,
    TupleValue,
    Value,
)
from torchweld.ir.graph import LOC, VAL
from torchweld.ir.hooks import NO_TENSOR, Around, Enter, GraphHook, Hook, Leave, Pack, SavedHooks

_OF_MODULES = "torchweld.capture.functions.module_hooks"
Args = list[Value]
Kwargs = dict[str, Value]


class HandleValue(Value):
    """What removes a hook. undo: takes the registration back, as long as the frame runs."""

    __slots__ = ("undo",)

    def __init__(self, undo: Any) -> None:
        super().__init__(None)
        self.undo = undo

    def cls(self) -> type:
        return RemovableHandle


def _given(args: Args, kwargs: Kwargs) -> tuple[TensorValue, Value]:
    x, *rest = args
    (hook,) = (*rest, *kwargs.values())
    assert isinstance(x, TensorValue)
    return x, hook


@function(torch.Tensor.register_hook)
def register_hook(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    x, hook = _given(args, kwargs)
    _check_place(cap)
    cap.reads_grad = True
    if not x.fake.requires_grad or isinstance(hook, TensorValue):
        raise refuse("W107", "a hook of a tensor without a gradient", cap.loc())
    if x.source is not None:
        _after(cap, torch.Tensor.register_hook, x, hook, cont)
        return
    made = _hook_of(cap, x, hook)
    place = cap.builder.node_of(x)
    if isinstance(made, Hook):
        node = _node(cap, made, (place,), None)
    else:
        node = _node(cap, made[0], (place, made[1]), None)
    _deliver(cap, HandleValue(lambda: cap.builder.graph.erase_node(node)), cont)


@function(torch.Tensor.register_post_accumulate_grad_hook)
def after_accumulation(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    x, hook = _given(args, kwargs)
    _check_place(cap)
    cap.reads_grad = True
    if x.source is None or not x.fake.requires_grad or not x.fake.is_leaf:
        raise refuse("W107", "register_post_accumulate_grad_hook of no leaf", cap.loc())
    _after(cap, torch.Tensor.register_post_accumulate_grad_hook, x, hook, cont)


@function(RemovableHandle.remove)
def remove(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    (handle,) = args
    if not isinstance(handle, HandleValue):
        if handle in cap.handles:
            importlib.import_module(_OF_MODULES).remove(cap, handle, cont)
        else:
            inline_anyway(cap, RemovableHandle.remove, args, kwargs, cont)
        return
    if handle.undo is not None:
        handle.undo()
        handle.undo = None
    cap.deliver(NONE, cont)


def _check_place(cap: Capture) -> None:
    if cap.builder.bodies or cap.pure:
        raise refuse("W106", "a hook is registered in a function that torch calls", cap.loc())


def _deliver(cap: Capture, handle: HandleValue, cont: Cont | None) -> None:
    cap.note_birth(handle, stops_of(cap))
    cap.deliver(handle, cont)


def _after(cap: Capture, method: Any, x: TensorValue, hook: Value, cont: Cont | None) -> None:
    """Register a hook of a tensor from outside when the graph has run."""
    cap.builder.hooked.append(x)
    effect: Any = (Const(method), [x, hook], {})
    cap.effects.append(effect)

    def undo() -> None:
        cap.effects[:] = [e for e in cap.effects if e is not effect]
        cap.builder.hooked.remove(x)  # once for each hook

    _deliver(cap, HandleValue(undo), cont)


def hooks_in_frame(cap: Capture, method: Any, x: TensorValue) -> Iterator[Value]:
    """What the frame has registered on a tensor from outside, and not removed."""
    for fn, args, _ in cap.effects:
        if isinstance(fn, Const) and fn.obj is method and args[0] is x:
            yield args[1]


def _node(cap: Capture, target: Any, args: tuple[Any, ...], value: Any) -> Any:
    node = cap.builder.graph.call_function(target, args)
    node.meta[VAL], node.meta[LOC] = value, cap.loc()
    cap.builder.n_calls += 1
    cap.unguarded += 1  # no slice: hooks are guarded by identity
    return node


def _outside(cap: Capture, hook: Value) -> Any:
    """The function from outside that a hook is; None for one that is made in the frame."""
    if isinstance(hook, Const):
        return hook.obj
    if isinstance(hook, BoundValue) and isinstance(hook.func, Const) and (
            isinstance(hook.self_, InstanceValue) and hook.self_.real is not None
            and hook.self_.source is not None and isinstance(hook.func.obj, types.FunctionType)
    ):  # fmt: skip
        cap.guard("is", hook.self_.source, hook.self_.real)
        return types.MethodType(hook.func.obj, hook.self_.real)
    return None


def _hook_of(cap: Capture, x: TensorValue, hook: Value) -> Hook | tuple[GraphHook, list[Any]]:
    """Functions from outside are called; those of the frame are graphs, if they have no effects."""
    real = _outside(cap, hook)
    if real is not None:
        return Hook(real)
    before, depth = _state(cap), len(cap.frames)
    try:
        return _as_graph(cap, x, hook)
    except GraphBreak as why:
        if why.code != "W106" or _state(cap) != before:
            raise
        del cap.frames[depth:]
        return Hook(real_function(cap, hook))


def _state(cap: Capture) -> tuple[object, ...]:
    """What a function may have changed before it was found to have an effect."""
    return (len(cap.modes), len(cap.inference), len(cap.effects), len(cap.handled),
            len(cap.globals_written))  # fmt: skip


def _as_graph(cap: Capture, x: TensorValue, hook: Value) -> tuple[GraphHook, list[Any]]:
    """A hook made in the frame. Errors: GraphBreak if it does more than compute a gradient."""
    builder = cap.builder
    body = new_body(cap, "a hook of a tensor")
    builder.open(body)
    builder.any_layout += 1
    try:
        with torch.no_grad(), torch._C._DisableAutocast(), repeatable(
                cap, (body,), "a side effect of a hook"):  # fmt: skip
            with builder.mode:
                fake = torch.empty_like(x.fake)
            given = as_value(cap, body, fake)
            made = inner_call(cap, hook, [given], {})
            made = given if isinstance(made, Const) and made.obj is None else made
            if not isinstance(made, TensorValue) or made.fake.shape != fake.shape:
                raise refuse("W107", "what a hook of a tensor returns", cap.loc())
            body.graph.output(builder.node_of(made))
    finally:
        builder.any_layout -= 1
        builder.close(body)
    return GraphHook(runner(body)), list(body.taken)


# ------------------------------------------------------------------------------ modules
@klass(BackwardHook)
def make_backward_hook(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """What nn.Module.__call__ makes where backward hooks are registered."""
    module, full, pre = args
    _check_place(cap)
    if not isinstance(module, InstanceValue) or module.real is None or module.source is None:
        raise refuse("W107", "backward hooks of a module made in the frame", cap.loc())
    made = InstanceValue(BackwardHook)
    made.attrs.update(module=module, full=full, pre=pre)
    cap.note_birth(made, stops_of(cap))
    cap.deliver(made, cont)


def _around(cap: Capture, made: InstanceValue) -> Around:
    """The module and its hooks, guarded by identity."""
    known = made.attrs.get("around")
    if isinstance(known, Const) and isinstance(known.obj, Around):
        return known.obj
    module = made.attrs["module"]
    assert isinstance(module, InstanceValue)
    assert module.source is not None
    cap.guard("predicate", module.source, IsObject(module.real, "of these hooks"))
    around = Around(module.real, *(_functions(cap, made.attrs[n]) for n in ("full", "pre")))
    made.attrs["around"] = Const(around)
    return around


def _functions(cap: Capture, hooks: Value | None) -> list[Any]:
    if not isinstance(hooks, ListValue):
        raise refuse("W107", "backward hooks that are no list", cap.loc())
    found = []
    for hook in cap.force_items(hooks.items):
        real = hook.obj if isinstance(hook, Const) else getattr(hook, "real", None)
        real = _outside(cap, hook) if real is None else real
        if real is None:
            raise refuse("W107", "a backward hook made in the frame", cap.loc())
        if hook.source is not None and not isinstance(hook, BoundValue):
            cap.guard("is", hook.source, real)
        found.append(real)
    return found


@function(BackwardHook.setup_input_hook)
def setup_input_hook(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    hook, given = args
    assert isinstance(hook, InstanceValue)
    assert isinstance(given, TupleValue)
    items = cap.force_items(given.items)
    hook.attrs["given"] = Const(len(items))
    if not _wait(items):
        cap.deliver(given, cont)
        return
    tensors = [x for x in items if isinstance(x, TensorValue)]
    target = Enter(_around(cap, hook), _shape(items))
    made, parts = _run(cap, target, ([cap.builder.node_of(x) for x in tensors],),
                       ([x.fake for x in tensors],))  # fmt: skip
    hook.attrs["made"] = Const(made)
    left = iter(parts)
    cap.deliver(TupleValue([next(left) if isinstance(x, TensorValue) else x for x in items],
                           given.kind), cont)  # fmt: skip


@function(BackwardHook.setup_output_hook)
def setup_output_hook(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    hook, out = args
    assert isinstance(hook, InstanceValue)
    single = not isinstance(out, TupleValue)
    items = [out] if single else cap.force_items(out.items)  # type: ignore[attr-defined]
    if not _wait(items):
        cap.deliver(out, cont)
        return
    tensors = [x for x in items if isinstance(x, TensorValue)]
    made, given = hook.attrs.get("made"), hook.attrs["given"]
    assert isinstance(given, Const)
    entered: Any = made.obj if isinstance(made, Const) else (None, None)
    target = Leave(_around(cap, hook), _shape(items), given.obj)  # type: ignore[arg-type]
    _, parts = _run(cap, target, (entered[0], [cap.builder.node_of(x) for x in tensors]),
                    (entered[1], [x.fake for x in tensors]))  # fmt: skip
    left = iter(parts)
    results = [next(left) if isinstance(x, TensorValue) else x for x in items]
    cap.deliver(results[0] if single else TupleValue([*results], out.cls()), cont)


def _wait(items: list[Value]) -> bool:
    """Whether gradients will come."""
    return torch.is_grad_enabled() and any(
        isinstance(x, TensorValue) and x.fake.requires_grad for x in items)  # fmt: skip


def _shape(items: list[Value]) -> tuple[Any, ...]:
    return tuple(None if isinstance(x, TensorValue) else NO_TENSOR for x in items)


def _run(cap: Capture, target: Any, inputs: tuple[Any, ...],
         fakes: tuple[Any, ...]) -> tuple[Any, list[Value]]:  # fmt: skip
    """The node and the value of torch's own hook, and the tensors behind it."""
    builder, at = cap.builder, cap.loc()
    hook, *outs = builder.run("call_function", target, list(fakes), {}, at)
    node = _node(cap, target, inputs, (hook, *outs))
    names = [builder.graph.call_function(getitem, (node, i)) for i in range(len(outs) + 1)]
    parts: list[Value] = []
    for name, value in zip(names, (hook, *outs), strict=True):
        name.meta[VAL], name.meta[LOC] = value, at
    for name, value in zip(names[1:], outs, strict=True):
        parts.append(builder.wrap_result(name, value, at, 0))
    return (names[0], hook), parts


# ------------------------------------------------------------------------------ saved tensors
@function(torch._C._autograd._push_saved_tensors_default_hooks)
def push_saved_hooks(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Autograd calls them where the graph runs; nothing is saved while it is captured."""
    if cap.builder.bodies or cap.pure:
        raise refuse("W106", "saved_tensors_hooks in a function that torch calls", cap.loc())
    pack, unpack = (_outside(cap, x) or real_function(cap, x) for x in args)
    stops = stops_of(cap)
    hooks = SavedHooks(pack, unpack)
    cap.builder.packs.append((hooks, stops[0] if stops else 0))
    _node(cap, Pack(hooks, True), (), None)
    cap.deliver(NONE, cont)


@function(torch._C._autograd._pop_saved_tensors_default_hooks)
def pop_saved_hooks(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if not cap.builder.packs or cap.builder.bodies:
        raise refuse("W106", "saved_tensors_hooks that were entered before", cap.loc())
    hooks, _ = cap.builder.packs.pop()
    _node(cap, Pack(hooks, False), (), None)
    cap.deliver(NONE, cont)
