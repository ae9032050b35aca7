"""The operator database with gradients: results and gradients, eager and compiled.

As in op_db, all samples of one operator are calls in one function; its backward is one call too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from op_db import (
    SEED,
    Outcome,
    Sample,
    Writer,
    as_near,
    clone,
    in_f64,
    laid_out,
    reasons,
    short,
)
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo

import torchweld
from torchweld.pipeline import STATISTICS
from torchweld.workbench.compare import Difference, differences, tensors

# sums of a gradient are taken in another order than in eager
SCALE = 10.0


def leaves(value: Any, like: Any) -> Any:
    """A copy of the arguments in which the same tensors require grad as in `like`."""
    if isinstance(value, torch.Tensor):
        own = clone(value.detach())
        return own.requires_grad_(like.requires_grad) if like.requires_grad else own
    if type(value) in (tuple, list):
        return type(value)(leaves(v, w) for v, w in zip(value, like, strict=True))
    if type(value) is dict:
        return {k: leaves(v, like[k]) for k, v in value.items()}
    return value


def samples_of(op: Any, dtype: torch.dtype, limit: int, device: str) -> Iterator[Sample]:
    """The entry's own samples, non-contiguous forms of some, and 0-d and empty ones."""
    torch.manual_seed(SEED)
    own = list(islice(op.sample_inputs(device, dtype, requires_grad=True), limit))
    yield from laid_out(own, limit)
    if isinstance(op, (UnaryUfuncInfo, BinaryUfuncInfo, ReductionOpInfo)) and own:
        s = own[0]
        for shape in ((), (0,), (1, 7, 1)):
            yield Sample(_reshaped((s.input, *s.args), shape), s.kwargs)


def _reshaped(args: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[Any, ...]:
    def one(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return x.detach().new_full(shape, 0.7).requires_grad_(x.requires_grad)

    return tuple(map(one, args))


@dataclass
class Left:
    """What a call and its backward leave. gradients: of every tensor argument, in order."""

    results: list[Any]
    gradients: list[torch.Tensor | None]


def run(fn: Any, given: list[torch.Tensor]) -> Left:
    torch.manual_seed(SEED)
    results = list(fn(*given))
    ends = [t for t in tensors(results) if t.requires_grad]
    torch.manual_seed(SEED + 1)
    torch.autograd.backward(ends, [_tangent(t) for t in ends])
    return Left(results, [x.grad if x.is_leaf else None for x in given])


def _tangent(x: torch.Tensor) -> torch.Tensor:
    """A random gradient: the same numbers for a result in bf16 and in f64."""
    if x.is_complex():
        return torch.randn_like(x)
    return torch.randn(x.shape, device=x.device).bfloat16().to(x.dtype)


def runs_eagerly(op: Any, sample: Sample) -> bool:
    """Whether eager accepts the sample, and something of it requires grad."""
    try:
        writer = Writer(op)
        writer.add(sample)
        left = run(writer.function(), leaves(writer.tensors, writer.tensors))
    except Exception:
        return False
    return any(t.requires_grad for t in tensors(left.results))


def attempt(op: Any, samples: list[Sample]) -> tuple[list[list[Difference]], str]:
    """Differences per sample, and the reason if something did not run compiled ("" if all did)."""
    writer, ends = Writer(op), []
    for sample in samples:
        writer.add(sample)
        ends.append(len(writer.tensors))
    fn = writer.function()
    want = run(fn, leaves(writer.tensors, writer.tensors))
    torchweld.reset()
    try:
        got = run(torchweld.compile(fn), leaves(writer.tensors, writer.tensors))
    except Exception as error:
        text = f"{type(error).__name__}: {error}".split("\n")[0]
        return [[Difference("raised", "", text)] for _ in samples], "raised"
    found = []
    for i, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        here = differences(got.results[i], want.results[i])
        here += differences(got.gradients[begin:end], want.gradients[begin:end], scale=SCALE)
        if here and _nearer(op, samples[i], got, want, i, slice(begin, end)):
            here = []
        found.append(here)
    why = reasons()
    unbuilt = any(c.differentiable and not c.backwards for c in STATISTICS.compiled)
    return found, short(why[0]) if why else "backward in ATen" * unbuilt


def _nearer(op: Any, sample: Sample, got: Left, want: Left, i: int, own: slice) -> bool:
    """Whether all that differs between bf16 results and gradients is at least as near to f64's as
    eager's is (see op_db)."""
    writer = Writer(op)
    writer.add(sample)
    try:
        exact = run(writer.function(), leaves(in_f64(writer.tensors), writer.tensors))
    except Exception:
        return False
    parts = [tensors((left.results[at], left.gradients[some])) for left, at, some in (
        (got, i, own), (want, i, own), (exact, 0, slice(None)))]  # fmt: skip
    return len({len(p) for p in parts}) == 1 and all(map(as_near, *parts))


def check(op: Any, dtype: torch.dtype, limit: int, device: str = "cpu") -> Outcome:
    """Run all samples of one operator and dtype that have gradients."""
    out = Outcome(op.formatted_name, str(dtype).removeprefix("torch."))
    if not op.supports_autograd:
        return out
    samples = [s for s in samples_of(op, dtype, limit, device) if runs_eagerly(op.op, s)]
    if samples:
        _count(op, samples, out)
    return out


def _count(op: Any, samples: list[Sample], out: Outcome) -> None:
    found, reason = attempt(op.op, samples)
    if len(samples) > 1 and (reason or any(found)):
        for sample in samples:
            _count(op, [sample], out)
        return
    out.add(samples, found, reason)
