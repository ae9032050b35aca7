"""When cuBLAS's workspaces may be given back: where no other thread can be using one."""

from __future__ import annotations

import _thread
import threading

import pytest

from torchweld.runtime import workspaces


@pytest.fixture
def cleared(monkeypatch):
    """Counts; this thread stands for the main one, which a test runner may keep for itself."""
    counts = []
    monkeypatch.setattr(workspaces, "_clear", lambda: counts.append(1))
    monkeypatch.setattr(workspaces, "_others_record", lambda own: False)
    main = threading.current_thread()
    monkeypatch.setattr(workspaces.threading, "main_thread", lambda: main)
    others = {t for t in threading.enumerate() if t is not main}
    everybody = threading.enumerate
    monkeypatch.setattr(workspaces.threading, "enumerate",
                        lambda: [t for t in everybody() if t not in others])  # fmt: skip
    return counts


def record(in_backward):
    with workspaces.given_back(set(), in_backward):
        pass


def elsewhere(start, in_backward):
    """Record in a thread that Python's threading has started, or somebody else."""
    done = threading.Event()

    def run():
        record(in_backward)
        done.set()

    start(run)
    assert done.wait(60)


@pytest.mark.parametrize("in_backward", [False, True])
def test_the_only_thread(cleared, in_backward):
    record(in_backward)
    assert len(cleared) == 2


def test_another_thread_is_alive(cleared):
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    record(False)
    end.set()
    other.join()
    assert not cleared


@pytest.mark.parametrize("in_backward", [False, True])
def test_a_thread_of_the_users(cleared, in_backward):
    """The main thread does not wait for it, whatever runs there."""
    elsewhere(lambda run: threading.Thread(target=run).start(), in_backward)
    assert not cleared


def test_a_thread_of_autograds(cleared):
    elsewhere(lambda run: _thread.start_new_thread(run, ()), True)
    assert len(cleared) == 2
