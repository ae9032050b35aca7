"""The border to torch's C++ functionalization: every private name of it that torchweld uses.

A functional tensor is a wrapper around a value. In-place operators replace the value, so that what
arrives below the wrappers is functional.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from torchweld.ir.nested import memory_of

_TORCH: Any = torch  # most of these names are missing in torch's type stubs
_NATIVE: Any = getattr(torch._C, "_functionalization", None)
# The views that led to a functional tensor; older torch does not tell.
_VIEWS_OF: Any = getattr(_NATIVE, "get_view_meta_sequence", None)


@contextmanager
def functionalized(below: TorchDispatchMode, grad: bool = False) -> Iterator[None]:
    """Run torch calls on functional tensors; `below` sees the functional operators.

    grad: the grad mode; autograd is above functionalization, so that `below` sees the operators of
    a backward too. Always outside of inference mode: tensors made inside it lack what
    functionalization keeps in a tensor.
    """
    with torch.inference_mode(False), torch.set_grad_enabled(grad), below:
        _TORCH._enable_functionalization(reapply_views=True)
        try:
            yield
        finally:
            _TORCH._disable_functionalization()


def wrap(value: Tensor) -> Tensor:
    """A functional tensor whose value is `value`."""
    wrapper: Tensor = _TORCH._to_functional_tensor(value)
    return wrapper


def is_wrapped(x: object) -> bool:
    return isinstance(x, Tensor) and bool(_TORCH._is_functional_tensor(x))


def unwrap(x: Tensor) -> Tensor:
    """The present value of `x`, after updates that were made through its aliases."""
    _TORCH._sync(x)
    value: Tensor = _TORCH._from_functional_tensor(x)
    return value


def has_new_data(x: Tensor) -> bool:
    """Whether an in-place operator changed the elements of `x`, directly or through a view."""
    return bool(_TORCH._functionalize_has_data_mutation(x))


def has_new_metadata(x: Tensor) -> bool:
    """Whether `x` got another shape, other strides or another storage in place."""
    return bool(
        _TORCH._functionalize_has_metadata_mutation(x)
        or _TORCH._functionalize_was_storage_changed(x)
    )


def count_writes(x: Tensor) -> int:
    """How often the memory that `x` is a view of was written to."""
    return int(_TORCH._functionalize_mutation_counter(x))


def replace_value(base: Tensor, value: Tensor) -> None:
    """Give a base another value with the same elements."""
    _TORCH._functionalize_replace(base, value)
    _TORCH._functionalize_commit_update(base)
    _TORCH._sync(base)


def share_storage(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors (both functional, or both not) are views of one storage."""
    return bool(_TORCH._C._is_alias_of(a, b))


def storage_of(x: Tensor) -> int:
    """A number that is equal for the tensors that share a storage, while they live."""
    if not torch._C._has_storage(x):
        return -id(x)
    return memory_of(x)


def is_base(x: Tensor) -> bool:
    """Whether `x` is the whole tensor that its views were taken from."""
    return _VIEWS_OF is not None and not _VIEWS_OF(x)


def view_again(x: Tensor, base: Tensor) -> Tensor | None:
    """The views that led to `x`, applied to the value `base`; None if this torch cannot say."""
    if _VIEWS_OF is None:
        return None
    value: Tensor = _NATIVE.apply_view_meta_sequence(base, _VIEWS_OF(x))
    return value
