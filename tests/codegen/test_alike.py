"""Keys of kernels: equal keys give equal texts, other texts have other keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torchweld
from torchweld.codegen import run
from torchweld.codegen.alike import key_of
from torchweld.codegen.cpp_kernel import print_kernel
from torchweld.codegen.settle import settle
from torchweld.fuse.facts import BufferSwap
from torchweld.ir.plan import Kernel, Plan, kernels_of


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Plan]]:
    """The plans of what is compiled in a test."""
    seen: list[Plan] = []
    generate = run.generate

    def watch(plan: Plan) -> object:
        seen.append(plan)
        return generate(plan)

    monkeypatch.setattr("torchweld.programs.generate", watch)
    torchweld.reset()
    yield seen
    torchweld.reset()


def layers(x: Tensor, gains: list[Tensor], table: Tensor, rows: Tensor) -> Tensor:
    for g in gains:
        x = F.layer_norm(torch.mm(x, g) + table[rows], x.shape[-1:]).softmax(-1)
    return torch.cumsum(x, 0)[:, 1:] - x.roll(1, 0)[:, :-1]


def kernels(plans: list[Plan]) -> list[Kernel]:
    torchweld.compile(layers)(
        torch.randn(8, 16), [torch.randn(16, 16) for _ in range(5)], torch.randn(20, 16),
        torch.arange(8),
    )  # fmt: skip
    return [k for plan in plans for k in kernels_of(plan.steps)]


def test_kernels_of_equal_layers_have_one_key_and_one_text(plans: list[Plan]) -> None:
    found = kernels(plans)
    texts: dict[object, set[str]] = {}
    for k in found:
        texts.setdefault(key_of(k), set()).add(print_kernel(settle(k), frozenset()))
    assert len(texts) < len(found)
    assert all(len(t) == 1 for t in texts.values())
    assert len({t for group in texts.values() for t in group}) == len(texts)


def test_whatever_changes_the_text_changes_the_key(plans: list[Plan]) -> None:
    for k in kernels(plans):
        text = print_kernel(settle(k), frozenset())
        first = k.args[0]
        far = tuple(step * 2 for step in first.strides)
        moved = replace_buffer(k, first.make(
            first.name, first.dtype, first.shape, far, first.offset, first.role, first.device,
        ))  # fmt: skip
        assert print_kernel(settle(moved), frozenset()) != text
        assert key_of(moved) != key_of(k)
        assert key_of(replace(k, name="other", origins=("elsewhere",))) == key_of(k)


def replace_buffer(k: Kernel, new: object) -> Kernel:
    """`k` with another first argument."""
    swap = BufferSwap({k.args[0]: new})  # type: ignore[dict-item]
    stages = tuple(
        replace(s, nests=tuple(
            replace(n, out=swap.buffers.get(n.out, n.out), index=swap.index(n.index),
                    body=swap.scalar(n.body)) for n in s.nests))
        for s in k.stages
    )  # fmt: skip
    return replace(k, stages=stages, args=(new, *k.args[1:]))  # type: ignore[arg-type]
