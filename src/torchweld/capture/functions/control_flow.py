"""torch.cond, while_loop, scan, map and associative_scan.

Eager refuses much of what their functions could do: side effects, tensors that share memory,
results of different kinds. All of that is left to eager, and so are its errors.
"""

from __future__ import annotations

import inspect
from types import CodeType
from typing import Any

import torch
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops import map as map_module
from torch.fx import Node

from torchweld.base.errors import GraphBreak
from torchweld.capture.bodies import Body, in_transform
from torchweld.capture.inner import (
    as_value,
    inner_call,
    new_body,
    read_all,
    record,
    repeatable,
    runner,
)
from torchweld.capture.policy import inline_anyway
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.tables import function
from torchweld.capture.values.base import (
    Const,
    ListValue,
    TensorValue,
    TupleValue,
    Value,
    constant,
)
from torchweld.ir.control import Branch, Control, Loop, Scan, filled, holes
from torchweld.ir.nested import memories_in, memory_of, tensors_in

Args = list[Value]
Kwargs = dict[str, Value]


def _named(module: Any, name: str) -> Any:
    """A function that stands in its module, or that torch has put in the module's place."""
    return getattr(module, name, module)


_WHILE, _SCAN = _named(while_loop, "while_loop"), _named(scan, "scan")
_MAP, _ASSOCIATIVE = _named(map_module, "map"), _named(associative_scan, "associative_scan")
# torch 2.11 leaves the results of a scan along dimension 0, whichever it walks along.
_PUTS_BACK = any(isinstance(c, CodeType) and "movedim" in c.co_names
                 for c in _SCAN.__code__.co_consts)  # fmt: skip


def _left(cap: Capture, name: str, why: str) -> GraphBreak:
    return refuse("W103", f"{name}: {why}", cap.loc())


def _bound(fn: Any, args: Args, kwargs: Kwargs) -> dict[str, Any]:
    return dict(inspect.signature(fn).bind(*args, **kwargs).arguments)


def _captured(cap: Capture, name: str, fn: Value, args: Args, given: list[Any] | None
              = None) -> tuple[Body, Any]:  # fmt: skip
    """The graph of a function, and its result on fakes. given: become inputs, in order."""
    builder = cap.builder
    body = new_body(cap, name)
    drawn = builder.mode.draws
    try:
        builder.open(body)
        with repeatable(cap, (body,), f"a side effect in {name}"):
            made = inner_call(cap, fn, _placed(cap, body, args, given), {})
            body.graph.output(builder.to_fx(made))
    finally:
        builder.close(body)
    out = builder.to_fake(made)
    if builder.mode.draws != drawn:
        raise _left(cap, name, "random numbers")
    inputs = [n.meta["val"] for n in body.graph.nodes if n.op == "placeholder"]
    memories = [*map(memory_of, inputs), *memories_in(out)]
    if len(set(memories)) != len(memories):
        raise _left(cap, name, "tensors that share memory")
    return body, out


def _placed(cap: Capture, body: Body, args: Args, given: list[Any] | None) -> Args:
    return [*(as_value(cap, body, x) for x in given or ()), *args]


def _same_kind(a: Any, b: Any) -> bool:
    """Whether two results have the same structure and metadata."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        kinds = [(x.shape, x.stride(), x.dtype, x.device) for x in (a, b)]
        return kinds[0] == kinds[1]
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(_same_kind(a[k], b[k]) for k in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_same_kind, a, b))
    return bool(a == b)


def _check_gradients(cap: Capture, name: str, bodies: list[Body], outs: Any) -> None:
    """Where gradients are wanted, eager gives them to all results."""
    inputs = [n.meta["val"] for b in bodies for n in b.graph.nodes if n.op == "placeholder"]
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    if wanted and not all(x.requires_grad for x in tensors_in(outs)):
        raise _left(cap, name, "a result without a gradient")


def _tensors(cap: Capture, name: str, x: Value) -> list[TensorValue]:
    """The tensors of a flat tuple or list. Errors: GraphBreak for anything else."""
    read_all(cap, x)
    items: list[Any] = x.items if isinstance(x, TupleValue | ListValue) else [None]
    if not items or not all(isinstance(i, TensorValue) for i in items):
        raise _left(cap, name, "operands that are not a tuple of tensors")
    return items


def _node(cap: Capture, target: Control, inputs: list[Any], out: Any) -> Value:
    return record(cap, target, (inputs,), out)


def _check_place(cap: Capture, name: str) -> None:
    if in_transform():
        raise _left(cap, name, "inside of a transform")


@function(torch.cond)
def cond(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Both sides are captured; one of them runs."""
    given = _bound(torch.cond, args, kwargs)
    pred, operands = given["pred"], given.get("operands", TupleValue([]))
    if isinstance(pred, Const) and type(constant(pred)) in (bool, int, float):
        side = given["true_fn" if constant(pred) else "false_fn"]
        cap.call(side, list(cap.force_items(operands.items)), {}, cont)
        return
    _check_place(cap, "cond")
    if not isinstance(pred, TensorValue) or pred.fake.numel() != 1 or (
            pred.fake.dtype is not torch.bool):  # fmt: skip
        raise _left(cap, "cond", "a predicate that is not one number")
    if not isinstance(operands, TupleValue | ListValue):
        raise _left(cap, "cond", "operands that are not a tuple")
    read_all(cap, operands)
    items = list(cap.force_items(operands.items))
    if not all(isinstance(x, TensorValue) for x in items):
        raise _left(cap, "cond", "operands that are not tensors")
    first, out = _captured(cap, "cond", given["true_fn"], items)
    second, other = _captured(cap, "cond", given["false_fn"], items)
    if not _same_kind(out, other):
        raise _left(cap, "cond", "two sides that differ in their results")
    _check_gradients(cap, "cond", [first, second], (out, other))
    inputs = [cap.builder.node_of(pred), *first.taken, *second.taken]
    target = Branch((runner(first), runner(second)), len(first.taken), holes(out))
    cap.deliver(_node(cap, target, inputs, out), cont)


@function(_WHILE)
def while_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Both functions are captured for one round."""
    given = _bound(_WHILE, args, kwargs)
    _check_place(cap, "while_loop")
    carried = _tensors(cap, "while_loop", given["carried_inputs"])
    fakes = [x.fake for x in carried]
    asked, goes_on = _captured(cap, "while_loop", given["cond_fn"], [], fakes)
    body, out = _captured(cap, "while_loop", given["body_fn"], [], fakes)
    plain = isinstance(goes_on, torch.Tensor) and goes_on.dtype is torch.bool and (
        goes_on.dim() == 0)  # fmt: skip
    if not plain or not isinstance(out, (tuple, list)) or not _same_kind(list(out), fakes):
        raise _left(cap, "while_loop", "functions whose results do not fit")
    builder = cap.builder
    if torch.is_grad_enabled() and any(x.requires_grad for x in (
            *fakes, *tensors_in(out), *(x.fake for x in body.free))):  # fmt: skip
        raise _left(cap, "while_loop", "gradients")
    with builder.mode:
        results = tuple(x.clone() for x in fakes)
    inputs = [*(builder.node_of(x) for x in carried), *asked.taken, *body.taken]
    target = Loop((runner(asked), runner(body)), len(carried), len(asked.taken), holes(results))
    cap.deliver(_node(cap, target, inputs, results), cont)


@function(_SCAN)
def scan_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    given = _bound(_SCAN, args, kwargs)
    _walk(cap, "scan", given["combine_fn"], given["init"], given["xs"], [],
          constant(given.get("dim", Const(0))), constant(given.get("reverse", Const(False))),
          cont)  # fmt: skip


@function(_MAP)
def map_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    fn, xs, *rest = args
    if kwargs:
        raise _left(cap, "map", "arguments by name")
    _walk(cap, "map", fn, None, xs, rest, 0, False, cont)


def _walk(cap: Capture, name: str, fn: Value, init: Value | None, xs: Value, rest: Args, dim: Any,
          reverse: Any, cont: Cont | None) -> None:  # fmt: skip
    """One round is captured: what is carried and a slice give what is carried, and a result."""
    builder = cap.builder
    _check_place(cap, name)
    for x in (xs, *rest, *((init,) if init is not None else ())):
        read_all(cap, x)
    start = [] if init is None else [builder.to_fake(init)]
    whole = builder.to_fake(xs)
    along, carried = tensors_in(whole), tensors_in(start)
    rounds = _rounds(cap, name, along, dim, reverse)
    with builder.mode:
        parts = filled(holes(whole), iter([x.select(dim, 0) for x in along]))
    body, out = _captured(cap, name, fn, rest, [*start, parts])
    kept, made = out if _is_pair(out) and start else (None, out)
    if start and not _same_kind(kept, start[0]):
        raise _left(cap, name, "what is carried changes its kind")
    if not tensors_in(made) or not all(_only_tensors(x) for x in (*start, whole, made)):
        raise _left(cap, name, "values that are not tensors")
    _check_gradients(cap, name, [body], out)
    target = Scan(name, runner(body), (len(carried), len(along)), dim, reverse, None,
                  dim if _PUTS_BACK else 0)  # fmt: skip
    with builder.mode:
        columns = target.together(made, [tensors_in(made)] * rounds)
    result = (kept, columns) if start else columns
    target.shape = holes(result)
    inputs = tensors_in([builder.to_fx(x) for x in (init, xs) if x is not None], Node)
    cap.deliver(_node(cap, target, [*inputs, *body.taken], result), cont)


def _rounds(cap: Capture, name: str, along: list[torch.Tensor], dim: Any, reverse: Any) -> int:
    """How many slices there are."""
    plain = type(dim) is int and type(reverse) is bool and dim >= 0
    lengths = {x.shape[dim] if plain and dim < x.dim() else 0 for x in along}
    if len(lengths) != 1 or 0 in lengths:
        raise _left(cap, name, "what it walks along")
    return int(lengths.pop())


def _is_pair(x: Any) -> bool:
    return isinstance(x, tuple) and len(x) == 2


def _only_tensors(x: Any) -> bool:
    if isinstance(x, dict):
        return all(map(_only_tensors, x.values()))
    if isinstance(x, (tuple, list)):
        return all(map(_only_tensors, x))
    return isinstance(x, torch.Tensor)


@function(_ASSOCIATIVE)
def associative(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Written in Python with vmap, where it does not ask for a kernel of torch.compile's."""
    mode = _bound(_ASSOCIATIVE, args, kwargs).get("combine_mode")
    if mode is None or constant(mode) != "generic":
        raise _left(cap, "associative_scan", "of kind pointwise")
    inline_anyway(cap, _ASSOCIATIVE, args, kwargs, cont)
