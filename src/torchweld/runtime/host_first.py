"""A Program for a GPU whose numbers are computed on the CPU before it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchweld.ir.program import HostPart
from torchweld.runtime.executable import Around, Executable


class HostFirst(Around):
    """An Executable of two: `host` makes numbers, which `main` takes behind the inputs."""

    def __init__(self, host: Executable, main: Executable, part: HostPart) -> None:
        super().__init__(main)
        self.host = host
        self.part = part
        self._n_inputs = main.program.n_inputs - part.crossing

    def as_called(self, fn: Callable[..., object] | None) -> Callable[..., object] | None:
        return None if fn is None else lambda *x: fn(*x[: self._n_inputs])

    @property
    def eager(self) -> Callable[..., object] | None:
        return self.main.eager

    @eager.setter
    def eager(self, fn: Callable[..., object] | None) -> None:
        """Where the user captures a stream, the numbers have been written already."""
        self.main.eager = None

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        part = self.part
        made = self.host(*[inputs[i] for i in part.takes])
        outs = self.main(*inputs, *made[: part.crossing])  # type: ignore[arg-type]
        if not part.gives:
            return outs
        whole = list(outs)
        for place, x in zip(part.gives, made[part.crossing :], strict=True):
            whole[place] = x
        return tuple(whole)
