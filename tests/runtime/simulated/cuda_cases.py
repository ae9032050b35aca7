"""Launch lists and CUDA graphs on the simulated driver. Run by test_runtime_simulated.py, which
preloads the driver; device memory is CPU memory, and kernels compute one element per block.
"""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from contextlib import contextmanager

import pytest
import torch

from torchweld.base import events
from torchweld.ir.dtype import DType
from torchweld.ir.program import (
    Alloc,
    Artifact,
    Call,
    Draw,
    Drop,
    GridLaunch,
    MakeView,
    Program,
    TensorArg,
    TensorSpec,
)
from torchweld.runtime import _driver, cuda, cudagraph, draws, native
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


class SimulatedDevice:
    index = 0

    def __init__(self):
        self.entered = []

    @contextmanager
    def recording(self):
        sim.simulated_use(stream(7))
        self.enter(self.pool)
        try:
            yield
        finally:
            self.leave(self.pool)
            sim.simulated_use(self.user)

    user = None
    admitted = True

    def new_pool(self):
        return object()

    def enter(self, pool):
        self.entered.append(pool)

    def leave(self, pool):
        assert self.entered.pop() is pool

    pool = None

    def admits(self):
        return self.admitted

    def pool_bytes(self):
        return 0


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


def program(tensors, steps, outputs, arena=0, **meta):
    used = {s.function for s in steps if isinstance(s, GridLaunch)}
    artifacts = tuple(
        Artifact("triton", f.ljust(9), (f,), (("signature", KINDS[f]),)) for f in sorted(used)
    )
    n = sum(t.place == "input" for t in tensors)
    return Program(artifacts, tensors, tuple(steps), n, outputs, arena, meta, "cuda:0")


def build(p, graphs=True, verify=False, **wish):
    cubins = {a.functions[0]: Cubin(b"simulated", a.functions[0], 0, 4, 3) for a in p.artifacts}
    made = native.build(p, {}, native.native(), verify, cubins=cubins)
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


# ---------------------------------------------------------------- launch lists
def test_a_launch_list_runs_kernels_in_order():
    ex = build(chain(), graphs=False)
    assert ex(x_of(1.0))[0].tolist() == [3.0] * N


def test_a_number_is_passed_by_value():
    p = program(
        (spec("input"), spec("input", 1, (), (), device="cpu"), spec("fresh")),
        (Alloc(2), launch("scale", 0, 1, 2)), (2,),
    )  # fmt: skip
    ex = build(p, graphs=False)
    assert ex(x_of(3.0), torch.tensor(2.5))[0].tolist() == [7.5] * N


def test_an_unaligned_input_is_copied_first():
    base = torch.arange(N + 1.0)
    ex = build(chain(), graphs=False)
    assert ex(base[1:])[0].tolist() == [i + 3.0 for i in range(N)]
    assert base.tolist() == [float(i) for i in range(N + 1)]


def test_what_kernels_write_to_an_unaligned_input_reaches_it():
    p = program((spec("input"),), (launch("inc", 0),), (), mutated=(0,))
    base = torch.zeros(N + 1)
    build(p, graphs=False)(base[1:])
    assert base.tolist() == [0.0] + [1.0] * N


def test_memory_nobody_wrote_reads_as_nan_under_verify():
    p = program((spec("input"), spec("fresh")), (Alloc(1),), (1,))
    assert build(p, graphs=False, verify=True)(x_of(0.0))[0].isnan().all()


def test_a_launch_with_wrong_arguments_is_refused_when_built():
    p = program(
        (spec("input"), spec("input", 1, (2,), (1,), device="cpu"), spec("fresh")),
        (Alloc(2), launch("scale", 0, 1, 2)), (2,),
    )  # fmt: skip
    with pytest.raises(Exception, match="fp32 from"):
        build(p, graphs=False)


# ---------------------------------------------------------------- graphs of our kernels
def test_the_third_call_is_one_graph_launch():
    ex = build(chain())
    for i in (0.0, 1.0):
        assert ex(x_of(i))[0].tolist() == [i + 2.0] * N
    before = count(LAUNCHES), count(GRAPHS)
    assert ex(x_of(5.0))[0].tolist() == [7.0] * N
    assert (count(LAUNCHES), count(GRAPHS)) == (before[0], before[1] + 1)


def test_outputs_stay_valid_while_they_are_held():
    ex = build(chain())
    held = [ex(x_of(float(i)))[0] for i in range(7)]
    assert [y[0].item() for y in held] == [i + 2.0 for i in range(7)]
    assert len({y.data_ptr() for y in held}) == 7


def test_nothing_is_patched_when_nothing_moved():
    p = program((spec("input"),), (launch("inc", 0), launch("inc", 0)), (), mutated=(0,))
    ex, x = build(p), x_of(0.0)
    for _ in range(4):
        ex(x)
    assert x.tolist() == [8.0] * N and ex.graphs[0][5] == 3 and count(PATCHES) == 0


def test_a_number_follows_its_value():
    p = program(
        (spec("input"), spec("input", 1, (), (), device="cpu"), spec("arena"), spec("fresh")),
        (launch("scale", 0, 1, 2), Alloc(3), launch("add1", 2, 3)), (3,), 64,
    )  # fmt: skip
    ex, s = build(p), torch.tensor(2.0)
    for i in range(5):
        s.fill_(float(i))
        assert ex(x_of(3.0), s)[0].tolist() == [3.0 * i + 1] * N


# ---------------------------------------------------------------- random numbers
class Generator:
    """Torch's generator of the device: the seed, and the words taken so far."""

    seed, offset = (1 << 64) - 7, 40

    def initial_seed(self):
        return self.seed

    def get_offset(self):
        return self.offset

    def set_offset(self, offset):
        self.offset = offset


@pytest.fixture
def generator(monkeypatch):
    made = Generator()
    monkeypatch.setattr(draws, "generator_of", lambda name: made)
    return made


def drawing():
    """The state that kernels see, plus 1: seed, block, seed, block, ..."""
    number = spec("state", 0, (), (), 0, DType.I64, "cpu")
    return program(
        (spec("input"), number, number, spec("arena"), spec("fresh")),
        (Draw("cuda:0", 12, 1, 2), launch("state", 1, 2, 3), Alloc(4), launch("add1", 3, 4)),
        (4,), 64,
    )  # fmt: skip


@pytest.mark.parametrize("graphs", [False, True])
def test_each_call_draws_from_where_the_generator_stands(generator, graphs):
    ex = build(drawing(), graphs)
    for i in range(6):
        assert ex(x_of(0.0))[0].tolist() == [-6.0, 3.0 * i + 11] * (N // 2)
        assert generator.offset == 40 + 12 * (i + 1)
    generator.seed, generator.offset = 5, 400
    assert ex(x_of(0.0))[0].tolist() == [6.0, 101.0] * (N // 2)
    assert bool(count(GRAPHS)) == graphs


def test_two_frames_at_once_draw_for_themselves(generator):
    ex = build(drawing())
    held = [ex(x_of(0.0))[0] for _ in range(5)]
    assert [y[1].item() for y in held] == [11.0, 14.0, 17.0, 20.0, 23.0]


def test_a_generator_that_cannot_be_read_fails_the_call(generator):
    generator.get_offset = None
    ex = build(drawing())
    with pytest.raises(TypeError, match="not callable"):
        ex(x_of(0.0))


def test_a_call_in_a_capture_of_the_users_runs_in_eager(device, generator):
    ex = build(drawing())
    ex(x_of(0.0))
    ex.eager = lambda x: [x + 3]
    use(device, 2)
    assert sim.cuStreamBeginCapture_v2(ctypes.c_void_p(stream(2)), 1) == 0
    try:
        assert ex(x_of(1.0))[0].tolist() == [4.0] * N and generator.offset == 52
    finally:
        sim.cuStreamEndCapture(ctypes.c_void_p(stream(2)), ctypes.byref(ctypes.c_void_p()))


def test_a_mutated_input_is_written_where_it_is():
    p = program((spec("input"),), (launch("inc", 0), launch("inc", 0)), (0,), mutated=(0,))
    ex = build(p)
    for i in range(4):
        x = x_of(float(i))
        version = x._version
        (y,) = ex(x)
        assert y is x and x.tolist() == [i + 2.0] * N and x._version > version


def test_an_output_that_is_a_view_of_an_input_is_one():
    p = program(
        (spec("input"), spec("view", 0, (4,), (1,), 4)),
        (launch("inc", 0), launch("inc", 0), MakeView(1, 0)), (1,), mutated=(0,),
    )  # fmt: skip
    ex = build(p)
    for i in range(4):
        x = x_of(float(i))
        (y,) = ex(x)
        assert y._base is x and y.tolist() == [i + 2.0] * 4
    assert count(GRAPHS)


def test_a_view_of_an_input_is_patched_with_its_offset():
    p = program(
        (spec("input", 0, (2 * N,)), spec("view", 0, (N,), (1,), N), spec("arena"), spec("fresh")),
        (MakeView(1, 0), launch("twice", 1, 2), Alloc(3), launch("add1", 2, 3)), (3,), 64,
    )  # fmt: skip
    ex = build(p)
    for i in range(4):
        assert ex(torch.arange(2.0 * N) + i)[0][0].item() == 2.0 * (N + i) + 1


def test_an_unaligned_input_is_served_by_the_launch_list():
    ex = build(chain())
    for _ in range(3):
        ex(x_of(0.0))
    before = count(GRAPHS)
    assert ex(torch.arange(N + 1.0)[1:])[0][0].item() == 3.0
    assert count(GRAPHS) == before


def test_inference_mode_gets_graphs_of_its_own():
    ex = build(chain())
    for _ in range(3):
        ex(x_of(0.0))
    with torch.inference_mode():
        for _ in range(3):
            assert ex(x_of(1.0))[0].is_inference()
    assert sorted(row[0] for row in ex.graphs) == [0, 1]
    assert not ex(x_of(2.0))[0].is_inference()


# ---------------------------------------------------------------- operators
def test_an_operator_reads_a_copy_of_an_input_that_moves():
    ex = build(called())
    held = []
    for i in range(5):
        y, z = ex(x_of(float(i)))
        held.append((i, y, z))
    for i, y, z in held:
        assert y.tolist() == [i + 1.0] * N and z.tolist() == [2.0 * i] * N
    assert count(COPY_PATCHES)


def test_an_input_that_stays_is_not_copied(monkeypatch):
    monkeypatch.setattr(cudagraph, "SMALL_BYTES", 0)
    ex, x = build(called()), x_of(1.0)
    for i in range(4):
        x.fill_(float(i))
        assert ex(x)[1].tolist() == [2.0 * i] * N
    assert ex.graphs[0][2] == 1  # the operator's result only
    assert ex(x_of(9.0))[1].tolist() == [18.0] * N
    assert ex(x_of(8.0))[1].tolist() == [16.0] * N
    assert ex.graphs[0][2] == 2


def test_promised_inputs_get_one_graph_per_set():
    ex = build(called(), static=[0])
    a, b = x_of(1.0), x_of(2.0)
    for _ in range(4):
        assert ex(a)[1].tolist() == [2.0] * N
        assert ex(b)[1].tolist() == [4.0] * N
    assert len(ex.graphs) == 2


def test_a_promise_that_is_not_kept_ends_in_copies():
    ex = build(called(), static=[0])
    kept = [x_of(float(i)) for i in range(20)]
    for i, x in enumerate(kept):
        assert ex(x)[1].tolist() == [2.0 * i] * N
    assert ex.graphs[0][2] == 2 and len(ex.graphs) <= cudagraph.FAITHFUL_RECORDS + 1


def test_an_operator_may_read_what_kernels_wrote_to_an_input():
    p = program(
        (spec("input"), spec("extern")),
        (launch("inc", 0), twice(0, 1)), (1,), mutated=(0,),
    )  # fmt: skip
    ex = build(p)
    for i in range(5):
        x = x_of(float(i))
        assert ex(x)[0].tolist() == [2.0 * i + 2] * N and x.tolist() == [i + 1.0] * N


def test_an_operator_inside_works_on_the_memory_of_the_graph():
    p = program(
        (spec("input"), spec("arena"), spec("extern"), spec("fresh")),
        (launch("add1", 0, 1), twice(1, 2), Alloc(3), launch("add1", 2, 3), Drop(2)), (3,), 64,
    )  # fmt: skip
    ex = build(p)
    for i in range(5):
        assert ex(x_of(float(i)))[0].tolist() == [2.0 * i + 3] * N
    assert ex.graphs[0][2] == 0


@pytest.fixture
def costly(monkeypatch):
    """No input is worth a copy."""
    monkeypatch.setattr("torchweld.runtime.cudagraph_plan.COPY_SECONDS_PER_BYTE", 1.0)


def test_an_input_too_large_to_copy_gets_a_graph_per_address(costly, monkeypatch):
    monkeypatch.setattr(cudagraph, "SMALL_BYTES", 0)
    ex, caches = build(called()), [x_of(1.0), x_of(2.0)]
    for _ in range(3):
        for x in caches:
            for _ in range(4):
                assert ex(x)[1].tolist() == (2 * x).tolist()
    assert [row[2] for row in ex.graphs] == [1, 1]


def test_an_input_too_large_to_copy_that_always_moves_ends_the_graphs(costly, monkeypatch):
    monkeypatch.setattr(cudagraph, "SMALL_BYTES", 0)
    ex = build(called())
    kept = [x_of(float(i)) for i in range(10)]
    for i, x in enumerate(kept):
        assert ex(x)[1].tolist() == [2.0 * i] * N
    assert "keeps moving" in ex.graphs


def test_a_setting_that_changes_operators_needs_another_graph():
    ex = build(called())
    try:
        for flag in (False, True, False):
            torch.use_deterministic_algorithms(flag)
            for i in range(3):
                assert ex(x_of(float(i)))[1].tolist() == [2.0 * i] * N
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(ex.graphs) == 2


# ---------------------------------------------------------------- lent results
@pytest.fixture
def lending(monkeypatch):
    monkeypatch.setattr("torchweld.runtime.cudagraph_plan.LEND_BYTES", 0)


def test_a_large_result_is_lent_and_not_overwritten(lending):
    ex = build(called())
    held = [ex(x_of(float(i)))[1] for i in range(8)]
    assert [z[0].item() for z in held] == [2.0 * i for i in range(8)]
    assert sorted(lends(ex)) == [0, N * 4, N * 4]


def test_a_lent_result_comes_back_when_it_is_dropped(lending):
    ex = build(called())
    for i in range(8):
        assert ex(x_of(float(i)))[1].tolist() == [2.0 * i] * N
    assert lends(ex) == [N * 4]


def test_the_loop_that_overwrites_its_result_alternates(lending):
    ex, z = build(called()), None
    for i in range(8):
        before = z
        z = ex(x_of(float(i)))[1]
        assert before is None or before.tolist() == [2.0 * (i - 1)] * N
    assert lends(ex) == [N * 4] * 2


def test_a_view_of_a_lent_result_keeps_it(lending):
    ex = build(called())
    ex(x_of(0.0))
    part = ex(x_of(1.0))[1][2:4]
    for i in range(4):
        ex(x_of(float(i)))
    assert part.tolist() == [2.0, 2.0]


def test_a_lent_result_that_the_user_resized_is_not_used_again(lending):
    ex = build(called())
    ex(x_of(0.0))
    z = ex(x_of(1.0))[1]
    z.resize_(1000)
    del z
    for i in range(4):
        assert ex(x_of(float(i)))[1].tolist() == [2.0 * i] * N


# ---------------------------------------------------------------- when not
def test_a_user_s_own_capture_gets_the_launch_list(device):
    ex = build(chain())
    for _ in range(3):
        ex(x_of(0.0))
    use(device, 2)
    before = count(GRAPHS)
    _driver.capture_begin(0)
    ex(x_of(0.0))
    assert _driver.capture_end(0) and count(GRAPHS) == before
    assert ex(x_of(1.0))[0].tolist() == [3.0] * N


def test_another_stream_waits_for_the_last_one(device):
    ex = build(chain())
    for _ in range(3):
        ex(x_of(0.0))
    before = count(WAITS)
    ex(x_of(0.0))
    assert count(WAITS) == before
    use(device, 1)
    assert ex(x_of(1.0))[0].tolist() == [3.0] * N
    assert count(WAITS) == before + 1


def test_a_stream_of_the_user_s_own_gets_the_launch_list(device):
    ex = build(chain())
    for _ in range(3):
        ex(x_of(0.0))
    device.admitted = False
    use(device, 3)
    before = count(GRAPHS)
    assert ex(x_of(1.0))[0].tolist() == [3.0] * N
    assert count(GRAPHS) == before


def test_a_capture_that_fails_ends_in_launch_lists():
    ex = build(called())
    broken.append(1)
    for i in range(4):
        assert ex(x_of(float(i)))[1].tolist() == [2.0 * i] * N
    assert "recording failed" in ex.graphs
    assert any(e.name == "not used" for e in events.recent("cudagraphs"))


def test_pools_are_left_when_an_operator_fails(lending, device):
    ex = build(called())
    broken.append(2)
    for i in range(3):
        assert ex(x_of(float(i)))[1].tolist() == [2.0 * i] * N
    assert "an operator fails" in ex.graphs and device.entered == []


def test_an_exception_while_recording_ends_in_launch_lists(device):
    ex = build(chain())

    def full():
        raise torch.OutOfMemoryError("CUDA out of memory")

    device.recording = full
    for i in range(4):
        assert ex(x_of(float(i)))[0].tolist() == [i + 2.0] * N
    assert "out of memory" in ex.graphs


def test_one_kernel_stays_a_launch_list():
    p = program((spec("input"), spec("fresh")), (Alloc(1), launch("add1", 0, 1)), (1,))
    ex = build(p, forced=False)
    assert "as fast" in ex.graphs


def test_another_thread_runs_its_own_warm_up_first():
    ex = build(chain())
    ex(x_of(0.0))
    seen = []

    def work():
        seen.append(ex(x_of(1.0))[0].tolist())
        seen.append(len(ex.graphs))

    t = threading.Thread(target=work)
    t.start()
    t.join()
    assert seen == [[3.0] * N, 0]


# ---------------------------------------------------------------- bounds
def test_the_graph_that_was_not_used_for_longest_goes_first():
    made = [build(chain(), limit=2) for _ in range(3)]
    for ex in made:
        for i in range(3):
            assert ex(x_of(float(i)))[0].tolist() == [i + 2.0] * N
    assert [len(ex.graphs) for ex in made] == [0, 1, 1]
    assert made[0](x_of(7.0))[0].tolist() == [9.0] * N


def test_trim_drops_the_graphs_and_they_come_back():
    ex = build(chain())
    for _ in range(3):
        ex(x_of(0.0))
    ex.trim()
    assert ex.graphs == ()
    assert ex(x_of(1.0))[0].tolist() == [3.0] * N and len(ex.graphs) == 1


def test_an_executable_takes_its_graphs_with_it():
    ex = build(chain())
    for _ in range(3):
        ex(x_of(0.0))
    assert _driver.graph_totals()[0] == 1
    del ex
    gc.collect()
    assert _driver.graph_totals()[0] == 0


def test_the_report_counts_graphs_and_lent_bytes(lending):
    ex = build(called())
    ex(x_of(0.0))
    z = ex(x_of(1.0))[1]
    report = cudagraph.memory_report()
    assert (report.graphs, report.lent) == (1, N * 4) and "lent results" in report.text()
