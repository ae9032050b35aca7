"""The benchmark's arithmetic, and one small run of it from end to end."""

from __future__ import annotations

import copy
import json

import pytest
import torch

import torchweld
from torchweld.workbench import bench, dynamic_suites, table
from torchweld.workbench.cases import ALL_SUITES, case_named
from torchweld.workbench.lanes import Lane
from torchweld.workbench.suites import BY_NAME, CASES, SUITES, to_device
from torchweld.workbench.work import Sizes, WholeStep
from torchweld.workbench.worker import COMPILERS, Worker

SHORT = bench.Effort(rounds=2, seconds=0.01, warm=0.0)


def test_suites_name_cases_that_exist_and_all_has_every_case():
    assert {name for names in SUITES.values() for name in names} <= set(BY_NAME)
    assert len(SUITES["all"]) == len(CASES) == len(BY_NAME)


def test_ratio_is_the_median_of_pairs_of_the_same_round():
    slow, fast = {"rounds_us": [10.0, 20.0, 90.0]}, {"rounds_us": [5.0, 10.0, 90.0]}
    assert bench._ratio(slow, fast) == 2.0
    assert bench._ratio({}, fast) is None


def test_geomean_leaves_out_what_was_not_measured():
    assert bench.geomean([2.0, None, 8.0]) == pytest.approx(4.0)
    assert bench.geomean([None]) is None


def test_row_of_two_compilers_and_a_copy():
    case = BY_NAME["add_one"]
    row = bench.measure(case, bench.start(case, ("eager", "torchweld"), "cpu", 1), "cpu", SHORT)
    mine = row["results"]["torchweld"]
    assert mine["difference"] == 0.0
    assert mine["kernels"] == 1
    assert len(mine["rounds_us"]) == 2
    assert mine["first_s"] > 0
    assert mine["peak_bytes"] > 2**20
    imports = bench.import_seconds(times=1)
    assert imports["peer_modules"] == 0
    content = bench.document([row], {"import": imports, "threads": 1, "rounds": 2})
    assert json.loads(json.dumps(content)) == content
    table.show(content)


@pytest.mark.parametrize("compiler", ["eager", "torchweld"])
def test_whole_step_is_a_step_of_adamw(compiler):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), Mean())
    twin, x = copy.deepcopy(module), torch.randn(2, 4)
    work = WholeStep(module, (x,))
    run = COMPILERS[compiler](work)
    optimizer = torch.optim.AdamW(twin.parameters(), lr=1e-4)
    for _ in range(3):
        loss, *parameters = work.call(run)
        optimizer.zero_grad()
        expected = twin(x)
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(loss, expected.detach())
    for got, want in zip(parameters, twin.parameters(), strict=True):
        torch.testing.assert_close(got, want)


def test_the_second_of_the_first_steps_finds_the_state_of_the_optimizer():
    work = WholeStep(torch.nn.Sequential(torch.nn.Linear(4, 3), Mean()), (torch.randn(2, 4),))
    first, second = (float(loss) for loss, *_ in work.each())
    assert second < first


class Mean(torch.nn.Module):
    def forward(self, x):
        return x.square().mean()


def test_worker_that_dies_becomes_an_error_with_its_last_words():
    lane = Lane("no_such_case", "eager", "cpu", 1)
    try:
        lane.ready()
        assert "KeyError" in (lane.error or "")
        assert lane.ask("first") == {"error": lane.error}
    finally:
        lane.close()


def test_compiler_that_fails_on_a_case_keeps_its_reason():
    lane = Lane("add_one", "eager", "cpu", 1)
    try:
        lane.ready()
        assert "KeyError" in lane.ask("save")["error"]
    finally:
        lane.close()


def test_a_broken_model_is_two_graphs_and_is_measured_beside_the_whole_one():
    assert "break_gpt2" in ALL_SUITES["breaks"]
    case = case_named("break_small")
    lanes = bench.start(case, ("eager", "torchweld", "torchweld unbroken"), "cpu", 1)
    row = bench.measure(case, lanes, "cpu", SHORT)
    mine, whole = row["results"]["torchweld"], row["results"]["torchweld unbroken"]
    assert mine["of_unbroken"] > 0
    assert mine["difference"] <= 1e-4 and whole["difference"] <= 1e-4
    work = case.build()
    for broken, graphs in ((True, 2), (False, 1)):
        torchweld.reset()
        work.fn.broken = broken
        compiled = torchweld.compile(work.fn, backend="eager")
        with torch.no_grad():
            torch.testing.assert_close(compiled(*work.args), work.fn(*work.args))
        assert torchweld.statistics()["graphs"] == graphs
        assert torchweld.statistics()["breaks"] == graphs - 1


TINY = {"vocab_size": 50, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16,
        "intermediate_size": 32}  # fmt: skip
VARYING = {
    "bert": lambda: dynamic_suites.bert((5, 7, 9), **TINY),
    "gpt2": lambda: dynamic_suites.gpt2(
        (5, 7, 9), vocab_size=50, n_layer=1, n_head=2, n_embd=16, bos_token_id=0, eos_token_id=0),
    "llama": lambda: dynamic_suites.llama((5, 7, 9), **TINY),
    "resnet": lambda: dynamic_suites.resnet(
        (32, 40, 48), embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic"),
}  # fmt: skip


@pytest.mark.parametrize("name", VARYING)
@torch.no_grad()
def test_every_size_of_a_varying_model_is_compared_and_two_compilations_serve_all(name, tmp_path):
    work, path = VARYING[name](), {"path": str(tmp_path / "eager.pt")}
    Worker("eager", work, "cpu", work.fn).save(path)
    found = {}
    for compiler in ("torchweld", "torchweld static"):
        torchweld.reset()
        worker = Worker(compiler, work, "cpu")
        first = worker.first({})
        found[compiler] = (len(first["each"]), worker.count({})["compilations"])
        assert worker.check(path)["difference"] < 1e-4
    assert found == {"torchweld": (3, 2), "torchweld static": (1, 1)}


def test_sizes_move_with_their_work():
    work = Sizes(torch.nn.Linear(2, 2), (torch.ones(3, 2),), before=((torch.ones(5, 2),),))
    moved = to_device(work, "meta")
    assert [r.device.type for r in moved.each()] == ["meta", "meta"]
    assert [len(r) for r in moved.each()] == [5, 3]


def test_a_row_of_varying_sizes_is_set_beside_the_entry_for_one_size():
    results = {
        "eager": {"rounds_us": [9.0, 9.0]},
        "torchweld": {"rounds_us": [6.0, 6.0], "gpu_us": 3.0, "compilations": 2, "first_s": 1.5},
        "torchweld static": {"rounds_us": [5.0, 5.0], "gpu_us": 2.0},
    }
    row = bench._row(case_named("dynamic_bert"), results)
    assert row["results"]["torchweld"]["of_static"] == pytest.approx(1.2)
    assert row["results"]["torchweld"]["gpu_of_static"] == 1.5
    assert table.varying(row["results"]["torchweld"]) == (
        "compiles 2 graphs, all first calls take 1.5 s; at the last size 1.20 of the time of its "
        "entry for that size alone, 1.50 of its time on the GPU"
    )
