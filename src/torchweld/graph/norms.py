"""Normalisation calls whose operators write to running statistics without saying so.

`aten.native_batch_norm` updates the statistics in training, but its schema has no mark of it, so
functionalization would lose the update. These calls run the operator that has the mark.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

aten = torch.ops.aten


def batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    """torch.batch_norm, with the update of the statistics visible."""
    if not training or running_mean is None or running_var is None or not input.numel():
        return torch.batch_norm(
            input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled
        )
    out: Tensor = aten._native_batch_norm_legit.default(
        input, weight, bias, running_mean, running_var, True, momentum, eps
    )[0]
    return out


def native_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """torch.native_batch_norm, with the update of the statistics visible."""
    op: Any = aten.native_batch_norm.default
    if running_mean is None and running_var is None:
        op = aten._native_batch_norm_legit.no_stats
        return op(input, weight, bias, training, momentum, eps)  # type: ignore[no-any-return]
    if training and running_mean is not None and running_var is not None:
        op = aten._native_batch_norm_legit.default
    return op(  # type: ignore[no-any-return]
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )


def functional_batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """torch.nn.functional.batch_norm, with the update of the statistics visible."""
    if training:
        _need_values(input.size(0) * math.prod(input.shape[2:]), input)
    return batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)


def instance_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    """torch.instance_norm: batch norm of one batch whose channels are (sample, channel) pairs."""
    if not use_input_stats or running_mean is None or running_var is None or not input.numel():
        return torch.instance_norm(
            input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps,
            cudnn_enabled,
        )  # fmt: skip
    batch, channels = input.size(0), input.size(1)
    mean, var = running_mean.repeat(batch), running_var.repeat(batch)
    out: Tensor = aten._native_batch_norm_legit.default(
        input.contiguous().view(1, batch * channels, *input.shape[2:]),
        weight.repeat(batch) if weight is not None else None,
        bias.repeat(batch) if bias is not None else None,
        mean, var, True, momentum, eps,
    )[0]  # fmt: skip
    running_mean.copy_(mean.view(batch, channels).mean(0))
    running_var.copy_(var.view(batch, channels).mean(0))
    return out.view(input.shape)


def functional_instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """torch.nn.functional.instance_norm, with the update of the statistics visible."""
    if use_input_stats:
        _need_values(math.prod(input.shape[2:]), input)
    return instance_norm(
        input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps
    )


def _need_values(n: int, input: Tensor) -> None:
    """Statistics of one value per channel are an error in eager."""
    if n == 1:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got {tuple(input.shape)}"
        )


NORMS: dict[Any, Callable[..., Any]] = {
    torch.batch_norm: batch_norm,
    torch.native_batch_norm: native_batch_norm,
    torch.instance_norm: instance_norm,
    F.batch_norm: functional_batch_norm,
    F.instance_norm: functional_instance_norm,
}
