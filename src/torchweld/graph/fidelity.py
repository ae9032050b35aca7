"""Keeps functional values laid out and aliased as the captured program's tensors are.

The functional form of an in-place operator makes a new tensor, whose strides may differ from those
of the tensor that eager writes to. Later calls decide by strides whether to copy or to make a
view (`contiguous`, `reshape`), so a difference could change what aliases what.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from torchweld.base.errors import Unsupported
from torchweld.base.loc import NOWHERE
from torchweld.graph.functional import (
    count_writes,
    is_base,
    is_wrapped,
    replace_value,
    share_storage,
    storage_of,
    unwrap,
)
from torchweld.graph.layout import same_strides, with_layout
from torchweld.ir.graph import LOC, VAL
from torchweld.ir.predicted import below_functionalization

# A functional tensor and what capture knows about it.
Pair = tuple[Tensor, Tensor]

# Change strides in place: capture's fakes then show the last layout, not the one at each node.
_RESHAPING = frozenset(
    ("t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "as_strided_")
)


class Fidelity:
    """Watches one run: `before` and `after` bracket each captured node.

    env: what the nodes produced so far (the interpreter's). Nothing is checked for nodes whose
    captured value is unknown.
    """

    def __init__(self, gm: GraphModule, env: dict[Node, Any]) -> None:
        self._env = env
        self._exact = not any(_name(node) in _RESHAPING for node in gm.graph.nodes)
        self._diverged = False
        self._operands: list[Pair] = []
        self._writes: list[int] = []

    def before(self, node: Node) -> None:
        """Note the state of the tensors that the node gets."""
        self._operands = []
        for arg in node.all_input_nodes:
            self._operands += pairs(self._env[arg], arg.meta.get(VAL))
        self._writes = [count_writes(x) for x, _ in self._operands]

    def after(self, node: Node, result: Any) -> None:
        """Restore the layout of what the node wrote or made.

        Errors: Unsupported W201 when it cannot be restored and aliases come out differently.
        """
        results = list(pairs(result, node.meta.get(VAL)))
        for (x, captured), writes in zip(self._operands, self._writes, strict=True):
            if count_writes(x) != writes:
                self._restore(node, x, captured)
        for x, captured in results:
            if not _alike(unwrap(x), captured):
                self._restore(node, x, captured)
        if self._diverged:
            check_aliases(node, results, self._operands)

    def _restore(self, node: Node, x: Tensor, captured: Tensor) -> None:
        base = (x, captured) if is_base(x) else self._base_of(x)
        if base is None:
            self._diverged = self._diverged or not _alike(unwrap(x), captured)
            return
        whole, like = base
        value = unwrap(whole)
        if _alike(value, like):
            return
        if not self._exact:
            raise _refusal(node, "writes to memory whose layout was changed in place")
        with below_functionalization():
            moved = with_layout(value, like.stride())
        if _alike(moved, like):
            replace_value(whole, moved)
        else:
            self._diverged = True

    def _base_of(self, x: Tensor) -> Pair | None:
        for node, value in self._env.items():
            for whole, captured in pairs(value, node.meta.get(VAL)):
                if share_storage(whole, x) and is_base(whole):
                    return whole, captured
        return None


def check_aliases(node: Node, results: Sequence[Pair], operands: Sequence[Pair]) -> None:
    """Refuse a run in which other tensors share memory than in the captured program.

    Errors: Unsupported W201.
    """
    ours: dict[int, set[int]] = {}
    theirs: dict[int, set[int]] = {}
    for x, captured in operands:
        own, other = storage_of(x), storage_of(captured)
        ours.setdefault(own, set()).add(other)
        theirs.setdefault(other, set()).add(own)
    for out, captured_out in results:
        own, other = storage_of(out), storage_of(captured_out)
        if ours.get(own, {other}) != {other} or theirs.get(other, {own}) != {own}:
            raise _refusal(node, "makes a view where eager makes a copy, or the reverse")


def _refusal(node: Node, why: str) -> Unsupported:
    return Unsupported("W201", f"{node.target} {why}", at=node.meta.get(LOC, NOWHERE))


def _alike(x: Tensor, captured: Tensor) -> bool:
    return x.shape != captured.shape or same_strides(x, captured)


def pairs(value: Any, captured: Any) -> Iterator[Pair]:
    """The functional tensors in `value` beside the captured ones in the same places."""
    if is_wrapped(value):
        if isinstance(captured, Tensor):
            yield value, captured
    elif isinstance(value, (tuple, list)) and isinstance(captured, (tuple, list)):
        for item, like in zip(value, captured, strict=False):
            yield from pairs(item, like)


def _name(node: Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
