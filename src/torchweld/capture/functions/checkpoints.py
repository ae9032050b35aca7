"""torch.utils.checkpoint: a node that holds the graph of the function, which runs twice."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import torch
import torch.utils.checkpoint

from torchweld.base.errors import WeldError
from torchweld.capture.inner import (
    function_of,
    inner_call,
    new_body,
    record,
    repeatable,
    runner,
)
from torchweld.capture.modes import SET_GRAD
from torchweld.capture.outside_functions import real_function
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, Raised, refuse
from torchweld.capture.tables import function
from torchweld.capture.values.base import (
    Const,
    InstanceValue,
    TensorValue,
    TupleValue,
    Value,
    constant,
)
from torchweld.ir.nested import Checkpointed

Args = list[Value]
Kwargs = dict[str, Value]

_NO_CONTEXTS: Any = torch.utils.checkpoint.noop_context_fn
_PARAMETERS = frozenset(inspect.signature(torch.utils.checkpoint.checkpoint).parameters) | {
    "preserve_rng_state"}  # fmt: skip
# options that are handed on; what others ask for, eager does
_OPTIONS = ("use_reentrant", "preserve_rng_state", "determinism_check", "early_stop")
_REENTRANT = frozenset(("use_reentrant", "preserve_rng_state"))
_WHY = "a side effect of a function that is checkpointed"


@function(torch.utils.checkpoint.checkpoint)
def checkpoint(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Without gradients nothing is recomputed: the function is just called."""
    fn, *given = args
    rest = {k: v for k, v in kwargs.items() if k not in _PARAMETERS}
    contexts = kwargs.get("context_fn")
    if isinstance(contexts, Const) and contexts.obj is _NO_CONTEXTS:
        contexts = None
    if not torch.is_grad_enabled() and contexts is None:
        cap.call(fn, given, rest, cont)
        return
    asked = {k: constant(v) for k, v in kwargs.items() if k in _PARAMETERS and k != "context_fn"}
    options = {k: asked.pop(k) for k in _OPTIONS if k in asked}
    reentrant = options.get("use_reentrant")
    if any(asked.values()) or type(reentrant) is not bool or (
            reentrant and (contexts is not None or options.keys() - _REENTRANT)):  # fmt: skip
        raise refuse("W103", "checkpoint with unusual options", cap.loc())
    if reentrant:
        cap.deliver(_reentrant(cap, fn, given, rest, options), cont)
        return
    real = None if contexts is None else _selecting(cap, contexts)
    cap.deliver(_not_reentrant(cap, fn, given, rest, options, real), cont)


# what stands for the contexts that torch makes of a policy
_SELECTING = (object(), object())


@function(torch.utils.checkpoint.create_selective_checkpoint_contexts)
def contexts_of(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Only known inside of a context_fn, which is interpreted to see what it gives."""
    if not cap.pure:
        raise refuse("W103", "contexts of a checkpoint that are made in advance", cap.loc())
    cap.deliver(TupleValue([Const(x) for x in _SELECTING]), cont)


def _selecting(cap: Capture, contexts: Value) -> Any:
    """The context_fn, which makes a policy of what is kept, or contexts that do nothing.

    Errors: GraphBreak for other contexts.
    """
    body = new_body(cap, "the contexts of a checkpoint")
    builder = cap.builder
    try:
        builder.open(body)
        with repeatable(cap, (body,), "a side effect of the contexts of a checkpoint"):
            made = inner_call(cap, contexts, [], {})
    finally:
        builder.close(body)
    items = made.items if isinstance(made, TupleValue) else []
    selecting = [getattr(x, "obj", None) for x in items] == [*_SELECTING]
    if not selecting and not (len(items) == 2 and all(map(_does_nothing, items))):
        raise refuse("W103", "checkpoint with contexts of one's own", cap.loc())
    return real_function(cap, contexts)


def _does_nothing(x: Any) -> bool:
    return isinstance(x, InstanceValue) and x.klass is contextlib.nullcontext


def _not_reentrant(cap: Capture, fn: Value, args: Args, kwargs: Kwargs, options: dict[str, Any],
                   contexts: Any) -> Value:  # fmt: skip
    """Autograd sees the operators of the function: where its tensors come from is all one."""
    builder = cap.builder
    body = new_body(cap, "a checkpointed function")
    try:
        builder.open(body)
        with repeatable(cap, (body,), _WHY):
            made = inner_call(cap, fn, args, kwargs)
            body.graph.output(builder.to_fx(made))
    finally:
        builder.close(body)
    target = Checkpointed(runner(body), options, contexts)
    own = [builder.node_of(x) for x in args if isinstance(x, TensorValue)]
    return record(cap, target, (own, list(body.taken)), builder.to_fake(made))


def _reentrant(cap: Capture, fn: Value, args: Args, kwargs: Kwargs,
               options: dict[str, Any]) -> Value:  # fmt: skip
    """Autograd sees the tensors among the arguments only."""
    own = [x for x in args if isinstance(x, TensorValue)]
    if kwargs or not any(x.fake.requires_grad for x in own):
        raise refuse("W103", "checkpoint without inputs that require gradients", cap.loc())
    builder = cap.builder
    body = new_body(cap, "a checkpointed function")

    def arranged(tensors: Args) -> Args:
        left = iter(tensors)
        return [next(left) if isinstance(x, TensorValue) else x for x in args]

    inner = function_of(cap, body, fn, arranged)
    try:
        with repeatable(cap, (body,), _WHY), builder.mode:
            out = torch.utils.checkpoint.checkpoint(
                inner, *(x.fake for x in own), use_reentrant=True, preserve_rng_state=False)
    except (Raised, WeldError):
        raise
    except Exception as error:
        why = f"checkpoint: {type(error).__name__}: {error}"
        raise refuse("W104", why, cap.loc()) from None
    finally:
        builder.close(body)
    if any(n.target is SET_GRAD for n in body.graph.nodes):
        raise refuse("W106", "a checkpointed function sets the grad mode", cap.loc())
    nodes = [builder.node_of(x) for x in own]
    return record(cap, Checkpointed(runner(body), options), (nodes, list(body.taken)), out)
