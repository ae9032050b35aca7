"""What was compiled dies with what it was compiled of, at once, and calls leave nothing behind."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import tracemalloc
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import torchweld
from torchweld.base import events
from torchweld.module import own_call

X = torch.randn(4, 16)


@pytest.fixture
def no_collector():
    """The garbage collector does not run: only reference counts free anything."""
    torchweld.reset()
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def refs(**objects):
    return {name: weakref.ref(obj) for name, obj in objects.items()}


def alive(dead):
    return [name for name, ref in dead.items() if ref() is not None]


def parts(compiled):
    """Weak references to what the first entry of a compiled function holds."""
    entry = compiled.entries[0]
    region = entry.info.region
    found = refs(entry=entry, program=entry.program)
    return found if region is None else {**found, **refs(graph=region.graph)}


def called(compiled, grad):
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            compiled(X)


class Broken(nn.Module):
    """Its forward is compiled on both sides of a branch."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
        self.last = nn.Linear(16, 16)

    def forward(self, x):
        y = self.first(x)
        return self.last(y) if y.sum() > -1e9 else y


def of_module(backend, grad, net):
    compiled = torchweld.compile(net, backend=backend)
    called(compiled, grad)
    x = torch.randn(2, 16)
    compiled(x)
    return {**refs(net=net, compiled=compiled, x=x), **parts(own_call(compiled)),
            **refs(**{n.replace(".", "_"): p for n, p in net.named_parameters()})}  # fmt: skip


def of_closure(backend, grad, net):
    def f(x):
        return net(x) + weight.sum()

    weight = torch.ones(3)
    compiled = torchweld.compile(f, backend=backend)
    called(compiled, grad)
    return {**refs(net=net, f=f, compiled=compiled, weight=weight), **parts(compiled)}


def of_method(backend, grad, net):
    compiled = torchweld.compile(net.forward, backend=backend)
    called(compiled, grad)
    return {**refs(net=net, weight=next(net.parameters()))}


def net_of_two():
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU())


def of_calls(backend, grad, net, fn, *arguments):
    """fn(net) gives what is compiled and called; what it raises is caught."""
    f = fn(net)
    compiled = torchweld.compile(f, backend=backend)
    with torch.set_grad_enabled(grad):
        for args in arguments or ((X,),) * 3:
            try:
                out = compiled(*args)
                if isinstance(out, torch.Tensor) and out.requires_grad:
                    out.sum().backward()
            except (ValueError, IndexError):
                pass
    return refs(net=net, weight=net[0].weight, f=f, compiled=compiled)


def raising(net):
    def f(x, k):
        y = net(x)
        if k > 1:
            raise ValueError(k)
        return y[k + 9] if k else y

    return f


def raising_deep(net):
    def inner(x):
        y = net(x)
        if y.sum() < 1e9:
            raise ValueError(y.shape)
        return y

    def f(x):
        try:
            return inner(x) + 1
        finally:
            net(x)

    return f


def drained(net):
    def steps(x):
        for k in range(3):
            yield net(x) * k

    return lambda x: [y + 1 for y in steps(x)]


def suspended(net):
    def steps(x):
        try:
            got = yield net(x)
            yield got
        finally:
            net(x)

    def f(x):
        torchweld.disable(len)([x])
        list(steps(x))
        left, thrown = steps(x), steps(x)
        next(left)
        next(thrown)
        thrown.throw(ValueError("thrown"))

    return f


def counted(net):
    def f(x):
        for _ in range(3):
            x = net(x)
            if x.sum() > 1e9:
                break
        return x

    return f


def of_generator(backend, grad, net):
    def steps(x):
        for k in range(3):
            yield net(x) * k

    compiled = torchweld.compile(steps, backend=backend)
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            assert len(list(compiled(X))) == 3
        left, thrown = compiled(X), compiled(X)
        next(left)
        next(thrown)
        with pytest.raises(ValueError, match="thrown"):
            thrown.throw(ValueError("thrown"))
    return refs(net=net, weight=net[0].weight, steps=steps, compiled=compiled)


MAKERS = {
    "exceptions": lambda b, g: of_calls(
        b, g, net_of_two(), raising, (X, 0), (X, 1), (X, 2), (X, 3)),
    "exceptions behind a break": lambda b, g: of_calls(b, g, net_of_two(), raising_deep),
    "generators in the frame": lambda b, g: of_calls(b, g, net_of_two(), drained),
    "generators that are left": lambda b, g: of_calls(b, g, net_of_two(), suspended),
    "generator": lambda b, g: of_generator(b, g, net_of_two()),
    "loop that breaks": lambda b, g: of_calls(b, g, net_of_two(), counted),
    "numbers": lambda b, g: of_calls(
        b, g, net_of_two(), lambda net: lambda x, s: net(x) * s, (X, 1), (X, 2.5), (X, 3.5)),
    "sizes": lambda b, g: of_calls(
        b, g, net_of_two(), lambda net: lambda x: net(x) * len(x), (X,), (X[:3],), (X[:2],)),
    "module": lambda b, g: of_module(b, g, nn.Sequential(nn.Linear(16, 16), nn.ReLU())),
    "module that breaks": lambda b, g: of_module(b, g, Broken()),
    "closure": lambda b, g: of_closure(b, g, nn.Sequential(nn.Linear(16, 16), nn.ReLU())),
    "closure over a module that breaks": lambda b, g: of_closure(b, g, Broken()),
    "method": lambda b, g: of_method(b, g, nn.Linear(16, 16)),
}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("backend", ["eager", "torchweld"])
@pytest.mark.parametrize("name", MAKERS)
def test_everything_is_freed_without_the_collector(name, backend, grad, no_collector):
    dead = MAKERS[name](backend, grad)
    assert alive(dead) == []


def test_weights_that_were_frozen_are_freed(no_collector):
    def make():
        net = nn.Sequential(nn.Linear(16, 16), nn.ReLU()).requires_grad_(False)
        compiled = torchweld.compile(net, options={"freeze": True})
        called(compiled, False)
        return {**refs(net=net, weight=net[0].weight), **parts(own_call(compiled))}

    assert alive(make()) == []


NET = None


def uses_global(x):
    return NET(x) + 1


def test_a_global_model_is_freed_when_its_name_is_given_away(no_collector):
    global NET
    NET = nn.Linear(16, 16)
    compiled = torchweld.compile(uses_global, backend="eager")
    called(compiled, True)
    dead = refs(net=NET, weight=NET.weight)
    NET = None
    assert alive(dead) == []


def test_what_was_compiled_is_used_again_while_the_function_lives(no_collector):
    def f(x):
        return x * 2

    for _ in range(3):
        torchweld.compile(f, backend="eager")(X)
    assert torchweld.statistics()["captures"] == 1


def test_code_that_was_replaced_meanwhile_is_seen(no_collector):
    def f(x):
        return x * 2

    torchweld.compile(f, backend="eager")(X)
    f.__code__ = (lambda x: x * 3).__code__
    torch.testing.assert_close(torchweld.compile(f, backend="eager")(X), X * 3)


def test_reset_frees_what_no_compiled_function_holds(no_collector):
    def f(x):
        return x * 2

    compiled = torchweld.compile(f, backend="eager")
    compiled(X)
    dead = parts(compiled)
    del compiled
    torchweld.reset()
    assert alive(dead) == []


def test_a_graph_that_a_backend_has_kept_stays_whole(no_collector):
    def backend(gm, inputs):
        kept.append(gm)
        return gm.forward

    kept = []
    compiled = torchweld.compile(lambda x: x.relu() + 1, backend=backend)
    compiled(X)
    del compiled
    torchweld.reset()
    torch.testing.assert_close(kept[0](X)[0], X.relu() + 1)


def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def growth(call, n):
    """How many bytes of Python objects, objects and resident bytes n calls leave behind.

    The least of two times: a table that is shared by all that is compiled grows now and then.
    """
    for _ in range(100):
        call()
    first, second = grown(call, n), grown(call, n)
    return [min(pair) for pair in zip(first, second, strict=True)]


def grown(call, n):
    tracemalloc.start()
    for _ in range(min(n, 1000)):
        call()  # what is kept for the next call is traced from now on
    gc.collect()
    before = tracemalloc.get_traced_memory()[0], len(gc.get_objects()), resident()
    for _ in range(n):
        call()
    gc.collect()
    after = tracemalloc.get_traced_memory()[0], len(gc.get_objects()), resident()
    tracemalloc.stop()
    return [b - a for a, b in zip(before, after, strict=True)]


def steady(name):
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU()).requires_grad_(False)
    compiled = {
        "module": lambda: torchweld.compile(net),
        "module that breaks": lambda: torchweld.compile(Broken().requires_grad_(False)),
        "counter": lambda: torchweld.compile(Counting()),
        "loop that breaks": lambda: torchweld.compile(counted(net)),
        "generator": lambda: torchweld.compile(drained(net)),
    }.get(name, lambda: None)()
    return MADE[name]() if compiled is None else lambda: compiled(X)


def with_sizes():
    compiled = torchweld.compile(lambda x: x * 2 + x.shape[0])
    turns = itertools.cycle([X[:n] for n in (2, 3, 4)])
    return lambda: compiled(next(turns))


def with_numbers():
    compiled = torchweld.compile(lambda x, n, s: x * n + s)
    turns = itertools.count()
    return lambda: compiled(X, n := next(turns) % 200, n * 0.5)


def with_errors():
    compiled = torchweld.compile(raising(nn.Sequential(nn.Linear(16, 16))))
    turns = itertools.cycle((0, 1, 2))

    def call():
        with contextlib.suppress(ValueError, IndexError):
            compiled(X, next(turns))

    return call


def with_gradients():
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    optimizer = torch.optim.AdamW(net.parameters())
    forward, step = torchweld.compile(net), torchweld.compile(optimizer.step)

    def call():
        optimizer.zero_grad()
        forward(X).square().mean().backward()
        step()

    return call


def with_a_whole_step():
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    optimizer = torch.optim.AdamW(net.parameters())

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    compiled = torchweld.compile(step)
    return lambda: compiled(X)


MADE = {"sizes": with_sizes, "numbers": with_numbers, "exceptions": with_errors,
        "training": with_gradients, "whole step": with_a_whole_step}  # fmt: skip


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = 0
        self.last = None

    def forward(self, x):
        self.seen += 1
        self.last = {"x": [x + 1]}
        return x * 2


STEADY = ("module", "module that breaks", "counter", "loop that breaks", "generator", *MADE)


@pytest.mark.parametrize("name", STEADY)
def test_calls_leave_nothing_behind(name):
    torchweld.reset()
    traced, objects, _ = growth(steady(name), 600)
    assert traced < 30_000  # one small object per call is more
    assert objects < 50


@pytest.mark.slow
@pytest.mark.parametrize("name", STEADY)
def test_100000_calls_leave_nothing_behind(name):
    torchweld.reset()
    traced, objects, pages = growth(steady(name), 100_000)
    assert traced < 20_000
    assert objects < 50
    assert pages < 8 << 20


def test_compiling_again_and_again_leaves_little_behind():
    def call():
        compiled = torchweld.compile(lambda x: x * 2 + 1, backend="eager")
        compiled(X)
        events.clear()  # of which the last 10,000 are kept

    torchweld.reset()
    traced, objects, _ = growth(call, 300)
    assert traced < 100_000
    assert objects < 300


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_compiled_optimizer_dies_with_its_parameters(kind, no_collector):
    def train(net, optimizer, step):
        for _ in range(4):
            optimizer.zero_grad()
            net(X).square().mean().backward()
            step()

    eager = nn.Linear(16, 4)  # torch keeps the first optimizer of a process
    first = kind(eager.parameters(), lr=0.1)
    train(eager, first, first.step)

    def make():
        net = nn.Linear(16, 4)
        optimizer = kind(net.parameters(), lr=0.1)
        step = torchweld.compile(optimizer.step)
        train(torchweld.compile(net), optimizer, step)
        return refs(net=net, weight=net.weight, optimizer=optimizer, step=step)

    assert alive(make()) == []


def test_an_optimizer_and_its_parameters_die_after_compiled_steps(no_collector):
    def train(model, optimizer):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()

    eager = nn.Linear(16, 4)  # torch keeps the first optimizer of a process
    train(eager, torch.optim.AdamW(eager.parameters()))
    compiled, model = torchweld.compile(train), nn.Linear(16, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        compiled(model, optimizer)
    dead = refs(model=model, optimizer=optimizer, weight=model.weight,
                state=optimizer.state[model.weight]["exp_avg"])  # fmt: skip
    del model, optimizer
    assert alive(dead) == []
