"""Several devices: the second GPU, both at once, the CPU in between, streams of each.

With one GPU, "the other" is the first one again: everything must still hold.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchweld
from torchweld.pipeline import STATISTICS
from torchweld.workbench.compare import differences

pytestmark = pytest.mark.gpu

FIRST = "cuda:0"


def other() -> str:
    return f"cuda:{torch.cuda.device_count() - 1}"


def mlp(device: str) -> nn.Module:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.LayerNorm(64))
    return net.to(device)


def agree(fn: Any, *argument_lists: tuple[Any, ...], graphs: int = 1, calls: int = 4) -> None:
    """Compiled equals eager on every list of arguments, in turn, several times over."""
    torchweld.reset()
    compiled = torchweld.compile(fn, fullgraph=True)
    with torch.no_grad():
        for _ in range(calls):
            for args in argument_lists:
                before = torch.cuda.current_device()
                assert differences(compiled(*args), fn(*args), scale=4.0, strides=True) == []
                assert torch.cuda.current_device() == before
    assert STATISTICS.graphs == graphs and STATISTICS.aten_graphs == 0
    assert STATISTICS.internal_errors == 0 and STATISTICS.kernels > 0


def test_a_module_on_the_other_gpu() -> None:
    net = mlp(other())
    agree(net, (torch.randn(32, 64, device=other()),))
    replayed = [e.executable.graphs for e in STATISTICS.compiled if e.executable is not None]
    assert replayed and all(not isinstance(g, str) for g in replayed[-1])


def test_one_function_for_each_gpu_in_turn() -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.softmax(x * 2 + 1, -1).sum(0)

    places = list(dict.fromkeys((FIRST, other())))
    agree(fn, *((torch.randn(64, 128, device=d),) for d in places), graphs=len(places))


def test_both_gpus_in_one_graph() -> None:
    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a = torch.relu(x * 2 + 1)
        b = a.to(y.device) + y.exp()
        return a, b, (b.to(x.device) * a).sum(-1)

    x, y = torch.randn(64, 32, device=FIRST), torch.randn(64, 32, device=other())
    agree(fn, (x, y))


def test_a_pipeline_of_two_stages() -> None:
    class Pipeline(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = mlp(FIRST), mlp(other())

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x).to(other()) * 0.5)  # type: ignore[no-any-return]

    agree(Pipeline(), (torch.randn(16, 64, device=FIRST),))


def test_the_cpu_in_between() -> None:
    def fn(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        host = (x.sum(0) * 2).cpu()
        return host.exp() / 3, torch.relu(x * scale + host.to(x.device).mean())

    agree(fn, (torch.randn(8, 16, device=other()) * 0.1, torch.tensor(0.25)))


def test_numbers_on_the_cpu_beside_tensors_of_the_other_gpu() -> None:
    def fn(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return (x * a - b).tanh() + a

    def args(k: int) -> tuple[Tensor, Tensor, Tensor]:
        return torch.randn(100, device=other()), torch.tensor(0.5 + k), torch.tensor(k)

    agree(fn, *(args(k) for k in range(3)))


def test_the_current_device_decides_where_new_tensors_are() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones(8, device="cuda") * 3 + 1, x * 2 + 1

    index = torch.cuda.device_count() - 1
    x = torch.randn(8, device=FIRST)
    torchweld.reset()
    compiled = torchweld.compile(fn)
    for device in (0, index, 0, index):
        with torch.cuda.device(device), torch.no_grad():
            assert differences(compiled(x), fn(x), scale=1.0, strides=True) == []


def test_operands_of_two_gpus_raise_as_in_eager() -> None:
    if torch.cuda.device_count() == 1:
        pytest.xfail("needs two GPUs")
    x, y = torch.ones(4, device=FIRST), torch.ones(4, device=other())
    compiled = torchweld.compile(lambda a, b: a + b)
    with torch.no_grad(), pytest.raises(RuntimeError, match="same device"):
        compiled(x, y)


def test_streams_of_both_gpus() -> None:
    net = mlp(other())
    torchweld.reset()
    compiled = torchweld.compile(net, fullgraph=True)
    streams = [torch.cuda.Stream(d) for d in (FIRST, other(), other())]
    with torch.no_grad():
        for i in range(30):
            x = torch.randn(16, 64, device=other())
            torch.cuda.synchronize(other())
            with torch.cuda.stream(streams[i % 3]):  # of another device: the default one is used
                found = compiled(x)
            torch.cuda.synchronize(other())
            torch.testing.assert_close(found, net(x), rtol=1e-4, atol=1e-4)


def test_a_thread_for_each_gpu() -> None:
    nets = {d: mlp(d) for d in dict.fromkeys((FIRST, other()))}
    torchweld.reset()
    compiled = {d: torchweld.compile(net) for d, net in nets.items()}
    errors: list[BaseException] = []

    def work(device: str) -> None:
        try:
            with torch.no_grad():
                for i in range(40):
                    x = torch.randn(16 + i % 2, 64, device=device)
                    torch.testing.assert_close(compiled[device](x), nets[device](x),
                                               rtol=1e-4, atol=1e-4)  # fmt: skip
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(d,)) for d in nets for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors[0]
    assert STATISTICS.internal_errors == 0 and STATISTICS.kernels > 0


def test_random_numbers_of_the_other_gpu_are_its_generators() -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.rand_like(x) + nn.functional.dropout(x + 1, 0.5, True)

    x = torch.zeros(1000, device=other())
    torchweld.reset()
    compiled = torchweld.compile(fn)
    runs = []
    with torch.no_grad():
        for call in (fn, compiled):
            torch.manual_seed(7)
            runs.append([call(x) for _ in range(4)])
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a, b)
    assert STATISTICS.externs == 0
