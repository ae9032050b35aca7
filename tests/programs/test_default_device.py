"""`with torch.device` and set_default_device, around compiled functions and inside of them."""

import pytest
import torch
from eager_twin import check
from torch import nn

import torchweld

X = torch.arange(3.0)


@pytest.fixture
def default_device():
    """The default device is set, as a program does at its start."""
    torch.set_default_device("cpu")
    yield
    torch.set_default_device(None)


def test_a_block_inside_of_the_frame():
    def program(x):
        with torch.device("cpu"):
            y = torch.zeros(3) + torch.arange(3)
        return x + y + torch.ones(3)

    check(program, (X,))


def test_tensors_are_made_on_the_device_of_the_innermost_block():
    found = []

    def program(x):
        with torch.device("cpu"):
            with torch.device("cpu:0"):
                y = torch.ones(3)
            return x + y + torch.full((3,), 2.0)

    def backend(gm, examples):
        found.extend(n.kwargs.get("device") for n in gm.graph.nodes if n.op == "call_function")
        return gm.forward

    torchweld.reset()
    assert torch.equal(torchweld.compile(program, backend=backend)(X), X + 3)
    assert [d for d in found if d is not None] == [torch.device("cpu", 0), torch.device("cpu")]


def test_a_break_inside_of_a_block():
    def program(x):
        with torch.device("cpu"):
            y = torch.ones(3)
            if x.sum() > 2:
                y = y + torch.ones(3)
        return x + y

    torchweld.reset()
    compiled = torchweld.compile(program, backend="eager")
    for x in (X, X - 2, X):
        assert torch.equal(compiled(x), program(x))
    counts = torchweld.statistics()
    assert counts["graphs"] >= 2
    assert counts["internal_errors"] == 0


def test_frames_are_captured_under_a_default_device(default_device):
    check(lambda x: x + torch.ones(3) + torch.tensor(2.0) + torch.arange(3), (X,))


def test_models_are_compiled_and_trained_under_a_default_device(default_device):
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    torchweld.reset()
    torchweld.compile(net)(X + torch.rand(3)).sum().backward()
    counts = torchweld.statistics()
    assert (counts["graphs"], counts["breaks"], counts["aten_graphs"]) == (1, 0, 0)
    assert net[0].weight.grad is not None


def test_another_default_device_is_another_compilation():
    torchweld.reset()
    compiled = torchweld.compile(lambda x: x + torch.ones(3), backend="eager")
    compiled(X)
    for _ in range(2):
        with torch.device("cpu"):
            compiled(X)
    assert torchweld.statistics()["graphs"] == 2


class Subtracts(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, fn, kinds, args=(), kwargs=None):
        return (torch.sub if fn is torch.add else fn)(*args, **(kwargs or {}))


def test_other_modes_still_run_eagerly():
    torchweld.reset()
    compiled = torchweld.compile(lambda x: torch.add(x, 1), backend="eager")
    with Subtracts():
        assert torch.equal(compiled(X), X - 1)
    assert torch.equal(compiled(X), X + 1)
