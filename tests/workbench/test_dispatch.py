"""What the benchmark of dispatch times is what it says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

import torchweld

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def dispatch():
    spec = importlib.util.spec_from_file_location("dispatch", BENCH / "dispatch.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("varied", "symbols"), [(False, [0]), (True, [0, 4])])
@torch.no_grad()
def test_the_dynamic_entry_has_four_symbols_and_the_static_one_none(
    dispatch, varied, symbols, monkeypatch
):
    found = []

    def returns(value):
        def backend(gm, inputs):
            inputs = [p.meta["val"].shape for p in gm.graph.find_nodes(op="placeholder")]
            found.append(sum(isinstance(n, torch.SymInt) for shape in inputs for n in shape))
            return lambda *args: (value,)

        return backend

    monkeypatch.setattr(dispatch, "_returns", returns)
    torchweld.reset()
    call = dispatch._called(torchweld.compile, varied=varied)
    for _ in range(3):
        call()
    assert found == symbols
