"""torchweld as a backend of torch.compile, and torch.compile's backends under torchweld."""

from __future__ import annotations

import copy

import pytest
import torch

import torchweld
from torchweld.base.errors import UsageError
from torchweld.workbench.adapter import dynamo_backend


def f(x, y):
    return torch.softmax(torch.relu(x @ y) + 1, -1)


ARGUMENTS = torch.ones(4, 8), torch.ones(8, 16) / 16


@pytest.fixture(autouse=True)
def fresh():
    torchweld.reset()
    torch.compiler.reset()


def test_torch_compile_runs_our_kernels():
    with torch.no_grad():
        got = torch.compile(f, backend=dynamo_backend)(*ARGUMENTS)
    torch.testing.assert_close(got, f(*ARGUMENTS))
    assert torchweld.statistics()["kernels"] > 0


def test_module_of_torch_compile_keeps_its_buffers_up_to_date():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
    twin = copy.deepcopy(model)
    x = torch.randn(4, 8)
    with torch.no_grad():
        got = torch.compile(model, backend=dynamo_backend)(x)
        torch.testing.assert_close(got, twin(x))
    torch.testing.assert_close(model.state_dict(), twin.state_dict())


def test_gradients_flow_through_a_graph_of_torch_compile():
    x = torch.ones(4, 8, requires_grad=True)
    torch.compile(f, backend=dynamo_backend)(x, ARGUMENTS[1]).sum().backward()
    assert x.grad is not None


def test_symbolic_sizes_run_through_aten():
    compiled = torch.compile(f, backend=dynamo_backend, dynamic=True)
    with torch.no_grad():
        for n in (3, 5, 7):
            x = torch.ones(n, 8)
            torch.testing.assert_close(compiled(x, ARGUMENTS[1]), f(x, ARGUMENTS[1]))


@pytest.mark.parametrize("name", ["eager", "aot_eager"])
def test_named_backend_gets_our_graphs(name):
    with torch.no_grad():
        got = torchweld.compile(f, backend=name)(*ARGUMENTS)
    torch.testing.assert_close(got, f(*ARGUMENTS))
    counts = torchweld.statistics()
    assert (counts["graphs"], counts["breaks"]) == (1, 0)


def test_unknown_backend_is_refused_with_the_known_names():
    with pytest.raises(UsageError, match="aot_eager"):
        torchweld.compile(f, backend="none_such")
