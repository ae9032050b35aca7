"""What of an input tensor is guarded: every row changes one thing."""

from __future__ import annotations

import pytest
import torch
from guard_twin import calls, graphs, same

import torchweld


def double(x):
    return x * 2


X = torch.arange(6.0).reshape(2, 3)
CHANGES = {
    "another tensor of the same kind": (X + 1, 1),
    "shape": (torch.ones(3, 3), 2),
    "rank": (torch.ones(6), 2),
    "dtype": (X.double(), 2),
    "integers": (X.long(), 2),
    "strides": (X.t().contiguous().t(), 2),
    "every second row": (torch.ones(4, 3)[::2], 2),
    "offset into a storage": (torch.ones(3, 3)[1:], 1),
    "requires_grad": (X.clone().requires_grad_(), 2),
    "a Parameter": (torch.nn.Parameter(X.clone()), 2),
    "a Parameter without grad": (torch.nn.Parameter(X.clone(), requires_grad=False), 2),
    "empty": (torch.ones(0, 3), 2),
    "0-d": (torch.tensor(1.0), 2),
}


@pytest.mark.parametrize("name", CHANGES)
def test_change_of_the_input_tensor(name):
    other, made = CHANGES[name]
    calls(double, (X,), (other,), (X,), (other,), made=made)


REFUSED = {
    "meta": lambda: torch.ones(2, 3, device="meta"),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "conjugate": lambda: torch.ones(2, 3, dtype=torch.complex64).conj(),
    "subclass": lambda: X.as_subclass(type("Sub", (torch.Tensor,), {})),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tensor_kinds_that_are_refused_run_eagerly(name):
    torchweld.reset()
    compiled = torchweld.compile(double, backend="eager")
    same(compiled(X), X * 2)
    other = REFUSED[name]()
    got = compiled(other)
    assert type(got) is type(other * 2)
    assert got.device == other.device
    assert torchweld.statistics()["graphs"] == 1
    same(compiled(X), X * 2)


@pytest.mark.parametrize("fn, made", [
    (lambda x: (x * 2, x.storage_offset()), 3), (lambda x: (x * 2, x[1:].storage_offset()), 3),
    (lambda x: (x * 2, (x + 1)[1:].storage_offset()), 1), (double, 1),
])  # fmt: skip
def test_where_an_input_begins_in_its_storage_is_guarded_if_it_is_read(fn, made):
    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager")
    base = torch.arange(15.0).reshape(5, 3)
    for first in (0, 1, 2, 1, 0):
        same(compiled(base[first : first + 3]), fn(base[first : first + 3]))
    assert graphs() == made


def test_inference_tensor_and_plain_tensor():
    with torch.inference_mode():
        made_inside = torch.ones(2, 3)
    calls(double, (X,), (made_inside,), made=1)


# ------------------------------------------------------------------- same object twice
def add_into(x, y):
    x.add_(1)
    return x + y


def test_the_same_tensor_twice_after_two_tensors():
    torchweld.reset()
    compiled = torchweld.compile(add_into, backend="eager")
    same(compiled(X.clone(), X.clone()), add_into(X.clone(), X.clone()))
    x, e = X.clone(), X.clone()
    same(compiled(x, x), add_into(e, e))
    same(x, e)
    assert graphs() == 2


def test_two_tensors_after_the_same_tensor_twice():
    torchweld.reset()
    compiled = torchweld.compile(add_into, backend="eager")
    x, e = X.clone(), X.clone()
    same(compiled(x, x), add_into(e, e))
    same(compiled(X.clone(), X.clone()), add_into(X.clone(), X.clone()))
    assert graphs() == 2


def test_same_tensor_twice_needs_no_guard_where_nothing_is_written():
    def read_only(x, y):
        return x * y

    torchweld.reset()
    compiled = torchweld.compile(read_only, backend="eager")
    same(compiled(X, X + 1), X * (X + 1))
    same(compiled(X, X), X * X)
    assert graphs() == 1


def test_identity_that_the_program_asked_for():
    def f(x, y):
        return x + 1 if x is y else x + 2

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    other = X.clone()
    same(compiled(X, other), X + 2)
    same(compiled(X, X), X + 1)
    same(compiled(X, other), X + 2)
    assert graphs() == 2


def test_the_same_tensor_from_an_argument_and_a_global():
    def f(x):
        x.mul_(2)
        return x + SHARED

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    same(compiled(torch.ones(3)), torch.ones(3) * 2 + SHARED)
    got = compiled(SHARED)
    same(got, SHARED + SHARED)
    SHARED.fill_(3.0)


SHARED = torch.full((3,), 3.0)


# ------------------------------------------------------------------------ shared storage
def test_written_input_that_overlaps_another_input():
    torchweld.reset()
    compiled = torchweld.compile(add_into)
    with torch.no_grad():
        same(compiled(torch.ones(4), torch.ones(4)), torch.full((4,), 3.0))
        base = torch.ones(5)
        expected_base = base.clone()
        expected = add_into(expected_base[:4], expected_base[1:])
        got = compiled(base[:4], base[1:])
    same(got, expected)
    same(base, expected_base)


def test_parts_of_one_storage_that_do_not_overlap():
    def f(x, y):
        x.add_(y)
        return y * 2

    torchweld.reset()
    compiled = torchweld.compile(f)
    with torch.no_grad():
        for _ in range(3):
            base = torch.arange(8.0)
            got = compiled(base[:4], base[4:])
            same(got, torch.arange(4.0, 8.0) * 2)
            same(base, torch.tensor([4.0, 6.0, 8.0, 10.0, 4.0, 5.0, 6.0, 7.0]))


def test_overlapping_inputs_that_are_only_read():
    def f(x, y):
        return x * y

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    base = torch.arange(5.0)
    same(compiled(base[:4], base[1:]), base[:4] * base[1:])
    same(compiled(torch.ones(4), torch.ones(4)), torch.ones(4))
    assert graphs() == 1


# ------------------------------------------------------------------- lazy bits
def test_negation_and_conjugation_that_are_pending():
    torchweld.reset()
    compiled = torchweld.compile(double)
    z = torch.complex(torch.arange(3.0), torch.arange(3.0) + 1)
    with torch.no_grad():
        for x in (z.imag, z.conj().imag, z, z.conj(), z.imag[:1], z.conj().imag[:1]):
            torch.testing.assert_close(compiled(x), double(x))


# ------------------------------------------------------------------- requires_grad
def test_requires_grad_is_not_guarded_without_grad():
    torchweld.reset()
    compiled = torchweld.compile(double, backend="eager")
    with torch.no_grad():
        compiled(X)
        compiled(X.clone().requires_grad_())
    assert graphs() == 1


@pytest.mark.parametrize("ask", [
    lambda x: x.requires_grad, lambda x: x.is_leaf, lambda x: x.detach().requires_grad,
], ids=["requires_grad", "is_leaf", "of the result"])  # fmt: skip
def test_requires_grad_is_guarded_where_it_is_read(ask):
    def f(x):
        return x * 2 if ask(x) else x * 3

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    with torch.no_grad():
        for x in (X, X.clone().requires_grad_(), X):
            same(compiled(x), f(x))


def test_requires_grad_of_an_input_that_is_returned_to_grad_mode():
    def f(x):
        y = x.view(-1)
        with torch.enable_grad():
            return y * 2, x * 2

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    with torch.no_grad():
        for x in (X, X.clone().requires_grad_(), X):
            same(compiled(x), f(x))
