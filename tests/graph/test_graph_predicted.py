"""Strides that torch predicts against those that the kernels give."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch_capture import capture, compare

import torchweld
from torchweld.base.config import Config
from torchweld.base.errors import Unsupported
from torchweld.graph.run import normalize
from torchweld.ir import predicted
from torchweld.ir.graph import VAL

X = torch.randn(5, 6, 7)


def _unpool(x):
    y, at = F.max_pool2d(x, 2, return_indices=True)
    return F.max_unpool2d(y, at, 2, output_size=x.shape[-2:])


PROGRAMS = (
    lambda x: torch.fft.rfft(x, dim=1),
    lambda x: torch.fft.fft(x, dim=0),
    lambda x: torch.fft.rfft2(x, dim=(0, -1)),
    lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=0), dim=0),
    lambda x: _unpool(x[None]),
    lambda x: _unpool(x.movedim(-1, 0)[None]),
)


def test_mispredicted_transform_is_refused(monkeypatch):
    monkeypatch.setattr(predicted, "_strides", lambda *args: ((1, 5, 30),))
    with pytest.raises(Unsupported, match="other strides"):
        normalize(capture(lambda x: torch.fft.rfft(x, dim=1), X), Config())


@pytest.mark.parametrize("fn", PROGRAMS)
def test_result_has_the_strides_of_eager_or_is_refused(fn):
    try:
        pair = compare(fn, X)
    except Unsupported:
        return
    (out,) = pair.forward.output_node().args[0]
    assert out.meta[VAL].stride() == fn(X).stride()


T = torch.randn(5, 3).t()
LONE = torch.randn(4, 9, 10, 1).permute(0, 3, 1, 2)[2:]  # [2, 1, 9, 10], channels last
ROWS = torch.randint(0, 3, (5,))

# with an axis of one element whose stride is not that of its place
LONE_AXES = (
    (lambda x: torch.isin(x, x[0]), LONE), (lambda x: x[None, ROWS % 3], T),
    (lambda x: x[None][:, [0, -1]], T), (lambda x: F.rrelu(x, training=True), LONE),
    (lambda x: torch.poisson(x.abs()), LONE), (lambda x: x.masked_fill(x > 0, 0.5), LONE),
    (lambda x: torch.rsub(x, x[0]), T[:1]), (lambda x: torch.deg2rad(x), LONE),
    (lambda x: F.log_softmax(x, 0), LONE), (lambda x: x.roll(1, 0), LONE),
    (lambda x: F.interpolate(x, scale_factor=2), LONE), (lambda x: F.group_norm(x, 1), LONE),
    (lambda x: x.index_add(0, ROWS[:2] % 2, x), LONE), (lambda x: x.sort(0)[0], T[:1]),
    (lambda x: F.batch_norm(x, None, None, training=True), LONE),
    (lambda x: x.index_put((ROWS[:1] * 0,), x[0]), T[:1]),
)  # fmt: skip


@pytest.mark.parametrize("at", range(len(LONE_AXES)))
def test_axes_of_one_element_have_the_strides_of_eager(at):
    fn, x = LONE_AXES[at]
    torchweld.reset()
    got = torchweld.compile(lambda x: fn(x).stride(), fullgraph=True)(x)
    assert got == fn(x).stride()


def test_what_is_drawn_is_laid_out_in_the_standard_way():
    x = torch.rand(5, 3).t()
    torch.manual_seed(0)
    want = torch.poisson(x)
    torchweld.reset()
    torch.manual_seed(0)
    got = torchweld.compile(lambda x: torch.poisson(x), fullgraph=True)(x)
    assert torch.equal(got, want) and got.stride() == want.stride() == (5, 1)
    assert torchweld.statistics()["graphs"] == 1
