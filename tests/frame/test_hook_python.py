"""Around hooked frames Python stays Python: tracing, frames, recursion, threads, memory, exit."""

import contextlib
import gc
import subprocess
import sys
import threading

import pytest
from hook_entries import clean as clean
from hook_entries import entry_for, only

from torchweld.frame import hook


def test_tracing_and_profiling_run_the_frame():
    def inner(x):
        y = [x]
        return y[0]

    only(inner)
    lines = []

    def tracer(frame, event, arg):
        if frame.f_code is inner.__code__:
            lines.append(event)
        return tracer

    with hook.Hooked():
        assert inner(1) == ("compiled", 1)
        sys.settrace(tracer)
        try:
            assert inner(1) == 1
        finally:
            sys.settrace(None)
        sys.setprofile(lambda *a: None)
        try:
            assert inner(1) == 1
        finally:
            sys.setprofile(None)
        assert inner(1) == ("compiled", 1)
    assert lines == ["call", "line", "line", "return"]


def test_frames_and_locals_look_as_always():
    def inner(a):
        b = a
        return locals(), sys._getframe().f_code.co_name, sys._getframe(1).f_code.co_name

    def outer():
        return inner(1)

    hook.install(lambda view: None)
    assert hook.run_hooked(outer) == ({"a": 1, "b": 1}, "inner", "outer")


def test_the_callback_sees_its_caller_on_the_stack():
    def inner():
        return 1

    def outer():
        return inner()

    names = []
    hook.install(lambda view: names.append(sys._getframe(1).f_code.co_name))
    hook.run_hooked(outer)
    assert "outer" in names


def test_deep_and_endless_recursion():
    def down(n):
        return 0 if n == 0 else down(n - 1)

    def endless():
        return endless()

    hook.install(lambda view: None)
    assert hook.run_hooked(down, 300) == 0
    with pytest.raises(RecursionError):
        hook.run_hooked(endless)


def test_replaced_frames_at_many_stack_depths():
    def inner(a, b, c):
        d = a + b
        return d + c

    def down(n):
        return inner(n, 1, 2) if n == 0 else (inner(n, 1, 2), down(n - 1))[1]

    hook.install(lambda view: None)
    hook.attach(inner.__code__, [entry_for(3, call=lambda a, b, c: a)])
    for n in range(0, 300, 7):
        assert hook.run_hooked(down, n) == 0


def test_functions_without_arguments_or_locals():
    def inner():
        pass

    hook.install(lambda view: None)
    hook.attach(inner.__code__, [entry_for(0, call=lambda: "x")])
    assert hook.run_hooked(lambda: [inner() for _ in range(1000)]) == ["x"] * 1000


AT_EXIT = """
import atexit, os
from torchweld.frame import hook
from torchweld.frame.program import Builder, Entry

def inner(x):
    return x

class Late:
    def __del__(self):
        print("finalized", inner(3))

entry = Entry(Builder(1).build(), [], lambda: "compiled")
hook.install(lambda view: None)
hook.attach(inner.__code__, [entry])
atexit.register(lambda: print("atexit", inner(2)))
hook.hook_enter()
late = Late()
pid = os.fork()
if pid == 0:
    print("child", inner(1), flush=True)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""


def test_fork_and_exit_inside_a_region():
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n") == ["child compiled", "atexit compiled", "finalized 3", ""]


def test_a_thread_with_a_small_stack():
    def down(n):
        return 0 if n == 0 else down(n - 1)

    hook.install(lambda view: None)
    found = []
    old = threading.stack_size(256 * 1024)
    try:
        t = threading.Thread(target=lambda: found.append(hook.run_hooked(down, 100)))
        t.start()
        t.join()
    finally:
        threading.stack_size(old)
    assert found == [0]


def test_threads_in_regions_of_their_own():
    def inner(x, **kw):
        return "eager"

    hook.install(lambda view: [entry_for(2, call=lambda x, kw: (x, kw["t"]))]
                 if view.code is inner.__code__ else None)
    wrong = []

    def work(t):
        with hook.Hooked():
            for i in range(20_000):
                if inner(i, t=t) != (i, t):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_hooked_calls_leak_nothing():
    marker = object()

    def inner(x, **kw):
        return x

    def fails(x):
        return x

    def call(*args):
        raise KeyError

    def loop(n):
        for _ in range(n):
            inner(marker, k=marker)
            with contextlib.suppress(KeyError):
                fails(marker)

    hook.install(lambda view: None)
    hook.attach(inner.__code__, [entry_for(2)])
    hook.attach(fails.__code__, [entry_for(1, call=call)])

    def counts():
        gc.collect()
        return [sys.getrefcount(x) for x in (marker, inner, inner.__code__, fails.__code__)] + [
            len(gc.get_objects())]

    hook.run_hooked(loop, 100)
    before = counts()
    hook.run_hooked(loop, 50_000)
    after = counts()
    assert after[:4] == before[:4] and abs(after[4] - before[4]) < 20
