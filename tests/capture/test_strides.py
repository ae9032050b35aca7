"""Strides that are read inside a frame are those that eager's kernels give."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld
import torchweld.pipeline

IMAGE = torch.randn(2, 3, 8, 6)


def unpool(x):
    y, at = F.max_pool2d(x, 2, return_indices=True)
    return F.max_unpool2d(y, at, 2)


@pytest.mark.parametrize("backend", ["eager", "torchweld"])
@pytest.mark.parametrize("x", [IMAGE, IMAGE.to(memory_format=torch.channels_last)])
@pytest.mark.parametrize("op", [
    unpool, lambda x: torch.fft.rfft(x, dim=1), lambda x: torch.fft.fft(x, dim=0),
    lambda x: torch.fft.irfft2(torch.fft.rfft2(x, dim=(0, -1)), dim=(0, -1)),
])  # fmt: skip
def test_strides_in_the_frame_are_those_of_eager(op, x, backend):
    def fn(x):
        y = op(x)
        if y.is_contiguous():
            return y + 1, y.stride()
        return y - 1, y.stride()

    torchweld.reset()
    compiled = torchweld.compile(fn, fullgraph=True, backend=backend)
    (expected, strides), (got, found) = fn(x), compiled(x)
    assert found == strides
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got, expected)


ROWS = torch.rand(4, 3)
LAST = IMAGE.to(memory_format=torch.channels_last)


@pytest.mark.parametrize("op, x", [
    (lambda x: F.channel_shuffle(x[:, :2], 2), LAST),
    (lambda x: F.pad(x[:, :, :, None], (1, 1, 0, 0, 1, 1), mode="replicate"), LAST),
    (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), LAST),
    (lambda x: F.batch_norm(x.permute(3, 1, 2, 0), None, None, training=True), IMAGE),
    (lambda x: F.binary_cross_entropy(x, x, reduction="none"), ROWS.t()),
    (lambda x: torch.div(x, x + 1, rounding_mode="floor"), ROWS.t()),
    (lambda x: (x * 10).long() // (x * 10 + 1).long(), ROWS.t()),
    (lambda x: torch.copysign(x, x), ROWS.t()),
    (lambda x: torch.xlogy(x, x), ROWS.t()),
    (lambda x: torch.special.xlog1py(x, x), ROWS.t()),
    (lambda x: 2**x, ROWS.t()),
    (F.logsigmoid, LAST),
    (lambda x: torch.logaddexp(torch.ones(6), x), LAST),
    (lambda x: F.one_hot((x * 3).long(), 4), ROWS.t()),
])  # fmt: skip
def test_results_of_permuted_tensors_have_the_strides_of_eager(op, x):
    torchweld.reset()
    with torch.no_grad():
        compiled = torchweld.compile(lambda x: (op(x), op(x).stride()), fullgraph=True)
        expected, (got, found) = op(x), compiled(x)
    assert found == got.stride() == expected.stride()
    torch.testing.assert_close(got, expected)
    assert torchweld.pipeline.STATISTICS.aten_graphs == 0


def test_an_operator_whose_strides_were_predicted_wrong_is_compiled():
    x = IMAGE.to(memory_format=torch.channels_last)
    torchweld.reset()
    with torch.no_grad():
        got = torchweld.compile(lambda x: unpool(x) * 2, fullgraph=True)(x)
    assert got.stride() == unpool(x).stride()
    assert torchweld.pipeline.STATISTICS.aten_graphs == 0


@pytest.mark.parametrize("shape", [(0, 1, 8, 4), (2, 4, 0, 4)])
def test_pixel_unshuffle_of_no_elements_is_what_eager_makes_of_it(shape):
    def fn(x):
        y = F.pixel_unshuffle(x, 2)
        return y, y.shape, y.stride()

    torchweld.reset()
    x = torch.empty(shape)
    (expected, *facts), (got, *found) = fn(x), torchweld.compile(fn, fullgraph=True)(x)
    assert found == facts == [got.shape, got.stride()]
    assert got.shape == expected.shape
