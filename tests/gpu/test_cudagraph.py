"""CUDA graphs on a real GPU: outputs stay right and valid, whatever moves."""

from __future__ import annotations

import threading
from random import Random

import pytest
import torch
from gpu_lists import T, build, call, chain, elementwise, launch, operator, product, program, spec

from torchweld.base import events
from torchweld.runtime import cudagraph

pytestmark = pytest.mark.gpu
N = 4096


@pytest.fixture(autouse=True)
def clean():
    events.clear()
    yield
    cudagraph.trim()


def random(*sizes):
    return torch.randn(*sizes, device="cuda")


def test_the_steady_state_is_a_graph():
    ex = build(chain())
    for _ in range(6):
        x = random(N)
        assert torch.equal(ex(x)[0], x + 1 + 1)
    assert [row[1] for row in ex.graphs] == [2] and ex.graphs[0][5] == 5


def test_five_outputs_stay_valid():
    ex = build(product())
    held = []
    for _ in range(8):
        x, w = random(64, 64), random(64, 64)
        held.append((x, w, *ex(x, w)))
    for x, w, y, z in held:
        torch.testing.assert_close(y, (x + 1) @ w)
        torch.testing.assert_close(z, (x + 1) @ w + 1)
    assert len(ex.graphs) == 1


def test_parameters_that_move_get_a_graph_of_their_own():
    ex = build(product(256, 256), static=(1,))
    weights = [random(256, 256) for _ in range(3)]
    for _ in range(4):
        for w in weights:
            x = random(256, 256)
            torch.testing.assert_close(ex(x, w)[0], (x + 1) @ w)
    assert len(ex.graphs) == 3


def test_large_results_are_lent_and_come_back():
    ex = build(product(2048, 512))
    held = []
    for i in range(9):
        x, w = random(2048, 512), random(512, 512)
        y, z = ex(x, w)
        held.append((x, w, y, z))
        if i % 3:
            held.pop(0)
        for x, w, y, z in held:
            torch.testing.assert_close(y, (x + 1) @ w, atol=1e-3, rtol=1e-3)
            torch.testing.assert_close(z, y + 1)
    assert sorted(row[4] for row in ex.graphs) == [0, 1 << 22, 1 << 22]


def test_graphs_that_share_memory_do_not_disturb_each_other():
    made = [build(product(m, 512)) for m in (64, 2048, 512, 1024)]
    held = []
    for _ in range(5):
        for ex, m in zip(made, (64, 2048, 512, 1024), strict=True):
            x, w = random(m, 512), random(512, 512)
            held.append((x, w, *ex(x, w)))
    for x, w, y, z in held:
        torch.testing.assert_close(y, (x + 1) @ w, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(z, y + 1)


def test_streams_take_turns():
    ex = build(product(512, 512))
    streams = [torch.cuda.Stream() for _ in range(3)]
    made = []
    for i in range(12):
        with torch.cuda.stream(streams[i % 3]):
            x, w = random(512, 512), random(512, 512)
            made.append((x, w, *ex(x, w)))
    torch.cuda.synchronize()
    assert sum(row[5] for row in ex.graphs) >= 9
    for x, w, y, z in made:
        torch.testing.assert_close(y, (x + 1) @ w, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(z, y + 1)


def test_an_external_stream_gets_the_launch_list():
    ex, x = build(chain()), random(N)
    for _ in range(3):
        ex(x)
    runs = ex.graphs[0][5]
    own = torch.cuda.Stream()
    with torch.cuda.stream(torch.cuda.ExternalStream(own.cuda_stream)):
        (y,) = ex(x)
    torch.cuda.synchronize()
    assert torch.equal(y, x + 1 + 1)
    assert ex.graphs[0][5] == runs


def test_threads_may_call_at_once():
    ex, wrong = build(product(256, 256)), []

    def work(seed):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(40):
                x, w = random(256, 256), random(256, 256)
                y, z = ex(x, w)
                expected = (x + 1) @ w
                if not torch.allclose(y, expected, atol=1e-3) or not torch.equal(z, y + 1):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_what_is_mutated_is_the_user_s_tensor():
    p = program(
        (elementwise("inc", N),), (spec("input", (64, 64)), spec("extern", (64, 64))),
        (launch("inc", N, 0), call("aten.mm.default", (T(0), T(0)), 1)), (1,), mutated=(0,),
    )  # fmt: skip
    ex = build(p)
    for _ in range(5):
        x = random(64, 64)
        expected, version = x + 1, x._version
        (y,) = ex(x)
        assert torch.equal(x, expected) and x._version > version
        torch.testing.assert_close(y, expected @ expected)


def test_a_capture_of_the_user_s_holds_the_launch_list():
    ex, x = build(chain()), random(N)
    for _ in range(3):
        ex(x)
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        (y,) = ex(x)
    for i in range(3):
        x.fill_(float(i))
        assert bool((ex(x)[0] == i + 2).all())
        g.replay()
        assert bool((y == i + 2).all())


def test_inference_mode_has_its_own_graphs():
    ex = build(product())
    for inference in (False, True, False, True, True):
        with torch.inference_mode(inference):
            x, w = random(64, 64), random(64, 64)
            y, z = ex(x, w)
            torch.testing.assert_close(y, (x + 1) @ w)
            assert y.is_inference() == z.is_inference() == inference


@pytest.mark.parametrize(
    ("op", "args", "sizes", "why"),
    [
        ("aten.bernoulli.p", (0.5,), (256,), "random"),
        ("aten.nonzero.default", (), (256, 1), "shape"),
    ],
)
def test_what_cannot_be_a_graph_says_why(op, args, sizes, why):
    ex = build(operator(op, *args, sizes=sizes))
    assert why in ex.graphs
    assert any(why in str(e.fields.get("why")) for e in events.recent("cudagraphs"))


@torch.library.custom_op("weldgpu::syncs", mutates_args=())
def syncs(x: torch.Tensor) -> torch.Tensor:
    return x + x.sum().item() * 0


def test_an_operator_that_waits_for_the_gpu_ends_in_launch_lists():
    ex = build(operator("weldgpu.syncs.default"), graphs=True)
    for _ in range(4):
        x = random(256)
        assert torch.equal(ex(x)[0], x + 1)
    assert "recording failed" in ex.graphs
    after = build(product())
    for _ in range(4):
        x, w = random(64, 64), random(64, 64)
        torch.testing.assert_close(after(x, w)[0], (x + 1) @ w)
    assert len(after.graphs) == 1
    torch.cuda.empty_cache()


def test_too_little_memory_to_record_ends_in_launch_lists(monkeypatch):
    def record(*args):
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(1e-4)
        try:
            real(*args)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    real = cudagraph.record
    monkeypatch.setattr(cudagraph, "record", record)
    n = 1 << 24
    ex = build(chain(n))
    for _ in range(4):
        x = random(n)
        assert torch.equal(ex(x)[0], x + 1 + 1)
        del x
    assert "memory" in ex.graphs


def test_a_setting_of_torch_s_is_obeyed_after_recording():
    ex, x, w = build(product(512, 512)), random(512, 512), random(512, 512)
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for allowed in (False, True, False):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            for _ in range(3):
                assert torch.equal(ex(x, w)[0], (x + 1) @ w)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert len(ex.graphs) >= 2


def test_a_cache_that_moves_once_is_never_copied():
    n = 4096
    p = program(
        (elementwise("inc", n * n),),
        (spec("input", (n, n)), spec("input", (n, 1), 1), spec("extern", (n, 1))),
        (launch("inc", n * n, 0), call("aten.mm.default", (T(0), T(1)), 2)), (2,), mutated=(0,),
    )  # fmt: skip
    ex = build(p)
    for _ in range(3):
        cache, x = torch.zeros(n, n, device="cuda"), torch.ones(n, 1, device="cuda")
        for i in range(5):
            (y,) = ex(cache, x)
            assert bool((cache == i + 1).all()) and bool((y == (i + 1) * n).all())
    assert all(row[3] < 1 << 20 for row in ex.graphs)


def test_every_gpu_has_graphs_of_its_own():
    made = [build(chain(device=f"cuda:{i}")) for i in range(torch.cuda.device_count())]
    for _ in range(5):
        for i, ex in enumerate(made):
            x = torch.randn(N, device=f"cuda:{i}")
            (y,) = ex(x)
            assert y.device == x.device and torch.equal(y, x + 1 + 1)
    assert all(ex.graphs[0][5] == 4 for ex in made) and torch.cuda.current_device() == 0


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_calls_streams_and_drops(seed):
    dice = Random(seed)
    made = [(m, build(product(m, 256), static=(1,) * (i % 2), graphs=True))
            for i, m in enumerate((16, 64, 256, 2048, 4096))]  # fmt: skip
    weights = [random(256, 256) for _ in range(3)]
    fixed = {m: random(m, 256) for m, _ in made}
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    held = []
    for _ in range(300):
        m, ex = dice.choice(made)
        stream = dice.choice(streams)
        stream.wait_stream(streams[0])
        with torch.cuda.stream(stream), torch.inference_mode(dice.random() < 0.2):
            x = fixed[m] if dice.random() < 0.5 else random(m, 256)
            w = dice.choice(weights)
            y, z = ex(x, w)
            held.append(((x + 1) @ w, y, (x + 1) @ w + 1, z))
        streams[0].wait_stream(stream)
        while len(held) > dice.choice((0, 1, 3, 9)):
            a, b, c, d = held.pop(dice.randrange(len(held)))
            torch.testing.assert_close(b, a, atol=2e-3, rtol=2e-3)
            torch.testing.assert_close(d, c, atol=2e-3, rtol=2e-3)
        if dice.random() < 0.02:
            dice.choice((cudagraph.trim, ex.trim, torch.cuda.empty_cache))()


def test_the_report_names_what_is_held():
    ex = build(product(2048, 512))
    for _ in range(3):
        ex(random(2048, 512), random(512, 512))
    report = cudagraph.memory_report()
    assert report.graphs >= 1 and report.pool > 0 and report.lent >= 1 << 22
    cudagraph.trim()
    report = cudagraph.memory_report()
    assert (report.graphs, report.pool, report.lent) == (0, 0, 0)
    x, w = random(2048, 512), random(512, 512)
    torch.testing.assert_close(ex(x, w)[0], (x + 1) @ w, atol=1e-3, rtol=1e-3)
