"""What a broken frame has deleted is freed at the next break, not at its end."""

from __future__ import annotations

import weakref

import torch

import torchweld

SEEN: list[bool] = []


@torchweld.disable
def alive(*refs):
    SEEN.append(any(r() is not None for r in refs))


def made_and_deleted(x):
    y = x.sin() * 2 + 1
    z = y + 1
    refs = look(y)
    w = z * y
    del y
    alive(*refs)
    if w.sum() > 100:
        return w
    alive(*refs)
    return w * 2


@torchweld.disable
def look(y):
    return [weakref.ref(y)]


def test_intermediate_results_die_behind_a_break():
    torchweld.reset()
    compiled = torchweld.compile(made_and_deleted, backend="eager")
    x = torch.ones(3)
    for _ in range(3):
        del SEEN[:]
        want = made_and_deleted(x)
        assert SEEN == [False, False]
        del SEEN[:]
        torch.testing.assert_close(compiled(x), want)
        assert SEEN[-1] is False
    assert torchweld.statistics()["breaks"] >= 2
