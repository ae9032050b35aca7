# The programs are written as users write them.
"""Parameters and modules made or copied in a compiled function; attributes put on tensors."""

import copy

import pytest
import torch
from eager_twin import Twins
from eager_twin import check as check_calls
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


def test_whether_a_result_is_a_leaf():
    def program(x, w):
        y = x * w
        with torch.no_grad():
            z = x * w
        return y.is_leaf, z.is_leaf, w.is_leaf, y * (2 if y.is_leaf else 3)

    plain = (torch.ones(3),) * 2
    check_calls(program, (plain[0], torch.ones(3, requires_grad=True)), plain, graphs=2)


def test_a_result_is_detached_in_place():
    def program(x, w):
        y = x * w
        same, seen = y, y.exp()
        y.detach_()
        y.add_(1)
        return same, y.requires_grad, y.is_leaf, seen, y * w

    plain = (torch.ones(3),) * 2
    check_calls(program, (plain[0], torch.ones(3, requires_grad=True)), plain, graphs=2)


def test_states_are_detached_in_a_loop():
    def program(x, w):
        for _ in range(3):
            x = x * w
            x.detach_()
        return torch.autograd.grad((x * w).sum(), w)

    check_calls(program, (torch.ones(3), torch.ones(3, requires_grad=True)))


def test_the_first_call_of_a_lazy_module_is_a_break():
    torchweld.reset()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.ReLU())
    compiled = torchweld.compile(lambda x: net(x * 2 + 1).exp() + x.sum(), backend="eager")
    x = torch.linspace(-1, 1, 6).reshape(2, 3)
    first = compiled(x)
    assert type(net[0]) is torch.nn.Linear
    assert torch.equal(first, net(x * 2 + 1).exp() + x.sum())
    counts = torchweld.statistics()
    assert (counts["breaks"], counts["internal_errors"]) == (1, 0)
    assert torch.equal(compiled(x), first)
    assert torchweld.statistics()["breaks"] == 1
