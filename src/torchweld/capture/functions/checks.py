"""What is relied on about numbers that only the data decides, as nodes of the graph that ask:
torch._check and its relatives, and what was supposed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchweld.capture.by_data import relations_of
from torchweld.capture.policy import inline_anyway
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, WithoutSupposed
from torchweld.capture.tables import function
from torchweld.capture.values.base import NONE, Const, SizeValue, Value
from torchweld.ir import conditions
from torchweld.ir.conditions import Condition, at_most, junction
from torchweld.ir.graph import LOC, RELATIONS, VAL

Args = list[Value]
Kwargs = dict[str, Value]
_FAILED = "Expected cond to be True, but got False."


def suppose(cap: Capture) -> None:
    """Ask at the end of the graph for what was supposed. Errors: WithoutSupposed."""
    builder, data = cap.builder, cap.sizes.data
    if not data.supposed:
        return
    if builder.mutated_inputs() or builder.mode.draws or builder.differentiated:
        raise WithoutSupposed
    for relation, at in dict(data.supposed).items():
        args = (relation.op, builder.exactly(relation.expr))
        node = builder.root.call_function(conditions.suppose, args)
        node.meta.update({VAL: None, LOC: at, RELATIONS: (relation,)})


def check(cap: Capture, c: Condition, message: str) -> bool:
    """Add a check of the user's, whose outcome is a fact; False if it cannot be asked later."""
    relations = relations_of(c)
    if relations is None or cap.builder.graph is not cap.builder.root:
        return False
    builder = cap.builder
    parts = [(r.op, builder.exactly(r.expr)) for r in relations]
    node = builder.root.call_function(conditions.check, (message, *parts))
    node.meta.update({VAL: None, LOC: cap.loc(), RELATIONS: tuple(relations)})
    cap.sizes.data.checks += 1
    cap.sizes.env.given(c)
    return True


def _conditions(fn: Any, args: Args, kwargs: Kwargs) -> Condition | None:
    """What is promised, if only the data decides it."""
    first = args[0] if args else None
    if not isinstance(first, SizeValue) or not first.number.node.is_open():
        return None
    if fn is torch._check:
        return first.number.node.condition() if first.cls() is bool else None
    e, most = first.number.node.whole(), kwargs.get("max")
    if most is None or first.cls() is not int:
        return at_most(0, e) if first.cls() is int else None
    if type(most) is not Const or type(most.obj) is not int:
        return None
    return junction(True, at_most(0, e), at_most(e, most.obj))


def _checking(fn: Any) -> Callable[[Capture, Args, Kwargs, Cont | None], None]:
    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        wanted = _conditions(fn, args, kwargs)
        if wanted is None or not check(cap, wanted, _FAILED):
            inline_anyway(cap, fn, args, kwargs, cont)
        else:
            cap.deliver(NONE, cont)

    return handler


for _fn in (torch._check, torch._check_is_size):
    function(_fn)(_checking(_fn))
