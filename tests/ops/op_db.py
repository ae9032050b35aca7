"""torch's own operator database against the compiler: each entry's samples, eager and compiled.

All samples of one operator and dtype are calls in one generated function, so that one compile
serves them all; what does not come through whole is compiled again call by call.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations as invocations
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo

import torchweld
from torchweld.base.errors import Refusal
from torchweld.pipeline import STATISTICS
from torchweld.workbench.compare import TOLERANCE, Difference, differences, tensors

# The database calls some operators through a function that saves and restores the generator in ways
# no program would; here both sides are seeded by `attempt`.
invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
SEED = 3
# operators whose values are whatever was in memory: dtype, shape and strides are compared
UNINITIALIZED = frozenset(("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty",
                           "new_empty_strided"))  # fmt: skip
# operators that answer with uninitialized memory where an argument is NaN (torch 2.13: two calls
# with the same arguments give different numbers), so that there is nothing to compare
UNDEFINED_FOR_NAN = frozenset(
    f"special.{shifted}chebyshev_polynomial_{kind}" for shifted in ("", "shifted_") for kind in "uw"
)


@dataclass(frozen=True)
class Sample:
    """Arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass
class Outcome:
    """What became of the samples of one operator and dtype.

    generated: of the matched ones, those whose graph ran at least one generated kernel.
    """

    op: str
    dtype: str
    samples: int = 0
    matched: int = 0
    generated: int = 0
    fell_back: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def add(self, samples: list[Sample], found: list[list[Difference]], reason: str) -> None:
        """Count samples that were tried together, with what differs in each."""
        self.samples += len(samples)
        for sample, wrong in zip(samples, found, strict=True):
            if wrong:
                shapes = [tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in sample.args]
                self.wrong.append(f"{wrong[0]} args={shapes} kwargs={sample.kwargs}"[:300])
            elif reason:
                self.fell_back += 1
                self.reasons[reason] = self.reasons.get(reason, 0) + 1
            else:
                self.matched += 1
                self.generated += STATISTICS.kernels > 0


def clone(value: Any) -> Any:
    """A copy that shares no memory, over a storage of the same size, offset and strides."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            return value.clone()
        storage = value.untyped_storage().clone()
        fresh = torch.empty(0, dtype=value.dtype, device=value.device)
        return fresh.set_(storage, value.storage_offset(), value.shape, value.stride())
    if type(value) in (tuple, list):
        return type(value)(map(clone, value))
    if type(value) is dict:
        return {k: clone(v) for k, v in value.items()}
    return value


def _special(x: Any) -> Any:
    """The same tensor with NaN, infinities and zeros of both signs among its elements."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.numel() < 8:
        return x
    y = x.clone().flatten()
    y[:5] = y.new_tensor([math.nan, math.inf, -math.inf, 0.0, -0.0])
    return y.reshape(x.shape)


def _reshaped(args: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[Any, ...]:
    def one(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return x.new_ones(shape)

    return tuple(map(one, args))


def laid_out(own: list[Any], limit: int) -> Iterator[Sample]:
    """Samples as the entry gives them, and some of them in non-contiguous memory."""
    for s in own:
        yield Sample((s.input, *s.args), s.kwargs)
    for s in own[: max(1, limit // 4)]:
        if all(x.layout == torch.strided for x in tensors((s.input, s.args, s.kwargs))):
            other = s.noncontiguous()
            yield Sample((other.input, *other.args), other.kwargs)


def samples_of(op: Any, dtype: torch.dtype, limit: int, device: str) -> Iterator[Sample]:
    """The entry's own samples, non-contiguous forms of some, and 0-d, empty and special ones."""
    torch.manual_seed(SEED)
    own = list(islice(op.sample_inputs(device, dtype, requires_grad=False), limit))
    yield from laid_out(own, limit)
    if isinstance(op, (UnaryUfuncInfo, BinaryUfuncInfo)) and own:
        s = own[0]
        for shape in ((), (0,), (2, 0, 3), (1, 7, 1)):
            yield Sample(_reshaped((s.input, *s.args), shape), s.kwargs)
    special = isinstance(op, (UnaryUfuncInfo, BinaryUfuncInfo, ReductionOpInfo))
    if special and op.name not in UNDEFINED_FOR_NAN:
        for s in own[:4]:
            yield Sample(tuple(map(_special, (s.input, *s.args))), s.kwargs)


class Writer:
    """Writes a function of tensors that makes one call per sample."""

    def __init__(self, op: Any) -> None:
        self.scope: dict[str, Any] = {"op": op}
        self.tensors: list[torch.Tensor] = []
        self.calls: list[str] = []

    def render(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            return f"t{len(self.tensors) - 1}"
        if type(value) in (tuple, list):
            inner = "".join(self.render(v) + ", " for v in value)
            return f"({inner})" if type(value) is tuple else f"[{inner}]"
        if type(value) is dict:
            return "{" + ", ".join(f"{k!r}: {self.render(v)}" for k, v in value.items()) + "}"
        name = f"c{len(self.scope)}"
        self.scope[name] = value
        return name

    def add(self, sample: Sample) -> None:
        parts = [self.render(a) for a in sample.args]
        parts += [f"{k}={self.render(v)}" for k, v in sample.kwargs.items()]
        self.calls.append(f"op({', '.join(parts)})")

    def function(self) -> Any:
        names = "".join(f"t{i}, " for i in range(len(self.tensors)))
        body = "".join(f"        {call},\n" for call in self.calls)
        exec(f"def batch({names}):\n    return (\n{body}    )\n", self.scope)
        return self.scope["batch"]


def runs_eagerly(op: Any, sample: Sample) -> bool:
    """Whether eager accepts the sample at all."""
    try:
        op(*clone(sample.args), **clone(sample.kwargs))
    except Exception:
        return False
    return True


def reasons() -> list[Refusal]:
    found = list(STATISTICS.refusals)
    found += [c.refusal for c in STATISTICS.compiled if c.refusal is not None]
    return found


def attempt(op: Any, samples: list[Sample], name: str) -> tuple[list[list[Difference]], str]:
    """Differences per sample, and the reason if something did not run compiled ("" if all did)."""
    writer = Writer(op)
    for sample in samples:
        writer.add(sample)
    fn = writer.function()
    mine, theirs = clone(writer.tensors), clone(writer.tensors)
    torch.manual_seed(SEED)
    want = fn(*theirs)
    torchweld.reset()
    torch.manual_seed(SEED)
    try:
        got = torchweld.compile(fn)(*mine)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".split("\n")[0]
        return [[Difference("raised", "", text)] for _ in samples], "raised"
    found = [_compare(g, w, name) for g, w in zip(got, want, strict=True)]
    for i, sample in enumerate(samples):
        if found[i] and _nearer(op, sample, got[i], want[i]):
            found[i] = []
    if not any(found) and differences(mine, theirs):
        found = [[Difference("values", "inputs", "changed otherwise than in eager")]] * len(found)
    why = reasons()
    return found, short(why[0]) if why else ""


def _compare(got: Any, want: Any, name: str) -> list[Difference]:
    found = differences(got, want, strides=True)
    if name in UNINITIALIZED:
        found = [d for d in found if d.kind not in ("values", "nan")]
    return found


def _nearer(op: Any, sample: Sample, got: Any, want: Any) -> bool:
    """Whether all that differs between bf16 results is at least as near to f64's as eager's is.

    Eager's bf16 is not one function: the same elements give other results in a vector than in its
    remainder, and in another layout. Thus fmod of 3 by 1e-38 is NaN in a vector, since the
    quotient overflows, and right beside it. Such an element has no result that could be met.
    """
    if any(d.kind not in ("values", "nan") for d in differences(got, want, strides=True)):
        return False
    try:
        torch.manual_seed(SEED)
        exact = op(*in_f64(sample.args), **in_f64(sample.kwargs))
    except Exception:
        return False
    parts = [tensors(x) for x in (got, want, exact)]
    if len({len(p) for p in parts}) != 1:
        return False
    return all(map(as_near, *parts))


def in_f64(value: Any) -> Any:
    """The arguments, copied, with f64 in the place of bf16."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.dtype == torch.bfloat16 else clone(value)
    if type(value) in (tuple, list):
        return type(value)(map(in_f64, value))
    if type(value) is dict:
        return {k: in_f64(v) for k, v in value.items()}
    return torch.float64 if value is torch.bfloat16 else value


def as_near(got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor) -> bool:
    if not differences(got, want):
        return True
    if got.dtype != torch.bfloat16 or exact.dtype != torch.float64 or got.shape != exact.shape:
        return False
    rtol, atol = TOLERANCE[torch.bfloat16]
    a, b = got.double(), want.double()
    off = ~torch.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
    a, b, exact = a[off], b[off], exact[off]
    near = (a - exact).abs() <= (b - exact).abs()
    right = torch.isclose(a, exact, rtol=rtol, atol=atol, equal_nan=True)
    return bool((near | (right & b.isnan())).all())


def short(why: Refusal) -> str:
    return f"{why.code} {why.why}".split("\n")[0][:120]


def check(op: Any, dtype: torch.dtype, limit: int, device: str = "cpu") -> Outcome:
    """Run all samples of one operator and dtype under no_grad."""
    out = Outcome(op.formatted_name, str(dtype).removeprefix("torch."))
    with torch.no_grad():
        samples = [s for s in samples_of(op, dtype, limit, device) if runs_eagerly(op.op, s)]
        if samples:
            _count(op, samples, out)
    return out


def _count(op: Any, samples: list[Sample], out: Outcome) -> None:
    """Add the samples' outcomes: as one batch, or one by one if the batch is not clean."""
    found, reason = attempt(op.op, samples, op.name)
    if len(samples) > 1 and (reason or any(found)):
        for sample in samples:
            _count(op, [sample], out)
        return
    out.add(samples, found, reason)


def entries(names: Iterable[str] = (), device: str = "cpu") -> list[tuple[Any, torch.dtype]]:
    """All operators and dtypes that the device supports, in the order of the database."""
    wanted = set(names)
    return [
        (op, dtype)
        for op in invocations.op_db
        if not wanted or op.name in wanted or op.formatted_name in wanted
        for dtype in DTYPES
        if op.supports_dtype(dtype, device)
    ]
