"""Sizes that come very often get a Program of their own, where their calls are faster with it."""

import gc
import subprocess
import sys
import weakref

import pytest
import torch
from tests.runtime.sized_graphs import BOTH, GRAPHS, Sized

from torchweld.base import config
from torchweld.base.config import Config
from torchweld.base.errors import InternalError
from torchweld.fixing import Question, answer, in_another_process, program_of
from torchweld.ir.lengthen import Origin
from torchweld.ir.loop_text import parse
from torchweld.pipeline import INCLUDE
from torchweld.runtime import sized, trial
from torchweld.runtime.background import BACKGROUND

OFTEN = 4
TRIAL = trial.WARM + 2 * trial.PAIRS + 1


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(sized, "OFTEN", OFTEN)


@pytest.fixture
def clock(monkeypatch):
    """Decides what is faster: the part of the old one's time that the new one needs."""
    return Clock(monkeypatch)


class Clock:
    def __init__(self, monkeypatch):
        self.part, self.asked = 0.5, 0
        monkeypatch.setattr(trial, "host_clock", self.begin)

    def begin(self):
        new = (self.asked + 1) // 2 % 2
        self.asked += 1
        return lambda: lambda: self.part if new else 1.0


class Counted:
    """Makes Programs, and remembers for which sizes."""

    def __init__(self, graph):
        self.origin, self.made = Origin(graph), []

    def __call__(self, values):
        self.made.append(values)
        return program_of(self.origin, values, config.current())


def graph_of(name, driver="native", most=4, **cfg):
    counted = Counted(parse(BOTH + GRAPHS[name]))
    made = Sized(BOTH + GRAPHS[name], driver, counted, most, **cfg)
    return made, counted.made


def call(graph, m, n, calls):
    """Calls that give what the graph means; the compiler is waited for."""
    inputs = graph.inputs(m, n)
    expected = graph.expected(inputs, m, n)
    for i in range(calls):
        for got, want in zip(graph.run(inputs), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
        if i == OFTEN + 2:
            assert BACKGROUND.wait()


def until_tried(graph, m, n):
    call(graph, m, n, OFTEN + 4 + TRIAL)


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_compiled_for_the_sizes_computes_the_same(name, clock):
    graph, made = graph_of(name)
    until_tried(graph, 5, 9)
    assert made == [(5, 9)] and graph.executable.fixed() == [(5, 9)]
    call(graph, 5, 9, 3)
    call(graph, 3, 7, 3)


def test_the_python_driver_does_it_too(clock):
    graph, _ = graph_of("heads", "python")
    until_tried(graph, 5, 9)
    assert graph.executable.fixed() == [(5, 9)] and graph.executable.driver == "python"


def test_one_that_is_no_faster_is_dropped_and_not_asked_for_again(clock):
    graph, made = graph_of("softmax")
    clock.part = 0.96
    until_tried(graph, 5, 9)
    before = graph.executable.kept()[0][1]
    call(graph, 5, 9, 600)
    graph.executable.age()
    call(graph, 5, 9, 300)
    assert made == [(5, 9)] and graph.executable.fixed() == []
    assert graph.executable.kept()[0][1] is before and not isinstance(before, trial.Trial)


def test_sizes_that_come_seldom_are_not_compiled():
    graph, made = graph_of("softmax")
    for n in range(2, 12):
        call(graph, 5, n, OFTEN)
    assert BACKGROUND.wait() and made == []


def test_no_more_than_so_many_are_compiled(clock):
    graph, made = graph_of("pointwise", most=2)
    for n in (2, 3, 4):
        until_tried(graph, 5, n)
    assert made == graph.executable.fixed() == [(5, 2), (5, 3)]


def test_a_graph_for_which_it_is_of_no_use_is_left_alone(clock):
    graph, made = graph_of("pointwise")
    clock.part = 1.0
    for n in range(2, 6):
        until_tried(graph, 5, n)
    assert made == [(5, 2), (5, 3)][: sized.LOSSES]


def test_none_are_compiled_where_none_may_be():
    graph, made = graph_of("pointwise", most=0)
    call(graph, 5, 9, 20)
    assert graph.executable.often_at == 0 and made == []


def test_none_are_compiled_where_results_must_not_change():
    graph, made = graph_of("softmax")
    torch.use_deterministic_algorithms(True)
    try:
        call(graph, 5, 9, 20)
    finally:
        torch.use_deterministic_algorithms(False)
    assert made == []


def test_sizes_that_lose_their_place_may_be_tried_again(clock):
    graph, made = graph_of("pointwise", hot_sizes=1)
    until_tried(graph, 5, 9)
    call(graph, 5, 8, sized.MOST_COUNTED + sized.AHEAD)
    assert graph.executable.fixed() == []
    call(graph, 5, 9, sized.MOST_COUNTED + sized.AHEAD)
    until_tried(graph, 5, 9)
    assert made.count((5, 9)) == 2 and (5, 9) in graph.executable.fixed()


def test_a_reason_why_there_is_none_is_told(clock):
    graph, made = graph_of("part that may be empty")
    until_tried(graph, 5, 2)
    assert made == [(5, 2)] and graph.executable.fixed() == []
    graph.check(5, 2)


WRITES = """
size n in 2..  is size 0 of 0  hint 8
x: f32[n] input
y: f32[n]
y[i] = x[i] * 2.0  for i:n
x[i] = x[i] + 1.0  for i:n
return y
"""


def test_an_input_that_is_written_is_written_once_per_call(clock):
    counted = Counted(parse(WRITES))
    graph = Sized(WRITES, "native", counted, 4)
    x = torch.zeros(7)
    for i in range(OFTEN + 4 + TRIAL):
        assert graph.executable(x)[0].tolist() == [2.0 * i] * 7
        assert BACKGROUND.wait()
    assert graph.executable.fixed() == [(7,)] and x[0] == OFTEN + 4 + TRIAL


def test_a_graph_that_dies_meanwhile_is_not_kept(clock):
    graph, _ = graph_of("softmax")
    call(graph, 5, 9, OFTEN + 4)
    gone = weakref.ref(graph.executable)
    assert isinstance(graph.executable.kept()[0][1], trial.Trial)
    gc.disable()
    try:
        del graph
        assert gone() is None
    finally:
        gc.enable()


def test_after_the_trial_no_python_code_runs(clock):
    graph, _ = graph_of("pointwise")
    until_tried(graph, 3, 4)
    inputs, called = graph.inputs(3, 4), []
    sys.setprofile(lambda frame, event, arg: called.append(event))
    try:
        graph.executable(*inputs)
    finally:
        sys.setprofile(None)
    assert "call" not in called


# ---------------------------------------------------------------- where it is compiled
def test_another_process_gives_the_same_program():
    origin = Origin(parse(BOTH + GRAPHS["softmax"]))
    for cfg in (Config(), Config(interpret=True)):
        question = Question(origin, (5, 64), cfg, INCLUDE, compile=False)
        assert in_another_process(question) == answer(question)


def test_what_goes_wrong_in_another_process_is_told():
    origin = Origin(parse(BOTH + GRAPHS["part that may be empty"]))
    with pytest.raises(Exception, match="repeats its elements"):
        in_another_process(Question(origin, (5, 2), Config(), INCLUDE, compile=False))
    with pytest.raises(InternalError):
        program_of(origin, (5, 2), Config())


def test_it_is_compiled_into_the_cache_on_disk(tmp_path):
    origin = Origin(parse(BOTH + GRAPHS["pointwise"]))
    cfg = Config(cache_dir=str(tmp_path))
    in_another_process(Question(origin, (5, 77), cfg, INCLUDE))
    assert len([p for p in tmp_path.glob("v1/so/*/*") if p.is_file()]) == 1


def test_the_other_process_loads_no_torch():
    code = "import sys, torchweld.fixing; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
