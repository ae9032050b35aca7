"""Loops that run as often as a number says that varies: their bodies are compiled once."""

import pytest
import torch

import torchweld
from torchweld.pipeline import STATISTICS

COUNTS = (3, 5, 0, 2, 1, 7, 4, 6)


def body(y, i):
    return (y * 0.5 + i).cos() + y * 0.25


def over_a_number(x, n):
    y = x * 2
    for i in range(n):
        y = body(y, i)
    return y * 3


def over_steps(x, n):
    y = x * 2
    for i in range(1, 2 * n, 2):
        y = body(y, i)
    return y * 3, i if n else None


def over_a_list(x, n):
    y = x * 2
    for t in n:
        y = body(y, t)
    return y * 3, len(n)


def over_rows(x, n):
    y = x * 2
    for i, row in enumerate(n):
        y = body(y, row) + i
    return y * 3


def over_pairs(x, n):
    y = x * 2
    for a, (i, b) in zip(n, enumerate(n.flip(0)), strict=True):
        y = body(y, a * b) + i
    return y * 3


VARYING = {
    "a number": (over_a_number, lambda n: n),
    "steps": (over_steps, lambda n: n),
    "a list": (over_a_list, lambda n: [torch.randn(4) for _ in range(n)]),
    "pairs": (over_pairs, lambda n: torch.randn(n, 4)),
    "rows": (over_rows, lambda n: torch.randn(n, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", VARYING)
def test_a_loop_is_unrolled_for_two_counts_and_then_compiled_for_any(name):
    fn, make = VARYING[name]
    torchweld.reset()
    compiled = torchweld.compile(fn)
    for n in COUNTS:
        x, given = torch.randn(4), make(n)
        torch.testing.assert_close(compiled(x, given), fn(x, given))
    counts = STATISTICS.counts()
    assert counts["graphs"] <= 6, counts
    assert not any(r.code == "W114" for r in STATISTICS.refusals)


@pytest.mark.parametrize("name", VARYING)
def test_without_breaks_a_loop_is_unrolled_for_each_count(name):
    fn, make = VARYING[name]
    compiled = torchweld.compile(fn, fullgraph=True)
    for n in COUNTS[:4]:
        x, given = torch.randn(4), make(n)
        torch.testing.assert_close(compiled(x, given), fn(x, given))


def stacked(x, n):
    found = []
    for i in range(n):
        found.append(body(x, i))
    return torch.stack(found) * 2 if found else x


def summed(x, n):
    found = {"parts": []}
    for i in range(n):
        found["parts"].append(body(x, i).sum())
    return sum(found["parts"]), found


@pytest.mark.parametrize("fn", [stacked, summed])
def test_a_round_that_appends_to_a_list_is_compiled_once(fn):
    torchweld.reset()
    compiled = torchweld.compile(fn)
    for n in COUNTS:
        x = torch.randn(4)
        torch.testing.assert_close(compiled(x, n), fn(x, n))
    counts = STATISTICS.counts()
    assert counts["graphs"] <= 4, counts
    assert counts["aten_graphs"] == 0, counts


def by_item(x, mask):
    y = x * 2
    for i in range(mask.sum().item()):
        y = body(y, i)
    return y + 1


def by_nonzero(x, mask):
    y = x * 2
    for i in mask.nonzero():
        y = body(y, x[i])
    return y + 1


def by_list(x, mask):
    y = x * 2
    for i in mask.nonzero().squeeze(1).tolist():
        y = body(y, x[i])
    return y + 1


def by_parts(x, mask):
    total = x.sum(0)
    for row in (x[mask] * 2).unbind(0):
        total = body(total, row)
    return total + 1


@pytest.mark.parametrize("fn", [by_item, by_nonzero, by_list, by_parts])
def test_a_loop_over_what_the_data_decides_is_one_break(fn):
    torchweld.reset()
    compiled = torchweld.compile(fn)
    for count in (3, 0, 1, 6, 2, 5, 4):
        x, mask = torch.randn(6, 8), torch.zeros(6, dtype=torch.bool)
        mask[torch.randperm(6)[:count]] = True
        torch.testing.assert_close(compiled(x, mask), fn(x, mask))
    counts = STATISTICS.counts()
    assert counts["graphs"] <= 4, counts
    assert counts["recompiles"] <= 2, counts
    assert counts["aten_graphs"] == 0, counts


def test_how_often_a_range_steps_is_fixed_not_its_numbers():
    def fn(x, first):
        y = x
        for i in range(first, first + 3):
            y = y * i + x[i]
        return y

    compiled = torchweld.compile(fn, fullgraph=True)
    torchweld.reset()
    for first in (1, 4, 2, 5, 3):
        x = torch.randn(9, 4)
        torch.testing.assert_close(compiled(x, first), fn(x, first))
    assert STATISTICS.counts()["graphs"] == 2


def test_chunks_of_a_size_are_compiled_for_each_number_of_chunks():
    def fn(x):
        return torch.cat([x[i : i + 4].cos() * 2 for i in range(0, x.shape[0], 4)])

    compiled = torchweld.compile(fn, fullgraph=True)
    torchweld.reset()
    for n in (9, 10, 12, 11, 10, 13, 14, 16, 15):
        x = torch.randn(n, 4)
        torch.testing.assert_close(compiled(x), fn(x))
    assert STATISTICS.counts()["graphs"] <= 6


def test_an_index_that_varies_is_compiled_once():
    def fn(x, i):
        y = x * 2
        y[i, 1:] = y[i, :-1] + 1
        return y, x[i] * 2, x[:, i].cos(), x[..., i, None, 2:] + 1

    compiled = torchweld.compile(fn, fullgraph=True)
    torchweld.reset()
    for i in (3, 1, 0, 6, 2):
        x = torch.randn(7, 7)
        torch.testing.assert_close(compiled(x, i), fn(x, i))
    assert STATISTICS.counts()["graphs"] == 2
    assert STATISTICS.counts()["aten_graphs"] == 0


def iterated_inside(x, n):
    def doubled():
        for i in range(n):
            yield x * i

    return sum(doubled()), [x * i for i in range(n)], sum(range(n)), range(n).stop, len(range(n))


def test_only_loops_of_frames_that_can_be_left_are_breaks():
    torchweld.reset()
    compiled = torchweld.compile(iterated_inside)
    for n in COUNTS:
        x = torch.randn(4)
        torch.testing.assert_close(compiled(x, n), iterated_inside(x, n))
    assert STATISTICS.counts()["breaks"] <= 1  # the limit of compilations


def nested(x, n):
    for i in range(n):
        with torch.no_grad():
            for j in range(i):
                x = body(x, j)
                if j == 2:
                    break
            else:
                x = x + 1
    return x


def test_loops_inside_of_loops():
    torchweld.reset()
    compiled = torchweld.compile(nested)
    for n in COUNTS:
        x = torch.randn(4)
        torch.testing.assert_close(compiled(x, n), nested(x, n))
    assert STATISTICS.counts()["internal_errors"] == 0
