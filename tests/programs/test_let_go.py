"""What a frame lets go: weak references that are empty from then on, and code that runs when
something ends, in eager's order."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchweld

LOG: list[str] = []
X = torch.arange(4.0)
Given = Callable[[], tuple[Any, ...]]


class Obj:
    def __init__(self, **attrs):
        vars(self).update(attrs)


class Loud(Obj):
    def __del__(self):
        LOG.append("end")


class Slotted:
    __slots__ = ("k",)


def same(fn: Callable[..., Any], given: Given, breaks: int) -> None:
    """`fn` gives eager's results and log in each of three calls, with so many breaks."""
    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager")
    for _ in range(3):
        seen = []
        for run in (fn, compiled):
            LOG.clear()
            value, *rest = run(X, *given())
            seen.append((value.tolist(), rest, list(LOG)))
        assert seen[0] == seen[1]
    counts = torchweld.statistics()
    assert (counts["breaks"], counts["internal_errors"]) == (breaks, 0), counts


def holder() -> tuple[Any, ...]:
    o = Obj(k=Obj())
    return o, weakref.ref(o.k)


def slot() -> tuple[Any, ...]:
    o = Slotted()
    o.k = Obj()
    return o, weakref.ref(o.k)


def in_dict() -> tuple[Any, ...]:
    o = {"k": Obj()}
    return o, weakref.ref(o["k"])


def in_list() -> tuple[Any, ...]:
    o = [Obj()]
    return o, weakref.ref(o[0])


def assign(o):
    o.k = 1


def delete(o):
    del o.k


def put(o):
    o["k"] = 1


def pop_key(o):
    o.pop("k")


def put_first(o):
    o[0] = 1


def pop(o):
    o.pop()


def clear(o):
    o.clear()


def bound(o):
    kept = o.k
    o.k = None
    return kept.__class__


WRITES = [
    (assign, holder), (delete, holder), (assign, slot), (put, in_dict), (pop_key, in_dict),
    (clear, in_dict), (put_first, in_list), (pop, in_list), (clear, in_list), (bound, holder),
]  # fmt: skip


@pytest.mark.parametrize(("write", "given"), WRITES)
def test_a_reference_to_what_was_overwritten_is_empty(write, given):
    def program(x, o, ref):
        y = x * 2 + 1
        before = ref() is None
        write(o)
        return (y if ref() is None else y + 100) * 2, before

    same(program, given, breaks=3)  # a reference is another object in every call


def test_a_reference_of_the_frame_is_empty_behind_a_write():
    def program(x, o):
        ref, far = weakref.ref(o.k), weakref.ref(o.k.k)
        y = x * 2 + 1
        o.k = 1
        y = y if ref() is None else y + 100
        return y * 2, far() is None

    same(program, lambda: (Obj(k=Obj(k=Obj())),), breaks=1)


def test_what_a_variable_holds_is_there_behind_a_write():
    def program(x, o):
        ref, far = weakref.ref(o.k), weakref.ref(o.k.k)
        kept = o.k
        o.k = 1
        return x * 2 + 1, ref() is kept, far() is None

    same(program, lambda: (Obj(k=Obj(k=Obj())),), breaks=0)


def test_numbers_and_tensors_that_are_overwritten_are_no_reason_to_break():
    parent = Obj(scale=3.0)

    def program(x, o):
        o.count += 1
        o.last = x * 2
        return x * o.parent().scale + o.count, o.parent() is parent

    same(program, lambda: (Obj(count=1, last=torch.ones(2), parent=weakref.ref(parent)),), 0)


def test_a_container_of_references_forgets_what_was_overwritten():
    def program(x, o, table):
        o.k = 1
        return x * 2 + len(table), "a" in table, list(table)

    def given():
        o = Obj(k=Obj())
        return o, weakref.WeakValueDictionary(a=o.k)

    same(program, given, breaks=1)


def test_a_global_and_a_closure_are_overwritten():
    kept = Obj()

    def program(x):
        nonlocal kept
        ref = weakref.ref(kept)
        kept = Obj()
        return x * 2 + (ref() is None), ref() is None

    same(program, tuple, breaks=1)


def deleted(x):
    a = Obj()
    weakref.finalize(a, LOG.append, "end")
    y = (x * 2 + 1) / 3
    del a
    LOG.append("behind")
    return (y,)


def overwritten(x):
    a = Obj()
    ref = weakref.ref(a, lambda _: LOG.append("end"))
    y = (x * 2 + 1) / 3
    a = None
    LOG.append("behind")
    return y, ref() is a


def asked(x):
    a = Obj()
    end = weakref.finalize(a, LOG.append, "end")
    y = (x * 2 + 1) / 3
    before = end.alive
    del a
    return y * 2, before, end.alive


@pytest.mark.parametrize(("program", "breaks"), [(deleted, 2), (overwritten, 4), (asked, 4)])
def test_a_callback_runs_where_the_variable_is_deleted(program, breaks):
    same(program, tuple, breaks)


def test_an_object_from_outside_ends_where_it_is_overwritten():
    def program(x, o, items):
        LOG.append("before")
        o.k = 1
        y = x * 2 + len(LOG)
        items.pop()
        LOG.append("behind")
        return (y,)

    same(program, lambda: (Obj(k=Loud()), [Loud()]), breaks=3)
