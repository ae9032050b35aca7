"""flex_attention: operators around the user's functions, one graph with what is around it."""

import warnings

import pytest
import torch
from eager_twin import check_refused
from gradient_twin import check, run
from torch import nn
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import (
    AuxRequest,
    and_masks,
    create_block_mask,
    create_mask,
    flex_attention,
    or_masks,
)

import torchweld

warnings.filterwarnings("ignore", "flex_attention called without", UserWarning)

torch.manual_seed(0)
Q, K, V = torch.randn(3, 2, 4, 16, 8).unbind()
BIAS = torch.tensor([0.5, -1.0, 2.0, 0.0])
DOCUMENTS = torch.tensor([0] * 5 + [1] * 7 + [2] * 4)


def causal(b, h, q, k):
    return q >= k


def same_document(b, h, q, k):
    return DOCUMENTS[q] == DOCUMENTS[k]


def relative(score, b, h, q, k):
    return score + (q - k) * 0.1


CAUSAL = create_block_mask(causal, None, None, 16, 16, device="cpu")


@pytest.fixture
def trainable(monkeypatch):
    """Eager refuses gradients on the CPU only to save its users from the memory that it needs."""
    monkeypatch.setattr(flex, "_validate_device", lambda *qkv: None)


def test_scores_are_changed_by_a_function():
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=relative) * 2, Q, K, V)
    check(lambda q, k, v: flex_attention(q, k, v, scale=0.3, kernel_options={"BLOCK_M": 64}),
          Q, K, V)  # fmt: skip


def test_a_function_looks_up_tensors_by_position():
    def biased(q, k, v, bias):
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s * bias[h] + bias[0])

    check(biased, Q, K, V, BIAS)
    table = torch.randn(4, 16, 16)
    check(lambda q, k, v, t: flex_attention(q, k, v, lambda s, b, h, i, j: s + t[h, i, j]),
          Q, K, V, table)  # fmt: skip


def test_a_mask_from_outside():
    check(lambda q, k, v: flex_attention(q, k, v, block_mask=CAUSAL) + 1, Q, K, V)


def test_a_mask_made_in_the_frame():
    def masked(q, k, v, lengths):
        inside = lambda b, h, i, j: j < lengths[b]
        wanted = and_masks(or_masks(causal, same_document), inside)
        mask = create_block_mask(wanted, 2, 4, 16, 16, device="cpu")
        return flex_attention(q, k, v, score_mod=relative, block_mask=mask)

    check(masked, Q, K, V, torch.tensor([16, 9]))


def test_rows_that_see_nothing():
    def later(q, k, v):
        mask = create_block_mask(lambda b, h, i, j: i > j, 1, 1, 16, 16, device="cpu")
        return flex_attention(q, k, v, block_mask=mask, return_aux=AuxRequest(lse=True))

    check(later, Q, K, V)


def test_fewer_heads_of_keys_and_what_is_returned_beside():
    def grouped(q, k, v):
        return flex_attention(q, k, v, enable_gqa=True, return_aux=AuxRequest(lse=True))

    check(grouped, Q, K[:, :2], V[:, :2])


def test_the_result_is_laid_out_as_the_query():
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (Q, K, V))
    compiled = torchweld.compile(lambda q, k, v: flex_attention(q, k, v), fullgraph=True)
    assert compiled(q, k, v).stride() == flex_attention(q, k, v).stride() != Q.stride()


def test_autocast():
    def cast(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return flex_attention(q, k, v, score_mod=relative)

    compiled = torchweld.compile(cast, fullgraph=True)
    out, want = compiled(Q, K, V), cast(Q, K, V)
    assert out.dtype is want.dtype is torch.bfloat16
    torch.testing.assert_close(out, want, rtol=2e-2, atol=2e-2)


def test_masks_as_tensors():
    check(lambda x: x + create_mask(causal, 2, 4, 16, 16, device="cpu").float(), Q[..., :1])
    check(lambda x: x + create_mask(lambda s, b, h, i, j: torch.where(i > j, s, -float("inf")),
                                    2, 4, 16, 16, device="cpu").float(), Q[..., :1])  # fmt: skip
    check(lambda x: x + create_block_mask(causal, 1, 1, 256, 300, device="cpu").to_dense(),
          torch.ones(2, 3))  # fmt: skip


def test_gradients(trainable):
    q, k, v, bias = (x.clone().requires_grad_() for x in (Q, K, V, BIAS))

    def biased(q, k, v, bias):
        score = lambda s, b, h, i, j: (s * bias[h]).tanh() + bias[1]
        return flex_attention(q, k, v, score_mod=score, block_mask=CAUSAL) * 2

    check(biased, q, k, v, bias)


def test_gradients_of_rows_that_see_nothing(trainable):
    def later(q, k, v):
        mask = create_block_mask(lambda b, h, i, j: i > j, 1, 1, 16, 16, device="cpu")
        out, lse = flex_attention(q, k, v, block_mask=mask, return_lse=True)
        return out, lse[:, :, 1:]

    check(later, *(x.clone().requires_grad_() for x in (Q, K, V)))


def test_errors_are_those_of_eager():
    check_refused(lambda q, k, v: flex_attention(q, k, v), Q, K[:, :2], V[:, :2],
                  code="W111", says="same number of heads")  # fmt: skip
    check_refused(lambda q, k, v: flex_attention(q, k, v), Q.clone().requires_grad_(), K, V,
                  code="W111", says="backward on CPU")  # fmt: skip


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.slopes = nn.Parameter(torch.rand(4))

    def forward(self, x):
        q, k, v = self.qkv(x).reshape(2, 16, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind()
        sloped = lambda score, b, h, i, j: score - self.slopes[h] * (i - j).abs()
        out = flex_attention(q, k, v, score_mod=sloped, block_mask=CAUSAL)
        return x + out.transpose(1, 2).reshape(2, 16, 32)


def test_layers_with_attention_in_training(trainable):
    layers, x = nn.Sequential(Layer(), Layer()).double(), torch.randn(2, 16, 32).double()
    want = run(lambda m, x: m(x), (layers, x))
    torchweld.reset()
    got = run(torchweld.compile(lambda m, x: m(x), fullgraph=True), (layers, x))
    torch.testing.assert_close(got[:2], want[:2])
    assert torchweld.statistics()["aten_graphs"] == 0


def test_other_sizes_are_one_graph_more():
    compiled = torchweld.compile(lambda q, k, v: flex_attention(q, k, v, score_mod=relative))
    torchweld.reset()
    for n in (16, 12, 9, 7):
        given = Q[:, :, :n], K[:, :, :n], V[:, :, :n]
        torch.testing.assert_close(compiled(*given), flex_attention(*given, score_mod=relative))
    assert torchweld.statistics()["breaks"] == 0
    assert torchweld.statistics()["graphs"] == 2
