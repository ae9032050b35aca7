"""Functions of torch that run as one step, with all that they call: they trace or transform."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._functorch import apis, eager_transforms
from torch._functorch import vmap as vmap_module
from torch._higher_order_ops import associative_scan, cond, scan, while_loop
from torch._higher_order_ops import map as map_module
from torch._higher_order_ops.flex_attention import flex_attention

from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.tables import FUNCTIONS
from torchweld.capture.values.base import Value

# what they make or call is compiled no more than they are
_WHOLE: tuple[Any, ...] = (
    torch.cond, apis.chunk_vmap, eager_transforms.functionalize,
    vmap_module.vmap_impl, apis.vmap, apis.grad, apis.grad_and_value, eager_transforms.vjp,
    eager_transforms.jvp, eager_transforms.jacrev, eager_transforms.jacfwd,
    eager_transforms.hessian, eager_transforms.linearize,
)  # fmt: skip
# how operators begin that get functions
_OPERATORS: tuple[Any, ...] = (
    torch._ops.HigherOrderOperator.__call__, type(flex_attention).__call__)  # fmt: skip
_INLINED = (eager_transforms.hessian,)
# the module's attribute is the module or the function in it, depending on the version of torch
_BY_MODULE = ((cond, "cond"), (while_loop, "while_loop"), (scan, "scan"), (map_module, "map"),
              (associative_scan, "associative_scan"))  # fmt: skip


def _functions() -> Iterator[Callable[..., Any]]:
    for found in (*_WHOLE, *(getattr(place, name, place) for place, name in _BY_MODULE)):
        if isinstance(found, types.FunctionType):
            yield found


def whole_codes() -> list[types.CodeType]:
    """The code of these functions, and of functions that they make."""
    found = [f.__code__ for f in (*_functions(), *_OPERATORS)]
    return [*found, *(c for f in found for c in f.co_consts if isinstance(c, types.CodeType)
                      and not c.co_name.startswith("<"))]  # fmt: skip


def _whole(fn: Any) -> None:
    def handler(cap: Capture, args: list[Value], kwargs: dict[str, Value],
                cont: Cont | None) -> None:  # fmt: skip
        raise refuse("W103", f"{fn.__name__} runs as one step", cap.loc())

    if fn not in FUNCTIONS and fn not in _INLINED:
        FUNCTIONS.add(fn, handler)


def register() -> None:
    """Refuse calls of those that nobody else has a handler for."""
    for fn in _functions():
        _whole(fn)
