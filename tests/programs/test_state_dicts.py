# The programs are written as users write them.
"""state_dict and load_state_dict in a compiled function; attributes of ordered dicts."""

import collections
import copy

import pytest
import torch
from program_calls import Programs, check

PROGRAMS = Programs()
program = PROGRAMS.program


def net(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).eval()


@program()
def state_():
    a = net(1)

    def f(x, y, n):
        state = a.state_dict()
        return sorted(state), sum(v.sum() for v in state.values()) + x, state

    return f


@program()
def snapshot_():
    a = net(1)

    def f(x, y, n):
        kept = {k: v.clone() for k, v in a.state_dict(prefix="net.", keep_vars=True).items()}
        return kept, copy.deepcopy(a.state_dict())["0.bias"] + x

    return f


@program()
def load_():
    a, b = net(1), net(2)

    def f(x, y, n):
        found = b.load_state_dict(a.state_dict())
        return b(x[None]), found.missing_keys, list(b.parameters())

    return f


@program()
def load_some_():
    a, b = net(1), net(2)

    def f(x, y, n):
        state = {k: v * n for k, v in a.state_dict().items() if "weight" in k}
        state["more"] = x
        return list(b.load_state_dict(state, strict=False)), b(x[None])

    return f


@program()
def load_refused_():
    a, b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)

    def f(x, y, n):
        x = x + 1
        try:
            b.load_state_dict(a.state_dict())
        except RuntimeError as error:
            return x, str(error)

    return f


@program()
def average_():
    a, b = net(1), net(2)

    def f(x, y, n):
        with torch.no_grad():
            theirs = b.state_dict()
            for k, v in a.state_dict().items():
                if v.is_floating_point():
                    theirs[k].mul_(0.9).add_(v, alpha=0.1)
        return b(x[None])

    return f


@program()
def attributes_():
    table = collections.OrderedDict(a=1)
    table.note = "outside"

    def f(x, y, n):
        made = collections.OrderedDict(x=x + 1)
        made.note = [n]
        return made, made.note, table.note, hasattr(table, "other"), copy.deepcopy(table)

    return f


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_state_dicts(make, breaks):
    check(make, breaks)
