"""A graph in which the data decides sizes: its pieces, compiled one by one (ADR 0028)."""

from __future__ import annotations

from torch.fx import GraphModule

from torchweld.base import config
from torchweld.base.errors import Refusal
from torchweld.capture.late_inputs import number_places
from torchweld.capture.modes import SETTERS, STEPS, restoring
from torchweld.capture.module import CapturedModule
from torchweld.graph.cut import cut
from torchweld.graph.symbols import env_of
from torchweld.graph_facts import settings_of
from torchweld.ir.expr import atoms
from torchweld.ir.graph import SETTINGS
from torchweld.ir.steps import Steps
from torchweld.pipeline import (
    STATISTICS,
    Compiled,
    compile_graph,
    compile_with_numbers,
    through_aten,
)
from torchweld.runtime.steps import Piece, StepsRunner


def compile_in_pieces(gm: GraphModule) -> Compiled:
    """Falls back to running `gm` through ATen, with the reason. Errors: as of compile_graph."""
    try:
        steps = cut(gm.graph, SETTERS, frozenset(STEPS))
        return through_aten(gm, Refusal("W105", steps)) if isinstance(steps, str) else (
            _compiled(gm, steps))  # fmt: skip
    except Exception as error:
        if config.current().mode == "strict":
            raise
        STATISTICS.internal_errors += 1
        return through_aten(gm, Refusal("W901", f"{type(error).__name__}: {error}"))


def _compiled(gm: GraphModule, steps: Steps) -> Compiled:
    env = env_of(gm.graph)
    assert env is not None
    known, parts, pieces = set(env.supposed()), list[Compiled](), list[Piece]()
    later = {f.symbol for step in steps.steps for f in step.found}
    for step in steps.steps:
        module = CapturedModule(gm, step.graph)
        module.meta[SETTINGS] = settings_of(gm)
        plain = restoring(module, module.forward)
        if step.makes:
            pieces.append(Piece(step, plain, plain))
            later.difference_update(f.symbol for f in step.found)
            continue
        has_numbers = bool(number_places(module))
        made = compile_with_numbers(module) if has_numbers else compile_graph(module)
        parts.append(made)
        # a fact about a size that is made behind the piece is an old one, in other words
        facts = tuple(f for f in env.supposed() if f not in known and later.isdisjoint(
            {*atoms(f.left), *atoms(f.right)}))  # fmt: skip
        pieces.append(Piece(step, made.call, plain, facts))
    STATISTICS.pieces += len(parts)
    return Compiled(StepsRunner(steps, pieces), parts=parts)
