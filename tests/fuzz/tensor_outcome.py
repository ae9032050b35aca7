"""What a call of a tensor program did, and how two of them differ."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from tests.fuzz.tensor_inputs import Traits, arguments
from torch import Tensor

CLOSE = (1e-4, 1e-5)
HALVES = (torch.bfloat16, torch.float16)


def outcome(fn: Callable[..., Any], seed: int, call: int, traits: Traits,
            wide: bool = False) -> dict[str, Any]:  # fmt: skip
    """Results, arguments after the call, gradients, or the error. wide: computed in f64."""
    args, leaves = arguments(seed, call, traits)
    if wide:
        args = [x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in args]
    grad = call < 2 or call == 3
    torch.manual_seed(call)
    with warnings.catch_warnings(), torch.set_grad_enabled(grad):
        warnings.simplefilter("ignore")
        try:
            result = fn(*args)
        except Exception as error:
            return {"error": type(error).__name__, "said": str(error)[:200]}
        outs = list(result) if isinstance(result, tuple) else [result]
        seen = [x for x in (*args, *outs) if isinstance(x, Tensor)]
        done: dict[str, Any] = {"args": [describe(x, seen) for x in args]}
        done["outs"] = [describe(x, seen) for x in outs]
        done["gradients"] = gradients(outs + args, leaves, traits.twice) if grad else []
    return done


def describe(x: Any, seen: list[Tensor]) -> Any:
    """A tensor as data: what can be asked of it, and whose memory it shares."""
    if not isinstance(x, Tensor):
        return repr(x)
    steps = [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1] if x.numel() else []
    try:
        leaf = x.is_leaf
    except RuntimeError:  # a view from no_grad of something that was written later
        leaf = True
    facts = (str(x.dtype), tuple(x.shape), steps, x.requires_grad, leaf)
    same = next(k for k, y in enumerate(seen) if y is x)
    shares = 0, 0
    if x.numel():
        where = x.untyped_storage().data_ptr()
        first = next(k for k, y in enumerate(seen)
                     if y.numel() and y.untyped_storage().data_ptr() == where)  # fmt: skip
        shares = first, x.data_ptr() - seen[first].data_ptr()
    return facts, same, shares, x.detach().clone()


def gradients(found: list[Any], leaves: list[Tensor], twice: bool) -> Any:
    """The gradients of the leaves after a backward from everything that was found, or from what
    these gradients are."""
    ends = [x for x in found if isinstance(x, Tensor) and x.requires_grad]
    if not ends or not leaves:
        return []
    try:
        totals = [weighed(x) for x in ends]
        if twice:
            first = torch.autograd.grad(totals, leaves, create_graph=True, allow_unused=True)
            totals = [weighed(g) for g in first if g is not None and g.requires_grad]
        if totals:
            torch.autograd.backward(totals)
    except RuntimeError as error:
        return type(error).__name__
    return [None if x.grad is None else (str(x.grad.dtype), tuple(x.grad.shape), x.grad.clone())
            for x in leaves]  # fmt: skip


def weighed(x: Tensor) -> Tensor:
    weights = torch.arange(x.numel(), dtype=torch.float64).cos().reshape(x.shape)
    return ((x.real + x.imag if x.is_complex() else x) * weights).sum()


def tensors(x: Any) -> list[Tensor]:
    """The tensors in an outcome, in order."""
    if isinstance(x, Tensor):
        return [x]
    items = x.values() if isinstance(x, dict) else x if isinstance(x, list | tuple) else ()
    return [t for item in items for t in tensors(item)]


def facts(x: Any) -> Any:
    """An outcome without the elements of its tensors."""
    if isinstance(x, Tensor):
        return "tensor"
    if isinstance(x, dict):
        return {k: facts(v) for k, v in x.items() if k != "said"}
    return [facts(v) for v in x] if isinstance(x, list | tuple) else x


def difference(got: Any, want: Any, wide: Callable[[], Any]) -> str:
    """How two outcomes differ, or "". wide: eager's in f64, which decides about rounding."""
    if (a := facts(got)) != (b := facts(want)):
        return f"facts: {_parts(a, b)}"
    pairs = list(zip(tensors(got), tensors(want), strict=True))
    bad = [k for k, (x, y) in enumerate(pairs) if not is_close(x, y)]
    if not bad:
        return ""
    exact = tensors(wide())
    for k in bad:
        x, y = pairs[k]
        if len(exact) != len(pairs) or exact[k].shape != y.shape:
            return f"tensor {k}, and f64 does something else: {x} is {y}"
        # of few elements, eager's error may be small by chance
        times = 4 if y.numel() > 16 else 16
        allowed = times * _error(y, exact[k]) + 1e-5 * _size(exact[k])
        if not (y.is_floating_point() or y.is_complex()) or not _error(x, exact[k]) <= allowed:
            return f"tensor {k}: {x} is {y} (f64: {exact[k]})"
    return ""


def _parts(a: Any, b: Any, where: str = "") -> str:
    """The innermost place where facts differ."""
    if type(a) is type(b) and isinstance(a, dict) and a.keys() == b.keys():
        a, b = list(a.values()), list(b.values())
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return next(_parts(p, q, f"{where}.{k}") for k, (p, q) in enumerate(zip(a, b, strict=True))
                    if p != q)  # fmt: skip
    return f"{where}: {a} is {b}"


def is_close(x: Tensor, y: Tensor) -> bool:
    if x.is_floating_point() or x.is_complex():
        rtol, atol = (2e-2, 1e-2) if y.dtype in HALVES else CLOSE
        return torch.allclose(x, y, rtol, atol, equal_nan=True)
    return torch.equal(x, y)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def _size(x: Tensor) -> float:
    return float(_wide(x).abs().max()) if x.numel() else 0.0


def _error(x: Tensor, exact: Tensor) -> float:
    return float((_wide(x) - _wide(exact)).abs().nan_to_num(0).max()) if x.numel() else 0.0
