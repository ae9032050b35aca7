"""Numbers that are known only when the graph runs: Tensor.item(), and what is computed of it.

The captured graph has them as Python has them: `x.item()` and `operator.mul` of floats are nodes.
The stages behind it compute them as tensors without dimensions (graph/numbers.py), so that nothing
waits for a device. Only floats, and what is computed of floats, are kept in the graph.
"""

from __future__ import annotations

import functools
import math
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.fx import Graph, Node

from torchweld.base import config
from torchweld.base.errors import GraphBreak
from torchweld.capture import polyfills
from torchweld.capture.fx_build import unknown
from torchweld.capture.late import LEAF, Decided, LateNumber, evaluated
from torchweld.capture.open_numbers import steps_apart
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.symbolic import is_owned, is_varying, number_value
from torchweld.capture.values.base import (
    Const,
    IteratorValue,
    Slot,
    TensorValue,
    Value,
    constant,
)
from torchweld.capture.values.number import SAMPLE, GraphNumber, RangeValue
from torchweld.capture.values.sequences import GrowingList, UnreadTuple
from torchweld.ir.graph import LOC, VAL
from torchweld.ir.nested import memory_of, tensors_in
from torchweld.ir.size_makers import holds_number
from torchweld.ir.size_node import expr_of, node_of, plain
from torchweld.ir.size_values import symbols_of
from torchweld.ir.source import Source

_INFIX: dict[str, Callable[..., float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "**": operator.pow,
}  # fmt: skip
_CALLS: tuple[Callable[..., Any], ...] = (abs, math.sqrt, min, max, operator.neg)
_LARGEST = 2**53  # of the integers that all are floats


def item(cap: Capture, args: list[Value], kwargs: dict[str, Value], cont: Cont | None) -> None:
    """Tensor.item()."""
    x = args[0]
    if not isinstance(x, TensorValue) or len(args) > 1 or kwargs:
        raise refuse("W102", "Tensor.item", cap.loc())
    if x.fake.numel() != 1:
        raise raised(RuntimeError, f"a Tensor with {x.fake.numel()} elements cannot be converted "
                                   "to Scalar")  # fmt: skip
    builder = cap.builder
    if holds_number(x.fake) and builder.takes_data:
        cap.deliver(builder.whole_number(x, cap.loc()), cont)
        return
    if not x.fake.is_floating_point() or builder.bodies or builder.graph is not builder.root:
        raise refuse("W102", "Tensor.item", cap.loc())
    cap.deliver(_read_once(cap, x), cont)


def whole_item(cap: Capture, args: list[Value], kwargs: dict[str, Value],
               cont: Cont | None) -> None:  # fmt: skip
    """int() of a tensor of integers."""
    x = args[0]
    if len(args) > 1 or kwargs or not (isinstance(x, TensorValue) and holds_number(x.fake)):
        raise refuse("W102", "int() of a Tensor", cap.loc())
    item(cap, args, kwargs, cont)


# ------------------------------------------------------------------------ loops
def range_of(args: list[Value]) -> RangeValue | None:
    """range() of integers some of which vary; None if it is another call."""
    given = [x for x in args if isinstance(x, Const)]
    if len(given) != len(args) or not 1 <= len(args) <= 3 or not any(map(is_varying, given)) or (
            any(x.cls() is not int for x in given)):  # fmt: skip
        return None
    if len(given) == 1:
        return RangeValue((Const(0), given[0], Const(1)))
    return RangeValue((given[0], given[1], given[2] if len(given) == 3 else Const(1)))


RUNS_APART = "how often this loop runs differs from call to call"


def runs_apart(cap: Capture, n: Any) -> bool:
    """Whether a loop that runs so often is not unrolled: its body is compiled on its own.

    That is so where only the data decides how often, and from the third number on otherwise.
    """
    number = node_of(n)
    return number is not None and cap.builder.graph is cap.builder.root and (
        not number.is_constant() and (number.is_open() or not cap.sizes.varying.unrolls))


def is_open(n: Any) -> bool:
    """Whether only the data decides a number."""
    number = node_of(n)
    return number is not None and number.is_open()


def apart(cap: Capture, x: Value, kind: type,
          unrolled: Callable[[], IteratorValue] | None) -> IteratorValue:  # fmt: skip
    """The iterator of such a loop: each step is Python's, and what it gives varies.

    unrolled: for what is no loop of the frame's, and for a comprehension, whose list is as long as
    the loop: behind it everything would be compiled for each number anyway. None if only the data
    decides how often it runs.
    """

    def step() -> Value | None:
        if unrolled is None or _is_loop(cap):
            raise refuse("W124", RUNS_APART, cap.loc())
        inner = unrolled()
        it.step, it.remake = inner.step, inner.remake
        return it.step()

    it = IteratorValue(step, kind, lambda r: _apart_text(r, x))
    return it


# of Python's iterators, those that a loop may go through another one with
_PASSED = tuple(fn.__code__ for fn in (polyfills.enumerate_, polyfills.zip_))


def _is_loop(cap: Capture) -> bool:
    """Whether a `for` of a frame that can be left asks for the next item, and no comprehension."""
    frames = [*cap.frames]
    while frames and frames[-1].code.raw in _PASSED:
        frames.pop()
    if not frames or any((f.on_return, f.on_raise, f.on_yield, f.names) != (None,) * 4
                         for f in frames):  # fmt: skip
        return False
    code, at = frames[-1].code.instrs, frames[-1].ip
    end = code[at - 1].target
    return code[at - 1].op == "FOR_ITER" and end is not None and not any(
        i.op in ("LIST_APPEND", "SET_ADD", "MAP_ADD") for i in code[at:end])  # fmt: skip


def _apart_text(r: Any, x: Value) -> str:
    name: str = r.assign(f"{r.bind_const(map)}({r.bind_const(itself)}, {r.expr(x)})")
    return name


def iterable_text(r: Any, x: Value) -> str:
    """What a residual program hands to an iterator that goes through `x`."""
    cap = r.cap
    if isinstance(x, TensorValue) and x.fake.dim() and runs_apart(cap, x.fake.shape[0]):
        return _apart_text(r, x)
    if isinstance(x, GrowingList | UnreadTuple) and steps_apart(cap, x):
        return _apart_text(r, x)
    if isinstance(x, RangeValue) and not is_varying(x.parts[2]) and x.parts[2].obj != 0 and (
            runs_apart(cap, _count(cap, x))):  # fmt: skip
        return _apart_text(r, x)
    text: str = r.expr(x)
    return text


def _count(cap: Capture, x: RangeValue) -> Any:
    """How many numbers are in a range whose step is known."""
    a, b, by = (cap.sizes.as_number(p) for p in x.parts)
    return (b - a + by - 1) // by if by > 0 else (a - b - by - 1) // -by


def itself(x: object) -> object:
    """What the iterators of such loops apply, by which they are known."""
    return x


def range_iterator(cap: Capture, x: RangeValue) -> IteratorValue | None:
    """The iterator of a range; only how often it steps is fixed. None: all of it is."""
    step = x.parts[2]
    if is_varying(step) or step.obj == 0:
        return None
    a, by, count = *map(cap.sizes.as_number, (x.parts[0], step)), _count(cap, x)
    if runs_apart(cap, count):
        unrolled = None if is_open(count) else lambda: _unrolled(x, a, by, count)
        return apart(cap, x, type(iter(range(0))), unrolled)
    return _unrolled(x, a, by, count)


def _unrolled(x: RangeValue, a: Any, by: int, count: Any) -> IteratorValue:
    """count: is fixed."""
    n, at = max(0, int(count)), 0

    def forward() -> Value | None:
        nonlocal at
        if at >= n:
            return None
        at += 1
        return number_value(a + (at - 1) * by)

    def remake(r: Any) -> str:
        rest = RangeValue((number_value(a + at * by), *x.parts[1:]))
        name: str = r.assign(f"{r.bind_const(iter)}({r.expr(rest)})")
        return name

    return IteratorValue(forward, type(iter(range(0))), remake)


def place_computed(cap: Capture) -> None:
    """Placeholders for sizes that operators have made for themselves by rounding floats."""
    env = cap.sizes.env
    if not env.computed:
        return
    fakes = (x for n in cap.builder.root.nodes for x in tensors_in(n.meta.get(VAL)))
    used = {s for x in fakes for n in (*x.shape, *x.stride()) if node_of(n) is not None
            for s in symbols_of(expr_of(n))}  # fmt: skip
    for symbol in env.computed:
        if env.simplify(symbol) in used:
            cap.builder.computed_size(symbol)


_LONGEST = 256  # list of numbers that the data decides


def tolist(cap: Capture, args: list[Value], kwargs: dict[str, Value], cont: Cont | None) -> None:
    """Tensor.tolist() of integers, whose number is known."""
    x = args[0]
    if len(args) > 1 or kwargs or not (isinstance(x, TensorValue) and holds_number(x.fake)):
        raise refuse("W102", "Tensor.tolist", cap.loc())
    shape = [plain(n) for n in x.fake.shape]
    if not cap.builder.takes_data or not all(type(n) is int for n in shape) or (
            math.prod(shape) > _LONGEST):  # fmt: skip
        raise refuse("W102", "Tensor.tolist", cap.loc())
    cap.deliver(cap.builder.whole_numbers(x, shape, cap.loc()), cont)


def _node(cap: Capture, node: Node) -> Node:
    node.meta[VAL], node.meta[LOC] = SAMPLE, cap.loc()
    cap.builder.n_calls += 1
    return node


def is_graph_number(*values: Value) -> bool:
    """Whether one of these is computed by the graph."""
    return any(type(x) is GraphNumber for x in values)


def number_binary(cap: Capture, symbol: str, a: Value, b: Value) -> GraphNumber | None:
    """a <symbol> b; None if it is no arithmetic of numbers that the graph computes."""
    fn = _INFIX.get(symbol) or _INFIX.get(symbol.removesuffix("="))
    return _computed(cap, fn, (a, b)) if fn is not None else None


def number_call(cap: Capture, fn: object, args: list[Value]) -> Value | None:
    """A call of a function of numbers; None if it is nothing of ours."""
    if fn is float and len(args) == 1 and is_graph_number(*args):
        return args[0]
    found = next((f for f in _CALLS if f is fn), None)
    return _computed(cap, found, tuple(args)) if found is not None else None


def _computed(cap: Capture, fn: Callable[..., float], args: tuple[Value, ...]) -> Any:
    if not is_graph_number(*args) or cap.builder.bodies:
        return None
    operands = [_operand(cap, x) for x in args]
    if None in operands:
        return None
    if cap.builder.graph is not cap.builder.root:
        return _new(cap, fn, args, operands)
    return _computed_once(cap, fn, tuple(operands), lambda: _new(cap, fn, args, operands))


def _new(cap: Capture, fn: Callable[..., float], args: tuple[Value, ...],
         operands: list[Node | float | None]) -> GraphNumber:  # fmt: skip
    node = _node(cap, cap.builder.graph.call_function(fn, tuple(operands)))
    made = GraphNumber(node, fn, args, functools.partial(unknown, cap.loc()))
    if fn in _PARTIAL and not in_optimizer(cap) and not (
            fn is operator.truediv and type(args[1]) is Const and args[1].obj != 0):  # fmt: skip
        cap.builder.may_fail.append(made)
        cap.note_risk(of_numbers=True)
    return made


# arithmetic that raises for some operands, where tensors have infinity or NaN
_PARTIAL = (operator.truediv, operator.pow, math.sqrt)
_OPTIMIZERS = os.path.dirname(torch.optim.__file__) + os.sep


def in_optimizer(cap: Capture) -> bool:
    """Whether torch's own optimizers compute: they check what they are made with, and count from
    one, so that they never divide by zero."""
    return cap.top.code.filename.startswith(_OPTIMIZERS)


def _operand(cap: Capture, x: Value) -> Node | float | None:
    """An operand in the graph; None for one that is no float and cannot stand for one."""
    if isinstance(x, GraphNumber):
        return x.node
    if isinstance(x, LateNumber) and not x.fixed and type(x.now) is float:
        return cap.builder.number(x)
    if type(x) is Const or isinstance(x, LateNumber):
        value = x.obj
        if type(value) is float:
            return value
        if type(value) is int and abs(value) < _LARGEST:
            return value
    return None


# ------------------------------------------------------------------------ comparisons
class DecidedItem(Decided):
    """The same for what is computed of a tensor's value."""

    __slots__ = ()

    def number(self, value: torch.Tensor) -> float:
        return value.item()


def number_decide(cap: Capture, fn: Callable[..., bool], a: Value, b: Value) -> bool:
    """fn(a, b), if it depends on one tensor on the CPU that the frame was given: then the outcome
    is guarded. Errors: GraphBreak W101."""
    sources: set[Source] = set()
    tree = (fn, tuple(_tree(cap, x, sources) for x in (a, b)))
    if not sources:
        return bool(evaluated(tree, SAMPLE))
    if len(sources) != 1:
        raise not_known(cap)
    (source,) = sources
    real = cap.builder.reals[id(cap.builder.tensors[source])]
    answer = bool(evaluated(tree, real.item()))
    cap.guard("predicate", source, DecidedItem(tree, answer))
    return answer


def buffer_decide(cap: Capture, x: TensorValue) -> bool | None:
    """Whether a buffer on the CPU is true, or a comparison of one with a number, as a counter of
    steps that is asked for its first one: the outcome is guarded. None for any other tensor.

    Errors: GraphBreak W101 if the frame has changed the buffer in a way that is not understood.
    """
    node, fn, others = x.node, operator.ne, (0,)
    if x.source is None and node.target in _COMPARISONS and len(node.args) == 2:
        fn, (node, *others) = node.target, node.args  # type: ignore[assignment]
    buffer = cap.builder.origin.get(node) if isinstance(node, Node) else None
    if not isinstance(buffer, TensorValue) or buffer.source is None or cap.builder.bodies:
        return None
    plain = all(type(other) in (bool, int, float) for other in others)
    if not plain or not is_owned(buffer.source) or buffer.fake.device.type != "cpu" or (
            buffer.fake.numel() != 1 or buffer.fake.requires_grad):  # fmt: skip
        return None
    leaf = _changed_leaf(cap, buffer, None if x is buffer else x.node)
    tree = (fn, (leaf, *others))
    answer = bool(evaluated(tree, cap.builder.reals[id(buffer)].item()))
    cap.guard("predicate", buffer.source, DecidedItem(tree, answer))
    return answer


def draw_decide(x: TensorValue) -> bool | None:
    """What a comparison of `torch.rand([])` with a number says if it says the same of all draws, as
    of a layer that is left out with the probability 0; None for any other tensor."""
    at = _LIMITS.get(x.node.target)
    if at is None or len(x.node.args) != 2 or x.node.users:  # who uses it may write to it
        return None
    draw, limit = x.node.args
    if not isinstance(draw, Node) or draw.target is not torch.rand or list(draw.users) != [x.node]:
        return None
    if type(limit) not in (bool, int, float) or "out" in draw.kwargs:
        return None
    none, all_ = at
    return False if none(limit) else True if all_(limit) else None


# a draw is at least 0 and less than 1: for which limits the comparison holds for none, and for all
_LIMITS: dict[Any, tuple[Callable[[Any], bool], Callable[[Any], bool]]] = {
    operator.lt: (lambda limit: limit <= 0, lambda limit: limit >= 1),
    operator.le: (lambda limit: limit < 0, lambda limit: limit >= 1),
    operator.gt: (lambda limit: limit >= 1, lambda limit: limit < 0),
    operator.ge: (lambda limit: limit >= 1, lambda limit: limit <= 0),
}
_COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def _tree(cap: Capture, x: Value, sources: set[Source]) -> Any:
    """How a number is made of the value of a tensor, as nested tuples."""
    if not isinstance(x, GraphNumber):
        return constant(x)  # which fixes one that changes
    if x.fn is not None:
        return x.fn, tuple(_tree(cap, a, sources) for a in x.args)
    (tensor,) = x.args
    assert isinstance(tensor, TensorValue)
    made = constant_of(tensor)
    if made is None and (tensor.source is None or tensor.fake.device.type != "cpu" or (
            cap.builder.reals[id(tensor)].numel() != 1)):  # fmt: skip
        raise not_known(cap)
    if made is None:
        assert tensor.source is not None
        sources.add(tensor.source)
    return _changed_leaf(cap, tensor, x.node, made, x.added)


def _changed_leaf(cap: Capture, tensor: TensorValue, until: Node | None, made: Any = None,
                  added: Sequence[float] | None = None) -> Any:  # fmt: skip
    """The value of a tensor before a node, as nested tuples. made: what it began with, if not with
    what is found outside. added: what the frame has added to it by then, if that is known."""
    tree: Any = LEAF if made is None else made
    for change in added_before(cap, tensor, until) if added is None else added:
        tree = (_Rounded(tensor.fake.dtype), ((operator.add, (tree, change)),))
    return tree


class _Rounded:
    """A number as an element of a dtype."""

    __slots__ = ("__name__", "dtype")

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.__name__ = str(dtype)

    def __call__(self, x: float) -> float:
        return float(torch.tensor(x, dtype=self.dtype))

    def __hash__(self) -> int:
        return hash(self.dtype)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rounded) and other.dtype is self.dtype


class Writer(Protocol):
    """What writes the residual program. names: of what it has written, by id."""

    names: dict[int, str]

    def expr(self, slot: Slot) -> str: ...
    def bind_const(self, obj: object) -> str: ...
    def assign(self, text: str) -> str: ...


def number_text(cap: Capture, x: GraphNumber, writer: Writer) -> str:
    """A number of the graph's that the frame hands out, as Python computes it."""
    name = writer.names.get(id(x))
    if name is None:
        cap.kept.append(x)
        if x.fn is None:
            text = f"{writer.expr(value_read(cap, x))}.item()"
        else:
            text = f"{writer.bind_const(x.fn)}({', '.join(map(writer.expr, x.args))})"
        name = writer.names[id(x)] = writer.assign(text)
    return name


def value_read(cap: Capture, x: GraphNumber) -> TensorValue:
    """The tensor that a number was read of, as it was then."""
    (tensor,) = x.args
    assert isinstance(tensor, TensorValue)
    return unwritten(cap, tensor, x.node)


def unwritten(cap: Capture, tensor: TensorValue, before: Node) -> TensorValue:
    """A tensor as it was when `before` read it."""
    builder = cap.builder
    if not tensor.fake.requires_grad and memory_of(tensor.fake) not in builder.mode.writes:
        return tensor
    graph = builder.root
    made: list[Node] = []
    for after, name, of in ((before, "detach", tensor.node), (None, "clone", None)):
        with graph.inserting_after(after or made[-1]):
            made.append(graph.call_method(name, (of or made[-1],)))
    fake = tensor.fake
    for node in made:
        fake = builder.run("call_method", node.target, [fake], {}, cap.loc())
        node.meta[VAL], node.meta[LOC] = fake, cap.loc()
    return builder.known(TensorValue(made[-1], fake))


def drop_unused(graph: Graph) -> None:
    """Take numbers that nobody uses out of a graph: reading one waits for a device."""
    for node in reversed(graph.nodes):
        if type(node.meta.get(VAL)) is float and node.op.startswith("call") and not node.users:
            graph.erase_node(node)


# ------------------------------------------------------------------------ counters
# An optimizer has a counter for each parameter, raises all of them, and computes the same of each.
# That they hold the same when the frame begins is guarded, bit for bit; what the frame adds to them
# is known. So the graph reads one of them, and computes once what follows from it.


def _read_once(cap: Capture, x: TensorValue) -> GraphNumber:
    """The number that a tensor holds, read of the first one that holds the same."""
    held = _held(cap, x)
    if held is None:
        return cap.builder.item(x, cap.loc())
    found: GraphNumber | None = cap.counters.get(held)
    if found is None:
        found = cap.counters[held] = cap.builder.item(x, cap.loc())
        found.added = held[-1]
    (first,) = found.args
    if x is not first and x.source is not None:
        assert first.source is not None
        cap.guard("same_value", x.source, first.source)
    return found


def _held(cap: Capture, x: TensorValue) -> tuple[bool, str, torch.dtype, tuple[float, ...]] | None:
    """What a counter on the CPU holds now, as far as the capture knows: equal for equal ones. None
    if it may be anything else."""
    if not cap.sizes.varying.counters or (cap.slices is not None and cap.slices.open) or (
            "counters" in config.current().skip):  # fmt: skip
        return None
    if x.fake.device.type != "cpu" or x.fake.dim() or x.fake.requires_grad or (
            x.fake.dtype not in _TYPES):  # fmt: skip
        return None
    begun = _begun(cap, x)
    if begun is None or begun != begun:  # there are several NaNs
        return None
    try:
        added = tuple(added_before(cap, x, None))
    except GraphBreak:
        return None
    return x.source is None, repr(begun), x.fake.dtype, added


_TYPES = (torch.float32, torch.float64)


def _begun(cap: Capture, x: TensorValue) -> float | None:
    """What a tensor held when the frame began, or was made; None if that is not known."""
    if x.source is None:
        return constant_of(x)
    real = cap.builder.reals.get(id(x))
    return real.item() if real is not None and type(real) is torch.Tensor else None


def _computed_once(cap: Capture, fn: Callable[..., float], operands: tuple[object, ...],
             make: Callable[[], GraphNumber]) -> GraphNumber:  # fmt: skip
    """fn of nodes and constants, computed once. make: makes the node of it."""
    key = fn, *(x if isinstance(x, Node) else (type(x), repr(x)) for x in operands)
    found = cap.counters.get(key)
    if found is None:
        found = cap.counters[key] = make()
    return found


def constant_of(tensor: TensorValue) -> float | None:
    """The number that a tensor was made with in the frame; None if it was not made of one."""
    node = tensor.node
    if node.target in (torch.tensor, torch.as_tensor) and type(node.args[0]) in (int, float):
        return float(node.args[0])  # type: ignore[arg-type]
    return _FILLED.get(node.target) if not tensor.fake.dim() else None


_FILLED: dict[Any, float] = {torch.zeros: 0.0, torch.ones: 1.0}


def added_before(cap: Capture, tensor: TensorValue, until: Node | None) -> list[float]:
    """What the frame has added to a tensor before a node, or so far. Errors: GraphBreak W101 if it
    was changed in another way."""
    added: list[float] = []
    found = until_then = 0
    for user in tensor.node.users:  # in the order of the graph
        if user is until:
            until_then = found
        elif _writes(user, tensor.node):
            added.append(_added(cap, user))
            found += 1
    if found != cap.builder.mode.writes.count(memory_of(tensor.fake)):
        raise not_known(cap)
    return added if until is None else added[:until_then]


def _writes(node: Node, x: Node) -> bool:
    """Whether an operator changes its operand x."""
    first = node.args[0]
    if x is not first and not (isinstance(first, list | tuple) and x in first):
        return False
    name = str(getattr(node.target, "__name__", node.target))
    return node.target is operator.iadd or (name.endswith("_") and not name.endswith("__"))


def _added(cap: Capture, node: Node) -> float:
    """The number that an in-place operator adds."""
    name = str(getattr(node.target, "__name__", node.target))
    if name not in ("iadd", "add_", "_foreach_add_") or len(node.args) != 2:
        raise not_known(cap)
    value, alpha = node.args[1], node.kwargs.get("alpha", 1)
    if isinstance(value, Node) and value.target is torch.tensor and len(value.args) == 1:
        value = value.args[0]
    if not isinstance(value, int | float) or not isinstance(alpha, int | float):
        raise not_known(cap)
    return float(value * alpha)


def not_known(cap: Capture) -> GraphBreak:
    """Why a frame breaks that has to know a number now."""
    return refuse("W101", "the value is known only when the graph runs", cap.loc())
