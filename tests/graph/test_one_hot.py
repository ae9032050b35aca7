"""F.one_hot: generated, with eager's errors."""

import pytest
import torch
from torch.nn import functional as F

import torchweld
from torchweld.pipeline import STATISTICS


@pytest.fixture
def fast():
    torchweld.reset()
    return torchweld.compile(lambda x: F.one_hot(x, 4).float() * 2)


@pytest.mark.parametrize("classes", [[1, 0, 3], [[1, 2], [0, 0]], []])
def test_rows_with_a_one_are_generated(fast, classes):
    x = torch.tensor(classes, dtype=torch.int64)
    torch.testing.assert_close(fast(x), F.one_hot(x, 4).float() * 2)
    assert STATISTICS.counts()["aten_graphs"] == 0


@pytest.mark.parametrize("bad", [4, -1])
def test_a_class_that_is_none_raises_eagers_error(fast, bad):
    x = torch.tensor([0, bad])
    with pytest.raises(RuntimeError) as eagers:
        F.one_hot(x, 4)
    with pytest.raises(RuntimeError) as ours:
        fast(x)
    assert str(ours.value) == str(eagers.value)
