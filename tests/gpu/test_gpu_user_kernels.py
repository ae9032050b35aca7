"""Triton kernels that the user wrote, on a GPU: launched between the kernels of the graph."""

from __future__ import annotations

import importlib

import pytest
import torch

import torchweld

pytestmark = pytest.mark.gpu

N = 1000


@pytest.mark.parametrize("name", ["fills", "in_place", "by_tuning", "by_operator"])
def test_a_launch_is_a_call_of_the_graph(name):
    fn = getattr(importlib.import_module("gpu_user_kernels"), name)
    torchweld.reset()
    compiled = torchweld.compile(fn)
    for _ in range(3):
        first, second = ([torch.arange(float(N), device="cuda") / s for s in (7, 9)]
                         for _ in range(2))  # fmt: skip
        torch.testing.assert_close(compiled(*second), fn(*first))
        torch.testing.assert_close(second, first)
    found = torchweld.statistics()
    assert (found["graphs"], found["externs"], found["breaks"]) == (1, 1, 0)
