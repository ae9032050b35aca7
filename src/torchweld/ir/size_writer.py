"""Numbers that are made of sizes as nodes of an FX graph: each symbol and sum once."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch.fx import Graph, Node

from torchweld.ir.conditions import Ratio
from torchweld.ir.expr import Expr, FloorDiv, Int, Mod, Poly, as_expr, from_terms
from torchweld.ir.graph import VAL
from torchweld.ir.size_node import hint_of, symbolic
from torchweld.ir.size_values import Loose
from torchweld.ir.sizes import SizeEnv


class SizeWriter:
    """Writes numbers into one graph.

    symbol: the node of a symbol. nodes: what is written already.
    """

    def __init__(self, env: SizeEnv, graph: Graph, symbol: Callable[[Expr], Any],
                 nodes: dict[Expr, Any]) -> None:  # fmt: skip
        self.env = env
        self.graph = graph
        self.symbol = symbol
        self.nodes = nodes

    def write(self, value: Any) -> Any:
        """A node, or a plain number."""
        match value:
            case Int():
                return value.n
            case Expr():
                return self.exactly(self.env.simplify(value))
            case Ratio():
                return self._op(value, operator.truediv, self.write(value.num), value.den)
            case Loose():
                return self._op(value, value.fn, *(self.write(a) for a in value.args))
        return value

    def exactly(self, e: Expr) -> Any:
        """An expression, in which no symbol is replaced by what is known of it."""
        if isinstance(e, Int):
            return e.n
        known = self.nodes.get(e)
        if known is None:
            known = self.nodes[e] = self._made(e)
        return known

    def _op(self, value: Any, fn: Any, *args: Any) -> Any:
        """The node of a value that is fn(*args)."""
        if not any(isinstance(a, Node) for a in args):
            return fn(*args)
        node = self.graph.call_function(fn, args)
        now = fn(*(hint_of(a.meta[VAL]) if isinstance(a, Node) else a for a in args))
        node.meta[VAL] = symbolic(self.env, value, now)
        return node

    def _made(self, e: Expr) -> Any:
        match e:
            case Poly():
                total, so_far = self._term(*e.terms[0]), from_terms({e.terms[0][1]: e.terms[0][0]})
                for coef, factors in e.terms[1:]:
                    so_far = so_far + from_terms({factors: coef})
                    total = self._op(so_far, operator.add, total, self._term(coef, factors))
                return total
            case FloorDiv():
                return self._op(e, operator.floordiv, self.exactly(e.num), self.exactly(e.den))
            case Mod():
                return self._op(e, operator.mod, self.exactly(e.num), self.exactly(e.den))
        return self.symbol(e)

    def _term(self, coef: int, factors: tuple[Expr, ...]) -> Any:
        part: Any = None if coef == 1 and factors else coef
        product = as_expr(coef)
        for f in factors:
            product = product * f
            node = self.exactly(f)
            part = node if part is None else self._op(product, operator.mul, part, node)
        return part
