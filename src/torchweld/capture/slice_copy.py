"""The nodes of a slice once more, with other inputs; and values that hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from torchweld.base.loc import Loc
from torchweld.capture.fake_copies import Looks, Memories, each_fake, with_fakes
from torchweld.capture.likeness import Unlike
from torchweld.capture.session import Capture
from torchweld.capture.slice_facts import Moved
from torchweld.capture.values.base import (
    Const,
    DictValue,
    InstanceValue,
    Lazy,
    ListValue,
    SetValue,
    SizeValue,
    SliceValue,
    TensorValue,
    TupleValue,
    Value,
)
from torchweld.capture.values.unread import look_alike, twin_of
from torchweld.ir.graph import LOC, VAL
from torchweld.ir.nested import memory_of
from torchweld.ir.size_node import is_number

_OPS = ("placeholder", "call_function", "call_method")


def _is_size(node: Node) -> bool:
    """Whether a node is a number that is made of sizes: the same in the whole graph."""
    return is_number(node.meta.get(VAL))


def _between(first: Node, last: Node) -> Iterator[Node]:
    """The nodes after `first`, up to `last`."""
    while first is not last:
        first = first._next
        yield first


class Copied:
    """What is needed to copy the nodes of a slice.

    usable: whether that can be done. looks: by the id of a fake, what its copy is made from; the
    operators of the other nodes are run on copies.
    """

    def __init__(self, cap: Capture, of: Any) -> None:
        self.nodes = list(_between(of.before.node, of.after.node))
        self.looks: dict[int, Looks] = {}
        self.writes = of.after.writes
        self.memories: dict[int, int] = {}
        given = [v for v in of.like.values if isinstance(v, TensorValue)]
        old = {memory_of(twin_of(v)) for v in given}
        self.usable = self._is_closed(cap, {v.node for v in given}, old)
        if self.usable:
            written = set(cap.builder.mode.writes[of.before.writes : of.after.writes])
            left = _tensors_in(of.result)
            again = _made_again(left, old)
            again |= self._with_gaps()
            self.usable = not written & (old | again) and self._look(old | again)

    def _is_closed(self, cap: Capture, given: set[Node], old: set[int]) -> bool:
        """Whether the nodes need no others but what was given, and inputs; notes their memory."""
        own = set(self.nodes)
        inputs = [n for n in self.nodes if n.op == "placeholder"]
        for node in self.nodes:
            if node.op not in _OPS:
                return False
            for n in node.all_input_nodes:
                if n not in own and n not in given and not _is_size(n):
                    inputs.append(n)
        if not all(n in cap.builder.origin for n in inputs):
            return False
        old.update(memory_of(n.meta[VAL]) for n in inputs)
        return True

    def _with_gaps(self) -> set[int]:
        """Memory of symbolic size that is not that of one tensor: it cannot be made from looks."""
        known: dict[int, bool] = {}
        for node in self.nodes:
            for fake in each_fake(node.meta.get(VAL), []) if node.op != "placeholder" else ():
                if fake._has_symbolic_sizes_strides:
                    known.setdefault(memory_of(fake), Looks(fake, 0).whole)
        return {m for m, whole in known.items() if not whole}

    def _look(self, run: set[int]) -> bool:
        """Note what the fakes look like, but for those whose operators are to be run."""
        inference = torch.is_inference_mode_enabled()
        for node in self.nodes:
            if node.op == "placeholder":
                continue
            fakes: list[Any] = each_fake(node.meta.get(VAL), [])
            for fake in fakes:
                at = self.memories.setdefault(memory_of(fake), len(self.memories))
                if memory_of(fake) in run or fake.constant is not None:
                    continue
                if fake.is_inference() != inference or fake.is_conj() or fake.is_neg():
                    return False
                self.looks[id(fake)] = Looks(fake, at)
        return True

    def was_written(self, cap: Capture) -> bool:
        """Whether a tensor of the slice was changed after it: it looks different now."""
        writes = cap.builder.mode.writes
        if self.writes < len(writes) and not self.memories.keys().isdisjoint(
                writes[self.writes :]):  # fmt: skip
            self.usable = False
        return not self.usable

    def repeat(self, cap: Capture, given: list[tuple[Any, Any]], moved: Moved,
               lines: dict[Loc, Loc]) -> Repeated:  # fmt: skip
        """Add the nodes once more. given: the values in the arguments, the slice's own first."""
        for old, new in given:
            look_alike(new, old)
        out = Repeated(cap, given, moved)
        for node in self.nodes:
            if node.op == "placeholder":
                out.node(node)
            elif not _is_size(node):
                self._repeat(cap, node, out, lines)
        return out

    def _repeat(self, cap: Capture, node: Node, out: Repeated, lines: dict[Loc, Loc]) -> None:
        builder, fakes = cap.builder, out.fakes
        # first, since an input that was there before the slice may be a new one here
        given, named = map_arg(node.args, out.node), map_arg(node.kwargs, out.node)
        # arguments that are given to create_node itself are searched for SymInts
        new = builder.graph.create_node(node.op, node.target, name=node.name)
        new.args = given
        if named:
            new.kwargs = named
        out.nodes[node] = new
        new.meta.update(node.meta)
        new.meta[LOC] = lines.get(node.meta[LOC], node.meta[LOC])
        if VAL not in node.meta:
            return
        before = node.meta[VAL]
        for old in each_fake(before, []):
            looks = self.looks.get(id(old))
            if id(old) in fakes:
                continue
            if looks is None:
                args = map_arg(new.args, lambda n: n.meta[VAL])
                kwargs = map_arg(new.kwargs, lambda n: n.meta[VAL])
                made = builder.run(new.op, new.target, list(args), dict(kwargs), new.meta[LOC])
                new_fakes = each_fake(made, [])
                fakes.update(zip(map(id, each_fake(before, [])), new_fakes, strict=True))
                break
            fakes[id(old)] = out.memories.make(looks)
        new.meta[VAL] = with_fakes(before, lambda x: fakes[id(x)])


class Repeated:
    """New nodes, fakes and values by the old ones; fakes and values by their ids."""

    def __init__(self, cap: Capture, given: list[tuple[Any, Any]], moved: Moved) -> None:
        self.cap = cap
        self.moved = moved
        self.values = {id(old): new for old, new in given}
        self.nodes: dict[Node, Node] = {}
        self.fakes: dict[int, torch.Tensor] = {}
        self.memories = Memories(cap.builder.maker)
        for old, new in given:
            if isinstance(old, TensorValue):
                self.give(old, new)

    def give(self, old: TensorValue, new: TensorValue) -> None:
        self.nodes[old.node] = new.node
        self.fakes[id(twin_of(old))] = twin_of(new)

    def node(self, old: Node) -> Node:
        """The node in the place of one of the slice, or of one that it was given or read."""
        found = old if _is_size(old) else self.nodes.get(old)
        if found is None:
            value = self.cap.builder.origin[old]
            new = self.moved.value(value)
            assert isinstance(new, TensorValue)
            self.give(value, new)
            found = new.node
        return found

    def leaf(self, x: Any) -> Any:
        """The value in the place of a tensor, or of one from outside."""
        if x.source is not None:
            return self.moved.value(x)
        return self.cap.builder.known(TensorValue(self.nodes[x.node], self.fakes[id(x.fake)],
                                                  x.kind))  # fmt: skip


def _tensors_in(x: Any) -> list[TensorValue]:
    """The tensors that a result holds and that were made in the frame."""
    found: list[TensorValue] = []

    def leaf(part: Any) -> Any:
        if isinstance(part, TensorValue) and part.source is None:
            found.append(part)
        return part

    copy_value(x, {}, leaf)
    return found


def _made_again(left: list[TensorValue], old: set[int]) -> set[int]:
    """Memory of results that autograd or later writes can tell apart from a mere copy's."""
    memories = [memory_of(t.fake) for t in left]
    return {
        m for m, t in zip(memories, left, strict=True)
        if m not in old and (t.fake.requires_grad or memories.count(m) > 1)
    }  # fmt: skip


def copy_value(x: Any, known: dict[int, Any], leaf: Callable[[Any], Any]) -> Any:
    """A value with all containers that were made in the frame copied.

    known: what stands for a value, by its id; grows. leaf: what stands for a tensor, or for what
    came from outside. Errors: Unlike for values that are not copied.
    """
    found = known.get(id(x))
    if found is not None:
        return found
    if type(x) is SizeValue:
        return x  # a number of the call, which the other call has as well
    if isinstance(x, Const) and type(x) is not Const:
        raise Unlike  # it is guarded when somebody asks for its value
    if isinstance(x, Lazy) or x.source is not None or type(x) is TensorValue:
        made = leaf(x)
    elif type(x) is Const:
        return x
    else:
        copy = _COPIES.get(type(x))
        if copy is None:
            raise Unlike
        return copy(x, known, lambda part: copy_value(part, known, leaf))
    known[id(x)] = made
    return made


def _list(x: ListValue, known: dict[int, Any], of: Callable[[Any], Any]) -> Value:
    made = known[id(x)] = ListValue([])
    made.items = [of(i) for i in x.items]
    made.changed = x.changed
    return made


def _tuple(x: TupleValue, known: dict[int, Any], of: Callable[[Any], Any]) -> Value:
    made = known[id(x)] = TupleValue([of(i) for i in x.items], x.kind)
    return made


def _dict(x: DictValue, known: dict[int, Any], of: Callable[[Any], Any]) -> Value:
    if not all(isinstance(k, Const) for k in x.keys.values()):
        raise Unlike
    made = known[id(x)] = DictValue(x.kind)
    made.items = {k: of(v) for k, v in x.items.items()}
    made.keys = dict(x.keys)
    made.factory = of(x.factory)
    made.changed = x.changed
    return made


def _set(x: SetValue, known: dict[int, Any], of: Callable[[Any], Any]) -> Value:
    if not all(isinstance(i, Const) for i in x.items.values()):
        raise Unlike
    made = known[id(x)] = SetValue(x.kind)
    made.items = dict(x.items)
    made.past = None if x.past is None else x.past.copy()
    made.twin = None if x.twin is None else x.twin.copy() if x.past is None else x.past.made()
    made.changed = x.changed
    return made


def _slice(x: SliceValue, known: dict[int, Any], of: Callable[[Any], Any]) -> Value:
    made = known[id(x)] = SliceValue((of(x.parts[0]), of(x.parts[1]), of(x.parts[2])))
    return made


def _instance(x: InstanceValue, known: dict[int, Any], of: Callable[[Any], Any]) -> Value:
    if x.klass is torch._C._InferenceMode or issubclass(x.klass, BaseException):
        raise Unlike
    made = known[id(x)] = InstanceValue(x.klass)
    made.attrs = {n: None if v is None else of(v) for n, v in x.attrs.items()}
    made.written = dict(x.written)
    made.changed = x.changed
    made.payload = None if x.payload is None else of(x.payload)
    return made


_COPIES: dict[type, Callable[[Any, dict[int, Any], Callable[[Any], Any]], Value]] = {
    ListValue: _list, TupleValue: _tuple, DictValue: _dict, SetValue: _set, SliceValue: _slice,
    InstanceValue: _instance,
}  # fmt: skip
