# ruff: noqa: SIM110, SIM118
# any() and all() would call themselves here, and a mapping may have keys() without __iter__.
"""Built-in functions that call user code, written in Python so that the interpreter runs them.

Each behaves as its namesake; being interpreted, a callback that must be inlined just is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ContextDecorator
from typing import Any

import torch

_MISSING = object()
_IS_EMPTY = "() iterable argument is empty"
if sys.version_info < (3, 12):
    _IS_EMPTY = "() arg is an empty sequence"


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


def set_update(box: set[Any], *iterables: Any) -> None:
    for iterable in iterables:
        for x in iterable:
            box.add(x)


def dict_update(box: dict[Any, Any], pairs: Any) -> None:
    for n, pair in enumerate_(pairs):
        items = _items_of(pair)
        if items is None:
            what = f"dictionary update sequence element #{n}"
            raise TypeError(f"cannot convert {what} to a sequence")
        if len(items) != 2:
            raise ValueError(f"dictionary update sequence element #{n} has length {len(items)}; "
                             "2 is required")  # fmt: skip
        box[items[0]] = items[1]


def _items_of(pair: Any) -> Any:
    if type(pair) is tuple or type(pair) is list:
        return pair
    try:
        return list(pair)
    except TypeError:
        return None


def dict_update_mapping(box: dict[Any, Any], mapping: Any) -> None:
    for key in mapping.keys():
        box[key] = mapping[key]


def dict_or(left: Any, right: Any) -> dict[Any, Any]:
    """What C makes of a dict whose class says itself what its keys are."""
    out: dict[Any, Any] = {}
    out.update(left)
    out.update(right)
    return out


def sum_(iterable: Any, start: Any = 0) -> Any:
    if isinstance(start, (str, bytes, bytearray)):
        kind, empty = ("strings", "''") if isinstance(start, str) else (type(start).__name__, "b''")
        raise TypeError(f"sum() can't sum {kind} [use {empty}.join(seq) instead]")
    total = start
    for x in iterable:
        total = total + x
    return total


def prod_(iterable: Any, /, *, start: Any = 1) -> Any:
    total = start
    for x in iterable:
        total = total * x
    return total


def sumprod_(left: list[Any], right: list[Any]) -> Any:
    total: Any = 0
    for p, q in zip(left, right, strict=False):
        total = total + p * q
    if len(left) != len(right):
        raise ValueError("Inputs are not the same length")
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
            raise ValueError(("max" if larger else "min") + _IS_EMPTY)
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


def batched_(iterable: Any, n: Any) -> Iterator[Any]:
    if n < 1:
        raise ValueError("n must be at least one")
    return _batches(iter(iterable), n)


def _batches(items: Iterator[Any], n: int) -> Iterator[Any]:
    while True:
        batch: list[Any] = []
        for x in items:
            batch.append(x)
            if len(batch) == n:
                break
        if not batch:
            return
        yield tuple(batch)


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


def by_index(sequence: Any) -> Iterator[Any]:
    """Iteration over a class that has only __getitem__."""
    i = 0
    while True:
        try:
            item = sequence[i]
        except (IndexError, StopIteration):
            return
        yield item
        i += 1


def contains_(container: Any, item: Any) -> bool:
    for x in container:
        if x is item or x == item:
            return True
    return False


def index_(sequence: Any, item: Any, start: int = 0, stop: Any = None) -> Any:
    """The first index, or None."""
    for i, x in enumerate_(sequence):
        if i >= start and (stop is None or i < stop) and (x is item or x == item):
            return i
    return None


def count_of(sequence: Any, item: Any) -> int:
    n = 0
    for x in sequence:
        if x is item or x == item:
            n += 1
    return n


def sequence_equal(a: Any, b: Any) -> bool:
    if len(a) != len(b):
        return False
    for x, y in zip_(a, b):
        if not (x is y or x == y):
            return False
    return True


def dict_equal(a: Any, b: Any) -> bool:
    if len(a) != len(b):
        return False
    for key, x in a.items():
        if key not in b:
            return False
        y = b[key]
        if not (x is y or x == y):
            return False
    return True


def sequence_order(a: Any, b: Any, order: Any) -> Any:
    """order(a, b) of two lists or tuples: decided by the first unequal items, then by length."""
    for x, y in zip_(a, b):
        if not (x is y or x == y):
            return order(x, y)
    return order(len(a), len(b))


def combinations_(iterable: Any, r: int) -> Iterator[Any]:
    pool = tuple(iterable)
    for picked in _choices(len(pool), r, True, False):
        yield tuple([pool[i] for i in picked])


def combinations_with_replacement_(iterable: Any, r: int) -> Iterator[Any]:
    pool = tuple(iterable)
    for picked in _choices(len(pool), r, True, True):
        yield tuple([pool[i] for i in picked])


def permutations_(iterable: Any, r: Any = None) -> Iterator[Any]:
    pool = tuple(iterable)
    for picked in _choices(len(pool), len(pool) if r is None else r, False, False):
        yield tuple([pool[i] for i in picked])


def _choices(n: int, r: int, ordered: bool, repeated: bool) -> list[list[int]]:
    """Index rows in lexicographic order."""
    rows: list[list[int]] = [[]]
    for _ in range(r):
        longer = []
        for row in rows:
            for i in range(n):
                if ordered and row and (i < row[-1] if repeated else i <= row[-1]):
                    continue
                if not ordered and i in row:
                    continue
                longer.append([*row, i])
        rows = longer
    return rows


def compress_(data: Any, selectors: Any) -> Iterator[Any]:
    for x, wanted in zip_(data, selectors):
        if wanted:
            yield x


def filterfalse_(fn: Any, iterable: Any) -> Iterator[Any]:
    for x in iterable:
        if not (x if fn is None else fn(x)):
            yield x


def tee_(iterable: Any, n: int = 2) -> tuple[Any, ...]:
    it = iter(iterable)
    seen: list[Any] = []
    return tuple([_tee_reader(it, seen) for _ in range(n)])


def _tee_reader(it: Any, seen: list[Any]) -> Iterator[Any]:
    at = 0
    while True:
        if at == len(seen):
            item = next(it, _MISSING)
            if item is _MISSING:
                return
            seen.append(item)
        yield seen[at]
        at += 1


def until(fn: Any, sentinel: Any) -> Iterator[Any]:
    """iter(fn, sentinel)."""
    while True:
        item = fn()
        if item == sentinel:
            return
        yield item


class CompareKey:
    """What functools.cmp_to_key makes of an item."""

    def __init__(self, compare: Any, item: Any) -> None:
        self.compare = compare
        self.item = item

    def __lt__(self, other: Any) -> Any:
        return self.compare(self.item, other.item) < 0

    def __gt__(self, other: Any) -> Any:
        return self.compare(self.item, other.item) > 0


class Flags(ContextDecorator):
    """What torch.backends.cudnn.flags and the like give: unlike a generator, it may be there when a
    graph ends inside of its block."""

    def __init__(self, allow: Any, change: Any, given: Any) -> None:
        self.allow, self.change, self.given = allow, change, given

    def __enter__(self) -> None:
        with self.allow():
            self.before = self.change(*self.given)

    def __exit__(self, *_: object) -> None:
        with self.allow():
            self.change(*self.before)


def cmp_to_key_(compare: Any) -> Any:
    return lambda item: CompareKey(compare, item)


def first_items(iterable: Any, n: int) -> list[Any]:
    out: list[Any] = []
    for x in iterable:
        out.append(x)
        if len(out) == n:
            break
    return out


def get_items(obj: Any, given: Any) -> Any:
    """operator.itemgetter(*keys)(obj)."""
    (keys,) = given
    return obj[keys[0]] if len(keys) == 1 else tuple([obj[k] for k in keys])


def get_attrs(obj: Any, given: Any) -> Any:
    """operator.attrgetter(*names)(obj)."""
    (names,) = given
    found = [_get_path(obj, n) for n in names]
    return found[0] if len(found) == 1 else tuple(found)


def _get_path(obj: Any, path: str) -> Any:
    for name in path.split("."):
        obj = getattr(obj, name)
    return obj


def call_method(obj: Any, given: Any) -> Any:
    """operator.methodcaller(name, *args)(obj)."""
    name, *args = given[0]
    return getattr(obj, name)(*args)


def count_elements(table: Any, items: Any) -> None:
    """How collections.Counter counts."""
    for x in items:
        table[x] = table.get(x, 0) + 1


def apply_forward(function: Any, context: Any, *args: Any) -> Any:
    """torch.autograd.Function.apply where no gradient is wanted."""
    with torch.no_grad():
        return function.forward(context, *args)


def apply_and_set_up(function: Any, context: Any, *args: Any) -> Any:
    """The same, of a function that has setup_context."""
    with torch.no_grad():
        made = function.forward(*args)
        function.setup_context(context, args, made)
    return made


def accumulate(rows: Any) -> None:
    """What autograd does with a gradient that arrives at a leaf.

    rows: leaf and gradient; the dict of hooks that get the gradient, and a list of later ones; the
    same of those that get the leaf when it is added.
    """
    with torch.no_grad():
        for leaf, gradient, before, own_before, after, own_after in rows:
            for hook in [*(before.values() if before else ()), *(own_before or ())]:
                made = hook(gradient)
                if made is not None:
                    if made.shape != gradient.shape or made.dtype != gradient.dtype:
                        raise RuntimeError("hook has changed the size or type of value")
                    gradient = made
            if leaf.grad is None:
                leaf.grad = torch.empty_like(leaf).copy_(gradient)
            else:
                leaf.grad.add_(gradient)
            for hook in [*(after.values() if after else ()), *(own_after or ())]:
                if hook(leaf) is not None:
                    raise RuntimeError("Tensor post accumulate grad hooks should return None.")
