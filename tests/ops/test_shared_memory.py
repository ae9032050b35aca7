"""Operators that write what they read, and views of nothing: what eager does with the memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torchweld
from torchweld.pipeline import STATISTICS

I = torch.tensor([3, 0, 3, 1])  # noqa: E741
EVERYWHERE = I[:, None].expand(4, 4)
MOVES: dict[str, Callable[[Tensor], object]] = {
    "index_copy_": lambda x: x.index_copy_(0, I, x), "index_add_": lambda x: x.index_add_(0, I, x),
    "index_put_": lambda x: x.index_put_((I,), x), "put_": lambda x: x.put_(I, x[:, 0]),
    "scatter_": lambda x: x.scatter_(0, EVERYWHERE, x), "addmm_": lambda x: x.addmm_(x, x),
    "scatter_add_": lambda x: x.scatter_add_(0, EVERYWHERE, x),
    "masked_scatter_": lambda x: x.masked_scatter_(x > 3, x),
    "index_select out": lambda x: torch.index_select(x, 0, I, out=x),
    "gather out": lambda x: torch.gather(x, 0, EVERYWHERE, out=x),
    "mm out": lambda x: torch.mm(x, x, out=x),
    "cat out": lambda x: torch.cat([x[:2], x[2:]], out=x),
}  # fmt: skip
IN_ORDER: dict[str, Callable[[Tensor], object]] = {
    "add_": lambda x: x.add_(x), "addcmul_": lambda x: x.addcmul_(x, x),
    "copy_": lambda x: x.copy_(x),
    "lerp_": lambda x: x.lerp_(x, x), "add out": lambda x: torch.add(x, x, out=x),
    "where out": lambda x: torch.where(x > 2, x, -x, out=x), "cumsum_": lambda x: x.cumsum_(0),
}  # fmt: skip
LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "gaps": lambda: torch.arange(32.0).reshape(4, 8)[:, ::2],
    "dense": lambda: torch.arange(16.0).reshape(4, 4),
}  # fmt: skip


def done(fn: Callable[[Tensor], object], x: Tensor) -> Tensor | str:
    try:
        fn(x)
    except RuntimeError as error:
        return str(error)
    return x


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [*MOVES, *IN_ORDER])
def test_what_writes_its_own_argument_does_what_it_does_in_eager(name: str, layout: str) -> None:
    torchweld.reset()
    fn = {**MOVES, **IN_ORDER}[name]
    got, want = done(torchweld.compile(fn), LAYOUTS[layout]()), done(fn, LAYOUTS[layout]())
    assert type(got) is type(want)
    assert got == want if isinstance(want, str) else torch.equal(got, want)  # type: ignore[arg-type]
    counts = STATISTICS.counts()
    assert (counts["graphs"], counts["breaks"]) == ((1, 0) if name in IN_ORDER else (0, 1))


FILLED: dict[str, Callable[[Tensor], object]] = {
    "fill_": lambda x: x[0:1].expand_as(x).fill_(2.0), "zero_": lambda x: x.expand(3, 6).zero_(),
    "fill_ of a view": lambda x: x.expand(3, 6).unsqueeze(0).fill_(2.0),
    "a tensor twice": lambda x: torch._foreach_add_([x, x], 1),
    "tensors that overlap": lambda x: torch._foreach_mul_([x[:4], x[2:]], 2.0),
    "one after the other": lambda x: torch._foreach_add_([x[:3], x[3:]], [x[3:], x[:3]]),
    "copies": lambda x: torch._foreach_copy_([x[:3], x[3:]], [x[3:], x[:3]]),
}  # fmt: skip
APART: dict[str, Callable[[Tensor], object]] = {
    "windows": lambda x: x.unfold(0, 2, 1).fill_(2.0),
    "row": lambda x: x.expand(3, 6)[0].fill_(2.0),
    "neighbours": lambda x: torch._foreach_mul_([x[:3], x[3:]], 2.0),
    "themselves": lambda x: torch._foreach_mul_([x[:3], x[3:]], [x[:3], x[3:]]),
}  # fmt: skip


@pytest.mark.parametrize("name", [*FILLED, *APART])
def test_places_that_are_written_more_than_once_hold_what_they_hold_in_eager(name: str) -> None:
    torchweld.reset()
    fn = {**FILLED, **APART}[name]
    mine, theirs = torch.arange(6.0), torch.arange(6.0)
    torchweld.compile(fn)(mine), fn(theirs)
    assert torch.equal(mine, theirs)
    assert STATISTICS.counts()["breaks"] == (name in FILLED)


def windows(b: Tensor) -> tuple[Tensor, ...]:
    u = (b * 2 + 1).exp()
    return b[1:], b[:, 2:2], u, u[1:], u[:, 3:3], u.t()[2:][:, 1:], b.chunk(2, 1)[1][1:]


def lonely_window(b: Tensor) -> tuple[Tensor, ...]:
    return ((b * 2 + 1).exp()[:, 3:3],)


def windows_of_written(b: Tensor) -> tuple[Tensor, ...]:
    b.mul_(2).add_(1)
    return b[1:], b.view(-1)[4:].view(0, 3), b[:, 1:1].unfold(0, 1, 1)


@pytest.mark.parametrize("fn", [windows, lonely_window, windows_of_written])
def test_views_without_elements_begin_where_they_do_in_eager(fn: Callable[..., object]) -> None:
    torchweld.reset()
    x = torch.randn(4, 4)[3:]
    got, want = torchweld.compile(fn)(x), fn(x)
    assert [(t.storage_offset(), t.shape, t.stride()) for t in got] == (
        [(t.storage_offset(), t.shape, t.stride()) for t in want])  # fmt: skip
    assert STATISTICS.counts()["graphs"] == 1 and not STATISTICS.counts()["aten_graphs"]


def test_an_out_that_grows_behind_the_end_of_an_argument() -> None:
    def fn(b: Tensor, c: Tensor) -> Tensor:
        u = b.view(b.dtype)
        t = (c * 2 + 1).exp() * 3
        torch.maximum(t, c, out=u[1:])
        return u

    torchweld.reset()
    mine, theirs = torch.ones(1, 4), torch.ones(1, 4)
    got, want = torchweld.compile(fn)(mine, torch.ones(2, 4)), fn(theirs, torch.ones(2, 4))
    assert torch.equal(got, want) and torch.equal(mine, theirs)
    assert STATISTICS.counts()["breaks"] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_dropout_of_nothing_beside_sizes_that_vary(dtype: torch.dtype) -> None:
    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return F.dropout(x * 1, 0.4), (y * 2 + 1).exp()

    torchweld.reset()
    compiled = torchweld.compile(fn)
    for rows, n in ((0, 4), (0, 5), (0, 6), (4, 7), (5, 8), (0, 9)):
        x, y = torch.ones(rows, 3, dtype=dtype).requires_grad_(), torch.ones(n)
        torch.manual_seed(n)
        got = compiled(x, y)
        torch.manual_seed(n)
        want = fn(x, y)
        assert all(torch.equal(a, b) and a.dtype is b.dtype for a, b in zip(got, want, strict=True))
        gradients = [torch.autograd.grad(outs[0].sum(), x)[0] for outs in (got, want)]
        assert torch.equal(*gradients)
    counts = STATISTICS.counts()
    assert counts["breaks"] == counts["internal_errors"] == counts["aten_graphs"] == 0
