"""functools.lru_cache and functools.singledispatch of functions that a frame makes, in Python."""

from __future__ import annotations

import functools
import types
import typing
from typing import Any

_MISSING = object()


def cached(fn: Any, maxsize: Any, typed: bool, info: Any) -> Any:
    """What functools.lru_cache makes of a function. The oldest key comes first."""
    table: dict[Any, Any] = {}
    hits = misses = 0

    def wrapper(*args: Any, **named: Any) -> Any:
        nonlocal hits, misses
        key: Any = args
        if typed or named:
            kinds = [type(x) for x in (*args, *named.values())] if typed else []
            key = (args, tuple(named.items()), tuple(kinds))
        elif len(args) == 1 and type(args[0]) in (int, str):
            key = args[0]
        found = table.get(key, _MISSING)
        if found is not _MISSING:
            hits += 1
            if maxsize is not None:
                table[key] = table.pop(key)
            return found
        misses += 1
        made = fn(*args, **named)
        if maxsize is None or (maxsize and key not in table):
            if maxsize is not None and len(table) >= maxsize:
                del table[next(iter(table))]
            table[key] = made
        return made

    def cache_info() -> Any:
        return info(hits, misses, maxsize, len(table))

    def cache_clear() -> None:
        nonlocal hits, misses
        hits = misses = 0
        table.clear()

    wrapper.cache_info = cache_info  # type: ignore[attr-defined]
    wrapper.cache_clear = cache_clear  # type: ignore[attr-defined]
    return wrapper


def dispatching(func: Any) -> Any:
    """What functools.singledispatch makes of a function."""
    registry: dict[Any, Any] = {object: func}

    def dispatch(kind: Any) -> Any:
        return registry[kind] if kind in registry else registry[nearest(kind, tuple(registry))]

    def register(kind: Any, func: Any = None) -> Any:
        if func is None and not isinstance(kind, type | types.UnionType):
            func = kind
            kind = next(iter(typing.get_type_hints(func).values()))
        if func is None:
            return lambda f: register(kind, f)
        for each in kind.__args__ if isinstance(kind, types.UnionType) else (kind,):
            registry[each] = func
        return func

    def wrapper(*args: Any, **named: Any) -> Any:
        if not args:
            raise TypeError(f"{name} requires at least 1 positional argument")
        return dispatch(args[0].__class__)(*args, **named)

    name = getattr(func, "__name__", "singledispatch function")
    wrapper.register = register  # type: ignore[attr-defined]
    wrapper.dispatch = dispatch  # type: ignore[attr-defined]
    wrapper.registry = types.MappingProxyType(registry)  # type: ignore[attr-defined]
    functools.update_wrapper(wrapper, func)
    return wrapper


def nearest(kind: Any, known: Any) -> Any:
    """The class whose function singledispatch takes for another class."""
    raise NotImplementedError
