"""Lists, tuples and dicts whose lengths differ between calls: what is compiled again."""

import collections
import copy

import pytest
import torch

import torchweld
from torchweld.base import events

X = torch.arange(1.0, 5.0)


def rows(n):
    return [X + i for i in range(n)]


def calls(fn, *given):
    """Compile, and compare with eager; what is counted: recompilations, and breaks."""
    torchweld.reset()
    before = torchweld.statistics()
    compiled = torchweld.compile(fn)
    for args in given:
        mine, eagers = copy.deepcopy(args), copy.deepcopy(args)
        torch.testing.assert_close(compiled(*mine), fn(*eagers))
        torch.testing.assert_close(mine, eagers)
    now = torchweld.statistics()
    return tuple(now[k] - before[k] for k in ("recompiles", "breaks", "internal_errors"))


def growing(upto=9):
    return [(rows(n),) for n in range(2, upto)]


# ------------------------------------------------------- what does not depend on the length
def of_ends(xs):
    return xs[0] * 2 + xs[-1]


def appended(xs):
    xs.append(xs[0] * 2)
    return xs[-1] + 1


def extended(xs):
    xs.extend([xs[0] * 2, xs[1]])
    return X * 2


@pytest.mark.parametrize("fn", [of_ends, appended, extended], ids=lambda f: f.__name__)
def test_a_list_of_which_ends_are_read_or_extended_is_compiled_once(fn):
    assert calls(fn, *growing()) == (0, 0, 0)


def test_a_tuple_of_which_items_are_read_is_compiled_once():
    def of_tuple(*xs):
        return xs[0] * 2 + xs[-1]

    assert calls(of_tuple, *[tuple(rows(n)) for n in range(2, 9)]) == (0, 0, 0)


def test_an_index_that_a_shorter_list_lacks_raises():
    def third(xs):
        return xs[2] * 2

    torchweld.reset()
    compiled = torchweld.compile(third)
    assert torch.equal(compiled(rows(4)), third(rows(4)))
    for n in (2, 0):
        with pytest.raises(IndexError, match="list index out of range"):
            compiled(rows(n))
    assert torch.equal(compiled(rows(3)), third(rows(3)))


def test_items_of_a_list_that_is_written_are_seen():
    xs = rows(3)
    compiled = torchweld.compile(of_ends)
    for i in range(4):
        assert torch.equal(compiled(xs), of_ends(xs))
        xs[-1] = X * i
        xs.insert(0, X - i)


# ------------------------------------------------------------------------- lengths as numbers
def per_item(xs):
    return X / len(xs)


def if_many(xs):
    return X * 2 if len(xs) > 4 else X + 1


def if_any(xs):
    return X * 2 if xs else X + 1


@pytest.mark.parametrize("fn, most", [(per_item, 1), (if_many, 2), (if_any, 2)],
                         ids=lambda f: getattr(f, "__name__", ""))  # fmt: skip
@pytest.mark.parametrize("make", [
    rows, lambda n: tuple(rows(n)), lambda n: dict(enumerate(rows(n))),
    lambda n: collections.deque(rows(n)),
], ids=["list", "tuple", "dict", "deque"])  # fmt: skip
def test_a_length_that_differs_is_a_number(fn, most, make):
    recompiles, breaks, errors = calls(fn, *[(make(n),) for n in (2, 3, 4, 5, 6, 7, 8, 1, 3)])
    assert recompiles <= most
    assert (breaks, errors) == (0, 0)


def test_the_number_of_layers_is_a_number():
    class Mean(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Identity()])

        def forward(self, x):
            return x / len(self.layers)

    torchweld.reset()
    before = torchweld.statistics()["recompiles"]
    model = Mean()
    compiled = torchweld.compile(model)
    for _ in range(6):
        assert torch.equal(compiled(X), model(X))
        model.layers.append(torch.nn.Identity())
    assert torchweld.statistics()["recompiles"] - before == 1


def test_the_length_of_a_list_that_the_frame_extends_counts_what_it_adds():
    def filled(xs):
        xs.append(X)
        before = len(xs)
        xs.extend([X, X])
        return X * before, X * len(xs)

    assert calls(filled, *growing())[:2] == (1, 0)


# --------------------------------------------------------------- operators on whole lists
def cat(xs):
    return torch.cat(xs) * 2 + 1


def stacked(xs):
    return torch.stack(xs).sum(0)


def total(xs):
    return sum(xs) * 2


def total_of(xs):
    return sum(x * 2 for x in xs) + 1


def largest(xs):
    return X * max([x.shape[0] for x in xs])


def chosen(xs):
    return torch.stack(xs[1:]).mean(0)


def unpacked(xs):
    first, *others = xs
    return first * len(others)


def each(xs):
    return torch._foreach_mul(xs, 2.0)


def joined(xs):
    return torch.cat([*xs, X])


@pytest.mark.parametrize("fn", [cat, stacked, total, total_of, largest, chosen, unpacked, each,
                                joined], ids=lambda f: f.__name__)  # fmt: skip
def test_operators_on_whole_lists_settle(fn):
    recompiles, breaks, errors = calls(fn, *growing(12))
    assert recompiles <= 4
    assert 1 <= breaks <= 3
    assert errors == 0


def test_the_break_says_that_the_length_differs():
    torchweld.reset()
    compiled = torchweld.compile(cat)
    for n in (2, 3, 4):
        compiled(rows(n))
    *_, broken = events.recent("graph_breaks")
    assert broken.fields["code"] == "W124"
    assert broken.fields["why"] == "how long this list is differs from call to call"


def test_lengths_that_stay_are_one_graph():
    assert calls(cat, *[(rows(n),) for n in (2, 3, 2, 3, 3, 2)]) == (1, 0, 0)


def test_fullgraph_compiles_each_length():
    torchweld.reset()
    compiled = torchweld.compile(cat, fullgraph=True)
    for n in range(2, 7):
        torch.testing.assert_close(compiled(rows(n)), cat(rows(n)))
    assert len(compiled.entries) == 5


def test_gradients_flow_through_a_list_of_any_length():
    def loss(xs):
        return torch.stack(xs).pow(2).sum()

    compiled = torchweld.compile(loss)
    for n in range(2, 8):
        xs = [x.requires_grad_() for x in rows(n)]
        compiled(xs).backward()
        for x in xs:
            torch.testing.assert_close(x.grad, 2 * x.detach())


def test_a_cache_that_grows_settles():
    class Cached(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.keys = []

        def forward(self, x):
            self.keys.append(x * 2)
            return torch.cat(self.keys).sum() + self.keys[-1].sum()

    torchweld.reset()
    before = torchweld.statistics()["recompiles"]
    mine, eagers = Cached(), Cached()
    compiled = torchweld.compile(mine)
    for i in range(10):
        torch.testing.assert_close(compiled(X + i), eagers(X + i))
    torch.testing.assert_close(mine.keys, eagers.keys)
    assert torchweld.statistics()["recompiles"] - before <= 3


def test_pairs_that_a_loop_unpacks_are_no_break_of_their_own():
    def pairs(xs):
        total = X * 0
        for a, b in zip(xs, reversed(xs), strict=True):
            total = (total + a * b).sin().cos()
        return total

    recompiles, breaks, errors = calls(pairs, *growing(12))
    assert recompiles <= 4
    assert breaks <= 3
    assert errors == 0


def test_what_a_copy_leaves_in_a_class_recompiles_nothing():
    class Box:
        def __init__(self):
            self.n = 3

    def times(x, box):
        return x * box.n

    torchweld.reset()
    compiled = torchweld.compile(times)
    box = Box()
    compiled(X, box)
    copy.deepcopy(box)
    compiled(X, box)
    assert len(compiled.entries) == 1
