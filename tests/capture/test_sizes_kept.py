"""Calls that ask C++ or Python for a plain number keep a size that varies: two compilations."""

import math

import pytest
import torch
import torch.nn.functional as F

import torchweld

LENGTHS = (5, 7, 8, 13, 3, 16, 21)
FILTERS = torch.randn(6, 4, 3)
KERNELS = torch.randn(6, 3, 3, 3)


def rows(n):
    return (torch.randn(n, 4),)


def pad_all(xs):
    most = max(x.shape[0] for x in xs)
    return torch.stack([F.pad(x, (0, 0, 0, most - x.shape[0])) for x in xs])


PROGRAMS = {
    "max_pool1d": (lambda x: F.max_pool1d(x, 2) * 2, lambda n: (torch.randn(2, 4, n + 3),)),
    "max_pool1d with all options": (
        lambda x: torch.max_pool1d(x, (3,), stride=[2], padding=1, dilation=1, ceil_mode=True) * 2,
        lambda n: (torch.randn(4, n + 3),)),
    "batch of conv1d": (lambda x: F.conv1d(x, FILTERS, padding=1),
                        lambda n: (torch.randn(n, 4, 7),)),
    "batch of conv2d": (lambda x: F.conv2d(x, KERNELS), lambda n: (torch.randn(n, 3, 7, 7),)),
    "batch times length of conv1d": (
        lambda x: F.conv1d(x.flatten(0, 1), FILTERS), lambda n: (torch.randn(n, n + 1, 4, 7),)),
    "math.prod": (lambda x: x.reshape(math.prod(x.shape)) * 2, rows),
    "logarithm": (lambda x: x * math.log(x.shape[0]) / math.sqrt(x.shape[0]), rows),
    "divmod": (lambda x: x[: divmod(x.shape[0], 2)[0]] * divmod(x.shape[0], 3)[1],
               lambda n: rows(n + 1)),
    "round": (lambda x: x[: round(x.shape[0] / 2)] * round(x.shape[0] / 3), rows),
    "slice object": (lambda x, y: x[slice(1, y.shape[0])] * 2,
                     lambda n: (torch.randn(25, 2), *rows(n))),
    "tensor": (lambda x: x + torch.tensor(x.shape[0]), rows),
    "tensor of a list": (lambda x: x + torch.tensor([[x.shape[0], 1, 2, 3.5]]), rows),
    "tensor of a dtype": (lambda x: x + torch.as_tensor(x.shape[0], dtype=torch.float64), rows),
    "linspace": (lambda x: x + torch.linspace(-1, 2, x.shape[0])[:, None], rows),
    "full": (lambda x: torch.full((x.shape[0], 2), x.shape[0] * 0.5) + x.new_full((1,), len(x)),
             rows),
    "broadcast_shapes": (
        lambda x, y: x.new_zeros(torch.broadcast_shapes(x.shape, y.shape)) + 1,
        lambda n: (torch.randn(n, 1), torch.randn(4))),
    "padded to the longest": (
        lambda *xs: pad_all(xs), lambda n: (*rows(n), *rows(n + 1), *rows(n + 3))),
    "bicubic": (lambda x: F.interpolate(x, size=(x.shape[2] * 2, 5), mode="bicubic") * 2,
                lambda n: (torch.randn(1, 2, n + 2, n + 3),)),
    "bicubic by a factor": (lambda x: F.interpolate(x, scale_factor=1.5, mode="bicubic") * 2,
                            lambda n: (torch.randn(1, 2, n + 2, n + 3),)),
    "bicubic of a grid of a size": (
        lambda x, g: F.interpolate(g, size=x.shape[:2], mode="bicubic", antialias=True) * 2,
        lambda n: (torch.randn(n, n + 1), torch.ones(1, 2, 4, 4))),
    "windows": (
        lambda x: x.view(1, x.shape[1] // 2, 2, x.shape[2] // 2, 2, 3).permute(0, 1, 3, 2, 4, 5)
        .reshape(-1, 4, 3) * 2, lambda n: (torch.randn(1, 2 * n, 2 * n + 2, 3),)),
    "pairs": (lambda x: x.unflatten(0, (-1, 2)).sum(1) * 2, lambda n: rows(2 * n)),
    "padded windows": (
        lambda x: F.pad(x, (0, 0, 0, (4 - x.shape[0] % 4) % 4)).view(-1, 4, 4).transpose(0, 1) * 2,
        lambda n: rows(n + 5)),
    "rfft": (lambda x: torch.fft.rfft(x).abs() * 2, lambda n: (torch.randn(3, n + 4),)),
    "fft of columns": (lambda x: torch.fft.fft(x, dim=0).real * 2, rows),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
@torch.no_grad()
def test_a_size_that_varies_is_not_fixed(name):
    fn, make = PROGRAMS[name]
    torchweld.reset()
    torch.manual_seed(0)
    compiled = torchweld.compile(fn)
    for n in LENGTHS:
        args = make(n)
        torch.testing.assert_close(compiled(*args), fn(*args))
    counts = torchweld.statistics()
    assert (counts["captures"], counts["breaks"], counts["aten_graphs"]) == (2, 0, 0)


def test_round_of_halves_goes_to_even_at_every_size():
    def fn(x):
        return x.new_zeros(round(x.shape[0] / 4) + 2), x.new_zeros(round(x.shape[0] * 0.5) + 2)

    compiled = torchweld.compile(fn, dynamic=True)
    for n in range(2, 40):
        x = torch.randn(n)
        assert [t.shape for t in compiled(x)] == [t.shape for t in fn(x)]


def test_a_broadcast_that_fails_raises_eagers_error():
    compiled = torchweld.compile(lambda x, y: torch.broadcast_shapes(x.shape, y.shape))
    for n in (4, 5):
        compiled(torch.randn(n), torch.randn(n))
    with pytest.raises(RuntimeError, match="hape"):
        compiled(torch.randn(6), torch.randn(7))


@pytest.mark.parametrize("steps", [(5, 4, 1, 0, 2), (1, 6, 3)])
def test_one_step_of_a_linspace_is_its_start(steps):
    torchweld.reset()
    compiled = torchweld.compile(lambda n: torch.linspace(2, 5, n), fullgraph=True)
    for n in steps:
        torch.testing.assert_close(compiled(n), torch.linspace(2, 5, n))
