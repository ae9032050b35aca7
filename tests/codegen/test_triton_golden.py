"""The Triton text of six kernels, as somebody reads it."""

import pytest
from tests.codegen.tile_texts import TEXTS

from torchweld.codegen.run import generate
from torchweld.ir.plan_text import parse


@pytest.mark.parametrize("name", ["gelu_chain", "softmax", "layer_norm", "cross_entropy",
                                  "column_sum", "embedding"])  # fmt: skip
def test_tile(golden, name):
    (artifact,) = generate(parse(TEXTS[name])).artifacts
    golden(artifact.source, "triton")
