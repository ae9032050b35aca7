"""Stacks of layers, and what they give when calls of layers are repeated."""

import copy

import torch
from slice_twin import twins
from torch import nn

import torchweld

X = torch.linspace(-2, 2, 12).reshape(3, 4)


class Layer(nn.Module):
    """A layer with parts; `scale` and whatever a test puts on it may differ."""

    def __init__(self, scale=1.5, bias=True, p=0.0):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4, bias=bias)
        self.drop = nn.Dropout(p)
        self.scale = scale

    def forward(self, x):
        return x + self.drop(torch.relu(self.linear(self.norm(x)))) * self.scale


class Stack(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        x = x + 1  # an argument of the frame is not like a tensor that was made in it
        for layer in self.layers:
            x = layer(x)
        return x


def results(x):
    if isinstance(x, torch.Tensor):
        return [x.detach().clone()]
    return [r for i in x for r in results(i)] if isinstance(x, tuple | list) else [x]


def check(model, x=X, grad=False):
    """Compile and compare with eager; how many calls each capture has repeated."""
    torchweld.reset()
    eager, given = copy.deepcopy(model), [x.clone().requires_grad_(grad) for _ in range(2)]
    with torch.set_grad_enabled(grad):
        torch.manual_seed(0)
        expected = results(eager(given[0]))
        torch.manual_seed(0)
        with twins() as counts:
            found = results(torchweld.compile(model, backend="eager")(given[1]))
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b) if isinstance(a, torch.Tensor) else None
        assert isinstance(a, torch.Tensor) or a == b
    torch.testing.assert_close(given[0], given[1])
    for a, b in zip(model.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(a, b)
    return counts
