"""Operators on lists of tensors are taken apart, and compute what eager computes."""

import pytest
import torch
from torch_capture import capture, compare, targets

from torchweld.base import config
from torchweld.graph.decomps.foreach import BINARY, UNARY
from torchweld.ir.program import GridLaunch
from torchweld.programs import to_program

A, B, C = (torch.rand(n) + 0.5 for n in ((3, 4), (5,), ()))
D, E, F = (torch.rand(n) + 0.5 for n in ((3, 4), (5,), ()))
NUMBERED = {
    "pow of a number": lambda *x: torch._foreach_pow(2.0, list(x[:3])),
    "norm": lambda *x: torch._foreach_norm(list(x[:3]), 1),
    "norm in f64": lambda *x: torch._foreach_norm(list(x[:3]), 2, dtype=torch.float64),
    "lerp to numbers": lambda *x: torch._foreach_lerp(list(x[:3]), list(x[3:]), 0.3),
    "lerp": lambda *x: torch._foreach_lerp(list(x[:3]), list(x[3:]), list(x[:3])),
    "addcmul": lambda *x: torch._foreach_addcmul(list(x[:3]), list(x[3:]), list(x[:3]), 0.5),
    "addcdiv": lambda *x: torch._foreach_addcdiv(list(x[:3]), list(x[3:]), list(x[:3]), [1, 2, 3]),
    "add times": lambda *x: torch._foreach_add(list(x[:3]), list(x[3:]), alpha=-0.5),
    "mul by a tensor": lambda *x: torch._foreach_mul(list(x[:3]), x[5]),
    "add a tensor": lambda *x: torch._foreach_add(list(x[:3]), x[5], alpha=3),
}


def whole(fn):
    """The operators of a function of six tensors, none of which takes a list."""
    found = targets(compare(fn, A, B, C, D, E, F))
    assert found and not any("foreach" in op for op in found)
    return found


@pytest.mark.parametrize("name", UNARY)
def test_of_one_list(name):
    one = getattr(torch, f"_foreach_{name}")
    whole(lambda *x: one(list(x[:3])))


@pytest.mark.parametrize("name", BINARY)
def test_of_two_lists_a_number_and_numbers(name):
    one = getattr(torch, f"_foreach_{name}")
    whole(lambda *x: one(list(x[:3]), list(x[3:])))
    whole(lambda *x: one(list(x[:3]), 0.7))
    whole(lambda *x: one(list(x[:3]), [0.5, 0.75, 1.0]))


@pytest.mark.parametrize("name", NUMBERED)
def test_with_numbers(name):
    whole(NUMBERED[name])


def test_integers_are_promoted_as_eager_does():
    x, y = torch.arange(4), torch.arange(1, 5)
    compare(lambda x, y: torch._foreach_div([x, y], 2), x, y)
    compare(lambda x, y: torch._foreach_mul([x, y], [2, 0.5]), x, y)


def step(p, q, m, n, g, h):
    torch._foreach_lerp_([m, n], [g, h], 0.1)
    torch._foreach_mul_([p, q], 0.99)
    torch._foreach_addcdiv_([p, q], [m, n], torch._foreach_sqrt([g, h]), -0.01)
    return p


def test_an_optimizer_step_in_place_changes_its_tensors_only():
    pair = compare(step, A.clone(), B.clone(), D.clone(), E.clone(), A + 1, B + 1)
    assert pair.mutated == (0, 1, 2, 3) and not any("foreach" in op for op in targets(pair))


def test_an_optimizer_step_is_one_launch_on_a_gpu():
    graph = capture(step, A.clone(), B.clone(), D.clone(), E.clone(), A + 1, B + 1)
    with config.override(interpret=True):
        (launch,) = to_program(graph, 0).steps
    assert isinstance(launch, GridLaunch) and launch.function.startswith("bundle")


def test_zeros_and_copies_into_a_list():
    def fn(x, y, z):
        torch._foreach_zero_([x])
        torch._foreach_copy_([y], [z])
        return x + y

    pair = compare(fn, A.clone(), D.clone(), torch.rand(3, 4).double())
    assert pair.mutated == (0, 1) and not any("foreach" in op for op in targets(pair))
