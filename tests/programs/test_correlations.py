"""Covariances and correlations are no break."""

import pytest
import torch

import torchweld
from torchweld.pipeline import STATISTICS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64,
                                   torch.int64])  # fmt: skip
@pytest.mark.parametrize("fn", [torch.cov, torch.corrcoef, lambda x: x.cov(correction=0),
                                lambda x: x.corrcoef() * 2])  # fmt: skip
def test_correlations_are_eager_s(fn, dtype):
    torch.manual_seed(0)
    for shape in ((5, 7), (7,), (1, 4), (30, 200)):
        x = (torch.randn(shape) * 5).to(dtype)
        compiled = torchweld.compile(fn, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), fn(x), rtol=0, atol=0, equal_nan=True)


def test_sizes_and_gradients_of_correlations():
    def fn(x):
        x = x.detach().requires_grad_()
        y = torch.corrcoef(x) + torch.cov(x)
        return y, torch.autograd.grad((y * y).sum(), x)[0]

    torchweld.reset()
    compiled = torchweld.compile(fn)
    for n in (5, 7, 9, 6, 12):
        x = torch.randn(4, n)
        torch.testing.assert_close(compiled(x), fn(x), rtol=1e-4, atol=1e-4)
    counts = STATISTICS.counts()
    assert (counts["graphs"], counts["breaks"]) == (2, 0)


def test_what_eager_warns_of_it_still_does():
    x = torch.randn(3, 1)
    with pytest.warns(UserWarning, match="degrees of freedom"):
        torchweld.compile(torch.cov, backend="eager")(x)
    weights = torch.tensor([1, 2, 3, 4])
    fn = torchweld.compile(lambda x: torch.cov(x, fweights=weights) * 2, backend="eager")
    x = torch.randn(3, 4)
    torch.testing.assert_close(fn(x), torch.cov(x, fweights=weights) * 2)
