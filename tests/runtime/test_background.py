"""Work that nobody waits for."""

import threading

from torchweld.base import events
from torchweld.runtime.background import Background


def test_jobs_run_in_order_in_one_other_thread():
    work, done, gate = Background(), [], threading.Event()
    work.put(gate.wait)
    for i in range(3):
        work.put(lambda i=i: done.append((i, threading.current_thread().name)))
    assert not work.wait(0.01)
    gate.set()
    assert work.wait() and done == [(i, "torchweld") for i in range(3)]


def test_the_thread_ends_and_another_one_begins():
    work, threads = Background(), []
    for _ in range(2):
        work.put(lambda: threads.append(threading.current_thread()))
        assert work.wait()
    for t in threads:
        t.join(10)
    assert [t.is_alive() for t in threads] == [False, False]


def test_an_error_is_an_event_and_the_next_job_runs():
    def fails():
        raise ValueError("no luck")

    work, done = Background(), []
    work.put(fails)
    work.put(lambda: done.append(1))
    assert work.wait() and done == [1]
    assert any(e.fields.get("why") == "no luck" for e in events.recent("runtime"))
