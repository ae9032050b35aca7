"""Random programs with views, changes in place, islands and several results, against eager."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from training_twin import assert_same, copied, leaf, tensors

import torchweld

torch.manual_seed(11)
torch.manual_seed(0)
X, W, B = leaf(4, 6), leaf(6, 6), leaf(6)

# each takes x, w, b and the values so far, and gives one more of shape [4, 6]
STEPS = {
    "linear": lambda v, i, j: take(v, i) @ v[1] * 0.3,
    "bias": lambda v, i, j: take(v, i) + v[2],
    "gelu": lambda v, i, j: F.gelu(take(v, i)),
    "exp": lambda v, i, j: (take(v, i) * 0.1).exp(),
    "mul": lambda v, i, j: take(v, i) * take(v, j).tanh(),
    "softmax": lambda v, i, j: take(v, i).softmax(-1),
    "norm": lambda v, i, j: F.layer_norm(take(v, i), (6,), v[2]),
    "transpose": lambda v, i, j: take(v, i).t().contiguous().view(4, 6).sin(),
    "view": lambda v, i, j: take(v, i).view(2, 12).view(4, 6),
    "slice": lambda v, i, j: torch.cat([take(v, i)[2:], take(v, j)[:2]]),
    "island": lambda v, i, j: take(v, i) * no_grad(lambda: take(v, j).mean()),
    "detach": lambda v, i, j: take(v, i).detach() * take(v, j),
    "dropout": lambda v, i, j: F.dropout(take(v, i), 0.3),
    "mean": lambda v, i, j: take(v, i) - take(v, j).mean(0),
    "where": lambda v, i, j: torch.where(take(v, i) > 0, take(v, j), v[2]),
    "in_place": lambda v, i, j: (take(v, i) * 1.5).mul_(0.5).add_(take(v, j)),
    "row": lambda v, i, j: filled(take(v, i) * 1.0, take(v, j)),
}  # fmt: skip


def take(v, i):
    """The i-th value of shape [4, 6]."""
    fitting = [v[0], *v[3:]]
    return fitting[i % len(fitting)]


def no_grad(f):
    with torch.no_grad():
        return f()


def filled(x, other):
    x[1] = other[0]
    x[:, 2:].mul_(0.5)
    return x


def program(steps, returned):
    def fn(x, w, b):
        values = [x, w, b]
        for name, i, j in steps:
            values.append(STEPS[name](values, i, j))
        return [take(values, i) for i in returned]

    return fn


def left(fn, inputs, used):
    """Results and gradients, or eager's error."""
    torch.manual_seed(3)
    try:
        outs = fn(*inputs)
        ends = [t.sum() * (k + 1) for k, t in enumerate(tensors(outs))
                if t.requires_grad and used[k % len(used)]]  # fmt: skip
        if ends:
            sum(ends[1:], ends[0]).backward()
    except RuntimeError as error:
        assert "inplace" in str(error) or "in-place" in str(error), error
        return "changed in place"
    return [*outs, *(x.grad for x in inputs)]


step = st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 9), st.integers(0, 9))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(step, min_size=1, max_size=8),
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    st.lists(st.booleans(), min_size=1, max_size=3),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_random_program_leaves_eagers_gradients(steps, returned, used, wants):
    fn = program(steps, returned)
    torchweld.reset()
    compiled = torchweld.compile(fn)
    mine, theirs = ([copied(x).requires_grad_(w) for x, w in zip((X, W, B), wants, strict=True)]
                    for _ in range(2))  # fmt: skip
    got, want = left(compiled, mine, used), left(fn, theirs, used)
    if isinstance(want, str) or isinstance(got, str):
        assert got == want
    else:
        assert_same(got, want, rtol=2e-4, atol=2e-4)
