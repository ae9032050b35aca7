"""Random compositions of operators, views, mutation and aliasing outputs, against eager."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from lower_harness import check

Step = Callable[[random.Random, torch.Tensor, list[torch.Tensor]], torch.Tensor]


def dim(r: random.Random, x: torch.Tensor) -> int:
    return r.randrange(x.dim())


def like(r: random.Random, x: torch.Tensor, vals: list[torch.Tensor]) -> torch.Tensor:
    return r.choice([y for y in vals if y.shape == x.shape and y.dtype == x.dtype])


def narrow(r: random.Random, x: torch.Tensor) -> torch.Tensor:
    d = dim(r, x)
    start = r.randrange(x.shape[d])
    return x.narrow(d, start, r.randint(1, x.shape[d] - start))


def permuted(r: random.Random, x: torch.Tensor) -> torch.Tensor:
    order = list(range(x.dim()))
    r.shuffle(order)
    return x.permute(order)


def assigned(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[0] = 1
    return y


STEPS: list[Step] = [
    lambda r, x, v: x * 2 + 1,
    lambda r, x, v: torch.tanh(x.float()),
    lambda r, x, v: x + like(r, x, v),
    lambda r, x, v: x * like(r, x, v),
    lambda r, x, v: (x > like(r, x, v)).to(x.dtype),
    lambda r, x, v: torch.where(x > 0, x, -x),
    lambda r, x, v: x.to(r.choice([torch.float32, torch.float64, torch.int64])),
    lambda r, x, v: x.reshape(-1),
    lambda r, x, v: permuted(r, x),
    lambda r, x, v: narrow(r, x),
    lambda r, x, v: x.unsqueeze(0).expand(2, *x.shape),
    lambda r, x, v: x.flip(dim(r, x)),
    lambda r, x, v: x.sum(dim(r, x), keepdim=True),
    lambda r, x, v: x.amax(dim(r, x), keepdim=True),
    lambda r, x, v: x.float().mean(dim(r, x), keepdim=True),
    lambda r, x, v: x.argmax(dim(r, x), keepdim=True),
    lambda r, x, v: x.float().softmax(dim(r, x)),
    lambda r, x, v: x.cumsum(dim(r, x)),
    lambda r, x, v: torch.cat([x, like(r, x, v)], dim(r, x)),
    lambda r, x, v: F.pad(x, (r.randint(0, 2), r.randint(0, 2))),
    lambda r, x, v: x[torch.tensor([0, x.shape[0] - 1, -1])],
    lambda r, x, v: x.gather(dim(r, x), torch.zeros_like(x, dtype=torch.int64)),
    lambda r, x, v: x.index_add(0, torch.tensor([0, 0]), torch.ones((2, *x.shape[1:])).to(x)),
    lambda r, x, v: assigned(x),
]


def program(seed: int) -> Callable[..., tuple[torch.Tensor, ...]]:
    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        r = random.Random(seed)
        vals = [a, b]
        for _ in range(r.randint(3, 9)):
            new = r.choice(STEPS)(r, r.choice(vals), vals)
            if new.numel() < 4000:
                vals.append(new)
        if r.random() < 0.3:
            a.add_(1)
        if r.random() < 0.2:
            b.copy_(a.sum())
        chosen = [vals[-1], *r.sample(vals[2:], min(2, len(vals) - 2))]
        return tuple({id(x): x for x in chosen}.values())

    return f


@pytest.mark.parametrize("seed", range(120))
def test_random_program_equals_eager(seed: int) -> None:
    r = random.Random(seed)
    torch.manual_seed(seed)
    shape = [r.choice([1, 2, 3, 5]) for _ in range(r.randint(1, 3))]
    a = torch.randn(shape) * 3
    if r.random() < 0.3:
        turned = list(reversed(range(len(shape))))
        a = a.permute(turned).contiguous().permute(turned)
    b = torch.randint(-5, 5, shape) if r.random() < 0.3 else torch.randn(shape)
    check(program(seed), a, b, tol=(1e-4, 1e-4))
