"""What is said of a graph that fails on its data: eager's exception, and the line of the user's."""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Any

from torch.fx import GraphModule

from torchweld.base.loc import Loc
from torchweld.capture.draws import DEFAULT
from torchweld.capture.modes import MUTATED, undoing
from torchweld.ir.graph import LOC


def raise_as_eager(gm: GraphModule, args: tuple[Any, ...], untouched: bool) -> None:
    """Run a graph operator by operator: what raises in a kernel raises here as in eager, and is
    told with the user's line. What eager has written before is written.

    untouched: whether the kernels have written to no input; else the graph runs on copies, and
    returns if nothing raises in it. What it draws was drawn by the kernels already.
    """
    written = () if untouched else gm.meta.get(MUTATED, ())
    given = [x.clone() if i in written else x for i, x in enumerate(args)]
    drawn = DEFAULT.read()
    try:
        undoing(gm)(*given)
    except Exception as error:
        at = _line(gm, error.__traceback__)
        if at is not None:
            error.add_note(f"in compiled code of {at.text()}")
        raise
    finally:
        DEFAULT.write(drawn)


def _line(gm: GraphModule, tb: TracebackType | None) -> Loc | None:
    """The user's line of the node whose statement in the graph's code raised."""
    nodes = {n.name: n for n in gm.graph.nodes}
    for frame in traceback.extract_tb(tb):
        name = (frame.line or "").split("=")[0].split(":")[0].strip()
        if frame.name == "forward" and name in nodes:
            found = nodes[name].meta.get(LOC)
            return found if isinstance(found, Loc) and found.line else None
    return None
