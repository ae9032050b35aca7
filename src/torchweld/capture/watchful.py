"""The fake mode of captures: what operators write, draw, and make sizes of.

What an operator writes its results to with out= has their size already, or is new and empty: eager
makes it the right size otherwise, which views of it, and whoever called the frame, would see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.autograd.graph import increment_version

from torchweld.base.loc import Loc
from torchweld.capture.bodies import memory_behind
from torchweld.capture.state import refuse
from torchweld.capture.values.base import ListValue, TensorValue, TupleValue, Value
from torchweld.ir.fake import FakeMode
from torchweld.ir.nested import memory_of
from torchweld.ir.size_makers import SizeMaker, makes, run, suppose_bounds, suppose_place

_BOUNDS: dict[Any, Callable[..., None]] = {
    torch.ops.aten.slice.Tensor: suppose_bounds, torch.ops.aten.select.int: suppose_place,
}  # fmt: skip


_NO_SYMBOLS = ("operator aten::size does not exist", "operator aten::stride does not exist",
               "on tensor with symbolic sizes/strides")  # fmt: skip


def fixes_sizes(error: Exception) -> bool:
    """Whether an operator that C++ composes has failed because sizes are symbols."""
    return any(text in str(error) for text in _NO_SYMBOLS)


class WatchfulMode(FakeMode):  # type: ignore[no-untyped-call]
    """FakeMode that remembers which tensors were written: inference tensors count no versions.

    draws: how many operators drew random numbers. noted: while watching, what memory was written.
    writes: the memory of every tensor that was written, in order. maker: of sizes that only the
    data decides, while they may be made. asked: the tensor whose value an operator has asked for.
    closed: the line, for who draws after the state of the generator was to be set behind the graph,
    shut: for who computes after another setting was to be; None while it is not.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # what gets to torch's memo is what ours does not know and is seldom asked twice; its keys
        # cost as much as many kernels
        self.cache_enabled = False
        self.written: set[int] = set()
        self.draws = 0
        self.closed: Callable[[], Loc] | None = None
        self.shut: Callable[[], Loc] | None = None
        self.watching = 0
        self.noted: set[int] = set()
        self.writes: list[int] = []
        self.maker: SizeMaker | None = None
        self.asked: torch.Tensor | None = None

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.maker is not None and makes(func):
            out = run(self.maker, self, func, args, kwargs or {})
            if out is not NotImplemented:
                return out
        if self.maker is not None and func in _BOUNDS:
            _BOUNDS[func](self.maker.env, *args, **(kwargs or {}))
        if func is torch.ops.aten._local_scalar_dense.default:
            self.asked = args[0]
        if self.shut is not None:
            raise refuse("W106", "an operator behind a change of a setting of torch", self.shut(),
                         "set it before the compiled function is called")  # fmt: skip
        if torch.Tag.nondeterministic_seeded in func.tags and not (
                _keeps_all(func, args, kwargs or {})):  # fmt: skip
            self.draws += 1
            if self.closed is not None:
                why = "random numbers behind a change of the state of their generator"
                raise refuse("W106", why, self.closed())
        if func._schema.is_mutable:
            for i, place in enumerate(func._schema.arguments):
                if place.alias_info is not None and place.alias_info.is_write:
                    given = args[i] if i < len(args) else (kwargs or {}).get(place.name)
                    self.note(given)
        return super().dispatch(func, types, args, kwargs)

    def note(self, given: Any) -> None:
        """These were written."""
        listed = isinstance(given, tuple | list)
        for x in given if listed else (given,):
            if isinstance(x, torch.Tensor):
                self.writes.append(memory_of(x))
                if x.is_inference():
                    self.written.add(memory_of(x))
                    continue
                if self.watching:
                    self.noted.add(memory_of(x))
                if listed:  # operators on lists do not count on fakes what they write
                    increment_version(x)


def _keeps_all(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operator that may drop elements by chance drops none."""
    names = [a.name for a in func._schema.arguments]
    if "dropout_p" not in names:
        return False
    at = names.index("dropout_p")
    return bool((args[at] if at < len(args) else kwargs.get("dropout_p", 0.0)) == 0.0)


# ------------------------------------------------------------------- out=
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
    memory = memory_behind(x.fake)
    return not any(v.fake is not x.fake and memory_behind(v.fake) == memory for v in known)
