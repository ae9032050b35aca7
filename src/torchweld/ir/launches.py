"""Launches of Triton kernels that the user wrote, as operators of a graph.

A captured graph calls `launch`, which runs the kernel as Python would. On functional tensors it
calls the operator torchweld::launched, which runs it on copies and gives the new values of what the
kernel writes. Both know the launch by a number: graphs and launch lists hold no objects.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


@dataclass(frozen=True, slots=True)
class Slot:
    """An argument that is the tensor at this position."""

    place: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch, but for its tensors.

    kernel: what `triton.jit`, `autotune` or `heuristics` made; equal only to itself.
    chosen: names of arguments that decide the grid, `grids`: their values -> the grid.
    args, kwargs: constants and Slots. written: the tensors that the kernel may write to.
    """

    kernel: Any
    chosen: tuple[str, ...]
    grids: tuple[tuple[tuple[Any, ...], tuple[int, ...]], ...]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    written: tuple[int, ...]

    def run(self, tensors: Sequence[Tensor]) -> None:
        """Launch it, by Triton's own launcher."""
        args = [_given(a, tensors) for a in self.args]
        kwargs = {k: _given(a, tensors) for k, a in self.kwargs}
        self.kernel[self.grid if self.chosen else self.grids[0][1]](*args, **kwargs)

    def grid(self, meta: dict[str, Any]) -> tuple[int, ...]:
        """The grid for the configuration that Triton has chosen."""
        return dict(self.grids)[tuple(_plain(meta[name]) for name in self.chosen)]


def _given(x: Any, tensors: Sequence[Tensor]) -> Any:
    return tensors[x.place] if isinstance(x, Slot) else x


def _plain(x: Any) -> Any:
    """A constant without the wrapper that Triton may have put around it."""
    return getattr(x, "value", x)


LAUNCHES: list[Launch] = []
_numbers: dict[object, int] = {}
_lock = threading.Lock()


def number_of(made: Launch) -> int:
    """The number of a launch; equal launches have the same."""
    key = (id(made.kernel), made.chosen, made.grids, _typed(made.args), _typed(made.kwargs),
           made.written)  # fmt: skip
    with _lock:
        if key not in _numbers:
            _numbers[key] = len(LAUNCHES)
            LAUNCHES.append(made)  # which keeps the kernel, and so its id
        return _numbers[key]


def _typed(xs: Iterable[Any]) -> tuple[Any, ...]:
    """1, 1.0 and True are different arguments, and so are 0.0 and -0.0."""
    return tuple((type(x), _typed(x) if isinstance(x, tuple) else repr(x) if isinstance(x, float)
                  else x) for x in xs)  # fmt: skip


def launch(number: int, tensors: Sequence[Tensor]) -> None:
    """The launch in a captured graph: it writes to its tensors. Autograd does not see it."""
    made = LAUNCHES[number]
    with torch.no_grad():
        if _is_functional(tensors[0]):
            news = LAUNCHED(list(tensors), number)
            for i, new in zip(made.written, news, strict=True):
                tensors[i].copy_(new)
        elif isinstance(tensors[0], FakeTensor):
            for i in made.written:
                if not tensors[i].is_inference():
                    torch.autograd.graph.increment_version(tensors[i])
        else:
            made.run(tensors)


_is_functional: Any = torch._is_functional_tensor


def _real(tensors: Sequence[Tensor], number: int, blank: Sequence[int] = ()) -> list[Tensor]:
    made, given = LAUNCHES[number], list(tensors)
    for i in made.written:
        copy = _like(given[i])
        given[i] = copy if i in blank else copy.copy_(given[i])
    made.run(given)
    return [given[i] for i in made.written]


def _fake(tensors: Sequence[Tensor], number: int, blank: Sequence[int] = ()) -> list[Tensor]:
    return [_like(tensors[i]) for i in LAUNCHES[number].written]


def _like(x: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


_LIBRARY: Any = torch.library.Library
_library = _LIBRARY("torchweld", "FRAGMENT")
# blank: tensors whose elements mean nothing before the launch
_library.define("launched(Tensor[] tensors, int number, int[] blank=[]) -> Tensor[]")
_library.impl("launched", _real, "CompositeExplicitAutograd")
torch.library.register_fake("torchweld::launched", _fake, lib=_library)
LAUNCHED: Any = torch.ops.torchweld.launched.default
