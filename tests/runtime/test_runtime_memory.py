"""What the native driver keeps between calls, and what it must never share."""

from __future__ import annotations

import gc
import sys

import pytest
import torch
from launch_lists import add_one, call, mlp, program, spec

from torchweld.ir.program import Alloc, Call, Launch, TensorArg

BIG = 1 << 20  # elements of f32: 4 MB


@pytest.fixture
def big(native):
    ex = native(add_one(BIG, 1 << 14))
    yield ex
    ex.trim()


def reused(ex):
    return ex.counts[1]


def test_a_loop_that_drops_its_result_gets_its_memory_back(big):
    x = torch.zeros(BIG)
    places = set()
    for _ in range(6):
        (y,) = big(x)
        places.add(y.data_ptr())
    assert len(places) == 2 and reused(big) == 4


@pytest.mark.parametrize(
    "keep",
    [
        lambda y: y,
        lambda y: y[5:9],
        lambda y: y.detach(),
        lambda y: y.numpy(),
        lambda y: y.untyped_storage(),
        lambda y: torch.from_dlpack(y),
        lambda y: torch.nn.Parameter(y),
    ],
    ids=["tensor", "slice", "detach", "numpy", "storage", "dlpack", "parameter"],
)
def test_memory_that_somebody_can_still_see_is_not_reused(big, keep):
    x = torch.zeros(BIG)
    kept = [keep(big(x)[0]) for _ in range(4)]
    big(torch.full((BIG,), 41.0))
    for k in kept:
        whole = torch.empty(0).set_(k) if isinstance(k, torch.UntypedStorage) else k
        assert whole.max().item() == 1.0


def test_an_output_from_pooled_memory_is_an_ordinary_tensor(big):
    x = torch.zeros(BIG)
    for _ in range(3):
        y = big(x)[0]
    assert reused(big) > 0
    assert y.is_leaf and not y.requires_grad and y._base is None and y._version == 0
    assert y.untyped_storage().nbytes() == 4 * BIG and y.storage_offset() == 0
    y.resize_(2 * BIG)
    y.requires_grad_().sum().backward()


def test_memory_that_was_shared_with_other_processes_is_not_reused(big):
    x = torch.zeros(BIG)
    y = big(x)[0].share_memory_()
    shared = y.data_ptr()
    window = y.untyped_storage()._share_filename_cpu_()  # what a queue sends to another process
    del y
    other = torch.UntypedStorage._new_shared_filename_cpu(*window)
    for _ in range(4):
        assert big(torch.full((BIG,), 41.0))[0].data_ptr() != shared
    assert torch.empty(0).set_(other).max().item() == 1.0


@pytest.mark.parametrize("bytes_left", [0, 64])
def test_memory_that_the_caller_gave_up_is_not_reused(big, bytes_left):
    x = torch.zeros(BIG)
    for _ in range(4):
        (y,) = big(x)
        assert y.max().item() == 1.0
        y.untyped_storage().resize_(bytes_left)


def test_inference_mode_does_not_leak_into_later_calls(native, big):
    x = torch.zeros(BIG)
    small = native(mlp())
    args = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    with torch.inference_mode():
        for _ in range(3):
            assert big(x)[0].is_inference() and small(*args)[0].is_inference()
    for _ in range(3):
        assert not big(x)[0].is_inference() and not small(*args)[0].is_inference()


def test_arena_tensors_of_an_inference_mode_call_are_not_used_outside(native):
    p = program(
        (spec("input", (4,)), spec("arena", (4,), 64), spec("fresh", (4,))),
        (
            Launch("add1", (0, 1), 4, 8), Call("aten.relu_.default", (TensorArg(1),), (), ()),
            Alloc(2), Launch("add1", (1, 2), 4, 8),
        ),
        (2,),
        arena=128,
    )  # fmt: skip
    ex, x = native(p), torch.full((4,), -3.0)
    with torch.inference_mode():
        ex(x)
    assert ex(x)[0].tolist() == [1.0] * 4


def test_trim_forgets_pooled_memory_and_calls_go_on(big):
    x = torch.zeros(BIG)
    for _ in range(3):
        big(x)
    before = reused(big)
    big.trim()
    assert big(x)[0].max().item() == 1.0
    assert reused(big) == before


def test_an_executable_frees_what_it_kept(native):
    def resident():
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * 4096

    x = torch.zeros(8 * BIG)
    ex = native(add_one(8 * BIG, 1 << 14))
    for _ in range(3):
        ex(x)
    held = resident()
    del ex
    gc.collect()
    assert held - resident() > 32 << 20


@pytest.mark.parametrize("build, n", [(add_one, 10_000), (mlp, 4_000)], ids=["kernel", "calls"])
def test_thousands_of_calls_leave_nothing_behind(native, build, n):
    ex = native(build())
    args = [torch.randn(t.sizes) for t in build().tensors if t.place == "input"]

    def state():
        gc.collect()
        with open("/proc/self/statm") as f:
            pages = int(f.read().split()[1])
        return [sys.getrefcount(a) for a in (*args, ex, None)], len(gc.get_objects()), pages

    for _ in range(500):
        ex(*args)
    grown = []
    for _ in range(3):  # a leak grows every time; other threads' allocations do not
        refs, objects, pages = state()
        for _ in range(n):
            ex(*args)
        refs_after, objects_after, pages_after = state()
        assert refs_after[:-1] == refs[:-1] and abs(refs_after[-1] - refs[-1]) < 50
        assert objects_after - objects < 50
        grown.append((pages_after - pages) * 4096)
    assert min(grown) < 1 << 20


def test_failing_calls_leave_nothing_behind(native, capfd):
    tensors = (spec("input", (2, 3)), spec("extern", (2, 3)))
    ex = native(call("aten._softmax.default", (TensorArg(0), 7, False), tensors, (1,)))
    x = torch.zeros(2, 3)

    def fail():
        with pytest.raises(IndexError):
            ex(x)

    fail()
    before = sys.getrefcount(x), sys.getrefcount(ex)
    for _ in range(50):
        fail()
    assert (sys.getrefcount(x), sys.getrefcount(ex)) == before


def test_two_large_outputs_never_share_memory(native):
    p = program(
        (spec("input", (BIG,)), spec("fresh", (BIG,)), spec("fresh", (BIG,))),
        (Alloc(1), Launch("add1", (0, 1), BIG, BIG), Alloc(2), Launch("add1", (1, 2), BIG, BIG)),
        (1, 2),
    )
    ex = native(p)
    for _ in range(4):
        a, b = ex(torch.zeros(BIG))
        assert a.max().item() == 1.0 and b.max().item() == 2.0
    ex.trim()


def test_wrapped_outputs_die_with_their_last_reference(native):
    ex = native(add_one())
    (y,) = ex(torch.zeros(4))
    assert sys.getrefcount(y) == 2
