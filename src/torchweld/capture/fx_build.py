"""Graph nodes under FakeMode: the only file that adds to the captured FX graph."""

from __future__ import annotations

import enum
import functools
import operator
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedFakeTensorException,
)
from torch.fx import Graph, Node
from torch.nn import functional as F

from torchweld.base.errors import GraphBreak
from torchweld.base.loc import Loc
from torchweld.capture.argument_kinds import ARGUMENT, DTYPES, PLAIN, is_function
from torchweld.capture.bodies import Body, is_transformed, outside_of_transforms
from torchweld.capture.by_data import Computed, Made
from torchweld.capture.fake_copies import FakeMaker, keep_grad, symbolic_twin, version_of
from torchweld.capture.late import (
    LateNumber,
    LateNumbers,
    plain_number,
    takes_number_only,
)
from torchweld.capture.open_numbers import Held, Row, argument, instead, keep_in_range
from torchweld.capture.state import Stuck, refuse
from torchweld.capture.symbolic import Form, Sizes, is_varying, number_value
from torchweld.capture.values.base import (
    CellValue,
    Const,
    DictValue,
    InstanceValue,
    Lazy,
    ListValue,
    NotConstant,
    SizeValue,
    SliceValue,
    Slot,
    TensorValue,
    TupleValue,
    Value,
    constant,
)
from torchweld.capture.values.number import SAMPLE, GraphNumber
from torchweld.capture.values.unread import PassedTensor, UnreadTensor
from torchweld.capture.watchful import WatchfulMode, check_outs, fixes_sizes
from torchweld.ir.expr import Expr
from torchweld.ir.fake import decomposing, whole
from torchweld.ir.graph import BY_DATA, DRAWS, LOC, VAL, WRITES, call_node
from torchweld.ir.hooks import SavedHooks
from torchweld.ir.nested import memories_in, memory_of, tensors_in
from torchweld.ir.raising import is_risky
from torchweld.ir.size_makers import counted_mask
from torchweld.ir.size_node import expr_of, hint_of, node_of
from torchweld.ir.size_node import symbolic as symbolic_number
from torchweld.ir.sizes import UnknownSizeError
from torchweld.ir.source import Source, is_passed

# a multi-tensor result is unpacked only to this depth
_MAX_NESTING = 4


def unknown(at: Loc) -> GraphBreak:
    """The break of one who looks at a number that the graph computes."""
    return refuse("W102", "a number that the graph computes is looked at", at)


def tensors_of(x: Slot) -> Iterator[TensorValue]:
    """The tensors in the result of an operator."""
    if isinstance(x, TensorValue):
        yield x
    for item in x.items if isinstance(x, ListValue | TupleValue) else ():
        yield from tensors_of(item)


class GraphBuilder:
    """The FX graph of one capture, its inputs, and the tensors met so far.

    places: what each placeholder is, in order: the Source of a tensor, or a late number.
    risky: whether an operator may raise because of its data; on_risk is called when one is
    recorded.
    """

    def __init__(self, late: LateNumbers, sizes: Sizes, force: Callable[[Slot], Value]) -> None:
        self.root = self.graph = Graph()
        self.bodies: list[Body] = []
        self.closed: dict[Graph, Body] = {}
        self.any_layout = 0  # in how many functions tensors come with strides that are not known
        self.by_position = 0  # in how many functions a tensor is an index of one element
        self.late = late
        self.sizes = sizes
        self.force = force
        self.places: list[Source | LateNumber] = []
        self.numbers: dict[int, Node] = {}
        self.as_tensors: dict[tuple[int, torch.device], TensorValue] = {}  # the same, for bodies
        self.rounded: dict[Expr, LateNumber] = {}
        self.mode = WatchfulMode(allow_non_fake_inputs=False, static_shapes=True)
        self.maker = FakeMaker(self.mode)
        self.memories: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self.inputs: list[tuple[Source, TensorValue, torch.Tensor]] = []
        self.tensors: dict[Source, TensorValue] = {}
        self.versions: list[int] = []
        self.by_fake: dict[int, TensorValue] = {}
        self.origin: dict[Node, TensorValue] = {}  # of the placeholders of tensors
        self.reals: dict[int, torch.Tensor] = {}  # by the id of an input's value
        self.unread: dict[int, UnreadTensor] = {}  # by the id of the real tensor
        self.kept: list[object] = []
        self.hooked: list[TensorValue] = []  # from outside, whose hooks are registered at the end
        self.packs: list[tuple[SavedHooks, int]] = []  # hooks of saved tensors that are on
        # variables of functions that are called when the graph runs, what they hold, and where the
        # capture could stop before that
        self.fixed: list[tuple[CellValue, Slot | None, int]] = []
        self.n_calls = 0
        self.risky = False
        self.on_risk: Callable[[], None] = lambda: None
        self.on_data: Callable[[], None] = lambda: None
        self.listening: Callable[[], Any] = nullcontext  # entered around each operator
        self.frees_outside = False  # a backward goes through what eager code has computed
        self.computes = False  # numbers, in the graph
        self.read: dict[tuple[Node, int], Value] = {}  # integers that tensors hold
        self.may_fail: list[GraphNumber] = []  # those whose arithmetic may raise

    # ------------------------------------------------------------------ inputs
    def input(self, real: torch.Tensor, source: Source, form: Form | None = None) -> TensorValue:
        """A placeholder for a tensor from outside. form: if some of its sizes vary."""
        with torch.no_grad(), outside_of_transforms():
            fake = self._fake(real) if form is None else symbolic_twin(
                self.mode, real, form.sizes, form.strides)  # fmt: skip
        node = self.placeholder(self._name(source.text()))
        node.meta[VAL] = fake
        kind = type(real)
        value = PassedTensor(node, fake, kind, source) if is_passed(source) and form is None else (
            TensorValue(node, fake, kind, source))  # fmt: skip
        unread = self.unread.pop(id(real), None)
        if unread is not None:
            unread.found, value = value, unread
        self.inputs.append((source, value, real))
        self.tensors[source] = value
        self.places.append(source)
        self.versions.append(version_of(fake))
        self.origin[node] = self.by_fake[id(fake)] = value
        self.reals[id(value)] = real
        self.kept.append(fake)
        return value

    def drop_idle(self) -> dict[Source, type]:
        """Let arguments that nobody has looked at be no inputs. Gives these, with their classes."""
        idle = [i for i, (_, v, _) in enumerate(self.inputs)
                if isinstance(v, PassedTensor) and not v.looked and not v.node.users]  # fmt: skip
        dropped: dict[Source, type] = {}
        for i in reversed(idle):
            source, value, _ = self.inputs.pop(i)
            assert isinstance(value, PassedTensor)
            value.dropped = True
            del self.versions[i], self.tensors[source]
            self.places.remove(source)
            self.root.erase_node(value.node)
            dropped[source] = value.kind
        return dropped

    def _fake(self, real: torch.Tensor) -> torch.Tensor:
        """The fake of a real tensor. Tensors that share memory have fakes that share memory."""
        memory = memory_of(real)
        first = self.memories.get(memory)
        if first is None:
            made = self.maker.like(real)
            self.memories[memory] = (real, made)
            if made is not None:
                return made
        elif first[1] is not None:  # it was made without the mode's knowledge
            converter = self.mode.fake_tensor_converter.meta_converter
            storage = converter.describer.describe_storage(first[0].untyped_storage())
            converter.set_storage_memo(storage, first[1].untyped_storage())
        return self.mode.from_tensor(real, static_shapes=True)

    def number(self, x: LateNumber) -> Node:
        """A placeholder for a late number. Errors: GraphBreak for one that is not there yet."""
        if x.after:
            raise self.late.undecided()
        node = self.numbers.get(id(x))
        if node is None:
            node = self.numbers[id(x)] = self.placeholder(f"number_{len(self.numbers)}")
            node.meta[VAL] = plain_number(x.now)
            self.places.append(x)
        return node

    def size(self, x: SizeValue) -> Any:
        """A symbolic number as the graph holds it: a node, or a plain number."""
        if self.graph is not self.root:
            return x.obj  # graphs inside of nodes have no sizes of their own
        return self.sizes.node(self.graph, x.number.node.value, self.tensors, self._late_size)

    def exactly(self, e: Expr) -> Any:
        """An expression as a node, in which nothing is replaced by what is known of it."""
        return self.sizes.writer(self.root, self.tensors, self._late_size).exactly(e)

    def _late_size(self, source: Source | Expr) -> Node:
        if isinstance(source, Expr):
            return self.computed_size(source)
        late = self.late.leaves[source]
        node = self.number(late)
        # it may have been fixed since it became a symbol: that it is guarded by value is no reason
        # to forget what is made of it
        node.meta[VAL] = self.sizes.numbers[id(late)].number
        return node

    def computed_size(self, symbol: Expr) -> Node:
        """A placeholder for an integer that is computed of a float when a call begins."""
        env = self.sizes.env
        late = self.rounded.get(symbol)
        if late is None:
            how = env.computed[symbol]
            given = number_value(symbolic_number(env, how.value, SAMPLE))
            late = LateNumber(self.late, env.hint(symbol), None, how.fn, (given,))
            self.rounded[symbol] = late
            self.late.computed.append(late)
        node = self.number(late)
        node.meta[VAL] = symbolic_number(env, symbol)
        return node

    def mutated_inputs(self) -> list[int]:
        """Positions of the inputs whose data an operator of the graph wrote."""
        written = self.mode.written
        return [i for i, (_, v, _) in enumerate(self.inputs)
                if version_of(v.fake) != self.versions[i] or (
                    written and memory_of(v.fake) in written)]  # fmt: skip

    def placeholder(self, name: str) -> Node:
        """An input of the graph. Its parameter has the node's name, which no other node has."""
        node = self.root.placeholder(name)
        node.target = node.name
        return node

    def _name(self, text: str) -> str:
        base = re.sub(r"\W+", "_", text).strip("_").lower() or "arg"
        return base if not base[0].isdigit() else "t_" + base

    # ------------------------------------------------------------------- calls
    def call(self, op: str, target: Any, args: list[Value], kwargs: dict[str, Value],
             at: Loc) -> Value:  # fmt: skip
        """Run the operator on fakes, record it, and wrap what it returns.

        op: "call_function" or "call_method". Errors: NotConstant for an argument that neither a
        graph nor an operator can hold; GraphBreak when the operator cannot run on fakes.
        """
        if self.late.active or self.computes:
            keep_in_range(self, target, args, kwargs)
            args, given = [argument(self, target, i, x, args) for i, x in enumerate(args)], args
            kwargs = {k: argument(self, target, k, x, given) for k, x in kwargs.items()}
        kwargs = {k: self._as_number(target, k, x, at) for k, x in kwargs.items()}
        real_args = [self.to_fake(a) for a in args]
        real_kwargs = {k: self.to_fake(v) for k, v in kwargs.items()}
        self.mode.maker = self.mode.asked = None
        if kwargs.get("out") is not None:
            self._check_outs(kwargs["out"], target, real_args, real_kwargs, at)
        self.mode.maker = self.sizes.data.maker if self.takes_data else None
        given_fakes = tensors_in((real_args, real_kwargs), FakeTensor)
        versions = [version_of(x) for x in given_fakes]
        writes, draws = len(self.mode.writes), self.mode.draws
        first, runs = len(self.sizes.data.maker.made), self.sizes.data.maker.runs
        try:
            with self.listening():
                run = functools.partial(self.run, op, target, real_args, real_kwargs, at)
                result = keep_grad(run(), given_fakes, run)
        except GraphBreak:
            other = instead(self, args, kwargs, at)
            if other is None:
                raise
            return self.call(op, target, *other, at)
        fx_args = tuple(self.to_fx(a) for a in args)
        fx_kwargs = {k: self.to_fx(v) for k, v in kwargs.items()}
        node = self.graph.create_node(op, target, fx_args, fx_kwargs)
        node.meta[LOC] = at
        node.meta[VAL] = result
        self.n_calls += 1
        # versions say it where there are any: what an operator is made of is not always looked at
        noted = self.mode.writes[writes:]
        written = {memory_of(x) for x, v in zip(given_fakes, versions, strict=True)
                   if (memory_of(x) in noted if x.is_inference() else version_of(x) != v)}
        if written:
            found = (i for i, n in enumerate(node.all_input_nodes)
                     if not written.isdisjoint(memories_in(n.meta.get(VAL))))  # fmt: skip
            node.meta[WRITES] = tuple(found)
        if self.mode.draws > draws:
            node.meta[DRAWS] = True
        if self.sizes.data.maker.runs > runs:
            return self._by_data(node, result, at, first)
        if is_risky(node):
            self.risky = True
            self.on_risk()
        return self.wrap_result(node, result, at, 0)

    def _check_outs(self, out: Value, target: Any, args: list[Any], kwargs: dict[str, Any],
                    at: Loc) -> None:  # fmt: skip
        def run(tried: Any) -> Any:
            return self.run("call_function", target, args, {**kwargs, "out": tried}, at)

        check_outs(out, run, list(self.by_fake.values()), self.mode, at)

    def _by_data(self, node: Node, result: Any, at: Loc, first: int) -> Value:
        """The Value of what has sizes that only the data decides. first: the new symbol's number.

        Errors: GraphBreak W105 where a size is not one of these but made of them.
        """
        node.meta[BY_DATA] = True
        self.risky |= is_risky(node)
        self.on_data()
        value = self.wrap_result(node, result, at, 0)
        if not self.sizes.data.find(list(tensors_of(value)), first):
            raise refuse("W105", f"{node.target} makes a size of one that depends on data", at)
        return value

    @property
    def takes_data(self) -> bool:
        """Whether sizes that only the data decides may be made now."""
        known = self.sizes.varying
        return known.by_data and known.allowed and self.graph is self.root

    def whole_number(self, x: TensorValue, at: Loc) -> Value:
        """The integer that a tensor holds, which only the data decides; read once while nobody
        writes to it."""
        data, held = self.sizes.data, (x.node, self.mode.writes.count(memory_of(x.fake)))
        if held in self.read:
            return self.read[held]
        symbol = data.maker.number(counted_mask(self.node_of(x)))
        node = self.graph.call_method("item", (self.node_of(x),))
        node.meta[VAL], node.meta[LOC] = symbolic_number(self.sizes.env, symbol), at
        node.meta[BY_DATA] = True
        self.n_calls += 1
        data.found[symbol] = Made(x, node=node)
        self.on_data()
        made = self.read[held] = number_value(node.meta[VAL])
        return made

    def computed(self, fn: Callable[..., int], args: list[Value], lo: int | None, at: Loc) -> Value:
        """fn(*args) of integers that only the data decides, as a number of which only is known that
        it is at least `lo`."""
        env, data = self.sizes.env, self.sizes.data
        numbers = [self.sizes.as_number(a) if is_varying(a) else constant(a) for a in args]
        symbol = env.unknown(int(fn(*map(hint_of, numbers))), lo)
        data.maker.made.append(symbol)
        given = tuple(self.size(a) if isinstance(a, SizeValue) else n
                      for a, n in zip(args, numbers, strict=True))  # fmt: skip
        node = call_node(self.graph, fn, given, {})
        node.meta.update({VAL: symbolic_number(env, symbol), LOC: at, BY_DATA: True})
        inside = tuple(expr_of(n) if node_of(n) is not None else n for n in numbers)
        data.found[symbol] = Computed(node, fn, inside)
        return number_value(node.meta[VAL])

    def whole_numbers(self, x: TensorValue, shape: list[int], at: Loc) -> Value:
        """The integers that a tensor holds, in nested lists."""
        if not shape:
            return self.whole_number(x, at)
        node = self.graph.call_method("tolist", (self.node_of(x),))
        node.meta.update({LOC: at, BY_DATA: True})
        self.n_calls += 1
        self.on_data()
        value = self._numbers_in(node, x, shape, (), at)
        node.meta[VAL] = [n.meta[VAL] for n in node.users]
        return value

    def _numbers_in(self, node: Node, x: TensorValue, shape: list[int], place: tuple[int, ...],
                    at: Loc) -> Value:  # fmt: skip
        """The list, or the number, that a node is."""
        data = self.sizes.data
        if len(place) == len(shape):
            symbol = data.maker.number()
            node.meta[VAL] = symbolic_number(self.sizes.env, symbol)
            data.found[symbol] = Made(x, place=place, node=node)
            return number_value(node.meta[VAL])
        items: list[Slot] = []
        for i in range(shape[len(place)]):
            part = self.graph.call_function(operator.getitem, (node, i))
            part.meta.update({LOC: at, BY_DATA: True})
            items.append(self._numbers_in(part, x, shape, (*place, i), at))
            part.meta.setdefault(VAL, [])
        return ListValue(items)

    def _as_number(self, target: Any, place: str, x: Any, at: Loc) -> Any:
        """A tensor where an operator wants a number: it reads it with item()."""
        if not isinstance(x, TensorValue) or not takes_number_only(target, place) or self.bodies:
            return x
        plain = x.fake.dim() == 0 and x.fake.is_floating_point() and not x.fake.requires_grad
        return self.item(x, at) if plain else x

    def item(self, x: TensorValue, at: Loc) -> GraphNumber:
        """The number that a tensor holds, which is known when the graph runs."""
        self.computes = True
        node = self.graph.call_method("item", (self.node_of(x),))
        node.meta[VAL], node.meta[LOC] = SAMPLE, at
        self.n_calls += 1
        return GraphNumber(node, None, (x,), functools.partial(unknown, at))

    def run(self, op: str, target: Any, args: list[Any], kwargs: dict[str, Any], at: Loc) -> Any:
        """The result of an operator on FakeTensors."""
        name = getattr(target, "__name__", str(target))
        symbolic = self.sizes.symbolic
        self.mode.cache_enabled &= not symbolic  # torch's memo asks symbols for what ours lack
        try:
            with self.mode, decomposing() if symbolic else nullcontext(), (
                    self.sizes.data.in_operator()):  # fmt: skip
                if op == "call_method":
                    return getattr(args[0], target)(*args[1:], **kwargs)
                with whole(target):
                    result = target(*args, **kwargs)
                # on fakes it compares, in the layout of the classes; eager scatters into zeros
                return result.contiguous() if target is F.one_hot else result
        except GraphBreak:
            raise
        except UnknownSizeError as error:
            raise refuse("W102", f"{name}: {error.why}", at) from None
        except DataDependentOutputException as error:
            raise refuse("W102", f"{name} needs the value of a Tensor ({error.func})", at) from None
        except DynamicOutputShapeException as error:
            why = f"the shape of {name} depends on data ({error.func})"
            raise refuse("W105", why, at) from None
        except UnsupportedFakeTensorException as error:
            raise refuse("W104", f"{name}: {error}", at) from None
        except Exception as error:
            # eager decides what this call really does, and raises its own error if it does
            if symbolic and fixes_sizes(error):
                raise refuse("W104", f"{name} does not take sizes that vary", at,
                             "mark_static them, if there are few") from None  # fmt: skip
            raise refuse("W104", f"{name}: {type(error).__name__}: {error}", at) from None

    def wrap_result(self, node: Node, result: Any, at: Loc, depth: int) -> Value:
        """The Value of an operator's result; tensors inside containers become getitem nodes."""
        if isinstance(result, torch.Tensor):
            return self._tensor(node, result, at)
        if result is None or isinstance(result, PLAIN):
            return Const(result)
        if node_of(result) is not None:
            return number_value(result)
        if isinstance(result, torch.Size):
            return TupleValue([number_value(i) for i in result], torch.Size)
        if isinstance(result, tuple | list) and depth < _MAX_NESTING:
            items: list[Slot] = []
            for i, item in enumerate(result):
                if _holds_tensor(item):
                    part = self.graph.call_function(operator.getitem, (node, i))
                    part.meta[VAL] = item
                    part.meta[LOC] = at
                    items.append(self.wrap_result(part, item, at, depth + 1))
                else:
                    items.append(self.wrap_result(node, item, at, depth + 1))
            return ListValue(items) if isinstance(result, list) else TupleValue(items, type(result))
        if type(result) is dict and depth < _MAX_NESTING:
            made = DictValue(dict)
            for key, item in result.items():
                part = self.graph.call_function(operator.getitem, (node, key))
                part.meta[VAL], part.meta[LOC] = item, at
                made.items[key] = self.wrap_result(part, item, at, depth + 1)
                made.keys[key] = Const(key)
            return made
        if isinstance(result, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise refuse("W105", "a size that depends on data", at)
        raise refuse("W107", f"operator result of type {type(result).__name__}", at)

    def _tensor(self, node: Node, fake: torch.Tensor, at: Loc) -> TensorValue:
        known = self.by_fake.get(id(fake))
        if known is not None and known.node.graph not in self.closed:
            return known  # in-place operators and out= return the object that they got
        if not isinstance(fake, FakeTensor) and not (self.bodies and is_transformed(fake)):
            raise refuse("W112", f"tensor subclass {type(fake).__name__}", at)
        if any(isinstance(n, torch.SymInt) and node_of(n) is None for n in fake.shape):
            raise refuse("W105", "a size that depends on data", at)
        return self.known(TensorValue(node, fake))

    def known(self, value: TensorValue) -> TensorValue:
        """`value`, found from now on where an operator returns its fake."""
        self.by_fake[id(value.fake)] = value
        self.kept.append(value.fake)
        return value

    # ------------------------------------------------------------------ bodies
    def open(self, body: Body) -> None:
        """What is recorded from now on belongs to the graph of `body`."""
        self.bodies.append(body)
        self.graph = body.graph

    def close(self, body: Body) -> None:
        """The end of a body, and of those inside of it that an exception has left."""
        while body in self.bodies:
            inner = self.bodies.pop()
            self.closed[inner.graph] = inner
        self.graph = self.bodies[-1].graph if self.bodies else self.root

    def graphs(self) -> Iterator[Graph]:
        """The graph of the frame and those inside of its nodes."""
        yield self.root
        yield from self.closed

    def node_of(self, x: TensorValue) -> Node:
        """The node of a tensor in the graph that is recorded now.

        Errors: GraphBreak for a tensor of a body that has ended.
        """
        if x.node.graph is self.graph:
            return x.node
        around = [self.root, *(b.graph for b in self.bodies)]
        if x.node.graph not in around:
            raise self.left_body(x)
        node = x.node
        for body in self.bodies[around.index(x.node.graph) :]:
            node = body.take(node, x)
        return node

    def left_body(self, x: TensorValue) -> GraphBreak:
        """The error of a tensor that outlives the function which a transform has run."""
        body = self.closed.get(x.node.graph)
        why = f"a tensor of the function inside {body.name if body else 'a transform'} is kept"
        if body is None or not body.stop:
            return refuse("W106", why)
        return Stuck("W106", why, body.at, body.stop)

    # --------------------------------------------------------------- arguments
    def to_fx(self, x: Slot | Row | Held) -> Any:
        """An argument as the graph holds it."""
        x = x.value if isinstance(x, Held) else x
        if isinstance(x, Row):
            return [self.to_fx(i) for i in x.items]
        if isinstance(x, LateNumber) and not x.fixed and not self.bodies:
            return self.number(x)
        if isinstance(x, GraphNumber) and not self.bodies:
            return x.node
        if type(x) is Const and isinstance(x.obj, type) and x.obj in DTYPES:
            return DTYPES[x.obj]
        return self._convert(x, lambda t: self.node_of(t) if isinstance(t, TensorValue) else (
            self.size(t)))  # fmt: skip

    def to_fake(self, x: Slot | Row | Held) -> Any:
        """An argument as an operator on fakes gets it."""
        if isinstance(x, Held):
            return x.fake()
        if isinstance(x, Row):
            return [self.to_fake(i) for i in x.items]
        if isinstance(x, LateNumber):
            return plain_number(x.now)  # where a size is needed, it has become one
        if isinstance(x, GraphNumber):
            return SAMPLE
        if type(x) is Const and isinstance(x.obj, type) and x.obj in DTYPES:
            return x.obj  # it decides whether it takes a class here
        return self._convert(x, lambda t: t.fake if isinstance(t, TensorValue) else t.number)

    def _convert(self, x: Slot, leaf: Callable[[TensorValue | SizeValue], Any]) -> Any:
        match x:
            case TensorValue() | SizeValue():
                return leaf(x)
            case LateNumber() if not x.fixed:
                made = self.sizes.given(x)
                return x.obj if made is None else leaf(made)
            case ListValue() if x.cls() is list:
                return [self._convert(i, leaf) for i in x.items]
            case TupleValue():
                items = tuple(self._convert(i, leaf) for i in x.items)
                if x.kind is torch.Size:
                    return items if any(isinstance(i, Node) for i in items) else torch.Size(items)
                return x.kind(*items) if hasattr(x.kind, "_fields") else items
            case DictValue() if x.complete:
                return {constant(x.keys[k]): self._convert(v, leaf) for k, v in x.items.items()}
            case InstanceValue(payload=Const(obj=int() | float()) as part):
                return part.obj
            case SliceValue():
                return slice(*(self._convert(p, leaf) for p in x.parts))
            case Const() if isinstance(x.obj, np.generic):
                return x.obj.item()  # what torch makes of a NumPy number
            case Const() if isinstance(x.obj, enum.Enum) and isinstance(x.obj, int):
                return int(x.obj)  # the printed graph has no name for what several flags are
            case Const() if isinstance(x.obj, slice):
                parts = (x.obj.start, x.obj.stop, x.obj.step)
                return slice(*(p.item() if isinstance(p, np.generic) else p for p in parts))
            case Const() if isinstance(x.obj, ARGUMENT) or x.obj is None or is_function(x.obj):
                return x.obj
            case Lazy():
                return self._convert(self.force(x), leaf)
        raise NotConstant


def _holds_tensor(x: object) -> bool:
    if isinstance(x, dict):
        return any(_holds_tensor(i) for i in x.values())
    return isinstance(x, torch.Tensor) or (
        isinstance(x, tuple | list) and any(map(_holds_tensor, x)))  # fmt: skip
