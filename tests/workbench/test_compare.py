"""compare: what counts as a difference from eager."""

from __future__ import annotations

import torch

from torchweld.workbench.compare import differences, largest_difference, tensors

X = torch.arange(6.0).reshape(2, 3)


def kinds(got, want, **options):
    return [d.kind for d in differences(got, want, **options)]


def test_equal_results_have_no_differences():
    assert kinds({"a": X, "b": [X, 1]}, {"a": X.clone(), "b": [X, 1]}, strides=True) == []


def test_each_kind_of_difference_is_named():
    nan = torch.where(X == 2, torch.nan, X)
    assert kinds(X.double(), X) == ["dtype"]
    assert kinds(X.T, X) == ["shape"]
    assert kinds(X.to("meta"), X) == ["device"]
    assert kinds(X.T.contiguous().T, X, strides=True) == ["strides"]
    assert kinds(nan, X) == ["nan"]
    assert kinds(X + 1e-3, X) == ["values"]
    assert kinds((X, X), (X,)) == ["structure"]
    assert kinds({"n": 3}, {"n": 4}) == ["structure"]


def test_strides_of_axes_of_one_element_do_not_count():
    assert kinds(X[:1].as_strided((1, 3), (99, 1)), X[:1], strides=True) == []


def test_integers_must_be_equal():
    assert kinds(torch.tensor([1000001]), torch.tensor([1000000])) == ["values"]


def test_nan_and_infinity_in_the_same_places_are_equal():
    y = torch.tensor([torch.nan, torch.inf, -torch.inf, 1.0])
    assert kinds(y, y.clone()) == []
    assert largest_difference(y, y.clone()) == 0.0


def test_objects_are_compared_by_their_attributes():
    class Cache:
        def __init__(self, x):
            self.keys = x

    assert kinds(Cache(X), Cache(X + 1)) == ["values"]
    assert len(tensors(Cache(X))) == 1
