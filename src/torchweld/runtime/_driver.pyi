"""The native driver of launch lists; native.py writes its rows."""

from collections.abc import Callable, Sequence

import torch

from torchweld.ir.program import Program

class Executable:
    def __init__(
        self,
        program: Program,
        n_inputs: int,
        n_groups: int,
        arena_bytes: int,
        specs: tuple[tuple[object, ...], ...],
        steps: tuple[tuple[object, ...], ...],
        outputs: tuple[int, ...],
        mutated: tuple[int, ...],
        settle: Callable[[str, torch.Tensor, int], torch.Tensor],
        view: Callable[[torch.Tensor, int, int], torch.Tensor],
        bump: Callable[[list[torch.Tensor]], None],
        verify: bool,
        /,
    ) -> None: ...
    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]: ...
    def trim(self) -> None: ...
    @property
    def driver(self) -> str: ...
    @property
    def program(self) -> Program: ...
    @property
    def counts(self) -> tuple[int, int]: ...

def init(
    libraries: tuple[str, ...],
    tensor_type: type[object],
    sample: torch.Tensor,
    sample_cdata: int,
    keys: tuple[int, ...],
    wrap_stolen: Callable[[object], torch.Tensor] | None,
    internal_error: type[Exception],
    huge_pages: bool,
    /,
) -> Sequence[str]: ...
def describe(
    tensor: torch.Tensor, /
) -> tuple[int, int, int, tuple[int, ...], tuple[int, ...], int]: ...
def make(n: int, /) -> torch.Tensor: ...
def calibrate(tensor: torch.Tensor, storage_cdata: int, /) -> tuple[int, int] | None: ...
