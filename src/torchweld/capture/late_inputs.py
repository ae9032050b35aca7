"""Late numbers of a captured graph as 0-d tensors, for backends that compile tensors only."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node

from torchweld.capture.module import CapturedModule
from torchweld.ir.graph import VAL

_DTYPES: dict[type, torch.dtype] = {int: torch.int64, float: torch.float64}
# a 0-d tensor is promoted and rounded as a number is, if the other operand has one of these dtypes
_EXACT = (torch.float32, torch.float64)
_ARITHMETIC = frozenset((
    operator.add, operator.sub, operator.mul, operator.truediv, operator.iadd, operator.isub,
    operator.imul, operator.itruediv, torch.add, torch.sub, torch.mul, torch.div,
    "add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_",
))  # fmt: skip


def number_places(gm: GraphModule) -> list[int]:
    """The positions of the placeholders that are Python numbers."""
    places = [n for n in gm.graph.nodes if n.op == "placeholder"]
    return [i for i, n in enumerate(places) if type(n.meta[VAL]) in _DTYPES]


def numbers_as_tensors(gm: GraphModule) -> GraphModule | None:
    """The graph with 0-d tensors in the place of numbers; None if that may change a result."""
    places = [n for n in gm.graph.nodes if n.op == "placeholder"]
    fakes = [n.meta[VAL] for n in places if isinstance(n.meta[VAL], FakeTensor)]
    mode = fakes[0].fake_mode if fakes else None
    numbers = [places[i] for i in number_places(gm)]
    if mode is None or not all(_is_exact(user, n) for n in numbers for user in n.users):
        return None
    graph = copy.deepcopy(gm.graph)
    made = CapturedModule(gm, graph)
    for old, new in zip(gm.graph.nodes, graph.nodes, strict=True):
        new.meta = dict(old.meta)
        if old in numbers:
            with mode:
                new.meta[VAL] = torch.empty((), dtype=_DTYPES[type(old.meta[VAL])])
    return made


def _is_exact(user: Node, number: Node) -> bool:
    if user.target not in _ARITHMETIC or user.kwargs or len(user.args) != 2:
        return False
    others = [a for a in user.args if a is not number]
    if len(others) != 1 or not isinstance(others[0], Node):
        return False
    value = others[0].meta.get(VAL)
    return isinstance(value, torch.Tensor) and value.dtype in _EXACT and value.dim() > 0


def with_tensors(call: Callable[..., Any], places: list[int]) -> Callable[..., Any]:
    """`call`, given numbers at these places, which become 0-d tensors."""

    def run(*args: Any) -> Any:
        given = list(args)
        for i in places:
            given[i] = torch.tensor(given[i], dtype=_DTYPES[type(given[i])])
        return call(*given)

    return run
