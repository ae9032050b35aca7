"""Frames that take a lock: it is held while they run compiled, and the guards are checked in it."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from torch import nn

import torchweld

X = torch.arange(3.0)


class Locked(nn.Module):
    def __init__(self, lock):
        super().__init__()
        self.lock = lock
        self.lin = nn.Linear(3, 3)
        self.ready = False
        self.count = 0

    def forward(self, x, i=None):
        if not self.ready:
            with self.lock:
                if not self.ready:
                    self.count += 1
                    self.ready = True
        if i is None:
            return self.lin(x)
        with self.lock:
            self.count += 1
            return self.lin(x)[i] * self.count


@pytest.fixture(params=[threading.Lock, threading.RLock])
def module(request):
    torchweld.reset()
    torch.manual_seed(0)
    return Locked(request.param())


def is_free(lock):
    """Whether another thread could take it."""
    found = []

    def look():
        found.append(lock.acquire(blocking=False))
        if found[0]:
            lock.release()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found[0]


def test_a_lock_is_part_of_the_graph_and_free_afterwards(module):
    compiled = torchweld.compile(module, backend="eager", fullgraph=True)
    for n in range(4):
        torch.testing.assert_close(compiled(X, torch.tensor([1, 0])),
                                   module.lin(X)[torch.tensor([1, 0])] * (n + 2))  # fmt: skip
        assert module.count == n + 2
    assert torchweld.statistics()["breaks"] == 0
    assert is_free(module.lock)


def test_an_error_under_the_lock_is_eager_s_and_frees_it(module):
    compiled = torchweld.compile(module, backend="eager", fullgraph=True)
    compiled(X, torch.tensor([1]))
    for _ in range(2):
        with pytest.raises(IndexError):
            compiled(X, torch.tensor([7]))
    assert module.count == 4
    assert is_free(module.lock)


def test_what_another_thread_did_while_the_lock_was_waited_for_is_seen(module):
    """The entry's guards held before the lock was free, and do not any more."""
    compiled = torchweld.compile(module, backend="eager", fullgraph=True)
    compiled(X)
    module.ready, module.count, got = False, 0, []
    thread = threading.Thread(target=lambda: got.append(compiled(X)))
    with module.lock:
        thread.start()
        time.sleep(0.1)  # if the thread needs longer, it sees the change at once
        module.ready = True
    thread.join()
    assert module.count == 0
    torch.testing.assert_close(got[0], module.lin(X))


def breaks_inside(x, lock, log):
    with lock:
        x = x + 1
        if x.sum() > 0:
            log.append(lock.locked())
    return x * 2


def breaks_behind(x, lock, log):
    with lock:
        log.append(1)
    if x.sum() > 0:
        x = x + 1
    with lock:
        log.append(2)
    return x * 2


def keeps_it(x, lock, log):
    lock.acquire()
    return x + 1


def two_of_them(x, lock, log):
    other = log[0]
    with lock, other:
        return x + 1


def test_two_locks_are_one_graph():
    torchweld.reset()
    compiled = torchweld.compile(two_of_them, backend="eager", fullgraph=True)
    locks = threading.Lock(), threading.RLock()
    for first, other in (locks, locks, locks[::-1]):
        assert torch.equal(compiled(X, first, [other]), X + 1)
        assert all(map(is_free, locks))


def test_a_further_lock_that_is_not_free_is_waited_for_in_eager_code():
    def one_after_the_other(x, first, second):
        with first:
            x = x + 1
        with second:
            return x * 2

    torchweld.reset()
    compiled = torchweld.compile(one_after_the_other, backend="eager")
    first, second, got = threading.Lock(), threading.Lock(), []
    compiled(X, first, second)
    with second:
        thread = threading.Thread(target=lambda: got.append(compiled(X, first, second)))
        thread.start()
        while not is_free(first):
            time.sleep(0.001)
        assert is_free(first)  # nobody waits with the first one in his hands
    thread.join()
    assert torch.equal(got[0], (X + 1) * 2)
    assert is_free(first) and is_free(second)


def test_a_break_behind_a_lock_is_one():
    torchweld.reset()
    compiled = torchweld.compile(breaks_behind, backend="eager")
    log, lock = [], threading.Lock()
    assert torch.equal(compiled(X, lock, log), (X + 1) * 2)
    assert log == [1, 2] and is_free(lock)
    assert torchweld.statistics()["breaks"] == 1


def test_a_lock_of_the_frame_is_no_break():
    def program(x):
        made, again = threading.Lock(), threading.RLock()
        with made, again, again:
            x = x + 1
        made.acquire()
        return x, made, made.locked()

    compiled = torchweld.compile(program, backend="eager", fullgraph=True)
    x, made, seen = compiled(X)
    assert torch.equal(x, X + 1) and seen and made.locked()


@pytest.mark.parametrize("fn", [breaks_inside, breaks_behind, keeps_it])
def test_what_is_not_captured_is_right(fn):
    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager")
    for _ in range(2):
        logs, locks = [], []
        for run in (fn, compiled):
            log, lock = [threading.Lock()], threading.Lock()
            torch.testing.assert_close(run(X, lock, log), fn(X, threading.Lock(), [lock]))
            logs.append(log[1:])
            locks.append(lock.locked())
        assert logs[0] == logs[1] and locks[0] == locks[1]
    assert torchweld.statistics()["breaks"] and not torchweld.statistics()["internal_errors"]


def test_a_hook_that_the_first_call_installs_runs_in_it():
    """As transformers does it: under a lock, with handles that nobody keeps."""

    class Recording(nn.Module):
        installed = False
        lock = threading.Lock()

        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
            self.kept = []

        def install(self):
            if getattr(self, "installed", False):
                return
            with self.lock:
                if getattr(self, "installed", False):
                    return
                for layer in self.layers.children():
                    layer.register_forward_hook(lambda m, args, out: self.kept.append(out))
                self.installed = True

        def forward(self, x):
            self.install()
            del self.kept[:]
            return self.layers(x), list(self.kept)

    torchweld.reset()
    torch.manual_seed(0)
    module = Recording()
    compiled = torchweld.compile(module, backend="eager", fullgraph=True)
    for _ in range(3):
        y, kept = compiled(X)
        assert len(kept) == 2 and all(len(layer._forward_hooks) == 1 for layer in module.layers)
        torch.testing.assert_close(y, kept[1])
    assert torchweld.statistics()["captures"] == 2
