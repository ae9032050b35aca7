"""Operators that draw random numbers, with a probability or bounds that change.

The operator that fills is recorded as it is, with the number in a tensor: it has no gradient, so it
need not pass through C++, whose arguments are floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import _pop_mode_temporarily

from torchweld.graph.functional import is_wrapped, unwrap, wrap
from torchweld.graph.number_lists import refused
from torchweld.ir.predicted import below_functionalization

aten = torch.ops.aten
_ALPHA = 1.7580993408473766  # what SELU's alpha times its scale is


_TORCH: Any = torch
_root: Callable[[Any], Any] = getattr(torch, "sym_sqrt", None) or _TORCH._sym_sqrt


def _recorded(recorder: Any, op: Any, *args: Any) -> Any:
    """What an operator without a gradient makes, with symbolic floats where C++ has floats."""
    plain = tuple(unwrap(x.detach()) if is_wrapped(x) else x for x in args)
    with _pop_mode_temporarily(), below_functionalization():  # as inside of a dispatch
        made: Tensor = recorder.__torch_dispatch__(op, (), plain, {})
    return wrap(made)


def _fill(op: Any) -> Callable[..., Any]:
    """x.fill_with_(a, b)."""
    names = [a.name for a in op._schema.arguments[1:] if a.name != "generator"]

    def row(recorder: Any, x: Tensor, *args: Any, generator: Any = None, **named: Any) -> Any:
        if generator is not None or not x.is_contiguous():
            raise refused("random numbers in memory with gaps, or of a generator")
        defaults = {a.name: a.default_value for a in op._schema.arguments if a.has_default_value()}
        given = [*args, *(named.get(n, defaults.get(n)) for n in names[len(args) :])]
        return x.copy_(_recorded(recorder, op, x, *given))

    return row


def _bernoulli(recorder: Any, x: Tensor, p: Any, *, generator: Any = None) -> Any:
    """torch.bernoulli."""
    target = torch.empty_like(x, memory_format=torch.contiguous_format)
    return _fill(aten.bernoulli.p)(recorder, target, p, generator=generator)


def _normal(recorder: Any, mean: Any, std: Any, size: Any = None, *, generator: Any = None,
            **options: Any) -> Any:  # fmt: skip
    """torch.normal."""
    if generator is not None or options.get("out") is not None:
        raise refused("random numbers of a generator")
    if size is not None:
        made = torch.empty(size, **options)
        return _fill(aten.normal_functional.default)(recorder, made, mean, std)
    op = aten.normal.Tensor_float if isinstance(mean, Tensor) else aten.normal.float_Tensor
    return _recorded(recorder, op, mean, std)


def _dropped(feature: bool, alpha: bool) -> Callable[..., Any]:
    """A kind of dropout, with a probability between 0 and 1."""

    def row(recorder: Any, x: Tensor, p: Any, train: bool = True) -> Any:
        if not train:
            return x
        if x.is_cuda and not feature and not alpha:
            return _on_gpu(recorder, x, p)
        noise = torch.empty_like(x, requires_grad=False)
        if feature:
            noise = x.new_empty([*x.shape[:2], *(1 for _ in x.shape[2:])])
        if not noise.is_contiguous():
            raise refused("dropout of a tensor that is laid out otherwise")
        noise = _recorded(recorder, aten.bernoulli.p, noise, 1 - p)
        if not alpha:
            return x * (noise / (1 - p))
        scale = 1 / _root((_ALPHA * _ALPHA * p + 1) * (1 - p))
        shift = (noise - 1) * (_ALPHA * scale) + _ALPHA * scale * p
        return x * (noise * scale) + shift

    return row


def _on_gpu(recorder: Any, x: Tensor, p: Any) -> Any:
    """The fused kernel, which draws in another order."""
    plain = unwrap(x.detach())
    with _pop_mode_temporarily(), below_functionalization():
        _, mask = recorder.__torch_dispatch__(
            aten.native_dropout.default, (), (plain, p, True), {})
    return x * wrap(mask) * (1 / (1 - p))


def _attention(recorder: Any, query: Tensor, key: Tensor, value: Tensor,
               attn_mask: Tensor | None = None, dropout_p: Any = 0.0, is_causal: bool = False, *,
               scale: Any = None, enable_gqa: bool = False) -> Any:  # fmt: skip
    """Attention whose dropout, or only its scale, changes. On the CPU eager composes it."""
    if query.dtype not in (torch.float32, torch.float64):
        raise refused("attention in half precision")
    if type(dropout_p) is float:
        return F.scaled_dot_product_attention(
            query * scale, key, value, attn_mask, dropout_p, is_causal, scale=1.0,
            enable_gqa=enable_gqa,
        )
    if query.is_cuda or enable_gqa:
        raise refused("dropout of attention on a GPU, or of groups of heads")
    root = _root(scale) if scale is not None else math.sqrt(1 / math.sqrt(query.shape[-1]))
    scores = (query * root) @ (key.transpose(-2, -1) * root)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(
            attn_mask.logical_not(), -math.inf)  # fmt: skip
    scores = scores if attn_mask is None else scores + attn_mask
    return _dropped(False, False)(recorder, aten._safe_softmax.default(scores, -1),
                                  dropout_p) @ value  # fmt: skip


DRAWS: dict[str, Callable[..., Any]] = {
    "bernoulli_": _fill(aten.bernoulli.p), "uniform_": _fill(aten.uniform.default),
    "normal_": _fill(aten.normal_functional.default), "cauchy_": _fill(aten.cauchy.default),
    "exponential_": _fill(aten.exponential.default), "geometric_": _fill(aten.geometric.default),
    "log_normal_": _fill(aten.log_normal.default), "bernoulli": _bernoulli, "normal": _normal,
    "dropout": _dropped(False, False), "feature_dropout": _dropped(True, False),
    "scaled_dot_product_attention": _attention,
    "alpha_dropout": _dropped(False, True), "feature_alpha_dropout": _dropped(True, True),
}  # fmt: skip
