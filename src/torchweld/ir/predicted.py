"""Operators whose results have other strides, sizes or types than torch predicts, on CPU.

Found by running torch's operator database on fake and on real tensors (torch 2.13 and 2.14), with
inputs in several layouts; `_fft_r2c` up to torch 2.12 is pytorch/pytorch#106623.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import UnsupportedFakeTensorException

from torchweld.ir.size_node import hint_of, is_number

aten = torch.ops.aten
_FUNCTIONALIZE = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)


def below_functionalization() -> Any:
    """Context in which new tensors are not wrapped: for code inside of a dispatch mode."""
    return torch._C._ExcludeDispatchKeyGuard(_FUNCTIONALIZE)


# ---------------------------------------------------------------- sizes and types
def anew(mode: Any, func: object, args: Sequence[Any]) -> Any:
    """The fake results of an operator that torch predicts wrongly; NotImplemented for others."""
    again = _ANEW.get(func)
    if again is None and func in _POWERS and is_number(args[1]):
        return mode.dispatch(func, (), (args[0], _ANY_POWER))
    return NotImplemented if again is None else again(mode, args)


# torch 2.11 asks whether the power is 1 or 2, although all give the same; this one stands for them
_POWERS = frozenset((aten.pow.Tensor_Scalar, aten.pow_.Scalar))
_ANY_POWER = 3
_LSTM = 2  # what the operator calls it, among its kinds of layers


def _loss_gradient(mode: Any, args: Sequence[Any]) -> Any:
    """Of the dtype of what the loss is derived by; torch says: of the widest."""
    _, x, target = args[:3]
    if x.dtype is target.dtype or x.shape != target.shape:
        return NotImplemented
    with below_functionalization(), mode:
        return torch.empty_like(x)


def _lstm_gradients(mode: Any, args: Sequence[Any]) -> Any:
    """Always f32, and of biases even where the layer has none; torch says so from 2.13 on."""
    x, w_input, w_hidden, _, _, hidden, cell = args[:7]
    if args[14] != _LSTM:
        return NotImplemented
    shapes = [t.shape for t in (x, w_input, w_hidden)]
    shapes += [w_input.shape[:1]] * 2 + [hidden.shape, cell.shape]
    with below_functionalization(), mode:
        return tuple(torch.empty(s, dtype=torch.float32, device=x.device) for s in shapes)


def _unshuffled(mode: Any, args: Sequence[Any]) -> Any:
    """What has no elements keeps its shape on a CPU; torch says: the one of other tensors."""
    x = args[0]
    if x.device.type != "cpu" or not any(type(n) is int and n == 0 for n in x.shape):
        return NotImplemented
    with below_functionalization(), mode:
        return torch.empty_like(x)


def _drawn_in_rows(mode: Any, args: Sequence[Any]) -> Any:
    """Laid out in the standard way on a CPU whatever is read; torch says: as that is."""
    x = args[0]
    if x.device.type != "cpu":
        return NotImplemented
    with below_functionalization(), mode:
        return torch.empty_like(x, memory_format=torch.contiguous_format)


_TRAINING = 4  # of rrelu_with_noise


def _leaking(mode: Any, args: Sequence[Any]) -> Any:
    return _drawn_in_rows(mode, args) if any(args[_TRAINING:][:1]) else NotImplemented


_ANEW: dict[object, Callable[[Any, Sequence[Any]], Any]] = {
    aten.smooth_l1_loss_backward.default: _loss_gradient,
    aten.mse_loss_backward.default: _loss_gradient,
    aten.soft_margin_loss_backward.default: _loss_gradient,
    aten.mkldnn_rnn_layer_backward.default: _lstm_gradients,
    aten.pixel_unshuffle.default: _unshuffled,
    aten.poisson.default: _drawn_in_rows,
    aten.rrelu_with_noise.default: _leaking,
}


# ---------------------------------------------------------------- which, and when
def _always(args: Sequence[Any]) -> bool:
    return True


def _permuted(args: Sequence[Any]) -> bool:
    """Whether a tensor is not laid out in the standard way."""
    return any(isinstance(x, Tensor) and not x.is_contiguous() for x in args)


def _odd_lone_axes(args: Sequence[Any]) -> bool:
    """Whether a tensor has an axis of one element whose stride is not that of its place."""
    return any(isinstance(x, Tensor) and x.dim() > 1 and _is_odd(*_axes(x)) for x in args)


def _is_odd(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    return 1 in shape and 0 not in shape and strides != _packed(shape, _rows(shape))


def _odd_places(args: Sequence[Any]) -> bool:
    """The same, of what is indexed by places: masks decide the size of the result."""
    places = [x for x in args[1] if isinstance(x, Tensor)]
    return _odd_lone_axes(args[:1]) and all(x.dtype is torch.int64 for x in places)


def _neither_standard(args: Sequence[Any]) -> bool:
    """Whether the first tensor is laid out neither in the standard way nor channels last."""
    x = args[0]
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    return not (x.is_contiguous() or (last is not None and x.is_contiguous(memory_format=last)))


_DOUBTFUL: dict[OpOverload, Callable[[Sequence[Any]], bool]] = {
    **dict.fromkeys((aten._fft_r2c.default, aten._fft_c2c.default, aten._fft_c2r.default), _always),
    **dict.fromkeys((
        aten.max_unpool2d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default,
        aten.replication_pad2d.default, aten.replication_pad3d.default,
        aten.channel_shuffle.default, aten.native_channel_shuffle.default,
        aten.binary_cross_entropy.default, aten.copysign.Tensor, aten.div.Tensor_mode,
        aten.floor_divide.default, aten.xlogy.Tensor, aten.special_xlog1py.default,
        aten.native_dropout_backward.default, aten.pow.Scalar, aten.log_sigmoid_forward.default,
        aten.logaddexp.default, aten.logaddexp2.default, aten.roll.default,
        aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar,
        aten.index_fill.int_Scalar, aten.index_fill.int_Tensor,
    ), lambda args: _permuted(args) or _odd_lone_axes(args)),
    **dict.fromkeys((
        aten.rsub.Tensor, aten.complex.default, aten.sort.default, aten.sort.stable,
        aten.native_layer_norm.default, aten.native_group_norm.default, aten.masked_fill.Scalar,
        aten.deg2rad.default, aten._prelu_kernel.default, aten.frexp.Tensor,
        aten.bitwise_left_shift.Tensor_Scalar, aten.bitwise_right_shift.Tensor_Scalar,
        aten.__lshift__.Scalar, aten.__rshift__.Scalar, aten.renorm.default,
        aten._log_softmax.default, aten.glu.default, aten.upsample_nearest2d.default,
        aten.upsample_bilinear2d.default, aten.upsample_bicubic2d.default,
        aten._upsample_nearest_exact2d.default, aten.linalg_vector_norm.default,
        aten.grid_sampler_2d.default, aten.remainder.Scalar_Tensor,
        aten.index_add.default, aten.index_copy.default,
    ), _odd_lone_axes),
    **dict.fromkeys((aten.index.Tensor, aten.index_put.default), _odd_places),
    aten.rrelu_with_noise.default: lambda args: not any(args[_TRAINING:][:1]) and (
        _permuted(args) or _odd_lone_axes(args)),
    **dict.fromkeys((
        aten.native_batch_norm.default, aten._native_batch_norm_legit.default,
        aten._native_batch_norm_legit.no_stats, aten._native_batch_norm_legit_functional.default,
        aten._native_batch_norm_legit_no_training.default, aten._batch_norm_with_update.default,
        aten._batch_norm_with_update_functional.default, aten._batch_norm_no_update.default,
    ), lambda args: _neither_standard(args) or _odd_lone_axes(args[:1])),
}  # fmt: skip


_WITH_PLACES = frozenset((
    aten.max_unpool2d.default, aten.index_fill.int_Scalar, aten.index_fill.int_Tensor,
    aten.index.Tensor, aten.index_put.default, aten.index_add.default, aten.index_copy.default,
))  # fmt: skip


def _is_doubtful(func: OpOverload, args: Sequence[Any]) -> bool:
    doubtful = _DOUBTFUL.get(func)
    return doubtful is not None and doubtful(args)


# ---------------------------------------------------------------- what the kernel gives
@dataclass(frozen=True, slots=True)
class _Layout:
    """A CPU tensor without its elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


def real_strides(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], predicted: object
) -> tuple[tuple[int, ...], ...] | None:
    """The strides of each result of a doubtful operator, or None if they are as `predicted`.

    Cost: the operator itself, once for each layout of its arguments: its kernel decides.
    """
    if not _is_doubtful(func, args):
        return None
    results = predicted if isinstance(predicted, (tuple, list)) else (predicted,)
    if any(not isinstance(x, Tensor) or x.device.type != "cpu" for x in results):
        return None
    named = tuple((k, _each(v, _KNOWN, _layout, tuple)) for k, v in sorted(kwargs.items()))
    real = _strides(func, _each(tuple(args), _KNOWN, _layout, tuple), named)
    lone = _odd_lone_axes(args)
    if all(_alike(x, r, lone) for x, r in zip(results, real, strict=True)):
        return None
    return tuple(sized_strides(x.shape, r) for x, r in zip(results, real, strict=True))


# ---------------------------------------------------------------- axes of one element
# forms with a number that C++ makes a tensor of
_NUMBERS_AS_TENSORS = frozenset(
    getattr(aten, name).Scalar for name in (
        "eq", "ne", "lt", "le", "gt", "ge", "remainder", "fmod", "rsub", "bitwise_and",
        "bitwise_or", "bitwise_xor", "add", "sub", "mul", "div", "copysign"))  # fmt: skip


_STANDARD = frozenset((aten.masked_fill.Scalar, aten.masked_fill.Tensor))  # always
# these lay a result out as they are laid out themselves, if there are no gaps
_KEEPING = frozenset((
    aten._to_copy.default, aten.clone.default, aten.nan_to_num.default,
    aten.hardtanh.default, aten.flip.default,
    aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default,
    aten.full_like.default, aten.rand_like.default, aten.randn_like.default,
))  # fmt: skip


def lone_axes(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any],
              predicted: object) -> tuple[tuple[Any, ...], ...] | None:  # fmt: skip
    """The strides of an elementwise result that has axes of one element, None if as predicted.

    No element lies elsewhere for them, but a convolution chooses its layout by them. Torch predicts
    them otherwise than the loops of its kernels do, which these rules are those of.
    """
    keeps = func in _KEEPING
    loops = torch.Tag.pointwise in func.tags and func not in _STANDARD
    if not (isinstance(predicted, Tensor) and (keeps or loops)) or _is_doubtful(func, args) or (
            func._schema.is_mutable or any(predicted is a for a in args)):  # fmt: skip
        return None
    if keeps and kwargs.get("memory_format") not in (None, torch.preserve_format):
        return None
    shape = tuple(map(hint_of, predicted.shape))
    if 1 not in shape or 0 in shape or len(shape) < 2:
        return None
    tensors = [x for x in args if isinstance(x, Tensor)]
    read = [_axes(x) for x in tensors]
    given = _axes(predicted)[1]
    if all(strides == _packed(n, _rows(n)) for n, strides in ((shape, given), *read)):
        return None
    if func in _NUMBERS_AS_TENSORS or any(
            isinstance(a.type, torch.TensorType) and not isinstance(x, Tensor)
            for a, x in zip(func._schema.arguments, args, strict=False)):  # fmt: skip
        read.append(((), ()))
    if keeps and not is_dense(*read[0]):
        return None
    order = None if keeps else _order_of_loops(shape, read)
    made = tensors[0].stride() if order is None else _packed(predicted.shape, order)
    return None if tuple(map(hint_of, made)) == given else (tuple(made),)


Axes = tuple[tuple[int, ...], tuple[int, ...]]  # sizes and strides of now


def _axes(x: Tensor) -> Axes:
    return tuple(map(hint_of, x.shape)), tuple(map(hint_of, x.stride()))


def _rows(shape: Sequence[Any]) -> Sequence[int]:
    """The order of axes, the innermost first, of the standard layout."""
    return range(len(shape))[::-1]


def _packed(shape: Sequence[Any], order: Sequence[int]) -> tuple[Any, ...]:
    """The strides of a layout without gaps."""
    made: list[Any] = [1] * len(shape)
    step: Any = 1
    for d in order:
        made[d] = step
        step = step * shape[d]
    return tuple(made)


def _is_packed(x: Axes, order: Sequence[int]) -> bool:
    shape, strides = x
    packed = _packed(shape, order)
    return all(n == 1 or s == p for n, s, p in zip(shape, strides, packed, strict=True))


def is_dense(shape: Sequence[Any], stride: Sequence[Any]) -> bool:
    """Whether the strides put the elements side by side, in some order of the axes."""
    expected = 1
    for n, step in sorted(zip(shape, stride, strict=True), key=lambda axis: (axis[1], axis[0])):
        if n == 1:
            continue
        if step != expected:
            return False
        expected *= n
    return True


_CHANNELS_LAST = (1, 3, 2, 0)


def _order_of_loops(shape: tuple[int, ...], read: Sequence[Axes]) -> Sequence[int] | None:
    """The order of the axes of a new result; None: its strides are those of what is read."""
    if all(n == shape for n, _ in read):
        if all(_is_packed(x, _rows(shape)) for x in read):
            return _rows(shape)
        if len(shape) == 4 and all(_is_packed(x, _CHANNELS_LAST) for x in read):
            return _CHANNELS_LAST
        if all(x == read[0] for x in read) and is_dense(*read[0]):
            return None
    order = list(_rows(shape))
    steps = [_broadcast_steps(shape, x) for x in read]
    for i in range(1, len(shape)):
        at = i
        for j in reversed(range(i)):
            outer = _is_outer(shape, steps, order[j], order[at])
            if outer > 0:
                order[j], order[at] = order[at], order[j]
                at = j
            elif outer < 0:
                break
    return order


def _broadcast_steps(shape: tuple[int, ...], x: Axes) -> list[int]:
    """The strides of what is read, 0 where it is the same for a whole axis."""
    missing = len(shape) - len(x[0])
    own = [0 if n == 1 and shape[missing + d] != 1 else step
           for d, (n, step) in enumerate(zip(*x, strict=True))]  # fmt: skip
    return [0] * missing + own


def _is_outer(shape: tuple[int, ...], steps: Sequence[Sequence[int]], a: int, b: int) -> int:
    """Whether axis a is to be outside of b: 1 yes, -1 no, 0 if nothing says so."""
    for own in steps:
        if own[a] and own[b]:
            if own[a] != own[b]:
                return 1 if own[a] > own[b] else -1
            if shape[a] > shape[b]:
                return 1
    return 0


def _alike(x: Tensor, strides: tuple[int, ...], lone: bool) -> bool:
    """Whether the strides are these. lone: of axes of one element too."""
    axes = zip(x.shape, x.stride(), strides, strict=True)
    return hint_of(x.numel()) < 2 or all(
        hint_of(p) == r for n, p, r in axes if lone or hint_of(n) > 1)


def sized_strides(shape: Sequence[int], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides where sizes may be symbols: a dense layout has the same order for all.

    Errors: UnsupportedFakeTensorException for a layout with gaps.
    """
    if not any(map(is_number, shape)):
        return strides
    made, running = list(strides), 1
    for d in sorted(range(len(shape)), key=lambda d: (strides[d], hint_of(shape[d]))):
        if hint_of(running) == strides[d]:
            made[d] = running
        elif hint_of(shape[d]) != 1:
            raise UnsupportedFakeTensorException("a result with gaps, whose sizes vary")
        running = running * shape[d]
    return tuple(made)


@lru_cache(maxsize=256)
def _strides(
    func: OpOverload, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]
) -> tuple[tuple[int, ...], ...]:
    """The strides of the kernel's results, for arguments that are ones: nothing divides by zero."""
    fill = _zeros if func in _WITH_PLACES else _ones  # zero is always a place
    with below_functionalization():
        named = {k: _each(v, _Layout, fill, list) for k, v in kwargs}
        made = func(*_each(args, _Layout, fill, list), **named)
        return tuple(x.stride() for x in (made if isinstance(made, tuple) else (made,)))


def _each(args: Any, kind: type | tuple[type, ...], change: Callable[[Any], Any],
          container: type) -> Any:  # fmt: skip
    """The arguments with every `kind` changed, in containers of one type."""
    if isinstance(args, (tuple, list)):
        return container(_each(a, kind, change, container) for a in args)
    return change(args) if isinstance(args, kind) else args


_KNOWN = (Tensor, torch.SymInt, torch.SymFloat)


def _layout(x: Any) -> Any:
    """A tensor without its elements, with the sizes of now; the value now of a number."""
    if not isinstance(x, Tensor):
        return hint_of(x)
    sizes, strides = (tuple(map(hint_of, n)) for n in (x.shape, x.stride()))
    return _Layout(sizes, strides, x.dtype)


def _zeros(x: _Layout) -> Tensor:
    return torch.empty_strided(x.shape, x.strides, dtype=x.dtype).zero_()


def _ones(x: _Layout) -> Tensor:
    return torch.empty_strided(x.shape, x.strides, dtype=x.dtype).fill_(1)
