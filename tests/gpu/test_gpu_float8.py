"""8-bit floats on CUDA: every cast gives eager's bits, with the instructions of the GPU at hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import torchweld
from torchweld.pipeline import STATISTICS

pytestmark = pytest.mark.gpu
E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
KINDS = (E4, E5, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
NAMES = [str(d)[6:] for d in KINDS]
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def compiled(f: Callable[..., Any], *args: Any) -> Any:
    """What the compiled function gives at its second call; it fell back to nothing."""
    torchweld.reset()
    run = torchweld.compile(f, fullgraph=True)
    run(*args)
    out = run(*args)
    assert STATISTICS.aten_graphs == 0 and STATISTICS.internal_errors == 0
    return out


def same(got: Tensor, want: Tensor) -> bool:
    """The same bits; NaN is NaN."""
    if got.dtype != want.dtype or got.stride() != want.stride():
        return False
    a, b = got.double(), want.double()
    equal = (a == b) & (torch.signbit(a) == torch.signbit(b))
    return bool((equal | (a.isnan() & b.isnan())).all())


def every_f32(step: int) -> Tensor:
    """f32 of every sign and exponent, the ties of all formats and their neighbours among them."""
    bits = torch.arange(0, 1 << 32, step, device="cuda")
    bits = torch.cat([(bits + k).clamp(0, (1 << 32) - 1) for k in (-1, 0, 1)])
    return bits.to(torch.uint32).view(torch.float32)


@pytest.mark.parametrize("source", FLOATS, ids=[str(d)[6:] for d in FLOATS])
def test_casts_to_them(source: torch.dtype) -> None:
    x = every_f32(1 << 12).to(source)
    cast = lambda x: tuple(x.to(d) for d in KINDS)
    for got, want, name in zip(compiled(cast, x), cast(x), NAMES, strict=True):
        assert same(got, want), name
    assert STATISTICS.externs == 0


@pytest.mark.parametrize("n", [1, 3, 37])
def test_few_elements(n: int) -> None:
    x = torch.linspace(-500, 700, n, device="cuda")
    cast = lambda x: (x.to(E4), x.to(E5), x.sum().to(E4))
    assert all(map(same, compiled(cast, x), cast(x)))


@pytest.mark.parametrize("source", KINDS, ids=NAMES)
def test_casts_from_them(source: torch.dtype) -> None:
    x = torch.arange(256, dtype=torch.uint8, device="cuda").view(source)
    cast = lambda x: tuple(x.to(d) for d in (*FLOATS, torch.bool, *KINDS))
    assert all(map(same, compiled(cast, x), cast(x)))


def test_moves_keep_every_bit() -> None:
    x = torch.arange(256, dtype=torch.uint8, device="cuda").view(E5).reshape(16, 16)
    move = lambda x: torch.cat([x.t(), x.flip(0)], 1).contiguous()
    assert torch.equal(compiled(move, x).view(torch.uint8), move(x).view(torch.uint8))


def test_rows_are_quantised_and_scaled_back() -> None:
    def there(x: Tensor) -> tuple[Tensor, Tensor]:
        scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / 448.0
        return (x.float() / scale).clamp(-448.0, 448.0).to(E4), scale

    def back(q: Tensor, scale: Tensor) -> Tensor:
        return (q.float() * scale).bfloat16()

    x = torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16)
    got, want = compiled(there, x), there(x)
    assert all(map(same, got, want))
    assert same(compiled(back, *want), back(*want))


def test_a_scaled_product_is_a_call_between_kernels() -> None:
    def linear(x: Tensor, w: Tensor, one: Tensor) -> Tensor:
        y = torch._scaled_mm((x * 4.0).to(E4), w.t(), scale_a=one / 4.0, scale_b=one,
                             out_dtype=torch.bfloat16)  # fmt: skip
        return torch.relu(y) + 1

    x, one = torch.randn(64, 128, device="cuda"), torch.ones((), device="cuda")
    w = torch.randn(32, 128, device="cuda").to(E4)
    if torch.cuda.get_device_capability() < (8, 9):  # eager has none
        with pytest.raises(RuntimeError):
            compiled(linear, x, w, one)
        return
    assert same(compiled(linear, x, w, one), linear(x, w, one))
    assert STATISTICS.externs == 1
