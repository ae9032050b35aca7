# The programs are written as users write them.
"""Parameters and modules made or copied in a compiled function; attributes put on tensors."""

import copy

import pytest
import torch
from eager_twin import Twins
from program_calls import Programs, check
from torch import nn

import torchweld

PROGRAMS = Programs()
program, stateless = PROGRAMS.program, PROGRAMS.stateless


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.net = nn.Sequential(nn.LayerNorm(4), self.inner)
        self.register_buffer("scale", torch.ones(4))
        self.config = {"shift": [1]}

    def forward(self, x):
        return self.net(x) * self.scale + self.config["shift"][0]


@stateless()
def parameter_(x, y, n):
    p = nn.Parameter(torch.ones(4))
    (p * x).sum().backward()
    return p.grad, isinstance(p, nn.Parameter), p.requires_grad, p.is_leaf, p.grad_fn


@stateless()
def module_(x, y, n):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    net(x[None]).sum().backward()
    return [p.grad for p in net.parameters()], [k for k, _ in net.named_parameters()]


@stateless()
def registered_(x, y, n):
    made = nn.Module()
    made.weight = nn.Parameter(x.clone(), requires_grad=False)
    made.register_buffer("bias", y * n)
    return made.weight + made.bias, list(made.state_dict())


@stateless(2)
def given_away_(x, y, n):
    x = x * 2
    p = nn.Parameter(torch.ones(4) * n)
    return p, x + p.detach()


@program()
def copied_():
    torch.manual_seed(0)
    block = Block()

    def f(x, y, n):
        twin = copy.deepcopy(block)
        with torch.no_grad():
            twin.inner.weight.mul_(2)
            twin.scale.add_(1)
        twin.config["shift"].append(n)
        tied = twin.net[1] is twin.inner and twin.inner.weight is not block.inner.weight
        return twin(x).detach(), block(x).detach(), tied, block.config

    return f


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_parameters(make, breaks):
    check(make, breaks)


def tagged(x):
    y = x.clone()
    y.tag, x.seen = "new", getattr(x, "seen", 0) + 1
    y.info = {"twice": y * 2}
    return y + x.seen, y, hasattr(y, "other"), y.info["twice"]


def test_attributes_of_tensors():
    torchweld.reset()
    compiled = torchweld.compile(tagged, fullgraph=True, backend="eager")
    expected, got = torch.ones(4), torch.ones(4)
    for _ in range(3):
        made, ours = tagged(expected), compiled(got)
        Twins().equal(made, ours)
        Twins().equal((vars(made[1]), expected.seen), (vars(ours[1]), got.seen))


def test_an_attribute_that_a_tensor_has_or_not_is_guarded():
    def f(x):
        return x + 1 if hasattr(x, "tag") else x - 1

    compiled = torchweld.compile(f, fullgraph=True, backend="eager")
    x, y = torch.ones(4), torch.ones(4)
    y.tag = 1
    assert [compiled(t)[0].item() for t in (x, y, x)] == [0, 2, 0]


def test_a_set_from_outside_is_sorted():
    seen = set()

    def f(x, n):
        seen.update(map(int, ["1", str(n)]))
        return x + len(seen), sorted(seen), sorted(seen, reverse=True)

    compiled = torchweld.compile(f, fullgraph=True, backend="eager")
    found = [compiled(torch.ones(1), n)[1:] for n in (9, 4, 4)]
    assert found == [([1, 9], [9, 1]), ([1, 4, 9], [9, 4, 1]), ([1, 4, 9], [9, 4, 1])]
