"""NumPy inside compiled functions: captured with the tensors, or one eager step with a reason."""

import warnings

import numpy as np
import pytest
import torch
from break_twin import outcome

import torchweld
from torchweld.pipeline import STATISTICS

A = np.linspace(-2, 3, 12).reshape(3, 4)
F = A.astype(np.float32)
I = np.arange(-5, 7, dtype=np.int32).reshape(3, 4)  # noqa: E741
U = np.arange(12, dtype=np.uint8).reshape(3, 4)
B = A > 0
X = torch.linspace(-1, 1, 12).reshape(3, 4)


def same(got, want):
    """Equal types, dtypes, shapes and values, up to the rounding of sums."""
    assert type(got) is type(want)
    if isinstance(want, tuple | list):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            same(g, w)
    elif isinstance(want, np.ndarray | np.generic):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    elif isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want)
    else:
        assert got == want


def check(fn, *args, breaks=0):
    """Two calls give eager's results, and leave the arguments as eager does, in one graph."""
    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager")
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = outcome(fn, args)
        same(outcome(compiled, args), want)
    found = torchweld.statistics()
    why = [r.text() for r in STATISTICS.refusals]
    assert (found["breaks"], found["internal_errors"]) == (breaks, 0), why
    assert breaks or found["graphs"] == 1
    return why


def test_a_selection_by_a_mask_is_in_the_graph():
    check(lambda a: (a[a > 0] * 2, a.max()), A)


@pytest.mark.parametrize("a", [A, F, I, U, B], ids=["f64", "f32", "i32", "u8", "bool"])
@pytest.mark.parametrize(
    "program",
    [
        lambda a: (a + 1, a * 2.5, a / 3, a + np.float32(1), a > 1, -(a * 1), a.mean(0)),
        lambda a: (np.sqrt(abs(a * 1.0)), np.exp(a), np.maximum(a, 1), np.isnan(a * 1.0)),
        lambda a: (a.sum() if a.dtype != np.uint8 else a.mean(), a.max(1), a.argmax() * 1.0
                   if a.dtype != bool else 0, a.std(), a.any(), (a == 0).all(1)),
        lambda a: (a[0], a[:, ::2], a[1, 2], a[..., 0], a[[0, 2]], a[None, 1], a.T, a.shape),
        lambda a: (a.reshape(2, -1), a.ravel(), np.stack([a, a]), np.concatenate([a, a], 1)),
        lambda a: (np.where(a > 0, a, 2.5), a.astype(np.float16), a.copy(), np.zeros_like(a)),
        lambda a: (a + np.arange(4), a * np.linspace(0, 1, 4), a + list(range(4)), len(a), a.dtype),
    ],
    ids=["arithmetic", "functions", "reductions", "items", "shapes", "making", "constants"],
)  # fmt: skip
def test_dtypes_and_values_are_those_of_numpy(a, program):
    check(lambda a: program(a) if a.dtype != bool else program(a.astype(np.int64)), a)


def test_a_remainder_of_zero_has_the_sign_of_the_divisor():
    found = torchweld.compile(lambda a: (a % 1.0, a % -1.0), backend="eager")(np.array([-0.0, 2.0]))
    assert [np.signbit(x).tolist() for x in found] == [[False, False], [True, True]]


def test_attributes_of_dtypes_and_ufuncs_are_constants():
    check(lambda a: (a + 1, a.dtype.kind, a.dtype.itemsize, np.add.nin), F)


def test_an_array_and_its_tensor_share_memory():
    def program(x):
        a = x.numpy()
        x.add_(1)
        a[0] = 7
        t = torch.from_numpy(a)
        t[1] = 9
        return x, a, t

    check(program, X)


def test_a_copy_of_an_array_does_not_share_memory():
    def program(x):
        a = x.numpy()
        t, b = torch.tensor(a), a.copy()
        a[0] = 7
        return t, b, a

    check(program, X)


def test_an_argument_that_is_an_array_is_written():
    def program(a):
        a[0] += 1
        a *= 2
        row = a[1]
        row[:] = 5
        np.add(a, 1, out=a)
        return a, row

    check(program, F)


def test_a_view_of_an_argument_is_returned_as_a_view():
    compiled = torchweld.compile(lambda a: (a * 2, a[1:].T), backend="eager")
    given = F.copy()
    view = compiled(given)[1]
    given[2, 3] = 100
    assert view[3, 1] == 100


def test_an_element_is_a_number_that_stays():
    def program(a):
        first = a[0, 0]
        a[0, 0] = 77
        return first, first + 1, a.sum() / 2

    check(program, A)


def test_assignment_reads_before_it_writes():
    def program(a):
        a[1:] = a[:-1]
        return a

    check(program, F)


def test_rows_are_iterated_over():
    def program(a):
        total = 0
        for row in a:
            row += 1
            total = total + row.sum()
        return total, a

    check(program, F)


def test_other_dtypes_and_shapes_get_their_own_entries():
    torchweld.reset()
    compiled = torchweld.compile(lambda a: a * 2 + 1, backend="eager")
    for a in (F, A, I, F[:2], F.T, F):
        same(compiled(a), a * 2 + 1)
    assert torchweld.statistics()["captures"] == 5


def test_numpy_numbers_are_compared_by_bits():
    torchweld.reset()
    compiled = torchweld.compile(lambda x, s: x * s, backend="eager")
    for s in (np.float32(0.0), np.float32(-0.0), np.float32(np.nan), np.float32(np.nan)):
        torch.testing.assert_close(compiled(X, s), X * s, equal_nan=True)
        assert torch.equal(torch.signbit(compiled(X, s)), torch.signbit(X * s))
    assert torchweld.statistics()["captures"] == 3


def test_numpy_numbers_decide_no_dtype_of_a_tensor():
    check(lambda x, s: (x * s, x + x.numpy().mean(), x[np.int64(1)]), X, np.float64(2.5))


def test_a_global_array_is_read_when_the_function_runs():
    torchweld.reset()
    compiled = torchweld.compile(lambda x: x + torch.from_numpy(F), backend="eager")
    before = compiled(X)
    F[0, 0] += 1
    try:
        assert compiled(X)[0, 0] == before[0, 0] + 1
    finally:
        F[0, 0] -= 1


@pytest.mark.parametrize(
    ("program", "code", "says"),
    [
        (lambda a: (a + 1, a[::-1]), "W103", "negative step"),
        (lambda a: (a + 1, np.median(a)), "W103", "numpy.median"),
        (lambda a: (a.astype(int) + 1, 1 // a.astype(int)), "W103", "may be 0"),
        (lambda a: (a + 1, a.astype(int) ** a.astype(int)), "W103", "negative"),
        (lambda a: (a + 1, a % (a - 1)), "W103", "0 or tiny"),
        (lambda a: (a + 1, float(a.sum())), "W102", "float"),
        (lambda a: a + 1 if a.sum() > 0 else a, "W101", "truth"),
        (lambda a: (a + 1, {a.sum(): 1}), "W102", "as a key"),
        (lambda a: (a + 1, np.sum(a.astype(np.uint8))), "W103", "reduction of uint8"),
        (lambda a: (a + 1, a.astype(int).__iadd__(0.5)), "W", ""),
        (lambda a: (a + 1, a.flags.owndata), "W107", "flags"),
    ],
)
def test_what_differs_from_torch_runs_eagerly(program, code, says):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torchweld.reset()
        want = outcome(program, (np.abs(A),))
        got = outcome(torchweld.compile(program, backend="eager"), (np.abs(A),))
    if not isinstance(want[0], tuple) or not isinstance(want[0][0], type):
        same(got[0], want[0])
    why = STATISTICS.refusals
    assert any(code in r.code and says in r.why for r in why), [r.text() for r in why]
    assert torchweld.statistics()["internal_errors"] == 0


def test_an_array_that_torch_cannot_share_is_refused():
    reverse, still = F[::-1], F.copy()
    still.flags.writeable = False
    for a in (reverse, still, F.astype(">f4"), np.array(["a"])):
        torchweld.reset()
        fn = lambda a, x: (x + 1, a[:1])
        got = torchweld.compile(fn, backend="eager")(a, X)
        np.testing.assert_array_equal(got[1], a[:1])
        assert any(r.code == "W112" for r in STATISTICS.refusals)


def test_numpys_random_numbers_come_in_eagers_order():
    def program(x):
        y = x + 1
        first = np.random.rand()
        y = y * first
        return y + np.random.rand(), np.random.rand()

    torchweld.reset()
    compiled = torchweld.compile(program, backend="eager")
    for seed in (0, 1):
        np.random.seed(seed)
        want, state = program(X), np.random.get_state()[2]
        np.random.seed(seed)
        same(compiled(X), want)
        assert np.random.get_state()[2] == state


def test_errors_that_numpy_is_told_to_raise_are_raised():
    compiled = torchweld.compile(lambda a: np.log(a) + 1, backend="eager")
    compiled(np.ones(3))
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        compiled(np.zeros(3))


def test_an_array_survives_a_break():
    def program(x):
        a = x.numpy() * 2
        b = a[1:]
        torchweld.graph_break()
        b[0] = 3
        return a, b + 1

    check(program, X, breaks=1)


def test_arrays_between_tensors_are_one_fused_graph():
    torchweld.reset()
    fn = lambda x: torch.from_numpy(np.tanh((x * 2).numpy() + 1)) - 1
    same(torchweld.compile(fn)(X), fn(X))
    assert torchweld.statistics()["kernels"] == 1
