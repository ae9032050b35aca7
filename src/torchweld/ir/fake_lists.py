"""In-place operators on lists of fake tensors, as optimizers use them: their looks stay.

torch's fake kernels run the operator of one tensor for each row, which takes hundreds of calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor


@cache
def writes_lists(func: object) -> bool:
    """Whether an operator writes to the tensors of its first list and returns nothing."""
    if not isinstance(func, OpOverload):
        return False
    name = func._schema.name
    return name.startswith("aten::_foreach_") and name.endswith("_") and not func._schema.returns


def changes_no_looks(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether such a call is right, and all it does is write: floats of one shape and dtype in each
    row, beside numbers. Whatever is not as plain as that is for torch's kernels to decide."""
    first = args[0]
    if not first or not all(map(_is_plain, first)):
        return False
    return all(_fits(x, first) for x in (*args[1:], *kwargs.values()))


def _is_plain(x: Any) -> bool:
    return type(x) is FakeTensor and not x._has_symbolic_sizes_strides and (
        x.is_floating_point() and x.is_contiguous())  # fmt: skip


def _fits(x: Any, first: Sequence[FakeTensor]) -> bool:
    if type(x) in (int, float):
        return True
    if not isinstance(x, (list, tuple)) or len(x) != len(first):
        return False
    return all(
        type(b) in (int, float) if not isinstance(b, Tensor)
        else type(b) is FakeTensor and not b._has_symbolic_sizes_strides and (
            (b.shape, b.dtype, b.fake_device) == (a.shape, a.dtype, a.fake_device))
        for a, b in zip(first, x, strict=True)
    )  # fmt: skip
