"""Axes of one element: fake results have the strides that eager's loops give them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torchweld
from torchweld.ir.fake import FakeMode

Make = Callable[[Tensor, Tensor], Tensor]
RESULTS: dict[str, Make] = {
    "sin": lambda x, y: x.sin(), "relu": lambda x, y: F.relu(x), "add": lambda x, y: x + y,
    "number": lambda x, y: x + 1, "turned": lambda x, y: 1 - x, "compared": lambda x, y: x > 0,
    "lone number": lambda x, y: x * torch.ones(()), "where": lambda x, y: torch.where(x > 0, x, y),
    "addcmul": lambda x, y: torch.addcmul(x, y, y), "first rows": lambda x, y: x + y[:1],
    "columns": lambda x, y: y[..., :1] * x, "power": lambda x, y: x**2,
    "clamp": lambda x, y: x.clamp(0, 1),
    "hardtanh": lambda x, y: F.hardtanh(x), "nan_to_num": lambda x, y: x.nan_to_num(),
    "copied": lambda x, y: x.clone(),
    "cast": lambda x, y: x.double(), "flip": lambda x, y: x.flip(0),
    "zeros": lambda x, y: torch.zeros_like(x), "remainder": lambda x, y: x % 2,
    "integers": lambda x, y: x.long() & 1, "elu": lambda x, y: F.elu(x),
    "loss": lambda x, y: F.l1_loss(x, y, reduction="none"),
    "logical": lambda x, y: torch.logical_and(x, y), "gelu": lambda x, y: F.gelu(x),
}  # fmt: skip


def laid_out(dice: random.Random, shape: list[int]) -> Tensor:
    kind = dice.choice(["permuted", "permuted", "standard", "standard", "gaps", "last"])
    if kind == "standard":
        return torch.randn(shape)
    if kind == "gaps":
        return torch.randn([2 * n + 1 for n in shape])[tuple(slice(0, 2 * n, 2) for n in shape)]
    order = list(range(len(shape)))
    dice.shuffle(order)
    if kind == "last" and len(shape) == 4:
        order = [0, 2, 3, 1]
    made = torch.randn([shape[d] for d in order])
    return made.permute([order.index(d) for d in range(len(shape))])


@pytest.mark.parametrize("name", RESULTS)
def test_strides_of_axes_of_one_element_are_those_of_eager(name: str) -> None:
    dice, mode = random.Random(5), FakeMode()
    for _ in range(120):
        shape = [dice.choice([1, 1, 2, 3]) for _ in range(dice.choice([2, 2, 3, 4, 4, 4]))]
        x = laid_out(dice, shape)
        y = dice.choice([x, laid_out(dice, shape)])
        fakes = [mode.from_tensor(x), mode.from_tensor(y)]
        with mode:
            fake = RESULTS[name](*fakes)
        assert fake.stride() == RESULTS[name](x, y).stride(), (shape, x.stride(), y.stride())


def test_a_convolution_of_images_with_one_channel_is_laid_out_as_in_eager() -> None:
    def fn(c: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        t = F.selu(c)
        return F.conv2d(t, t[:2, :, :3, :3]), t.stride()

    images = torch.randn(4, 11, 8, 1).permute(0, 3, 1, 2)
    torchweld.reset()
    (got, mine), (want, theirs) = torchweld.compile(fn)(images), fn(images)
    assert (got.stride(), mine) == (want.stride(), theirs)
    torch.testing.assert_close(got, want)
    assert torchweld.statistics()["graphs"] == 1
