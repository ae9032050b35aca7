"""CUDA for the native driver: its entry points, tested; kernels, loaded; rows of their launches."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from torchweld.base.errors import BackendError, InternalError
from torchweld.ir.dtype import DType
from torchweld.ir.program import Artifact, GridLaunch, TensorSpec
from torchweld.runtime.triton_job import Cubin
from torchweld.runtime.triton_loader import kinds_of

try:
    from torchweld.runtime import _driver
except ImportError:  # built without a C compiler: native() says so
    _driver = None  # type: ignore[assignment]

GRID = 5
WARP = 32
_DRIVER = "libcuda.so.1"
# Triton's types of numbers that a kernel takes by value, and the dtype that such a tensor has.
_NUMBERS = {
    "fp64": DType.F64, "fp32": DType.F32, "fp16": DType.F16, "bf16": DType.BF16, "i64": DType.I64,
    "i32": DType.I32, "i16": DType.I16, "i8": DType.I8, "u8": DType.U8, "i1": DType.BOOL,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cuda:
    """The driver's CUDA half, ready. type: torch's code of the device type."""

    type: int


@functools.lru_cache(maxsize=1)
def cuda() -> Cuda | str:
    """CUDA in the native driver, or why it cannot be used there. Initialises CUDA; tests once."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    try:
        return _start()
    except (RuntimeError, OSError) as error:
        return f"self-test: {error}"


def _start() -> Cuda:
    sample = torch.full((3, 5), 7, dtype=torch.uint8, device="cuda")[1:, 2:]
    pointer, _, code, sizes, strides, offset = _driver.describe(sample)
    if (pointer, sizes, strides, offset) != (sample.data_ptr(), (2, 3), (5, 1), 7):
        raise RuntimeError(f"a CUDA tensor was read as {(pointer, sizes, strides, offset)}")
    library = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
    _driver.cuda_init(_DRIVER, str(library), code, torch.OutOfMemoryError)
    return Cuda(code)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel in the driver. kinds: Triton's types of its parameters."""

    handle: int
    cubin: Cubin
    kinds: tuple[str, ...]


@functools.lru_cache(maxsize=4096)
def _handle(image: bytes, entry: str, shared: int, devices: tuple[int, ...]) -> int:
    try:
        return _driver.cuda_load(image, entry, shared, devices)
    except RuntimeError as error:
        raise BackendError("W302", f"{entry} does not load: {error}") from None


def load(
    artifacts: Iterable[Artifact], cubins: Mapping[str, Cubin], devices: tuple[int, ...]
) -> dict[str, Loaded]:
    """Every Triton kernel, loaded for these devices; equal ones once per process.

    Errors: BackendError W302.
    """
    made = {}
    for a in artifacts:
        if a.lang != "triton":
            continue
        (name,) = a.functions
        c = cubins[name]
        made[name] = Loaded(_handle(c.image, c.entry, c.shared, devices), c, kinds_of(a))
    return made


def device_index(device: str) -> int:
    """The number of a CUDA device, -1 for another kind of device."""
    return (torch.device(device).index or 0) if device.startswith("cuda") else -1


def grid_row(
    step: GridLaunch, kernel: Loaded, tensors: tuple[TensorSpec, ...]
) -> tuple[object, ...]:
    """The row of a launch: see grid_parse in _cuda.c.

    Errors: InternalError if the arguments are not what the kernel takes.
    """
    specs = [tensors[n] for n in step.args]
    devices = {s.device for s in specs if s.device != "cpu"}
    if len(devices) != 1 or len(kernel.kinds) != len(specs):
        raise InternalError(f"{step.function}: {len(specs)} arguments on {sorted(devices)}")
    sizes = tuple(_by_value(step, k, s) for k, s in zip(kernel.kinds, specs, strict=True))
    c = kernel.cubin
    return (
        GRID, step.function, kernel.handle, step.args, sizes, step.blocks, c.warps * WARP,
        c.shared, c.params, device_index(devices.pop()),
    )  # fmt: skip


def _by_value(step: GridLaunch, kind: str, s: TensorSpec) -> int:
    """The size of a number that the kernel takes itself; 0 for a pointer."""
    if kind.startswith("*"):
        if s.device == "cpu":
            raise InternalError(f"{step.function} takes the address of a CPU tensor")
        return 0
    wanted = _NUMBERS.get(kind.partition(":")[0])
    held = DType.U8 if s.dtype.is_float8 else s.dtype
    if s.device != "cpu" or wanted is not held or any(n != 1 for n in s.sizes):
        raise InternalError(f"{step.function}: {kind} from {s.dtype} {s.sizes} on {s.device}")
    return s.dtype.bytes


def aligned(steps: Iterable[object], kernels: Mapping[str, Loaded]) -> set[int]:
    """The tensors whose address some kernel takes for a multiple of 16."""
    return {
        n
        for s in steps
        if isinstance(s, GridLaunch)
        for n, kind in zip(s.args, kernels[s.function].kinds, strict=True)
        if kind.startswith("*") and kind.endswith(":16")
    }
