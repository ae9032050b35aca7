"""Built-in functions that call user code, written in Python so that the interpreter runs them.

Each behaves as its namesake; being interpreted, a callback that must be inlined just is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_MISSING = object()


def map_(fn: Any, *iterables: Any) -> Iterator[Any]:
    if len(iterables) == 1:
        for x in iterables[0]:
            yield fn(x)
        return
    for args in zip_(*iterables):
        yield fn(*args)


def filter_(fn: Any, iterable: Any) -> Iterator[Any]:
    for x in iterable:
        if (x if fn is None else fn(x)):
            yield x


def zip_(*iterables: Any, strict: bool = False) -> Iterator[Any]:
    iterators = [iter(it) for it in iterables]
    if not iterators:
        return
    while True:
        row = []
        for i, it in enumerate_(iterators):
            item = next(it, _MISSING)
            if item is _MISSING:
                if strict:
                    if i > 0:
                        raise ValueError(f"zip() argument {i + 1} is shorter than argument {i}")
                    for j in range(1, len(iterators)):
                        if next(iterators[j], _MISSING) is not _MISSING:
                            raise ValueError(f"zip() argument {j + 1} is longer than argument {j}")
                return
            row.append(item)
        yield tuple(row)


def enumerate_(iterable: Any, start: int = 0) -> Iterator[Any]:
    n = start
    for x in iterable:
        yield n, x
        n += 1


def reversed_(sequence: Any) -> Iterator[Any]:
    n = len(sequence)
    while n > 0:
        n -= 1
        yield sequence[n]


def list_(iterable: Any) -> list[Any]:
    out = []
    for x in iterable:
        out.append(x)
    return out


def extend_(box: list[Any], iterable: Any) -> None:
    for x in iterable:
        box.append(x)


def set_update(box: set[Any], *iterables: Any) -> None:
    for iterable in iterables:
        for x in iterable:
            box.add(x)


def dict_update(box: dict[Any, Any], pairs: Any) -> None:
    for pair in pairs:
        key, value = pair
        box[key] = value


def dict_update_mapping(box: dict[Any, Any], mapping: Any) -> None:
    for key in mapping.keys():
        box[key] = mapping[key]


def sum_(iterable: Any, start: Any = 0) -> Any:
    total = start
    for x in iterable:
        total = total + x
    return total


def any_(iterable: Any) -> bool:
    for x in iterable:
        if x:
            return True
    return False


def all_(iterable: Any) -> bool:
    for x in iterable:
        if not x:
            return False
    return True


def extreme(iterable: Any, key: Any, default: Any, missing: Any, larger: bool) -> Any:
    best: Any = missing
    best_key: Any = None
    for x in iterable:
        k = x if key is None else key(x)
        if best is missing or (k > best_key if larger else k < best_key):
            best, best_key = x, k
    if best is missing:
        if default is missing:
            raise ValueError(("max" if larger else "min") + "() iterable argument is empty")
        return default
    return best


def sorted_(iterable: Any, key: Any = None, reverse: bool = False) -> list[Any]:
    """Insertion sort: stable, and comparisons are the user's."""
    out: list[Any] = []
    keys: list[Any] = []
    for x in iterable:
        k = x if key is None else key(x)
        at = len(out)
        while at > 0 and (keys[at - 1] < k if reverse else k < keys[at - 1]):
            at -= 1
        out.insert(at, x)
        keys.insert(at, k)
    return out


def reduce_(fn: Any, iterable: Any, *initial: Any) -> Any:
    it = iter(iterable)
    if initial:
        total = initial[0]
    else:
        total = next(it, _MISSING)
        if total is _MISSING:
            raise TypeError("reduce() of empty iterable with no initial value")
    for x in it:
        total = fn(total, x)
    return total


def chain_(*iterables: Any) -> Iterator[Any]:
    for iterable in iterables:
        yield from iterable


def chain_from_iterable(iterables: Any) -> Iterator[Any]:
    for iterable in iterables:
        yield from iterable


def islice_(iterable: Any, *bounds: Any) -> Iterator[Any]:
    start, stop, step = 0, None, 1
    if len(bounds) == 1:
        stop = bounds[0]
    else:
        start = bounds[0] or 0
        stop = bounds[1]
        if len(bounds) > 2:
            step = bounds[2] or 1
    at = 0
    wanted = start
    it = iter(iterable)
    while stop is None or at < stop:
        item = next(it, _MISSING)
        if item is _MISSING:
            return
        if at == wanted:
            yield item
            wanted += step
        at += 1


def pairwise_(iterable: Any) -> Iterator[Any]:
    before: Any = _MISSING
    for x in iterable:
        if before is not _MISSING:
            yield before, x
        before = x


def accumulate_(iterable: Any, func: Any = None, *, initial: Any = None) -> Iterator[Any]:
    it = iter(iterable)
    total = initial
    if initial is None:
        total = next(it, _MISSING)
        if total is _MISSING:
            return
    yield total
    for x in it:
        total = total + x if func is None else func(total, x)
        yield total


def zip_longest_(*iterables: Any, fillvalue: Any = None) -> Iterator[Any]:
    iterators = [iter(it) for it in iterables]
    done = [False] * len(iterators)
    while True:
        row = []
        for i, it in enumerate_(iterators):
            item = fillvalue if done[i] else next(it, _MISSING)
            if item is _MISSING:
                done[i] = True
                item = fillvalue
            row.append(item)
        if all_(done):
            return
        yield tuple(row)


def product_(*iterables: Any, repeat: int = 1) -> Iterator[Any]:
    pools = [tuple(it) for it in iterables] * repeat
    rows: list[Any] = [()]
    for pool in pools:
        rows = [(*row, x) for row in rows for x in pool]
    yield from rows


def repeat_(item: Any, times: int) -> Iterator[Any]:
    for _ in range(times):
        yield item


def count_(start: Any = 0, step: Any = 1) -> Iterator[Any]:
    n = start
    while True:
        yield n
        n = n + step


def cycle_(iterable: Any) -> Iterator[Any]:
    kept = []
    for x in iterable:
        yield x
        kept.append(x)
    while kept:
        yield from kept


def starmap_(fn: Any, iterable: Any) -> Iterator[Any]:
    for args in iterable:
        yield fn(*args)


def takewhile_(fn: Any, iterable: Any) -> Iterator[Any]:
    for x in iterable:
        if not fn(x):
            return
        yield x


def dropwhile_(fn: Any, iterable: Any) -> Iterator[Any]:
    dropping = True
    for x in iterable:
        if dropping and fn(x):
            continue
        dropping = False
        yield x


def groupby_(iterable: Any, key: Any = None) -> Iterator[Any]:
    group: list[Any] = []
    current: Any = _MISSING
    for x in iterable:
        k = x if key is None else key(x)
        if current is not _MISSING and k == current:
            group.append(x)
            continue
        if current is not _MISSING:
            yield current, iter(group)
        current, group = k, [x]
    if current is not _MISSING:
        yield current, iter(group)


def dict_fromkeys(keys: Any, value: Any = None) -> dict[Any, Any]:
    return dict.fromkeys(keys, value)


def join_(separator: str, parts: Any) -> str:
    out = ""
    first = True
    for p in parts:
        out = p if first else out + separator + p
        first = False
    return out
