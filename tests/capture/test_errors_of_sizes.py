"""What eager refuses for the sizes of a call, or warns of, where sizes vary between calls."""

import copy
import re
import warnings

import pytest
import torch
import torch.nn.functional as F

import torchweld


def seen(fn, args):
    """The result or the error of a call, its arguments behind it, and what it warned of."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result = fn(*args)
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
    return result, args, [(w.category, str(w.message)) for w in warned]


def check(fn, *calls, dynamic=None):
    """Every call does what eager does, twice. Returns the counts."""
    torchweld.reset()
    compiled = torchweld.compile(fn, dynamic=dynamic)
    for args in calls:
        for _ in range(2):
            want, got = (seen(f, copy.deepcopy(args)) for f in (fn, compiled))
            assert got[2] == want[2]
            if isinstance(want[0], str):
                assert got[0] == want[0]
            else:
                torch.testing.assert_close(got[0], want[0], equal_nan=True)
            torch.testing.assert_close(got[1], want[1])
    counts = torchweld.statistics()
    assert counts["internal_errors"] == 0
    return counts


def rows(n, m=4):
    return torch.randn(n, m)


def mask(*sizes):
    return torch.arange(torch.Size(sizes).numel()).reshape(sizes) % 3 > 0


def set_masked(x, where):
    x[where] = 0
    return x


def add_masked(x, where):
    x[where] = x[where] * 2 + 1
    return x


MASKED = [(rows(5), mask(5, 4)), (rows(5), mask(3, 4)), (rows(6), mask(4, 4)),
          (rows(6), mask(6, 4)), (rows(3), mask(5, 4))]  # fmt: skip
LAST = [(rows(5), mask(4)), (rows(6, 3), mask(4)), (rows(6, 3), mask(3))]
IMAGES = [(torch.randn(1, 2, 300, 80),), (torch.randn(1, 2, 30, 80),), (torch.randn(2, 2, 200, 8),)]
REFUSED = {
    "mask": (lambda x, m: x[m] * 2, MASKED),
    "mask behind": (lambda x, m: x[..., m] * 2, LAST),
    "mask and place": (lambda x, m: x[1, m] + x[None, :, m][0, 2], LAST),
    "masked number": (set_masked, MASKED),
    "masked sum": (add_masked, MASKED),
    "argmax of bools": (lambda x: (x > 0).argmax(0), [(rows(5),), (rows(6),)]),
    "largest of none": (lambda x: x.max(0), [(rows(0, 5),), (rows(2, 6),), (rows(0, 7),)]),
    "largest of no columns": (lambda x: (x * 2).amin(1), [(rows(5, 0),), (rows(6, 0),)]),
    **{f"{mode} size": (lambda x, mode=mode: F.interpolate(x, scale_factor=0.02, mode=mode), IMAGES)
       for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area")},
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name, dynamic):
    fn, calls = REFUSED[name]
    check(fn, *calls, dynamic=dynamic)


def test_sizes_of_masks_are_guarded_once():
    counts = check(lambda x, m: (x[m] * 2 + 1).relu(), *((rows(n), mask(n)) for n in (5, 6, 7, 9)))
    assert (counts["graphs"], counts["breaks"]) == (2, 0)


WARN = {
    "targets of another size": (
        lambda x, y: (F.mse_loss(x, y) + F.l1_loss(x, y) + F.huber_loss(x, y), x * 2),
        [(rows(5), rows(5)), (rows(6), rows(1)), (rows(7), rows(7, 1))]),
    "means of divergences": (lambda x, y: F.kl_div(x, y), [(rows(5), rows(5)), (rows(6), rows(6))]),
    "dimension": (lambda x: F.softmax(x) * F.log_softmax(x), [(rows(5),), (rows(6),)]),
    "corners": (lambda x: F.grid_sample(x, torch.zeros(1, 2, 2, 2)), [IMAGES[1], IMAGES[1]]),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", WARN)
def test_every_call_warns_of_its_own_sizes(name, dynamic):
    fn, calls = WARN[name]
    counts = check(fn, *calls, dynamic=dynamic)
    assert counts["breaks"] == 0


def test_losses_that_do_not_warn_are_one_node():
    explained = torchweld.explain(lambda x, y: F.mse_loss(x, y) * 2)(rows(5), rows(5))
    assert re.search(r"2 operators: mse_loss, mul", str(explained))


def transposed(x):
    x.t_()
    return x.shape, x.size(0), x * 2


def with_a_dimension(x):
    x.unsqueeze_(0)
    x.transpose_(0, 1)
    return x.shape, x.stride(), x * x.shape[0]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", [transposed, with_a_dimension])
def test_an_input_that_is_reshaped_in_place_has_its_new_sizes(fn, dynamic):
    check(fn, (rows(5),), (rows(6),), (rows(7, 3),), dynamic=dynamic)
