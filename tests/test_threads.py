"""Many threads compile and run at once: right results, and nobody waits for somebody's compiler."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import torchweld

X = torch.arange(1.0, 5.0)
LONG = 60  # seconds after which a test has failed


def helper(x):
    return (x * 3).relu()


def broken(x):
    return helper(x) + 1 if x.sum() > 0 else x


class Held:
    """A backend whose compilation takes as long as the test wants."""

    def __init__(self):
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, gm, inputs):
        self.begun.set()
        assert self.go_on.wait(LONG)
        return gm.forward


class Count:
    def __init__(self):
        self.n = 0

    def __call__(self, gm, inputs):
        self.n += 1
        return gm.forward


def in_thread(work, *args):
    """work(*args) in a thread of its own; call the answer for the result."""
    results = []

    def run():
        try:
            results.append((work(*args), None))
        except BaseException as error:
            results.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()

    def result():
        thread.join(LONG)
        assert not thread.is_alive(), "a thread waits"
        value, error = results[0]
        if error is not None:
            raise error
        return value

    return result


@pytest.fixture
def compiling():
    """One thread compiles all through the test."""
    torchweld.reset()
    held = Held()
    made = in_thread(torchweld.compile(lambda x: x + 7, backend=held), X)
    assert held.begun.wait(LONG)
    yield
    held.go_on.set()
    torch.testing.assert_close(made(), X + 7)


def test_what_is_compiled_runs_while_another_thread_compiles(request):
    backend = Count()
    torchweld.reset()
    compiled = torchweld.compile(helper, backend=backend)
    compiled(X)
    held = Held()
    made = in_thread(torchweld.compile(lambda x: x + 7, backend=held), X)
    assert held.begun.wait(LONG)
    torch.testing.assert_close(in_thread(compiled, X)(), helper(X))
    assert (backend.n, compiled.hits) == (1, 1)
    held.go_on.set()
    made()


def test_what_is_not_compiled_runs_eagerly_meanwhile(compiling):
    backend = Count()
    compiled = torchweld.compile(helper, backend=backend)
    torch.testing.assert_close(in_thread(compiled, X)(), helper(X))
    assert backend.n == 0


def test_it_is_compiled_afterwards():
    torchweld.reset()
    held, backend = Held(), Count()
    compiled = torchweld.compile(helper, backend=backend)
    made = in_thread(torchweld.compile(lambda x: x + 7, backend=held), X)
    assert held.begun.wait(LONG)
    in_thread(compiled, X)()
    held.go_on.set()
    made()
    compiled(X)
    assert backend.n == 1


def test_other_calls_of_the_function_that_is_being_compiled(request):
    torchweld.reset()
    held = Held()
    compiled = torchweld.compile(helper, backend=held)
    made = in_thread(compiled, X)
    assert held.begun.wait(LONG)
    for size in (1, 2, 4):
        torch.testing.assert_close(in_thread(compiled, X[:size])(), helper(X[:size]))
    held.go_on.set()
    made()
    assert len(compiled.entries) == 1


def test_a_broken_function_runs_meanwhile_by_what_it_has():
    torchweld.reset()
    backend, held = Count(), Held()
    compiled = torchweld.compile(broken, backend=backend)
    compiled(X)
    assert backend.n == 2
    made = in_thread(torchweld.compile(lambda x: x + 7, backend=held), X)
    assert held.begun.wait(LONG)
    torch.testing.assert_close(in_thread(compiled, X)(), broken(X))
    torch.testing.assert_close(in_thread(compiled, X[:2])(), broken(X[:2]))
    assert backend.n == 2
    held.go_on.set()
    made()
    for _ in range(2):  # its entries are still there, and a new one is made
        torch.testing.assert_close(compiled(X), broken(X))
        torch.testing.assert_close(compiled(X[:2]), broken(X[:2]))
    assert backend.n == 4


def test_fullgraph_waits_for_its_turn():
    torchweld.reset()
    held, backend = Held(), Count()
    made = in_thread(torchweld.compile(lambda x: x + 7, backend=held), X)
    assert held.begun.wait(LONG)
    whole = in_thread(torchweld.compile(helper, backend=backend, fullgraph=True), X)
    held.go_on.set()
    made()
    torch.testing.assert_close(whole(), helper(X))
    assert backend.n == 1


def run_all(works):
    """All at once, as far as threads go."""
    barrier = threading.Barrier(len(works))

    def start(work):
        barrier.wait(LONG)
        work()

    for result in [in_thread(start, work) for work in works]:
        result()


@pytest.mark.parametrize("backend", ["eager", "torchweld"])
def test_threads_that_compile_and_run_functions_of_their_own(backend):
    def worker(k):
        def f(x):
            return (x * k).relu().sum(-1) + k

        def work():
            compiled = torchweld.compile(f, backend=backend)
            with torch.set_grad_enabled(k % 2 == 0):
                for n in (3, 3, 4, 3, 4):
                    x = torch.randn(2, n)
                    torch.testing.assert_close(compiled(x), f(x))

        return work

    torchweld.reset()
    run_all([worker(k) for k in range(6)])
    assert torchweld.statistics()["internal_errors"] == 0


def test_threads_that_run_one_model_with_changing_attributes():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.calls = 0

        def forward(self, x, scale):
            self.calls += 1
            return self.lin(x) * scale

    net = Net()
    compiled = torchweld.compile(net, backend="eager")

    def work():
        for i in range(20):
            scale = 1.0 + i % 3
            torch.testing.assert_close(compiled(X, scale), net.lin(X) * scale)

    torchweld.reset()
    run_all([work] * 5)
    assert torchweld.statistics()["internal_errors"] == 0


def test_reset_while_threads_run():
    compiled = torchweld.compile(broken, backend="eager")

    def work():
        for n in range(1, 12):
            x = torch.ones(1 + n % 4)
            torch.testing.assert_close(compiled(x), broken(x))

    def resets():
        for _ in range(30):
            torchweld.reset()

    run_all([work, work, work, resets])


def test_stance_while_threads_run():
    compiled = torchweld.compile(helper, backend="eager")

    def work():
        for n in range(1, 20):
            x = torch.ones(1 + n % 3)
            torch.testing.assert_close(compiled(x), helper(x))

    def stances():
        for _ in range(20):
            with torchweld.set_stance("force_eager"):
                compiled(X)

    torchweld.reset()
    run_all([work, work, stances])
    torchweld.set_stance("default")


def test_models_that_threads_make_and_drop():
    def work():
        for _ in range(4):
            net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            compiled = torchweld.compile(net, backend="eager")
            for _ in range(3):
                torch.testing.assert_close(compiled(X), net(X))

    torchweld.reset()
    run_all([work] * 4)
    assert torchweld.statistics()["internal_errors"] == 0
