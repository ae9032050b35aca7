"""Launch lists on a real GPU by the native driver."""

from __future__ import annotations

import threading

import gpu_lists as lists
import pytest
import torch
from gpu_lists import build, chain, elementwise, launch, program, spec

from torchweld.ir.program import Alloc

pytestmark = pytest.mark.gpu
N = 4096


def plain(p, **options):
    return build(p, graphs=False, **options)


def test_kernels_and_operators_equal_eager():
    x, w = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    y, z = plain(lists.product())(x, w)
    torch.testing.assert_close(y, (x + 1) @ w)
    torch.testing.assert_close(z, (x + 1) @ w + 1)


def test_a_number_on_the_cpu_is_passed_by_value():
    p = program(
        (elementwise("scale", N),),
        (spec("input", (N,)), spec("input", (), 1, device="cpu"), spec("fresh", (N,))),
        (Alloc(2), launch("scale", N, 0, 1, 2)), (2,),
    )  # fmt: skip
    ex, x = plain(p), torch.randn(N, device="cuda")
    for s in (2.5, -1.0):
        assert torch.equal(ex(x, torch.tensor(s))[0], x * s)


def test_unaligned_inputs_are_copied_and_written_back():
    p = program((elementwise("inc", N),), (spec("input", (N,)),), (launch("inc", N, 0),), (),
                mutated=(0,))  # fmt: skip
    base = torch.zeros(N + 1, device="cuda")
    plain(p)(base[1:])
    assert base[0] == 0 and bool((base[1:] == 1).all())


def test_launches_follow_the_current_stream():
    ex, x = plain(chain()), torch.zeros(N, device="cuda")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        x.fill_(5.0)
        (y,) = ex(x)
    side.synchronize()
    assert bool((y == 7).all())


def test_two_streams_do_not_share_an_arena():
    ex = plain(chain(1 << 22))
    streams = [torch.cuda.Stream() for _ in range(2)]
    xs = [torch.full((1 << 22,), float(i), device="cuda") for i in range(2)]
    torch.cuda.synchronize()
    made = []
    for _ in range(10):
        for i, s in enumerate(streams):
            with torch.cuda.stream(s):
                made.append((i, ex(xs[i])[0]))
    torch.cuda.synchronize()
    assert all(bool((y == i + 2).all()) for i, y in made)


def test_a_thread_that_never_used_cuda_can_call():
    ex, x, seen = plain(chain()), torch.ones(N, device="cuda"), []
    t = threading.Thread(target=lambda: seen.append(ex(x)[0].sum().item()))
    t.start()
    t.join()
    assert seen == [3.0 * N]


def test_out_of_memory_is_torch_s_own_exception():
    n = 1 << 40
    p = program((), (spec("input", (4,)), spec("fresh", (n,))), (Alloc(1),), (1,))
    with pytest.raises(torch.OutOfMemoryError):
        plain(p)(torch.ones(4, device="cuda"))
    assert torch.ones(4, device="cuda").sum() == 4


def test_verify_fills_memory_that_nobody_wrote():
    p = program((), (spec("input", (4,)), spec("fresh", (4,))), (Alloc(1),), (1,))
    assert bool(plain(p, verify=True)(torch.ones(4, device="cuda"))[0].isnan().all())


def test_the_user_s_own_capture_holds_our_kernels():
    ex, x = plain(chain()), torch.zeros(N, device="cuda")
    ex(x)
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        (y,) = ex(x)
    for i in range(3):
        x.fill_(float(i))
        ex(x)
        g.replay()
        assert bool((y == i + 2).all())


def test_the_device_of_the_tensors_is_used_whatever_the_current_one():
    last = f"cuda:{torch.cuda.device_count() - 1}"
    ex = plain(chain(device=last))
    x = torch.ones(N, device=last)
    assert torch.cuda.current_device() == 0
    (y,) = ex(x)
    assert y.device == x.device and bool((y == 3).all()) and torch.cuda.current_device() == 0
