"""Everyday programs, compiled beside their eager twins: results, output, states, arguments."""

from __future__ import annotations

import contextlib
import copy
import io
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from eager_twin import Twins, outcome
from program_calls import CALLS

import torchweld


class Everyday:
    """Programs for a parametrised test, each made anew for both sides."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def program(self, make: Callable[[], Any]) -> Callable[[], Any]:
        """A function that makes the program, with its state."""
        self.rows.append(pytest.param(make, id=make.__name__))
        return make

    def model(self, kind: type) -> type:
        """A module that is the program."""

        def make() -> Any:
            torch.manual_seed(0)
            return kind()

        self.rows.append(pytest.param(make, id=kind.__name__))
        return kind


def run(fn: Callable[..., Any], args: tuple[Any, ...], seed: int) -> tuple[Any, ...]:
    """What a call gives, prints, and leaves in the generators of random numbers."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        made = outcome(fn, args)
    said = [str(w.message) for w in found]
    return made, shown.getvalue(), said, random.getstate(), torch.get_rng_state()


def check(make: Callable[[], Any]) -> None:
    """Two of what `make` makes, one compiled whole, do the same in each call."""
    torchweld.reset()
    eager, compiled = make(), torchweld.compile(make(), backend="eager", fullgraph=True)
    for seed, args in enumerate(CALLS):
        expected, got = copy.deepcopy(args), copy.deepcopy(args)
        Twins().equal((run(eager, expected, seed), expected), (run(compiled, got, seed), got))
    counts = torchweld.statistics()
    assert (counts["breaks"], counts["internal_errors"]) == (0, 0)
