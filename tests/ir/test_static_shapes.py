"""static_shapes: the answers of symbolic_shapes about plain numbers, and of nothing else."""

from __future__ import annotations

from types import FunctionType

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import symbolic_shapes as real

from torchweld.ir import static_shapes as ours
from torchweld.ir.torch_functions import _redirected

NUMBERS = (0, 1, -3, True, False, 2.5)
ASKED = [
    (name, (x,))
    for name in ("guard_or_false", "guard_or_true", "guard_int",
                 "statically_known_true", "expect_true", "optimization_hint", "is_symbolic",
                 "guarding_hint_or_throw", "is_nested_int", "has_guarding_hint", "size_hint",
                 "has_hint", "has_free_symbols", "has_free_unbacked_symbols",
                 "free_unbacked_symbols", "_advise_is_size")
    for x in NUMBERS
    if hasattr(real, name)
] + [
    ("sym_and", (True, True, False)), ("sym_and", (True,)), ("sym_or", (False, True)),
    ("sym_or", (False, False)), ("sym_eq", (2, 2)), ("sym_eq", (2, 3)),
    ("sym_eq", ((1, 2), [1, 2])),
    ("sym_eq", ([1], [1, 2])), ("sym_eq", ([[1]], [[1]])), ("sym_eq", (1, [1])),
    ("has_free_symbols", ([1, torch.ones(2)],)), ("free_unbacked_symbols", (torch.ones(2, 3),)),
    ("compute_unbacked_bindings", (None, 3)),
]  # fmt: skip


def outcome(module, name, args):
    try:
        value = getattr(module, name)(*args)
    except Exception as error:
        return type(error)
    return type(value) in (int, bool), value if not hasattr(value, "add") else len(value)


@pytest.mark.parametrize("name, args", ASKED, ids=str)
def test_plain_numbers_get_the_real_answer(name, args):
    assert outcome(ours, name, args) == outcome(real, name, args)


def test_symbols_are_the_real_modules_business():
    mode = FakeTensorMode(shape_env=real.ShapeEnv())
    x = mode.from_tensor(torch.randn(3, 4))
    n = x.shape[0]
    assert ours.is_symbolic(n) and ours.has_free_symbols(x) and ours.has_free_symbols([n])
    assert ours.guard_int(n) == 3 and isinstance(ours.sym_eq(n, 3), torch.SymBool)
    assert ours.guard_or_false(n == 3) and ours.ShapeEnv is real.ShapeEnv


def from_import():
    from torch.fx.experimental.symbolic_shapes import sym_eq

    return sym_eq


def inner_import():
    def inner():
        from torch.fx.experimental.symbolic_shapes import sym_eq

        return sym_eq

    return inner()


def plain_import():
    import torch.fx.experimental.symbolic_shapes

    return torch


def import_as():
    import torch.fx.experimental.symbolic_shapes as shapes

    return shapes


@pytest.mark.parametrize("fn, changes", [
    (from_import, True), (inner_import, True), (plain_import, False), (import_as, False),
])  # fmt: skip
def test_only_statements_that_can_be_redirected_are(fn, changes):
    code = _redirected(fn.__code__)
    assert (code is not fn.__code__) == changes
    if changes:
        assert FunctionType(code, globals())() is ours.sym_eq
