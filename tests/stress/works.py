"""What the threads of a stress run do: each work compiles something, runs it, compares with eager.

A work takes dice and asserts. Functions of this module are compiled once and shared by all threads;
what a work makes itself is its own, and has to be freed when the work ends.
"""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

import torchweld

Work = Callable[[Random], None]
SECONDS = 300  # after which a thread that was started has failed


def close(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- shared by all threads
class Scaled(nn.Module):
    """Counts its calls; its factor changes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.seen = nn.Linear(4, 4), 0

    def forward(self, x: Tensor, factor: float) -> Tensor:
        self.seen += 1
        return self.inner(x).relu() * factor


def wave(x: Tensor, n: int) -> Tensor:
    return (x * n).sin().sum(-1) + x.shape[0]


def branched(x: Tensor) -> Tensor:
    y = x * 3
    if y.sum() > 0:
        return y.relu() + 1
    return y.cos() - 1


def refusing(x: Tensor, n: int) -> Tensor:
    y = x.exp()
    if n > 2:
        raise ValueError(f"{n} is too many")
    try:
        return y[n + 5] if n == 2 else y + n
    except IndexError:
        return y - n


def steps(x: Tensor, n: int) -> Iterator[Tensor]:
    for k in range(n):
        got = yield x * k
        if got is not None:
            x = x + got


def drained(x: Tensor, n: int) -> list[Tensor]:
    return [y + 1 for y in steps(x, n)]


MODEL = Scaled()
SHARED = {f.__name__: torchweld.compile(f) for f in (wave, branched, refusing, drained, steps)}
COMPILED_MODEL = torchweld.compile(MODEL)


def shared_sizes(dice: Random) -> None:
    for _ in range(6):
        x, n = torch.randn(dice.randrange(1, 9), dice.randrange(1, 5)), dice.randrange(4)
        close(SHARED["wave"](x, n), wave(x, n))


def shared_breaks(dice: Random) -> None:
    for _ in range(4):
        x = torch.randn(dice.randrange(2, 6)).requires_grad_(dice.random() < 0.5)
        close(SHARED["branched"](x), branched(x))


def shared_errors(dice: Random) -> None:
    for _ in range(5):
        x, n = torch.randn(dice.randrange(2, 9)), dice.randrange(5)
        try:
            want: Any = refusing(x, n)
        except ValueError as error:
            want = str(error)
        try:
            got: Any = SHARED["refusing"](x, n)
        except ValueError as error:
            got = str(error)
        close(got, want) if isinstance(want, Tensor) else _equal(got, want)


def _equal(got: Any, want: Any) -> None:
    assert got == want, (got, want)


def shared_generators(dice: Random) -> None:
    x, n = torch.randn(dice.randrange(1, 4)), dice.randrange(1, 4)
    close(SHARED["drained"](x, n), drained(x, n))
    ours, theirs = SHARED["steps"](x, n), steps(x, n)
    close(next(ours), next(theirs))
    for _ in range(n - 1):
        close(ours.send(x), theirs.send(x))
    ours.close()


def shared_model(dice: Random) -> None:
    for _ in range(4):
        x, factor = torch.randn(dice.randrange(1, 4), 4), dice.choice([0.5, 1.0, 1.5, 2.5])
        with torch.set_grad_enabled(dice.random() < 0.5):
            close(COMPILED_MODEL(x, factor), MODEL.inner(x).relu() * factor)


# ---------------------------------------------------------------- of one thread
def own_function(dice: Random) -> None:
    k = dice.randrange(3)

    def f(x: Tensor, scale: float) -> Tensor:
        return (x * scale).tanh() if k else x - scale

    compiled = torchweld.compile(f)
    for _ in range(4):
        x, scale = torch.randn(dice.randrange(1, 5), 3), dice.random()
        close(compiled(x, scale), f(x, scale))


def own_model(dice: Random) -> None:
    """It is dropped while other threads run, and dies at once."""
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, dice.randrange(1, 4)))
    compiled = torchweld.compile(net)
    for n in (2, 3, 2):
        x = torch.randn(n, 4)
        close(compiled(x), net(x))
    dead = [weakref.ref(net), weakref.ref(net[0].weight), weakref.ref(compiled)]
    del net, compiled
    assert not [ref for ref in dead if ref() is not None], "a model outlives its last name"


class Breaking(Scaled):
    def forward(self, x: Tensor, factor: float) -> Tensor:
        y = super().forward(x, factor).exp()
        return y + 1 if y.sum() > 1e9 else (y * 2).tanh() + x


def equal_modules(dice: Random) -> None:
    """What is compiled for one is taken over by others, here and in other threads."""
    kind = dice.choice((Scaled, Breaking))
    nets = [kind() for _ in range(4)]
    made = [torchweld.compile(net) for net in nets]
    if dice.random() < 0.5:
        made[0] = torchweld.compile(nets[0].forward)
    factor, rows = dice.choice((0.5, 2.0)), dice.randrange(2, 5)
    gone = []
    while nets:
        x = torch.randn(rows, 4, requires_grad=dice.random() < 0.5)
        for net, one in zip(nets, made, strict=True):
            close(one(x, factor), net(x, factor))
        at = dice.randrange(len(nets))
        gone.append(weakref.ref(nets[at]))
        del nets[at], made[at]
        net = one = None
    assert [ref() for ref in gone] == [None] * 4


def own_training(dice: Random) -> None:
    def step(net: nn.Module, optimizer: Any, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    torch.manual_seed(3)  # of all threads: twins are made alike by copying, not by drawing
    mine, theirs = nn.Linear(4, 2), nn.Linear(4, 2)
    theirs.load_state_dict(mine.state_dict())
    kind = dice.choice([torch.optim.SGD, torch.optim.AdamW])
    ours, eager = kind(mine.parameters(), lr=0.1), kind(theirs.parameters(), lr=0.1)
    compiled = torchweld.compile(step)
    for _ in range(3):
        x = torch.randn(3, 4)
        close(compiled(mine, ours, x), step(theirs, eager, x))
    close(mine.state_dict(), theirs.state_dict())


def backward_elsewhere(dice: Random) -> None:
    """The backward of a compiled forward runs in another thread, which ends."""
    x = torch.randn(dice.randrange(2, 5), 4, requires_grad=True)
    twin = x.detach().clone().requires_grad_()
    done: queue.Queue[BaseException | None] = queue.Queue()

    def run(loss: Tensor) -> None:
        try:
            loss.backward()
            done.put(None)
        except BaseException as error:
            done.put(error)

    thread = threading.Thread(target=run, args=(SHARED["wave"](x, 2).sum(),))
    thread.start()
    failed = done.get(timeout=SECONDS)
    thread.join()
    assert failed is None, failed
    wave(twin, 2).sum().backward()
    close(x.grad, twin.grad)


# ---------------------------------------------------------------- around the others
def collect(dice: Random) -> None:
    dice.choice([gc.collect, gc.freeze, gc.unfreeze, lambda: gc.collect(0)])()


def forget(dice: Random) -> None:
    assert torchweld.statistics()["internal_errors"] == 0  # which reset forgets
    if dice.random() < 0.3:
        torchweld.reset()


WORKS: tuple[Work, ...] = (
    shared_sizes, shared_breaks, shared_errors, shared_generators, shared_model, own_function,
    own_model, equal_modules, own_training, backward_elsewhere, collect, forget,
)  # fmt: skip
