"""Launch lists and CUDA graphs on the simulated driver: run by test_runtime_simulated.py."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from simulated_lists import (
    COPY_PATCHES,
    GRAPHS,
    LAUNCHES,
    PATCHES,
    WAITS,
    N,
    broken,
    build,
    called,
    chain,
    count,
    launch,
    lends,
    program,
    spec,
    twice,
    use,
    x_of,
)

from torchweld.base import events
from torchweld.ir.program import Alloc, Drop, MakeView
from torchweld.runtime import _driver, cudagraph

pytest_plugins = ("simulated_lists",)  # every case starts on a simulated device of its own


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

    def full(pool):
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
