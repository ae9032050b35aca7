"""Random graphs in Triton's interpreter, fused or not: what loop_eval says."""

import copy
import dataclasses

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.codegen.test_random import close, jumps, rounds
from tests.codegen.tile_plans import agree, plain_tiles
from tests.codegen.tile_runs import TileRun
from tests.ir.strategies import EXTERNS, inputs_of, loop_graphs

from torchweld.base.config import Config
from torchweld.base.errors import Unsupported
from torchweld.codegen.run import generate
from torchweld.fuse.run import fuse
from torchweld.ir.loop_eval import evaluate
from torchweld.ir.plan import Tile
from torchweld.ir.rounding import convert

SETTINGS = settings(deadline=None, max_examples=40, derandomize=True, database=None,
                    phases=[Phase.generate], suppress_health_check=list(HealthCheck))  # fmt: skip
TILES = (Tile(1, 4), Tile(4, 1), Tile(2, 4), Tile(16, 16), Tile(1, 1), Tile(4, 2, stages=2))


@SETTINGS
@given(loop_graphs(max_nodes=5), st.sampled_from(TILES), st.data())
def test_random_graphs(g, tile, data):
    if rounds(g) and jumps(g):
        return
    inputs = [[convert(v, b.dtype) for v in values]
              for b, values in zip(g.inputs, data.draw(inputs_of(g)), strict=True)]  # fmt: skip
    theirs = copy.deepcopy(inputs)
    want = evaluate(g, theirs, EXTERNS)
    fused = fuse(g, dataclasses.replace(Config(), interpret=True))
    for plan in (plain_tiles(g, tile), fused):
        try:
            program = generate(plan)
        except Unsupported:
            continue
        mine = copy.deepcopy(inputs)
        got = TileRun(program, g, mine, EXTERNS).outputs
        agree(g, program, got, want, mine, theirs, lambda x, y, d: close(x, y, d, rounds(g)))
