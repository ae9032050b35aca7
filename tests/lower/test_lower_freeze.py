"""A program whose weights never change is two: what is computed once, and the rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import vector_eval
from lower_harness import copied, externs, lowered, nests, outputs_of, strides

import torchweld
from torchweld.base import config
from torchweld.ir.loop import LoopGraph
from torchweld.ir.loop_verify import verify
from torchweld.lower.channels_last import is_channels_last
from torchweld.lower.freeze import Frozen, freeze

needs_onednn = pytest.mark.parametrize("pack", [True] * torch.backends.mkldnn.is_available())
CONVOLUTION = "mkldnn._convolution_pointwise.default"


def split(f: Callable[..., Any], x: torch.Tensor, *weights: torch.Tensor) -> Frozen:
    """f(x, *weights) with frozen weights, after checking that nobody can tell it from eager."""
    parts = freeze(lowered(f, x, *weights), frozenset(range(1, 1 + len(weights))))
    given = list(copied((x, *weights)))
    known: list[Any] = []
    verify(parts.main)
    if parts.prologue is not None:
        verify(parts.prologue)
        known = vector_eval.run(parts.prologue, [given[i] for i in parts.frozen])
    got = vector_eval.run(parts.main, [*given, *known])
    want = outputs_of(f, copied((x, *weights)), {})
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)
        assert a is not None and strides(a) == strides(b)
    return parts


def prologue(parts: Frozen) -> LoopGraph:
    assert parts.prologue is not None
    return parts.prologue


def test_what_depends_on_weights_alone_is_computed_once() -> None:
    parts = split(lambda x, w, v: x * torch.rsqrt(w + 1.0) * v, torch.randn(4, 8),
                  torch.rand(8), torch.randn(8))  # fmt: skip
    (const,) = [b for b in parts.main.inputs if b.role == "const"]
    assert const.shape[0].value == 8 and len(parts.main.inputs) == 4
    assert parts.frozen == (1,)
    assert all("rsqrt(" not in n.body.text() for n in nests(parts.main))


def test_nothing_is_taken_out_of_a_program_without_frozen_inputs() -> None:
    g = lowered(lambda x, w: x * torch.rsqrt(w), torch.randn(4, 8), torch.rand(8))
    parts = freeze(g, frozenset())
    assert parts.main is g and parts.prologue is None


def test_mask_that_an_operator_reads_is_computed_once_with_nothing_frozen() -> None:
    def fn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(8, 8, dtype=torch.bool).tril().triu(-3)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    qkv = [torch.randn(2, 4, 8, 16) for _ in range(3)]
    parts = freeze(lowered(fn, *qkv), frozenset())
    assert parts.prologue is not None and parts.frozen == ()
    assert nests(parts.main) == []
    with torch.no_grad():
        compiled = torchweld.compile(fn)
        for _ in range(2):
            torch.testing.assert_close(compiled(*qkv), fn(*qkv))


def test_result_that_is_made_of_weights_alone_is_fresh_at_every_call() -> None:
    """A caller may write to it."""
    parts = split(lambda x, w: (x + 1, torch.exp(w) * 2), torch.randn(4), torch.randn(8))
    assert len(nests(parts.main)) >= 2
    assert [v.buffer.role for v in parts.main.outputs if v] == ["temp", "temp"]


def test_table_made_of_a_few_numbers_stays_in_the_kernel() -> None:
    """It would be larger than what it is made of, and no call reads it."""
    parts = split(lambda x, w: x * torch.cos(w[:, None] * w[None, :]), torch.randn(1024, 1024),
                  torch.randn(1024))  # fmt: skip
    assert parts.prologue is None


def test_small_table_is_computed_once() -> None:
    parts = split(lambda x, w: x * torch.cos(w[:, None] * w[None, :]), torch.randn(64, 64),
                  torch.randn(64))  # fmt: skip
    assert len(nests(parts.main)) == 1


def test_numbers_without_weights_stay_where_they_are() -> None:
    f = lambda x, w: x + torch.arange(8.0) + torch.exp(w)
    parts = split(f, torch.randn(4, 8), torch.randn(8))
    assert len([b for b in parts.main.inputs if b.role == "const"]) == 1


def test_random_numbers_are_drawn_at_every_call() -> None:
    g = lowered(lambda x, w: x + F.dropout(w, 0.5), torch.randn(8), torch.ones(8))
    parts = freeze(g, frozenset({1}))
    assert parts.prologue is None or not any("rand" in op for op in externs(parts.prologue))
    drawn = [n for n in parts.main.nodes if "rand" in str(n) or "bernoulli" in str(n)]
    assert drawn


def test_weight_that_the_program_writes_is_not_frozen() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        w.add_(1.0)
        return x * torch.exp(w)

    assert freeze(lowered(f, torch.randn(8), torch.randn(8)), frozenset({1})).prologue is None


def test_index_that_is_checked_fails_at_every_call() -> None:
    g = lowered(lambda x, w: x + torch.arange(5.0).index_select(0, w), torch.randn(2),
                torch.tensor([1, 3]))  # fmt: skip
    parts = freeze(g, frozenset({1}))
    assert parts.prologue is None


@needs_onednn
def test_weight_of_a_linear_is_packed_once(pack: bool) -> None:
    parts = split(F.linear, torch.randn(64, 256), torch.randn(512, 256), torch.randn(512))
    assert externs(prologue(parts)) == ["mkldnn._reorder_linear_weight.default"]
    assert externs(parts.main) == ["mkldnn._linear_pointwise.default"]


@needs_onednn
def test_weight_that_two_products_share_is_packed_once(pack: bool) -> None:
    parts = split(lambda x, w: (x @ w.t()).relu() @ w.t(), torch.randn(64, 256),
                  torch.randn(256, 256) / 16)  # fmt: skip
    assert len(externs(prologue(parts))) == 1 and len(externs(parts.main)) == 2


@needs_onednn
def test_weight_that_is_computed_from_frozen_ones_is_packed_too(pack: bool) -> None:
    parts = split(lambda x, w, s: F.linear(x, w * s[:, None]), torch.randn(64, 256),
                  torch.randn(512, 256), torch.randn(512))  # fmt: skip
    assert not nests(parts.main)
    assert [b.role for b in parts.main.inputs] == ["input"] * 3 + ["const"]


@needs_onednn
def test_one_row_takes_the_weight_as_it_lies(pack: bool) -> None:
    parts = split(F.linear, torch.randn(1, 2048), torch.randn(4096, 2048))
    assert parts.prologue is None


def image(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def last(x: torch.Tensor) -> torch.Tensor:
    return x.to(memory_format=torch.channels_last)


def conv_block(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    y = F.relu(F.conv2d(x, w, padding=1) * s[:, None, None])
    return F.conv2d(y, v) + y


BLOCK = (image(2, 3, 9, 9), image(8, 3, 3, 3), image(8), image(8, 8, 1, 1))


@needs_onednn
def test_between_packed_convolutions_channels_are_last(pack: bool) -> None:
    parts = split(conv_block, *BLOCK)
    assert externs(parts.main) == [CONVOLUTION, CONVOLUTION]
    inner = [n.out for n in nests(parts.main) if not any(
        v is not None and v.buffer is n.out for v in parts.main.outputs)]  # fmt: skip
    relu = [b for b in inner if b.name.startswith("relu")]
    assert relu and all(map(is_channels_last, relu))


@needs_onednn
def test_max_pool_behind_a_packed_convolution_keeps_its_layout(pack: bool) -> None:
    parts = split(
        lambda x, w: F.conv2d(F.max_pool2d(F.conv2d(x, w, padding=1), 2), w, padding=1),
        image(1, 4, 12, 12), image(4, 4, 3, 3),
    )  # fmt: skip
    pooled = [n.out for n in nests(parts.main) if n.out.name.startswith("max_pool")]
    assert pooled and all(map(is_channels_last, pooled))


@needs_onednn
@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        (image(1, 4, 8, 8), image(8, 4, 3, 3), {"stride": 2, "padding": 1}),
        (last(image(2, 8, 8, 8)), image(8, 1, 3, 3), {"groups": 8, "padding": 1}),
        (last(image(2, 8, 9, 7)), image(6, 4, 3, 2), {"groups": 2, "dilation": 2}),
        (last(image(2, 8, 5, 5)), image(6, 8, 1, 1), {}),
        (image(1, 4, 6, 6), last(image(8, 4, 3, 3)), {}),
        (image(1, 1, 6, 6), image(1, 1, 3, 3), {}),
        (image(1, 4, 3, 3), image(8, 4, 3, 3), {}),
    ],
)
def test_packed_convolution_equals_eager(
    pack: bool, x: torch.Tensor, w: torch.Tensor, options: dict[str, Any]
) -> None:
    bias = torch.randn(w.shape[0])
    parts = split(lambda x, w, b: F.conv2d(x, w, b, **options) * 2.0, x, w, bias)
    assert externs(parts.main) == [CONVOLUTION]


@needs_onednn
def test_convolution_that_would_turn_its_operand_alone_stays_in_aten(pack: bool) -> None:
    parts = split(lambda x, w: F.relu(F.conv2d(x, w)), image(1, 8, 9, 9), image(4, 8, 3, 3))
    assert externs(parts.main) == ["aten.convolution.default"]


@needs_onednn
def test_convolution_that_turns_its_operand_for_others_is_packed(pack: bool) -> None:
    parts = split(lambda x, w, v: F.conv2d(F.relu(F.conv2d(x, w)), v), image(1, 8, 9, 9),
                  image(4, 8, 3, 3), image(6, 4, 1, 1))  # fmt: skip
    assert externs(parts.main) == [CONVOLUTION, CONVOLUTION]


@needs_onednn
def test_channels_in_groups_are_not_put_last(pack: bool) -> None:
    parts = split(lambda x, w: F.conv2d(F.group_norm(F.conv2d(x, w, padding=1), 2), w),
                  image(1, 8, 9, 9), image(8, 8, 3, 3))  # fmt: skip
    assert externs(parts.main) == ["aten.convolution.default"] * 2


@needs_onednn
def test_images_side_by_side_keep_their_channels_last(pack: bool) -> None:
    def f(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(x, w, padding=1)
        return F.conv2d(torch.cat([y, F.relu(y)], 1), v)

    parts = split(f, image(1, 3, 9, 9), image(4, 3, 3, 3), image(6, 8, 1, 1))
    joined = [n.out for n in nests(parts.main) if n.out.name.startswith("cat")]
    assert joined and all(map(is_channels_last, joined))


@needs_onednn
def test_nan_survives_the_relu_behind_a_packed_convolution(pack: bool) -> None:
    x = image(1, 3, 6, 6)
    x[0, 0, 2, 2] = math.nan
    split(lambda x, w: F.relu(F.conv2d(x, w)), x, image(4, 3, 3, 3))


@needs_onednn
def test_step_between_rows_of_an_image_keeps_the_convolution_in_aten(pack: bool) -> None:
    parts = split(lambda x, w: F.conv2d(x[:, :, ::2], w) + 1, image(1, 3, 12, 6),
                  image(4, 3, 3, 3))  # fmt: skip
    assert externs(parts.main) == ["aten.convolution.default"]


@pytest.mark.parametrize(
    ("x", "w"),
    [
        (image(2, 3, 8), image(4, 3, 3)),
        (image(1, 2, 4, 4, 4), image(3, 2, 2, 2, 2)),
        (image(2, 3, 8, 8).double(), image(4, 3, 3, 3).double()),
    ],
)
def test_other_convolutions_stay_in_aten(x: torch.Tensor, w: torch.Tensor) -> None:
    call = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[x.dim()]
    assert externs(split(lambda x, w: call(x, w) + 1, x, w).main) == ["aten.convolution.default"]


def test_packing_can_be_skipped() -> None:
    with config.override(skip=("contractions",)):
        assert split(conv_block, *BLOCK).prologue is None
