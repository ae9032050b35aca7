"""What torch.optim does beside arithmetic: it groups tensors, and asks whether it is compiled."""

from __future__ import annotations

from typing import Any

import torch

from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.values.base import (
    NONE,
    Const,
    DictValue,
    ListValue,
    TensorValue,
    TupleValue,
    Value,
    constant,
)
from torchweld.capture.wrap import file_key

Args = list[Value]
Kwargs = dict[str, Value]


def group_tensors(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Lists of tensors in groups of one device and dtype, in the order in which torch has them."""
    lists = [_items(cap, row) for row in _items(cap, args[0])]
    indexed = constant((*args[1:], *kwargs.values())[0]) if len(args) > 1 or kwargs else False
    fakes = [[x.fake if isinstance(x, TensorValue) else None for x in row] for row in lists]
    try:
        grouped: dict[Any, Any] = torch._C._group_tensors_by_device_and_dtype(fakes, True)
    except RuntimeError as error:
        raise refuse("W104", f"lists of tensors cannot be grouped: {error}", cap.loc()) from None
    made = DictValue()
    for (device, dtype), (_, places) in grouped.items():
        rows: list[Any] = [ListValue([row[i] for i in places] if row else []) for row in lists]
        group = TupleValue([ListValue(rows), ListValue([Const(i) for i in places if indexed])])
        key = TupleValue([Const(device), Const(dtype)])
        filed = file_key(cap, key)
        made.items[filed], made.keys[filed] = group, key
    cap.deliver(made, cont)


def _items(cap: Capture, x: Value) -> list[Value]:
    if not isinstance(x, ListValue | TupleValue):
        raise refuse("W107", f"tensors grouped from a {x.cls().__name__}", cap.loc())
    return cap.force_items(x.items)


def health_check(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Eager's check of a step that somebody records in a CUDA graph of their own."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise refuse("W106", "a step inside of a CUDA graph that is recorded", cap.loc())
    cap.deliver(NONE, cont)

