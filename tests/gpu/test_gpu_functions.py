"""Functions on CUDA tensors: results, dtypes and strides as in eager, over several calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torchweld
from torchweld.pipeline import STATISTICS
from torchweld.workbench.compare import differences
from torchweld.workbench.gpu_suites import column_sum_of_squares, cross_entropy
from torchweld.workbench.suites import (
    SeedMLP,
    gelu_chain,
    residual_layernorm,
    rmsnorm,
    seed_mlp_inside,
)

pytestmark = pytest.mark.gpu
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def check(fn: Callable[..., Any], *args: Any, calls: int = 4, scale: float = 4.0) -> None:
    """Compiled and eager agree on fresh inputs over several calls, and nothing fell back."""
    torchweld.reset()
    compiled = torchweld.compile(fn, fullgraph=True)
    with torch.no_grad():
        for i in range(calls):
            now = [a + i if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
            assert differences(compiled(*now), fn(*now), scale=scale, strides=True) == []
    assert STATISTICS.aten_graphs == 0 and STATISTICS.internal_errors == 0
    if all(a.numel() for a in args if isinstance(a, Tensor)):
        assert STATISTICS.kernels + STATISTICS.externs > 0


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(4,), (7, 33), (64, 1024), (3, 50257), (1000, 17)])
def test_rows(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, w = rand(*shape, dtype=dtype), rand(shape[-1], dtype=dtype)
    check(lambda x: torch.softmax(x, -1), x)
    check(lambda x: torch.log_softmax(x * 2, -1), x)
    check(rmsnorm, x, w, scale=16.0)
    check(lambda x, y, w, b: residual_layernorm(x, y, w, b), x, x, w, w, scale=16.0)
    check(lambda x: (x.amax(-1), x.argmax(-1), x.mean(-1, keepdim=True)), x)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(4,), (7, 33), (64, 1024), (1, 1), (0, 5)])
def test_pointwise(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, y = rand(*shape, dtype=dtype), rand(*shape, dtype=dtype)
    check(gelu_chain, x, y)
    check(lambda a, b: (a + b, torch.sin(a) * b, (a > b).to(torch.int32), a.double()), x, y)
    check(lambda a, b: torch.where(a > 0, a.exp(), b.tanh()), x, y)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64, torch.int32, torch.bool])
def test_division_by_a_number_has_eagers_bits(dtype: torch.dtype) -> None:
    x = (torch.randn(4096, device="cuda") * 100).to(dtype)
    fn = torchweld.compile(lambda x: (x / 3.0, x / 448, x / 0.1, x.t().div(7), x / 1e-42))
    with torch.no_grad():
        for found, wanted in zip(fn(x), (x / 3.0, x / 448, x / 0.1, x.div(7), x / 1e-42),
                                 strict=True):  # fmt: skip
            assert torch.equal(found.nan_to_num(5), wanted.nan_to_num(5))


def test_columns() -> None:
    check(column_sum_of_squares, rand(4096, 512, dtype=torch.bfloat16), scale=50.0)
    check(lambda x: (x.sum(0), x.amax(0), x.var(0)), rand(333, 65), scale=50.0)
    check(lambda x: x.sum(), rand(2000, 1000) * 0.01, scale=200.0)


def test_layouts() -> None:
    x = rand(64, 48)
    check(lambda x: x.t().contiguous() + 1, x)
    check(lambda x: (x.t() * 2, x[::2, 1::3] + 1), x)
    check(lambda x: torch.cat([x, x * 2, x[:5]], 0), x)
    check(lambda x: F.pad(x, (1, 2, 3, 4), value=0.5), x)
    check(lambda x: torch.roll(x, (3, -2), (0, 1)), x)
    check(lambda x: x.view(8, 8, 6, 8).permute(0, 2, 1, 3).reshape(48, 64), x)


def test_indexing() -> None:
    x, at = rand(100, 32), torch.randint(0, 100, (64,), device="cuda")
    check(lambda x, at: x[at] * 2, x, at)
    check(lambda x, at: F.embedding(at, x).relu(), x, at)
    check(lambda x, at: x.index_select(0, at), x, at)
    check(lambda x, at: torch.zeros_like(x).index_add(0, at, x[:64]), x, at, scale=20.0)
    check(lambda x, at: x.gather(0, at[:, None].expand(64, 32)), x, at)
    check(lambda x, at: torch.zeros(100, device=x.device).scatter_add(0, at, x[:64, 0]), x, at)


def test_scans() -> None:
    check(lambda x: x.cumsum(-1), rand(17, 300), scale=50.0)
    check(lambda x: torch.cumsum(x > 0, 0), rand(300, 5))


def test_loss() -> None:
    target = torch.randint(0, 5000, (64,), device="cuda")
    check(cross_entropy, rand(64, 5000, dtype=torch.bfloat16), target, scale=10.0)


def test_cpu_scalars_mix_with_cuda_tensors() -> None:
    check(lambda x, s: x * s + 1, rand(33), torch.tensor(0.5, dtype=torch.float64))
    check(lambda x, s: x + s, rand(33, dtype=torch.bfloat16), torch.tensor(3))


@pytest.mark.parametrize("dtype", FLOATS)
def test_article(dtype: torch.dtype) -> None:
    model = SeedMLP(64).cuda().to(dtype)
    check(model, rand(128, 64, dtype=dtype) * 0.1, scale=20.0)
    launches = STATISTICS.compiled[-1].kernels + STATISTICS.compiled[-1].externs
    assert launches == 5  # linear and relu four times, softmax


def scale_all(*x: Tensor) -> list[Tensor]:
    """Rows of many sizes, normalised, and lists of tensors, each with its own result."""
    many = torch._foreach_add(torch._foreach_mul(list(x), 0.5), list(x), alpha=2.0)
    return [*many, *(torch.softmax(a, -1) for a in x)]


@pytest.mark.parametrize("dtype", FLOATS)
def test_small_kernels_share_launches(dtype: torch.dtype) -> None:
    sizes = [(768,), (30, 77), (512, 64), (2304,), (1, 1), (5,), (128, 1000)]
    check(scale_all, *(rand(*n, dtype=dtype) for n in sizes))
    assert STATISTICS.compiled[-1].kernels < len(sizes)


def test_random_numbers_are_eagers() -> None:
    x = rand(128, 512)
    compiled = torchweld.compile(seed_mlp_inside)
    for _ in range(4):
        torch.manual_seed(3)
        want = seed_mlp_inside(x)
        torch.manual_seed(3)
        assert differences(compiled(x), want, scale=50.0) == []


def test_convolutions() -> None:
    x, w, b = rand(2, 3, 33, 33), rand(8, 3, 3, 3), rand(8)
    check(lambda x, w, b: F.relu(F.conv2d(x, w, b, 2, 1)), x, w, b, scale=50.0)
    check(lambda x, w, b: F.max_pool2d(F.relu(F.conv2d(x, w, b)), 2).flatten(1), x, w, b,
          scale=50.0)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_attention(dtype: torch.dtype) -> None:
    q, k, v = (rand(2, 4, 64, 32, dtype=dtype) for _ in range(3))

    def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    check(causal, q, k, v, scale=50.0)

    def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) * 0.2, -1) @ v

    check(by_hand, q * 0.1, k * 0.1, v, scale=50.0)
    assert STATISTICS.compiled[-1].externs == 1


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
def test_products_with_long_odd_rows(dtype: torch.dtype) -> None:
    x, w, b = (rand(*s, dtype=dtype) * 0.1 for s in ((512, 256), (2049, 256), (2049,)))
    check(lambda x, w: F.linear(x, w), x, w, scale=10.0)
    check(lambda x, w, b: F.linear(x, w, b).relu(), x, w, b, scale=10.0)
    check(lambda x, w: torch.log_softmax(F.linear(x * 0.02, w), -1), x, w, scale=20.0)
