"""Outputs have eager's layout and aliasing; mutated inputs get their new values last."""

from __future__ import annotations

import torch
from lower_harness import check, externs, nests


def test_swap_of_two_inputs() -> None:
    def swap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        old = a.clone()
        a.copy_(b)
        return b.copy_(old)

    check(swap, torch.randn(3, 4), torch.randn(3, 4))


def test_rotation_of_three_inputs_through_views() -> None:
    def rotate(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        olds = [x.clone() for x in (a, b, c)]
        a.copy_(olds[1].t())
        b.copy_(olds[2].t())
        c.copy_(olds[0])
        return a + b

    check(rotate, *(torch.randn(3, 3) for _ in range(3)))


def test_old_value_is_read_before_the_input_changes() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        old = x[1:] * 2
        x.mul_(3)
        return old, x[0]

    check(f, torch.randn(4, 5))


def test_returned_input_and_its_views_alias_it() -> None:
    check(lambda x: (x, x.t(), x[1:, 0]), torch.randn(3, 4))
    check(lambda x: (x.add_(1), x.view(-1)[2:5]), torch.randn(3, 4))


def test_view_of_a_mutated_strided_input_aliases_it() -> None:
    check(lambda x: x.relu_()[1:].t(), torch.randn(6, 8)[::2, 1:5])


def test_mutated_view_of_an_input() -> None:
    check(lambda x: x[:, 1:3].add_(10), torch.randn(3, 4))


def test_outputs_that_are_views_of_each_other() -> None:
    check(lambda x: (y := x * 2, y[1:], y.t()), torch.randn(3, 4))


def test_channels_last_layout_is_kept() -> None:
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    g = check(lambda x: (x + 1, (x + 1).contiguous()), x)
    assert g.outputs[0] is not None
    assert [e.value for e in g.outputs[0].strides] == [60, 1, 15, 3]


def test_integer_input_mutated_by_a_counter() -> None:
    check(lambda n: n.add_(1), torch.tensor(3))


def test_clone_is_not_an_alias() -> None:
    check(lambda x: (x.clone(), x), torch.randn(3))


def test_random_calls_stay_in_order_even_when_unused() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch.rand(3)
        y = torch.randn(3) + x
        return y + torch.rand(3)

    g = check(f, torch.zeros(3))
    assert [op.split(".")[1] for op in externs(g)] == ["rand", "randn", "rand"]


def test_cache_update_is_stored_straight_into_the_input() -> None:
    def update(cache: torch.Tensor, k: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, at, k)
        return cache.sum(1)

    g = check(update, torch.randn(2, 6, 4), torch.randn(2, 1, 4), torch.tensor([3]))
    assert [n.out.role for n in nests(g)] == ["input", "temp"]


def test_slice_assignments_are_stored_straight_into_the_input() -> None:
    def update(cache: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        old = cache[:, :2].clone()
        cache[:, 2:4] = k
        cache[:, 4:5] = k[:, :1]
        return old + cache[:, 2:4]

    g = check(update, torch.randn(2, 6, 4), torch.randn(2, 2, 4))
    assert sum(n.out.role == "input" for n in nests(g)) == 2 and len(nests(g)) == 4


def test_store_that_reads_the_input_itself_is_not_done_in_place() -> None:
    def shift(x: torch.Tensor) -> torch.Tensor:
        return x.copy_(torch.ops.aten.slice_scatter(x, x[:-1] * 1, 0, 1))

    check(shift, torch.randn(5, 2))
    check(lambda x: x.copy_(torch.slice_scatter(x, x[:-1], 0, 1)), torch.randn(5, 2))


def test_old_value_that_is_read_later_keeps_the_store_out_of_the_input() -> None:
    def f(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        new = torch.slice_scatter(x, v, 0, 0, 1)
        late = x.t() + 1
        x.copy_(new)
        return late

    check(f, torch.randn(4, 6), torch.randn(1, 6))
