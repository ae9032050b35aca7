"""FakeTensors like others, without running the operators that made those."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from torchweld.ir.expr import ZERO
from torchweld.ir.nested import tensors_in
from torchweld.ir.size_node import expr_of


class Looks:
    """What a FakeTensor is made again from.

    memory: the number of its memory among those of one slice; bytes: how large that is.
    """

    __slots__ = ("bytes", "device", "dtype", "grad", "memory", "offset", "shape", "stride", "whole")

    def __init__(self, fake: torch.Tensor, memory: int) -> None:
        self.memory = memory
        self.shape = tuple(fake.shape)
        self.stride = fake.stride()
        self.offset = fake.storage_offset()
        self.dtype = fake.dtype
        self.device = fake.device
        self.grad = fake.requires_grad
        self.bytes = fake.untyped_storage().nbytes()
        if fake._has_symbolic_sizes_strides:
            extent = 1 + sum((expr_of(n) - 1) * expr_of(s)
                             for n, s in zip(fake.shape, fake.stride(), strict=True))  # fmt: skip
            self.whole = expr_of(self.offset) is ZERO and (
                expr_of(self.bytes) is extent * fake.element_size())  # fmt: skip
        else:
            self.whole = not self.offset and self.bytes == fake.element_size() * _extent(fake)


def _extent(fake: torch.Tensor) -> int:
    if fake.numel() == 0:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(fake.shape, fake.stride(), strict=True))


class FakeMaker:
    """Makes FakeTensors of one mode from meta tensors, as their constructor does but faster.

    What the constructor leaves in `__dict__` depends on the mode and the device alone, so it is
    copied from the first one. Measured 2026-11-30, 2 cores: 3 us instead of 10.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self.first: dict[torch.device, tuple[torch.device, dict[str, Any]]] = {}
        self.forbid: Callable[[torch.Tensor], object] = (
            torch._C._set_warn_deprecated_on_mutable_data_ptr
            if mode._allow_unsafe_data_ptr_access else torch._C._set_throw_on_mutable_data_ptr
        )  # fmt: skip

    def make(self, flat: torch.Tensor, device: torch.device, grad: bool) -> FakeTensor:
        known = self.first.get(device)
        if known is None:
            made = FakeTensor(self.mode, flat, device)
            self.first[device] = made.fake_device, dict(made.__dict__)
            if grad:
                made.requires_grad_()
            return made
        device, state = known
        made = torch.Tensor._make_subclass(FakeTensor, flat, grad, dispatch_device=True,
                                           device_for_backend_keys=device)  # fmt: skip
        self.forbid(made)
        made.__dict__.update(state)
        return made

    def like(self, real: torch.Tensor) -> FakeTensor | None:
        """The fake of a real tensor that is alone in its memory, and fills it; None for others."""
        if not real.is_leaf or real._is_view() or real.__dict__ or (
                real.numel() == 0 or real.storage_offset() or real._is_zerotensor()
                or torch._is_functional_tensor(real)):  # fmt: skip
            return None
        if real.requires_grad and getattr(real, "grad_dtype", real.dtype) != real.dtype:
            return None
        flat = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device="meta")
        if flat.untyped_storage().nbytes() != real.untyped_storage().nbytes():
            return None
        made = self.make(flat, real.device, real.requires_grad)
        if isinstance(real, torch.nn.Parameter):
            made._is_param = True
        return made


class Memories:
    """Makes FakeTensors from their looks; those whose `memory` is the same share it."""

    def __init__(self, maker: FakeMaker) -> None:
        self.maker = maker
        self.storages: dict[int, torch.UntypedStorage] = {}

    def make(self, looks: Looks) -> torch.Tensor:
        storage = self.storages.get(looks.memory)
        if storage is None and looks.whole:
            flat = torch.empty_strided(looks.shape, looks.stride, dtype=looks.dtype, device="meta")
            self.storages[looks.memory] = flat.untyped_storage()
        else:
            if storage is None:
                storage = torch.UntypedStorage(looks.bytes, device="meta")  # type: ignore[no-untyped-call]
                self.storages[looks.memory] = storage
            flat = torch.empty(0, dtype=looks.dtype, device="meta")
            flat.set_(storage, looks.offset, looks.shape, looks.stride)
        return self.maker.make(flat, looks.device, looks.grad)


def each_fake(value: Any, found: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors in an operator's result, in order."""
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, tuple | list):
        for item in value:
            each_fake(item, found)
    return found


def with_fakes(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """An operator's result with other tensors in it."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if not isinstance(value, tuple | list):
        return value
    items = [with_fakes(item, change) for item in value]
    if type(value) in (tuple, list):
        return type(value)(items)
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def symbolic_twin(mode: FakeTensorMode, real: torch.Tensor, sizes: tuple[Any, ...],
                  strides: tuple[Any, ...]) -> torch.Tensor:  # fmt: skip
    """A fake tensor like `real`, gaps and all, in memory of its own; its sizes may be symbols."""
    mode.cache_enabled = False
    with mode:
        twin = torch.empty_strided(sizes, strides, dtype=real.dtype, device=real.device)
    if not real.requires_grad:
        return twin
    twin.requires_grad_()
    if real.is_leaf:
        return twin
    with torch.enable_grad(), mode:
        if torch.ops.aten.is_non_overlapping_and_dense.default(real):
            return twin.clone()
        steps = ((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        whole = torch.empty((1 + sum(steps),), dtype=real.dtype, device=real.device)
        return whole.requires_grad_().clone().as_strided(sizes, strides)


def version_of(x: torch.Tensor) -> int:
    """How often a tensor was written to; of tensors of inference_mode nobody counts."""
    return 0 if x.is_inference() else x._version


def keep_grad(result: Any, given: list[torch.Tensor], again: Callable[[], Any]) -> Any:
    """What an operator gave. Its views of tensors that require grad do too in inference_mode, which
    FakeTensors do not say where it is made of other operators; again: runs it once more."""
    lost = torch.is_inference_mode_enabled() and any(x.requires_grad for x in given) and any(
        not (x.is_inference() or x.requires_grad) for x in tensors_in(result))  # fmt: skip
    if lost:
        with torch.inference_mode(False), torch.no_grad():
            twin = again()
        for x, like in zip(tensors_in(result), tensors_in(twin), strict=True):
            if like.requires_grad and not x.is_inference():
                x.requires_grad_()
    return result
