"""Control flow inside of a graph: nodes that run one of two graphs, or one graph again and again.

Where a graph is made functional, such a node is the operator `torchweld::run`, which finds it by a
number and runs it as it is; its gradients are those of what it runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from torchweld.ir.nested import Body, Nested, has_no_value, tensors_in

# a loop of so many rounds becomes operators of the graph around it
_UNROLLED = 4
_numbers = itertools.count()
_known: WeakValueDictionary[int, Control] = WeakValueDictionary()


class Control(Nested):
    """A node of tensors. shape: its result, with None for tensors."""

    def __init__(self, name: str, shape: Any) -> None:
        super().__init__(name)
        self.shape = shape
        self.number = next(_numbers)
        _known[self.number] = self

    def run(self, inputs: Sequence[Tensor]) -> Any:
        """The result, where the tensors have values."""
        raise NotImplementedError

    def predict(self, inputs: Sequence[Tensor]) -> Any:
        """A result with the same metadata, of tensors without values."""
        raise NotImplementedError

    def __call__(self, inputs: Sequence[Tensor]) -> Any:
        wanted = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
        if wanted or not any(has_no_value(x) for x in inputs):
            return self.run(inputs)
        found = torch.ops.torchweld.run(self.number, list(inputs))
        return filled(self.shape, iter(found))


def holes(x: Any) -> Any:
    """A result with None in the place of its tensors; constants are kept in lists of one."""
    if isinstance(x, Tensor):
        return None
    if isinstance(x, dict):
        return {k: holes(v) for k, v in x.items()}
    if isinstance(x, tuple):
        return tuple(holes(v) for v in x)
    return [holes(v) for v in x] if isinstance(x, list) else Constant(x)


class Constant:
    """A part of a result that is no tensor."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


def filled(shape: Any, tensors: Any) -> Any:
    """A result from what `holes` has left of it, and its tensors."""
    if shape is None:
        return next(tensors)
    if isinstance(shape, Constant):
        return shape.value
    if isinstance(shape, dict):
        return {k: filled(v, tensors) for k, v in shape.items()}
    return type(shape)(filled(v, tensors) for v in shape)


class Branch(Control):
    """cond: the inputs are the predicate and what each side uses."""

    def __init__(self, sides: tuple[Body, Body], n_first: int, shape: Any) -> None:
        super().__init__("cond", shape)
        self.sides = sides
        self.n_first = n_first

    def run(self, inputs: Sequence[Tensor]) -> Any:
        pred, rest = inputs[0], inputs[1:]
        if pred:
            return self.sides[0](*rest[: self.n_first])
        return self.sides[1](*rest[self.n_first :])

    def predict(self, inputs: Sequence[Tensor]) -> Any:
        return self.sides[0](*inputs[1 : 1 + self.n_first])


class Loop(Control):
    """while_loop: the inputs are what is carried, and what the two functions use."""

    def __init__(self, bodies: tuple[Body, Body], n: int, n_first: int, shape: Any) -> None:
        super().__init__("while_loop", shape)
        self.bodies = bodies
        self.n = n
        self.n_first = n_first

    def run(self, inputs: Sequence[Tensor]) -> Any:
        goes_on, body = self.bodies
        carried, rest = inputs[: self.n], inputs[self.n :]
        asked, used = rest[: self.n_first], rest[self.n_first :]
        if not goes_on(*carried, *asked):
            return tuple(x.clone() for x in carried)
        while True:
            carried = body(*carried, *used)
            if not goes_on(*carried, *asked):
                return tuple(carried)

    def predict(self, inputs: Sequence[Tensor]) -> Any:
        return tuple(x.clone() for x in inputs[: self.n])


class Scan(Control):
    """scan and map: the inputs are what is carried, what is walked along, and what is used.

    body(*carried, *slices, *used) gives (carried, results), or results where nothing is carried;
    those of all rounds are put together along `into`.
    """

    def __init__(self, name: str, body: Body, counts: tuple[int, int], dim: int, reverse: bool,
                 shape: Any, into: int) -> None:  # fmt: skip
        super().__init__(name, shape)
        self.body = body
        self.counts = counts
        self.dim = dim
        self.reverse = reverse
        self.into = into

    def __call__(self, inputs: Sequence[Tensor]) -> Any:
        rounds = inputs[self.counts[0]].shape[self.dim]
        return self.run(inputs) if rounds <= _UNROLLED else super().__call__(inputs)

    def run(self, inputs: Sequence[Tensor]) -> Any:
        n, m = self.counts
        carried, along, used = inputs[:n], inputs[n : n + m], inputs[n + m :]
        order = range(along[0].shape[self.dim])
        rows: list[list[Tensor]] = []
        kept: Any = None
        for i in reversed(order) if self.reverse else order:
            kept, made = self._round(carried, [x.select(self.dim, i) for x in along], used)
            carried = tensors_in(kept)
            rows.append(tensors_in(made))
        return self._result(kept, self.together(made, rows))

    def _round(self, carried: Sequence[Tensor], slices: Sequence[Tensor],
               used: Sequence[Tensor]) -> Any:  # fmt: skip
        out = self.body(*carried, *slices, *used)
        return out if self.counts[0] else ((), out)

    def _result(self, kept: Any, together: Any) -> Any:
        return (kept, together) if self.counts[0] else together

    def together(self, like: Any, rows: list[list[Tensor]]) -> Any:
        """Results of all rounds, in the structure of one round's."""
        columns = [torch.stack(c[::-1] if self.reverse else c).movedim(0, self._place(c[0]))
                   for c in map(list, zip(*rows, strict=True))]  # fmt: skip
        return filled(holes(like), iter(columns))

    def _place(self, one: Tensor) -> int:
        return self.into if self.into <= one.dim() else 0

    def predict(self, inputs: Sequence[Tensor]) -> Any:
        n, m = self.counts
        carried, along, used = inputs[:n], inputs[n : n + m], inputs[n + m :]
        kept, made = self._round(carried, [x.select(self.dim, 0) for x in along], used)
        rows = [tensors_in(made)] * along[0].shape[self.dim]
        return self._result(kept, self.together(made, rows))


# ------------------------------------------------------------------------------ the operator
_LIBRARY: Any = torch.library.Library("torchweld", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("run(int number, Tensor[] inputs) -> Tensor[]")


def _run(number: int, inputs: list[Tensor]) -> list[Tensor]:
    return tensors_in(_known[number].run(inputs))


def _predict(number: int, inputs: list[Tensor]) -> list[Tensor]:
    return tensors_in(_known[number].predict(inputs))


_LIBRARY.impl("run", _run, "CompositeExplicitAutograd")
_fake: Callable[..., Any] = torch.library.register_fake("torchweld::run", lib=_LIBRARY)
_fake(_predict)
