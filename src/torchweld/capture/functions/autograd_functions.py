"""torch.autograd.Function: without gradients, `apply` is a call of `forward`."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import FunctionCtx

from torchweld.capture import polyfills
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.tables import function
from torchweld.capture.values.base import (
    Const,
    InstanceValue,
    TensorValue,
    TupleValue,
    Value,
    boolean,
)

_OWN_CONTEXT = torch.autograd.Function.setup_context
# written in C from torch 2.14 on
_APPLY: Any = torch.autograd.Function.apply


@function(getattr(_APPLY, "__func__", _APPLY))
def apply(cap: Capture, args: list[Value], kwargs: dict[str, Value], cont: Cont | None) -> None:
    """Interpreted with a context that only remembers what it is told.

    An output that is an input would be a view of it in eager.
    """
    kind, *given = args
    if not isinstance(kind, Const) or kwargs:
        raise refuse("W107", "apply of an autograd.Function in an unusual way", cap.loc())
    real: Any = kind.obj
    given = [cap.unwrap(a) for a in given]
    needs = [isinstance(a, TensorValue) and a.fake.requires_grad for a in given]
    if torch.is_grad_enabled() and any(needs):
        raise refuse("W103", f"{real.__qualname__}.apply with gradients", cap.loc())

    def finish(made: Value) -> None:
        outputs = made.items if isinstance(made, TupleValue) else [made]
        if any(out is a for out in outputs for a in given if isinstance(a, TensorValue)):
            raise refuse("W107", f"{real.__qualname__} returns one of its inputs", cap.loc())
        cap.deliver(made, cont)

    context = InstanceValue(FunctionCtx)
    context.attrs["needs_input_grad"] = TupleValue([boolean(n) for n in needs])
    separate = real.setup_context is not _OWN_CONTEXT
    call = polyfills.apply_and_set_up if separate else polyfills.apply_forward
    cap.call(Const(call), [kind, context, *given], {}, finish)
