"""out=: what an operator writes its results to has their size already, or is new and empty.

Eager makes it the right size otherwise, which views of it, and whoever called the frame, would see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from torchweld.base.loc import Loc
from torchweld.capture.state import refuse
from torchweld.capture.values.base import ListValue, TensorValue, TupleValue, Value
from torchweld.ir.nested import memory_of


def check_outs(out: Value, run: Callable[[Any], Any], known: Iterable[TensorValue], mode: Any,
               at: Loc) -> None:  # fmt: skip
    """Try an operator with fresh tensors in the place of those that it is to write to.

    run: the operator on fakes, of what is given as out=. known: the tensors of the graph.
    Errors: GraphBreak W104 if it would make one of another size; the operator's own.
    """
    given = list(_tensors(out))
    if not given:
        return
    with mode:
        tried = [torch.empty_strided(x.fake.shape, x.fake.stride(), dtype=x.fake.dtype,
                                     device=x.fake.device) for x in given]  # fmt: skip
    run(tried[0] if isinstance(out, TensorValue) else tuple(tried))
    for x, other in zip(given, tried, strict=True):
        same = tuple(other.shape) == tuple(x.fake.shape)
        if not same and not (_is_new(x) and _is_alone(x, known)):
            raise refuse("W104", "an out= of another size than the result", at)


def _tensors(out: Value) -> Iterator[TensorValue]:
    for x in out.items if isinstance(out, ListValue | TupleValue) else (out,):
        if isinstance(x, TensorValue):
            yield x


def _is_new(x: TensorValue) -> bool:
    """Whether it is `torch.empty(0)` of the frame, which is there to be made larger."""
    return x.source is None and not x.fake._is_view() and x.fake.numel() == 0


def _is_alone(x: TensorValue, known: Iterable[TensorValue]) -> bool:
    """Whether no other tensor has its memory."""
    memory = memory_of(x.fake)
    return not any(v.fake is not x.fake and memory_of(v.fake) == memory for v in known)
