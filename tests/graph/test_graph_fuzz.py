"""Random programs of views and in-place operators: values, mutation, strides, aliasing."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_capture import compare

from torchweld.base.errors import Unsupported

VIEWS = (
    lambda x, n: x[n % len(x)] if x.dim() > 1 else x.unsqueeze(0),
    lambda x, n: x.transpose(0, -1) if x.dim() else x,
    lambda x, n: x[n % 2 :] if x.dim() and len(x) > 2 else x,
    lambda x, n: x[..., :: 1 + n % 2] if x.dim() else x,
    lambda x, n: x.reshape(-1),
    lambda x, n: x.unsqueeze(n % (x.dim() + 1)),
    lambda x, n: x.chunk(2, 0)[n % 2] if x.dim() and len(x) > 1 else x,
    lambda x, n: x.diagonal() if x.dim() > 1 else x,
    lambda x, n: x.detach(),
    lambda x, n: x.contiguous(),
    lambda x, n: x.view(x.shape),
    lambda x, n: x.squeeze(),
    lambda x, n: x.unfold(0, 2, 1) if x.dim() and len(x) > 1 and n % 5 == 0 else x,
)
PURE = (
    lambda x, n: x * 2,
    lambda x, n: x.clone(),
    lambda x, n: x + x.sum(),
    lambda x, n: torch.zeros(3, 4) + n,
    lambda x, n: torch.empty_like(x).copy_(x),
    lambda x, n: x.exp().clamp(max=9),
)


def overlaps(x):
    """Whether eager refuses to write to `x`, as its elements share memory."""
    return any(s == 0 and n > 1 for n, s in zip(x.shape, x.stride(), strict=True)) or (
        x.numel() > x.untyped_storage().nbytes() // x.element_size()
    )


def write(x, y, kind):
    if overlaps(x):
        return
    if kind == 0:
        x.add_(1)
    elif kind == 1:
        x.mul_(y.sum().clamp(-2, 2))
    elif kind == 2 and x.dim():
        x[0] = 3.0
    elif kind == 3 and x.shape == y.shape:
        x.copy_(y)
    elif kind == 4:
        x.masked_fill_(x > 1, -1.0)
    elif kind == 5 and x.dim():
        x[..., -1] += y.mean()
    else:
        x.zero_()


STEP = st.tuples(
    st.sampled_from("vvvppw"), st.integers(0, 12), st.integers(0, 6), st.integers(0, 9)
)


def program(steps, returned):
    def fn(a, b):
        made = [a, b]
        for kind, which, pick, n in steps:
            x = made[-1 - pick % len(made)]
            if kind == "v":
                made.append(VIEWS[which % len(VIEWS)](x, n))
            elif kind == "p":
                made.append(PURE[which % len(PURE)](x, n))
            else:
                write(x, made[n % len(made)].clone(), which % 7)
        return [made[r % len(made)] for r in returned]

    return fn


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(STEP, min_size=1, max_size=9), st.lists(st.integers(0, 10), min_size=1, max_size=4))
def test_random_program_equals_eager_or_is_refused(steps, returned):
    torch.manual_seed(1)
    a, b = torch.randn(3, 4), torch.randn(4, 3).t()
    try:
        compare(program(steps, returned), a, b)
    except Unsupported as error:
        assert error.code == "W201"
