"""The module that a backend gets: its code is there when it is asked for."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter

import torchweld


def captured() -> tuple[GraphModule, Tensor]:
    found: list[GraphModule] = []

    def backend(gm: GraphModule, examples: list[Any]) -> Any:
        assert "_code" not in gm.__dict__
        found.append(gm)
        return gm

    x = torch.randn(5)
    compiled = torchweld.compile(lambda x: (x * 2).relu() + 1, backend=backend)
    assert torch.equal(compiled(x), (x * 2).relu() + 1)
    return found[0], x


def test_it_runs_prints_and_copies() -> None:
    gm, x = captured()
    wanted = (x * 2).relu() + 1
    assert "relu" in gm.code and "relu" in str(gm) and "relu" in gm.print_readable(False)
    for module in (gm, copy.deepcopy(gm), copy.copy(gm)):
        assert torch.equal(module(x)[0], wanted) and torch.equal(module.forward(x)[0], wanted)
    assert torch.equal(Interpreter(gm).run(x)[0], wanted)


def test_its_code_is_there_before_it_ran() -> None:
    for look in (lambda gm: gm.code, str, lambda gm: gm.recompile().src):
        backend_saw: list[str] = []

        def backend(gm: GraphModule, examples: list[Any], look: Any = look,
                    saw: list[str] = backend_saw) -> Any:  # fmt: skip
            saw.append(look(gm))
            return gm.forward

        torchweld.compile(lambda x: x.sin() + 1, backend=backend)(torch.ones(3))
        assert "sin" in backend_saw[0]
