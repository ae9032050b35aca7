"""Once calls go by a snapshot, everything that can change under them is still noticed."""

from __future__ import annotations

import pytest
import torch
from guard_twin import called_until_settled, graphs, same, settled
from torch import nn

import torchweld

X = torch.ones(2, 3)
FACTOR = 2.0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Dropout(0.5))
        self.last = nn.Linear(3, 3)
        self.scale = 2.0
        self.sizes = [1, 2]
        self.names = {"a": 1}
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x, offset=0.0):
        y = self.last(self.layers(x)) * self.scale * FACTOR + self.shift + offset
        return y * self.sizes[0] + self.names["a"]


class OtherNet(Net):
    def forward(self, x):
        return self.last(x) + 1


class Shifted(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x) + 1


def new_weight():
    return nn.Parameter(torch.full((3, 3), 0.5))


def replace_dict(m):
    m.__dict__ = dict(m.__dict__, scale=5.0, _parameters=dict(m._parameters, weight=new_weight()))


def replace_parameters(m):
    vars(m.last)["_parameters"] = dict(m.last._parameters, weight=new_weight())


def fresh_parameter(m):
    del m.last.weight
    m.last.weight = new_weight()


CHANGES = {
    "attribute": lambda m: setattr(m, "scale", 3.0),
    "attribute of another type": lambda m: setattr(m, "scale", 3),
    "item of a list": lambda m: m.sizes.__setitem__(0, 5),
    "list replaced": lambda m: setattr(m, "sizes", [6]),
    "item of a dict": lambda m: m.names.update(a=7),
    "training": lambda m: m.layers[2].train(),
    "class of a layer": lambda m: setattr(m.layers[1], "__class__", Shifted),
    "dict of a layer replaced": lambda m: replace_dict(m.last),
    "parameters replaced": replace_parameters,
    "submodule replaced": lambda m: setattr(m, "last", nn.Linear(3, 3)),
    "submodule of another kind": lambda m: setattr(m, "last", nn.Identity()),
    "layer replaced": lambda m: m.layers.__setitem__(0, nn.Identity()),
    "layer appended": lambda m: m.layers.append(nn.ReLU()),
    "parameter replaced": lambda m: setattr(m.last, "weight", new_weight()),
    "parameter deleted and made": fresh_parameter,
    "parameter removed": lambda m: setattr(m.last, "bias", None),
    "data": lambda m: setattr(m.last.weight, "data", torch.full((3, 3), 2.0)),
    "data with other strides": lambda m: setattr(
        m.last.weight, "data", torch.arange(9.0).reshape(3, 3).t()),
    "data of another dtype": lambda m: m.double(),
    "transposed in place": lambda m: m.last.weight.data.t_(),
    "requires_grad": lambda m: m.last.weight.requires_grad_(False),
    "written in place": lambda m: m.last.weight.data.fill_(3.0),
    "buffer replaced": lambda m: setattr(m, "shift", torch.full((3,), 5.0)),
    "buffer of another shape": lambda m: setattr(m, "shift", torch.ones(1)),
    "hook": lambda m: m.layers[0].register_forward_hook(lambda mod, args, out: out + 1),
    "hook before": lambda m: m.last.register_forward_pre_hook(lambda mod, args: (args[0] * 2,)),
    "forward replaced": lambda m: setattr(m.last, "forward", lambda x: x * 7),
    "default argument": lambda m: setattr(Net.forward, "__defaults__", (3.0,)),
    "code of a method": lambda m: setattr(
        Net.forward, "__code__", (lambda self, x, offset: self.last(x) * 3).__code__),
}  # fmt: skip


@pytest.fixture(autouse=True)
def method_kept():
    code, defaults = Net.forward.__code__, Net.forward.__defaults__
    yield
    Net.forward.__code__, Net.forward.__defaults__ = code, defaults


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_after_many_calls(name, grad):
    torch.manual_seed(0)
    m = Net().eval()
    compiled = called_until_settled(m, grad)
    CHANGES[name](m)
    x = X.to(next(m.parameters()).dtype)
    with torch.set_grad_enabled(grad):
        for _ in range(12):
            torch.manual_seed(1)
            expected = m(x)
            torch.manual_seed(1)
            same(compiled(x), expected)


@pytest.mark.parametrize("change", [
    lambda m: setattr(m, "__class__", OtherNet),
    replace_dict,
    lambda m: setattr(m, "forward", lambda x: x * 7),
])  # fmt: skip
def test_a_change_of_a_module_that_a_function_calls(change):
    torch.manual_seed(0)
    m = Net().eval()
    calling = called_until_settled(lambda x: m(x), False)
    change(m)
    with torch.no_grad():
        for _ in range(3):
            same(calling(X), m(X))
    assert graphs() == 2


@pytest.mark.parametrize("register", ["register_module_forward_hook",
                                      "register_module_forward_pre_hook"])  # fmt: skip
def test_a_global_hook_after_many_calls(register):
    def hook(module, args, *out):
        if isinstance(module, nn.Linear):
            return out[0] + 1 if out else (args[0] + 1,)
        return None

    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    compiled = called_until_settled(m, False)
    handle = getattr(nn.modules.module, register)(hook)
    try:
        with torch.no_grad():
            for _ in range(5):
                same(compiled(X), m(X))
    finally:
        handle.remove()
    with torch.no_grad():
        same(compiled(X), m(X))
    assert graphs() == 2


def test_a_global_of_the_user_after_many_calls(monkeypatch):
    m = Net().eval()
    compiled = called_until_settled(m, False)
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    with torch.no_grad():
        same(compiled(X), m(X))
    assert graphs() == 2


def test_grad_mode_after_many_calls():
    m = Net().eval()
    compiled = called_until_settled(m, False)
    for _ in range(3):
        assert compiled(X).requires_grad
        with torch.no_grad():
            assert not compiled(X).requires_grad
    assert graphs() == 2


def test_other_shapes_and_back_do_not_unsettle():
    m = Net().eval()
    compiled = called_until_settled(m, False)
    with torch.no_grad():
        for x in (X, torch.ones(5, 3), X.double().float(), X[:1], X):
            same(compiled(x), m(x))
    assert settled(compiled)
    assert graphs() == 3


def test_a_module_that_counts_its_calls_settles():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 3)
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return self.lin(x)

    m = Counting()
    torchweld.reset()
    compiled = torchweld.compile(m, backend="eager")
    with torch.no_grad():
        for _ in range(30):
            compiled(X)
        assert m.calls == 30
        assert settled(compiled)
        m.lin = nn.Linear(3, 3)
        same(compiled(X), m.lin(X))
