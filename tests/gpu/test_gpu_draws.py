"""Random operators on a GPU: eager's own numbers, its generator after them, CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torchweld
from torchweld.base.config import override
from torchweld.pipeline import STATISTICS
from torchweld.workbench.suites import seed_mlp_inside

pytestmark = pytest.mark.gpu
# how near normal numbers are: a unit in the last place of the dtype, and of f32
NEAR = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float64: 1e-12}


@pytest.fixture(autouse=True)
def drawn_by_our_kernels() -> Iterator[None]:
    with override(gpu_random=True):
        yield


def offset() -> int:
    return torch.cuda.default_generators[0].get_offset()


def check(fn: Callable[..., Any], *args: Tensor, near: float = 0.0, calls: int = 4) -> Any:
    """Compiled gives eager's numbers over several calls, and no operator of ATen draws them."""
    torchweld.reset()
    compiled = torchweld.compile(fn, fullgraph=True)
    with torch.no_grad():
        runs = []
        for call in (fn, compiled):
            torch.manual_seed(0xD1342543DE82EF95)
            runs.append([(call(*(a.clone() for a in args)), offset()) for _ in range(calls)])
    for (wanted, stood), (got, stands) in zip(*runs, strict=True):
        torch.testing.assert_close(got, wanted, rtol=near, atol=near, equal_nan=True)
        assert stood == stands
    assert STATISTICS.aten_graphs == 0 and STATISTICS.internal_errors == 0
    return STATISTICS.compiled[-1].executable


def exact(x: Tensor) -> tuple[Tensor, ...]:
    """What eager and compiled agree on in every bit."""
    return (
        torch.rand(x.shape, device="cuda", dtype=x.dtype), torch.rand_like(x),
        (x + 1).bernoulli_(0.3), torch.bernoulli(x, 0.7), F.dropout(x + 1, 0.3, True),
    )  # fmt: skip


def rounded(x: Tensor) -> tuple[Tensor, ...]:
    """What has a sum with a product in it, or a logarithm."""
    return (
        torch.randn(x.shape, device="cuda", dtype=x.dtype), torch.randn_like(x),
        (x + 1).normal_(3, 0.25), (x + 1).uniform_(-1, 3),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("size", [(300,), (270336 + 9,), (3, 1 << 20)])
def test_distributions(size: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.zeros(size, device="cuda", dtype=dtype)
    check(exact, x, calls=3)
    assert STATISTICS.externs == 0
    check(rounded, x, near=NEAR[dtype], calls=3)
    assert STATISTICS.externs == 0


@pytest.mark.parametrize("n", [4096, 4098, 4097])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_of_every_width(n: int, dtype: torch.dtype) -> None:
    x = torch.randn(n, 3, device="cuda", dtype=dtype)
    check(lambda x: (F.dropout(x * 2, 0.5, True), *torch.native_dropout(x - 1, 0.1, True)), x)
    assert STATISTICS.externs == 0


def mixed(x: Tensor) -> Tensor:
    h = F.dropout(x * 2, 0.1, True) + torch.rand_like(x)
    h = (h * 3).bernoulli_(0.5) + h
    torch.rand(7, device="cuda")
    return F.dropout(h, 0.2, True).sum(-1) + torch.randn(x.shape[0], device="cuda")


def test_several_operators_are_one_graph() -> None:
    executable = check(mixed, torch.randn(513, 700, device="cuda"), near=2e-4, calls=6)
    assert STATISTICS.externs == 0
    assert not isinstance(executable.graphs, str) or "as fast" in executable.graphs


def test_weights_made_inside_do_not_keep_a_model_from_being_a_graph() -> None:
    x = torch.randn(1024, 512, device="cuda") * 1e-5  # so that the results are not one-hot
    executable = check(seed_mlp_inside, x, near=1e-4, calls=6)
    assert not isinstance(executable.graphs, str), executable.graphs


def test_an_operator_that_is_not_known_keeps_the_order_of_eager() -> None:
    x = torch.randn(1000, device="cuda")
    check(lambda x: torch.rand_like(x) + (x * 2).exponential_() + torch.rand_like(x), x)


def test_state_that_was_saved_gives_the_same_numbers_again() -> None:
    compiled = torchweld.compile(lambda x: torch.rand_like(x) + x, fullgraph=True)
    x = torch.zeros(5000, device="cuda")
    with torch.no_grad():
        for _ in range(4):
            state = torch.cuda.get_rng_state()
            one = compiled(x)
            torch.cuda.set_rng_state(state)
            assert torch.equal(one, torch.rand_like(x))
        with torch.random.fork_rng(devices=[0]):
            compiled(x)
        torch.cuda.set_rng_state(state)
        assert torch.equal(compiled(x), one)


def test_a_capture_of_the_users_draws_anew_at_each_replay() -> None:
    x = torch.zeros(5000, device="cuda")
    compiled = torchweld.compile(lambda x: torch.rand_like(x) + x, fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = compiled(x)
        torch.manual_seed(3)
        graph.replay()
        one = y.clone()
        graph.replay()
        assert not torch.equal(one, y)
        torch.manual_seed(3)
        assert torch.equal(one, torch.rand_like(x))
