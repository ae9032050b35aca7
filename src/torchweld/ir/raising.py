"""Which operators look at their data and may raise because of it, by name.

Eager raises where the operator runs; whoever drops, moves or repeats one must think of that.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from torchweld.ir.graph import VAL

# an index that may be out of bounds
_INDEXING = frozenset((
    "embedding", "embedding_bag", "gather", "getitem", "index", "index_add", "index_copy",
    "index_fill", "index_put", "index_reduce", "index_select", "one_hot", "put", "scatter",
    "scatter_add", "scatter_reduce", "setitem", "take", "take_along_dim", "unsafe_index",
))  # fmt: skip
# a label, a probability or another number out of its range
_RANGES = frozenset((
    "bernoulli", "binary_cross_entropy", "bincount", "cross_entropy", "ctc_loss",
    "multi_margin_loss", "multilabel_margin_loss", "multinomial", "nll_loss", "nll_loss2d",
    "nll_loss_forward", "nll_loss2d_forward", "nll_loss_nd", "normal", "poisson", "quantile",
    "repeat_interleave",
))  # fmt: skip
# a matrix without what is asked for
_MATRICES = frozenset((
    "cholesky", "cholesky_inverse", "cholesky_solve", "cholesky_ex", "eig", "eigh", "eigvals",
    "eigvalsh", "inv", "inv_ex", "inverse", "ldl_factor", "linalg_cholesky",
    "linalg_cholesky_ex", "linalg_cond", "linalg_eig", "linalg_ldl_factor", "linalg_ldl_factor_ex",
    "linalg_lu_factor", "linalg_lu_factor_ex", "linalg_pinv", "linalg_tensorsolve", "lu_factor",
    "linalg_eigh", "linalg_eigvals", "linalg_eigvalsh", "linalg_inv", "linalg_inv_ex",
    "linalg_lstsq", "linalg_matrix_power", "linalg_solve", "linalg_solve_ex", "linalg_svd",
    "linalg_svdvals", "linalg_tensorinv", "lstsq", "matrix_power", "pinverse", "solve", "solve_ex",
    "svd", "svdvals", "tensorinv",
))  # fmt: skip
# an assertion
_ASSERTED = frozenset(("assert", "assert_async", "assert_scalar"))
# a division by zero, of integers
_DIVISIONS = frozenset((
    "div", "divide", "floor_divide", "floordiv", "fmod", "mod", "remainder", "true_divide",
))  # fmt: skip
_NAMES = _INDEXING | _RANGES | _MATRICES | _ASSERTED


def base_name(target: Any) -> str:
    """The name of an operator without namespace, overload and underscores: `index_put`."""
    named = getattr(target, "_opname", None) or getattr(target, "__name__", None) or str(target)
    return str(named).split(".")[0].strip("_")


def may_raise(target: Any, of_integers: bool) -> bool:
    """Whether an operator may raise because of the values in its tensors.

    of_integers: whether what it computes is integers. A getitem does it only with a tensor as the
    index, which the caller looks at.
    """
    name = base_name(target)
    return name in _NAMES or (of_integers and name in _DIVISIONS)


def is_risky(node: Node) -> bool:
    """Whether a captured call may raise because of the values in its tensors."""
    value = node.meta.get(VAL)
    integers = isinstance(value, torch.Tensor) and not (
        value.is_floating_point() or value.is_complex())  # fmt: skip
    if not may_raise(node.target, integers):
        return False
    return node.target not in _BY_INDEX or any(
        isinstance(n.meta.get(VAL), torch.Tensor) for n in node.all_input_nodes[1:])  # fmt: skip


_BY_INDEX = (operator.getitem, operator.setitem, "__getitem__", "__setitem__")
