"""What is written between a compiled forward and its backward, and what that does to histories."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torchweld
from torchweld.pipeline import STATISTICS

Step = Callable[..., Any]


def both(run: Callable[[Step], Any], fn: Step) -> tuple[Any, Any]:
    """What a run gives with the compiled function and in eager."""
    torchweld.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(torchweld.compile(fn)), run(fn)


def assert_counts(graphs: int, breaks: int, aten: int = 0) -> None:
    counts = STATISTICS.counts()
    assert (counts["graphs"], counts["breaks"], counts["aten_graphs"]) == (graphs, breaks, aten)
    assert not counts["internal_errors"]


# ---------------------------------------------------------------- one node for many results
def product_and_exponent(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return (x * w).exp(), (x + 1).exp() * x


def exponent_and_product(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return (x + 1).exp(), (x * w).sin()


# up to torch 2.12 nobody can ask whether an input was changed that was written before the call
VERSIONS = (0, 1) if hasattr(torch._C._autograd.SavedTensor, "unpack") else (0,)
CHANGES: dict[str, Callable[[list[Tensor]], object]] = {
    "first": lambda t: t[2].add_(1), "second": lambda t: t[3].add_(1),
    "weight": lambda t: t[1].detach().add_(1), "input": lambda t: t[0].detach().add_(1),
    "nothing": lambda t: None,
}  # fmt: skip


@pytest.mark.parametrize("fn", [product_and_exponent, exponent_and_product])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("ends", [(0,), (1,), (0, 1)])
def test_a_backward_minds_only_what_its_own_results_keep(
    fn: Step, change: str, version: int, ends: tuple[int, ...]
) -> None:
    def run(f: Step) -> Any:
        x = torch.arange(4.0).requires_grad_()
        leaf = torch.full((4,), 0.3).requires_grad_()
        w = leaf * 1
        for _ in range(version):
            w.detach().add_(1)
        outs = f(x, w)
        with torch.no_grad():
            CHANGES[change]([x, w, *outs])
        try:
            sum(outs[k].sum() for k in ends).backward()
        except RuntimeError as error:
            return "inplace" in str(error)
        return [x.grad, leaf.grad]

    got, want = both(run, fn)
    torch.testing.assert_close(got, want)
    assert_counts(1, 0)


def test_a_second_derivative_minds_all_inputs() -> None:
    def run(f: Step) -> Any:
        x, w = torch.arange(4.0).requires_grad_(), torch.ones(4).requires_grad_()
        _, product = f(x, w * 1)
        (g,) = torch.autograd.grad(product.sum(), x, create_graph=True)
        return torch.autograd.grad(g.sum(), w)

    got, want = both(run, exponent_and_product)
    torch.testing.assert_close(got, want)


# ---------------------------------------------------------------- inputs without a gradient
def counted(x: Tensor, count: Tensor) -> Tensor:
    y = x.sin()
    with torch.no_grad():
        count += 1
    return y


def test_an_input_that_no_gradient_reaches_is_unknown_to_autograd() -> None:
    def run(f: Step) -> Any:
        x, count = torch.ones(4).requires_grad_(), torch.zeros(4).requires_grad_()
        y = f(x, count)
        with torch.no_grad():  # a node of autograd that knew the parameter would know its old size
            torch.mul(torch.ones(2, 3), 2, out=count)
        (y.sum() + (count * count).sum()).backward()
        return [x.grad, count.grad, count]

    got, want = both(run, counted)
    torch.testing.assert_close(got, want)
    assert got[1].shape == (2, 3)
    assert_counts(1, 0)


def test_nothing_waits_for_the_gradient_of_an_input_that_has_none() -> None:
    torchweld.reset()
    x, count = torch.ones(4).requires_grad_(), torch.zeros(4).requires_grad_()
    y = torchweld.compile(counted)(x, count)
    reached = [node.variable for node, _ in y.grad_fn.next_functions if node is not None]
    assert len(reached) == 1 and reached[0] is x
    assert count._version == 1 and torch.equal(count, torch.ones(4))


# ---------------------------------------------------------------- views that get another shape
def resized(d: Tensor, n: int) -> Tensor:
    t = F.softplus(d)
    v = t[3:n]
    with torch.no_grad():
        scale = (v * 0).sum() + d.exp().mean() * 2
        torch.cumsum(d, 0, out=v)
        scale = scale + v.sin().sum() * 2
    return v * scale


@pytest.mark.parametrize("n", [2, 4])
def test_a_view_that_gets_another_shape_at_a_break_is_still_a_view(n: int) -> None:
    def run(f: Step) -> Any:
        d = torch.arange(4.0).requires_grad_()
        out = f(d, n)
        (out * torch.arange(1.0, out.numel() + 1).view(out.shape)).sum().backward()
        return [out, d.grad]

    got, want = both(run, resized)
    torch.testing.assert_close(got, want)
    assert_counts(2, 1)


# ---------------------------------------------------------------- views from no_grad
def view_then_write(b: Tensor) -> Tensor:
    with torch.no_grad():
        v = b.movedim(0, -1)
        b[..., ::2].sigmoid_()
    return v


def write_then_view(b: Tensor) -> Tensor:
    with torch.no_grad():
        b[..., ::2].sigmoid_()
        return b.movedim(0, -1)


def written_view(b: Tensor) -> Tensor:
    with torch.no_grad():
        v = b[..., ::2]
        v.mul_(2)
    return v


def view_of_written_view(b: Tensor) -> Tensor:
    with torch.no_grad():
        v = b[..., ::2]
        v.mul_(2)
        return v[0]


def used_later(b: Tensor) -> Tensor:
    with torch.no_grad():
        v = b[..., ::2]
        v[:, 1:] *= 2
    return v * 2


def asked_for_its_history(b: Tensor) -> tuple[Tensor, bool]:
    with torch.no_grad():
        v = b.view(-1)
        b.mul_(2).add_(1).sub_(3)
    return v, v.is_leaf


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(("fn", "aten", "breaks"), [
    (view_then_write, 1, 0), (write_then_view, 0, 0), (written_view, 1, 0),
    (view_of_written_view, 0, 0), (used_later, 1, 1), (asked_for_its_history, 1, 1),
])  # fmt: skip
def test_a_view_from_no_grad_of_what_was_written_since_cannot_be_used(
    fn: Step, grad: bool, aten: int, breaks: int
) -> None:
    if fn is used_later and not grad:
        aten = breaks = 0

    def run(f: Step) -> Any:
        b = torch.arange(12.0).reshape(3, 4).requires_grad_().clone()
        try:
            with torch.set_grad_enabled(grad):
                found = f(b)
        except RuntimeError as error:
            return "no_grad mode" in str(error)
        v = found[0] if isinstance(found, tuple) else found
        try:
            return (v * 2).detach(), v.is_leaf
        except RuntimeError as error:
            return "no_grad mode" in str(error)

    got, want = both(run, fn)
    torch.testing.assert_close(got, want)
    assert_counts(1, breaks, aten)
