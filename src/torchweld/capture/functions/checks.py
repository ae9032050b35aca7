"""What is relied on about numbers that only the data decides, as nodes of the graph that ask:
torch._check and its relatives, and what was supposed. And numbers that are one of two of these."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from torchweld.capture.by_data import relations_of
from torchweld.capture.policy import inline_anyway
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, WithoutSupposed
from torchweld.capture.symbolic import number_value
from torchweld.capture.tables import function
from torchweld.capture.values.base import (
    NONE,
    Const,
    SizeValue,
    TensorValue,
    TupleValue,
    Value,
)
from torchweld.ir import conditions
from torchweld.ir.conditions import Condition, Relation, at_most, junction, negation
from torchweld.ir.expr import Int
from torchweld.ir.graph import LOC, NAMED, RELATIONS, VAL
from torchweld.ir.size_node import expr_of, symbolic

Args = list[Value]
Kwargs = dict[str, Value]
_FAILED = "Expected cond to be True, but got False."


def suppose(cap: Capture) -> None:
    """Ask at the end of the graph for what was supposed. Errors: WithoutSupposed."""
    builder, data = cap.builder, cap.sizes.data
    if not data.supposed and not data.failing:
        return
    if not _may_expect(cap):
        raise WithoutSupposed
    for count, at in data.failing.values():
        number = expr_of(cap.sizes.as_number(builder.whole_number(count, at)))
        builder.root._root._prev.meta[NAMED] = "failed tests"
        data.supposed.append((Relation("==", number), at))
    for relation, at in dict(data.supposed).items():
        args = (relation.op, builder.exactly(relation.expr))
        node = builder.root.call_function(conditions.suppose, args)
        node.meta.update({VAL: None, LOC: at, RELATIONS: (relation,)})


def expect(cap: Capture, x: TensorValue, wanted: bool) -> bool:
    """Suppose that a tensor of one element is true, or is false, because the frame raises where it
    is not; False where nothing may be supposed."""
    builder, data = cap.builder, cap.sizes.data
    if not _may_expect(cap):
        return False
    at, call = cap.loc(), functools.partial(builder.call, at=cap.loc())
    test = call("call_function", torch.eq if wanted else torch.ne, [x, Const(0)], {})
    count = call("call_method", "to", [test, Const(torch.int64)], {})
    count = call("call_method", "reshape", [count, TupleValue([])], {})
    device = x.fake.device
    if device in data.failing:
        before, at = data.failing[device]
        count = call("call_function", torch.add, [before, count], {})
    assert isinstance(count, TensorValue)
    data.failing[device] = count, at
    builder.on_data()
    return True


def expect_of_number(cap: Capture, x: Value, wanted: bool) -> bool:
    """`expect` of a number that only the data decides."""
    if not isinstance(x, SizeValue) or not _may_expect(cap):
        return False
    c = x.number.node.condition()
    if isinstance(c, bool):
        return False
    with cap.sizes.data.in_operator():
        cap.sizes.env.suppose(c if wanted else negation(c))
    return True


def _may_expect(cap: Capture) -> bool:
    """Whether the frame can run again: see `suppose`, which says so for all of it."""
    builder = cap.builder
    return builder.takes_data and cap.sizes.data.supposes and not (
        builder.mutated_inputs() or builder.frees_outside)  # fmt: skip


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


# ------------------------------------------------------------------------- what is chosen
def extreme(cap: Capture, larger: bool, items: list[Value]) -> Value | None:
    """max or min of integers, some of which only the data decides; None if it is nothing of ours.

    Where the facts do not say which it is, it is a number of its own.
    """
    builder = cap.builder
    numbers = [builder.sizes.as_number(x) for x in items]
    if len(items) < 2 or not builder.takes_data or not any(map(builder.sizes.is_open, items)):
        return None
    if any(type(n) is not int and not isinstance(n, torch.SymInt) for n in numbers):
        return None
    found = items[0]
    for x in items[1:]:
        found = _extreme(cap, larger, found, x)
    return found


def _extreme(cap: Capture, larger: bool, a: Value, b: Value) -> Value:
    env = cap.sizes.env
    one, other = (expr_of(cap.sizes.as_number(x)) for x in (a, b))
    for x, y, value in ((one, other, b), (other, one, a)):
        if env.known(at_most(x, y)):
            return value if larger else (a if value is b else b)
    if not env.is_open(at_most(one, other)):
        value = (max if larger else min)(cap.sizes.as_number(a), cap.sizes.as_number(b))
        return a if value is cap.sizes.as_number(a) else b
    lows = [env.least(e) for e in (one, other)]
    known = [n for n in lows if n is not None]
    least = (max(known, default=None) if larger else
             min(known) if len(known) == len(lows) else None)  # fmt: skip
    made = cap.builder.computed(max if larger else min, [a, b], least, cap.loc())
    symbol = expr_of(cap.sizes.as_number(made))
    for e in (one, other):
        env.given(at_most(e, symbol) if larger else at_most(symbol, e))
    return made


def choose(cap: Capture, test: Value, then: Value, otherwise: Value) -> Value | None:
    """`then if test else otherwise` of integers, where only the data decides the test."""
    sizes = cap.sizes
    if not cap.builder.takes_data or not sizes.is_open(test):
        return None
    c = test.number.node.condition() if isinstance(test, SizeValue) else False
    given = [sizes.as_number(x) for x in (then, otherwise)]
    if not isinstance(c, Relation) or not all(
            type(n) is int or isinstance(n, torch.SymInt) for n in given):  # fmt: skip
        return None
    one, other = map(expr_of, given)
    c = replace(c, expr=sizes.env.simplify(c.expr))
    if c == at_most(other, one) or (c.op == "!=" and c.expr is one and (
            isinstance(other, Int) and other.n == 1 and sizes.env.known(at_most(0, one)))):
        return _extreme(cap, True, then, otherwise)
    difference = number_value(symbolic(sizes.env, c.expr))
    lows = [sizes.env.least(e) for e in (one, other)]
    least = None if None in lows else min(lows)  # type: ignore[type-var]
    return cap.builder.computed(conditions.choose, [Const(c.op), difference, then, otherwise],
                                least, cap.loc())  # fmt: skip
