"""A sample of the capture zoo: how a call of each kind of model is captured, and what it gives.

`make bench-capture` asks all 40 architectures in all variants.
"""

from __future__ import annotations

import pytest
from models import unequal

import torchweld
from torchweld.workbench.variants import variant

WHOLE = [
    ("albert", "mask"),
    ("bloom", "static cache"),
    ("gemma3", "growing cache"),
    ("gpt2", "labels"),
    ("hubert", "labels"),
    ("llava", "mask"),
    ("mamba2", "growing cache"),
    ("mistral", "static cache"),
    ("modernbert", "mask"),
    ("olmoe", "forward"),
    ("pegasus", "growing cache"),
    ("recurrent-gemma", "forward"),
    ("segformer", "labels"),
    ("swin", "forward"),
]


def captured(asked):
    """What eager gives, what compiled code gives, and the counters; no kernels are made."""
    want = asked.run()
    torchweld.reset()
    got = asked.run(lambda fn: torchweld.compile(fn, backend="eager"))
    return want, got, torchweld.statistics()


@pytest.mark.parametrize(("name", "how"), WHOLE)
def test_call_is_one_graph_and_equals_eager(name, how):
    want, got, counts = captured(variant(name, how))
    reasons = [why.text() for why in torchweld.pipeline.STATISTICS.refusals]
    assert (counts["graphs"], counts["breaks"], counts["internal_errors"]) == (1, 0, 0), reasons
    assert unequal(got, want) == []


def test_generate_with_a_static_cache_is_a_graph_for_the_prompt_and_one_for_the_tokens():
    want, got, counts = captured(variant("qwen3-moe", "generate, static cache"))
    assert (counts["graphs"], counts["breaks"]) == (2, 0)
    assert got.tolist() == want.tolist()


def test_generate_with_a_growing_cache_is_three_graphs_however_many_tokens_it_makes():
    want, got, counts = captured(variant("llama", "generate"))
    assert (counts["graphs"], counts["breaks"]) == (3, 0)
    assert got.tolist() == want.tolist()
