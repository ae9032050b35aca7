"""Strides that torch predicts against those that the kernels give."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch_capture import capture, compare

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
