"""A function that breaks, compiled, beside its eager twin."""

from __future__ import annotations

import contextlib
import copy
import io

import torch
from guard_twin import same
from kept_graphs import Graphs

import torchweld
from torchweld.pipeline import STATISTICS


def outcome(fn, args):
    """What a call gives or raises, what it prints, and what it leaves in its arguments."""
    args = copy.deepcopy(args)
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown):
            result = fn(*args)
    except Exception as error:
        result = (type(error), str(error))
    return result, shown.getvalue(), args


def check(fn, *calls, graphs, rounds=2, breaks=None, backend=None):
    """The compiled function does what eager does, in this many graphs, and stays at them."""
    torchweld.reset()
    seen = Graphs()
    compiled = torchweld.compile(fn, backend=seen)
    for args in calls * rounds:
        want, got = outcome(fn, args), outcome(compiled, args)
        same(got[0], want[0])
        assert got[1] == want[1]
        same(got[2], want[2])
    why = [r.text() for r in STATISTICS.refusals]
    assert len(seen.graphs) == graphs, (seen.operators(), torchweld.statistics(), *why)
    captured = torchweld.statistics()["captures"]
    for args in calls:
        outcome(compiled, args)
    assert torchweld.statistics()["captures"] == captured
    assert torchweld.statistics()["internal_errors"] == 0
    if breaks is not None:
        assert torchweld.statistics()["breaks"] == breaks
    return seen


X = torch.linspace(-1, 1, 8)


@torchweld.disable
def opaque(x):
    """Something that the capture does not look into."""
    return x
