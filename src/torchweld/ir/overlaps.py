"""Whether two tensors in one memory have elements in common, so that one is read as it changes.

Sizes that vary count as what they are now: which parts overlap follows from how they were cut.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torchweld.ir.size_node import node_of

_STEPS = 2000  # places that are looked at before two tensors are supposed to overlap
Layout = tuple[int, list[tuple[int, int]]]  # first byte; step and count of each axis


def changes(written: Tensor, read: Tensor, in_order: bool) -> bool:
    """Whether elements that are read may be written before.

    in_order: a kernel that reads an element right before it writes the one at the same position.
    """
    mine, theirs = _layout(written), _layout(read)
    if mine is None or theirs is None or (mine == theirs and in_order):
        return False
    if in_order and _reads_ahead(mine, theirs) and not (_is_dense(mine) and _is_dense(theirs)):
        return False
    return _meet(mine, theirs)


def _layout(x: Tensor) -> Layout | None:
    """Where the bytes of a tensor lie; None if only the data decides that."""
    size = x.element_size()
    numbers = [_now(n) for n in (x.storage_offset(), *x.stride(), *x.shape)]
    if None in numbers:
        return None
    offset, *rest = [n for n in numbers if n is not None]
    axes = list(zip(rest[: x.dim()], rest[x.dim() :], strict=True))
    return offset * size, [(step * size, n) for step, n in axes if n != 1] + [(1, size)]


def _now(n: Any) -> int | None:
    node = node_of(n)
    if node is None:
        return int(n)
    return None if node.is_open() else int(node.hint)


def _reads_ahead(written: Layout, read: Layout) -> bool:
    """Whether kernels, which begin at the front, read every element before they write there."""
    return written[1] == read[1] and written[0] < read[0]


def _is_dense(x: Layout) -> bool:
    """Whether there are no gaps; eager refuses dense tensors that overlap."""
    expected = 1
    for step, n in sorted(x[1]):
        if step != expected:
            return False
        expected *= n
    return True


def _meet(a: Layout, b: Layout) -> bool:
    """Whether some byte belongs to both."""
    if any(n == 0 for _, n in (*a[1], *b[1])):
        return False
    spans: dict[int, tuple[int, int]] = {}
    for sign, (_, axes) in ((1, a), (-1, b)):
        for step, n in axes:
            low, high = spans.get(step, (0, 0))
            spans[step] = (low, high + n - 1) if sign > 0 else (low - n + 1, high)
    steps = sorted((step for step in spans if step), reverse=True)
    reach = [(0, 0)]  # of what the steps from here on can add
    for step in reversed(steps):
        low, high = spans[step]
        reach.insert(0, (reach[0][0] + low * step, reach[0][1] + high * step))
    waiting, looked = [(0, b[0] - a[0])], 0
    while waiting and looked < _STEPS:
        at, distance = waiting.pop()
        looked += 1
        if at == len(steps):
            return True
        step, (low, high), (least, most) = steps[at], spans[steps[at]], reach[at + 1]
        first, last = -((most - distance) // step), (distance - least) // step
        waiting += ((at + 1, distance - k * step)
                    for k in range(max(low, first), min(high, last) + 1))  # fmt: skip
    return bool(waiting)
