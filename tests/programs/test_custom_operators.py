"""Operators of torch.library with gradients, a batching rule and fakes; regions that are marked."""

import pytest
import scripted
import torch
from eager_twin import Twins, outcome
from gradient_twin import check
from torch import nn
from torch.func import grad, vmap

import torchweld

X = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()


@torch.library.custom_op("torchweld_programs::scaled", mutates_args=())
def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * by


@scaled.register_fake
def _(x, by):
    return torch.empty_like(x)


def remember(ctx, inputs, output):
    ctx.by = inputs[1]


# a gradient that is not that of the operator
scaled.register_autograd(lambda ctx, g: (g * ctx.by * 10, None), setup_context=remember)


@scaled.register_vmap
def _(info, in_dims, x, by):
    return scaled(x, by) + 1, in_dims[0]


@torch.library.custom_op("torchweld_programs::doubled", mutates_args={"x"})
def doubled(x: torch.Tensor) -> None:
    x.mul_(2)


@doubled.register_fake
def _(x):
    return None


def test_a_gradient_of_ones_own():
    check(lambda x: scaled(x.sin(), 2.0) + 1, X)
    check(lambda x: torch.ops.torchweld_programs.scaled(x, 3.0).cos(), X)


def test_a_batching_rule_of_ones_own():
    check(lambda x: vmap(lambda row: scaled(row, 2.0))(x) * 2, X.detach())


def test_an_operator_that_writes():
    def written(x):
        y = x.sin()
        doubled(y)
        return y + 1

    check(written, X.detach())


def test_an_operator_inside_of_a_checkpoint():
    def kept(x):
        return torch.utils.checkpoint.checkpoint(lambda a: scaled(a.sin(), 2.0).exp(), x,
                                                 use_reentrant=False)  # fmt: skip

    check(kept, X)


def test_errors_of_transforms_are_those_of_eager():
    check(lambda x: grad(lambda a: scaled(a, 2.0).sum())(x) + 1, X.detach(), graphs=0, breaks=1)


@torch.compiler.nested_compile_region
def region(x, layer):
    return layer(x).sin()


def test_marked_regions_are_part_of_the_graph():
    layers = [nn.Linear(4, 4) for _ in range(2)]

    def stacked(x):
        for layer in layers:
            x = region(x, layer)
        return x

    check(stacked, X)
    torchweld.reset()
    torchweld.compile(stacked, fullgraph=True)(X)
    assert torchweld.statistics()["aten_graphs"] == 0


@pytest.mark.parametrize(("name", "args", "breaks"), [
    ("scaled", (2,), 0), ("scaled", (2.0,), 1), ("asking", (), 1), ("module", (), 1),
    ("traced", (), 1),
])  # fmt: skip
def test_torchscript_is_looked_into_where_it_does_the_same_as_python(name, args, breaks):
    torchweld.reset()

    def program(x):
        return getattr(scripted, name)(x, *args) + 1

    x = torch.linspace(-1, 1, 4)
    compiled = torchweld.compile(program, backend="eager")
    for _ in range(2):
        Twins().equal(outcome(program, (x,)), outcome(compiled, (x,)))
    counts = torchweld.statistics()
    assert (counts["breaks"], counts["internal_errors"]) == (breaks, 0)
