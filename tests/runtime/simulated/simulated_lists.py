"""What the cases on the simulated driver share. Device memory is CPU memory, and kernels compute
one element per block.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from contextlib import contextmanager

import pytest
import torch

from torchweld.base import events
from torchweld.ir.dtype import DType
from torchweld.ir.program import (
    Alloc,
    Artifact,
    Call,
    GridLaunch,
    Program,
    TensorArg,
    TensorSpec,
)
from torchweld.runtime import _driver, cuda, cudagraph, native, routes
from torchweld.runtime.triton_job import Cubin

LIBRARY = os.environ["LD_PRELOAD"]
sim = ctypes.CDLL(LIBRARY)
sim.simulated_stream.restype = ctypes.c_void_p
sim.simulated_use.argtypes = [ctypes.c_void_p]
sim.cuLaunchKernel.argtypes = [ctypes.c_void_p] + [ctypes.c_uint] * 7 + [ctypes.c_void_p] * 3
LAUNCHES, GRAPHS, PATCHES, COPY_PATCHES, WAITS = range(5)
KINDS = {
    "add1": "*fp32:16 *fp32:16",
    "inc": "*fp32:16",
    "twice": "*fp32 *fp32:16",
    "scale": "*fp32:16 fp32 *fp32:16",
    "state": "i64 i64 *fp32:16",
}
N = 8


def stream(i: int) -> int | None:
    return sim.simulated_stream(i)


class SimulatedPool:
    numbers = itertools.count(1)

    def __init__(self):
        self.number = next(self.numbers)

    def snapshot(self):
        return [{"total_size": sim.simulated_held(self.number)}]


class SimulatedDevice:
    index = 0

    def __init__(self):
        self.entered = []

    @contextmanager
    def recording(self, pool):
        sim.simulated_use(stream(7))
        self.enter(pool)
        try:
            yield
        finally:
            self.leave(pool)
            sim.simulated_use(self.user)

    user = None
    admitted = True

    def new_pool(self):
        return SimulatedPool()

    def enter(self, pool):
        self.entered.append(pool)
        sim.simulated_pool(pool.number)

    def leave(self, pool):
        assert self.entered.pop() is pool
        sim.simulated_pool(self.entered[-1].number if self.entered else 0)

    pool = SimulatedPool()

    def admits(self):
        return self.admitted

    def pool_bytes(self):
        return 0

    renewed = 0

    def crowded(self, need):
        return self.pool_bytes() > need

    def renew(self):
        self.renewed += 1

    limit = 1 << 40

    def lend_limit(self):
        return self.limit


def _simulated_op(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    kernel = ctypes.c_void_p()
    sim.cuLibraryGetKernel(ctypes.byref(kernel), None, b"twice")
    values = (ctypes.c_uint64 * 2)(x.data_ptr(), out.data_ptr())
    at = ctypes.addressof(values)
    params = (ctypes.c_void_p * 2)(at, at + 8)
    now = ctypes.c_void_p()
    sim.aoti_torch_get_current_cuda_stream(0, ctypes.byref(now))
    sim.cuLaunchKernel(kernel, x.numel(), 1, 1, 1, 1, 1, 0, now, params, None)
    if broken:
        sim.simulated_break()
    if 2 in broken and now:
        raise ValueError("an operator fails while it is recorded")
    return out


broken: list[int] = []
torch.library.custom_op("weldsim::twice", _simulated_op, mutates_args=())


@pytest.fixture(autouse=True)
def device(monkeypatch):
    made = SimulatedDevice()
    code = _driver_code()
    _driver.cuda_init(LIBRARY, LIBRARY, code, torch.OutOfMemoryError)
    monkeypatch.setattr(cuda, "cuda", lambda: cuda.Cuda(code))
    monkeypatch.setitem(cudagraph._devices, 0, made)
    # in builds for CUDA there are functions for products on a real GPU
    here = {key: row for key, row in routes._INTO.items() if key[0] == "cpu"}
    monkeypatch.setattr(routes, "_INTO", here)
    cuda._handle.cache_clear()
    sim.simulated_reset()
    events.clear()
    yield made
    sim.simulated_use(None)
    broken.clear()
    while _driver.graph_evict():
        pass


def _driver_code() -> int:
    assert isinstance(native.native(), native.Native)
    return native.native().cpu


def use(made: SimulatedDevice, number: int) -> None:
    made.user = stream(number)
    sim.simulated_use(made.user)


def spec(place, index=0, sizes=(N,), strides=(1,), offset=0, dtype=DType.F32, device="cuda:0"):
    return TensorSpec(place, index, dtype, sizes, strides, offset, device)


def program(tensors, steps, outputs, arena=0, sizes=None, **meta):
    used = {s.function for s in steps if isinstance(s, GridLaunch)}
    artifacts = tuple(
        Artifact("triton", f.ljust(9), (f,), (("signature", KINDS[f]),)) for f in sorted(used)
    )
    n = sum(t.place == "input" for t in tensors)
    return Program(artifacts, tensors, tuple(steps), n, outputs, arena, meta, "cuda:0", None, sizes)


def build(p, graphs=True, verify=False, saved=None, **wish):
    cubins = {a.functions[0]: Cubin(b"simulated", a.functions[0], 0, 4, 3) for a in p.artifacts}
    made = native.build(p, {}, native.native(), verify, cubins=cubins)
    if saved is not None:
        made.save_last(saved)
    if graphs:
        wish.setdefault("forced", True)
        wish["static"] = frozenset(wish.get("static", ()))
        cudagraph.enable(made, p, cudagraph.Wish(**wish))
    return made


def launch(f, *args):
    return GridLaunch(f, args, N)


def twice(source, result):
    return Call("weldsim.twice.default", (TensorArg(source),), (), (result,))


def chain():
    """x + 1 + 1, through the arena."""
    return program(
        (spec("input"), spec("arena"), spec("fresh")),
        (launch("add1", 0, 1), Alloc(2), launch("add1", 1, 2)), (2,), 64,
    )  # fmt: skip


def called():
    """(x + 1, as an operator's result: 2 * x)."""
    return program(
        (spec("input"), spec("extern"), spec("fresh")),
        (twice(0, 1), Alloc(2), launch("add1", 0, 2)), (2, 1),
    )  # fmt: skip


def x_of(value: float) -> torch.Tensor:
    return torch.full((N,), value)


def count(what: int) -> int:
    return sim.simulated_count(what)


def lends(ex) -> list[int]:
    return [row[4] for row in ex.graphs]
