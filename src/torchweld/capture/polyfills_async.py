"""What asynchronous generators give to be awaited, in Python: generators that drive a frame."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any


def advance(agen: Any, value: Any) -> tuple[bool, Any]:
    """Run a generator up to where it is suspended: whether it yields, and what it hands out.

    Errors: StopAsyncIteration at its end. The capture has it built in, and the next one.
    """
    raise NotImplementedError


def fail(agen: Any, error: BaseException) -> tuple[bool, Any]:
    """The same, with an exception raised where it waits."""
    raise NotImplementedError


def is_over(agen: Any) -> bool:
    """Whether a generator has ended."""
    raise NotImplementedError


def asend(agen: Any, value: Any) -> Generator[Any, Any, Any]:
    """agen.asend(value): what the generator awaits is handed on."""
    yields, item = advance(agen, value)
    while not yields:
        yields, item = yield from handed_on(agen, item)
    return item


def handed_on(agen: Any, item: Any) -> Generator[Any, Any, tuple[bool, Any]]:
    """Wait for what the generator waits for."""
    try:
        value = yield item
    except BaseException as error:
        return fail(agen, error)
    return advance(agen, value)


def athrow(agen: Any, error: BaseException) -> Generator[Any, Any, Any]:
    """agen.athrow(error)"""
    if is_over(agen):
        return None
    yields, item = fail(agen, error)
    while not yields:
        yields, item = yield from handed_on(agen, item)
    return item


def aclose(agen: Any) -> Generator[Any, Any, None]:
    """agen.aclose()"""
    if is_over(agen):
        return
    try:
        yields, item = fail(agen, GeneratorExit())
        while not yields:
            yields, item = yield from handed_on(agen, item)
    except (StopAsyncIteration, GeneratorExit):
        return
    raise RuntimeError("async generator ignored GeneratorExit")


async def anext_or(it: Any, default: Any) -> Any:
    """anext(it, default)"""
    try:
        return await it.__anext__()
    except StopAsyncIteration:
        return default
