"""Threads at random: compile, recompile, break, suspend, fail, train, drop and forget, at once."""

from __future__ import annotations

from random import Random

import pytest
from tests.stress.threads_run import run
from tests.stress.works import WORKS

import torchweld


@pytest.mark.parametrize("work", WORKS, ids=lambda w: w.__name__)
def test_a_work_succeeds_alone(work):
    torchweld.reset()
    work(Random(0))
    assert torchweld.statistics()["internal_errors"] == 0


@pytest.mark.parametrize("seed", range(3))
def test_eight_threads_at_once(seed):
    assert run(seed, threads=8, rounds=4) == []
