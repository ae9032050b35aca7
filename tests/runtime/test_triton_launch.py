"""Launches through the CUDA driver: what it is told, on a stand-in that notes it."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from launch_lists import T, row_major

from torchweld.base.errors import BackendError, InternalError
from torchweld.ir.dtype import DType
from torchweld.ir.program import Alloc, Call, GridLaunch, Program, TensorSpec
from torchweld.runtime import toolchain
from torchweld.runtime.executable import cuda_devices
from torchweld.runtime.python_driver import PythonDriver
from torchweld.runtime.triton_job import Cubin
from torchweld.runtime.triton_launch import Arguments, CudaDriver


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    out = tmp_path_factory.mktemp("cuda") / "libcuda.so"
    source = Path(__file__).with_name("fake_cuda.c").read_text()
    toolchain.compile(f'extern "C" {{\n{source}\n}}', toolchain.all_flags(None), None, out)
    return out


@pytest.fixture
def driver(library):
    return CudaDriver(str(library))


def seen(library):
    return list((ctypes.c_int64 * 16).in_dll(ctypes.CDLL(str(library)), "seen"))


def cubin(shared=0, params=3, entry="k"):
    return Cubin(b"ELF and more", entry, shared, 8, params)


def on_gpu(pointer):
    return SimpleNamespace(
        is_cuda=True, data_ptr=lambda: pointer, element_size=lambda: 2, numel=lambda: 5,
        dtype=torch.bfloat16, shape=(5,), device="cuda:0",
    )  # fmt: skip


def test_a_launch_says_blocks_threads_shared_memory_and_stream(driver, library):
    function = driver.load(cubin(1024), 1)
    arguments = Arguments(("*bf16:16", "fp32"), 3, [on_gpu(0x7000), torch.tensor(2.5)])
    driver.launch(function, cubin(1024), 7, arguments.addresses, 0x99)
    assert seen(library)[:8] == [7, 1, 1, 256, 1, 1, 1024, 0x99]


def test_pointers_and_numbers_are_passed_and_the_rest_is_null(driver, library):
    number = torch.tensor(2.5)
    arguments = Arguments(("*bf16", "fp32"), 3, [on_gpu(0x7000), number])
    driver.launch(driver.load(cubin(), 0), cubin(), 1, arguments.addresses, 0)
    pointer, bits, scratch = seen(library)[8:11]
    assert pointer == 0x7000 and struct.pack("<q", bits)[:4] == struct.pack("<f", 2.5)
    assert scratch == 0


def test_much_shared_memory_is_asked_for(driver, library):
    driver.load(cubin(90000), 1)
    assert seen(library)[14:] == [8, 90000]


def test_too_much_shared_memory_is_refused(driver):
    with pytest.raises(BackendError, match=r"needs 200000 bytes .* the device has 100000"):
        driver.load(cubin(200000), 1)


def test_errors_are_in_the_drivers_words(driver):
    with pytest.raises(RuntimeError, match="cuModuleGetFunction gave 500: these words"):
        driver.load(cubin(entry="absent"), 0)


def test_no_driver_is_a_backend_error():
    with pytest.raises(BackendError, match="the CUDA driver cannot be used"):
        CudaDriver("libcuda-that-does-not-exist.so")


@pytest.mark.parametrize(("kinds", "tensor"), [
    (("*fp32",), torch.zeros(3)), (("fp32",), torch.zeros(2)), (("fp64",), torch.zeros(())),
    (("fp32",), on_gpu(8)),
])  # fmt: skip
def test_an_argument_that_the_kernel_does_not_take_is_an_internal_error(kinds, tensor):
    with pytest.raises(InternalError, match="argument 0"):
        Arguments(kinds, 3, [tensor])


class Noted:
    """A kernel that doubles its first argument into its second, and notes their addresses."""

    def __init__(self, kinds):
        self.kinds = kinds
        self.pointers = []

    def __call__(self, blocks, tensors):
        self.pointers = [t.data_ptr() for t in tensors]
        tensors[-1].copy_(tensors[0] * 2)


def spec(place, n, index=0, dtype=DType.F32):
    return TensorSpec(place, index, dtype, (n,), row_major((n,)), 0)


def test_a_tensor_that_is_not_aligned_is_copied_for_the_kernel():
    kernel = Noted(("*fp32:16", "*fp32:16"))
    p = Program((), (spec("input", 4), spec("fresh", 4)), (Alloc(1), GridLaunch("k", (0, 1), 1)),
                1, (1,), 0)  # fmt: skip
    x = torch.arange(5.0)[1:]
    (y,) = PythonDriver(p, {}, grids={"k": kernel})(x)
    assert x.data_ptr() % 16 and all(p % 16 == 0 for p in kernel.pointers)
    assert y.tolist() == [2.0, 4.0, 6.0, 8.0]


def test_a_mutated_tensor_that_is_not_aligned_is_written_back():
    kernel = Noted(("*fp32:16",))
    p = Program((), (spec("input", 4),), (GridLaunch("k", (0,), 1),), 1, (0,), 0, {"mutated": (0,)})
    base = torch.arange(5.0)
    (y,) = PythonDriver(p, {}, grids={"k": kernel})(base[1:])
    assert base.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0] and y.data_ptr() == base[1:].data_ptr()


def test_an_expanded_tensor_that_is_not_aligned_is_copied_too():
    kernel = Noted(("*fp32:16", "*fp32"))
    wide = TensorSpec("input", 0, DType.F32, (3, 2), (1, 0), 0)
    p = Program((), (wide, TensorSpec("fresh", 0, DType.F32, (3, 2), (2, 1), 0)),
                (Alloc(1), GridLaunch("k", (0, 1), 1)), 1, (1,), 0)  # fmt: skip
    (y,) = PythonDriver(p, {}, grids={"k": kernel})(torch.arange(4.0)[1:, None].expand(3, 2))
    assert y.tolist() == [[2.0, 2.0], [4.0, 4.0], [6.0, 6.0]]


def test_an_index_out_of_range_is_an_index_error():
    def fails(blocks, tensors):
        raise AssertionError("index out of range")

    fails.kinds = ("*fp32",)
    p = Program((), (spec("input", 4),), (GridLaunch("k", (0,), 1),), 1, (0,), 0)
    with pytest.raises(IndexError, match="index out of range in a compiled kernel"):
        PythonDriver(p, {}, grids={"k": fails})(torch.zeros(4))


def test_a_launch_of_no_block_is_no_launch():
    p = Program((), (spec("input", 0),), (GridLaunch("k", (0,), 0),), 1, (0,), 0)
    assert PythonDriver(p, {}, grids={})(torch.zeros(0))[0].shape == (0,)


def test_devices_are_those_of_the_launches():
    on = [TensorSpec("input", i, DType.F32, (), (), 0, d) for i, d in enumerate(
        ["cuda:1", "cpu", "cuda:0", "cuda:3"])]  # fmt: skip
    steps = (GridLaunch("k", (0, 1), 1), GridLaunch("k", (2,), 1),
             Call("aten.neg.default", (T(3),), (), ()))  # fmt: skip
    assert cuda_devices(Program((), tuple(on), steps, 4, (), 0)) == (0, 1)
