"""What changes in place while it is read is left to eager; sharing memory alone is captured."""

from __future__ import annotations

import pytest
import torch

import torchweld


def _shift(x):
    x[:, 1:] = x[:, :-1]


def _sums(x):
    x[:, 1:] += x[:, :-1]


def _rows(x):
    x[1:] = x[:-1]


def _front(x):
    x[:, :-1] = x[:, 1:]


def _rotate(x):
    a, b = x.chunk(2, -1)
    a.add_(b)


CHANGING = {
    "a shift to the back": _shift,
    "sums of neighbours": _sums,
    "rows that are refused": _rows,
    "less its first column": lambda x: x.sub_(x[:, :1]),
    "less its first row": lambda x: x.sub_(x[0]),
    "with its transpose": lambda x: x.add_(x.t()),
    "products of other rows": lambda x: x[1:].addcmul_(x[:-1], x[1:]),
}
SEPARATE = {
    "a shift to the front": _front,
    "halves of a row": _rotate,
    "every second column": lambda x: x[:, ::2].mul_(x[:, 1::2]),
    "itself": lambda x: x.mul_(x.view(x.shape)),
    "a copy of its neighbours": lambda x: x[:, 1:].copy_(x[:, :-1].clone()),
    "the upper half of the lower": lambda x: x[:4].copy_(x[4:].t()[:, :4].t()),
    "one value": lambda x: x[1:].fill_(x[0, 0]),
}


def _outcome(fn, x):
    """What becomes of the argument, and the error."""
    try:
        fn(x)
    except RuntimeError as error:
        return x, str(error)
    return x, None


@pytest.mark.parametrize("name", [*CHANGING, *SEPARATE])
@pytest.mark.parametrize("dynamic", [None, True])
def test_writes_between_parts_of_one_tensor_equal_eager(name, dynamic):
    def f(x):
        y = x * 1.0
        write(y)
        return x.copy_(y)

    write = {**CHANGING, **SEPARATE}[name]
    torchweld.reset()
    compiled = torchweld.compile(f, dynamic=dynamic)
    for n in (8, 8, 10):
        x = torch.randn(n, n)
        want, refused = _outcome(f, x.clone())
        got, ours = _outcome(compiled, x.clone())
        torch.testing.assert_close(got, want)
        assert ours == refused
    counts = torchweld.statistics()
    assert (counts["breaks"] > 0) == (name in CHANGING)
    assert counts["aten_graphs"] == counts["internal_errors"] == 0
