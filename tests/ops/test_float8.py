"""8-bit floats through the whole stack on the CPU: bits, fusion and exceptions are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import torchweld
from torchweld.ir.program import Call
from torchweld.lower import value
from torchweld.pipeline import STATISTICS

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
KINDS = (E4, E5, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
OTHERS = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
          torch.int16, torch.int8, torch.uint8, torch.bool)  # fmt: skip
EVERY_CODE = torch.arange(256, dtype=torch.uint8)


def names(dtypes: tuple[torch.dtype, ...]) -> list[str]:
    return [str(d)[6:] for d in dtypes]


def of_bits(bits: Tensor) -> Tensor:
    return bits.to(torch.uint32).view(torch.float32)


def inputs(dtype: torch.dtype) -> Tensor:
    """Every value of 16 bits; of more, ties of all formats, their neighbours and the corners."""
    if dtype in (torch.float16, torch.bfloat16, torch.int16):
        return torch.arange(-32768, 32768).to(torch.int16).view(dtype)
    if dtype in (torch.int64, torch.int32):
        near = torch.arange(1 << 18) * 16381 - (1 << 31)
        return torch.cat([near, torch.arange(-500, 500)]).to(dtype)
    if dtype in (torch.int8, torch.uint8, torch.bool):
        return (EVERY_CODE % 2).bool() if dtype is torch.bool else EVERY_CODE.view(dtype)
    steps = torch.arange(0, 1 << 32, 1 << 17)
    f32 = of_bits(torch.cat([(steps + k).clamp(0) for k in (-1, 0, 1, 1 << 16)]))
    if dtype is torch.float32:
        return f32
    wide = f32[f32.isfinite()].double()  # rounded to f32 first, these become ties
    return torch.cat([f32.double(), wide * (1 + 2.0**-30), wide * (1 - 2.0**-30)])


def compiled(f: Callable[..., Any], *args: Any) -> Any:
    """What the compiled function gives at its second call, with nothing left to ATen."""
    torchweld.reset()
    run = torchweld.compile(f, fullgraph=True)
    run(*args)
    out = run(*args)
    (made,) = STATISTICS.compiled
    assert not calls(made) and STATISTICS.aten_graphs == 0
    return out


def calls(made: Any) -> list[str]:
    return [s.op for s in made.executable.program.steps if isinstance(s, Call)]


def assert_same(got: Tensor, want: Tensor, exactly: bool = False) -> None:
    """The same bits; NaN is NaN unless `exactly`: its sign is none of a cast's business."""
    assert got.dtype == want.dtype and got.shape == want.shape and got.stride() == want.stride()
    if got.dtype.itemsize > 1:
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(torch.signbit(got), torch.signbit(want)) or got.isnan().any()
        return
    same = got.view(torch.uint8) == want.view(torch.uint8)
    if not exactly:
        same |= got.float().isnan() & want.float().isnan()
    assert same.all()


@pytest.mark.parametrize("source", OTHERS, ids=names(OTHERS))
def test_every_cast_to_them_is_eagers(source: torch.dtype) -> None:
    def cast(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.to(d) for d in KINDS)

    x = inputs(source)
    for got, want in zip(compiled(cast, x), cast(x), strict=True):
        assert_same(got, want)


@pytest.mark.parametrize("source", KINDS, ids=names(KINDS))
def test_every_cast_from_them_is_eagers(source: torch.dtype) -> None:
    def cast(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.to(d) for d in into)

    x = EVERY_CODE.view(source)
    fnuz = "fnuz" in str(source)  # NaN as an integer is left to ATen
    into = [d for d in (*OTHERS, *KINDS) if not (fnuz and d in (torch.int64, torch.int32))]
    for got, want in zip(compiled(cast, x), cast(x), strict=True):
        assert_same(got, want)


def test_a_torch_that_does_not_saturate_gets_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value, "saturates", lambda: False)
    x = torch.tensor([464.0, 464.1, -1e9, float("inf"), 3.0, float("nan")])
    got = compiled(lambda x: x.to(E4), x).float()
    want = torch.tensor([448.0, float("nan"), float("nan"), float("nan"), 3.0, float("nan")])
    torch.testing.assert_close(got, want, equal_nan=True)


MOVES: dict[str, Callable[[Tensor], Any]] = {
    "clone": lambda x: x.clone(),
    "transpose": lambda x: x.t().contiguous(),
    "cat": lambda x: torch.cat([x, x.flip(0)], 1),
    "where": lambda x: torch.where(x == x, x.roll(3), x),
    "index": lambda x: x[torch.tensor([3, 1, -1])],
    "embedding": lambda x: torch.nn.functional.embedding(torch.tensor([[1, 15]]), x),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 2), value=1.06),
    "number": lambda x: torch.where(x == 1.06, 2.0, x),
    "window": lambda x: x.unfold(0, 5, 2).clone(),
    "fill": lambda x: torch.full_like(x, -0.3),
    "repeat": lambda x: x.repeat(2, 3),
}


@pytest.mark.parametrize("dtype", (E4, E5), ids=names((E4, E5)))
@pytest.mark.parametrize("name", MOVES)
def test_moves_keep_every_bit(name: str, dtype: torch.dtype) -> None:
    x = EVERY_CODE.view(dtype).reshape(16, 16)
    assert_same(compiled(MOVES[name], x), MOVES[name](x), exactly=True)


ANSWERS: dict[str, Callable[[Tensor], Any]] = {
    "equal": lambda x: (x == x, x != x.flip(0), x == 1.06),
    "nan": lambda x: x.isnan(),
    "any": lambda x: (x.any(0), x.all(1)),
    "sum": lambda x: x[:, :7].sum(1, dtype=torch.float32),
}


@pytest.mark.parametrize("dtype", KINDS, ids=names(KINDS))
@pytest.mark.parametrize("name", ANSWERS)
def test_operators_that_eager_has(name: str, dtype: torch.dtype) -> None:
    x = EVERY_CODE.view(dtype).reshape(16, 16)
    got, want = compiled(ANSWERS[name], x), ANSWERS[name](x)
    for a, b in zip(*((v if isinstance(v, tuple) else (v,)) for v in (got, want)), strict=True):
        assert_same(a, b)


REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "add": lambda x: x + x,
    "mul": lambda x: x * 2.0,
    "less": lambda x: x < x,
    "largest": lambda x: x.amax(),
    "sum": lambda x: x.sum(),
    "promotion": lambda x: x * torch.ones(4),
    "choice": lambda x: torch.where(x == x, x, torch.ones(4)),
    "concatenation": lambda x: torch.cat([x, torch.ones(4)]),
    "fill": lambda x: torch.full_like(x, 1e6),
    "abs": lambda x: x.amax().abs(),
    "relu": lambda x: x.relu(),
}


@pytest.mark.parametrize("source", KINDS[2:], ids=names(KINDS[2:]))
def test_nan_of_fnuz_types_as_an_integer(source: torch.dtype) -> None:
    x = EVERY_CODE.view(source)
    torchweld.reset()
    assert torch.equal(torchweld.compile(lambda x: x.to(torch.int64) + 1)(x), x.to(torch.int64) + 1)


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused_alike(name: str) -> None:
    def message(f: Callable[[Tensor], Any]) -> str:
        with pytest.raises((RuntimeError, NotImplementedError)) as caught:
            f(torch.ones(4).to(E4))
        return f"{caught.type.__name__}: {caught.value}"

    torchweld.reset()
    assert message(torchweld.compile(REFUSED[name])) == message(REFUSED[name])


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / 448.0
    return (x.float() / scale).clamp(-448.0, 448.0).to(E4), scale


def dequantise(q: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(q.to(torch.float32) * scale + bias).to(torch.bfloat16)


def test_rows_are_quantised_in_one_kernel() -> None:
    x = torch.randn(33, 190).bfloat16()
    for a, b in zip(compiled(quantise, x), quantise(x), strict=True):
        assert_same(a, b)
    compiled(lambda x: quantise(x)[0], x)
    assert STATISTICS.kernels == 1


def test_codes_are_scaled_in_one_kernel() -> None:
    args = (*quantise(torch.randn(33, 190).bfloat16()), torch.randn(190))
    got = compiled(dequantise, *args)
    assert STATISTICS.kernels == 1
    assert_same(got, dequantise(*args))


def test_a_cache_of_codes_is_written_in_place() -> None:
    def step(cache: Tensor, x: Tensor) -> Tensor:
        cache[:, 3:5] = x.to(E5)
        cache[0] = 1.0
        return cache.float() * 2.0

    mine, theirs, x = torch.zeros(4, 8).to(E5), torch.zeros(4, 8).to(E5), torch.randn(4, 2)
    assert_same(compiled(step, mine, x), step(theirs, x))
    assert_same(mine, theirs)


def test_a_scaled_product_is_a_call_between_kernels() -> None:
    def linear(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
        q = (x * 4.0).to(E4)
        y = torch._scaled_mm(q, w.t(), scale_a=scale / 4.0, scale_b=scale,
                             out_dtype=torch.bfloat16)  # fmt: skip
        return torch.relu(y) + 1

    x, w, scale = torch.randn(16, 32), torch.randn(16, 32).to(E4), torch.tensor(0.5)
    torchweld.reset()
    got = torchweld.compile(linear, fullgraph=True)(x, w, scale)
    torch.testing.assert_close(got, linear(x, w, scale), rtol=0, atol=0)
    (made,) = STATISTICS.compiled
    assert calls(made) == ["aten._scaled_mm.default"] and STATISTICS.externs == 1
