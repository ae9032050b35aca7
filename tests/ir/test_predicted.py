"""What torch predicts of results against what the kernels give."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import UnsupportedFakeTensorException

from torchweld.ir.fake import FakeMode
from torchweld.ir.predicted import real_strides, sized_strides
from torchweld.ir.size_node import symbolic
from torchweld.ir.sizes import SizeEnv

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


def test_strides_of_a_single_batch_are_expressions_of_its_sizes():
    env = SizeEnv()
    n = symbolic(env, env.symbol(33))
    made = sized_strides((1, 4, n, 16), (4 * 33 * 16, 16, 4 * 16, 1))
    assert [str(x) for x in made] == ["64*s0", "16", "64", "1"]
    assert len(env.facts()) == 1  # 2 <= s0


def test_strides_with_gaps_are_refused_where_sizes_vary():
    env = SizeEnv()
    n = symbolic(env, env.symbol(33))
    with pytest.raises(UnsupportedFakeTensorException):
        sized_strides((2, n), (40, 1))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_an_lstm_are_predicted_as_its_kernel_gives_them(dtype, bias):
    x, state = torch.randn(4, 3, 6, dtype=dtype), torch.randn(3, 8, dtype=dtype)
    weights = [torch.randn(32, 6, dtype=dtype), torch.randn(32, 8, dtype=dtype)]
    weights += [torch.randn(32, dtype=dtype)] * 2 if bias else weights
    with torch._C._AutoDispatchBelowAutograd():  # grad mode is on: the kernel keeps what it needs
        out, hidden, cell, kept = torch.ops.aten.mkldnn_rnn_layer(
            x, *weights, state, state, False, [], 2, 8, 1, bias, False, False, True)  # fmt: skip
    args = (x, *weights, state, state, out, hidden, cell, out, None, None, False, 2, 8, 1, bias,
            True, False, [], False, kept)  # fmt: skip
    backward = torch.ops.aten.mkldnn_rnn_layer_backward.default
    mode = FakeMode()
    with mode:
        fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
        predicted = backward(*fakes)
    rows = [[(g.dtype, g.shape, g.stride()) for g in gs] for gs in (predicted, backward(*args))]
    assert rows[0] == rows[1]


LAST = torch.randn(2, 3, 4, 6).to(memory_format=torch.channels_last)
CUT = torch.randn(2, 6, 8, 6).to(memory_format=torch.channels_last)[:, :3, ::2]


@pytest.mark.parametrize(("x", "work"), [
    (LAST, lambda x: x.roll((1, 1), (1, 2))),
    (LAST, lambda x: torch.isin(x, torch.zeros(2))),
    (LAST, lambda x: torch.isin(x, 1.0)),
    (LAST, lambda x: torch.nn.functional.rrelu(x)),
    (LAST, lambda x: torch.nn.functional.rrelu(x, training=True)),
    (CUT, lambda x: torch.nn.functional.rrelu(x, training=True)),
    (CUT, lambda x: x.index_fill(1, torch.tensor([2, 0]), 1.0)),
])  # fmt: skip
def test_strides_of_images_are_predicted_as_the_kernel_gives_them(x, work):
    with FakeMode() as mode:
        fake = mode.from_tensor(x)
        mode.allow_non_fake_inputs = True
        assert work(fake).stride() == work(x).stride()
