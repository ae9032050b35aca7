"""torch.cond, while_loop, scan, map and associative_scan: nodes that hold the graphs they run."""

import pytest
import torch
from gradient_twin import check
from torch._higher_order_ops import associative_scan, map, scan, while_loop

import torchweld

X = torch.linspace(-1, 2, 12).reshape(3, 4)
NEEDS_GRAD = X.clone().requires_grad_()


def either(x):
    return torch.cond(x.sum() > 0, lambda a: a.sin() * 2, lambda a: a.cos() - 1, (x,)) + x


def test_the_predicate_decides_when_the_graph_runs():
    torchweld.reset()
    for backend in ("eager", "torchweld"):
        compiled = torchweld.compile(either, backend=backend, fullgraph=True)
        for x in (X, -X, X):
            torch.testing.assert_close(compiled(x), either(x))
    assert torchweld.statistics()["graphs"] == 2
    assert torchweld.statistics()["aten_graphs"] == 0


def test_gradients_of_the_side_that_ran():
    check(either, NEEDS_GRAD)
    check(either, (-X).requires_grad_())


def test_sides_that_use_other_tensors_and_give_several():
    check(lambda x, w: torch.cond(x.sum() > 0, lambda: (x * w, w + 1), lambda: (x - w, w * 2)),
          X, X + 3)  # fmt: skip


def test_a_predicate_that_is_known():
    check(lambda x: torch.cond(x.shape[0] > 2, torch.sin, torch.cos, (x,)) + 1, X)


def test_cond_inside_of_cond():
    def nested(x):
        inner = lambda a: torch.cond(a.max() > 1, lambda b: b * 3, lambda b: b / 3, (a,))
        return torch.cond(x.sum() > 0, inner, lambda a: a.cos(), (x,)) + 1

    for x in (X, X / 4, -X):
        check(nested, x)


@pytest.mark.parametrize("sides", [
    (lambda a: a.sum(), lambda a: a.cos()),
    (lambda a: a, lambda a: a.cos()),
    (lambda a: a.add_(1), lambda a: a.cos()),
], ids=["kinds differ", "a result is an input", "an input is changed"])  # fmt: skip
def test_what_eager_refuses_it_refuses(sides):
    check(lambda x: torch.cond(x.sum() > 0, *sides, (x,)), X, breaks=1)


def test_a_side_effect_is_left_to_eager():
    seen = []

    def noted(x):
        return torch.cond(x.sum() > 0, lambda a: (seen.append(1), a.sin())[1], torch.cos, (x,)) + 1

    torchweld.reset()
    with pytest.raises(torch._dynamo.exc.UncapturedHigherOrderOpError):
        torchweld.compile(noted)(X)


def test_while_loop():
    def powers(x, w):
        return while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, a * w), (torch.tensor(0), x + 1))

    check(powers, X, X + 2)
    check(lambda x: while_loop(lambda a: a.sum() < 0, lambda a: (a + 1,), (x,))[0] * 2, X)


@pytest.mark.parametrize("rounds", [3, 9])
def test_scan(rounds):
    x = torch.linspace(-1, 1, rounds * 4).reshape(rounds, 4)

    def sums(x):
        return scan(lambda c, y: (c + y, c * y), torch.zeros(4), x)

    def written_out(x):
        carried = [torch.zeros(4), *x.cumsum(0)]
        return carried[-1], torch.stack([c * y for c, y in zip(carried, x, strict=False)])

    check(sums, x)
    check(sums, x.clone().requires_grad_(), like={"eager": written_out, "torchweld": written_out})
    check(lambda x: scan(lambda c, y: (c * y, {"s": c + y}), torch.ones(rounds), x, dim=1,
                         reverse=True), x)  # fmt: skip


def test_map():
    check(lambda x, w: map(lambda a, b: a.sin() + b, x, w), X, X[0] + 1)
    check(lambda x: map(lambda a: (a * 2, a.sum()), x)[1], NEEDS_GRAD)


def test_associative_scan_of_the_generic_kind():
    check(lambda x: associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic"), X)
    check(lambda x: associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (x, x + 1), 1,
                                     combine_mode="generic"), NEEDS_GRAD)  # fmt: skip
