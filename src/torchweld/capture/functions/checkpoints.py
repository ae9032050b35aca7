"""torch.utils.checkpoint: a node that holds the graph of the function, which runs twice."""

from __future__ import annotations

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
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, Raised, refuse
from torchweld.capture.tables import function
from torchweld.capture.values.base import TensorValue, Value, constant
from torchweld.ir.nested import Checkpointed

Args = list[Value]
Kwargs = dict[str, Value]

_PARAMETERS = frozenset(inspect.signature(torch.utils.checkpoint.checkpoint).parameters) | {
    "preserve_rng_state"}  # fmt: skip
# options that are handed on; what others ask for, eager does
_OPTIONS = ("use_reentrant", "preserve_rng_state")
_WHY = "a side effect of a function that is checkpointed"


@function(torch.utils.checkpoint.checkpoint)
def checkpoint(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Without gradients nothing is recomputed: the function is just called."""
    fn, *given = args
    rest = {k: v for k, v in kwargs.items() if k not in _PARAMETERS}
    if not torch.is_grad_enabled() and "context_fn" not in kwargs:
        cap.call(fn, given, rest, cont)
        return
    asked = {k: constant(v) for k, v in kwargs.items() if k in _PARAMETERS and k != "context_fn"}
    options = {k: asked.pop(k) for k in _OPTIONS if k in asked}
    if asked or "context_fn" in kwargs or type(options.get("use_reentrant")) is not bool:
        raise refuse("W103", "checkpoint with unusual options", cap.loc())
    if options["use_reentrant"]:
        cap.deliver(_reentrant(cap, fn, given, rest, options), cont)
    else:
        cap.deliver(_not_reentrant(cap, fn, given, rest, options), cont)


def _not_reentrant(cap: Capture, fn: Value, args: Args, kwargs: Kwargs,
                   options: dict[str, Any]) -> Value:  # fmt: skip
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
    return record(cap, Checkpointed(runner(body), options), ((), list(body.taken)),
                  builder.to_fake(made))  # fmt: skip


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
