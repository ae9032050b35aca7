"""The readable reference driver: runs a launch list step by step, serially, from Python.

What it does is what the native driver must do; the tests hold both to the same results.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from torchweld.base.errors import InternalError
from torchweld.ir.loop_ops import FAILURES
from torchweld.ir.program import (
    Alloc,
    Call,
    Draw,
    Drop,
    GridLaunch,
    Instruction,
    Launch,
    MakeView,
    Program,
    TensorSpec,
)
from torchweld.runtime.calls import (
    TORCH_DTYPE,
    KeepsInputs,
    callable_for,
    decode,
    promised,
    resolve,
    same_strides,
    tensors_in,
)
from torchweld.runtime.constants import Constants
from torchweld.runtime.draws import captured, draws, take

POISON = 0xFF
_Kernel = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int64, ctypes.c_int64
)


class Grid(Protocol):
    """A GPU kernel, or one that is interpreted: runs so many blocks on these tensors.

    kinds: Triton's types of its parameters. Errors: AssertionError for an index out of range.
    """

    @property
    def kinds(self) -> tuple[str, ...]: ...

    def __call__(self, blocks: int, tensors: Sequence[torch.Tensor], /) -> None: ...


@dataclass(slots=True)
class _Run:
    """One call in flight: the tensors made so far, by number."""

    tensors: dict[int, torch.Tensor]
    arena: torch.Tensor | None = None
    kept: list[torch.Tensor] = field(default_factory=list)


class PythonDriver(KeepsInputs):
    """A Program that can be called.

    functions: the address of every C++ function that it launches; grids: its other kernels.
    """

    driver = "python"
    saves = False
    explain: Callable[..., object] | None = None
    eager: Callable[..., object] | None = None

    def __init__(
        self, program: Program, functions: Mapping[str, int], verify: bool = False,
        constants: Constants | None = None, *, grids: Mapping[str, Grid] | None = None,
    ) -> None:  # fmt: skip
        self.program = program
        self._grids = grids or {}
        self._verify = verify
        self._kernels = {name: _Kernel(address) for name, address in functions.items()}
        self._ops = {s.op: resolve(s.op) for s in program.steps if isinstance(s, Call)}
        self._mutated = mutated_inputs(program)
        self._constants = constants
        self._numbers = {n: s.index for n, s in enumerate(program.tensors) if s.place == "number"}
        self._draws = draws(program)

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The outputs for these inputs.

        Errors: TypeError on a wrong number or kind of inputs, FAILURES from a kernel, and
        whatever an operator raises.
        """
        check_inputs(self.program, inputs, self._verify)
        if self._draws and self.eager and captured():
            return tuple(self.eager(*inputs))  # type: ignore[arg-type]
        known = self._constants(*inputs) if self._constants else ()
        run = _Run(dict(enumerate((*inputs, *known))))
        # Captured graphs contain the casts that autocast would add.
        with torch.no_grad(), torch._C._DisableAutocast():
            self._bind_arena(run)
            run.tensors |= {n: torch.tensor(x, device="cpu") for n, x in self._numbers.items()}
            if self._mutated:  # before views are made: autograd refuses those older than a write
                bump_versions([inputs[i] for i in self._mutated])
            for step in self.program.steps:
                _RUN[type(step)](self, run, step)
        return tuple(None if n is None else run.tensors[n] for n in self.program.outputs)

    def trim(self) -> None:
        """Give back memory kept between calls: this driver keeps none."""

    def _bind_arena(self, run: _Run) -> None:
        specs = [(n, s) for n, s in enumerate(self.program.tensors) if s.place == "arena"]
        if not specs:
            return
        device = self.program.arena_device
        run.arena = torch.empty(self.program.arena_bytes, dtype=torch.uint8, device=device)
        self._poison(run.arena)
        storage = run.arena.untyped_storage()
        for n, spec in specs:
            dtype = TORCH_DTYPE[spec.dtype]
            start = spec.index // dtype.itemsize + spec.offset
            empty = torch.empty(0, dtype=dtype, device=device)
            run.tensors[n] = empty.set_(storage, start, spec.sizes, spec.strides)

    def _alloc(self, run: _Run, step: Alloc) -> None:
        spec = self.program.tensors[step.tensor]
        made = torch.empty_strided(
            spec.sizes, spec.strides, dtype=TORCH_DTYPE[spec.dtype], device=spec.device
        )
        self._poison(made)
        run.tensors[step.tensor] = made

    def _poison(self, t: torch.Tensor) -> None:
        """Under verify, memory that nobody wrote yet reads as NaN, -1 or no bool at all."""
        if self._verify:
            memory = torch.empty(0, dtype=torch.uint8, device=t.device)
            memory.set_(t.untyped_storage()).fill_(POISON)

    def _view(self, run: _Run, step: MakeView) -> None:
        source, spec = run.tensors[step.source], self.program.tensors[step.tensor]
        run.tensors[step.tensor] = torch.as_strided(
            source, spec.sizes, spec.strides,
            view_offset(int(source.storage_offset()), spec, self.program.tensors[step.source]),
        )  # fmt: skip

    def _launch(self, run: _Run, step: Launch) -> None:
        pointers = [run.tensors[n].data_ptr() for n in step.args]
        array = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
        if step.extent > 0:
            status = self._kernels[step.function](array, 0, step.extent)
            if status and self.explain:
                self.explain(*(run.tensors[n] for n in range(self.program.n_inputs)))
            check_status(step.function, status)

    def _grid_launch(self, run: _Run, step: GridLaunch) -> None:
        if step.blocks == 0:
            return
        grid = self._grids[step.function]
        tensors = [run.tensors[n] for n in step.args]
        copies = {n: _aligned(run.tensors[n]) for n, kind in zip(step.args, grid.kinds, strict=True)
                  if misaligned(run.tensors[n], kind)}  # fmt: skip
        try:
            grid(step.blocks, [copies.get(n, t) for n, t in zip(step.args, tensors, strict=True)])
        except AssertionError as error:
            if self.explain:
                self.explain(*(run.tensors[n] for n in range(self.program.n_inputs)))
            raise IndexError(out_of_range(step.function)) from error
        for n, copy in copies.items():
            if n >= self.program.n_inputs or n in self._mutated:
                run.tensors[n].copy_(copy)

    def _call(self, run: _Run, step: Call) -> None:
        args = [decode(a, run.tensors.__getitem__) for a in step.args]
        kwargs = {name: decode(a, run.tensors.__getitem__) for name, a in step.kwargs}
        op = self._ops[step.op]
        made = list(tensors_in(callable_for(op, step, op)(*args, **kwargs)))
        if step.results and len(made) != len(step.results):
            raise InternalError(f"{step.op} gave {len(made)} tensors, not {len(step.results)}")
        for n, t in zip(step.results, made, strict=False):
            kept = promised(step.op, t, self.program.tensors[n], self._verify)
            run.tensors[n] = kept.clone() if _same_storage(kept, run.arena) else kept

    def _draw(self, run: _Run, step: Draw) -> None:
        for n, number in zip((step.seed, step.block), take(step.device, step.count), strict=True):
            run.tensors[n] = torch.tensor(number, dtype=torch.int64, device="cpu")

    def _drop(self, run: _Run, step: Drop) -> None:
        del run.tensors[step.tensor]


_RUN: dict[type[Instruction], Callable[[PythonDriver, _Run, object], None]] = {
    Alloc: PythonDriver._alloc,  # type: ignore[dict-item]
    MakeView: PythonDriver._view,  # type: ignore[dict-item]
    Launch: PythonDriver._launch,  # type: ignore[dict-item]
    GridLaunch: PythonDriver._grid_launch,  # type: ignore[dict-item]
    Call: PythonDriver._call,  # type: ignore[dict-item]
    Draw: PythonDriver._draw,  # type: ignore[dict-item]
    Drop: PythonDriver._drop,  # type: ignore[dict-item]
}


def check_status(function: str, status: int) -> None:
    """Raise what a kernel's status stands for."""
    if status:
        code = next(c for c in FAILURES if status & c)
        raise FAILURES[code](out_of_range(function))


def out_of_range(function: str) -> str:
    return f"index out of range in a compiled kernel ({function})"


def misaligned(t: torch.Tensor, kind: str) -> bool:
    """Whether a kernel's parameter promises a multiple of bytes (":16") that this one is not."""
    multiple = kind.partition(":")[2]
    return bool(multiple) and t.data_ptr() % int(multiple) != 0


def _aligned(t: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides at an address that the allocator chose."""
    span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    flat = t.as_strided((span if t.numel() else 0,), (1,)).clone()
    return flat.as_strided(t.shape, t.stride(), 0)


def view_offset(actual: int, spec: TensorSpec, source: TensorSpec) -> int:
    """The storage offset of a view of a source that really starts at `actual`.

    Specs count from the start of the buffer; an input may sit elsewhere in its storage than the
    example did, and an arena tensor always does.
    """
    return actual + spec.offset - source.offset


def mutated_inputs(program: Program) -> tuple[int, ...]:
    """Positions of inputs whose version counter a call must advance (meta["mutated"])."""
    found = program.meta.get("mutated", ())
    if not isinstance(found, (tuple, list)) or not all(
        isinstance(i, int) and 0 <= i < program.n_inputs for i in found
    ):
        raise InternalError(f"meta['mutated'] is {found!r}, not input positions")
    return tuple(found)


def bump_versions(tensors: list[torch.Tensor]) -> None:
    """Advance the version counters, so that autograd sees what our kernels overwrote."""
    counted = [t for t in tensors if not t.is_inference()]
    if counted:
        torch.autograd.graph.increment_version(counted)


def check_inputs(program: Program, inputs: tuple[object, ...], verify: bool) -> None:
    """TypeError unless these are n_inputs tensors; InternalError if verify finds other metadata."""
    if len(inputs) != program.n_inputs:
        raise TypeError(f"expected {program.n_inputs} tensors, got {len(inputs)}")
    for i, (t, spec) in enumerate(zip(inputs, program.tensors, strict=False)):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"input {i} is {type(t).__name__}, not a tensor")
        if verify and (
            tuple(t.shape) != spec.sizes
            or not same_strides(spec.sizes, t.stride(), spec.strides)
            or TORCH_DTYPE.get(spec.dtype, t.dtype) != t.dtype
        ):
            raise InternalError(f"input {i} is {t.dtype} {tuple(t.shape)} {t.stride()}: {spec}")


def _same_storage(t: torch.Tensor, arena: torch.Tensor | None) -> bool:
    """Whether a result lives in the arena, which the next call overwrites."""
    if arena is None or t.layout is not torch.strided:
        return False
    return t.untyped_storage().data_ptr() == arena.untyped_storage().data_ptr()
