"""Calls programs with two tensors and a number that changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from eager_twin import Twins, outcome

import torchweld

X, Y = torch.arange(4.0), torch.ones(4)
CALLS = ((X, Y, 2), (X, Y, 2), (Y + 1, X, 3), (X * 2, Y, 5), (X, Y, 2))


def check(make: Callable[[], Callable[..., Any]], breaks: int) -> None:
    """Two of what `make` makes, one compiled, do the same in each call, with so many breaks."""
    torchweld.reset()
    eager, compiled = make(), torchweld.compile(make(), backend="eager")
    for args in CALLS:
        expected, got = copy.deepcopy(args), copy.deepcopy(args)
        Twins().equal((outcome(eager, expected), expected), (outcome(compiled, got), got))
    counts = torchweld.statistics()
    assert (counts["breaks"], counts["internal_errors"]) == (breaks, 0), counts


class Programs:
    """Programs for a parametrised test: (what makes one, its breaks)."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def stateless(self, breaks: int = 0) -> Callable[[Any], Any]:
        """The program itself."""

        def keep(fn: Any) -> Any:
            self.rows.append(pytest.param(lambda: fn, breaks, id=fn.__name__))
            return fn

        return keep

    def program(self, breaks: int = 0) -> Callable[[Any], Any]:
        """A function that makes the program, with its state."""

        def keep(make: Any) -> Any:
            self.rows.append(pytest.param(make, breaks, id=make.__name__))
            return make

        return keep
