"""Transformers models with random weights: captured whole, compiled, equal to eager."""

from __future__ import annotations

import copy

import pytest
import torch
from models import CACHED, ZOO, compiled_and_eager, make, unequal

import torchweld


@pytest.fixture(scope="module", params=sorted(ZOO))
def outcome(request):
    """One model compiled and called once; the tests of this module each look at one side of it."""
    work = make(request.param)
    compiled, got, want = compiled_and_eager(work)
    return work, compiled, got, want, torchweld.statistics()


def test_model_is_one_graph_without_breaks(outcome):
    *_, counts = outcome
    reasons = [why.text() for why in torchweld.pipeline.STATISTICS.refusals]
    assert (counts["graphs"], counts["breaks"]) == (1, 0), reasons


def test_model_runs_generated_kernels(outcome):
    *_, counts = outcome
    assert (counts["aten_graphs"], counts["internal_errors"]) == (0, 0)
    assert counts["kernels"] > 0


def test_model_equals_eager(outcome):
    _, _, got, want, _ = outcome
    assert unequal(got, want) == []


def test_second_call_does_not_recompile(outcome):
    work, compiled, *_ = outcome
    before = torchweld.statistics()["captures"]
    with torch.no_grad():
        work.call(compiled)
    assert torchweld.statistics()["captures"] == before


@pytest.mark.parametrize("name", sorted(CACHED))
def test_new_cache_is_returned(name):
    _, got, want = compiled_and_eager(make(name, use_cache=True))
    assert torchweld.statistics()["breaks"] == 0
    assert unequal(got, want) == []


@pytest.mark.parametrize("name", sorted(CACHED))
def test_given_cache_grows_as_in_eager(name):
    work = make(name, use_cache=True)
    with torch.no_grad():
        filled = work.call().past_key_values
        step = {"input_ids": work.kwargs["input_ids"][:, :1], "use_cache": True}
        mine, theirs = copy.deepcopy(filled), copy.deepcopy(filled)
        torchweld.reset()
        got = torchweld.compile(work.fn)(**step, past_key_values=mine)
        want = work.fn(**step, past_key_values=theirs)
    assert torchweld.statistics()["breaks"] == 0
    assert unequal((got, mine), (want, theirs)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ZOO))
def test_model_of_published_size(name):
    _, got, want = compiled_and_eager(make(name, "full"))
    counts = torchweld.statistics()
    assert (counts["graphs"], counts["breaks"], counts["aten_graphs"]) == (1, 0, 0)
    assert unequal(got, want, scale=50.0) == []
