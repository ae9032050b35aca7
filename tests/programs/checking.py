"""Programs that check what they compute. pytest rewrites `assert` where the tests are."""

import torch
import torch.nn.functional as F

LOG = []


def asserted(x):
    assert (x > -9).all(), "small"
    return x * 2 + 1


def refused(x):
    y = x.exp()
    if torch.isnan(y).any() or not torch.isfinite(y).all():
        raise ValueError(f"bad: {y.sum()}")
    return y * 2 + 1


def counted(x):
    if x.isnan().sum().item() > 0:
        raise ValueError("nan")
    return x * 2 + 1


def called(x):
    return asserted(x) + asserted(x + 1)


def in_a_loop(x):
    for _ in range(3):
        x = x * 2
        assert torch.isfinite(x).all()
    return x


def by_torch(x):
    torch._assert((x > -9).all(), "small")
    return x * 2 + 1


def with_effects(x):
    LOG.append("before")
    y = x * 2 + 1
    assert (y > -9).all()
    LOG.append("behind")
    return y.exp()


def caught(x):
    y = x + 1
    try:
        assert (y > -9).all()
    except AssertionError:
        return y - 1
    return y * 2


def by_item(x):
    if torch.isnan(x).any().item() or bool((x < -9).any()):
        raise ValueError("bad")
    return x * 2 + 1


def compared(x):
    assert torch.equal(x, x + 0), "not a number"
    if not torch.allclose(x * 2, x + x, equal_nan=True):
        raise ValueError("never")
    return x * 2 + 1


def whole_function(x):
    return F.gaussian_nll_loss(x, x, x + 9) * 2 + 1


class Checked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x):
        x = self.layer(x)
        assert torch.isfinite(x).all(), "not finite"
        return x.relu()


def writes(x):
    x.add_(1)
    assert (x > -9).all()
    return x + 1


def writes_later(x):
    assert (x > -9).all()
    return x.add_(1)


def draws(x):
    y = F.dropout(x)
    assert (x > -9).all()
    return y
