"""Written inputs that share memory with others, found natively and in Python alike."""

from __future__ import annotations

from array import array

import pytest
import torch

from torchweld.runtime.native import native
from torchweld.runtime.overlap import meets, overlap_check


@pytest.fixture(params=["native", "python"])
def check(request):
    if request.param == "python":
        return meets
    assert not isinstance(native(), str)
    found = overlap_check()
    assert found is not meets
    return found


def asked(check, *parts):
    """parts: tensors of one dimension without gaps, and whether each is written."""
    sizes = array("q", [x.numel() * x.element_size() for x, _ in parts])
    return check(tuple(x for x, _ in parts), sizes.tobytes(), bytes(w for _, w in parts))


def test_neighbours_do_not_meet(check):
    base = torch.arange(10.0)
    assert not asked(check, (base[5:], True), (base[:5], True))


@pytest.mark.parametrize("written", [(True, False), (False, True), (True, True)])
def test_parts_that_overlap_meet_if_one_is_written(check, written):
    base = torch.arange(10.0)
    assert asked(check, (base[4:], written[0]), (base[:5], written[1]))
    assert not asked(check, (base[4:], False), (base[:5], False))


def test_a_part_inside_of_a_large_one_meets_it_behind_others(check):
    base = torch.arange(100.0)
    assert asked(check, (base, False), (base[10:20], False), (base[50:60], True))
    assert asked(check, (base, True), (base[10:20], False), (base[50:60], False))


def test_what_has_no_memory_meets_nothing(check):
    base = torch.arange(4.0)
    assert not check((base, 3, None, base), array("q", [16, 0, 0, 0]).tobytes(), bytes([1] * 4))


def test_more_inputs_than_fit_on_the_stack(check):
    base = torch.arange(1000.0)
    parts = [(base[i : i + 1], True) for i in reversed(range(1000))]
    assert not asked(check, *parts)
    assert asked(check, *parts, (base[500:501], False))


def test_an_input_that_is_no_tensor_is_refused(check):
    with pytest.raises(TypeError, match="an input without memory"):
        check((3, 4), array("q", [8, 8]).tobytes(), bytes([1, 0]))
