"""Indices out of range raise what eager raises, and indices into nothing too."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F

import torchweld

X = torch.arange(12.0).reshape(4, 3)
ONES = torch.ones(2, 3)


def row(i):
    """The indices as [n, 3], for operators whose index has the rank of what it indexes."""
    return i[:, None].expand(len(i), 3)


READS = {
    "index": lambda x, i: x[i],
    "index_second": lambda x, i: x[:, i],
    "index_pairs": lambda x, i: x[i, i],
    "embedding": lambda x, i: F.embedding(i, x),
    "index_select": lambda x, i: x.index_select(0, i),
    "index_select_second": lambda x, i: x.index_select(1, i),
    "index_select_half": lambda x, i: x.half().index_select(1, i),
    "index_select_line": lambda x, i: x[:, 0].index_select(0, i),
    "gather": lambda x, i: x.gather(0, row(i)),
    "gather_line": lambda x, i: x[:, 0].gather(0, i),
    "gather_last": lambda x, i: x.t().gather(1, row(i).t()),
    "take": lambda x, i: x.take(i * 10),
    "nll_loss": lambda x, i: F.nll_loss(x[:2], i),
    "cross_entropy": lambda x, i: F.cross_entropy(x[:2], i, reduction="none"),
}
WRITES = {
    "index_put": lambda x, i: x.index_put((i,), torch.ones(())),
    "index_put_add": lambda x, i: x.index_put((i,), torch.ones(()), accumulate=True),
    "put": lambda x, i: x.put(i * 10, torch.ones(len(i))),
    "scatter": lambda x, i: x.scatter(0, row(i), 1.0),
    "scatter_tensor": lambda x, i: x.scatter(0, row(i), torch.ones(len(i), 3)),
    "scatter_last": lambda x, i: x.scatter(1, row(i).t()[:2], torch.ones(3, len(i))),
    "scatter_multiply": lambda x, i: x.scatter(0, row(i), 2.0, reduce="multiply"),
    "scatter_add": lambda x, i: x.scatter_add(0, row(i), torch.ones(len(i), 3)),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, row(i), torch.ones(len(i), 3), "amax"),
    "index_copy": lambda x, i: x.index_copy(0, i, torch.ones(len(i), 3)),
    "index_add": lambda x, i: x.index_add(0, i, torch.ones(len(i), 3)),
    "index_add_line": lambda x, i: x[:, 0].index_add(0, i, torch.ones(len(i))),
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0),
}
OPERATORS = {**READS, **WRITES}


def outcome(fn, *args):
    try:
        return "result", fn(*(a.clone() for a in args))
    except Exception as error:
        return type(error), str(error)


def check(fn, *args):
    torchweld.reset()
    compiled = torchweld.compile(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            (kind, expected), (found, got) = outcome(fn, *args), outcome(compiled, *args)
            assert found == kind
            if kind == "result":
                torch.testing.assert_close(got, expected, equal_nan=True)
            else:
                assert got == expected


@pytest.mark.parametrize("indices", [(0, 9), (0, -9), (2, -1), (2, 0)])
@pytest.mark.parametrize("name", OPERATORS)
def test_exceptions_are_those_of_eager(name, indices):
    check(OPERATORS[name], X, torch.tensor(indices))


@pytest.mark.parametrize("indices", [(0, 9), (0, -9), (2, -1)])
@pytest.mark.parametrize("name", READS)
def test_exceptions_where_all_elements_are_the_same(name, indices):
    check(lambda x, i: READS[name](torch.ones(4, 3) * 2, i) + x[0, 0], X, torch.tensor(indices))


@pytest.mark.parametrize("indices", [(), (0,), (-1,)])
@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
@pytest.mark.parametrize("name", [
    "index", "index_second", "embedding", "index_select", "index_select_second", "take",
    "index_put", "put", "index_copy", "index_add", "index_fill",
])  # fmt: skip
def test_indices_into_nothing_do_what_they_do_in_eager(name, shape, indices):
    check(OPERATORS[name], torch.empty(shape), torch.tensor(indices, dtype=torch.int64))


@pytest.mark.parametrize("indices", [(), (0,), (-1,)])
@pytest.mark.parametrize("name", [
    "gather", "gather_line", "scatter", "scatter_tensor", "scatter_add", "scatter_reduce",
])  # fmt: skip
def test_rows_into_nothing_do_what_they_do_in_eager(name, indices):
    check(OPERATORS[name], torch.empty(0, 3), torch.tensor(indices, dtype=torch.int64))


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 4, 3), (0, 0, 3)])
def test_one_dimension_without_elements_does_what_it_does_in_eager(shape):
    check(lambda x, i: x[:, i], torch.empty(shape), torch.tensor([1]))
    check(lambda x, i: x[i, :, i], torch.empty(shape), torch.tensor([1]))


def test_a_target_among_no_classes_does_what_it_does_in_eager():
    check(F.nll_loss, torch.empty(1, 0), torch.tensor([0]))


@pytest.mark.parametrize("write", [
    lambda x, i: x.scatter_(0, i, 1.0), lambda x, i: x.index_put_((i,), torch.ones(())),
    lambda x, i: x.index_add_(0, i, torch.ones(2)),
])  # fmt: skip
def test_a_write_into_an_input_raises_what_eager_raises(write):
    def fn(x, i):
        x.add_(1)
        return write(x, i)

    torchweld.reset()
    mine, theirs, i = torch.zeros(4), torch.zeros(4), torch.tensor([0, 9])
    with pytest.raises((IndexError, RuntimeError)) as want:
        fn(theirs, i)
    with pytest.raises(want.type) as got:
        torchweld.compile(fn)(mine, i)
    assert str(got.value) == str(want.value)
    assert mine[1:].tolist() == theirs[1:].tolist() == [1.0] * 3
    assert torchweld.statistics()["graphs"] == 1
