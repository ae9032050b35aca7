"""Behind a break varies what only the data decides, and what varied in front of it."""

import pytest
import torch

import torchweld
from torchweld.capture.session import NOTHING_VARIES, Capture

COUNTS = (3, 5, 7, 8, 4, 6)


def masked(k):
    return torch.randn(10, 3), torch.arange(10) < k


def select(x, mask):
    return x[mask]


def inside(x, mask):
    return select(x * 1.5, mask).sum(0) * 2 + 1


def counted(x, mask):
    n = mask.sum().item()
    torch._check(n >= 2)
    return x[:n].cos() * n + x.new_ones(n, 3)


def scaled(x, mask):
    scale = mask.double().mean().item()
    return (x * scale).cos() + 1


def parts(x, mask):
    a, b = torch.stack([mask.sum(), (~mask).sum()]).tolist()
    return [p.exp() * 2 - 1 for p in x.split([a, b])]


PROGRAMS = {
    "mask": lambda x, mask: (x[mask] * 2 + 1).sum(0),
    "mask of columns": lambda x, mask: (x.t()[:, mask] * 2 + 1).cos(),
    "nonzero": lambda x, mask: x.index_select(0, mask.nonzero().squeeze(-1)).cos() + 1,
    "tuple of nonzero": lambda x, mask: (x[torch.nonzero(mask, as_tuple=True)] * 2 + 1).cos(),
    "masked_select": lambda x, mask: (x.masked_select(mask[:, None]) * 2 + 1).cos(),
    "unique": lambda x, mask: (torch.unique(x[:, 0].masked_fill(~mask, 0.0)) * 2 + 1).cos(),
    "unique with counts": lambda x, mask: (torch.unique(
        torch.arange(10) * mask, return_counts=True)[1] * 2 + 1).cos(),
    "repeat_interleave": lambda x, mask: (x.repeat_interleave(mask.long(), 0) * 2 + 1).cos(),
    "argwhere": lambda x, mask: (torch.argwhere(mask) * 2 + 1).cos(),
    "call": inside,
    "item": counted,
    "number": scaled,
    "tolist": parts,
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_data_decides_is_compiled_once(name):
    fn = PROGRAMS[name]
    torchweld.reset()
    compiled = torchweld.compile(fn)
    torch.manual_seed(0)
    for k in COUNTS:
        args = masked(k)
        torch.testing.assert_close(compiled(*args), fn(*args))
        if k == COUNTS[0]:
            first = torchweld.statistics()
    counts = torchweld.statistics()
    assert (counts["graphs"], counts["recompiles"]) == (first["graphs"], 0)
    assert not counts["internal_errors"]


@pytest.mark.parametrize("k", [0, 1])
def test_nothing_and_one_are_right_in_the_first_call_and_later(k):
    fn = PROGRAMS["mask"]
    for counts in ((k, 3, 5), (3, k, 5)):
        compiled = torchweld.compile(fn)
        torchweld.reset()
        for n in counts:
            args = masked(n)
            torch.testing.assert_close(compiled(*args), fn(*args))


def broken(x):
    y = x.cos() * 2 + 1
    torchweld.graph_break()
    return (y + x).sin() * y.shape[0]


def test_a_marked_size_is_symbolic_behind_a_break():
    compiled = torchweld.compile(broken)
    torchweld.reset()
    for n in (5, 7, 9):
        x = torch.randn(n, 3)
        torchweld.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), broken(x))
    assert torchweld.statistics()["graphs"] == 2


def counting(x, n, breaks):
    y = (x[:n] * n).cos() + 1
    if breaks:
        torchweld.graph_break()
    return y.sin() * n + y.cos() + x.new_zeros(n, 3)


def test_a_number_that_varies_does_so_behind_a_break():
    compiled = torchweld.compile(counting)
    torchweld.reset()
    for n, breaks in ((5, False), (7, False), (9, True), (4, True), (6, True)):
        x = torch.randn(12, 3)
        torch.testing.assert_close(compiled(x, n, breaks), counting(x, n, breaks))
    assert torchweld.statistics()["graphs"] == 4  # two without a break, two around it


def test_sizes_stay_apart_where_nothing_may_vary():
    fn = PROGRAMS["mask"]
    compiled = torchweld.compile(fn, dynamic=False)
    torchweld.reset()
    for k in (3, 5, 7):
        args = masked(k)
        torch.testing.assert_close(compiled(*args), fn(*args))
    assert torchweld.statistics()["recompiles"] == 2


def test_a_capture_that_begins_again_knows_where_it_stops_and_why():
    cap = Capture(NOTHING_VARIES, 7, True, by_data=True)
    cap.restart(NOTHING_VARIES, False)
    assert (cap.stop, cap.by_data, cap.copies) == (7, True, False)
