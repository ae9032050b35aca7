"""Sizes at the border: torch's numbers, plain or symbolic, as Exprs, and where symbols are read.

A symbol becomes a SizeSym, which knows the bounds that capture found and its value then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch.fx import Node

from torchweld.base.errors import LoweringError
from torchweld.ir.expr import Expr, SizeSym, Sym, as_expr, rewrite
from torchweld.ir.graph import VAL, GraphPair
from torchweld.ir.loop import Reading
from torchweld.ir.size_node import node_of
from torchweld.ir.sizes import SizeEnv

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def size(n: object) -> Expr:
    """A size or an integer argument. Errors: LoweringError W204 for a symbol that is not ours."""
    if isinstance(n, Expr):
        return n
    if isinstance(n, int):
        return as_expr(n)
    node = node_of(n)
    if node is None or not isinstance(node.value, Expr):
        raise LoweringError("W204", f"number {n} is symbolic")
    return expr_in(node.env, node.value)


def expr_in(env: SizeEnv, e: Expr) -> Expr:
    """An expression of capture's over the symbols of the LoopGraph."""
    return rewrite(env.simplify(e), lambda x: _symbol(env, x))


def _symbol(env: SizeEnv, e: Expr) -> Expr | None:
    if not isinstance(e, Sym):
        return None
    known = env.bounds.get(e)
    lo, hi = (e.smin, e.smax) if known is None else (known.lo, known.hi)
    # loops of kernels have names that begin with s
    return SizeSym.make(f"n{e.name.lstrip('su')}", lo, hi, env.hints[e])


def readings(pair: GraphPair) -> tuple[tuple[SizeSym, ...], tuple[Reading, ...]]:
    """The symbols of a graph, and where a call finds each; those that others give left out."""
    env = next(_envs(pair), None) if pair.sizes else None
    found: dict[SizeSym, Reading] = {}
    if env is None:
        return (), ()
    for row in pair.sizes:
        gone = row.symbol in env.known_as and row.symbol not in env.residues
        symbol = None if gone else _symbol(env, row.symbol)
        if isinstance(symbol, SizeSym):
            found.setdefault(symbol, Reading(row.kind, row.input, row.dim))
    return tuple(found), tuple(found.values())


def _envs(pair: GraphPair) -> Iterator[SizeEnv]:
    for node in pair.forward.nodes:
        for n in _numbers((node.meta.get(VAL), node.args, tuple(node.kwargs.values()))):
            held = node_of(n)
            if held is not None:
                yield held.env


def _numbers(x: object) -> Iterator[object]:
    """The symbolic numbers in arguments and in the metadata of tensors."""
    if isinstance(x, torch.Tensor) and x.layout is torch.strided:
        if x._has_symbolic_sizes_strides:
            yield from _numbers((*x.shape, *x.stride(), x.storage_offset()))
    elif isinstance(x, tuple | list):
        for item in x:
            yield from _numbers(item)
    elif isinstance(x, SYMBOLIC):
        yield x


def is_symbolic(node: Node) -> bool:
    """Whether sizes or arguments of an operator are not known."""
    around: Iterable[object] = (n.meta.get(VAL) for n in node.all_input_nodes)
    mine = (node.meta.get(VAL), node.args, tuple(node.kwargs.values()), tuple(around))
    return next(_numbers(mine), None) is not None
