"""What is remembered of operators on fake tensors: looks and aliases, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from torchweld.ir import fake_memo
from torchweld.ir.fake import FakeMode
from torchweld.ir.size_node import symbolic
from torchweld.ir.sizes import SizeEnv

aten = torch.ops.aten


def twice(func: Any, *args: Any, n: int = 2) -> tuple[Any, Any, int]:
    """The results of a call made twice, and how often it was really run."""
    runs = 0

    class Counting(FakeMode):
        def _run(self, *given: Any) -> Any:
            nonlocal runs
            runs += 1
            return super()._run(*given)

    fake_memo._TABLE.clear()
    mode = Counting()
    with mode, torch.no_grad():
        made = [torch.empty(a) if isinstance(a, tuple) else a for a in args]
        runs = 0
        return func(*made), func(*made), runs


def look(x: Tensor) -> tuple[Any, ...]:
    return (x.shape, x.stride(), x.storage_offset(), x.dtype, x.device)


@pytest.mark.parametrize("func, args", [
    (aten.mul.Tensor, ((3, 4), 2.0)),
    (aten.add.Tensor, ((3, 1), (1, 4))),
    (aten.sum.dim_IntList, ((3, 4), [1])),
])  # fmt: skip
def test_the_second_call_is_answered_from_memory(func: Any, args: tuple[Any, ...]) -> None:
    first, second, runs = twice(func, *args)
    assert runs == 1
    assert look(first) == look(second)
    assert first is not second
    assert first.untyped_storage()._cdata != second.untyped_storage()._cdata


def test_a_remembered_view_shares_the_memory_of_its_own_argument() -> None:
    mode = FakeMode()
    with mode, torch.no_grad():
        a, b = torch.empty(4, 6), torch.empty(4, 6)
        views = [aten.slice.Tensor(x, 1, 2, 5) for x in (a, b)]
    assert look(views[0]) == look(views[1])
    assert views[1].storage_offset() == 2
    assert views[1].untyped_storage()._cdata == b.untyped_storage()._cdata


def test_several_results_keep_their_container() -> None:
    first, second, runs = twice(aten.max.dim, (6, 2), 1)
    assert isinstance(second, tuple) and runs == 1
    assert list(map(look, first)) == list(map(look, second))
    assert isinstance(twice(aten.split_with_sizes_copy.default, (6, 2), [2, 4])[1], (list, tuple))


@pytest.mark.parametrize("a, b", [(2, 2.0), (1, True), (0.0, False)])
def test_numbers_of_other_types_are_other_calls(a: Any, b: Any) -> None:
    mode = FakeMode()
    with mode:
        x = torch.empty(3, dtype=torch.int64)
        assert (x * a).dtype == (torch.empty(3, dtype=torch.int64, device="meta") * a).dtype
        assert (x * b).dtype == (torch.empty(3, dtype=torch.int64, device="meta") * b).dtype


def test_the_default_dtype_is_part_of_the_question() -> None:
    mode = FakeMode()
    with mode:
        x = torch.empty(3, dtype=torch.int64)
        assert (x / 2).dtype is torch.float32
        torch.set_default_dtype(torch.float64)
        try:
            assert (x / 2).dtype is torch.float64
        finally:
            torch.set_default_dtype(torch.float32)


def test_in_place_operators_are_run_every_time() -> None:
    first, second, runs = twice(aten.add_.Tensor, (3,), 1.0)
    assert first is second and runs == 2


def test_inference_tensors_are_not_given_outside_of_inference_mode() -> None:
    mode = FakeMode()
    with mode, torch.inference_mode():
        assert aten.mul.Tensor(torch.empty(5), 3.0).is_inference()
    with mode:
        assert not aten.mul.Tensor(torch.empty(5), 3.0).is_inference()


def test_what_only_the_data_decides_is_still_refused() -> None:
    for _ in range(2):
        with FakeMode() as mode, mode, pytest.raises(Exception, match=r"nonzero|DynamicOutput"):
            torch.empty(4).nonzero()


# ---------------------------------------------------------------- symbolic sizes
def counted(env: SizeEnv, calls: Callable[[Any, Any], tuple[Any, ...]]) -> tuple[Any, list[Any]]:
    """What `calls` makes of two tensors [s0, s1], and which operators were really run for it."""
    runs: list[Any] = []

    class Counting(FakeMode):
        def _run(self, func: Any, *given: Any) -> Any:
            runs.append(func)
            return super()._run(func, *given)

    n, m = (symbolic(env, env.symbol(v)) for v in (6, 10))
    mode = Counting()
    mode.cache_enabled = False  # torch's own, as in a capture whose sizes vary
    with mode, torch.no_grad():
        x, y = torch.empty(n, m), torch.empty(n, m)
        return calls(x, y), runs


def places(x: Tensor) -> list[str]:
    return [str(n) for n in (*x.shape, *x.stride(), x.storage_offset())]


def test_a_call_on_symbolic_sizes_is_answered_from_memory() -> None:
    env = SizeEnv()
    (first, second), runs = counted(env, lambda x, y: (aten.exp.default(x), aten.exp.default(y)))
    assert runs.count(aten.exp.default) == 1
    assert places(first) == places(second) == ["s0", "s1", "s1", "1", "0"]


def test_a_remembered_view_of_symbolic_sizes_shares_memory() -> None:
    env = SizeEnv()
    made, runs = counted(env, lambda x, y: (y, *(aten.slice.Tensor(a, 0, 1, 5) for a in (x, y))))
    y, first, second = made
    assert runs.count(aten.slice.Tensor) == 1
    assert places(first) == places(second) == ["4", "s1", "s1", "1", "s1"]
    assert second.untyped_storage()._cdata == y.untyped_storage()._cdata


def test_answers_that_are_no_facts_are_not_remembered() -> None:
    env = SizeEnv()

    def calls(x: Any, y: Any) -> tuple[Any, ...]:
        parts = x[:, :8], y[:, 2:]  # of 8 and of s1 - 2 columns
        with env.silent():
            aten.add.Tensor(*parts)
        known = env.facts()
        aten.add.Tensor(*parts)
        return known, env.facts()

    (before, after), _ = counted(env, calls)
    assert "s1 == 10" not in [f.text() for f in before]
    assert "s1 == 10" in [f.text() for f in after]
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("of", [False, True])
@pytest.mark.parametrize("func, args, like_its_input", [
    (aten.slice.Tensor, (1, 1, 3), True), (aten.detach.default, (), True),
    (aten.split.Tensor, (2, 1), True), (aten.mul.Tensor, (2.0,), False),
])  # fmt: skip
def test_views_in_inference_mode_are_what_they_are_views_of(
    func: Any, args: tuple[Any, ...], like_its_input: bool, of: bool, inside: bool
) -> None:
    with FakeMode():
        with torch.inference_mode(of):
            x = torch.empty(4, 6)
        with torch.inference_mode(inside):
            made = [func(x, *args) for _ in range(3)]
    first = [m[0] if isinstance(m, (list, tuple)) else m for m in made]
    assert [m.is_inference() for m in first] == [of if like_its_input else inside] * 3
