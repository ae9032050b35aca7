"""FX conventions between capture, graph and lower."""

from __future__ import annotations

import linecache
import operator
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch.fx import Graph, GraphModule, Node, graph_module

from torchweld.base.loc import NOWHERE, Loc
from torchweld.ir.expr import Sym
from torchweld.ir.sizes import Size
from torchweld.ir.takes import TAKES

VAL = "val"  # node.meta[VAL]: the FakeTensor (or tuple of them) that the node produces
ASKED = "asked"  # gm.meta: a set, to get the names of numbers whose values operators need to know
NUMBER = "number"  # node.meta: whether a placeholder stands for a Python number
LOC = "loc"  # node.meta[LOC]: base.loc.Loc of the user line
ORIGIN = "origin"  # node.meta[ORIGIN]: name of the captured node it came from
KEEP = "keep"  # node.meta[KEEP]: True if the program asks to keep it and not to compute it again
AGAIN = "again"  # node.meta[AGAIN]: True if the program asks to compute it again, not to keep it
OWNED = "owned"  # node.meta[OWNED]: True for a placeholder that is a module's parameter or buffer
DRAWN = "drawn"  # node.meta[DRAWN]: True for a placeholder of a tensor that is drawn in each call
NAMED = "named"  # what a node is called where it makes a size, if not by its operator
BY_DATA = "by_data"  # node.meta[BY_DATA]: True if the data decides a size of what it makes
RELATIONS = "relations"  # node.meta[RELATIONS]: what an asking node asks (ir/conditions.py)
WRITES = "writes"  # node.meta[WRITES]: which of its `all_input_nodes` are of memory that it writes
DRAWS = "draws"  # node.meta[DRAWS]: True if it draws random numbers
KEPT = "kept"  # graph_module.meta[KEPT]: True while compiled code uses the graph itself
ENDED = "ended"  # graph_module.meta[ENDED]: True when nobody else does any more
SETTINGS = "torchweld"  # graph_module.meta[SETTINGS]: GraphSettings


@dataclass(frozen=True, slots=True)
class GraphSettings:
    """How a captured graph is to be compiled.

    freeze: parameters and buffers never change in place, as somebody has promised.
    cuda_graphs: True wherever possible, False never, None where they pay.
    memory_budget: the share that may be saved for the backward of what is fastest to save.
    fixed_sizes: choices of sizes that may be compiled for themselves, None: as configured.
    """

    freeze: bool = False
    cuda_graphs: bool | None = None
    memory_budget: float = 1.0
    fixed_sizes: int | None = None


@dataclass(frozen=True, slots=True)
class GraphPair:
    """A functional ATen graph, and how its outputs map back to the captured graph's.

    forward: placeholders in the captured graph's input order; call_function nodes are OpOverloads
        without mutation and without aliasing outputs other than views; output node is the tuple
        (*updated inputs, *outputs).
    mutated: input positions whose new values come first among the outputs, in this order: the
        value must be copied into that input.
    aliases: for each real output, the input position that it is an alias of (same object or view),
        or None. An aliasing output's node is a chain of views of the (updated) input.
    sizes: where each symbol is read that a size or argument in the graph is made of (ir/sizes.py);
        its numbers are our torch.SymInts then. Empty if all of them are plain.
    """

    forward: Graph
    mutated: tuple[int, ...]
    aliases: tuple[int | None, ...]
    sizes: tuple[Size, ...] = ()


@dataclass(frozen=True, slots=True)
class Returned:
    """How an output of the captured graph is made where gradients are required.

    place: of a result, or of an input if `of_input`. views: the operators that lead from there to
    the output, each with its arguments behind the first. requires_grad: whether the output does.
    """

    place: int
    of_input: bool
    views: tuple[tuple[Any, tuple[Any, ...], dict[str, Any]], ...]
    requires_grad: bool


@dataclass(frozen=True, slots=True)
class Joint:
    """A graph that needs gradients: its forward graph, and what backward graphs are cut from.

    forward: its outputs are the results, then `saved`.
    graph: forward and backward operators in one graph. Placeholders are the inputs, and somewhere
        `tangents`; the output node is (updated inputs, results, gradients), three tuples.
    tangents: per result its gradient's placeholder, None where no gradient flows.
    gradients: positions of the inputs that some result's gradient flows to, as the graph returns
        their gradients.
    unreached: positions of the other inputs that require grad.
    kept_inputs, kept_results: positions of what eager's autograd keeps; backward graphs read these
        as they are, and nobody may change them before.
    saved: nodes of `graph`: what backward graphs read besides.
    returned: one for each output of the captured graph.
    bases: per result, the captured output that it is, or (if the flag is set) is the base of.
    draws: whether the forward graph draws random numbers.
    reread: positions of changed inputs whose old values results or gradients depend on.
    """

    forward: GraphPair
    graph: Graph
    tangents: tuple[Node | None, ...]
    gradients: tuple[int, ...]
    kept_inputs: tuple[int, ...]
    kept_results: tuple[int, ...]
    saved: tuple[Node, ...]
    returned: tuple[Returned, ...]
    bases: tuple[tuple[int, bool], ...]
    draws: bool
    reread: tuple[int, ...] = ()
    unreached: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Backward:
    """The backward graph for gradients of certain results.

    pair: its inputs are the kept inputs, kept results and saved values, then the given tangents,
        then `numbers`.
    gradients: for each of the Joint's, which output of `pair` it is, or None.
    numbers: the symbols that no size of its other inputs tells.
    unread: which of the kept inputs and results, in this order, eager's backward does not read for
        these gradients: they may have been changed.
    """

    pair: GraphPair
    gradients: tuple[int | None, ...]
    numbers: tuple[Sym, ...] = ()
    unread: frozenset[int] = frozenset()


def call_node(graph: Graph, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
    """A call at the insertion point. torch warns of symbolic numbers in a new node's arguments."""
    node = graph.create_node("call_function", target)
    node.args, node.kwargs = args, kwargs
    return node


def operator_name(node: Node) -> str:
    """What a node calls, as the user knows it."""
    if isinstance(node.target, str):
        return node.target
    return str(getattr(node.target, "__name__", node.target))


@dataclass(frozen=True, slots=True)
class Cause:
    """An operator that makes sizes, or takes gradients, and the user's line that calls it."""

    name: str
    at: Loc
    makes: bool = True

    def text(self) -> str:
        """`model.py:12 nonzero`."""
        return f"{self.at.file}:{self.at.line} {self.name}"

    def brief(self) -> str:
        """`nonzero (model.py:12)`."""
        where = os.path.basename(self.at.file)
        return self.name if self.at is NOWHERE else f"{self.name} ({where}:{self.at.line})"


def cause_of(node: Node) -> Cause:
    """What makes a size or number that only the data decides, of a node that holds it."""
    first = node.args[0] if node.args else None
    if node.target is operator.getitem and isinstance(first, Node) and BY_DATA in first.meta:
        return cause_of(first)  # one of several
    name = node.meta.get(NAMED) or operator_name(node)
    return Cause(name, node.meta.get(LOC, NOWHERE), node.target not in TAKES)


def causes_of(nodes: Iterable[Node]) -> tuple[Cause, ...]:
    """What makes such sizes among these nodes, or takes gradients of what depends on them."""
    cuts = (n for n in nodes if BY_DATA in n.meta or n.target in TAKES)
    return tuple(dict.fromkeys(map(cause_of, cuts)))


def dismantle(gm: GraphModule) -> None:
    """Take a graph apart that nobody needs any more: its nodes refer to one another, and with them
    everything in their metadata would wait for the garbage collector. The text of its code, which
    torch.fx keeps for tracebacks for ever, is dropped as well."""
    name = type(gm).forward.__code__.co_filename
    if graph_module._loader.eval_cache.pop(name, None) is not None:
        linecache.cache.pop(name, None)
    graph = gm.graph
    gm.__dict__.clear()
    take_apart(graph)


def take_apart(graph: Graph) -> None:
    """Cut the references between a graph's nodes, when nobody needs it any more."""
    for node in reversed(graph.nodes):
        graph.erase_node(node)
        node.meta.clear()
    graph.__dict__.clear()


def end(gm: GraphModule) -> None:
    """Nobody needs the graph any more, but perhaps compiled code: take it apart then, or now."""
    gm.meta[ENDED] = True
    if not gm.meta.get(KEPT):
        dismantle(gm)


def let_go(gm: GraphModule) -> None:
    """Compiled code does not need the graph any more."""
    gm.meta[KEPT] = False
    if gm.meta.get(ENDED):
        dismantle(gm)
