"""Asynchronous generators and loops inside of what is captured."""

import asyncio
import contextlib

import pytest
import torch
from eager_twin import Twins, outcome

import torchweld

X = torch.arange(4.0)
ROWS = []


def program(breaks=0, graphs=1):
    def keep(fn):
        ROWS.append(pytest.param(fn, breaks, graphs, id=fn.__name__))
        return fn

    return keep


async def multiples(x, n):
    for i in range(n):
        yield x * i + 1


async def slow(x, n):
    for i in range(n):
        await asyncio.sleep(0)
        yield x * i + 1


async def numbered(items):
    i = 0
    async for item in items:
        yield i, item
        i += 1


async def echo(x):
    got = yield x
    while got is not None:
        got = yield x * got


async def cleaned(x, log):
    try:
        yield x * 2
        yield x * 3
    except ValueError as error:
        yield x * len(error.args)
    finally:
        log.append("end")


class Countdown:
    def __init__(self, x):
        self.x, self.left = x, 3

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self.left:
            raise StopAsyncIteration
        self.left -= 1
        return self.x * self.left


@program()
async def loops(x, log):
    total = x
    async for v in multiples(x, 3):
        total = total + v * 2
    async for v in Countdown(x):
        if v is None:
            break
        total = total - v
    else:
        total = total.relu()
    return total


@program()
async def comprehensions(x, log):
    found = [v async for v in multiples(x, 3) if v is not None]
    table = {i: v async for i, v in numbered(Countdown(x))}
    return found, table, [v async for v in (w * 2 async for w in multiples(x, 2))]


@program()
async def by_hand(x, log):
    made = multiples(x, 2)
    it = aiter(made)
    first, second = await anext(it), await it.__anext__()
    with contextlib.suppress(StopAsyncIteration):
        await anext(it)
    return first + second, await anext(it, 7), it is made, await made.aclose()


@program()
async def what_is_sent(x, log):
    made = echo(x)
    first = await made.asend(None)
    second = await made.asend(5)
    try:
        await made.asend(None)
    except StopAsyncIteration as error:
        return first + second, error.args


@program()
async def what_is_thrown(x, log):
    made = cleaned(x, log)
    first = await anext(made)
    second = await made.athrow(ValueError(1, 2, 3))
    log.append("thrown")
    rest = [v async for v in made]
    return first + second, rest, list(log)


@program()
async def closed(x, log):
    made = cleaned(x, log)
    async with contextlib.aclosing(made) as items:
        async for v in items:  # noqa: B007
            break
    return v + 1, list(log), [w async for w in made]


@program()
async def context_managers(x, log):
    @contextlib.asynccontextmanager
    async def scaled(by):
        log.append("in")
        try:
            yield x * by
        except KeyError:
            log.append("error")
        finally:
            log.append("out")

    async with scaled(2) as y, scaled(3) as z:
        total = y + z
    async with scaled(1):
        raise KeyError
    return total * 2, list(log)


@program()
async def what_must_not_leave(x, log):
    async def stops():
        yield x * 2
        raise StopAsyncIteration

    async def ends():
        raise StopIteration

    seen = []
    try:
        async for v in stops():
            seen.append(v + 1)
    except RuntimeError as error:
        seen += [str(error), type(error.__cause__).__name__]
    try:
        await ends()
    except RuntimeError as error:
        seen.append(str(error))
    return seen


@program(breaks=1, graphs=2)
async def that_wait(x, log):
    """The generator is the first break; each round of the loop is the same graph then."""
    total = x * 2
    async for v in slow(x, 4):
        total = (total + v * 2).relu()
    return total * 2 + 1


@pytest.mark.parametrize(("fn", "breaks", "graphs"), ROWS)
def test_program(fn, breaks, graphs):
    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager")

    def run(which, x):
        return asyncio.run(which(x, []))

    for x in (X, X, X + 1):
        Twins().equal(outcome(run, (fn, x)), outcome(run, (compiled, x)))
    counts = torchweld.statistics()
    assert (counts["breaks"], counts["internal_errors"]) == (breaks, 0), counts
    assert counts["graphs"] == graphs


def test_generators_from_outside_are_iterated():
    async def program(items, x):
        total = x * 2
        async for v in items:
            total = (total + v * 2).relu()
        return total * 2 + 1

    torchweld.reset()
    compiled = torchweld.compile(program, backend="eager")
    for make in (multiples, slow, slow):
        expected = asyncio.run(program(make(X, 4), X))
        assert torch.equal(asyncio.run(compiled(make(X, 4), X)), expected)
    counts = torchweld.statistics()
    assert (counts["graphs"], counts["breaks"], counts["internal_errors"]) == (2, 0, 0)


def test_a_generator_that_others_have_to_close():
    log = []

    async def program(x):
        made = cleaned(x, log)
        return await anext(made) + 1

    torchweld.reset()
    compiled = torchweld.compile(program, backend="eager")
    for fn in (program, compiled):
        assert torch.equal(asyncio.run(fn(X)), X * 2 + 1)
    assert log == ["end", "end"]
    assert torchweld.statistics()["internal_errors"] == 0
