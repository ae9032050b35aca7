"""Sizes and numbers that only the data decides, while a frame is captured.

The operator that makes one is in the graph, and what it makes is a symbol of which nothing is known
but facts: what the operator promises, and what `torch._check` says. A question of the frame's that
they do not answer ends the graph. What an operator asks for itself is supposed to have the usual
answer; the graph asks when it runs, and the frame runs eagerly where it has another (ADR 0028).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from torchweld.base.loc import NOWHERE, Loc
from torchweld.capture.state import refuse
from torchweld.capture.values.base import TensorValue, Value
from torchweld.ir.conditions import Condition, Junction, Relation, fact_of
from torchweld.ir.expr import Expr, Sym, atoms
from torchweld.ir.graph import VAL, cause_of
from torchweld.ir.size_makers import SizeMaker
from torchweld.ir.sizes import SizeEnv

_SIZE = torch.ops.aten.sym_size.int


@dataclass(frozen=True, slots=True)
class Made:
    """Where a symbol is found when the graph has run: the size of a tensor in dimension `dim`, or
    the number that it holds at `place`, which is `node` in the graph."""

    tensor: TensorValue
    dim: int = 0
    place: tuple[int, ...] = ()
    node: Node | None = None

    def read(self, graph: Graph, value: Any) -> Node:
        """The symbol as a node of the graph."""
        if self.node is not None:
            return self.node
        made = graph.call_function(_SIZE, (self.tensor.node, self.dim))
        made.meta[VAL] = value
        return made

    def text(self) -> str:
        """What the symbol is called."""
        cause = cause_of(self.node or self.tensor.node).brief()
        return cause if self.node is not None else f"size of {cause}"


@dataclass(frozen=True, slots=True)
class Computed:
    """Where a symbol is found that is fn(*args) of numbers, others among them: `node` in the graph.

    args: expressions and ints.
    """

    node: Node
    fn: Callable[..., int]
    args: tuple[object, ...]

    def read(self, graph: Graph, value: Any) -> Node:
        return self.node

    def text(self) -> str:
        return cause_of(self.node).brief()


class DataSizes:
    """The symbols of one capture. found: where each is. supposed: what operators relied on.

    checks: how many checks of the user's are in the graph. failing: on each device, how many of the
    tests came out so that the frame raises, see `functions.checks.expect`.
    """

    def __init__(self, env: SizeEnv, supposes: bool) -> None:
        self.env = env
        self.maker = SizeMaker(env)
        self.found: dict[Expr, Made | Computed] = {}
        self.supposed: list[tuple[Relation, Loc]] = []
        self.checks = 0
        self.failing: dict[torch.device, tuple[TensorValue, Loc]] = {}
        # what a mask chooses, by the id of its fake and its version
        self.places: dict[tuple[int, int | None], list[Value]] = {}
        self.supposes = supposes
        self._in_operator = 0
        env.asked = self._asked

    def _asked(self, relation: Relation) -> None:
        """Errors: GraphBreak W102 for a question of the frame's."""
        if not self._in_operator or not self.supposes:
            asked = fact_of(relation, NOWHERE).text(self.names())
            why = f"{asked} is asked, which only the data decides"
            raise refuse("W102", why, self.env.where())
        self.supposed.append((relation, self.env.where()))

    def names(self) -> dict[Expr, str]:
        """What the symbols are called: `item (model.py:12)`, `size of nonzero (model.py:12)`."""
        return {symbol: made.text() for symbol, made in self.found.items()}

    @property
    def asks(self) -> bool:
        """Whether the graph asks for something when it runs."""
        return bool(self.supposed or self.failing) or self.checks > 0

    @contextmanager
    def in_operator(self) -> Iterator[None]:
        """What is asked meanwhile, an operator asks for itself."""
        self._in_operator += 1
        try:
            yield
        finally:
            self._in_operator -= 1

    def find(self, tensors: list[TensorValue], first: int) -> bool:
        """Where the symbols are that were made after the first ones; False if one is in no size of
        these tensors, though something depends on it."""
        wanted = self.maker.made[first:]
        for x in tensors:
            for dim, n in enumerate(x.fake.shape):
                e = getattr(getattr(n, "node", None), "value", None)
                if isinstance(e, Sym) and e in wanted and e not in self.found:
                    self.found[e] = Made(x, dim)
        lost = {s for s in wanted if s not in self.found}
        return not any(self._depends(x.fake, lost) for x in tensors) if lost else True

    def _depends(self, fake: torch.Tensor, symbols: set[Sym]) -> bool:
        numbers = (*fake.shape, *fake.stride(), fake.storage_offset())
        held = (getattr(getattr(n, "node", None), "value", None) for n in numbers)
        return any(isinstance(e, Expr) and not symbols.isdisjoint(atoms(e)) for e in held)


def relations_of(c: Condition) -> list[Relation] | None:
    """The relations that together are a condition; None if it is another kind."""
    if isinstance(c, Relation):
        return [c]
    if isinstance(c, Junction) and c.every and all(isinstance(p, Relation) for p in c.parts):
        return [p for p in c.parts if isinstance(p, Relation)]
    return None
