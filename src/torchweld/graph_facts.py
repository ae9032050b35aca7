"""What a captured graph says of its inputs, and the text forms of what is made of it.

pipeline.py asks before it knows whether there are Programs to make (programs.py): that module loads
four stages, which nobody needs who only captures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from torchweld.base import config, events
from torchweld.capture.symbolic import is_owned
from torchweld.ir.graph import DRAWN, OWNED, SETTINGS, VAL, GraphSettings
from torchweld.ir.region import Region
from torchweld.ir.size_node import hint_of


def dump(number: int, stage: str, suffix: str, text: Callable[[], str], channel: str) -> None:
    """Show or write a stage's text form, if somebody asked for it."""
    cfg = config.current()
    if cfg.dump:
        folder = Path(cfg.dump)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:04d}_{stage}.{suffix}").write_text(text(), encoding="utf-8")
    if events.wants(channel):
        events.emit(channel, stage, "\n" + text())


def values_of_inputs(gm: GraphModule) -> list[Any]:
    """The fake tensors and numbers that stand for the inputs of a captured graph."""
    return [n.meta[VAL] for n in gm.graph.nodes if n.op == "placeholder"]


def settings_of(gm: GraphModule) -> GraphSettings:
    found = gm.meta.get(SETTINGS)
    return found if isinstance(found, GraphSettings) else GraphSettings()


def owned_inputs(gm: GraphModule) -> frozenset[int]:
    """The positions of the inputs that are parameters or buffers of a module."""
    places = [n for n in gm.graph.nodes if n.op == "placeholder"]
    return frozenset(i for i, n in enumerate(places) if n.meta.get(OWNED))


def examples(gm: GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """A value for each placeholder of a captured graph: the inputs, numbers as they are at capture,
    and zeros where something is drawn."""
    given = iter(inputs)
    found: list[Any] = []
    for place in gm.graph.find_nodes(op="placeholder"):
        fake = place.meta[VAL]
        if place.meta.get(DRAWN):
            sizes, strides = ([int(hint_of(n)) for n in ns] for ns in (fake.shape, fake.stride()))
            made = torch.empty_strided(sizes, strides, dtype=fake.dtype, device=fake.device)
            found.append(made.zero_())
        else:
            found.append(next(given) if isinstance(fake, torch.Tensor) else hint_of(fake))
    return found


def mark_owned(region: Region, values: Sequence[object]) -> None:
    """Mark the graph's inputs that are parameters, or parameters and buffers of a module."""
    places = [n for n in region.graph.graph.nodes if n.op == "placeholder"]
    tensors = [n for n in places if isinstance(n.meta[VAL], torch.Tensor) and not n.meta.get(DRAWN)]
    for place, source, value in zip(tensors, region.inputs, values, strict=True):
        if isinstance(value, torch.nn.Parameter) or (
                is_owned(source) and isinstance(value, torch.Tensor)):  # fmt: skip
            place.meta[OWNED] = True
