"""Products of launch lists by cuBLASLt and cuBLAS on a real GPU: ATen's own bits, always."""

from __future__ import annotations

import itertools
import threading

import gpu_lists as lists
import pytest
import torch
from gpu_lists import build, call, launch, program, spec
from gpu_matrices import LAYOUTS, laid_out, matrix

import torchweld
from torchweld.base.config import override
from torchweld.ir.dtype import DType
from torchweld.ir.program import Alloc, TensorArg
from torchweld.runtime import _driver

pytestmark = pytest.mark.gpu
DTYPES = {DType.BF16: torch.bfloat16, DType.F16: torch.float16, DType.F32: torch.float32,
          DType.F64: torch.float64}  # fmt: skip
MM, BMM = "aten.mm.default", "aten.bmm.default"
ADDMM, ACTIVATION = "aten.addmm.default", "aten._addmm_activation.default"


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torchweld.reset()


def product(op, tensors, out, device="cuda:0", **kwargs):
    """A launch list of one product."""
    kinds = {v: k for k, v in DTYPES.items()}
    n = len(tensors)
    specs = [spec("input", tuple(t.shape), i, dtype=kinds[t.dtype], strides=t.stride(),
                  device=device) for i, t in enumerate(tensors)]  # fmt: skip
    specs.append(spec("extern", out, dtype=kinds[tensors[0].dtype], device=device))
    step = call(op, tuple(map(TensorArg, range(n))), n, **kwargs)
    return build(program((), tuple(specs), (step,), (n,), device=device), graphs=False)


def same_bits(x, y):
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return x.stride() == y.stride() and torch.equal(x.view(kind), y.view(kind))


def check(ex, tensors, want, calls=4):
    """Every call gives ATen's bits; how many of them cuBLASLt computed, and what is said of it."""
    for _ in range(calls):
        assert same_bits(ex(*tensors)[0], want)
    planner, served = ex.products
    report = planner.report[0]
    assert served in (0, calls - 1)
    assert not report.startswith(("self-test", "planning failed", "cuBLASLt was not found")), report
    return served, report


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_mm_of_every_layout(dtype):
    for (m, k, n), left, right in itertools.product(
        ((96, 64, 128), (1, 256, 64), (40, 72, 1), (33, 17, 7)), LAYOUTS, LAYOUTS
    ):
        x, w = matrix(m, k, left, dtype), matrix(k, n, right, dtype)
        check(product(MM, (x, w), (m, n)), (x, w), torch.mm(x, w))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_bmm_of_every_layout(dtype):
    for (m, k, n), left, right in itertools.product(
        ((64, 32, 48), (1, 64, 80), (48, 64, 1)), LAYOUTS, LAYOUTS
    ):
        x, w = laid_out(m, k, left, dtype, 6), laid_out(k, n, right, dtype, 6)
        check(product(BMM, (x, w), (6, m, n)), (x, w), torch.bmm(x, w))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("op", [ADDMM, "relu", "gelu"])
def test_a_bias_and_an_activation_are_cublaslt_s(op, dtype):
    for (m, k, n), right in itertools.product(((96, 64, 128), (1024, 512, 512)), LAYOUTS):
        b = torch.randn(n, device="cuda", dtype=dtype)
        x, w = matrix(m, k, "rows", dtype), matrix(k, n, right, dtype)
        if op == ADDMM:
            ex, want = product(ADDMM, (b, x, w), (m, n)), torch.addmm(b, x, w)
        else:
            gelu = op == "gelu"
            ex = product(ACTIVATION, (b, x, w), (m, n), use_gelu=gelu)
            want = torch._addmm_activation(b, x, w, use_gelu=gelu)
        served, report = check(ex, (b, x, w), want)
        assert served, report


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_plain_products_are_planned(dtype):
    for (m, k, n), right in itertools.product(
        ((64, 64, 64), (128, 768, 3072)), ("rows", "columns")
    ):
        x, w = matrix(m, k, "rows", dtype), matrix(k, n, right, dtype)
        served, report = check(product(MM, (x, w), (m, n)), (x, w), torch.mm(x, w))
        assert served, report
    x, w = laid_out(128, 64, "rows", dtype, 12), laid_out(64, 128, "columns", dtype, 12)
    served, report = check(product(BMM, (x, w), (12, 128, 128)), (x, w), torch.bmm(x, w))
    assert served, report


def test_nan_and_infinity_go_through_relu_as_in_aten():
    x, w = (torch.randn(64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    b = torch.zeros(64, device="cuda", dtype=torch.bfloat16)
    x[3, 3], x[5, 5], x[7, 7] = float("nan"), float("inf"), -float("inf")
    ex = product(ACTIVATION, (b, x, w), (64, 64), use_gelu=False)
    check(ex, (b, x, w), torch._addmm_activation(b, x, w))


def test_a_settings_change_is_noticed_in_the_next_call():
    x, w = (torch.randn(256, 256, device="cuda") for _ in range(2))
    b = torch.randn(256, device="cuda")
    ex, before = product(ADDMM, (b, x, w), (256, 256)), torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "high", "highest", "high"):
            torch.set_float32_matmul_precision(precision)
            for _ in range(3):
                assert same_bits(ex(b, x, w)[0], torch.addmm(b, x, w))
    finally:
        torch.set_float32_matmul_precision(before)
    assert ex.products[1] == 11


def test_reduced_precision_reductions_follow_torch():
    x, w = (torch.randn(64, 8192, device="cuda", dtype=torch.float16) for _ in range(2))
    b, m = torch.randn(64, device="cuda", dtype=torch.float16), torch.backends.cuda.matmul
    ex = product(ADDMM, (b, x, w.t()), (64, 64))
    try:
        for allow in (True, False):
            m.allow_fp16_reduced_precision_reduction = allow
            for _ in range(3):
                assert same_bits(ex(b, x, w.t())[0], torch.addmm(b, x, w.t()))
    finally:
        m.allow_fp16_reduced_precision_reduction = True
    assert ex.products[1] == 5


def test_another_alignment_gets_a_plan_of_its_own():
    memory = torch.randn(64 * 64 + 8, device="cuda", dtype=torch.bfloat16)
    w, b = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16), memory[:64].clone()
    ex = product(ADDMM, (b, memory[:4096].view(64, 64), w), (64, 64))
    for _ in range(3):
        for offset in (0, 1, 2, 4, 8):
            x = memory[offset : offset + 4096].view(64, 64)
            assert same_bits(ex(b, x, w)[0], torch.addmm(b, x, w))
    assert ex.products[1] > 2


def test_products_follow_the_current_stream():
    x, w = (torch.randn(512, 512, device="cuda") for _ in range(2))
    ex, side = product(MM, (x, w), (512, 512)), torch.cuda.Stream()
    for _ in range(3):
        ex(x, w)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        x.fill_(2.0)
        (y,) = ex(x, w)
    side.synchronize()
    assert same_bits(y, torch.mm(x, w))


def test_the_user_s_own_capture_holds_aten_s_product():
    x, w = (torch.randn(64, 64, device="cuda") for _ in range(2))
    ex = product(MM, (x, w), (64, 64))
    for _ in range(3):
        ex(x, w)
    torch.cuda.synchronize()
    g, served = torch.cuda.CUDAGraph(), ex.products[1]
    with torch.cuda.graph(g):
        (y,) = ex(x, w)
    assert ex.products[1] == served
    for i in range(3):
        x.fill_(float(i))
        g.replay()
        assert same_bits(y, torch.mm(x, w))


def test_a_kernel_and_a_product():
    n = 64 * 64
    p = program(
        (lists.elementwise("add1", n),),
        (spec("input", (64, 64)), spec("input", (64, 64), 1), spec("extern", (64, 64)),
         spec("fresh", (64, 64))),
        (call(MM, (TensorArg(0), TensorArg(1)), 2), Alloc(3), launch("add1", n, 2, 3)), (3,),
    )  # fmt: skip
    ex, w = build(p, graphs=False), torch.randn(64, 64, device="cuda")
    for _ in range(4):
        x = torch.randn(64, 64, device="cuda")
        assert same_bits(ex(x, w)[0], torch.mm(x, w) + 1)


def test_threads_on_streams_of_their_own():
    b, w = torch.randn(64, device="cuda"), torch.randn(64, 64, device="cuda")
    xs = [torch.randn(64, 64, device="cuda") for _ in range(4)]
    want, bad = [torch.addmm(b + i, x, w) for i, x in enumerate(xs)], []
    ex = product(ADDMM, (b, xs[0], w), (64, 64))
    torch.cuda.synchronize()

    def work(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                if not same_bits(ex(b + i, xs[i], w)[0], want[i]):
                    bad.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not bad and ex.products[1] > 100


def test_the_last_device_has_a_handle_of_its_own():
    last = f"cuda:{torch.cuda.device_count() - 1}"
    b, (x, w) = torch.randn(64, device=last), (torch.randn(64, 64, device=last) for _ in range(2))
    check(product(ADDMM, (b, x, w), (64, 64), last), (b, x, w), torch.addmm(b, x, w))


def test_the_switch_leaves_products_to_aten():
    x, w = (torch.randn(64, 64, device="cuda") for _ in range(2))
    with override(cublaslt=False):
        ex = product(MM, (x, w), (64, 64))
    for _ in range(3):
        assert same_bits(ex(x, w)[0], torch.mm(x, w))
    assert ex.products == (None, 0)


def test_reset_gives_workspaces_back():
    x, w = (torch.randn(64, 65536, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    b = torch.randn(64, device="cuda", dtype=torch.bfloat16)
    ex = product(ADDMM, (b, x, w.t()), (64, 64))
    for _ in range(3):
        ex(b, x, w.t())
    torchweld.reset()
    assert _driver.product_spaces(False) == 0
    assert same_bits(ex(b, x, w.t())[0], torch.addmm(b, x, w.t()))


def test_compiled_functions_use_it_where_they_have_no_graph():
    layer = torch.nn.Linear(64, 128, device="cuda", dtype=torch.bfloat16)
    compiled = torchweld.compile(lambda x: torch.relu(layer(x)), options={"cudagraphs": False})
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(32, 64, device="cuda", dtype=torch.bfloat16)
            assert same_bits(compiled(x), torch.relu(layer(x)))
