"""Which of two Executables stays: the one whose calls were clearly faster."""

import threading

import pytest
import torch

from torchweld.base.errors import BackendError
from torchweld.runtime.trial import LATE, MOST_PAIRS, MOST_WARM, PAIRS, WARM, Trial

CALLS = 2 * PAIRS + WARM + 1  # until all times are known


class Fake:
    """What needs so many seconds of the time that `now` keeps; gives its name."""

    driver = "fake"
    explain = eager = None

    def __init__(self, name, now, seconds):
        self.name, self.now, self.seconds, self.calls = name, now, seconds, 0

    def __call__(self, *inputs):
        self.calls += 1
        self.now[0] += self.seconds(self.calls) if callable(self.seconds) else self.seconds
        return (self.name,)

    def trim(self):
        pass


class Both:
    """A trial of two, and what it said."""

    def __init__(self, old=1.0, new=1.0, late=False):
        self.now, self.said = [0.0], []
        self.old, self.new = Fake("old", self.now, old), Fake("new", self.now, new)
        self.late = late
        self.trial = Trial(self.old, lambda: self.new, self.done, clock=self.clock)

    def done(self, stays, better, why):
        self.said.append((better, stays.name))

    def clock(self):
        start = self.now[0]

        def end():
            seconds = self.now[0] - start
            return lambda: None if self.late else seconds

        return end

    def run(self, calls=CALLS):
        return [self.trial()[0] for _ in range(calls)]


def test_the_faster_one_stays():
    both = Both(1.0, 0.9)
    assert both.run()[-1] == "new" and both.said == [(True, "new")]
    assert both.run(3) == ["new"] * 3 and both.trial.runs() == [both.new]


@pytest.mark.parametrize("seconds", [2.0, 1.0, 0.97])
def test_one_that_is_not_clearly_faster_goes(seconds):
    both = Both(1.0, seconds)
    both.run()
    assert both.said == [(False, "old")] and both.run(3) == ["old"] * 3


def test_one_that_is_faster_in_too_few_pairs_goes():
    slow = PAIRS - MOST_PAIRS + 1
    both = Both(1.0, lambda call: 1.1 if WARM < call <= WARM + slow else 0.5)
    both.run()
    assert both.said == [(False, "old")]


def test_what_is_slow_at_first_is_not_counted_for_it():
    both = Both(1.0, lambda call: 50.0 if call <= WARM else 0.5)
    both.run()
    assert both.said == [(True, "new")]


def test_each_comes_first_in_half_of_the_pairs():
    both = Both()
    turns = both.run()[WARM : WARM + 8]
    assert turns == ["old", "new", "new", "old"] * 2


def test_nobody_waits_for_times_that_are_not_known_yet():
    both = Both(1.0, 0.5, late=True)
    both.run(200)
    assert both.said == [] and both.new.calls == WARM + LATE // 2
    both.late = False
    both.run(200)
    assert both.said == [(True, "new")]


def test_one_that_cannot_be_made_goes():
    def make():
        raise BackendError("W302", "no such kernel")

    both = Both()
    trial = Trial(both.old, make, both.done)
    assert trial() == ("old",) and both.said == [(False, "old")]


def test_one_that_fails_goes_and_the_error_is_seen():
    def fails(call):
        raise BackendError("W302", "wrong strides")

    both = Both(1.0, fails)
    with pytest.raises(BackendError, match="wrong strides"):
        both.trial()
    assert both.said == [(False, "old")] and both.trial() == ("old",)


def test_a_call_that_raises_is_not_counted():
    def sometimes(call):
        if call == 3:
            raise IndexError
        return 1.0

    both = Both(sometimes, 0.5)
    raised = 0
    for _ in range(CALLS + 1):
        try:
            both.trial()
        except IndexError:
            raised += 1
    assert raised == 1 and both.said == [(True, "new")]


def test_no_turns_where_results_must_not_change():
    both = Both()
    torch.use_deterministic_algorithms(True)
    try:
        assert both.run(20) == ["old"] * 20
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_call_during_another_one_is_not_timed():
    both = Both()
    inner = []
    both.new.seconds = lambda call: inner.append(both.trial()[0]) or 1.0
    both.trial()
    thread = threading.Thread(target=both.trial)
    thread.start()
    thread.join()
    assert inner == ["old", "old"]


def test_where_the_old_one_has_graphs_the_new_one_gets_its_own_first():
    both = Both()
    both.old.graphs, both.new.graphs = [("graph",)], []
    assert both.run(MOST_WARM + 1).count("new") == MOST_WARM
    both = Both()
    both.old.graphs = both.new.graphs = [("graph",)]
    assert both.run(WARM + 1).count("new") == WARM


def test_what_explains_errors_is_known_to_both():
    both = Both()
    both.old.eager = "before"
    both.trial()
    assert both.new.eager == "before"
    both.trial.eager = both.trial.explain = "later"
    assert {(x.eager, x.explain) for x in both.trial.runs()} == {("later", "later")}
