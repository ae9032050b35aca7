"""Calls that name a GPU without a number depend on the current device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx import Graph

from torchweld.capture.interp import _on_current_device


@pytest.mark.parametrize(("target", "args", "kwargs", "depends"), [
    ("cuda", (), {}, True), ("cuda", (1,), {}, False), ("to", ("cuda",), {}, True),
    ("to", ("cuda:1",), {}, False), ("to", (torch.device("cuda"),), {}, True),
    ("to", (torch.device("cuda", 1),), {}, False), ("new_ones", (3,), {"device": "cuda"}, True),
    ("new_ones", ([3, 4],), {"device": "cpu"}, False),
])  # fmt: skip
def test_which_calls_depend_on_it(target: str, args: Any, kwargs: Any, depends: bool) -> None:
    graph = Graph()
    x = graph.placeholder("x")
    node = graph.call_method(target, (x, *args), kwargs)
    assert _on_current_device(node) is depends
