"""Only questions whose answers change the outcome become facts."""

from torchweld.ir.conditions import at_most, less
from torchweld.ir.size_questions import decide_what_matters
from torchweld.ir.sizes import SizeEnv


def decided(ask, hint=20):
    env = SizeEnv()
    n = env.symbol(hint)
    before = env.facts()
    assert decide_what_matters(env, lambda: ask(env, n))
    return [f.text() for f in env.facts() if f not in before]


def test_a_question_that_changes_nothing_is_no_fact():
    def ask(env, n):
        env.decide(less(n, 16))
        return n

    assert decided(ask) == []


def test_a_question_that_changes_the_outcome_is_a_fact():
    assert decided(lambda env, n: env.decide(at_most(16, n))) == ["16 <= s0"]


def test_two_questions_of_which_either_is_enough_are_not_both_dropped():
    def ask(env, n):
        return env.decide(at_most(16, n)) or env.decide(at_most(18, n))

    assert decided(ask) == ["16 <= s0"]


def test_a_question_behind_another_answer_counts():
    def ask(env, n):
        if not env.decide(at_most(16, n)):
            return env.decide(at_most(8, n))
        return False

    assert decided(ask) == ["16 <= s0"]


def test_an_error_is_an_outcome():
    def ask(env, n):
        if env.decide(less(n, 10)):
            raise ValueError
        return 1

    assert decided(ask) == ["10 <= s0"]


def test_too_many_questions_are_not_searched():
    env = SizeEnv()
    n = env.symbol(20)
    assert not decide_what_matters(env, lambda: [env.decide(at_most(n, k)) for k in range(25, 60)])
    assert len(env.facts()) == 1
