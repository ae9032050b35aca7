"""The end of the program: outputs with eager's layout and aliasing, then mutated inputs."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from torchweld.base.errors import LoweringError
from torchweld.ir.expr import ZERO
from torchweld.ir.graph import VAL, GraphPair
from torchweld.ir.loop import Buffer, View
from torchweld.ir.nested import memory_of, tensors_in
from torchweld.lower.builder import Builder
from torchweld.lower.fallback import REINTERPRET, Env, Lowered
from torchweld.lower.registry import LOWERINGS, accepted, arguments_for, bind
from torchweld.lower.sizes import SYMBOLIC, size
from torchweld.lower.tensor import (
    Idx,
    Tensor,
    dense,
    disjoint,
    exprs,
    same_layout,
    spec_of,
    strided,
    void,
    whole,
)


def finish(b: Builder, pair: GraphPair, node: Node, env: Env,
           inputs: list[Buffer]) -> tuple[View | None, ...]:  # fmt: skip
    """The output views; emits the nests that copy new values into mutated inputs last.

    Order: an output or a new value that reads an input which changes is copied before any input
    changes; after that only inputs are written.
    """
    values = node.args[0]
    assert isinstance(values, tuple | list)
    count = len(pair.mutated)
    updated, outs = list(values[:count]), list(values[count:])
    places = {node: p for p, node in enumerate(_placeholders(node))}
    roots = {n: whole(inputs[p]) for n, p in places.items()}
    roots.update({n: whole(inputs[p]) for n, p in zip(updated, pair.mutated, strict=True)})
    views: list[View | None] = []
    for out, alias in zip(outs, pair.aliases, strict=True):
        if out is None:
            views.append(None)
        elif not isinstance(out, Node) or not isinstance(out.meta.get(VAL), torch.Tensor):
            raise LoweringError("W201", f"output {out} is not a tensor")
        elif alias is None:
            views.append(_own(b, out, env))
        else:
            views.append(_alias(out, roots, inputs[alias]))
    _check_shared(outs, views)
    views = _apart(outs, views, roots)
    changing = {inputs[p] for p in pair.mutated}
    _write_back(b, [(inputs[p], _settled(b, n, env, changing, inputs[p]))
                    for n, p in zip(updated, pair.mutated, strict=True)])  # fmt: skip
    return tuple(views)


def _check_shared(outs: Sequence[object], views: Sequence[View | None]) -> None:
    """Refuse results that share memory in eager and have buffers of their own.

    Errors: LoweringError W201 for what is seen as elements of another dtype.
    """
    buffers: dict[Node, Buffer] = {}
    for out, view in zip(outs, views, strict=True):
        if isinstance(out, Node) and view is not None and (
                buffers.setdefault(_owner(out), view.buffer) is not view.buffer):  # fmt: skip
            raise LoweringError("W201", f"output {out.name} shares memory with another one")


def _owner(node: Node) -> Node:
    """What `node` is a view of, maybe as another dtype."""
    *_, last = _owners(node)
    return last


def _owners(node: Node) -> Iterator[Node]:
    """The node, what it is a view of, what that is a view of, and so on."""
    yield node
    while node.op == "call_function" and node.args and isinstance(node.args[0], Node):
        made = node.args[0] if node.target is operator.getitem else node
        rule = LOWERINGS.get(str(made.target))
        if not (rule is not None and rule.kind == "view") and str(made.target) not in REINTERPRET:
            break
        node = node.args[0]
        yield node


def _apart(outs: Sequence[object], views: Sequence[View | None],
           roots: Mapping[Node, Tensor]) -> list[View | None]:  # fmt: skip
    """The views, with a number where another node is the same window: as many tensor objects.

    An input and its new value are one object.
    """
    objects: dict[View, dict[Any, int]] = {}
    for root in roots.values():
        b = root.buffer
        objects[View(b, b.shape, b.strides, b.offset)] = {
            n: 0 for n, t in roots.items() if t.buffer is b}  # fmt: skip
    found: list[View | None] = []
    for out, view in zip(outs, views, strict=True):
        if view is None:
            found.append(None)
            continue
        known = objects.setdefault(view, {})
        found.append(replace(view, alias=known.setdefault(out, len(known))))
    return found


def _placeholders(node: Node) -> list[Node]:
    return [n for n in node.graph.nodes if n.op == "placeholder"]


def _own(b: Builder, out: Node, env: Env) -> View:
    """The output in memory that no input shares, with the layout that eager gives it."""
    spec = spec_of(out.meta[VAL])
    t = env[out]
    assert isinstance(t, Tensor)
    if t.buffer.role != "temp" and _memory(out) in map(_memory, _placeholders(out)):
        raise LoweringError("W201", f"output {out.name} shares memory with an input unsaid")
    view = strided(t, spec.strides) if t.buffer.role == "temp" else None
    if view is not None and same_layout(view, spec.strides):
        return _placed(View(view.buffer, view.shape, spec.strides, view.offset), out, _owner(out))
    if not dense(spec.shape, spec.strides):
        raise LoweringError("W201", f"output {out.name} has gaps or overlaps that no copy has")
    b.begin(out.name, b.origins, ())
    return View(b.copy(t, spec, "out").buffer, spec.shape, spec.strides, ZERO)


def _memory(node: Node) -> int:
    return memory_of(node.meta[VAL])


def _alias(out: Node, roots: Mapping[Node, Tensor], base: Buffer) -> View:
    """The output as a window onto the input that it shares memory with."""
    t = _follow(out, roots)
    strides = exprs(out.meta[VAL].stride())
    view = strided(t, strides) if isinstance(t, Tensor) and t.buffer is base else None
    if view is None:
        raise LoweringError("W201", f"output {out.name} is not a strided view of {base.name}")
    # the graph's own strides may be those of the functional value, which is laid out differently
    return _placed(view, out, next(n for n in _owners(out) if n in roots))


def _placed(view: View, out: Node, owner: Node) -> View:
    """The view, where torch says that it begins if it has no elements, which say nothing."""
    if not void(view.shape) or _memory(out) != _memory(owner):
        return view
    start = size(out.meta[VAL].storage_offset()) - size(owner.meta[VAL].storage_offset())
    return replace(view, offset=view.buffer.offset + start)


def _follow(node: Node, roots: Mapping[Node, Tensor]) -> Lowered | None:
    """What `node` is when the roots stand for themselves, through views only."""
    if node in roots:
        return roots[node]
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
        return None
    base = _follow(node.args[0], roots)
    if node.target is operator.getitem:
        return base[node.args[1]] if isinstance(base, tuple) else None  # type: ignore[index]
    rule = LOWERINGS.get(str(node.target))
    if rule is None or rule.kind != "view" or not isinstance(base, Tensor):
        return None
    op = node.target
    given = (base, *map(_sized, node.args[1:]))
    bound = bind(op, given, {k: _sized(a) for k, a in node.kwargs.items()})  # type: ignore[arg-type]
    made = arguments_for(rule.function, op, bound)  # type: ignore[arg-type]
    if "like" in accepted(rule.function):
        made["like"] = tuple(map(spec_of, tensors_in(node.meta[VAL])))
    found: Lowered = rule.function(**made)
    return found


def _sized(a: object) -> object:
    """An argument with expressions in the place of symbolic numbers."""
    if isinstance(a, tuple | list):
        return [_sized(x) for x in a]
    return size(a) if isinstance(a, SYMBOLIC) else a


def _settled(b: Builder, node: Node, env: Env, changing: set[Buffer], own: Buffer) -> Tensor:
    """The new value of the input `own`, copied if it reads an input that changes."""
    t = env[node]
    if not isinstance(t, Tensor) or t.shape != own.shape:
        raise LoweringError("W201", f"{node.name} has not the shape of the input it updates")
    if t.buffer in changing and not (t.buffer is own and t.whole):
        b.begin(node.name, b.origins, ())
        return b.copy(t, None, "new")
    return t


def _write_back(b: Builder, news: list[tuple[Buffer, Tensor]]) -> None:
    for own, new in news:
        if new.buffer is own:
            continue
        if not own.dtype.computed or not disjoint(own.shape, own.strides):
            raise LoweringError("W201", f"input {own.name} cannot be written by a nest")
        b.begin(own.name, b.origins, ())
        b.store(whole(own), own.shape, _same, new.load)


def _same(idx: Idx) -> Idx:
    return idx
