"""Sizes that only the data decides stay in one graph, and are right for none, one and all."""

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.pipeline import STATISTICS

ROWS, COLUMNS = 6, 8
COUNTS = (3, 0, 1, ROWS, 2, 5)
WEIGHT = torch.linspace(-1, 1, COLUMNS * COLUMNS).reshape(COLUMNS, COLUMNS)


def given(count):
    mask = torch.zeros(ROWS, dtype=torch.bool)
    mask[torch.randperm(ROWS)[:count]] = True
    return torch.randn(ROWS, COLUMNS), mask


def experts(x, mask):
    out = torch.zeros_like(x)
    for e, rows in enumerate((mask, ~mask)):
        (chosen,) = torch.where(rows)
        out.index_add_(0, chosen, F.relu(x[chosen] @ WEIGHT) * (e + 1))
    return out


def packed(x, mask):
    n = mask.sum().item()
    torch._check(n >= 0)
    torch._check(n <= x.shape[0])
    kept = x[:n]
    return torch.cat([kept, kept * 2]).sum(0), n + 1


def suppressed(x, mask):
    order = x[:, 4].argsort(descending=True)
    boxes = x[order, :4].abs()
    keep = (boxes.prod(1) > 0.1) & mask[order]
    return boxes[keep], order[keep]


def written_to(x, mask):
    y = x * 2
    part = y[mask]
    part.add_(1)
    y.sub_(1)
    y[mask] = part @ WEIGHT
    return y, part


def chosen(x, mask):
    k = mask.sum().item()
    torch._check(k >= 0)
    torch._check(k <= COLUMNS)
    values, places = x.topk(k, -1)
    return values * 2, places


def split(x, mask):
    a, b = torch.stack([mask.sum(), (~mask).sum()]).tolist()
    torch._check(a >= 0)
    torch._check(b >= 0)
    first, second = x.split([a, b])
    return first * 2, second + 1, a


def in_modes(x, mask):
    with torch.no_grad():
        rows = mask.nonzero().squeeze(1)
    with torch.autocast("cpu", torch.bfloat16):
        y = x[rows] @ WEIGHT
    return y.float() * 2


def made(x, mask):
    n = mask.sum().item()
    torch._check(n >= 0)
    return torch.zeros(n, 3) + 1, torch.arange(n) * 2, x * n


def masked_mean(x, mask):
    return (x * mask[:, None] @ WEIGHT).sum(0) / max(mask.sum().item(), 1)


def limited(x, mask):
    n = mask.sum().item()
    k, least = min(n, x.shape[0] // 2), max(n, 1)
    return x.topk(least, 0)[0] * 2, x[:k] + 1, torch.zeros(least, 2) + k, least


def conditional(x, mask):
    n = mask.sum().item()
    k = n if n > 2 else 2
    j = 1 if n == 0 else n
    i = n and 3
    return x[:n] * k + (n or 1), x.sum() / j, k, i


def of_several(x, mask):
    a, b, c = torch.stack([mask.sum(), (~mask).sum(), mask[:2].sum()]).tolist()
    longest = max([a, b, c])
    return x.new_ones(longest + 1, 2) * 2, x - min(a, b, c), longest


def padded(x, mask):
    n = mask.sum().item()
    whole = -(-n // 4) * 4
    out = x.new_zeros(whole, COLUMNS)
    out[:n] = x[:n] * 2
    return out, F.pad(x[mask], (0, 0, 0, (n + 3) // 4 * 4 - n)) + 1


PROGRAMS = {
    "sum": lambda x, m: (x[m].sum(), x[m].shape[0]),
    "columns": lambda x, m: (x.t()[:, m] * 2 + 1).cos(),
    "loss": lambda x, m: F.cross_entropy((x @ WEIGHT)[m], (x.sum(1).long() % COLUMNS)[m]),
    "mean": lambda x, m: (x[m].mean(0), x[m] - x[m].mean(0, keepdim=True)),
    "rows": lambda x, m: (F.softmax(x[m], -1), F.layer_norm(x[m], (COLUMNS,)), x[m].argmax(-1)),
    "products": lambda x, m: (x[m] @ x[m].T, (x[m] @ WEIGHT).relu() @ WEIGHT),
    "nonzero": lambda x, m: torch.nonzero(x > 0).float() + 1,
    "masked_select": lambda x, m: x.masked_select(m[:, None]).relu() * 2,
    "two masks": lambda x, m: torch.cat([x[m], x[~m]]) + 1,
    "mask of a mask": lambda x, m: x[m][x[m].sum(-1) > 0] * 2,
    "same mask": lambda x, m: x[m] * (x * 2)[m] + x[m],
    "every pair": lambda x, m: x[m][:, None] + x[~m][None],
    "unique": lambda x, m: [t * 2 for t in torch.unique(x.sum(1).long(), return_counts=True)],
    "groups": lambda x, m: torch.zeros(2, COLUMNS).index_add(0, torch.unique(
        torch.cat([m, m.new_tensor([True, False])]).long(), return_inverse=True)[1][:-2], x),
    "repeat_interleave": lambda x, m: x.repeat_interleave(m.long() * 2, 0).softmax(-1),
    "bincount": lambda x, m: (torch.bincount(m.long()) * 2, torch.bincount(m.long(), minlength=4)),
    "reshaped": lambda x, m: x[m].view(-1, 2, 4).transpose(0, 1).reshape(-1, 4) + 1,
    "views": lambda x, m: (x[m] * 2, (x[m] * 2).view(-1, 2, 4), x[m][:, :2].t() + 1),
    "row": lambda x, m: (x[m.sum().item() - 1] * 2, x[m[0].long().item()] + 1),
    "elements": lambda x, m: (x[m].reshape(-1)[x[m].reshape(-1) > 0].view(-1, 1) * 2, x[m].sum()),
    "conv": lambda x, m: F.conv1d(x[m][:, None], torch.ones(2, 1, 3)).relu(),
    "attention": lambda x, m: F.scaled_dot_product_attention(*[x[m][None, None]] * 3),
    "extremes": lambda x, m: x[m].max() - x[m].amin(0),
    "sorted": lambda x, m: (x[m].sort(0)[0], x[m].cumsum(0), x[m].flip(0)),
    "scattered": lambda x, m: x.masked_scatter(m[:, None].expand_as(x), x[m] * 2),
    "embedding": lambda x, m: F.embedding(torch.arange(ROWS)[m], WEIGHT) * 2,
    "experts": experts, "packed": packed, "suppressed": suppressed, "written to": written_to,
    "topk": chosen, "split": split, "modes": in_modes, "made": made,
    "masked mean": masked_mean, "limited": limited, "conditional": conditional,
    "of several": of_several, "padded": padded,
}  # fmt: skip
# what eager does not do for nothing: an error is an error
FAILS = {"extremes": (0,)}


def outcome(fn, *args):
    try:
        return fn(*args)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_serves_every_number_that_the_data_gives(name):
    fn = PROGRAMS[name]
    compiled = torchweld.compile(fn, fullgraph=True)
    before = STATISTICS.counts()
    for count in COUNTS:
        args = given(count)
        expected = outcome(fn, *args)
        assert (count in FAILS.get(name, ())) is isinstance(expected, type)
        torch.testing.assert_close(outcome(compiled, *args), expected, equal_nan=True) if (
            not isinstance(expected, type)) else _same_error(compiled, args, expected)  # fmt: skip
    after = STATISTICS.counts()
    assert after["graphs"] - before["graphs"] == 1
    assert after["kernels"] > before["kernels"]
    assert after["aten_graphs"] == before["aten_graphs"]


def _same_error(compiled, args, expected):
    with pytest.raises(expected):
        compiled(*args)


@pytest.mark.parametrize("name", [
    "loss", "products", "experts", "written to", "two masks", "repeat_interleave", "modes", "mean",
    "views", "elements", "masked mean", "padded",
])  # fmt: skip
def test_gradients_go_through_what_the_data_chooses(name):
    fn = PROGRAMS[name]
    compiled = torchweld.compile(fn, fullgraph=True)
    for count in COUNTS:
        x, mask = given(count)
        found = []
        for run in (fn, compiled):
            leaf = x.clone().requires_grad_()
            out = run(leaf, mask)
            out = out if isinstance(out, tuple) else (out,)
            sum((t.float() * torch.linspace(1, 2, max(t.numel(), 1))[: t.numel()].view_as(t)).sum()
                for t in out).backward()  # fmt: skip
            found.append(leaf.grad)
        torch.testing.assert_close(found[1], found[0], equal_nan=True)


def test_independent_masks_share_one_gap():
    compiled = torchweld.compile(lambda x, m: experts(x, m), fullgraph=True)
    compiled(*given(3))
    (made_of,) = STATISTICS.compiled[-1:]
    assert len(made_of.parts) == 2


def test_a_question_that_the_data_answers_is_one_break():
    def fn(x, mask):
        chosen = x[mask] * 2 + 1
        if chosen.shape[0] == 0:
            return x.sum(0) * 3 - 1
        return chosen.cos().sum(0) + chosen.mean(0)

    compiled = torchweld.compile(fn)
    before = STATISTICS.breaks
    for count in COUNTS:
        args = given(count)
        torch.testing.assert_close(compiled(*args), fn(*args))
    assert STATISTICS.breaks == before + 1


def test_a_check_of_the_users_answers_later_questions():
    def fn(x, mask):
        n = mask.sum().item()
        torch._check(n >= 2)
        return x[:n].cos() * 2 if n > 1 else x

    compiled = torchweld.compile(fn, fullgraph=True)
    for count in (3, 2, ROWS):
        args = given(count)
        torch.testing.assert_close(compiled(*args), fn(*args))
    with pytest.raises(RuntimeError, match="Expected cond to be True"):
        compiled(*given(1))


def test_sizes_that_are_equal_by_chance_only_run_eagerly_where_they_differ():
    def fn(x, mask):
        return x[mask] + x[mask.flip(0)[: mask.shape[0]] | mask]

    compiled = torchweld.compile(fn, fullgraph=True)
    x = torch.randn(ROWS, COLUMNS)
    for rows, fits in (([0, 5], True), ([1], False), ([0, 2, 3, 5], True), ([0, 1], False)):
        mask = torch.zeros(ROWS, dtype=torch.bool)
        mask[rows] = True
        if fits or len(rows) == 1:
            torch.testing.assert_close(compiled(x, mask), fn(x, mask))
        else:
            with pytest.raises(RuntimeError, match="must match"):
                compiled(x, mask)


def test_what_is_supposed_is_not_where_an_input_was_written():
    def fn(x, mask):
        x.add_(1)
        return x[mask] + x[~mask], x * 2

    compiled = torchweld.compile(fn)
    for count in (3, 5, 1, 4):
        x, mask = given(count)
        mine, theirs = x.clone(), x.clone()
        expected = outcome(fn, theirs, mask)
        if count == 4:
            _same_error(compiled, (mine, mask), expected)
        else:
            torch.testing.assert_close(compiled(mine, mask), expected)
        torch.testing.assert_close(mine, theirs)


def test_random_numbers_come_in_eagers_order():
    def fn(x, mask):
        a = torch.rand(4)
        b = x[mask]
        return a, torch.rand_like(b) * 2, torch.rand(3), b

    compiled = torchweld.compile(fn)
    for count in COUNTS:
        args = given(count)
        torch.manual_seed(count)
        expected = fn(*args)
        torch.manual_seed(count)
        torch.testing.assert_close(compiled(*args), expected)


def test_sizes_of_inputs_and_of_the_data_vary_together():
    fn = PROGRAMS["products"]
    compiled = torchweld.compile(fn, fullgraph=True, dynamic=True)
    for rows, count in ((6, 3), (9, 0), (4, 4), (17, 1)):
        mask = torch.arange(rows) < count
        x = torch.randn(rows, COLUMNS)
        torch.testing.assert_close(compiled(x, mask), fn(x, mask))


def test_a_graph_in_pieces_says_so():
    compiled = torchweld.compile(lambda x, m: (x[m] * 2 + 1).sum())
    compiled(*given(3))
    assert STATISTICS.compiled[-1].text().startswith("pieces around what makes sizes: 1 generated")


def test_a_numbers_value_leaves_the_frame():
    def fn(x, mask):
        return mask.sum().item() * 2, int(mask.sum()), x * 2

    compiled = torchweld.compile(fn, fullgraph=True)
    for count in COUNTS:
        args = given(count)
        assert compiled(*args)[:2] == fn(*args)[:2]


def test_interpreted_code_gets_what_the_data_gives():
    compiled = torchweld.compile(PROGRAMS["mean"], fullgraph=True, backend="eager")
    for count in COUNTS:
        args = given(count)
        torch.testing.assert_close(compiled(*args), PROGRAMS["mean"](*args), equal_nan=True)


def test_parts_of_inputs_that_the_data_chooses_are_views_of_them():
    def fn(x, mask):
        n = mask.sum().item()
        torch._check(n > 0)
        torch._check(n <= x.shape[0])
        return x[:n], x[n - 1], x.narrow(0, 0, n).t()

    compiled = torchweld.compile(fn, fullgraph=True)
    before = STATISTICS.counts()
    for count in (3, 1, ROWS):
        x, mask = given(count)
        for found, expected in zip(compiled(x, mask), fn(x, mask), strict=True):
            torch.testing.assert_close(found, expected)
            assert found.data_ptr() == expected.data_ptr()
    after = STATISTICS.counts()
    assert after["aten_graphs"] == before["aten_graphs"]


def test_a_number_that_changes_is_given_to_the_piece_that_takes_it():
    def f(x, k):
        x = x * 1
        x[x > 1] *= 2
        return k - x

    torchweld.reset()
    compiled = torchweld.compile(f)
    for k in (3, 4, 5):
        x, _ = given(2)
        torch.testing.assert_close(compiled(x, k), f(x, k))
    counts = torchweld.statistics()
    assert (counts["graphs"], counts["aten_graphs"]) == (2, 0)


def test_a_size_that_becomes_fixed_bounds_a_size_of_a_later_piece():
    def program(x, index):
        mean = x.scatter_reduce(0, index.expand(ROWS, ROWS), x[:, :ROWS], "mean")
        return x[x > 0] * 2, mean

    torchweld.reset()
    compiled = torchweld.compile(program, dynamic=True)
    index = torch.arange(ROWS)[None] % 2
    for count in (ROWS, 2):
        x = given(count)[0].requires_grad_()
        torch.testing.assert_close(compiled(x, index), program(x, index))
    assert torchweld.statistics()["breaks"] == 0


@pytest.mark.parametrize("key", [
    torch.ones(ROWS - 1, dtype=torch.bool), torch.ones(ROWS + 2, dtype=torch.bool),
    (slice(None), torch.ones(ROWS, dtype=torch.bool)),
    (..., torch.ones(ROWS, dtype=torch.bool)),
    torch.ones(ROWS, 2, dtype=torch.bool),
    (torch.ones(ROWS, COLUMNS, dtype=torch.bool), None, torch.ones(2, dtype=torch.bool)),
])  # fmt: skip
@pytest.mark.parametrize("backend", ["eager", "torchweld"])
def test_masks_of_other_sizes_raise_what_eager_raises(key, backend):
    x = torch.randn(ROWS, COLUMNS)
    torchweld.reset()
    with pytest.raises(IndexError) as expected:
        x[key] * 2
    with pytest.raises(IndexError) as got:
        torchweld.compile(lambda x: x[key] * 2, backend=backend)(x)
    assert str(got.value) == str(expected.value)


@pytest.mark.parametrize("place", [
    lambda m, w: (..., w), lambda m, w: (None, m), lambda m, w: (m, slice(1, 3)),
    lambda m, w: (True, m), lambda m, w: (slice(None), None, w),
])  # fmt: skip
def test_masks_that_fit_behind_other_parts_of_a_key(place):
    x, mask = given(3)
    wide = torch.arange(COLUMNS) % 3 > 0
    torchweld.reset()

    def fn(x, mask, wide):
        return x[place(mask, wide)] * 2

    compiled = torchweld.compile(fn, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, mask, wide), fn(x, mask, wide))
