"""Sizes that differ from call to call: one entry serves them, and gives eager's results."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from guard_twin import same

import torchweld
from torchweld.frames import why_missed

LENGTHS = (3, 5, 7, 8, 2, 13, 1, 0, 11, 16)


def rows(n):
    return (torch.randn(n, 4),)


def images(n):
    return (torch.randn(2, 3, n, n + 1),)


def runs(fn, make, lengths, captures, **options):
    """`fn` on inputs of each length: eager's results, and so many captures."""
    torchweld.reset()
    torch.manual_seed(0)
    compiled = torchweld.compile(fn, **options)
    for n in lengths:
        args = make(n)
        expected = fn(*copy.deepcopy(args))
        got = compiled(*args)
        torch.testing.assert_close(got, expected, equal_nan=True)
        assert _kinds(got) == _kinds(expected)
    counts = torchweld.statistics()
    assert (counts["captures"], counts["internal_errors"]) == (captures, 0)
    return compiled


def _kinds(x):
    if isinstance(x, tuple | list):
        return type(x), [_kinds(i) for i in x]
    return type(x)


def relations(compiled):
    """The guards on sizes of each entry, as text."""
    return [
        [g.expected.text() for g in e.info.guards if g.kind == "sizes"] for e in compiled.entries
    ]


# one graph for the first size, one for all others from 2 on, one each for 0 and 1
PROGRAMS = {
    "elementwise": (lambda x: x * 2 + 1, rows),
    "product": (lambda x: torch.softmax(x @ x.t(), -1), rows),
    "two inputs": (lambda x, y: x + y, lambda n: rows(n) + rows(n)),
    "list": (lambda xs: torch.cat(xs), lambda n: ([*rows(n), *rows(n + 2)],)),
    "sizes returned": (lambda x: (x * 2, x.shape[0] + 1, x.shape, [x.numel()]), rows),
    "size as number": (lambda x: x + x.shape[0] * 2, rows),
    "mean": (lambda x: x.sum(0) / x.shape[0], rows),
    "root": (lambda x: x.t() / math.sqrt(x.shape[0]), rows),
    "power": (lambda x: x.t() / x.shape[0] ** 0.5, rows),
    "range": (lambda x: x + torch.arange(x.shape[0])[:, None], rows),
    "view": (lambda x: x.view(x.shape[0], 2, 2).transpose(1, 2).reshape(-1), rows),
    "flatten": (lambda x: x[None].expand(3, -1, -1).flatten(1), rows),
    "pad": (lambda x: F.pad(x, (0, 0, 1, x.shape[0])), rows),
    "written": (lambda x: x.add_(1).mul_(2), rows),
    "transposed input": (lambda x: x.contiguous() + 1, lambda n: (torch.randn(4, n).t(),)),
    "rows of a buffer": (lambda x: x * 2, lambda n: (torch.randn(20, 4)[:n],)),
    "columns of a buffer": (lambda x: x * 2, lambda n: (torch.randn(4, 20)[:, :n],)),
    "gradient": (lambda x: (x * x).sum(), lambda n: (torch.randn(n, 4, requires_grad=True),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_entry_serves_all_sizes_from_two_on(name):
    fn, make = PROGRAMS[name]
    runs(fn, make, LENGTHS, captures=4)


IMAGES = {
    "convolution": lambda x: F.conv2d(x, torch.ones(4, 3, 3, 3), padding=1).relu(),
    "pooling": lambda x: F.adaptive_avg_pool2d(F.max_pool2d(x, 2), 1),
    "twice the size": lambda x: F.interpolate(x, scale_factor=2.0),
    "half again": lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
    "given size": lambda x: F.interpolate(x, size=(x.shape[2] * 2, x.shape[3] - 1)),
    "tokens": lambda x: x.flatten(2).transpose(1, 2).softmax(-1),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images_of_many_sizes(name):
    runs(IMAGES[name], images, (5, 4, 7, 8, 11, 16), captures=2)


def attention(x):
    b, t, c = x.shape
    mask = torch.full((t, t), float("-inf")).triu(1)
    q = x.view(b, t, 2, c // 2).transpose(1, 2)
    scores = q @ q.transpose(-1, -2) / (c // 2) ** 0.5 + mask
    return (scores.softmax(-1) @ q).transpose(1, 2).reshape(b, t, c)


@pytest.mark.parametrize(
    "fn", [attention, lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)]
)
def test_attention(fn):
    runs(fn, lambda n: (torch.randn(2, n, 8),), (3, 5, 8, 13, 21, 2), captures=2)


def test_parts_whose_size_is_computed():
    def halves(x):
        n = len(x) // 2
        return torch.cat([x[:n] * 2, x[n:], x.split([n, x.size(0) - n])[1]])

    runs(halves, rows, (5, 6, 7, 12, 13, 31), captures=2)


def test_sizes_rounded_to_tens():
    def bucket(x):
        n = x.shape[0]
        return x.sum() * round(n * 5, -1), round(n, -1), round(n, 1), x.new_zeros(round(n * 10, -2))

    runs(bucket, lambda n: (torch.ones(n),), (14, 15, 25, 50, 150, 249), captures=2)


def test_marks_of_torch_itself_are_the_same_marks():
    torchweld.reset()
    compiled = torchweld.compile(lambda x: x * 2)
    for n in (5, 6, 7):
        x = torch.randn(n, 4)
        torch._dynamo.mark_dynamic(x, 0, max=64)
        torch.testing.assert_close(compiled(x), x * 2)
    counts = torchweld.statistics()
    assert (counts["captures"], counts["internal_errors"]) == (1, 0)
    assert relations(compiled) == [["2 <= x.shape[0]", "x.shape[0] <= 64"]]


# ------------------------------------------------------------------------------- decisions
def test_a_branch_on_a_size_is_decided_and_guarded():
    compiled = runs(lambda x: x * 2 if x.shape[0] > 6 else x * 3, rows, (3, 5, 4, 8, 9), captures=3)
    assert relations(compiled) == [[], ["2 <= x.shape[0]", "x.shape[0] <= 6"],
                                   ["7 <= x.shape[0]"]]  # fmt: skip


def test_equal_sizes_are_guarded_as_equal():
    torchweld.reset()
    compiled = torchweld.compile(lambda x, y: x + y if x.shape == y.shape else x.sum() + y.sum())
    for a, b in ((3, 3), (5, 5), (8, 8), (5, 6), (7, 3)):
        x, y = torch.ones(a, 4), torch.ones(b, 4)
        same(compiled(x, y), x + y if a == b else x.sum() + y.sum())
    assert [r[0] for r in relations(compiled)[1:]] == ["y.shape[0] == x.shape[0]",
                                                       "2 <= x.shape[0]"]  # fmt: skip
    assert torchweld.statistics()["captures"] == 3


def test_what_needs_one_size_is_compiled_for_each():
    def unrolled(x):
        return torch.stack([x[i] * i for i in range(x.shape[0])])

    runs(unrolled, rows, (2, 3, 4, 5, 3), captures=4)
    runs(lambda x: (x + 1, [*range(9)][x.shape[0]]), rows, (2, 3, 4, 3), captures=3)


def test_text_of_a_size_is_of_the_call():
    torchweld.reset()
    compiled = torchweld.compile(lambda x: (x + 1, f"{x.shape[0]} rows"))
    assert [compiled(*rows(n))[1] for n in (3, 4, 5, 4)] == ["3 rows", "4 rows", "5 rows", "4 rows"]


def test_strides_of_a_dense_input_are_expressions_of_its_sizes():
    compiled = runs(lambda x: x + 1, lambda n: (torch.randn(2, n, 3),), (4, 5, 7), captures=2)
    assert relations(compiled)[1] == ["x.stride(0) == 3*x.shape[1]", "2 <= x.shape[1]"]
    x = torch.randn(2, 10, 3)[:, :6]  # which has gaps
    same(compiled(x), x + 1)
    assert torchweld.statistics()["captures"] == 3


# ------------------------------------------------------------------------------- policy
def test_only_what_changed_varies():
    compiled = runs(lambda x: x + 1, lambda n: (torch.randn(n, 6),), (4, 5), captures=2)
    same(compiled(torch.ones(9, 7)), torch.ones(9, 7) + 1)
    assert torchweld.statistics()["captures"] == 3


def test_dynamic_true_is_symbolic_from_the_start():
    runs(lambda x: x.relu().sum(-1), lambda n: (torch.randn(n, n + 1),), (3, 4, 9, 17), captures=1,
         dynamic=True)  # fmt: skip


def test_dynamic_false_never_is():
    compiled = runs(lambda x: x + 1, rows, (3, 4, 5), captures=3, dynamic=False)
    assert relations(compiled) == [[], [], []]


def test_a_number_that_is_a_size_varies():
    runs(lambda x, n: x[:n].sum(0) * n, lambda n: (torch.ones(40, 4), n), (5, 6, 9, 33), captures=2)


def test_a_number_of_an_object_varies():
    class Box:
        def __init__(self, n):
            self.n = n

    runs(lambda x, box: x[box.n :] * 2, lambda n: (torch.ones(40, 4), Box(n)), (5, 6, 9, 33),
         captures=2)  # fmt: skip


def test_a_marked_size_is_symbolic_in_the_first_call():
    def make(n):
        x = torch.randn(n, 4)
        torchweld.mark_dynamic(x, 0)
        return (x,)

    runs(lambda x: x + 1, make, (3, 5, 9), captures=1)


def test_bounds_of_a_marked_size_are_guarded():
    torchweld.reset()
    x = torch.randn(5, 4)
    torchweld.mark_dynamic(x, 0, min=3, max=64)
    compiled = torchweld.compile(lambda x: x + 1)
    compiled(x)
    assert relations(compiled) == [["3 <= x.shape[0]", "x.shape[0] <= 64"]]


def test_a_promise_that_cannot_be_kept_names_the_line():
    def fixed(x):
        return x + torch.ones(5, 4)

    x = torch.randn(5, 4)
    torchweld.mark_dynamic(x, 0)
    torchweld.reset()
    with pytest.raises(RuntimeError, match=r"x.shape\[0\] was marked.*only 5 fits") as error:
        torchweld.compile(fixed)(x)
    assert "x + torch.ones(5, 4)" in str(error.value)


def test_a_weak_mark_may_be_broken():
    x = torch.randn(5, 4)
    torchweld.maybe_mark_dynamic(x, 0)
    torchweld.reset()
    same(torchweld.compile(lambda x: x + torch.ones(5, 4))(x), x + torch.ones(5, 4))


def test_a_static_mark_keeps_a_size():
    def make(n):
        x = torch.randn(n, 4)
        torchweld.mark_static(x, 0)
        return (x,)

    runs(lambda x: x + 1, make, (3, 5, 9), captures=3)


# ------------------------------------------------------------------------------- elsewhere
def test_the_rest_after_a_break_varies_too():
    def broken(x):
        y = x * 2
        torchweld.graph_break()
        return y + y.shape[0]

    runs(broken, rows, (3, 5, 7, 8, 13), captures=4)


def test_what_eager_code_calls_varies_too():
    def inner(x):
        return x * 2 + x.shape[0]

    @torchweld.disable(recursive=False)
    def outer(x):
        return inner(x)

    # what goes on behind the call of `outer` has a size for every one: it only hands it on
    runs(lambda x: outer(x + 1), rows, (3, 5, 7, 8), captures=5)


def test_a_recompile_tells_the_relation_that_does_not_hold():
    compiled = runs(lambda x: x * 2 if x.shape[0] > 6 else x * 3, rows, (3, 5), captures=2)
    told = [m.text() for m in why_missed(compiled.entries[1:], rows(9))]
    assert told[0].endswith("`x.shape[0] <= 6` held, but x.shape[0] is 9; none needed: each answer "
                            "is compiled once")  # fmt: skip
