"""collection_paused: on again when the last block ends, and only if it was on before."""

import gc

import pytest
import torch

import torchweld
from torchweld.base.collection import collection_paused


def test_blocks_nest_and_end_with_errors():
    with collection_paused():
        with pytest.raises(KeyError), collection_paused():
            raise KeyError
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_nothing_is_collected_while_a_graph_is_compiled():
    seen = []

    def backend(gm, examples):
        seen.append(gc.isenabled())
        return gm.forward

    torchweld.compile(lambda x: x + 1, backend=backend)(torch.ones(3))
    assert seen == [False] and gc.isenabled()
