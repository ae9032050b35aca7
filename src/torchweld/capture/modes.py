"""Calls in a captured graph that change torch's modes, and what must hold around the graph.

A graph holds such calls as nodes. Compiled code ignores them, since they decide nothing that it
computes, except for one thing: whether the tensors that it returns are inference tensors.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils._device import DeviceContext, _device_constructors

from torchweld.base.errors import Untouched
from torchweld.capture.state import refuse
from torchweld.capture.values.base import TensorValue
from torchweld.ir.graph import VAL
from torchweld.ir.hooks import Pack
from torchweld.ir.nested import memory_of

ENTER: Any = torch.autograd.grad_mode._enter_inference_mode
EXIT: Any = torch.autograd.grad_mode._exit_inference_mode
SET_GRAD: Any = torch._C._set_grad_enabled
Undo = Callable[[], object]
MUTATED = "mutated"  # GraphModule.meta: positions of the placeholders that the graph writes
RUNS_AGAIN = "runs_again"  # and whether its frame runs eagerly if it fails before the first write


# which kernels scaled_dot_product_attention may choose from: setter -> getter
ATTENTION: dict[Any, Any] = {
    getattr(torch._C, f"_set_sdp_use_{name}"): getattr(torch._C, f"_get_{name}_sdp_enabled")
    for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable", "fa3")
    if hasattr(torch._C, f"_set_sdp_use_{name}") and hasattr(torch._C, f"_get_{name}_sdp_enabled")
}


def attention_order() -> tuple[int, ...]:
    """Which of the kernels that attention may use it tries first."""
    return tuple(torch._C._get_sdp_priority_order())


def default_devices() -> tuple[Any, ...]:
    """The devices that `with torch.device` and set_default_device have set, the last one last.

    A torch function mode that is something else stands for itself.
    """
    stack: list[Any] = torch.overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    if any(type(m) is not DeviceContext for m in stack):
        return tuple(stack)
    return _known(tuple(m.device for m in stack))


@functools.cache
def _known(devices: tuple[torch.device, ...]) -> tuple[torch.device, ...]:
    """One tuple for equal ones: guards of states compare by identity."""
    return devices


@functools.cache
def makes_tensors(fn: Any) -> bool:
    """Whether a function makes tensors on the default device if it is not given one."""
    if fn in _device_constructors():
        return True
    code = fn.__code__ if isinstance(fn, types.FunctionType) else None
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code else ()
    return "device" in named and fn.__module__.startswith("torch.signal")


# setter, whose last argument is the new state -> what, called with the setter's arguments, gives
# the call that reads the state
SETTERS: dict[Any, Callable[..., Callable[[], Any]]] = {
    SET_GRAD: lambda on: torch.is_grad_enabled,
    torch.set_autocast_enabled: lambda *args: functools.partial(
        torch.is_autocast_enabled, args[0] if len(args) > 1 else "cuda"),
    torch.set_autocast_dtype: lambda device, dtype: functools.partial(
        torch.get_autocast_dtype, device),
    torch.set_autocast_cache_enabled: lambda on: torch.is_autocast_cache_enabled,
    **{setter: functools.partial(lambda getter, on: getter, getter)
       for setter, getter in ATTENTION.items()},
    torch._C._set_sdp_priority_order: lambda order: attention_order,
    torch.set_default_dtype: lambda dtype: torch.get_default_dtype,
}  # fmt: skip
# calls without an argument -> what undoes them
STEPS: dict[Any, Any] = {
    torch.autocast_increment_nesting: torch.autocast_decrement_nesting,
    torch.autocast_decrement_nesting: torch.autocast_increment_nesting,
    torch.clear_autocast_cache: lambda: None,
}


_CHANGES = frozenset((*SETTERS, *STEPS))


def undo_of(setter: Any, args: tuple[Any, ...]) -> Undo:
    """The call that restores the state from before `setter(*args)`."""
    if isinstance(setter, Pack):
        return setter.undo
    if setter in STEPS:
        undo: Undo = STEPS[setter]
        return undo
    old = SETTERS[setter](*args)()
    return lambda: setter(*args[:-1], old)


# ------------------------------------------------- the graph itself, when an operator fails
_undos = threading.local()


def _opened() -> list[Undo]:
    found: list[Undo] | None = getattr(_undos, "stack", None)
    if found is None:
        found = _undos.stack = []
    return found


def _remembering(setter: Any) -> Any:
    """`setter`, which also notes how to undo it."""

    def run(*args: Any) -> Any:
        _opened().append(undo_of(setter, args))
        return setter(*args)

    return run


def enter(mode: bool) -> tuple[Any, Undo]:
    """Enter inference mode: the object that leaves it, and what undoes everything since."""
    before = torch.is_grad_enabled()
    opened = ENTER(mode)
    return opened, lambda: (EXIT(opened), SET_GRAD(before))


def _enter(mode: bool) -> Any:
    opened, undo = enter(mode)
    _opened().append(undo)
    return opened


def restoring(gm: GraphModule, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`; if it is the graph itself, it is `undoing`, and tells whether it has written."""
    if call not in (gm, gm.forward):
        return call
    return _telling(undoing(gm), gm.meta[MUTATED]) if gm.meta.get(RUNS_AGAIN) else undoing(gm)


def undoing(gm: GraphModule) -> Callable[..., Any]:
    """The graph itself; an operator that fails leaves no mode behind.

    In eager the with block around the operator restores the mode; a graph has no such blocks.
    """
    setters = [n for n in gm.graph.nodes if n.target is ENTER or n.target in _CHANGES
               or isinstance(n.target, Pack)]  # fmt: skip
    return _restoring(gm, setters) if setters else gm.forward


def _telling(call: Callable[..., Any], written: Sequence[int]) -> Callable[..., Any]:
    """`call`, which raises Untouched if it fails before it has written to an input."""

    def run(*args: Any) -> Any:
        before = [args[i]._version for i in written]
        try:
            return call(*args)
        except Exception as error:
            if before == [args[i]._version for i in written]:
                raise Untouched from error
            raise

    return run


def _restoring(gm: GraphModule, setters: list[Node]) -> Callable[..., Any]:
    inner: list[Callable[..., Any]] = []  # most graphs are never run like this

    def run(*args: Any) -> Any:
        if not inner:
            inner.append(_remembered(gm, setters))
        opened = _opened()
        depth = len(opened)
        try:
            return inner[0](*args)
        except BaseException:
            while len(opened) > depth:
                opened.pop()()
            raise
        finally:
            del opened[depth:]

    return run


def _remembered(gm: GraphModule, setters: list[Node]) -> Callable[..., Any]:
    """The graph with setters that note how to undo them."""
    graph = Graph()
    places: dict[Node, Node] = {}
    graph.output(graph.graph_copy(gm.graph, places))
    for node in setters:
        places[node].target = _enter if node.target is ENTER else _remembering(node.target)
    return GraphModule(gm, graph).forward


def ambient() -> Callable[[], AbstractContextManager[object]]:
    """A context, made anew by each call, in which autocast is as it is now."""
    state = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
             for kind in ("cpu", "cuda")]  # fmt: skip
    cache = torch.is_autocast_cache_enabled()

    def enter() -> AbstractContextManager[object]:
        stack = ExitStack()
        for kind, enabled, dtype in state:
            stack.enter_context(torch.autocast(kind, dtype, enabled, cache_enabled=cache))
        return stack

    return enter


# ------------------------------------------------------------- which tensors are inference tensors
@dataclass(frozen=True, slots=True)
class Around:
    """The inference mode in which the graph must be called.

    mode: to enter around the call, or None. copied: positions of outputs of the other kind than
    the call makes; `kind` is that kind.
    """

    mode: bool | None
    copied: tuple[int, ...]
    kind: bool


NOTHING = Around(None, (), False)


def around(graph: Graph, inputs: Sequence[TensorValue], outputs: Sequence[TensorValue]) -> Around:
    """What must be done so that the outputs are inference tensors just where eager's are.

    Errors: GraphBreak W106 where outputs of both kinds share memory or require grad.
    """
    if not any(n.target is ENTER for n in graph.nodes):
        return NOTHING
    outside = torch.is_inference_mode_enabled()
    theirs = {memory(x) for x in inputs}
    own = [i for i, x in enumerate(outputs) if memory(x) not in theirs]
    other = [i for i in own if outputs[i].fake.is_inference() != outside]
    if not other:
        return NOTHING
    if len(other) == len(own) and not _records_elsewhere(graph, not outside):
        return Around(not outside, (), False)
    kept = {memory(x) for i, x in enumerate(outputs) if i not in other}
    memories = [memory(outputs[i]) for i in other]
    apart = len(set(memories)) == len(memories) and not kept & set(memories)
    if not apart or not all(_can_be_copied(outputs[i].fake) for i in other):
        raise refuse("W106", "results made inside and outside of inference_mode that share memory, "
                             "require grad, or have gaps")  # fmt: skip
    return Around(None, tuple(other), not outside)


def memory(x: TensorValue) -> int:
    """A number that tensors have in common that share memory."""
    return memory_of(x.fake)


def _can_be_copied(fake: torch.Tensor) -> bool:
    """Whether a clone has the same strides."""
    return has_no_gaps(fake) and not fake.requires_grad


def has_no_gaps(fake: torch.Tensor) -> bool:
    """Whether the elements fill their memory, in any order, each in a place of its own."""
    expected = 1
    for size, stride in sorted(zip(fake.shape, fake.stride(), strict=True), key=lambda p: p[1]):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _records_elsewhere(graph: Graph, mode: bool) -> bool:
    """Whether autograd records an operator that does not run in this inference mode."""
    now = torch.is_inference_mode_enabled()
    before: dict[Node, bool] = {}
    for node in graph.nodes:
        if node.target is ENTER:
            before[node] = now
            now = bool(node.args[0])
        elif node.target is EXIT:
            now = before[node.args[0]]
        elif node.op != "placeholder" and now != mode and _requires_grad(node.meta.get(VAL)):
            return True
    return False


def _requires_grad(value: object) -> bool:
    if isinstance(value, tuple | list):
        return any(_requires_grad(v) for v in value)
    return isinstance(value, torch.Tensor) and value.requires_grad


def copied(outs: Sequence[Any], places: tuple[int, ...], mode: bool) -> list[Any]:
    """The outputs, with those at `places` remade in the given inference mode."""
    found = list(outs)
    with torch._C._InferenceMode(mode):
        for i in places:
            if found[i].is_inference() != mode:
                found[i] = found[i].clone()
    return found
