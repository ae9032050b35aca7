"""Strides that torch predicts against those that the kernels give."""

from __future__ import annotations

import torch

from torchweld.ir.predicted import real_strides

R2C = torch.ops.aten._fft_r2c.default


def test_prediction_with_other_strides_than_the_kernel_gives_is_found():
    args = (torch.randn(5, 6, 7), [1], 0, True)
    real = R2C(*args)
    assert real_strides(R2C, args, {}, real) is None
    inverted = torch.empty_strided(real.shape, (1, 5, 20), dtype=real.dtype)
    contiguous = torch.empty(real.shape, dtype=real.dtype)
    wrong = inverted if real.is_contiguous() else contiguous
    assert real_strides(R2C, args, {}, wrong) == (real.stride(),)


def test_strides_of_axes_of_one_element_do_not_matter():
    args = (torch.randn(5, 1, 7), [2], 0, True)
    real = R2C(*args)
    other = torch.empty_strided(real.shape, (4, 99, 1), dtype=real.dtype)
    assert real_strides(R2C, args, {}, other) is None
