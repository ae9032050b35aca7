"""options={"freeze": True}: what is computed once, for whom, and when it is not."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

import torchweld
from torchweld.base import config, events
from torchweld.pipeline import STATISTICS
from torchweld.workbench.compare import differences
from torchweld.workbench.models import ZOO

FREEZE = {"freeze": True}


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(3)
    torchweld.reset()
    yield
    torchweld.reset()


class Net(nn.Module):
    """A parameter, a buffer and a plain tensor, each behind a function of its own."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.rand(8))
        self.register_buffer("shift", torch.rand(8))
        self.plain = torch.rand(8)

    def forward(self, x):
        return (self.linear(x) * torch.exp(self.scale) + torch.sin(self.shift)
                + torch.cos(self.plain))  # fmt: skip


def constants():
    """How many constants the program that was compiled last takes."""
    executable = STATISTICS.compiled[-1].executable
    assert executable is not None
    return executable.program.n_constants


def tensors():
    """How many tensors that are no parameters are alive."""
    gc.collect()
    return sum(type(t) is torch.Tensor for t in gc.get_objects())


def test_parameters_and_buffers_are_frozen_and_other_tensors_are_not():
    net, x = Net().eval(), torch.randn(4, 8)
    compiled = torchweld.compile(net, options=FREEZE)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))
        assert constants() == 2
        net.plain.add_(1.0)
        torch.testing.assert_close(compiled(x), net(x))
    assert torchweld.statistics()["captures"] == 1


def test_without_the_option_weights_may_change():
    net, x = Net().eval(), torch.randn(4, 8)
    compiled = torchweld.compile(net)
    with torch.no_grad():
        compiled(x)
        assert constants() == 0
        net.scale.add_(1.0)
        torch.testing.assert_close(compiled(x), net(x))


def test_replaced_parameter_is_seen():
    net, x = Net().eval(), torch.randn(4, 8)
    compiled = torchweld.compile(net, options=FREEZE)
    with torch.no_grad():
        compiled(x)
        net.scale = nn.Parameter(torch.rand(8) + 3.0)
        net.shift = torch.rand(8) + 3.0
        torch.testing.assert_close(compiled(x), net(x))


def test_weights_that_were_loaded_in_place_are_seen_after_a_reset():
    net, x = Net().eval(), torch.randn(4, 8)
    compiled = torchweld.compile(net, options=FREEZE)
    with torch.no_grad():
        compiled(x)
        net.load_state_dict({k: v + 1.0 for k, v in net.state_dict().items()})
        torchweld.reset()
        torch.testing.assert_close(compiled(x), net(x))


def test_other_dtype_has_other_constants():
    net, x = Net().eval(), torch.randn(4, 8)
    compiled = torchweld.compile(net, options=FREEZE)
    with torch.no_grad():
        compiled(x)
        net.double()
        torch.testing.assert_close(compiled(x.double()), net(x.double()))


def test_models_that_share_compiled_code_have_their_own_constants():
    @torchweld.compile(options=FREEZE)
    def run(net, x):
        return net(x)

    nets, x = [Net().eval() for _ in range(3)], torch.randn(4, 8)
    with torch.no_grad():
        for _ in range(2):
            for net in nets:
                torch.testing.assert_close(run(net, x), net(x))


def test_with_gradients_required_it_is_ignored_with_a_reason():
    net, x = Net(), torch.randn(4, 8)
    compiled = torchweld.compile(net, options=FREEZE)
    compiled(x).sum().backward()
    assert net.scale.grad is not None
    assert [e.fields["code"] for e in events.recent("graph") if e.name == "not frozen"] == ["W207"]
    with torch.no_grad():
        net.scale.add_(1.0)
    torch.testing.assert_close(compiled(x), net(x))


def test_statistics_that_a_batch_norm_updates_are_not_frozen():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    twin = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    twin.load_state_dict(net.state_dict())
    compiled = torchweld.compile(net, options=FREEZE)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 3, 8, 8)
            torch.testing.assert_close(compiled(x), twin(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(net[1].running_mean, twin[1].running_mean)


def test_result_that_depends_on_weights_alone_belongs_to_the_caller():
    net, x = Net().eval(), torch.randn(4, 8)

    @torchweld.compile(options=FREEZE)
    def run(x):
        return x + 1, torch.exp(net.scale)

    with torch.no_grad():
        run(x)[1].zero_()
        torch.testing.assert_close(run(x)[1], torch.exp(net.scale))


def test_weights_of_a_model_that_is_gone_are_freed():
    """The counters know the program for good, but not what was computed from the weights."""
    @torchweld.compile(options=FREEZE)
    def run(net, x):
        return net(x)

    net = Net().eval()
    with torch.no_grad():
        run(net, torch.randn(4, 8))
    gone = weakref.ref(net.scale)
    before = tensors()
    del net
    assert before - tensors() == 4  # shift, plain and two constants
    assert gone() is None


def test_functions_compiled_with_and_without_it_are_apart():
    net = Net().eval()
    assert torchweld.compile(net) is not torchweld.compile(net, options=FREEZE)
    assert torchweld.compile(net, options=FREEZE) is torchweld.compile(net, options=FREEZE)


def test_environment_freezes_what_says_nothing():
    net, x = Net().eval(), torch.randn(4, 8)
    with config.override(freeze=True), torch.no_grad():
        torchweld.compile(net)(x)
        assert constants() == 2
        torchweld.compile(net, options={"freeze": False})(x)
        assert constants() == 0


def test_wrong_type_of_the_option_is_named():
    with pytest.raises(TypeError, match=r"options\['freeze'\] must be bool"):
        torchweld.compile(Net(), options={"freeze": 1})


@pytest.mark.parametrize("driver", ["native", "python"])
@pytest.mark.parametrize("name", ["resnet", "convnext", "llama", "vit", "clip"])
def test_frozen_model_equals_eager(name, driver):
    work = ZOO[name]("small")
    with torch.no_grad(), config.override(driver=driver, verify=True):
        compiled = torchweld.compile(work.fn, options=FREEZE)
        want = work.call(work.fn)
        for _ in range(2):
            assert differences(work.call(compiled), want, scale=10.0) == []
    assert constants() > 0 and torchweld.statistics()["internal_errors"] == 0
