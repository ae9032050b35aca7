"""Products of launch lists by a cuBLASLt that runs on the CPU: run by test_runtime_simulated.py."""

from __future__ import annotations

import ctypes
import gc
import os
import threading

import pytest
import torch
from simulated_lists import build, count, launch, program, spec, use, x_of

from torchweld.base import events
from torchweld.base.config import override
from torchweld.ir.dtype import DType
from torchweld.ir.program import Alloc, Call, TensorArg
from torchweld.runtime import _driver, cublas, cublas_gemm, cudagraph, product_plans
from torchweld.runtime.executable import make_executable

pytest_plugins = ("simulated_lists",)  # every case starts on a simulated device of its own
WRONG, STATUS, WORKSPACE, OFFERED, TRUNCATED = range(5)
PRODUCTS, SEARCHES, CHANGES, STREAM, ALGORITHM, STREAMS = range(6)
fake = ctypes.CDLL(os.environ["FAKE_CUBLAS"])
fake.fake_number.restype = ctypes.c_uint64
fake.fake_told.restype = ctypes.c_uint64
ADDMM, ACTIVATION = "aten.addmm.default", "aten._addmm_activation.default"


def fill(t, source):
    """Numbers whose sums are exact in any order: the library here adds up in another one."""
    t.copy_((torch.arange(t.numel()) * 5 % 7 - 3) / 2)


@pytest.fixture(autouse=True)
def library(monkeypatch):
    found = cublas.open_library(os.environ["FAKE_CUBLAS"])
    assert isinstance(found, cublas.Library)
    monkeypatch.setattr(cublas, "library", lambda: found)
    classic = cublas_gemm.open_cublas(os.environ["FAKE_CUBLAS"])
    monkeypatch.setattr(cublas_gemm, "library", lambda: classic)
    monkeypatch.setattr(cublas_gemm, "_handles", {})
    monkeypatch.setattr(product_plans, "_handles", {})
    monkeypatch.setattr(product_plans, "_found", {})
    monkeypatch.setattr(product_plans, "_fill", fill)
    # builds for CUDA would say what they give to the GPU that is there, or end without one
    monkeypatch.setattr(product_plans, "_torch_library", lambda: None)
    monkeypatch.setattr(product_plans, "_on_hopper", lambda: False)
    fake.fake_reset()
    yield found
    _driver.product_spaces(True)


def number(what: int) -> int:
    return fake.fake_number(what)


def integers(*sizes, dtype=torch.float32):
    n = torch.Size(sizes).numel()
    return (torch.arange(n) * 5 % 7 - 3).view(sizes).to(dtype)


def product(op="aten.mm.default", *, given=((5, 4), (4, 3)), out=(5, 3), dtype=DType.F32,
            strides=None, **kwargs):  # fmt: skip
    """One product and nothing else."""
    n = len(given)
    specs = [spec("input", i, s, _rows(s), dtype=dtype) for i, s in enumerate(given)]
    specs.append(spec("extern", 0, out, strides or _rows(out), dtype=dtype))
    args = tuple(TensorArg(i) for i in range(n))
    return program(tuple(specs), (Call(op, args, tuple(kwargs.items()), (n,)),), (n,))


def _rows(sizes):
    steps = [1]
    for n in reversed(sizes[1:]):
        steps.insert(0, steps[0] * n)
    return tuple(steps)


def planned(p, graphs=False, **wish):
    made = build(p, graphs, **wish)
    product_plans.enable(made, p)
    return made


def report(ex) -> dict[int, str]:
    return ex.products[0].report


def served(ex) -> int:
    return ex.products[1]


# ---------------------------------------------------------------- results
def test_the_first_call_is_aten_s_and_the_others_are_not():
    ex, x, w = planned(product()), integers(5, 4), integers(4, 3)
    for i in range(4):
        assert torch.equal(ex(x, w)[0], x @ w)
        assert served(ex) == max(i, 0)
    assert report(ex) == {0: "cuBLASLt"}


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.BF16])
def test_products_of_every_type(dtype):
    kind = {DType.F32: torch.float32, DType.F64: torch.float64, DType.BF16: torch.bfloat16}[dtype]
    ex = planned(product(dtype=dtype))
    for scale in (1, 2, 3):
        x, w = integers(5, 4, dtype=kind) * scale, integers(4, 3, dtype=kind)
        assert torch.equal(ex(x, w)[0], x @ w)
    assert served(ex) == 2


def test_a_batch():
    ex = planned(product("aten.bmm.default", given=((3, 5, 4), (3, 4, 6)), out=(3, 5, 6)))
    x, w = integers(3, 5, 4), integers(3, 4, 6)
    assert all(torch.equal(ex(x * i, w)[0], x * i @ w) for i in range(3))
    assert served(ex) == 2


def test_a_bias_that_is_another_tensor_in_every_call():
    given = ((3,), (5, 4), (4, 3))
    ex = planned(product(ACTIVATION, given=given, use_gelu=False))
    x, w = integers(5, 4), integers(4, 3)
    kept = [integers(3) + i for i in range(5)]
    for b in kept:
        assert torch.equal(ex(b, x, w)[0], torch.relu(b + x @ w))
    assert served(ex) == 4 and fake.fake_description(2) == cublas.EPILOGUE_RELU_BIAS


def test_alpha_scales_the_product_and_not_the_bias():
    ex = planned(product(ADDMM, given=((3,), (5, 4), (4, 3)), alpha=3))
    b, x, w = integers(3), integers(5, 4), integers(4, 3)
    assert all(torch.equal(ex(b, x, w)[0], b + 3 * (x @ w)) for _ in range(3))
    assert served(ex) == 2


def test_a_result_whose_rows_have_gaps():
    ex, x, w = planned(product(strides=(8, 1))), integers(5, 4), integers(4, 3)
    for _ in range(3):
        (y,) = ex(x, w)
        assert y.stride() == (8, 1) and torch.equal(y, x @ w)
    assert served(ex) == 2


def test_a_product_between_kernels_in_the_arena():
    p = program(
        (spec("input", 0, (4, 2), (2, 1)), spec("input", 1, (2, 4), (4, 1)),
         spec("arena", 0, (4, 2), (2, 1)), spec("extern", 0, (4, 4), (4, 1)),
         spec("fresh", 0, (4, 4), (4, 1))),
        (launch("add1", 0, 2), Call("aten.mm.default", (TensorArg(2), TensorArg(1)), (), (3,)),
         Alloc(4), launch("twice", 3, 4)), (4, 3), 64,
    )  # fmt: skip
    ex, w = planned(p), integers(2, 4)
    for i in range(4):
        x = integers(4, 2) + i
        y, z = ex(x, w)
        assert torch.equal(z, (x + 1) @ w) and torch.equal(y[:2], 2 * z[:2])
    assert served(ex) == 3


# ---------------------------------------------------------------- which algorithm
def test_the_first_algorithm_that_gives_aten_s_result_is_taken(library):
    fake.fake_set(WRONG, 0)
    product_plans.handle_of(library, "cpu", 0)
    fake.fake_set(WRONG, 3)
    ex, x, w = planned(product()), integers(5, 4), integers(4, 3)
    assert all(torch.equal(ex(x, w)[0], x @ w) for _ in range(3))
    assert number(ALGORITHM) == 3 and served(ex) == 2


def test_aten_keeps_a_product_that_no_algorithm_computes_as_it_does(library):
    product_plans.handle_of(library, "cpu", 0)
    fake.fake_set(WRONG, 8)
    ex, x, w = planned(product()), integers(5, 4), integers(4, 3)
    assert all(torch.equal(ex(x, w)[0], x @ w) for _ in range(3))
    searched = number(PRODUCTS)
    assert "none of cuBLASLt's first 8" in report(ex)[0] and served(ex) == 0
    ex(x, w)
    assert number(PRODUCTS) == searched
    assert events.recent("runtime")[-1].fields["code"] == "W306"


@pytest.fixture
def only_cublas(library):
    """A device on which cuBLAS computes as ATen does, and cuBLASLt by no algorithm."""
    product_plans.handle_of(library, "cpu", 0)
    fake.fake_classic(1)
    fake.fake_set(WRONG, 8)


def test_cublas_itself_computes_what_no_algorithm_of_cublaslt_s_does(only_cublas, device):
    ex, x, w = planned(product()), integers(5, 4), integers(4, 3)
    for i in range(4):
        assert torch.equal(ex(x * i, w)[0], x * i @ w)
    assert report(ex) == {0: "cuBLAS"} and served(ex) == 3
    other = planned(product(given=((2, 2), (2, 2)), out=(2, 2)))
    for _ in range(3):  # what is told while planning does not disturb others
        other(integers(2, 2), integers(2, 2))
    fake.fake_set(WORKSPACE, 8 << 20)
    told = number(STREAMS)
    assert torch.equal(ex(x, w)[0], x @ w) and number(STREAMS) == told
    use(device, 1)
    for _ in range(3):
        assert torch.equal(ex(x, w)[0], x @ w)
    assert fake.fake_told(0) == device.user and number(STREAMS) == told + 1
    assert fake.fake_told(1) == 8 << 20  # what ATen gives to it


def test_cublas_itself_computes_batches_of_every_layout(only_cublas):
    ex = planned(product("aten.bmm.default", given=((3, 5, 4), (3, 4, 6)), out=(3, 5, 6)))
    x, w = integers(3, 5, 4), integers(3, 4, 6)
    assert all(torch.equal(ex(x * i, w)[0], x * i @ w) for i in range(3))
    assert served(ex) == 2


def test_cublas_itself_rounds_as_torch_allows(only_cublas, settings):
    ex = planned(product(dtype=DType.BF16))
    x, w = integers(5, 4, dtype=torch.bfloat16), integers(4, 3, dtype=torch.bfloat16)
    modes = []
    for allow in (True, False, (False, False)):
        settings.allow_bf16_reduced_precision_reduction = allow
        for _ in range(2):
            assert torch.equal(ex(x, w)[0], x @ w)
        modes.append(fake.fake_told(2))
    assert modes == [0, 16, 16] and "none of" in report(ex)[0] and served(ex) == 3


def test_products_with_a_bias_are_never_cublas_s(only_cublas):
    ex = planned(product(ADDMM, given=((3,), (5, 4), (4, 3))))
    b, x, w = integers(3), integers(5, 4), integers(4, 3)
    assert all(torch.equal(ex(b, x, w)[0], b + x @ w) for _ in range(3))
    assert served(ex) == 0 and "none of" in report(ex)[0]


def test_algorithms_are_judged_by_numbers_of_our_own(library):
    product_plans.handle_of(library, "cpu", 0)
    fake.fake_set(TRUNCATED, 2)  # right for integers only: the operands do not show it, ours do
    state = torch.get_rng_state()
    ex, x, w = planned(product()), integers(5, 4), torch.zeros(4, 3)
    assert all(torch.equal(ex(x, w)[0], x @ w) for _ in range(3))
    assert served(ex) == 2 and number(ALGORITHM) == 2
    assert torch.equal(torch.get_rng_state(), state)


def test_numbers_that_cancel_leave_rounding_errors_only():
    x, w = torch.randn(3, 9), torch.randn(9, 5)
    product_plans._cancel(x, w)
    exact = x.double() @ w.double()
    assert exact.abs().max() < 1e-12 and (x @ w).abs().max() < 1e-5 and x.abs().min() > 0
    shared = torch.randn(1, 9, 5).expand(2, 9, 5)
    product_plans._cancel(torch.randn(2, 3, 9), shared)
    assert torch.equal(shared[1, :4], -shared[0, 4:8])


def test_equal_products_are_compared_once():
    made = [planned(product()) for _ in range(3)]
    for ex in made:
        for _ in range(3):
            ex(integers(5, 4), integers(4, 3))
    assert number(SEARCHES) == 2  # the self-test's, and theirs


def test_the_self_test_does_not_depend_on_the_order_of_sums(library, monkeypatch):
    monkeypatch.setattr(product_plans, "_fill", lambda t, source: t.normal_(generator=source))
    ex, x, w = planned(product()), integers(5, 4), integers(4, 3)
    assert all(torch.equal(ex(x, w)[0], x @ w) for _ in range(3))
    assert "self-test" not in report(ex)[0]


def test_a_device_whose_self_test_fails_is_left_to_aten():
    fake.fake_set(WRONG, 8)
    ex, x, w = planned(product()), integers(5, 4), integers(4, 3)
    assert all(torch.equal(ex(x, w)[0], x @ w) for _ in range(3))
    assert "self-test" in report(ex)[0]
    fake.fake_set(WRONG, 0)
    other = planned(product(given=((2, 2), (2, 2)), out=(2, 2)))
    for _ in range(3):
        other(integers(2, 2), integers(2, 2))
    assert "self-test" in report(other)[0]


def test_no_library_is_a_reason(monkeypatch):
    monkeypatch.setattr(cublas, "library", lambda: "cuBLASLt was not found: nowhere")
    ex, x, w = planned(product()), integers(5, 4), integers(4, 3)
    assert all(torch.equal(ex(x, w)[0], x @ w) for _ in range(3))
    assert "not found" in report(ex)[0]


def test_a_plan_that_stops_working_is_replaced_by_aten():
    ex, x, w = planned(product()), integers(5, 4), integers(4, 3)
    for _ in range(3):
        ex(x, w)
    fake.fake_set(STATUS, 14)
    assert all(torch.equal(ex(x, w)[0], x @ w) for _ in range(3))
    assert "status 14" in report(ex)[0] and served(ex) == 2


def test_nothing_offered_is_a_reason(library):
    product_plans.handle_of(library, "cpu", 0)
    fake.fake_set(OFFERED, 0)
    ex, x, w = planned(product()), integers(5, 4), integers(4, 3)
    assert all(torch.equal(ex(x, w)[0], x @ w) for _ in range(3))
    assert "status 15" in report(ex)[0]


# ---------------------------------------------------------------- settings
@pytest.fixture
def settings():
    m = torch.backends.cuda.matmul
    yield m
    torch.set_float32_matmul_precision("highest")
    m.allow_bf16_reduced_precision_reduction = True
    m.allow_fp16_accumulation = False
    torch.use_deterministic_algorithms(False)


def test_tf32_is_noticed_in_the_next_call(settings):
    ex, x, w = planned(product()), integers(5, 4), integers(4, 3)
    seen = []
    for allow in (False, True, False):
        settings.allow_tf32 = allow
        for _ in range(2):
            assert torch.equal(ex(x, w)[0], x @ w)
        seen.append((number(SEARCHES), fake.fake_description(0)))
    f32, tf32 = cublas.COMPUTE_32F, cublas.COMPUTE_32F_FAST_TF32
    assert [kind for _, kind in seen] == [f32, tf32, tf32] and seen[1][0] == seen[2][0]
    assert served(ex) == 5


def test_reductions_are_what_torch_allows(settings):
    kinds = {True: 99, False: cublas.REDUCE_IN_COMPUTE_TYPE, (False, False): cublas.REDUCE_NOT}
    ex = planned(product(dtype=DType.BF16))
    x, w = integers(5, 4, dtype=torch.bfloat16), integers(4, 3, dtype=torch.bfloat16)
    ex(x, w)
    for allow, mask in kinds.items():
        settings.allow_bf16_reduced_precision_reduction = allow
        ex(x, w)
        assert fake.fake_preference(3) == mask
    assert served(ex) == 3


def test_half_precision_sums_where_torch_allows_them(settings):
    shape = product_plans.shape_of(
        Call("aten.mm.default", (TensorArg(0), TensorArg(1)), (), (2,)),
        product(dtype=DType.F16).tensors,
    )
    rules = product_plans.rules_for(shape, 0)
    assert (rules.compute, rules.scale) == (cublas.COMPUTE_32F, DType.F32)
    settings.allow_fp16_accumulation = True
    rules = product_plans.rules_for(shape, 0)
    assert (rules.compute, rules.scale) == (cublas.COMPUTE_16F, DType.F16)
    assert cublas.scale_bits(1.5, DType.F16) == b"\0\x3e" + bytes(6)


def test_deterministic_algorithms_are_aten_s_own(settings):
    ex, x, w = planned(product()), integers(5, 4), integers(4, 3)
    for _ in range(3):
        ex(x, w)
    torch.use_deterministic_algorithms(True)
    for _ in range(2):
        assert torch.equal(ex(x, w)[0], x @ w)
    assert served(ex) == 2 and "deterministic" in report(ex)[0]
    torch.use_deterministic_algorithms(False)
    ex(x, w)
    assert served(ex) == 3


def test_multiprocessors_set_aside_are_noticed():
    before = _driver.product_settings()
    torch._C._set_sm_carveout_experimental(4)
    try:
        assert _driver.product_settings() != before
        assert product_plans._unusual()
    finally:
        torch._C._set_sm_carveout_experimental(None)
    assert _driver.product_settings() == before


# ---------------------------------------------------------------- addresses and memory
def test_each_alignment_has_a_plan_and_says_so():
    ex, w, memory = planned(product()), integers(4, 3), torch.zeros(64)
    seen = []
    for offset in (0, 0, 1, 2, 0, 1, 2):
        x = memory[offset : offset + 20].view(5, 4).copy_(integers(5, 4))
        assert torch.equal(ex(x, w)[0], x @ w)
        seen.append(fake.fake_preference(6))
    assert seen[1:4] == [256, 4, 8] and number(SEARCHES) == 4 and served(ex) == 6


def test_plans_of_a_step_are_bounded():
    ex, memory = planned(product()), integers(4096)
    for i in range(9):
        for j in range(3):
            x = torch.as_strided(memory, (5, 4), (4, 1), (64 << j) + (1 << i) % 64)
            w = torch.as_strided(memory, (4, 3), (3, 1), 2048 + (1 << i) % 64 + j)
            assert torch.equal(ex(x, w)[0], x @ w)
    assert report(ex)[0] == "cuBLASLt"


def test_a_workspace_is_kept_per_stream_and_given_back(device):
    fake.fake_set(WORKSPACE, 3 << 20)
    ex, x, w = planned(product()), integers(5, 4), integers(4, 3)
    for _ in range(3):
        assert torch.equal(ex(x, w)[0], x @ w)
    assert _driver.product_spaces(False) == 4 << 20
    use(device, 1)
    ex(x, w)
    assert number(STREAM) == device.user and _driver.product_spaces(False) == 8 << 20
    cudagraph.trim()
    assert _driver.product_spaces(False) == 0
    assert torch.equal(ex(x, w)[0], x @ w) and _driver.product_spaces(False) == 4 << 20


def test_descriptors_go_with_their_executable():
    ex, x, w = planned(product()), integers(5, 4), integers(4, 3)
    for _ in range(3):
        ex(x, w)
    assert fake.fake_live() > 0
    del ex
    gc.collect()
    assert fake.fake_live() == 0


def test_descriptions_are_not_written_again_while_the_bias_stays():
    ex = planned(product(ADDMM, given=((3,), (5, 4), (4, 3))))
    b, x, w = integers(3), integers(5, 4), integers(4, 3)
    for _ in range(3):
        ex(b, x, w)
    before = number(CHANGES)
    for _ in range(3):
        ex(b, x, w)
    assert number(CHANGES) == before


# ---------------------------------------------------------------- graphs, captures, threads
def test_a_graph_records_aten_s_product():
    p = program(
        (spec("input", 0, (4, 2), (2, 1)), spec("input", 1, (2, 4), (4, 1)),
         spec("arena", 0, (4, 2), (2, 1)), spec("extern", 0, (4, 4), (4, 1))),
        (launch("add1", 0, 2), Call("aten.mm.default", (TensorArg(2), TensorArg(1)), (), (3,))),
        (3,), 64,
    )  # fmt: skip
    ex = planned(p, graphs=True)
    for _ in range(3):
        ex(integers(4, 2), integers(2, 4))
    assert len(ex.graphs) == 1 and served(ex) == 0 and report(ex) == {}


def test_a_user_s_capture_gets_aten_s_product(device):
    ex, x, w = planned(product()), integers(5, 4), integers(4, 3)
    for _ in range(3):
        ex(x, w)
    use(device, 2)
    _driver.capture_begin(0)
    ex(x, w)
    _driver.capture_end(0)
    assert served(ex) == 2
    use(device, 0)
    ex(x, w)
    assert served(ex) == 3


def test_threads_share_the_plans_of_a_step():
    ex, w, bad = planned(product(ADDMM, given=((3,), (5, 4), (4, 3)))), integers(4, 3), []

    def work(i):
        b, x = integers(3) + i, integers(5, 4) + i
        for _ in range(50):
            if not torch.equal(ex(b, x, w)[0], b + x @ w):
                bad.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not bad and served(ex) >= 190


def test_the_switch_decides_whether_products_are_planned():
    for on in (True, False):
        with override(cublaslt=on, driver="native") as cfg:
            ex = make_executable(product(), cfg, None, frozenset(), False)
        x, w = integers(5, 4), integers(4, 3)
        assert all(torch.equal(ex(x, w)[0], x @ w) for _ in range(3))
        assert served(ex) == (2 if on else 0)


def test_long_products_are_aten_s():
    ex = planned(product(given=((1, 1 << 13), (1 << 13, 1 << 12)), out=(1, 1 << 12)))
    assert "hidden" in report(ex)[0]


def test_products_elsewhere_are_aten_s():
    p = program(
        (spec("input"), spec("input", 1, (2, 2), (2, 1), device="cuda:1"),
         spec("extern", 0, (2, 2), (2, 1), device="cuda:1")),
        (Call("aten.mm.default", (TensorArg(1), TensorArg(1)), (), (2,)),), (2,),
    )  # fmt: skip
    ex = planned(p)
    assert "own device" in report(ex)[0]
    assert ex(x_of(1.0), integers(2, 2))[0].tolist() == (integers(2, 2) @ integers(2, 2)).tolist()
    assert count(0) == 0
