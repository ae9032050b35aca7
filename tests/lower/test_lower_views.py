"""Views are index maps: they make no nests, and externs see them as strided windows."""

from __future__ import annotations

import pytest
import torch
from lower_harness import check, externs, nests

import torchweld

VIEWS = {
    "transpose": lambda x: x.transpose(0, 2),
    "merge_split": lambda x: x.reshape(4, 12).reshape(2, 2, 3, 4),
    "slice_step": lambda x: x[1:, ::2, 1:3],
    "select": lambda x: x[2, :, -1],
    "squeeze_unsqueeze": lambda x: x[:, None, :, None].squeeze(1),
    "expand": lambda x: x[:, :, None].expand(-1, -1, 5, -1),
    "diagonal": lambda x: x.diagonal(1, 1, 2),
    "unfold": lambda x: x.unfold(2, 2, 2),
    "split": lambda x: x.split([1, 3])[1],
    "chunk": lambda x: x.chunk(2, 2)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "movedim": lambda x: x.movedim(0, -1),
    "flatten": lambda x: x.flatten(1),
    "as_strided": lambda x: (x + 0).as_strided((2, 3), (5, 2), 4),
}


@pytest.mark.parametrize("name", VIEWS)
def test_view_is_read_through_an_index_map(name: str) -> None:
    g = check(lambda x: VIEWS[name](x) * 2, torch.randn(4, 3, 4))
    assert len(nests(g)) == (2 if name == "as_strided" else 1)


@pytest.mark.parametrize("name", [n for n in VIEWS if n != "as_strided"])
def test_view_of_an_intermediate_is_returned_as_a_window(name: str) -> None:
    g = check(lambda x: (y := x + 1, VIEWS[name](y)), torch.randn(4, 3, 4))
    assert len(nests(g)) == 1


def test_view_of_a_strided_input_composes() -> None:
    x = torch.randn(6, 8)[1::2, 3:].t()
    check(lambda x: x[1:].unsqueeze(0) + 1, x)
    check(lambda x: x[1:, 1] @ torch.ones(4), x)


def test_transposed_weight_reaches_the_matrix_product_without_a_copy() -> None:
    g = check(lambda x, w: x.reshape(6, 4) @ w.t(), torch.randn(2, 3, 4), torch.randn(5, 4))
    assert externs(g) == ["aten.mm.default"] and not nests(g)


def test_map_that_no_strides_express_is_copied_for_an_extern() -> None:
    x = torch.randn(4, 6)
    g = check(lambda x: x.t().reshape(4, 6) @ torch.ones(6, 1), x)
    assert "aten.mm.default" in externs(g) and nests(g)


def test_empty_and_zero_dimensional_views() -> None:
    check(lambda x: x.reshape(0, 3).t() + 1, torch.randn(3, 0))
    check(lambda x: x.reshape(1, 1).expand(2, 3) + 1, torch.randn(()))
    check(lambda x: x.reshape(()) * 2, torch.randn(1, 1))


CONJUGATED = {
    "imag": lambda z: z.conj().imag * 2, "of a product": lambda z: (z * 2).mH.imag.sin(),
    "part": lambda z: z.conj()[1:].imag.neg() + 1, "real": lambda z: z.conj().real * 2,
}  # fmt: skip


@pytest.mark.parametrize("name", CONJUGATED)
def test_the_imaginary_part_of_a_conjugate_is_negated(name: str) -> None:
    z = torch.randn(3, 4, dtype=torch.complex64)
    torchweld.reset()
    got = torchweld.compile(CONJUGATED[name], fullgraph=True)(z)
    torch.testing.assert_close(got, CONJUGATED[name](z))
    assert torchweld.statistics()["graphs"] == 1
