"""Steps of optimizers that are one operator in eager, written with operators on one tensor.

torch's fused kernels compute in the dtype of the parameters, and everything that is one number for
a parameter in f64. Source: the operators' schemas, and what eager gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchweld.graph.number_lists import Number

Tensors = Sequence[Tensor]


def _number(x: Any) -> Any:
    """A number, or a tensor that holds one, for arithmetic in f64."""
    if isinstance(x, Number):
        return x.tensor
    return x.to(torch.float64) if isinstance(x, Tensor) else x


def _like(x: Any, p: Tensor) -> Any:
    """A number to be combined with a tensor of p's dtype."""
    return x.to(p.dtype) if isinstance(x, Tensor) else x


class _Scaled:
    """What a GradScaler hands to a step: gradients to be divided, and whether nothing is done."""

    def __init__(self, grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
        self.grad_scale = grad_scale
        self.found_inf = found_inf

    def gradient(self, grad: Tensor, maximize: bool) -> Tensor:
        if self.grad_scale is not None:
            grad.copy_(self.keep(grad, grad / self.grad_scale.to(grad.dtype)))
        return -grad if maximize else grad

    def keep(self, old: Tensor, new: Tensor) -> Tensor:
        """`new`, or `old` if some gradient is not finite."""
        return new if self.found_inf is None else torch.where(self.found_inf == 1, old, new)

    def write(self, *pairs: tuple[Tensor, Tensor]) -> None:
        for old, new in pairs:
            old.copy_(self.keep(old, new))


def _rows(*lists: Tensors) -> Iterator[tuple[Any, ...]]:
    """The tensors of each parameter; None for those of a list that is empty."""
    for i in range(len(lists[0])):
        yield tuple(x[i] if x else None for x in lists)


def _adam(decoupled: bool) -> Callable[..., None]:
    def step(params: Tensors, grads: Tensors, exp_avgs: Tensors, exp_avg_sqs: Tensors,
             max_exp_avg_sqs: Tensors, state_steps: Tensors, *, lr: Any, beta1: float,
             beta2: float, weight_decay: float, eps: float, amsgrad: bool, maximize: bool,
             grad_scale: Tensor | None = None,
             found_inf: Tensor | None = None) -> None:  # fmt: skip
        scaled, lr = _Scaled(grad_scale, found_inf), _number(lr)
        lists = (params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps)
        for p, grad, m, v, most, count in _rows(*lists):
            g, n, new_p = scaled.gradient(grad, maximize), _number(count), p
            if weight_decay != 0 and decoupled:
                new_p = p * _like(1 - lr * weight_decay, p)
            elif weight_decay != 0:
                g = torch.add(g, p, alpha=weight_decay)
            new_m = torch.lerp(m, g, 1 - beta1)
            new_v = torch.addcmul(v * beta2, g, g, value=1 - beta2)
            step_size = lr / (1 - torch.pow(beta1, n))
            root = torch.sqrt(1 - torch.pow(beta2, n))
            largest = torch.maximum(most, new_v) if amsgrad else new_v
            denominator = torch.sqrt(largest) / _like(root, p) + eps
            new_p = new_p + new_m * _like(-step_size, p) / denominator
            scaled.write((p, new_p), (m, new_m), (v, new_v))
            if amsgrad:
                scaled.write((most, largest))

    return step


def _sgd(params: Tensors, grads: Tensors, momentum_buffer_list: Tensors, *, weight_decay: float,
         momentum: float, lr: Any, dampening: float, nesterov: bool, maximize: bool,
         is_first_step: bool, grad_scale: Tensor | None = None,
         found_inf: Tensor | None = None) -> None:  # fmt: skip
    scaled, lr = _Scaled(grad_scale, found_inf), _number(lr)
    for p, grad, buffer in _rows(params, grads, momentum_buffer_list):
        g = scaled.gradient(grad, maximize)
        if weight_decay != 0:
            g = torch.add(g, p, alpha=weight_decay)
        if momentum != 0:
            moved = g if is_first_step else torch.add(
                buffer * momentum, g, alpha=1 - dampening)  # fmt: skip
            g = torch.add(g, moved, alpha=momentum) if nesterov else moved
            scaled.write((buffer, moved))
        scaled.write((p, torch.addcmul(p, g, _like(torch.as_tensor(-lr), p))))


def _adagrad(params: Tensors, grads: Tensors, state_sums: Tensors, state_steps: Tensors, *,
             lr: Any, lr_decay: float, weight_decay: float, eps: float, maximize: bool,
             grad_scale: Tensor | None = None,
             found_inf: Tensor | None = None) -> None:  # fmt: skip
    scaled, lr = _Scaled(grad_scale, found_inf), _number(lr)
    for p, grad, total, count in _rows(params, grads, state_sums, state_steps):
        g, n = scaled.gradient(grad, maximize), _number(count)
        if weight_decay != 0:
            g = torch.add(g, p, alpha=weight_decay)
        rate = lr / (1 + (n - 1) * lr_decay)
        new_total = torch.addcmul(total, g, g)
        new_p = p - g * _like(rate, p) / (torch.sqrt(new_total) + eps)
        scaled.write((p, new_p), (total, new_total))


_STEPS: dict[str, Callable[..., None]] = {
    "_fused_adam_": _adam(False), "_fused_adamw_": _adam(True), "_fused_sgd_": _sgd,
    "_fused_adagrad_": _adagrad,
}  # fmt: skip
FUSED: dict[Any, Callable[..., None]] = {
    getattr(torch, name): step for name, step in _STEPS.items() if hasattr(torch, name)
}
