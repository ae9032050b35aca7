"""Results of a compiled function are the same objects where eager's are, and others elsewhere."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchweld
from torchweld.base.config import override

RETURNED = {
    "a view of an argument that shows all of it": lambda x: (x.view(x.shape), x.squeeze()),
    "an argument and its views": lambda x: (x, x.detach(), x.view(x.shape), x),
    "a result and its views": lambda x: (y := x.sin(), y.detach(), y.squeeze(), y),
    "views that show the same": lambda x: (y := x.exp(), y[1:], y[1:], y.t()),
    "a written argument": lambda x: (x.add_(1), x.view(x.shape)),
}  # fmt: skip


def _objects(given, returned):
    """Which of the objects are the same one."""
    seen = [given, *returned]
    return [next(i for i, y in enumerate(seen) if y is x) for x in seen]


@pytest.mark.parametrize("name", RETURNED)
@pytest.mark.parametrize("rows", [(3,), (3, 4, 5)])
def test_views_that_show_all_of_a_tensor_are_objects_of_their_own(name, rows):
    torchweld.reset()
    compiled = torchweld.compile(RETURNED[name])
    for n in rows:
        x, y = torch.ones(n, 2), torch.ones(n, 2)
        got, want = compiled(x), RETURNED[name](y)
        assert _objects(x, got) == _objects(y, want)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)
            assert a.untyped_storage().data_ptr() in (
                x.untyped_storage().data_ptr(), got[0].untyped_storage().data_ptr())  # fmt: skip
    assert torchweld.statistics()["aten_graphs"] == 0


@pytest.mark.parametrize("driver", ["native", "python"])
def test_a_view_of_a_written_argument_is_not_older_than_the_write(driver):
    def f(x):
        x.add_(1)
        return x[1:], x * 2

    torchweld.reset()
    x = torch.randn(3, 2, requires_grad=True) * 1
    with torch.no_grad(), override(driver=driver):
        view, _ = torchweld.compile(f)(x)
    assert view.grad_fn is None  # autograd raises for a view of no_grad that is older
    assert torch.equal(view * 1, x[1:])


@pytest.mark.parametrize("options", [{"training": False}, {"p": 0.0}])
def test_a_dropout_that_drops_nothing_gives_its_argument_at_every_size(options):
    torchweld.reset()
    compiled = torchweld.compile(lambda x: F.dropout(x, **options).add_(1), fullgraph=True)
    for n in (3, 4, 5):
        x = torch.zeros(n, 2)
        assert compiled(x) is x
        assert torch.equal(x, torch.ones(n, 2))


@pytest.mark.parametrize("step", [2, 3])
def test_what_windows_do_not_cover_is_not_written(step):
    def f(x):
        x.unfold(0, 2, step).t().mul_(2)
        return x + 1

    torchweld.reset()
    x, y = torch.arange(6.0)[1:], torch.arange(6.0)[1:]
    torch.testing.assert_close(torchweld.compile(f)(x), f(y))
    torch.testing.assert_close(x, y)
    assert torchweld.statistics()["internal_errors"] == 0


SEEN_OTHERWISE = {
    "as integers": lambda x: (y := x * 2, y.view(torch.int32), y.view(torch.int16)[1:]),
    "as real numbers": lambda x: (y := torch.complex(x, x + 1), torch.view_as_real(y), y.imag),
    "of one that is not returned": lambda x: (
        y := (x + 1).view(torch.int32), y.view(torch.half), y),
    "conjugated": lambda x: (y := torch.complex(x, x + 1), y.conj()),
}  # fmt: skip


@pytest.mark.parametrize("name", SEEN_OTHERWISE)
def test_a_result_and_its_view_as_another_dtype_share_memory(name):
    torchweld.reset()
    compiled = torchweld.compile(SEEN_OTHERWISE[name], fullgraph=True)
    for rows in (3, 4):
        x = torch.ones(rows, 2)
        got, want = compiled(x), SEEN_OTHERWISE[name](x)
        assert len({y.untyped_storage().data_ptr() for y in got}) == 1
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_results_of_one_operator_have_memory_of_their_own():
    torchweld.reset()
    values, places = torchweld.compile(lambda x: x.max(0))(torch.eye(3))
    assert places.tolist() == [0, 1, 2] and values.tolist() == [1, 1, 1]
    assert torchweld.statistics()["aten_graphs"] == 0
