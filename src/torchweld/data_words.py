"""What is said of a graph in which the data decides sizes: its pieces, and what is relied on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor
from torch.fx import Graph, Node

from torchweld.base.loc import NOWHERE
from torchweld.capture.modes import SETTERS, STEPS
from torchweld.graph.cut import cut
from torchweld.graph.symbols import sizes_of
from torchweld.ir import conditions
from torchweld.ir.conditions import fact_of
from torchweld.ir.expr import Expr, Sym
from torchweld.ir.graph import BY_DATA, LOC, RELATIONS, VAL, cause_of
from torchweld.ir.nested import tensors_in
from torchweld.ir.size_node import is_number, node_of
from torchweld.ir.steps import Steps


def pieces_of(graph: Graph) -> Steps | str | None:
    """A graph in steps, or why it runs as it is; None if the data decides none of its sizes."""
    if not any(BY_DATA in n.meta for n in graph.nodes):
        return None
    return cut(graph, SETTERS, frozenset(STEPS))


def piece_lines(graph: Graph) -> Iterator[str]:
    """The pieces and where they are cut; what is checked and what is supposed of these sizes."""
    steps = pieces_of(graph)
    if steps is None:
        return
    if isinstance(steps, str):
        yield f"runs as it is, though the data decides sizes: {steps}"
        return
    yield f"{steps.compiled} piece{'s' * (steps.compiled != 1)}: {cut_words(steps)}"
    names = names_in(graph)
    for target, said in _SAID.items():
        facts = [fact for n in graph.nodes if n.target is target for fact in _facts(n, names)]
        if facts:
            yield said
            yield from (f"  {fact}" for fact in facts)


def cut_words(steps: Steps) -> str:
    """`cut at model.py:12 nonzero (a size that only the data decides)`."""
    said = [", ".join(c.text() for c in gap) for gap in steps.gaps]
    causes = [c for gap in steps.gaps for c in gap]
    what = "sizes" if sum(c.makes for c in causes) > 1 else "a size"
    behind = ", and gradients behind it" * any(not c.makes for c in causes)
    return f"cut at {'; then at '.join(said)} ({what} that only the data decides{behind})"


_SAID = {conditions.check: "checked, as torch._check says",
         conditions.suppose: "supposed; where it does not hold, the call runs eagerly"}  # fmt: skip


def _facts(node: Node, names: Mapping[Expr, str]) -> Iterator[str]:
    at = node.meta.get(LOC, NOWHERE)
    for relation in node.meta[RELATIONS]:
        said = fact_of(relation, at).text(names)
        yield said if at is NOWHERE else f"{said}  for {at.text()}"


def names_in(graph: Graph) -> dict[Expr, str]:
    """What the symbols of a graph are called: `x.shape[0]`, `size of nonzero (model.py:12)`."""
    places = graph.find_nodes(op="placeholder")
    shown = {"size": "{0}.shape[{1}]", "stride": "{0}.stride({1})"}
    names: dict[Expr, str] = {
        row.symbol: shown.get(row.kind, "{0}").format(places[row.input].name, row.dim)
        for row in sizes_of(graph)
    }
    for node in graph.nodes:
        if BY_DATA in node.meta:
            for symbol, what in _made_by(node):
                names.setdefault(symbol, what)
    return names


def _made_by(node: Node) -> Iterator[tuple[Sym, str]]:
    """The symbols that an operator makes, and what to call them."""
    value, cause = node.meta.get(VAL), cause_of(node).brief()
    if is_number(value):
        number = node_of(value)
        if number is not None and isinstance(number.value, Sym):
            yield number.value, cause
    for x in tensors_in(value, Tensor):
        for n in x.shape:
            held = node_of(n)
            if held is not None and isinstance(held.value, Sym):
                yield held.value, f"size of {cause}"
