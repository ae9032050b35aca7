"""What takes gradients inside of a captured graph.

Where a captured backward reaches parameters with hooks, the graph holds the hooks as operators
behind the gradients. Autograd must not call them too, when it runs the graph on these parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

GRAD: Callable[..., Any] = torch.autograd.grad


def grad_before_hooks(hooked: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
    """torch.autograd.grad, which does not call the hooks of the tensors `hooked`."""
    with _without_hooks(hooked):
        return GRAD(*args, **kwargs)


TAKES: frozenset[Any] = frozenset((GRAD, grad_before_hooks))


@contextmanager
def _without_hooks(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Empty the dicts from which autograd calls hooks; what gives hooks back knows the dicts.

    Fakes have only hooks of the capture's own.
    """
    owners: list[Any] = [x for x in tensors if not isinstance(x, FakeTensor)]
    dicts = [x._backward_hooks for x in owners if x._backward_hooks]
    held = [dict(hooks) for hooks in dicts]
    for hooks in dicts:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in zip(dicts, held, strict=True):
            before.update(hooks)  # registered meanwhile: behind the others
            hooks.clear()
            hooks.update(before)
