"""Cuts a captured graph where the data decides sizes: into pieces of which each knows its sizes.

An operator that makes sizes runs as it is, between two pieces that are compiled; in the piece
behind it, what it has made are inputs like any other. An operator goes into the first piece that
has all that it needs, so independent operators that make sizes share one gap. Two accesses of one
memory, of which one writes, stay in their order, and so do operators that draw random numbers.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node

from torchweld.graph.modes_again import Mode, Modes, Setters, follow
from torchweld.graph.numbers import is_number_node
from torchweld.graph.state import GRAD_SETTERS
from torchweld.graph.symbols import env_of
from torchweld.ir import conditions
from torchweld.ir.expr import Expr, Sym
from torchweld.ir.graph import BY_DATA, DRAWS, RELATIONS, VAL, WRITES, causes_of
from torchweld.ir.nested import memories_in, tensors_in
from torchweld.ir.size_node import expr_of, is_number, node_of, symbolic
from torchweld.ir.size_values import symbols_of
from torchweld.ir.size_writer import SizeWriter
from torchweld.ir.sizes import SizeEnv
from torchweld.ir.steps import Asked, Found, Step, Steps
from torchweld.ir.takes import GRAD, TAKES

_SIZE = torch.ops.aten.sym_size.int
_GENERATOR = -1  # stands for the memory of random number generators
# methods that change how a tensor looks: what was captured of it earlier is not known any more
_RESHAPES = frozenset((
    "t_", "squeeze_", "unsqueeze_", "transpose_", "swapaxes_", "swapdims_", "resize_", "set_",
    "resize_as_", "requires_grad_", "detach_", "as_strided_",
))  # fmt: skip


def cut(graph: Graph, setters: Setters, nestings: frozenset[Any]) -> Steps | str:
    """The graph in steps, or why it cannot be cut: then it has to run as it is.

    setters, nestings: see `modes_again.follow`.
    """
    env = env_of(graph)
    assert env is not None
    modes = follow(graph, setters, nestings)
    if isinstance(modes, str):
        return modes
    why = next((w for w in map(_refused, graph.nodes) if w is not None), None)
    return why or _Cut(graph, env, modes).steps()


def _refused(node: Node) -> str | None:
    if node.target in _RESHAPES:
        return f"{node.target} changes how a tensor looks"
    kind = type(node.target)
    if kind.__module__.startswith("torchweld.") or isinstance(node.target, HigherOrderOperator):
        return f"{kind.__name__} calls functions"
    return None


@dataclass(slots=True)
class _Piece:
    """The operators of one step, in the graph's order."""

    time: int
    nodes: list[Node] = field(default_factory=list)

    @property
    def makes(self) -> bool:
        return self.time % 2 == 1


class _Cut:
    """times: in which piece each node runs; even ones are compiled, odd ones make sizes."""

    def __init__(self, graph: Graph, env: SizeEnv, modes: Modes) -> None:
        self.graph = graph
        self.env = env
        self.modes = modes
        self.inputs = list(graph.find_nodes(op="placeholder"))
        self.outside = {m for n in self.inputs for m in memories_in(n.meta.get(VAL))}
        self.retained: set[Node] = set()
        self.borders = {n for t in graph.nodes if t.target in TAKES for n in _differentiated(t)}
        self.sunk: dict[int, int] = {}
        self._begin()

    def _begin(self) -> None:
        self.times: dict[Node, int] = dict.fromkeys(self.inputs, 0)
        self.known: dict[Expr, int] = {}  # when each symbol is known
        self.found: dict[int, list[tuple[Expr, str, Node, int]]] = defaultdict(list)
        self.pieces: dict[int, _Piece] = {}
        self.asked: dict[int, list[Asked]] = defaultdict(list)
        self.written: dict[int, int] = {}
        self.touched: dict[int, int] = {}
        self.made_at: dict[int, int] = {}  # when each memory is first seen, and first written
        self.first: dict[int, int] = {}

    def steps(self) -> Steps | str:
        stuck = set[int]()
        while True:
            self._begin()
            for node in self.inputs:
                self._read(node, 0)
            why = next((w for w in map(self._place, self.graph.nodes) if w is not None), None)
            if why is not None:
                return why
            if not self._sink(stuck):
                self.retained = self._retained()
                return _Assembly(self).steps()

    def _sink(self, stuck: set[int]) -> bool:
        """Whether memory that a later piece writes is to be made there, not in an earlier one.

        stuck: where that would not end, since what it is made from is written there too.
        """
        for memory, first in self.first.items():
            made = self.made_at.get(memory, first)
            if memory in self.outside or memory in stuck or made % 2 or made >= first:
                continue
            if self.sunk.pop(memory, first) != first:
                stuck.add(memory)
            else:
                self.sunk[memory] = first
            return True
        return False

    def _retained(self) -> set[Node]:
        """The backwards behind which autograd goes through a piece again: what one of its results
        has saved is not freed alone."""
        found = [n for n in self.graph.nodes if n.target in TAKES]
        found.sort(key=self.times.__getitem__)
        returned = [n.meta.get(VAL) for n in self.graph.output_node().all_input_nodes]
        again = any(x.requires_grad for x in tensors_in(returned))
        return set(found if again else found[:-1])

    # ------------------------------------------------------------ when
    def _place(self, node: Node) -> str | None:
        """Decide in which piece a node runs; or why that cannot be said."""
        if node.op in ("placeholder", "output", "get_attr") or node in self.modes.calls:
            return None
        if RELATIONS in node.meta:
            self._ask(node)
            return None
        if is_number(node.meta.get(VAL)) or type(node.meta.get(VAL)) is int:
            if BY_DATA not in node.meta:
                return None  # computed of symbols, where it is needed
        elif is_number_node(node):
            return self._free_number(node)
        time = self._earliest(node)
        if time is None:
            return f"{node.target} takes a size that is not known"
        self.times[node] = time
        self.pieces.setdefault(time, _Piece(time)).nodes.append(node)
        if time % 2:
            self._read(node, time)
        return None

    def _free_number(self, node: Node) -> str | None:
        """A float that the graph computes is computed again in each piece that takes it."""
        read = {m for source in node.all_input_nodes for m in memories_in(source.meta.get(VAL))}
        last, then = _last_use(node), node.next
        while read and then is not last and then is not node.graph._root:
            if not read.isdisjoint(_written(then)):
                return "a number is read of a tensor that is written before it is used"
            then = then.next
        return None

    def _earliest(self, node: Node) -> int | None:
        """The first piece in which everything is there that a node needs."""
        first = node.args[0] if node.args else None
        if node.target is operator.getitem and isinstance(first, Node) and not isinstance(
                first.meta.get(VAL), Tensor):  # fmt: skip
            return self.times[first]  # of several results
        needed = list(_needed(node))
        time = max((self.times[n] for n in needed if n in self.times), default=0)
        for symbol in _symbols(node.args, node.kwargs, self.env):
            if symbol not in self.known:
                return None
            time = max(time, self.known[symbol])
        for memory in _accessed(needed, node):
            time = max(time, self.written.get(memory, 0))
        writes = _writes(node)
        for memory in writes:
            time = max(time, self.touched.get(memory, 0))
        own = memories_in(node.meta.get(VAL))
        time = max(time, *(self.sunk.get(m, 0) for m in own)) if own else time
        if node.target in TAKES:
            time = max(time, *self.written.values(), 0)
        elif not self.borders.isdisjoint(needed):  # autograd stops between two pieces only
            time = max(time, *(self.times[n] // 2 * 2 + 2 for n in needed if n in self.borders))
        time += time % 2 != (BY_DATA in node.meta or node.target in TAKES)
        if node.target in TAKES:  # what the forward has saved may be any memory so far
            self.touched = {m: max(time, t) for m, t in self.touched.items()}
        for memory in own:
            self.made_at.setdefault(memory, time)
        for memory in writes:
            self.first.setdefault(memory, time)
        for memory in _accessed(needed, node):
            self.touched[memory] = max(time, self.touched.get(memory, 0))
        self.written.update(dict.fromkeys(writes, time))
        return time

    def _ask(self, node: Node) -> None:
        relations = node.meta[RELATIONS]
        symbols = {s for r in relations for s in symbols_of(r.expr)}
        time = max((self.known.get(s, 0) for s in symbols), default=0)
        message = str(node.args[0]) if node.target is conditions.check else None
        self.asked[time].append(Asked(relations, message))

    # ------------------------------------------------------------ what is known when
    def _read(self, node: Node, time: int) -> None:
        """The symbols that a value tells."""
        value = node.meta.get(VAL)
        if is_number(value):
            self._note(node_of(value), "number", node, 0, time)
        if isinstance(value, Tensor) and value._has_symbolic_sizes_strides:
            for kind, numbers in (("size", value.shape), ("stride", value.stride())):
                for dim, n in enumerate(numbers):
                    self._note(node_of(n), kind, node, dim, time)

    def _note(self, number: Any, kind: str, node: Node, dim: int, time: int) -> None:
        e = None if number is None else number.value
        if isinstance(e, Sym) and e not in self.known:
            self.known[e] = time
            self.found[time].append((e, kind, node, dim))


def _differentiated(node: Node) -> Iterator[Node]:
    """What the graph has computed of that for which a backward takes gradients."""
    for n in node.args[1 if node.target is GRAD else 2]:  # type: ignore[union-attr]
        if isinstance(n, Node) and n.op.startswith("call"):
            yield n


def _last_use(number: Node) -> Node:
    """The last node that takes a number, or one that is computed of it."""
    order = {n: i for i, n in enumerate(number.graph.nodes)}
    last, todo = number, [number]
    while todo:
        for user in todo.pop().users:
            if is_number_node(user) and user.op.startswith("call"):
                todo.append(user)
            last = max(last, user, key=order.__getitem__)
    return last


def _needed(node: Node) -> Iterator[Node]:
    """The nodes whose values an operator takes; of numbers that are computed, what these take."""
    for n in node.all_input_nodes:
        value = n.meta.get(VAL)
        if is_number(value) or type(value) is int:
            continue
        if is_number_node(n) and n.op.startswith("call"):
            yield from _needed(n)
        else:
            yield n


def _writes(node: Node) -> tuple[int, ...]:
    draws = (_GENERATOR,) if DRAWS in node.meta else ()
    return (*_written(node), *draws)


def _written(node: Node) -> list[int]:
    """The memory that an operator writes."""
    inputs = node.all_input_nodes
    return [m for i in node.meta.get(WRITES, ()) for m in memories_in(inputs[i].meta.get(VAL))]


def _accessed(needed: Sequence[Node], node: Node) -> set[int]:
    """The memory that a node reads or writes."""
    read = (m for n in (*needed, node) for m in memories_in(n.meta.get(VAL)))
    return {*read, *_writes(node)}


def _symbols(args: Any, kwargs: Any, env: SizeEnv) -> set[Expr]:
    """The symbols in the numbers among arguments."""
    found: set[Expr] = set()
    for n in _numbers((args, tuple(kwargs.values()))):
        value = n.meta.get(VAL)
        number = node_of(value)
        if number is not None:
            value = env.simplify(number.value) if isinstance(number.value, Expr) else number.value
            found |= symbols_of(value)
    return found


def _numbers(x: Any) -> Iterator[Node]:
    if isinstance(x, Node):
        if is_number(x.meta.get(VAL)):
            yield x
    elif isinstance(x, slice):
        yield from _numbers((x.start, x.stop, x.step))
    elif isinstance(x, tuple | list):
        for item in x:
            yield from _numbers(item)
    elif isinstance(x, dict):
        yield from _numbers(tuple(x.values()))


class _Assembly:
    """Builds the steps of a graph whose nodes have their times."""

    def __init__(self, cut: _Cut) -> None:
        self.cut = cut
        self.places: dict[Node, int] = {n: i for i, n in enumerate(cut.inputs)}
        self.count = len(cut.inputs)  # of places
        self.order = [cut.pieces[t] for t in sorted(cut.pieces)]
        (returned,) = cut.graph.output_node().args
        assert isinstance(returned, tuple | list)
        self.returned = [n for n in returned if isinstance(n, Node)]
        self.read_later: dict[Node, int] = dict.fromkeys(self.returned, len(self.order))
        for at, piece in enumerate(self.order):
            for node in piece.nodes:
                for n in _needed(node):
                    self.read_later[n] = max(at, self.read_later.get(n, 0))

    def steps(self) -> Steps | str:
        found = self._found(0)
        made = [self._step(at, piece) for at, piece in enumerate(self.order)]
        if any(n not in self.places for n in self.returned):
            return "an output is no tensor"
        outputs = tuple(self.places[n] for n in self.returned)
        return Steps(tuple(made), found, self.count, outputs)

    def _found(self, time: int) -> tuple[Found, ...]:
        return tuple(Found(e, kind, self.places[n], dim)
                     for e, kind, n, dim in self.cut.found[time])  # fmt: skip

    def _step(self, at: int, piece: _Piece) -> Step:
        told = {n for _, _, n, _ in self.cut.found[piece.time]} if piece.makes else set()
        gives = [n for n in piece.nodes if n in told or self._is_read(n, at)]
        again, plain = self._written(at, piece)
        writer = _PieceWriter(self.cut, piece, again)
        graph, takes = writer.graph_of([*gives, *again])
        places = tuple(t if isinstance(t, Expr) else self.places[t] for t in takes)
        old = [self.places[n] for n in again]
        for n in (*gives, *again):
            self.places[n] = self.count
            self.count += 1
        last = {n: self.read_later.get(n, -1) for n in self.places}
        unread = [self.places[n] for n, t in last.items() if t == at or (t < at and n in gives)]
        drops = (*unread, *old)
        layouts = tuple(self._layout(n) for n in gives) if piece.makes else ()
        given = tuple(self.places[n] for n in (*gives, *again))
        return Step(graph, piece.makes or plain, places, given,
                    self._found(piece.time) if piece.makes else (),
                    tuple(self.cut.asked[piece.time]) if piece.makes else (),
                    tuple(x for x in layouts if x is not None), drops,
                    causes_of(piece.nodes))  # fmt: skip

    def _is_read(self, node: Node, at: int) -> bool:
        """Whether a tensor is read behind a step."""
        return self.read_later.get(node, -1) > at and isinstance(node.meta.get(VAL), Tensor)

    def _written(self, at: int, piece: _Piece) -> tuple[list[Node], bool]:
        """What comes into a piece and is written there: which of it the piece takes a copy of, to
        give it in the place of the former; whether the piece has to run as it is."""
        if piece.makes:
            return [], False
        members = set(piece.nodes)
        written = {m for n in piece.nodes for m in _written(n)}
        again = list[Node]()
        for memory in written:
            holders = [n for n in self.places if n not in members
                       and memory in memories_in(n.meta.get(VAL))]  # fmt: skip
            live = [n for n in holders if self.read_later.get(n, -1) >= at]
            if len(live) == 1 and memory not in self.cut.outside:
                again += live
            elif live and any(_records(n) for n in (*live, *piece.nodes)) and not (
                    len(live) == 1 and all(self._is_unseen(n, memory) for n in piece.nodes)):
                return [], True
        return again, False

    def _is_unseen(self, node: Node, memory: int) -> bool:
        """Whether autograd sees no write of a node's to some memory."""
        state = self.cut.modes.of[node]
        quiet = any(s.target in GRAD_SETTERS and not s.value for s in state.sets)
        return quiet or memory not in _written(node)

    def _layout(self, node: Node) -> tuple[int, tuple[Expr, ...], tuple[Expr, ...]] | None:
        x = node.meta[VAL]
        if not isinstance(x, Tensor):
            return None
        sizes, strides = (tuple(map(expr_of, n)) for n in (x.shape, x.stride()))
        return self.places[node], sizes, strides


def _twin(fake: FakeTensor) -> Tensor:
    """A fake like this one, in memory of its own."""
    with torch.no_grad(), fake.fake_mode:
        twin = fake.detach().clone()
    return twin.requires_grad_() if fake.requires_grad else twin


def _records(node: Node) -> bool:
    """Whether autograd records what is done with a result."""
    return any(x.requires_grad for x in tensors_in(node.meta.get(VAL)))


class _PieceWriter:
    """Writes the graph of one piece. again: tensors of which it takes a copy, that it may write."""

    def __init__(self, cut: _Cut, piece: _Piece, again: Sequence[Node] = ()) -> None:
        self.again = again
        self.cut = cut
        self.piece = piece
        self.graph = Graph()
        self.copies: dict[Node, Node] = {}
        self.takes: list[Node | Expr] = []
        self.members = set(piece.nodes)
        self.told = {e: (kind, n, dim) for e, kind, n, dim in cut.found[piece.time]
                     if piece.makes and n in self.members}  # fmt: skip
        self.writer = SizeWriter(cut.env, self.graph, self._symbol, {})

    def graph_of(self, gives: list[Node]) -> tuple[Graph, list[Node | Expr]]:
        """The graph, and what its placeholders are."""
        for node in self.piece.nodes:
            for n in _needed(node):
                if n not in self.members and n not in self.copies and n.op != "get_attr":
                    self._placeholder(n)
        if not self.piece.makes:
            self._take_symbols()
        for node in self.again:
            made = self.graph.call_method("clone", (self.copies[node],))
            made.meta = {**node.meta, VAL: _twin(node.meta[VAL])}
            self.copies[node] = made
        mode = Mode(self.graph, self.cut.modes.setters)
        for node in self.piece.nodes:
            mode.become(self.cut.modes.of[node])
            self._copy(node)
        mode.leave()
        self.graph.output(tuple(self.copies[n] for n in gives))
        return self.graph, self.takes

    def _placeholder(self, node: Node) -> None:
        made = self.graph.placeholder(node.name)
        made.meta = dict(node.meta)
        self.copies[node] = made
        self.takes.append(node)

    def _copy(self, node: Node) -> Node:
        args, kwargs = self._given(node.args), self._given(node.kwargs)
        if node.target in TAKES and node in self.cut.retained:
            kwargs = {**kwargs, "retain_graph": True}
        made = self.graph.create_node(node.op, node.target)
        made.args, made.kwargs = args, kwargs
        made.meta = dict(node.meta)
        self.copies[node] = made
        return made

    def _given(self, x: Any) -> Any:
        """Arguments with the nodes of this graph."""
        if isinstance(x, Node):
            return self._node(x)
        if isinstance(x, slice):
            return slice(*map(self._given, (x.start, x.stop, x.step)))
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            return type(x)(*map(self._given, x))
        if isinstance(x, tuple | list):
            return type(x)(map(self._given, x))
        if isinstance(x, dict):
            return {k: self._given(v) for k, v in x.items()}
        return x

    def _node(self, x: Node) -> Any:
        if x in self.copies:
            return self.copies[x]
        value = x.meta.get(VAL)
        if is_number(value):
            number = node_of(value)
            assert number is not None
            return self.writer.write(number.value)
        if type(value) is int and x.op.startswith("call"):
            return value
        if x.op == "placeholder":  # a Python number that changes
            with self._in_front():
                self._placeholder(x)
            return self.copies[x]
        return self._copy(x)  # a number that is computed again, or an attribute of the module

    # ------------------------------------------------------------ symbols
    def _symbol(self, e: Expr) -> Node:
        if e in self.told:
            kind, node, dim = self.told[e]
            if kind == "number":
                return self.copies[node]
            made = self.graph.call_function(_SIZE, (self.copies[node], dim))
            made.meta[VAL] = symbolic(self.cut.env, e)
            return made
        return self._taken(e)

    def _taken(self, e: Expr) -> Node:
        """A placeholder for a symbol, in front of everything else but other placeholders."""
        with self._in_front():
            made = self.graph.placeholder(e.text())
        made.meta[VAL] = symbolic(self.cut.env, e)
        self.takes.append(e)
        return made

    def _in_front(self) -> AbstractContextManager[Any]:
        """Where new nodes go behind the placeholders, in front of all else."""
        last = [n for n in self.graph.nodes if n.op == "placeholder"][-1:]
        if last:
            return self.graph.inserting_after(last[0])
        return self.graph.inserting_before(next(iter(self.graph.nodes), None))

    def _take_symbols(self) -> None:
        """Placeholders for the symbols in the piece that no size of its inputs tells."""
        env = self.cut.env
        given = [n for x in self.copies for n in _plain_numbers(x.meta[VAL])]
        told = {env.symbol_of(expr_of(n)) for n in given}
        used: set[Expr] = {s for n in given for s in symbols_of(env.simplify(expr_of(n)))}
        for node in self.piece.nodes:
            used |= _symbols(node.args, node.kwargs, env)
            for x in tensors_in(node.meta.get(VAL)):
                for n in _plain_numbers(x):
                    used |= symbols_of(env.simplify(expr_of(n)))
        for e in sorted(used - told, key=Expr.text):
            if e in self.cut.known:
                self.writer.nodes[e] = self._taken(e)


def _plain_numbers(x: Any) -> Iterable[Any]:
    """The numbers that a tensor looks like."""
    if not isinstance(x, Tensor):
        return ()
    return (*x.shape, *x.stride())
