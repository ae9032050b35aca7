"""Numbers among the operands: first ones, and those that eager does not round to a narrow dtype."""

import pytest
import torch

import torchweld

FIRST = {
    "floor_divide": lambda a: torch.floor_divide(7, a),
    "reflected": lambda a: 7 // a,
    "float": lambda a: 7.5 // a,
    "div_floor": lambda a: torch.div(7.5, a, rounding_mode="floor"),
    "div_trunc": lambda a: torch.div(7.5, a, rounding_mode="trunc"),
    "sub": lambda a: torch.sub(1, a),
    "add": lambda a: torch.add(1, a, alpha=2),
}
SECOND = {
    "floor_divide": lambda a, z: (a // 0.1, a // z),
    "div_floor": lambda a, z: (torch.div(a, 0.1, rounding_mode="floor"),
                               torch.div(a, z, rounding_mode="floor")),
    "div_trunc": lambda a, z: (torch.div(a, 0.1, rounding_mode="trunc"),
                               torch.div(a, z, rounding_mode="trunc")),
    "remainder": lambda a, z: (a % 0.1, a % z),
}  # fmt: skip
VALUES = [1.0, 0.5, 6.0, 3.0, 0.7, 1000.0, 123.0, -2.5]


def equals_eager(fn, *args):
    torchweld.reset()
    torch.testing.assert_close(
        torchweld.compile(fn)(*args), fn(*args), rtol=0, atol=0, equal_nan=True
    )
    assert torchweld.statistics()["internal_errors"] == 0
    assert torchweld.statistics()["aten_graphs"] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", FIRST)
def test_a_number_may_come_first(name, dtype):
    equals_eager(FIRST[name], torch.tensor(VALUES, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", SECOND)
def test_a_divisor_is_rounded_where_eager_rounds_it(name, dtype):
    equals_eager(SECOND[name], torch.tensor(VALUES, dtype=dtype), torch.tensor(0.1))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("factor", [1.1, (1.1, 1.7), 2.05, (2.1, 1.0), 0.5])
def test_a_factor_that_leaves_a_size_as_it_is_copies(mode, factor):
    x = torch.randn(2, 3, 6, 8)
    compiled = torchweld.compile(
        lambda x: torch.nn.functional.interpolate(x, scale_factor=factor, mode=mode))
    expected = torch.nn.functional.interpolate(x, scale_factor=factor, mode=mode)
    torch.testing.assert_close(compiled(x), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_position_of_a_pooled_maximum_is_that_of_the_last_nan(dtype):
    x = torch.randn(2, 3, 6, 8).mul(3).round().to(dtype)
    x[0, 0, :3] = x[1, 1, 2, 4:6] = float("nan")
    x[0, 1] = -float("inf")
    x[1, 2] = 1.0
    equals_eager(lambda x: torch.nn.functional.max_pool2d(x, (3, 2), return_indices=True), x)


X, B, WHOLE = torch.randn(4), torch.arange(4) % 2 > 0, torch.arange(4)
OTHER_KINDS = {
    "difference with a mask": lambda: (lambda x, y: x - y, X, B),
    "mask minus": lambda: (lambda x, y: y - x, X, B),
    "difference in place": lambda: (lambda x, y: x.clone().sub_(y), X, B),
    "rsub": lambda: (torch.rsub, X, B),
    "distance to a mask": lambda: (torch.nn.functional.l1_loss, X, B),
    "difference with True": lambda: (lambda x, y: x - True, X, B),
    "True minus": lambda: (lambda x, y: True - x, X, B),
    "alpha of floats": lambda: (lambda x, y: torch.add(x, x, alpha=True), X, B),
    "alpha of bools": lambda: (lambda x, y: torch.add(y, y, alpha=True), X, B),
    "fraction of integers": lambda: (lambda x, y: torch.add(x, y, alpha=0.5), WHOLE, B),
    "fraction of floats": lambda: (lambda x, y: torch.add(x, y, alpha=0.5), X, B),
    "quotient of integers": lambda: (lambda x, y: torch.addcdiv(x, x, x + 1), WHOLE, B),
    "nearest integers": lambda: (
        lambda x, y: torch.nn.functional.interpolate(x[None, None], scale_factor=2), WHOLE, B),
    "softmax of integers": lambda: (lambda x, y: x.softmax(0), WHOLE, B),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", OTHER_KINDS)
def test_kinds_of_operands_that_eager_refuses(name, dynamic):
    fn, *args = OTHER_KINDS[name]()
    torchweld.reset()
    compiled = torchweld.compile(fn, dynamic=dynamic)
    try:
        expected = fn(*args)
    except (RuntimeError, NotImplementedError) as error:
        with pytest.raises(type(error)) as raised:
            compiled(*args)
        assert str(raised.value) == str(error)
    else:
        torch.testing.assert_close(compiled(*args), expected)
        assert torchweld.statistics()["breaks"] == 0
    assert torchweld.statistics()["internal_errors"] == 0
