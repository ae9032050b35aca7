"""Coroutines and asynchronous generators that are compiled."""

import asyncio
import contextlib
import types

import pytest
import torch
from eager_twin import Twins
from tests.capture.kept_graphs import Graphs

import torchweld

X = torch.arange(4.0)


class Pause:
    """Suspends once, and gives what it is made with."""

    def __init__(self, value):
        self.value = value

    def __await__(self):
        yield self.value
        return self.value


async def _model(x):
    y = x.sin() * 2 + 1
    got = await Pause(3)
    z = y.cos() * got
    await asyncio.sleep(0)
    return z.exp()


def test_coroutines():
    torchweld.reset()
    compiled = torchweld.compile(_model, backend=(backend := Graphs()))
    for _ in range(2):
        made, eager = compiled(X), _model(X)
        assert isinstance(made, types.CoroutineType)
        assert made.send(None) == eager.send(None) == 3
        assert made.send(None) is eager.send(None) is None
        ends = []
        for coro in (made, eager):
            with pytest.raises(StopIteration) as end:
                coro.send(None)
            ends.append(end.value.value)
        assert torch.equal(*ends)
    assert backend.n == 3


def test_coroutines_in_an_event_loop():
    async def both():
        compiled = torchweld.compile(_twice, backend="eager")
        return await asyncio.gather(compiled(X), compiled(X + 1)), await _twice(X)

    async def _twice(x):
        y = x.sin() * 2
        await asyncio.sleep(0)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(lambda: None)
            await asyncio.sleep(0)
        return y.cos() + 1

    torchweld.reset()
    (first, second), eager = asyncio.run(both())
    assert torch.equal(first, eager)
    assert not torch.equal(second, eager)


def test_an_error_in_what_a_coroutine_awaits():
    log = []

    async def failing():
        await asyncio.sleep(0)
        raise KeyError("k")

    async def program(x):
        y = x.sin() * 2
        try:
            await failing()
        except KeyError as error:
            log.append(str(error))
        finally:
            log.append("finally")
        return y.cos()

    compiled = torchweld.compile(program, backend="eager")
    for _ in range(2):
        assert torch.equal(asyncio.run(compiled(X)), asyncio.run(program(X)))
    assert log == ["'k'", "finally"] * 4


def test_cancelled_coroutines_clean_up():
    log = []

    async def program(x):
        y = x.sin() * 2
        try:
            await asyncio.sleep(60)
        finally:
            log.append("finally")
        return y

    async def cancel(fn):
        task = asyncio.create_task(fn(X))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel(program))
    asyncio.run(cancel(torchweld.compile(program, backend="eager")))
    assert log == ["finally"] * 2


def test_asynchronous_generators():
    async def gen(x):
        for i in range(3):
            x = x.sin() * 2 + i
            got = yield x
            await asyncio.sleep(0)
            if got is not None:
                x = x + got

    async def run(fn):
        out = [y async for y in fn(X)]
        made = fn(X)
        out += [await made.asend(None), await made.asend(2.0)]
        await made.aclose()
        made = fn(X)
        await made.asend(None)
        with contextlib.suppress(KeyError):
            await made.athrow(KeyError("k"))
        return out

    torchweld.reset()
    compiled = torchweld.compile(gen, backend="eager")
    for _ in range(2):
        Twins().equal(asyncio.run(run(gen)), asyncio.run(run(compiled)))


def test_asynchronous_generators_that_handle_errors():
    log = []

    async def gen(x):
        try:
            yield x.sin() * 2
        except KeyError as error:
            log.append(str(error))
            yield x.cos()
            await asyncio.sleep(0)
            yield x.exp()
        finally:
            log.append("finally")

    async def run(fn):
        made = fn(X)
        out = [await made.asend(None), await made.athrow(KeyError("k"))]
        return [*out, *[y async for y in made]]

    compiled = torchweld.compile(gen, backend="eager")
    Twins().equal(asyncio.run(run(gen)), asyncio.run(run(compiled)))
    assert log == ["'k'", "finally"] * 2


def test_coroutines_that_do_not_wait_are_part_of_the_graph():
    async def layer(x):
        return x.sin() * 2

    async def block(x, n):
        for _ in range(n):
            x = await layer(x)
        return x

    async def program(x):
        return (await block(x, 3)).cos()

    torchweld.reset()
    compiled = torchweld.compile(program, backend=(backend := Graphs()))
    for _ in range(2):
        assert torch.equal(asyncio.run(compiled(X)), asyncio.run(program(X)))
    assert backend.operators() == [7]
    assert torchweld.statistics()["breaks"] == 0


def test_a_coroutine_made_in_a_function_and_closed():
    async def later(x):
        return x

    def program(x):
        c = later(x)
        c.close()
        return x + 1

    torchweld.reset()
    compiled = torchweld.compile(program, fullgraph=True, backend="eager")
    assert torch.equal(compiled(X), X + 1)
