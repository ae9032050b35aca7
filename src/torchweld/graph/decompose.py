"""Which operators are replaced by others, and by what.

An operator that lowering handles stays. One that is not handled and has no row here stays too, and
runs in ATen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._ops import OpOverload

from torchweld.base.config import Config
from torchweld.graph.decomps import amp as amp
from torchweld.graph.decomps import backward as backward  # each registers its rows
from torchweld.graph.decomps import copies as copies
from torchweld.graph.decomps import division as division
from torchweld.graph.decomps import foreach as foreach
from torchweld.graph.decomps import random as random
from torchweld.graph.decomps import recurrent as recurrent
from torchweld.graph.decomps.table import OWN

aten = torch.ops.aten

# Operators that torch's table takes apart as well as we would.
FROM_TORCH: tuple[OpOverload, ...] = (
    aten.binary_cross_entropy.default,
    aten.dist.default,
)


def decompositions(cfg: Config) -> Mapping[OpOverload, Callable[..., Any]]:
    """The rules in force: none if cfg.skip names `decompose`."""
    return {} if "decompose" in cfg.skip else _all()


@lru_cache(maxsize=1)
def _all() -> Mapping[OpOverload, Callable[..., Any]]:
    rules: dict[OpOverload, Callable[..., Any]] = {
        op: decomposition_table[op] for op in FROM_TORCH if op in decomposition_table
    }
    rules.update(OWN.items())
    return rules
