"""The table of operators that test_lowering_ops compares with eager: rows and their inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.int8, torch.uint8)
BOOL = (torch.bool,)
ALL = FLOATS + INTS + BOOL
SIGNED = (*FLOATS, torch.int64, torch.int32)
SPECIAL = [abs(math.nan), math.inf, -math.inf, -0.0, 0.0, 1.0, -1.0]


@dataclass(frozen=True)
class Row:
    """One function, how many tensors it takes, and the dtypes it is tried with."""

    name: str
    f: Callable[..., Any]
    arity: int
    dtypes: tuple[torch.dtype, ...]
    shapes: tuple[tuple[int, ...], ...]
    special: bool = True  # NaN, infinities and negative zero among the inputs
    layout: bool = True  # torch predicts the strides that eager gives for mixed layouts


ROWS: list[Row] = []
POINTWISE = ((), (0, 3), (9,), (2, 3, 3))
REDUCED = ((4,), (3, 5), (2, 3, 4))


def row(name: str, f: Callable[..., Any], arity: int = 1,
        dtypes: tuple[torch.dtype, ...] = FLOATS,
        shapes: tuple[tuple[int, ...], ...] = POINTWISE, special: bool = True,
        layout: bool = True) -> None:  # fmt: skip
    ROWS.append(Row(name, f, arity, dtypes, shapes, special, layout))


def inputs(r: Row, dtype: torch.dtype, shape: tuple[int, ...]) -> list[torch.Tensor]:
    """Arguments with corner values first; the second of two is not contiguous where it can be."""
    out = []
    for k in range(r.arity):
        g = torch.Generator().manual_seed(k + len(shape))
        n = math.prod(shape)
        if dtype.is_floating_point:  # one NaN has no sign, so that text and lists keep it
            x = torch.randn(n, generator=g) * 3
            if r.special:
                corner = torch.tensor(SPECIAL[k:] + SPECIAL[:k])[:n]
                x[: len(corner)] = corner
        elif dtype is torch.bool:
            x = torch.rand(n, generator=g) > 0.5
        else:
            x = torch.randint(0 if dtype is torch.uint8 else -100, 100, (n,), generator=g)
        x = x.to(dtype)
        if k and len(shape) > 1:
            x = x.reshape(shape[::-1]).permute(*range(len(shape))[::-1])
        out.append(x.reshape(shape) if not (k and len(shape) > 1) else x)
    return out


_SAME = """
exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh
atanh erf erfc erfinv lgamma sigmoid reciprocal frac
"""
for _name in _SAME.split():
    row(_name, getattr(torch, _name))
for _name in ("neg", "abs", "sign", "floor", "ceil", "trunc", "round"):
    row(_name, getattr(torch, _name), dtypes=FLOATS + INTS)
for _name in ("isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit", "logical_not"):
    row(_name, getattr(torch, _name), dtypes=ALL)
row("sqrt_of_int", torch.sqrt, dtypes=(torch.int64, torch.uint8, torch.bool))
row("bitwise_not", torch.bitwise_not, dtypes=INTS + BOOL)
row("round_decimals", lambda x: torch.round(x, decimals=1), special=False)
row("nan_to_num", torch.nan_to_num)

for _name in ("eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum", "logical_and",
              "logical_or", "logical_xor", "mul"):  # fmt: skip
    row(_name, getattr(torch, _name), 2, ALL)
row("add", torch.add, 2, ALL)
row("add_alpha", lambda x, y: torch.add(x, y, alpha=3), 2, FLOATS + INTS)
row("sub", torch.sub, 2, FLOATS + INTS)
row("rsub", lambda x: 2 - x, 1, FLOATS + INTS)
row("div", torch.div, 2, ALL)
row("div_number", lambda x: x / 3, 1, ALL)
row("floor_div_number", lambda x: x // 3, 1, FLOATS + INTS)
row("floor_div_negative", lambda x: x // -3, 1, SIGNED)
row("trunc_div_number", lambda x: torch.div(x, 3, rounding_mode="trunc"), 1, FLOATS + INTS)
row("floor_div", lambda x, y: torch.div(x, y, rounding_mode="floor"), 2, FLOATS[:2], layout=False)
row("remainder_number", lambda x: torch.remainder(x, -3), 1, SIGNED)
row("fmod_number", lambda x: torch.fmod(x, 3), 1, FLOATS + INTS)
row("remainder", torch.remainder, 2, FLOATS[:2])
row("fmod", torch.fmod, 2, FLOATS[:2])
row("pow", torch.pow, 2, FLOATS[:2])
row("pow_2", lambda x: x**2, 1, FLOATS + INTS)
row("pow_half", lambda x: x**0.5, 1, FLOATS + INTS)
row("pow_odd", lambda x: x**5, 1, (torch.int64, torch.int32, torch.uint8))
row("pow_minus_one", lambda x: x**-1.0)
row("number_pow", lambda x: 2.0**x)
row("atan2", torch.atan2, 2)
row("copysign", torch.copysign, 2, FLOATS[:3], layout=False)
row("hypot", torch.hypot, 2, FLOATS[:2])
row("nextafter", torch.nextafter, 2, FLOATS[:3])
row("next_of_large", lambda x: torch.nextafter(x * 1e38, -x), 1, FLOATS[:3])
row("fmax", torch.fmax, 2, FLOATS + INTS)
row("fmin", torch.fmin, 2, FLOATS + INTS)
row("lerp_near", lambda x, y: torch.lerp(x, y, 0.25), 2, special=False)
row("lerp_tensor", torch.lerp, 3, FLOATS[:2], special=False)
row("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=2), 3, FLOATS[:2])
row("addcdiv", lambda x, y, z: torch.addcdiv(x, y, z, value=2), 3, FLOATS[:2])
row("ldexp", lambda x: torch.ldexp(x, torch.tensor(3)))
row("xlogy", torch.xlogy, 2, layout=False)
row("logaddexp", torch.logaddexp, 2, FLOATS[:2])
row("logit", lambda x: torch.logit(x, 0.1), 1, FLOATS[:2])
row("sinc", torch.sinc, 1, FLOATS[:2])
row("heaviside", torch.heaviside, 2, FLOATS[:2])
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    row(_name, getattr(torch, _name), 2, INTS + BOOL)
row("shift_left", lambda x: x << 3, 1, INTS)
row("shift_right", lambda x: x >> 2, 1, INTS)
row("compare_number", lambda x: (x > 0.5, x <= 1), 1, ALL)
row("where", lambda x, y: torch.where(x > 0, x, y), 2, FLOATS + INTS)
row("where_number", lambda x: torch.where(x > 0, x, 2), 1, FLOATS + INTS)
row("masked_fill", lambda x: x.masked_fill(x > 0, 7), 1, FLOATS + INTS)
row("clamp", lambda x: x.clamp(-1, 2), 1, FLOATS + INTS[:3])
row("clamp_min", lambda x: x.clamp(min=0.5), 1)
row("clamp_nan", lambda x: x.clamp(min=float("nan")) + x.clamp(max=float("nan")), 1)
row("clamp_nan_both", lambda x: x.clamp(-1, float("nan")) + x.clamp_min(float("nan")), 1)
row("clamp_tensor", lambda x, y, z: x.clamp(y, z), 3, FLOATS[:2])
row("mixed_dtypes", lambda x: x + x.long() * x.bool(), 1, FLOATS[:1] + INTS, special=False)
row("to_int", lambda x: x.to(torch.int32), 1, ALL, special=False)
row("to_bool", lambda x: x.to(torch.bool), 1, ALL)
row("to_bf16", lambda x: x.to(torch.bfloat16), 1, ALL)

row("gelu", F.gelu)
for _f in (F.relu, F.silu, F.mish, F.hardswish, F.hardsigmoid, F.hardtanh, F.leaky_relu,
           F.elu, F.selu, F.celu, F.softplus, F.softshrink, F.hardshrink, F.logsigmoid,
           F.relu6, F.tanhshrink, F.softsign):  # fmt: skip
    row(_f.__name__, _f)
row("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"))
row("threshold", lambda x: F.threshold(x, 0.5, -2.0))
row("prelu", lambda x: F.prelu(x, torch.full((1,), 0.25, dtype=x.dtype)))
row("glu", F.glu, 1, FLOATS, ((4,), (3, 6)))

row("sum", lambda x: (x.sum(), x.sum(-1), x.sum(0, keepdim=True)), 1, ALL, REDUCED)
row("mean", lambda x: (x.mean(), x.mean(-1)), 1, FLOATS, REDUCED, special=False)
row("prod", lambda x: (x.prod(), x.prod(-1)), 1, (torch.float32, torch.int64, torch.bool), REDUCED)
row("amax_amin", lambda x: (x.amax(-1), x.amin(0), x.max(), x.min()), 1, ALL, REDUCED)
row("argmax", lambda x: (x.argmax(), x.argmin(-1, keepdim=True)), 1, FLOATS + INTS, REDUCED)
row("max_dim", lambda x: (*x.max(-1), *x.min(0)), 1, ALL, REDUCED)
row("any_all", lambda x: (x.any(), x.all(-1)), 1, ALL, REDUCED)
row("var", lambda x: (x.var(), x.std(-1), *torch.var_mean(x, 0, correction=0)), 1, FLOATS,
    REDUCED, special=False)  # fmt: skip
row("norms", lambda x: tuple(torch.linalg.vector_norm(x, p, -1) for p in (0, 1, 2, 3, math.inf)),
    1, FLOATS, REDUCED, special=False)  # fmt: skip
row("logsumexp", lambda x: x.logsumexp(-1), 1, FLOATS[:2], REDUCED)
row("softmax", lambda x: (F.softmax(x, -1), F.log_softmax(x, 0)), 1, FLOATS, REDUCED)
row("cumsum", lambda x: x.cumsum(-1), 1, FLOATS[:2] + INTS, REDUCED)
row("cumprod", lambda x: x.cumprod(0), 1, (torch.float32, torch.int64), REDUCED, special=False)
row("count_nonzero", torch.count_nonzero, 1, ALL, REDUCED)
row("nansum", torch.nansum, 1, FLOATS, REDUCED)

MATRIX = ((3, 4),)
row("cat", lambda x, y: torch.cat([x, y, x[:1]]), 2, ALL, MATRIX)
row("cat_mixed", lambda x: torch.cat([x, x.float()], 1), 1, ALL, MATRIX)
row("stack", lambda x, y: torch.stack([x, y], -1), 2, ALL, MATRIX)
row("pad", lambda x: F.pad(x, (1, -1, 0, 2), value=3), 1, FLOATS + INTS, MATRIX)
row("reflection_pad", lambda x: F.pad(x[None], (2, 1, 1, 2), mode="reflect"), 1, FLOATS, MATRIX)
row("replication_pad", lambda x: F.pad(x[None], (2, 1, 1, 0), mode="replicate"), 1, FLOATS, MATRIX)
row("roll", lambda x: x.roll((1, -2), (0, 1)), 1, ALL, MATRIX)
row("roll_flat", lambda x: x.roll(-5), 1, FLOATS, MATRIX)
row("rot90", lambda x: tuple(x.rot90(k) for k in (1, 2, 3)), 1, FLOATS, MATRIX)
row("flip", lambda x: x.flip(0, 1), 1, ALL, MATRIX)
row("repeat", lambda x: x.repeat(2, 1, 3), 1, ALL, MATRIX)
row("tril_triu", lambda x: (x.tril(), x.triu(1)), 1, ALL, MATRIX)
row("diag_embed", lambda x: torch.diag_embed(x, 1), 1, ALL, MATRIX)
row("views", lambda x: (x.t().reshape(-1)[2:9:3] + 1, x[:, None].expand(3, 2, 4).sum(1)), 1,
    FLOATS + INTS, MATRIX)  # fmt: skip
row("unfold", lambda x: x.unfold(1, 2, 1) * 2, 1, FLOATS, MATRIX)
row("factories", lambda x: (x + torch.arange(4), torch.eye(3, 4) + x, torch.full_like(x, 2.5),
                            torch.linspace(0, 1, 4, dtype=x.dtype) * x), 1, FLOATS,
    MATRIX)  # fmt: skip
row("index_put", lambda x: x.index_put((torch.tensor([0, 2]),), torch.ones(4, dtype=x.dtype)), 1,
    ALL, MATRIX)  # fmt: skip
row("mask_put", lambda x: _assign_where(x), 1, FLOATS, MATRIX)
row("slices_put", lambda x: _assign(x), 1, ALL, MATRIX)

IMAGE = ((2, 6, 8),)
row("max_pool", lambda x: F.max_pool2d(x, 3, 2, 1), 1, FLOATS, IMAGE)
row("max_pool_positions", lambda x: F.max_pool2d(x, 2, return_indices=True), 1, FLOATS, IMAGE)
row("max_pool_ceil", lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), 1, FLOATS, IMAGE)
row("avg_pool", lambda x: F.avg_pool2d(x, 3, 2, 1), 1, FLOATS[:2], IMAGE, special=False)
row("avg_pool_inner", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    1, FLOATS[:2], IMAGE, special=False)  # fmt: skip
row("adaptive_pool", lambda x: (F.adaptive_avg_pool2d(x, (3, 3)), F.adaptive_avg_pool2d(x, 1)), 1,
    FLOATS[:2], IMAGE, special=False)  # fmt: skip
row("nearest", lambda x: (F.interpolate(x[None], scale_factor=2), F.interpolate(x[None], (5, 7))),
    1, FLOATS, IMAGE)  # fmt: skip
row("bilinear", lambda x: (F.interpolate(x[None], (9, 5), mode="bilinear"),
                           F.interpolate(x[None], scale_factor=2, mode="bilinear",
                                         align_corners=True)), 1, FLOATS[:1], IMAGE,
    special=False)  # fmt: skip
row("trilinear", lambda x: F.interpolate(x.reshape(1, 4, 2, 3, 4), (4, 5, 3), mode="trilinear"), 1,
    FLOATS[:1] + FLOATS[2:], IMAGE, special=False)  # fmt: skip
row("linear", lambda x: F.interpolate(x, 13, mode="linear", align_corners=True), 1,
    FLOATS[:1] + FLOATS[2:], IMAGE, special=False)  # fmt: skip
row("unfold_windows", lambda x: F.unfold(x[None], (2, 3), padding=1, stride=2), 1, FLOATS, IMAGE)
row("channel_shuffle", lambda x: F.channel_shuffle(x.reshape(1, 6, 4, 4), 3), 1, FLOATS, IMAGE)
row("pixel_shuffle", lambda x: F.pixel_shuffle(x.reshape(8, 3, 4), 2), 1, ALL, IMAGE)
row("layer_norm", lambda x: F.layer_norm(x, x.shape[1:]), 1, FLOATS, IMAGE, special=False)
row("group_norm", lambda x: F.group_norm(x[None], 2), 1, FLOATS[:2], IMAGE, special=False)
row("batch_norm", lambda x: F.batch_norm(x, x[0, :, 0], x[0, :, 1].abs()), 1, FLOATS[:2], IMAGE,
    special=False)  # fmt: skip
row("rms_norm", lambda x: F.rms_norm(x, (8,)), 1, FLOATS, IMAGE, special=False)

for _f in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss,
           F.binary_cross_entropy_with_logits, F.soft_margin_loss):  # fmt: skip
    row(_f.__name__, _f, 2, FLOATS[:2], MATRIX, special=False)
row("cross_entropy", lambda x: F.cross_entropy(x, torch.tensor([0, -100, 3])), 1, FLOATS, MATRIX,
    special=False)  # fmt: skip
row("cross_entropy_weighted", lambda x: F.cross_entropy(x, torch.tensor([0, 2, 3]), x[0].abs()),
    1, FLOATS[:2], MATRIX, special=False)  # fmt: skip


def _assign(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[1:, ::2] = x[:2, 1:3]
    y[0] = 1
    y.diagonal().fill_(0)
    return y


def _assign_where(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[x > 0] = 5
    return y
