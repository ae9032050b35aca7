"""The shape specs of torch.compile, in versions of torch that have them (see conftest.py)."""

import pytest
import torch
from test_shape_specs import captures, check_derived, check_places, check_same, rows
from torch.fx.experimental.dynamic_spec import (
    DictSpec,
    IntVar,
    ObjectSpec,
    ParamsSpec,
    SeqSpec,
    ShapesSpec,
    ShapeVar,
    TensorSpec,
)

import torchweld
from torchweld.base.errors import PromiseError

BATCH = ShapeVar("batch", min=2, max=64)


@pytest.fixture(autouse=True)
def fresh():
    torchweld.reset()


@pytest.mark.parametrize("kind", [ParamsSpec, ShapesSpec])
def test_sizes_of_one_name(kind):
    check_same(kind({"x": TensorSpec([BATCH, None]), "y": TensorSpec([BATCH, 4])}))


def test_what_torchs_decorator_leaves():
    def add(x, y):
        return x + y

    x = TensorSpec([BATCH, None])
    add._dynamic_spec = ShapesSpec({"x": x, "y": x})
    compiled = torchweld.compile(add)
    compiled(*rows(5, 5))
    compiled(*rows(6, 6))
    assert captures() == 1


def test_a_size_made_of_another_one():
    check_derived(ParamsSpec({"x": TensorSpec([BATCH, None]),
                              "y": TensorSpec([BATCH * 2 + 1, None])}))  # fmt: skip


def test_assumptions():
    x = TensorSpec([BATCH, None])
    spec = ShapesSpec({"x": x}, assumptions=[BATCH % 4 == 0, BATCH > 4])
    compiled = torchweld.compile(lambda x: x + 1, dynamic_shapes=spec)
    compiled(*rows(8))
    compiled(*rows(12))
    assert captures() == 1
    with pytest.raises(PromiseError, match="%4 == 0 was promised"):
        compiled(*rows(10))


def test_a_number_that_is_computed_with_only_keeps_its_bounds():
    compiled = torchweld.compile(lambda x, n: x * n, dynamic_shapes={"n": IntVar(max=40)})
    for n in (5, -9, 40):
        compiled(torch.ones(3), n)
    assert captures() == 1
    with pytest.raises(PromiseError, match="n is 41, but"):
        compiled(torch.ones(3), 41)


def test_containers_objects_and_all_kinds_of_parameters():
    check_places(ShapesSpec({
        "xs": SeqSpec([None, TensorSpec([BATCH, 4])]),
        "table": DictSpec({"b": SeqSpec([TensorSpec([BATCH, 4])])}),
        "box": ObjectSpec({"x": TensorSpec([BATCH, None]), "n": BATCH}),
        "*args": [TensorSpec([BATCH, None])], "scale": BATCH,
        "**kwargs": {"z": TensorSpec([BATCH, 4])}}))  # fmt: skip
