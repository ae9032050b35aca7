"""The zoo's models for tests; the factories themselves are the benchmark's too."""

from __future__ import annotations

import copy

import torch

import torchweld
from torchweld.workbench.compare import differences
from torchweld.workbench.models import ZOO, gpt2, llama

__all__ = ["CACHED", "ZOO", "compiled_and_eager", "make", "unequal"]

CACHED = {"gpt2": gpt2, "llama": llama}


def make(name, size="small", **options):
    """The same work on every call: weights and inputs come from one seed."""
    torch.manual_seed(7)
    return (CACHED if options else ZOO)[name](size, **options)


def compiled_and_eager(work):
    """Results of a compiled call and of an eager call on equal inputs, mutated inputs included."""
    torchweld.reset()
    compiled = torchweld.compile(work.fn)
    mine, theirs = copy.deepcopy(work.kwargs), copy.deepcopy(work.kwargs)
    with torch.no_grad():
        want = work.fn(**theirs)
        got = compiled(**mine)
    return compiled, (got, mine), (want, theirs)


def unequal(got, want, scale=10.0):
    """Where a model's results differ; sums in another order add up over the layers."""
    return [str(d) for d in differences(got, want, scale=scale)]
