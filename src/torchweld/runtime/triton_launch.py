"""Compiled kernels on a GPU, launched through the CUDA driver's own library by ctypes.

The reference for what the native driver does: it depends on no C part of ours.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from torchweld.base.errors import BackendError, InternalError
from torchweld.ir.program import Artifact
from torchweld.runtime.triton_job import Cubin
from torchweld.runtime.triton_loader import kinds_of

_LIBRARY = "libcuda.so.1"
_WARP = 32
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_SHARED_OPTIN = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
_PLAIN_SHARED = 48 << 10  # what a block may have without asking
# Bytes of the numbers that a kernel takes by value.
_BYTES = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1,
          "u8": 1, "i1": 1}  # fmt: skip
_P = ctypes.c_void_p
_U = ctypes.c_uint
_SIGNATURES = {
    "cuInit": (_U,),
    "cuDeviceGet": (_P, ctypes.c_int),
    "cuDeviceGetAttribute": (_P, ctypes.c_int, ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (_P, ctypes.c_int),
    "cuCtxGetCurrent": (_P,),
    "cuCtxSetCurrent": (_P,),
    "cuModuleLoadData": (_P, ctypes.c_char_p),
    "cuModuleGetFunction": (_P, _P, ctypes.c_char_p),
    "cuFuncSetAttribute": (_P, ctypes.c_int, ctypes.c_int),
    "cuLaunchKernel": (_P, _U, _U, _U, _U, _U, _U, _U, _P, _P, _P),
    "cuGetErrorString": (ctypes.c_int, _P),
}


class CudaDriver:
    """The CUDA driver's library; `call` raises what it reports.

    Errors: BackendError W302 if there is none.
    """

    def __init__(self, library: str = _LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
            for name, types in _SIGNATURES.items():
                getattr(self._library, name).argtypes = types
        except (OSError, AttributeError) as error:
            raise BackendError("W302", f"the CUDA driver cannot be used: {error}") from None
        self.call("cuInit", 0)

    def call(self, name: str, *args: object) -> None:
        """Errors: RuntimeError with the driver's words."""
        status = getattr(self._library, name)(*args)
        if status:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(status, ctypes.byref(text))
            said = (text.value or b"").decode(errors="replace")
            raise RuntimeError(f"CUDA driver: {name} gave {status}: {said}")

    def enter(self, index: int) -> None:
        """Give this thread the context that torch uses, if it has none."""
        context, device = ctypes.c_void_p(), ctypes.c_int()
        self.call("cuCtxGetCurrent", ctypes.byref(context))
        if context.value is None:
            self.call("cuDeviceGet", ctypes.byref(device), index)
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self.call("cuCtxSetCurrent", context)

    def load(self, cubin: Cubin, index: int) -> int:
        """The function of a compiled kernel in the current context.

        Errors: RuntimeError; BackendError W302 if the device has too little shared memory.
        """
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.enter(index)
        self.call("cuModuleLoadData", ctypes.byref(module), cubin.image)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, cubin.entry.encode())
        if cubin.shared > _PLAIN_SHARED:
            device, most = ctypes.c_int(), ctypes.c_int()
            self.call("cuDeviceGet", ctypes.byref(device), index)
            self.call("cuDeviceGetAttribute", ctypes.byref(most), _SHARED_OPTIN, device)
            if cubin.shared > most.value:
                raise BackendError(
                    "W302", f"{cubin.entry} needs {cubin.shared} bytes of shared memory per block,"
                    f" the device has {most.value}"
                )  # fmt: skip
            self.call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, cubin.shared)
        return function.value or 0

    def launch(
        self, function: int, cubin: Cubin, blocks: int, params: Sequence[int], stream: int
    ) -> None:
        """Start a kernel. params: the address of each parameter's value. Errors: RuntimeError."""
        array = (ctypes.c_void_p * len(params))(*params)
        threads = cubin.warps * _WARP
        self.call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, cubin.shared, stream,
                  array, None)  # fmt: skip


@functools.lru_cache(maxsize=1)
def cuda_driver() -> CudaDriver:
    return CudaDriver()


@dataclass(slots=True)
class CudaKernel:
    """One kernel, loaded on the devices that it ran on."""

    name: str
    cubin: Cubin
    kinds: tuple[str, ...]
    driver: CudaDriver
    _functions: dict[int, int] = field(default_factory=dict)

    def prepare(self, index: int) -> int:
        """The function on device `index`, loaded once. Errors: BackendError W302."""
        if index not in self._functions:
            with torch.cuda.device(index):
                try:
                    self._functions[index] = self.driver.load(self.cubin, index)
                except RuntimeError as error:
                    raise BackendError("W302", f"{self.name} does not load: {error}") from None
        return self._functions[index]

    def __call__(self, blocks: int, tensors: Sequence[torch.Tensor]) -> None:
        """Start it on torch's current stream. Errors: RuntimeError."""
        index = next(t.device.index for t in tensors if t.is_cuda)
        function = self.prepare(index)
        with torch.cuda.device(index):
            stream = torch.cuda.current_stream().cuda_stream
            pointers = Arguments(self.kinds, self.cubin.params, tensors)
            self.driver.enter(index)
            self.driver.launch(function, self.cubin, blocks, pointers.addresses, stream)


class Arguments:
    """The values of a kernel's parameters in memory, and the address of each.

    A number is read where its CPU tensor has it, at the moment of the launch.
    Errors: InternalError if a tensor is not what the kernel takes.
    """

    def __init__(
        self, kinds: tuple[str, ...], params: int, tensors: Sequence[torch.Tensor]
    ) -> None:
        if len(kinds) != len(tensors) or params < len(kinds):
            raise InternalError(f"{len(tensors)} arguments for {len(kinds)} of {params} parameters")
        # What Triton adds behind our parameters are pointers to scratch memory that is not used.
        self._pointers = (ctypes.c_uint64 * params)()
        start = ctypes.addressof(self._pointers)
        self.addresses = [start + 8 * i for i in range(params)]
        for i, (kind, t) in enumerate(zip(kinds, tensors, strict=True)):
            size = _BYTES.get(kind.partition(":")[0])
            if size is None and kind.startswith("*") and t.is_cuda:
                self._pointers[i] = t.data_ptr()
            elif size == t.element_size() and t.numel() == 1 and not t.is_cuda:
                self.addresses[i] = t.data_ptr()
            else:
                shown = f"{t.dtype}{list(t.shape)} on {t.device}"
                raise InternalError(f"argument {i}, {kind}, is {shown}")


def kernels(
    artifacts: Iterable[Artifact], cubins: Mapping[str, Cubin], indices: Iterable[int]
) -> dict[str, CudaKernel]:
    """Every kernel, loaded on the devices `indices`. Errors: BackendError W302."""
    driver, made = cuda_driver(), {}
    for artifact in artifacts:
        (name,) = artifact.functions
        made[name] = kernel = CudaKernel(name, cubins[name], kinds_of(artifact), driver)
        for index in indices:
            kernel.prepare(index)
    return made
