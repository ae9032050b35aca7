"""Calls of torch that fix the sizes that they get, made in another way where these vary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from torchweld.capture import sized_polyfills
from torchweld.capture.items import get_iter
from torchweld.capture.numbers import runs_apart
from torchweld.capture.policy import graph_call, inline_anyway
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.symbolic import is_varying
from torchweld.capture.tables import function
from torchweld.capture.values.base import (
    Const,
    ListValue,
    SizeValue,
    Slot,
    TensorValue,
    TupleValue,
    Value,
    constant,
    is_constant,
)

Args = list[Value]
Kwargs = dict[str, Value]


def leaves(x: Slot) -> Iterator[Slot]:
    """What is in lists and tuples, to any depth."""
    if isinstance(x, TupleValue | ListValue):
        for item in x.items:
            yield from leaves(item)
    else:
        yield x


def varies(x: Slot) -> bool:
    """Whether a number, or one in a list or tuple, is not known."""
    return any(map(is_varying, leaves(x)))


def _given(kwargs: Kwargs, name: str) -> bool:
    """Whether an option is anything but absent, None or False."""
    value = kwargs.get(name)
    return value is not None and not (isinstance(value, Const) and not value.sample)


def _in_the_place_of(fn: Any, other: Callable[..., Any], fits: Callable[[Args, Kwargs], bool],
                     always: bool = False) -> None:  # fmt: skip
    """always: not only where a size varies."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        if (always or cap.sizes.symbolic) and fits(args, kwargs):
            cap.call(Const(other), args, kwargs, cont)
        else:
            graph_call(cap, fn, args, kwargs, cont)

    function(fn)(handler)


def _is_sized(args: Args, kwargs: Kwargs) -> bool:
    x = args[0] if args else kwargs.get("input")
    plain = len(args) < 7 and not _given(kwargs, "return_indices")
    return plain and isinstance(x, TensorValue) and bool(
        x.fake._has_symbolic_sizes_strides)  # fmt: skip


def _is_table(args: Args, kwargs: Kwargs) -> bool:
    """Whether the columns of a table are more than what a covariance is corrected by."""
    x = args[0] if args else kwargs.get("input")
    by = kwargs.get("correction", Const(1))
    return len(args) < 2 and kwargs.keys() <= {"input", "correction"} and (
        isinstance(x, TensorValue) and x.fake.dim() in (1, 2) and type(by) is Const
        and type(by.obj) is int and bool(x.fake.shape[-1] > by.obj))  # fmt: skip


def _is_split(args: Args, kwargs: Kwargs) -> bool:
    """Whether a tensor of sizes that vary is split into a number of parts."""
    numbers = [*args[1:], *kwargs.values()]
    return bool(numbers) and kwargs.keys() <= {"dim"} and _is_sized(args[:1], {}) and all(
        type(x) is Const and type(x.obj) is int for x in numbers)  # fmt: skip


def _is_range(args: Args, kwargs: Kwargs) -> bool:
    options = {"start", "end", "steps", "dtype", "device"}
    given = dict(zip(("start", "end", "steps"), args, strict=False)) | kwargs
    if len(args) > 3 or not set(kwargs) <= options or not {"start", "end", "steps"} <= set(given):
        return False
    dtype = given.get("dtype", Const(None))
    floats = isinstance(dtype, Const) and (dtype.sample is None or (
        isinstance(dtype.sample, torch.dtype) and dtype.sample.is_floating_point))  # fmt: skip
    return floats and varies(given["steps"]) and all(
        is_varying(given[k]) or is_constant(given[k]) for k in ("start", "end"))  # fmt: skip


def _takes_along(args: Args, kwargs: Kwargs) -> bool:
    given = dict(zip(("input", "indices", "dim"), args, strict=False)) | kwargs
    x, i, dim = given.get("input"), given.get("indices"), given.get("dim", Const(None))
    if not (isinstance(x, TensorValue) and isinstance(i, TensorValue) and type(dim) is Const):
        return False
    shaped = x.fake.dim() == i.fake.dim() > 0 and i.fake.dtype is torch.int64
    in_range = dim.obj is None or (type(dim.obj) is int
                                   and -x.fake.dim() <= dim.obj < x.fake.dim())  # fmt: skip
    return shaped and in_range and given.keys() <= {"input", "indices", "dim"} and any(
        _is_sized([t], {}) for t in (x, i))  # fmt: skip


def _is_product(args: Args, kwargs: Kwargs) -> bool:
    """Whether two or three matrices are multiplied."""
    if len(args) != 1 or kwargs or not isinstance(args[0], ListValue | TupleValue):
        return False
    parts = [x for x in args[0].items if isinstance(x, TensorValue) and x.fake.dim() == 2]
    return len(parts) == len(args[0].items) in (2, 3) and any(_is_sized([x], {}) for x in parts)


def _is_powers(args: Args, kwargs: Kwargs) -> bool:
    """Whether there are at least two columns, of a number that is known. Eager has no gradients."""
    given = dict(zip(("x", "N", "increasing"), args, strict=False)) | kwargs
    x, n = given.get("x"), given.get("N")
    return isinstance(x, TensorValue) and x.fake.dim() == 1 and _is_sized([x], {}) and (
        type(n) is Const and type(n.obj) is int and n.obj > 1
        and not x.fake.requires_grad)  # fmt: skip


def _is_filled(args: Args, kwargs: Kwargs) -> bool:
    """Whether a matrix is; ATen's own operator has no gradient that is compiled."""
    return len(args) == 2 and not kwargs and isinstance(args[1], Const) and (
        isinstance(args[0], TensorValue) and args[0].fake.dim() == 2
        and all(n != 0 for n in args[0].fake.stride()))  # fmt: skip


def _resizes(args: Args, kwargs: Kwargs) -> bool:
    """Whether a tensor of sizes that vary is resized, or one to such a size."""
    x = args[0] if args else kwargs.get("input")
    sized = isinstance(x, TensorValue) and bool(x.fake._has_symbolic_sizes_strides)
    return sized or any(map(varies, (*args, *kwargs.values())))


def _resizes_bytes(args: Args, kwargs: Kwargs) -> bool:
    x = args[0] if args else kwargs.get("input")
    return isinstance(x, TensorValue) and x.fake.dtype is torch.uint8 and _resizes(args, kwargs)


@function(F.interpolate)
def interpolate(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Where sizes vary, some are looked into: see `upsample_bicubic2d`, `adaptive_avg_pool1d`."""
    mode = args[3] if len(args) > 3 else kwargs.get("mode")
    kind = mode.sample if isinstance(mode, Const) else None
    if cap.sizes.symbolic and ((kind in ("bicubic", "area") and _resizes(args, kwargs)) or (
            kind == "bilinear" and _resizes_bytes(args, kwargs))):  # fmt: skip
        inline_anyway(cap, F.interpolate, args, kwargs, cont)
        return

    def with_elements(out: Value) -> None:
        """Eager refuses sizes of 0, which torch's compositions take and make."""
        given = args[0] if args else kwargs.get("input")
        if isinstance(given, TensorValue) and not given.fake.is_floating_point() and (
                given.fake.dtype is not torch.uint8):  # fmt: skip
            raise refuse("W104", "interpolate: a dtype that the kernels lack", cap.loc())
        if kind != "area" and any(n == 0 for x in (given, out) if isinstance(x, TensorValue)
                                  for n in x.fake.shape[2:]):  # fmt: skip
            raise refuse("W104", "interpolate: a size of 0", cap.loc())
        cap.deliver(out, cont)

    graph_call(cap, F.interpolate, args, kwargs, with_elements)


@function(F.affine_grid)
def affine_grid(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """One of an image whose sizes vary, which torch's own functions would fix."""
    names = ("theta", "size", "align_corners")
    given = dict(zip(names, map(cap.unwrap, args), strict=False)) | kwargs
    if cap.sizes.symbolic and given.keys() == set(names) and _is_grid(*(given[n] for n in names)):
        cap.call(Const(sized_polyfills.affine_grid), [given[n] for n in names], {}, cont)
    else:
        graph_call(cap, F.affine_grid, args, kwargs, cont)


def _is_grid(theta: Value, size: Value, align_corners: Value) -> bool:
    """Whether sizes vary, and nothing is to be refused or warned of."""
    if not isinstance(theta, TensorValue) or not theta.fake.is_floating_point():
        return False
    parts = list(leaves(size))
    rank = len(parts) - 2
    plain = type(align_corners) is Const and type(align_corners.obj) is bool
    return plain and rank in (2, 3) and tuple(theta.fake.shape[1:]) == (rank, rank + 1) and (
        varies(size) and all(map(_is_known, parts)) and all(map(_is_large, parts[2:])))


def _is_known(x: Slot) -> bool:
    """Whether a size is known when a call begins."""
    if isinstance(x, SizeValue):
        return not x.number.node.is_open()
    return type(x) is Const and type(x.obj) is int


def _is_large(x: Slot) -> bool:
    """Whether a known size is none of the special ones: no symbol of an input's size is."""
    return isinstance(x, SizeValue) or (type(x) is Const and type(x.obj) is int and x.obj > 1)


_NN: Any = torch._C._nn
_in_the_place_of(_NN.upsample_bicubic2d, sized_polyfills.upsample_bicubic2d, _resizes)
_in_the_place_of(_NN.upsample_bilinear2d, sized_polyfills.upsample_bilinear2d, _resizes_bytes)
_in_the_place_of(_NN._upsample_bicubic2d_aa, sized_polyfills.upsample_bicubic2d_aa, _resizes)
_in_the_place_of(F.max_pool1d, sized_polyfills.max_pool1d, _is_sized)
_in_the_place_of(torch.max_pool1d, sized_polyfills.max_pool1d, _is_sized)
_in_the_place_of(torch.kron, sized_polyfills.kron, lambda args, kwargs: (
    not kwargs and len(args) == 2 and any(_is_sized([x], {}) for x in args)))  # fmt: skip
_in_the_place_of(torch.adaptive_avg_pool1d, sized_polyfills.adaptive_avg_pool1d, _resizes)
for _take in (torch.take_along_dim, torch.Tensor.take_along_dim):
    _in_the_place_of(_take, sized_polyfills.take_along_dim, _takes_along)
_in_the_place_of(torch.linalg.multi_dot, sized_polyfills.multi_dot, _is_product)
_in_the_place_of(torch.vander, sized_polyfills.vander, _is_powers)
_in_the_place_of(torch.Tensor.fill_diagonal_, sized_polyfills.fill_diagonal_, _is_filled,
                 always=True)  # fmt: skip
for _split in (torch.tensor_split, torch.Tensor.tensor_split):
    _in_the_place_of(_split, sized_polyfills.tensor_split, _is_split)
for _space in (torch, torch.Tensor):
    _in_the_place_of(_space.cov, sized_polyfills.cov, _is_table, always=True)
    _in_the_place_of(_space.corrcoef, sized_polyfills.corrcoef, _is_table, always=True)
_in_the_place_of(torch.linspace, sized_polyfills.linspace, _is_range)


def tensor_of_sizes(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> bool:
    """torch.tensor of numbers some of which are made of sizes; False if it is something else."""
    if len(args) != 1 or not varies(args[0]) or not set(kwargs) <= {"dtype", "device"}:
        return False
    if not all(isinstance(x, Const) for x in leaves(args[0])):
        return False
    kinds = [x.cls() for x in leaves(args[0]) if isinstance(x, Const)]
    found = torch.get_default_dtype() if float in kinds else torch.int64
    if not set(kinds) <= {int, float}:
        return False
    given = kwargs.get("dtype", Const(None))
    dtype = given if isinstance(given, Const) and given.sample is not None else Const(found)
    device = kwargs.get("device", Const(None))
    cap.call(Const(sized_polyfills.tensor_of), [args[0], dtype, device], {}, cont)
    return True


__all__ = ["leaves", "tensor_of_sizes", "varies"]


def _unbind(fn: Any) -> Callable[[Capture, Args, Kwargs, Cont | None], None]:
    """`for row in x.unbind(dim)`, of a dimension that varies: see `numbers.runs_apart`."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        x, *rest = args or [kwargs["input"]]
        dim = constant((*rest, *(v for k, v in kwargs.items() if k == "dim"), Const(0))[0])
        looped = cap.top.code.instrs[cap.top.ip].op == "GET_ITER"
        known = isinstance(x, TensorValue) and isinstance(dim, int) and (
            -x.fake.dim() <= dim < x.fake.dim())  # fmt: skip
        if not (looped and known and runs_apart(cap, x.fake.shape[dim])):  # type: ignore
            graph_call(cap, fn, args, kwargs, cont)
            return
        moved: Args = [x, Const(dim), Const(0)]
        rows = cap.builder.call("call_method", "movedim", moved, {}, cap.loc()) if dim else x
        get_iter(cap, rows, cont)

    return handler


for _fn in (torch.Tensor.unbind, torch.unbind):
    function(_fn)(_unbind(_fn))
