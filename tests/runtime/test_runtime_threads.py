"""Several threads on one Executable."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from launch_lists import add_one, mlp, program, spec

from torchweld.ir.program import Launch


def test_eight_threads_share_one_executable(make):
    ex = make(mlp())

    def work(seed):
        g = torch.Generator().manual_seed(seed)
        shapes = ((3, 4), (4, 5), (5,))
        for _ in range(60):
            x, w, b = (torch.randn(s, generator=g) for s in shapes)
            expected = torch.softmax(torch.relu(torch.addmm(b, x, w)) + 1, 1)
            if not torch.allclose(ex(x, w, b)[0], expected, rtol=1e-5, atol=1e-6):
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_eight_threads_share_large_outputs_and_a_team(native):
    n = 1 << 19
    ex = native(add_one(n, 1 << 14))

    def work(seed):
        x = torch.full((n,), float(seed))
        for _ in range(6):
            (y,) = ex(x)
            if y.min().item() != seed + 1 or y.max().item() != seed + 1:
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    ex.trim()


def test_other_threads_run_python_during_a_long_kernel(native):
    """The kernel waits for a flag that only another Python thread sets; it gives up after 20 s."""
    p = program((spec("input", (64,)),), (Launch("await", (0,), 64, 32),), (0,))
    ex, flag = native(p), torch.zeros(64)
    thread = threading.Thread(target=lambda: (started.wait(), flag.fill_(1)))
    started = threading.Event()
    thread.start()
    started.set()
    ex(flag)
    thread.join()


def test_the_thread_count_holds_in_other_threads(native):
    n = 1000
    p = program(
        (spec("input", (n,)), spec("input", (n,), 1)), (Launch("visit", (0, 1), n, 10),), (0,)
    )
    ex, chunk, before = native(p), torch.zeros(n), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(ex, torch.zeros(n), chunk).result()
    finally:
        torch.set_num_threads(before)
    assert chunk.max().item() == n // 2
