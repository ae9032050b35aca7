"""Sizes that vary on a GPU: two compilations, a CUDA graph for each size that comes often."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers

import torchweld
from torchweld.pipeline import STATISTICS
from torchweld.runtime import cudagraph, sized, trial
from torchweld.runtime.background import BACKGROUND
from torchweld.runtime.cudagraph import MOST_TIMES, SPARE_BYTES
from torchweld.runtime.sized import SizedExecutable
from torchweld.workbench.dynamic_suites import Prefill

pytestmark = pytest.mark.gpu
LENGTHS = (64, 128, 17, 96, 40, 200, 77, 150, 33, 160)
ROUNDS = 5  # of a length: visitor, launch list, recording, replays
SHAPE = {"vocab_size": 1000, "max_position_embeddings": 256}
BF16 = torch.bfloat16


def bert():
    config = transformers.BertConfig(hidden_size=256, num_hidden_layers=3, num_attention_heads=4,
                                     intermediate_size=512, **SHAPE)  # fmt: skip
    return transformers.BertModel(config), lambda model, ids: model(ids)[0]


def gpt2():
    config = transformers.GPT2Config(n_embd=256, n_layer=3, n_head=4, vocab_size=1000,
                                     n_positions=256, bos_token_id=0, eos_token_id=0)  # fmt: skip
    return transformers.GPT2LMHeadModel(config), lambda model, ids: model(ids, use_cache=False)[0]


def llama():
    config = transformers.LlamaConfig(hidden_size=256, num_hidden_layers=3, num_attention_heads=4,
                                      num_key_value_heads=2, intermediate_size=512, **SHAPE)
    return Prefill(transformers.LlamaForCausalLM(config)), lambda model, ids: model(ids)


MODELS = {"bert": bert, "gpt2": gpt2, "llama": llama}


def made(name, dtype=BF16):
    torch.manual_seed(0)
    model, call = MODELS[name]()
    return model.cuda().eval().to(dtype), call


def ids_of(n):
    return torch.randint(1, 1000, (2, n), generator=torch.Generator().manual_seed(n)).cuda()


def tuple_of(x):
    return x if isinstance(x, tuple) else (x,)


def ranged():
    """The one Executable that serves many sizes."""
    found = [e for c in STATISTICS.compiled for e in (c.executable, *c.backwards)]
    return [e for e in found if isinstance(e, SizedExecutable)]


def near(got, eager, exact):
    """As near to f64 as eager."""
    own, theirs = ((x.double() - exact).norm() / exact.norm().clamp_min(1e-30)
                   for x in (got, eager))  # fmt: skip
    assert own <= 1.5 * theirs + 1e-3, (own, theirs)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_ten_lengths_are_two_compilations_and_a_graph_for_each_length(name):
    model, call = made(name)
    wide = copy.deepcopy(model).double()
    torchweld.reset()
    compiled = torchweld.compile(model)
    expected = {n: [tuple_of(call(m, ids_of(n))) for m in (model, wide)] for n in LENGTHS}
    for _ in range(ROUNDS):
        for n in LENGTHS:
            got = tuple_of(call(compiled, ids_of(n)))
            for x, eager, exact in zip(got, *expected[n], strict=True):
                assert (x.shape, x.stride(), x.dtype) == (eager.shape, eager.stride(), eager.dtype)
                near(x, eager, exact)
    counts = torchweld.statistics()
    assert (counts["captures"], counts["breaks"], counts["aten_graphs"]) == (2, 0, 0)
    assert counts["internal_errors"] == 0 and counts["hot_sizes"] == len(LENGTHS) - 1
    (many,) = ranged()
    graphs = {values: run.graphs for values, run, _ in many.kept()}
    assert all(len(g) == 1 for g in graphs.values()), graphs
    assert counts["cuda_graphs"] == len(LENGTHS)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_more_calls_at_these_lengths_hold_no_more_memory(name):
    model, call = made(name)
    torchweld.reset()
    compiled = torchweld.compile(model)
    for _ in range(ROUNDS):
        for n in LENGTHS:
            call(compiled, ids_of(n))
    torch.cuda.synchronize()
    before = torchweld.memory_report(), torch.cuda.memory_reserved()
    for _ in range(ROUNDS):
        for n in LENGTHS:
            call(compiled, ids_of(n))
    after = torchweld.memory_report(), torch.cuda.memory_reserved()
    names = ("graphs", "nodes", "pool", "lent", "gpu_arenas")
    assert [getattr(before[0], k) for k in names] == [getattr(after[0], k) for k in names]
    assert after[1] <= before[1]
    (many,) = ranged()
    runs = [sum(row[5] for row in run.graphs) for _, run, _ in many.kept()]
    assert all(r >= 2 * ROUNDS - 3 for r in runs), runs


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_gradients_at_many_lengths_equal_eagers_in_graphs_of_each_length(name):
    theirs, call = made(name, torch.float32)
    mine = copy.deepcopy(theirs)
    torchweld.reset()
    compiled = torchweld.compile(mine)
    for _ in range(ROUNDS):
        for n in LENGTHS[:5]:
            for run, owner in ((compiled, mine), (theirs, theirs)):
                owner.zero_grad()
                call(run, ids_of(n)).square().mean().backward()
            for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
                assert (p.grad is None) == (q.grad is None)
                if p.grad is not None:
                    torch.testing.assert_close(p.grad, q.grad, rtol=2e-3, atol=2e-4)
    counts = torchweld.statistics()
    assert (counts["captures"], counts["breaks"], counts["aten_graphs"]) == (2, 0, 0)
    forward, backward = ranged()
    for many in (forward, backward):
        graphs = {values: run.graphs for values, run, _ in many.kept()}
        assert len(graphs) == 4 and all(g and not isinstance(g, str) for g in graphs.values())
    lent = torchweld.memory_report().lent
    assert lent <= cudagraph.device(torch.cuda.current_device()).lend_limit()


def test_bf16_training_at_many_lengths_follows_eagers_losses():
    theirs, call = made("bert", BF16)
    mine = copy.deepcopy(theirs)
    torchweld.reset()
    compiled = torchweld.compile(mine)
    curves = []
    for run, owner in ((compiled, mine), (theirs, theirs)):
        optimizer = torch.optim.SGD(owner.parameters(), lr=1e-3)
        curve = []
        for _ in range(4):
            for n in LENGTHS[:4]:
                optimizer.zero_grad()
                loss = call(run, ids_of(n)).float().square().mean()
                loss.backward()
                optimizer.step()
                curve.append(loss.detach())
        curves.append(torch.stack(curve))
    torch.testing.assert_close(*curves, rtol=2e-2, atol=1e-2)


def wide(x, w, v):
    return ((x @ w).relu() @ v).softmax(-1)


@torch.no_grad()
def test_memory_of_graphs_whose_sizes_grow_is_bounded():
    torchweld.reset()
    compiled = torchweld.compile(wide, dynamic=True)
    w, v = (torch.randn(4096, 4096, device="cuda", dtype=BF16) for _ in range(2))
    for n in range(1000, 13000, 1000):
        x = torch.randn(n, 4096, device="cuda", dtype=BF16)
        for _ in range(ROUNDS):
            got = compiled(x, w, v)
        torch.testing.assert_close(got, wide(x, w, v), rtol=0.1, atol=1e-2)
        del got
    where = cudagraph.device(torch.cuda.current_device())
    report = torchweld.memory_report()
    assert report.pool <= (MOST_TIMES + 1) * where.largest + SPARE_BYTES, report.text()
    assert report.lent <= where.lend_limit(), report.text()
    assert all(r.calls for r in report.sizes) and len(report.sizes) == 12


@torch.no_grad()
def test_sizes_that_come_once_are_launch_lists():
    torchweld.reset()
    compiled = torchweld.compile(wide, dynamic=True)
    w, v = (torch.randn(256, 256, device="cuda") for _ in range(2))
    for n in range(3, 60):
        x = torch.randn(n, 256, device="cuda")
        torch.testing.assert_close(compiled(x, w, v), wide(x, w, v), rtol=1e-3, atol=1e-3)
    counts = torchweld.statistics()
    assert (counts["captures"], counts["hot_sizes"], counts["cuda_graphs"]) == (1, 0, 0)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@torch.no_grad()
def test_generation_with_a_growing_cache_equals_eager(name):
    torch.manual_seed(0)
    model = MODELS[name]()[0].cuda().eval()
    model = getattr(model, "model", model) if name == "llama" else model
    ids = ids_of(6)
    options = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": -1, "pad_token_id": 0}
    expected = model.generate(ids, **options)
    torchweld.reset()
    model.forward = torchweld.compile(model.forward)
    for _ in range(3):
        assert torch.equal(model.generate(ids, **options), expected)
    counts = torchweld.statistics()
    assert (counts["captures"], counts["breaks"], counts["internal_errors"]) == (3, 0, 0)


# ---------------------------------------------------------------- compiled for one size alone
OFTEN, TRIED = 6, 6 + trial.MOST_WARM + 2 * trial.PAIRS + trial.LATE


@pytest.fixture
def soon(monkeypatch):
    """Sizes come often soon, and what is compiled for them is fast enough."""
    monkeypatch.setattr(sized, "OFTEN", OFTEN)
    monkeypatch.setattr(trial, "PART", 1e9)
    monkeypatch.setattr(trial, "MOST_PAIRS", 0)
    torchweld.reset()


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_length_that_comes_very_often_is_compiled_alone(name, soon):
    model, call = made(name)
    wide = copy.deepcopy(model).double()
    compiled = torchweld.compile(model)
    call(compiled, ids_of(64))
    expected = [tuple_of(call(m, ids_of(96))) for m in (model, wide)]
    for _ in range(TRIED):
        got = tuple_of(call(compiled, ids_of(96)))
        for x, eager, exact in zip(got, *expected, strict=True):
            near(x, eager, exact)
        torch.cuda.synchronize()  # the times are known
        assert BACKGROUND.wait()
    (many,) = ranged()
    (report,) = cudagraph.memory_report().sizes
    assert many.fixed() == [many.kept()[0][0]] and report.fixed and report.graphs >= 1


def test_what_is_faster_is_told_by_events_of_the_stream(soon, monkeypatch):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64)).cuda()
    seen = []
    decide = trial.Trial._decide
    monkeypatch.setattr(trial.Trial, "_decide", lambda t: (seen.append(t._times), decide(t)))
    compiled = torchweld.compile(model)
    for n in (64, *([96] * TRIED)):
        x = torch.randn(n, 64, device="cuda", requires_grad=True)
        compiled(x).square().sum().backward()
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
        torch.cuda.synchronize()
        assert BACKGROUND.wait()
    assert seen and all(1e-6 < s < 1 for both in seen for times in both for s in times)
