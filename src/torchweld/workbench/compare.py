"""Does a result equal eager's: values, dtype, shape, strides, structure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

# relative and absolute; sums may be added up in another order, so f32 is not exact
TOLERANCE: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-10, 1e-10),
    torch.float32: (2e-5, 2e-5),
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (1.6e-2, 1.6e-2),
    torch.float8_e4m3fn: (0.13, 2.0**-9),  # one step, where f32 before it was not exact
    torch.float8_e5m2: (0.26, 2.0**-16),
    torch.complex128: (1e-10, 1e-10),
    torch.complex64: (2e-5, 2e-5),
}
_LEAVES = (torch.Tensor, bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where two results differ. kind: structure, dtype, shape, device, strides, nan,
    values.
    """

    kind: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where or 'result'}: {self.kind}: {self.text}"


def leaves(tree: object, where: str = "") -> Iterator[tuple[str, object]]:
    """The tensors and plain values in a result, each with the path that leads to it.

    Containers, and objects by their attributes (a key-value cache is one).
    """
    if isinstance(tree, _LEAVES):
        yield where, tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from leaves(value, f"{where}[{key!r}]")
    elif isinstance(tree, list | tuple | set | frozenset):
        for i, value in enumerate(tree):
            yield from leaves(value, f"{where}[{i}]")
    elif hasattr(tree, "__dict__") and not isinstance(tree, (type, torch.nn.Module)):
        for name, value in vars(tree).items():
            if not callable(value):
                yield from leaves(value, f"{where}.{name}")
    else:
        yield where, type(tree).__name__


def tensors(tree: object) -> list[torch.Tensor]:
    """The tensors in a result, in order."""
    return [leaf for _, leaf in leaves(tree) if isinstance(leaf, torch.Tensor)]


def largest_difference(got: object, want: object) -> float:
    """The largest absolute difference between two results of one structure; NaN equals NaN."""
    largest = 0.0
    for a, b in zip(tensors(got), tensors(want), strict=True):
        if a.shape != b.shape:
            return float("inf")
        if a.numel() == 0:
            continue
        x, y = _wide(a), _wide(b)
        gap = (x - y).abs()
        gap[(x == y) | (x.isnan() & y.isnan())] = 0.0
        found = float(gap.max())
        largest = max(largest, float("inf") if found != found else found)
    return largest


def differences(
    got: object, want: object, *, scale: float = 1.0, strides: bool = False
) -> list[Difference]:
    """Where `got` differs from `want` by more than the dtype allows, times `scale`."""
    mine, theirs = list(leaves(got)), list(leaves(want))
    if [w for w, _ in mine] != [w for w, _ in theirs]:
        text = f"{len(mine)} leaves, eager has {len(theirs)}"
        return [Difference("structure", "", text)]
    found: list[Difference] = []
    for (where, a), (_, b) in zip(mine, theirs, strict=True):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            found += _tensor(where, a, b, scale, strides)
        elif type(a) is not type(b) or not _same_atom(a, b):
            found.append(Difference("structure", where, f"{a!r}, eager {b!r}"))
    return found


def _same_atom(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (a != a and b != b) or abs(a - b) <= 1e-6 * abs(b)
    return bool(a == b)


def _tensor(
    where: str, a: torch.Tensor, b: torch.Tensor, scale: float, strides: bool
) -> list[Difference]:
    if a.dtype != b.dtype:
        return [Difference("dtype", where, f"{a.dtype}, eager {b.dtype}")]
    if a.shape != b.shape:
        return [Difference("shape", where, f"{tuple(a.shape)}, eager {tuple(b.shape)}")]
    if a.device != b.device:
        return [Difference("device", where, f"{a.device}, eager {b.device}")]
    if a.layout != torch.strided or b.layout != torch.strided:
        same = a.layout == b.layout and bool(torch.equal(a.to_dense(), b.to_dense()))
        return [] if same else [Difference("values", where, f"{a.layout}, eager {b.layout}")]
    if strides and seen_strides(a) != seen_strides(b):
        return [Difference("strides", where, f"{a.stride()}, eager {b.stride()}")]
    return _values(where, a, b, scale)


def seen_strides(x: torch.Tensor) -> list[int]:
    """The strides that decide where elements are: those of axes with more than one element."""
    if x.numel() == 0:
        return []
    return [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1]


def _values(where: str, a: torch.Tensor, b: torch.Tensor, scale: float) -> list[Difference]:
    tolerance = TOLERANCE.get(b.dtype)
    if tolerance is None:
        if bool(torch.equal(a.detach(), b.detach())):
            return []
        return [Difference("values", where, f"largest difference {largest_difference(a, b):g}")]
    x, y = _wide(a), _wide(b)
    if not bool(torch.equal(x.isnan(), y.isnan())):
        return [Difference("nan", where, "NaN in other places than eager")]
    rtol, atol = tolerance
    if bool(torch.isclose(x, y, rtol=rtol * scale, atol=atol * scale, equal_nan=True).all()):
        return []
    return [Difference("values", where, f"largest difference {largest_difference(a, b):g}")]


def _wide(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().resolve_conj().resolve_neg()
    if x.is_complex():
        return x.to(torch.complex128)
    return x.to(torch.float64)
