"""torch.ops: ATen operators, their overloads, and operators that the user registers."""

import pytest
import torch
from eager_twin import check, check_refused

ATEN = torch.ops.aten
RELU = ATEN.relu.default
X = torch.arange(6.0).reshape(2, 3)


@torch.library.custom_op("weldtest::scaled", mutates_args=())
def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * by


@scaled.register_fake
def _(x, by):
    return torch.empty_like(x)


@torch.library.custom_op("weldtest::bump", mutates_args=("x",))
def bump(x: torch.Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("weldtest::without_fake", mutates_args=())
def without_fake(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@pytest.fixture(scope="module", autouse=True)
def library():
    with torch.library._scoped_library("weldtest2", "DEF") as made:
        made.define("twice(Tensor x) -> Tensor")
        made.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        torch.library.register_fake("weldtest2::twice", torch.empty_like, lib=made)
        yield


def test_overloads():
    def program(x):
        parts = torch.ops.aten.split.Tensor(x, 1)
        return torch.ops.aten.mul.Tensor(x, x), ATEN.max.dim(x, 1)[1], parts, RELU(x)

    check(program, (X,))


def test_packets_and_getattr():
    def program(x, name):
        op = getattr(torch.ops.aten, name)
        return op(x), op.default(x, approximate="tanh"), hasattr(ATEN, "no_such_operator")

    check(program, (X, "gelu"))


def test_in_place_and_out():
    def program(x):
        out = torch.empty_like(x)
        torch.ops.aten.add_.Tensor(x, 1)
        return torch.ops.aten.mul.out(x, x, out=out) is out, out

    check(program, (X,))


def test_names_of_an_operator():
    def program(x):
        op = ATEN.add.Tensor
        same = op.overloadpacket is ATEN.add, op is torch.ops.aten.add.Tensor
        return op(x, 1), op.name(), "Tensor" in ATEN.add.overloads(), same, ATEN.add.__name__

    check(program, (X,))


def test_overload_that_does_not_exist():
    def program(x):
        try:
            return ATEN.add.NoSuch(x, 1)
        except AttributeError as error:
            return x + 1, str(error)

    check(program, (X,))


def test_operators_as_keys_arguments_and_attributes():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.op = torch.ops.aten.tanh.default

        def forward(self, x, f=torch.ops.aten.sigmoid):
            table = {ATEN.add.Tensor: 1, ATEN.mul.Tensor: 2}
            return self.op(x) + f(x) * table[torch.ops.aten.mul.Tensor]

    check(Model(), (X,))


def test_custom_operators():
    def program(x):
        y = torch.ops.weldtest.scaled(x, 2.0) + torch.ops.weldtest.scaled.default(x, 3.0)
        return y, scaled(x, by=0.5), torch.ops.weldtest2.twice(x)

    check(program, (X,))


def test_custom_operator_that_writes_its_argument():
    def program(x):
        bump(x)
        torch.ops.weldtest.bump(x)
        return x * 2

    check(program, (X,))


def test_custom_operator_without_a_fake_kernel():
    check_refused(lambda x: without_fake(x) * 2, X, code="W104", says="no fake impl")


def test_custom_operator_does_not_exist():
    def program(x):
        return torch.ops.weldtest.no_such(x)

    check_refused(program, X, code="W", says="no_such")
