"""heapq and bisect, written in Python so that the interpreter runs them: comparisons may be the
user's.

Each compares and moves items as its namesake, so that equal items end up where it leaves them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def heappush(heap: list[Any], item: Any) -> None:
    heap.append(item)
    _towards_root(heap, 0, len(heap) - 1)


def heappop(heap: list[Any]) -> Any:
    if not heap:
        raise IndexError("index out of range")
    last = heap.pop()
    if not heap:
        return last
    first = heap[0]
    heap[0] = last
    _towards_leaves(heap, 0)
    return first


def heapreplace(heap: list[Any], item: Any) -> Any:
    if not heap:
        raise IndexError("index out of range")
    first = heap[0]
    heap[0] = item
    _towards_leaves(heap, 0)
    return first


def heappushpop(heap: list[Any], item: Any) -> Any:
    if heap and heap[0] < item:
        item, heap[0] = heap[0], item
        _towards_leaves(heap, 0)
    return item


def heapify(heap: list[Any]) -> None:
    for at in range(len(heap) // 2 - 1, -1, -1):
        _towards_leaves(heap, at)


def _towards_root(heap: list[Any], top: int, at: int) -> None:
    item = heap[at]
    while at > top:
        above = (at - 1) // 2
        if not item < heap[above]:
            break
        heap[at] = heap[above]
        at = above
    heap[at] = item


def _towards_leaves(heap: list[Any], at: int) -> None:
    """The smaller child moves up all the way down; then the item goes up to its place."""
    top, end = at, len(heap)
    item = heap[at]
    child = 2 * at + 1
    while child < end:
        if child + 1 < end and not heap[child] < heap[child + 1]:
            child += 1
        heap[at] = heap[child]
        at = child
        child = 2 * at + 1
    heap[at] = item
    _towards_root(heap, top, at)


def nsmallest(n: int, iterable: Any, key: Any = None) -> list[Any]:
    return sorted(iterable, key=key)[: max(n, 0)]


def nlargest(n: int, iterable: Any, key: Any = None) -> list[Any]:
    return sorted(iterable, key=key, reverse=True)[: max(n, 0)]


def merge(*iterables: Any, key: Any = None, reverse: bool = False) -> Iterator[Any]:
    """Of equal items, those of earlier iterables come first."""
    heads = []
    for iterable in iterables:
        it = iter(iterable)
        for item in it:
            heads.append([item if key is None else key(item), item, it])
            break
    while heads:
        best = 0
        for i in range(1, len(heads)):
            if heads[best][0] < heads[i][0] if reverse else heads[i][0] < heads[best][0]:
                best = i
        _, item, it = heads[best]
        yield item
        for item in it:
            heads[best] = [item if key is None else key(item), item, it]
            break
        else:
            del heads[best]


def bisect_right(a: Any, x: Any, lo: int = 0, hi: Any = None, *, key: Any = None) -> int:
    if lo < 0:
        raise ValueError("lo must be non-negative")
    end = len(a) if hi is None else hi
    while lo < end:
        middle = (lo + end) // 2
        if x < (a[middle] if key is None else key(a[middle])):
            end = middle
        else:
            lo = middle + 1
    return lo


def bisect_left(a: Any, x: Any, lo: int = 0, hi: Any = None, *, key: Any = None) -> int:
    if lo < 0:
        raise ValueError("lo must be non-negative")
    end = len(a) if hi is None else hi
    while lo < end:
        middle = (lo + end) // 2
        if (a[middle] if key is None else key(a[middle])) < x:
            lo = middle + 1
        else:
            end = middle
    return lo


def insort_right(a: Any, x: Any, lo: int = 0, hi: Any = None, *, key: Any = None) -> None:
    a.insert(bisect_right(a, x if key is None else key(x), lo, hi, key=key), x)


def insort_left(a: Any, x: Any, lo: int = 0, hi: Any = None, *, key: Any = None) -> None:
    a.insert(bisect_left(a, x if key is None else key(x), lo, hi, key=key), x)


def substitute(pieces: Any, function: Any) -> str:
    """re.sub with a function: `pieces` are texts and the matches between them."""
    out = []
    for piece in pieces:
        out.append(piece if isinstance(piece, str) else function(piece))
    return "".join(out)
