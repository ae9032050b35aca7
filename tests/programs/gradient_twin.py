"""A function with gradients, compiled, beside its eager twin."""

from __future__ import annotations

import copy
from types import MappingProxyType

import torch

import torchweld
from torchweld.pipeline import STATISTICS


def leaves(x):
    if isinstance(x, torch.Tensor):
        return [x]
    if isinstance(x, torch.nn.Module):
        return list(x.parameters())
    if isinstance(x, dict):
        return [leaf for item in x.values() for leaf in leaves(item)]
    return [leaf for item in x for leaf in leaves(item)] if isinstance(x, tuple | list) else []


def run(fn, args):
    """Results or error, gradients of the arguments, and the arguments afterwards."""
    args = copy.deepcopy(args)
    torch.manual_seed(0)
    try:
        out = fn(*args)
        wanted = [x.float().sum() for x in leaves(out) if x.requires_grad]
        if wanted:
            torch.stack(wanted).sum().backward()
    except Exception as error:
        return f"{type(error).__name__}: {error}", [], leaves(args)
    given = leaves(args)
    return out, [x.grad for x in given if x.is_leaf], given


def check(fn, *args, graphs=1, breaks=0, like=MappingProxyType({})):
    """Eager's results, gradients and changed arguments, twice, in this many graphs.

    like: backend -> what does the same, where torch 2.11's own `fn` gives a wrong gradient.
    """
    for backend in ("eager", "torchweld"):
        torchweld.reset()
        compiled = torchweld.compile(fn, backend=backend)
        for _ in range(2):
            want, got = run(like.get(backend, fn), args), run(compiled, args)
            if isinstance(want[0], str):
                assert got[0] == want[0]
                got, want = got[1:], want[1:]
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
            flags = [[x.requires_grad for x in leaves(side[0])] for side in (got, want)]
            assert flags[0] == flags[1]
        counts = torchweld.statistics()
        why = [r.text() for r in STATISTICS.refusals]
        assert counts["internal_errors"] == 0, why
        if backend == "eager":
            assert (counts["graphs"], counts["breaks"]) == (graphs, breaks), (counts, *why)
