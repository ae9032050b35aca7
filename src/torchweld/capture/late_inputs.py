"""Late numbers of a captured graph as 0-d tensors, for backends that compile tensors only."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from torchweld.capture.module import CapturedModule
from torchweld.ir.fake import FakeMode
from torchweld.ir.graph import NUMBER, VAL
from torchweld.ir.size_node import is_number, plain

_DTYPES: dict[type, torch.dtype] = {int: torch.int64, float: torch.float64}


def number_places(gm: GraphModule) -> list[int]:
    """The positions of the placeholders that are Python numbers."""
    places = [n for n in gm.graph.nodes if n.op == "placeholder"]
    return [i for i, n in enumerate(places) if type(n.meta[VAL]) in _DTYPES]


def settle_numbers(gm: GraphModule) -> None:
    """Write numbers that turned out to have one value as constants where the graph takes them."""
    for place in gm.graph.find_nodes(op="placeholder"):
        value = plain(place.meta[VAL]) if is_number(place.meta[VAL]) else None
        if type(value) is int:
            place.meta[VAL] = value
            for user in list(place.users):
                user.args = _with(user.args, place, value)
                user.kwargs = _with(user.kwargs, place, value)


def _with(args: Any, place: Node, value: int) -> Any:
    return map_arg(args, lambda n: value if n is place else n)


def numbers_as_tensors(gm: GraphModule) -> GraphModule:
    """The graph with placeholders of 0-d tensors, which act as numbers, in the place of numbers."""
    places = [n for n in gm.graph.nodes if n.op == "placeholder"]
    fakes = [n.meta[VAL] for n in places if isinstance(n.meta[VAL], FakeTensor)]
    mode = fakes[0].fake_mode if fakes else FakeMode()
    numbers = {places[i] for i in number_places(gm)}
    graph = copy.deepcopy(gm.graph)
    made = CapturedModule(gm, graph)
    for old, new in zip(gm.graph.nodes, graph.nodes, strict=True):
        new.meta = dict(old.meta)
        if old in numbers:
            with mode:
                new.meta[VAL] = torch.empty((), dtype=_DTYPES[type(old.meta[VAL])])
            new.meta[NUMBER] = True
    return made


def with_tensors(call: Callable[..., Any], places: list[int]) -> Callable[..., Any]:
    """`call`, given numbers at these places, which become 0-d tensors."""

    def run(*args: Any) -> Any:
        given = list(args)
        for i in places:
            given[i] = torch.tensor(given[i], dtype=_DTYPES[type(given[i])], device="cpu")
        return call(*given)

    return run
