"""Attention with a function of the user's in it, written in Python so that it is interpreted.

The functions compute what torch's do where they are not given to torch.compile.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.attention.flex_attention import _get_mod_type, _ModificationType


def over_positions(fn: Any, *args: Any) -> Any:
    """fn(batch, head, query, key), or fn(score, ...), at all positions: the capture answers it."""
    raise NotImplementedError


def places_of(sizes: Any, device: Any) -> tuple[Any, ...]:
    return tuple([torch.arange(0, n, device=device) for n in sizes])


def create_mask(mod_fn: Any, B: Any, H: Any, Q_LEN: Any, KV_LEN: Any,
                device: Any = None) -> Any:  # fmt: skip
    """torch.nn.attention.flex_attention.create_mask."""
    if device is None:
        device = torch.accelerator.current_accelerator() or "cpu"
    sizes = (1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN)
    places = places_of(sizes, device)
    if _get_mod_type(mod_fn) == _ModificationType.MASK_MOD:
        return over_positions(mod_fn, *places)
    scores = over_positions(mod_fn, torch.zeros(*sizes, device=device), *places)
    return torch.where(torch.isneginf(scores), False, True)


def flex_attention(query: Any, key: Any, value: Any, score_mod: Any, block_mask: Any, scale: Any,
                   kernel_options: Any, score_mod_other_buffers: Any = (),
                   mask_mod_other_buffers: Any = ()) -> Any:  # fmt: skip
    """The result, and in base 2 the logarithms of the sums and the largest scores."""
    kind = query.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        query, key, value = [_cast(x, kind, dtype) for x in (query, key, value)]
        with torch.autocast(kind, enabled=False):
            return _attention(query, key, value, score_mod, block_mask[-1], scale)
    return _attention(query, key, value, score_mod, block_mask[-1], scale)


def _cast(x: Any, kind: str, dtype: Any) -> Any:
    plain = x.is_floating_point() and x.device.type == kind and x.dtype is not torch.float64
    return x.to(dtype) if plain else x


def _attention(query: Any, key: Any, value: Any, score_mod: Any, mask_mod: Any, scale: Any) -> Any:
    groups = query.size(1) // key.size(1)
    if groups != 1:
        key = torch.repeat_interleave(key, groups, dim=1)
        value = torch.repeat_interleave(value, groups, dim=1)
    n = query.size(0)
    if key.size(0) != n:
        if key.size(0) != 1:
            raise RuntimeError(f"Bq and Bkv must broadcast. Got Bq={n} and Bkv={key.size(0)}")
        key, value = key.expand(n, -1, -1, -1), value.expand(n, -1, -1, -1)
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    scores = query.to(dtype) @ key.to(dtype).transpose(-2, -1) * scale
    places = places_of(scores.shape, scores.device)
    kept = over_positions(mask_mod, *places)
    scores = torch.where(kept, over_positions(score_mod, scores, *places), -math.inf)
    largest = torch.amax(scores.detach(), dim=-1)
    empty = largest == -math.inf
    sums = torch.where(empty, -math.inf, torch.logsumexp(scores, dim=-1))
    weights = torch._safe_softmax(scores, dim=-1).to(query.dtype)
    out = laid_out(weights @ value.to(query.dtype), query.stride())
    return out, sums / math.log(2), largest / math.log(2)


def laid_out(x: Any, strides: Any) -> Any:
    """`x` without gaps, its dimensions in the order that these strides have, the last one last."""
    inner = sorted(range(x.dim()), key=lambda d: strides[d])
    if x.size(-1) != 1 and inner[0] != x.dim() - 1 and x.numel() > 0:
        inner = [x.dim() - 1, *[d for d in inner if d != x.dim() - 1]]
    outer = inner[::-1]
    if outer == list(range(x.dim())):
        return x
    back = [outer.index(d) for d in range(x.dim())]
    return x.permute(outer).clone(memory_format=torch.contiguous_format).permute(back)
