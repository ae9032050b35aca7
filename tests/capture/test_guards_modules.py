"""nn.Modules: what is replaced, converted or hooked between two calls is noticed."""

from __future__ import annotations

import pytest
import torch
from guard_twin import changed, graphs, same
from torch import nn

import torchweld

X = torch.ones(2, 3)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(0.5)
        self.scale = 2.0
        self.unread = 0
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x):
        return self.drop(self.norm(self.lin(x))) * self.scale + self.shift


def twin():
    torch.manual_seed(0)
    return Net().eval()


def zero(m):
    with torch.no_grad():
        m.lin.weight.zero_()


def step(m):
    for p in m.parameters():
        p.grad = torch.ones_like(p)
    torch.optim.SGD(m.parameters(), 0.1).step()


def hooked(m):
    m.lin.register_forward_hook(lambda mod, args, out: out + 1)


def hooked_before(m):
    m.lin.register_forward_pre_hook(lambda mod, args: (args[0] * 2,))


def unhooked(m):
    m.lin.register_forward_hook(lambda mod, args, out: out + 1).remove()


def set_data(m):
    m.lin.weight.data = torch.full((3, 3), 2.0)


def set_strided_data(m):
    m.lin.weight.data = torch.arange(9.0).reshape(3, 3).t()


CHANGES = {
    "nothing": (lambda m: None, 1),
    "optimizer step": (step, 1),
    "in-place write": (zero, 1),
    "load_state_dict": (lambda m: m.load_state_dict(Net().state_dict()), 1),
    "load_state_dict assign": (lambda m: m.load_state_dict(Net().state_dict(), assign=True), 1),
    "parameter replaced": (lambda m: setattr(m.lin, "weight", nn.Parameter(torch.ones(3, 3))), 1),
    "parameter of another shape": (lambda m: setattr(m, "lin", nn.Linear(3, 3, bias=False)), 2),
    "parameter set to None": (lambda m: setattr(m.lin, "bias", None), 2),
    "data": (set_data, 1),
    "data with other strides": (set_strided_data, 2),
    "buffer replaced": (lambda m: setattr(m, "shift", torch.full((3,), 5.0)), 1),
    "buffer of another shape": (lambda m: setattr(m, "shift", torch.ones(1)), 2),
    "submodule replaced": (lambda m: setattr(m, "norm", nn.Identity()), 2),
    "submodule of the same kind": (lambda m: setattr(m, "lin", nn.Linear(3, 3)), 1),
    "train": (lambda m: m.norm.train(), 2),
    "requires_grad_": (lambda m: m.lin.requires_grad_(False), 2),
    "plain attribute": (lambda m: setattr(m, "scale", 3), 2),
    "attribute that is not read": (lambda m: setattr(m, "unread", 3), 1),
    "new attribute": (lambda m: setattr(m, "fresh", 3), 1),
    "hook": (hooked, 2),
    "pre-hook": (hooked_before, 2),
    "hook added and removed": (unhooked, 1),
    "forward replaced": (lambda m: setattr(m.lin, "forward", lambda x: x * 7), 2),
    "forward of the root replaced": (lambda m: setattr(m, "forward", lambda x: x * 7), 2),
    "class of a submodule": (lambda m: setattr(m.norm, "__class__", nn.Identity), 2),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_module(name):
    change, made = CHANGES[name]
    m = twin()
    changed(m, lambda: change(m), made, X)


@pytest.mark.parametrize("name", CHANGES)
def test_changed_module_without_grad(name):
    change, made = CHANGES[name]
    if name == "requires_grad_":
        made = 1
    m = twin()
    with torch.no_grad():
        torchweld.reset()
        compiled = torchweld.compile(m, backend="eager")
        same(compiled(X), m(X))
        with torch.enable_grad():
            change(m)
        for _ in range(2):
            same(compiled(X), m(X))
        assert graphs() == made


CONVERSIONS = {
    "half": lambda m: m.half(),
    "double": lambda m: m.double(),
    "to dtype": lambda m: m.to(torch.bfloat16),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_converted_module(name):
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    torchweld.reset()
    compiled = torchweld.compile(m, backend="eager")
    same(compiled(X), m(X))
    CONVERSIONS[name](m)
    x = X.to(m[0].weight.dtype)
    for _ in range(2):
        same(compiled(x), m(x))
    assert graphs() == 2


def test_layer_replaced_and_added_in_a_sequential():
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    torchweld.reset()
    compiled = torchweld.compile(m, backend="eager")
    same(compiled(X), m(X))
    m[1] = nn.Tanh()
    same(compiled(X), m(X))
    m.append(nn.Sigmoid())
    same(compiled(X), m(X))
    del m[0]
    same(compiled(X), m(X))
    assert graphs() == 4


def test_two_layers_that_share_a_parameter_from_then_on():
    m = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    changed(m, lambda: setattr(m[1], "weight", m[0].weight), 1, X)


def test_global_hook():
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    handles = []

    def hook(module, args, out):
        return out + 1 if isinstance(module, nn.Linear) else None

    try:
        register = nn.modules.module.register_module_forward_hook
        changed(m, lambda: handles.append(register(hook)), 2, X)
    finally:
        handles[0].remove()


def test_method_of_a_module_class_replaced(monkeypatch):
    m = twin()
    changed(m, lambda: monkeypatch.setattr(Net, "forward", lambda self, x: x * self.scale), 2, X)


def test_method_of_a_torch_module_class_replaced(monkeypatch):
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    changed(m, lambda: monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: x * 9), 2, X)


def test_tables_of_the_module_replaced():
    m = twin()

    def change():
        weight = nn.Parameter(torch.ones(3, 3))
        m.lin.__dict__["_parameters"] = dict(m.lin._parameters, weight=weight)

    changed(m, change, 1, X)


def test_dict_of_a_module_replaced():
    m = twin()

    def change():
        fresh = dict(m.__dict__)
        fresh["scale"] = 5
        m.__dict__ = fresh

    torchweld.reset()
    compiled = torchweld.compile(lambda x: m(x), backend="eager")
    same(compiled(X), m(X))
    change()
    same(compiled(X), m(X))
    assert graphs() == 2
