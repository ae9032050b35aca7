"""FakeMode: the FakeTensorMode under which graphs are captured and made functional.

Where torch's own fake kernels and eager differ, it is on eager's side: it refuses what eager
refuses, leaves to eager what only the data decides, and gives results the strides of the kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, UnsupportedFakeTensorException

from torchweld.ir.fake_checks import (
    changes_no_looks,
    check_dim,
    left_to_eager,
    outs_of,
    writes_lists,
)
from torchweld.ir.fake_kernels import dividing, resized
from torchweld.ir.fake_memo import remembered
from torchweld.ir.nested import tensors_in
from torchweld.ir.predicted import anew, below_functionalization, lone_axes, real_strides
from torchweld.ir.quiet import UNKNOWN_SOURCE, QuietFakeTensorMode
from torchweld.ir.run_time_float import with_samples

# what Python takes apart into many operators, where one kernel of ATen is better; and what it does
# otherwise than C++, which multiplies by noise in the dtype of the tensor
_WHOLE: frozenset[Any] = frozenset((
    torch.ops.aten.upsample_bicubic2d.default, torch.ops.aten.upsample_bilinear2d.default,
    torch.ops.aten._upsample_bicubic2d_aa.default,
    F.dropout, torch.dropout, torch.dropout_,
))  # fmt: skip
_DEVICE = torch.ops.prim.device.default
_META = torch.device("meta")


def whole(target: object) -> Any:
    """Context in which an operator is run that `decomposing` is not to take apart."""
    return torch._C._DisablePythonDispatcher() if target in _WHOLE else nullcontext()


def decomposing() -> Any:
    """Context in which operators that C++ composes of others are composed in Python, where sizes
    may be symbols."""
    return torch._C._EnablePythonDispatcher()


def composed(fakes: Iterable[Any]) -> Any:
    """Context in which operators run on these fakes: see `decomposing`."""
    varying = any(x._has_symbolic_sizes_strides for x in fakes)
    return decomposing() if varying else nullcontext()


class FakeMode(QuietFakeTensorMode):  # type: ignore[no-untyped-call]
    """See the module. Errors: IndexError, UnsupportedFakeTensorException, as fake kernels raise."""

    def from_tensor(self, tensor: Tensor, **options: Any) -> FakeTensor:
        """The fake of a real tensor, which knows nothing of its elements.

        Without a source, torch 2.14 keeps the value of a tensor without dimensions for `item`.
        """
        if options.get("source") is None:
            options.update(source=UNKNOWN_SOURCE, trace=False)
        return super().from_tensor(tensor, **options)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE and type(args[0]) is FakeTensor:  # two of three questions
            x = args[0]
            return _META if x.fake_mode.in_kernel_invocation else x.fake_device
        return self.dispatch(func, types, args, kwargs)

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The result of an operator. The graph stage calls this directly."""
        args, kwargs = with_samples(args, kwargs or {})
        return remembered(self, func, args, kwargs, lambda: self._run(func, types, args, kwargs))

    def _run(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        check_dim(func, args, kwargs)
        why = left_to_eager(func, args, kwargs)
        if why is not None:
            raise UnsupportedFakeTensorException(why)
        if writes_lists(func) and changes_no_looks(args, kwargs):
            return None
        self._keep_shapes(func, types, args, kwargs)
        out: Any = resized(self, func, args)
        if out is NotImplemented:
            out = anew(self, func, args)
        if out is NotImplemented:
            with dividing(func):
                out = super().dispatch(func, types, args, kwargs)
        real = real_strides(func, args, kwargs, out) or lone_axes(func, args, kwargs, out)
        if real is None:
            return out
        with below_functionalization(), self:
            made = tuple(map(_laid_out, out if isinstance(out, tuple) else (out,), real))
        return made if isinstance(out, tuple) else made[0]

    def _keep_shapes(self, func: Any, types: Any, args: Any, kwargs: Any) -> None:
        """Refuse an out= that gets another shape or, from a fake kernel, other strides than eager
        gives it: who writes to it has its memory as it is. An empty one of its own may grow, where
        what is read is laid out in the standard way.

        Errors: UnsupportedFakeTensorException.
        """
        given = {n: kwargs[n] for n in outs_of(func) if isinstance(kwargs.get(n), Tensor)}
        if not given:
            return
        with below_functionalization(), self:
            twins = {n: _laid_out(x, x.stride()) for n, x in given.items()}
        super().dispatch(func, types, args, {**kwargs, **twins})
        if any(twins[n].shape != x.shape or twins[n].stride() != x.stride()
               for n, x in given.items() if x._is_view() or x.shape != (0,)):  # fmt: skip
            raise UnsupportedFakeTensorException("an out= that gets another shape")
        read = (x for x in tensors_in((args, kwargs)) if all(x is not y for y in given.values()))
        if any(twins[n].shape != x.shape for n, x in given.items()) and not all(
                x.is_contiguous() for x in read):  # fmt: skip
            raise UnsupportedFakeTensorException("an out= that grows to the layout of another")


def _laid_out(x: Tensor, strides: tuple[int, ...]) -> Tensor:
    """A new tensor like `x` with these strides."""
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device)
