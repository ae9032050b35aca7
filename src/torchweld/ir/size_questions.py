"""Which questions about sizes matter: those whose answer changes what comes out.

torch's kernels for fake tensors also ask what only the choice between two algorithms depends on,
of which both give the same. Taking such an answer down as a fact would split the sizes in two.
"""

from __future__ import annotations

from collections.abc import Callable

from torchweld.ir.sizes import Condition, SizeEnv

_RUNS = 32
_DIFFERS = object()


class _TooManyError(Exception):
    """There are more ways to answer than are tried."""


def decide_what_matters(env: SizeEnv, ask: Callable[[], object]) -> bool:
    """Decide the questions of `ask` on which its result depends; False if there are too many.

    ask: asks `env` and returns something that can be compared, or raises. Called several times.
    """
    search = _Search(env, ask)
    try:
        search.outcome({})
    except _TooManyError:
        return False
    for question in search.matter:
        env.decide(question)
    return True


class _Search:
    def __init__(self, env: SizeEnv, ask: Callable[[], object]) -> None:
        self.env = env
        self.ask = ask
        self.runs = 0
        self.matter: list[Condition] = []

    def outcome(self, supposed: dict[Condition, bool]) -> object:
        """What comes out with these answers, whatever the others are; _DIFFERS if they matter."""
        new: list[Condition] = []

        def answer(c: Condition) -> bool:
            if c not in supposed and c not in new:
                new.append(c)
            return supposed[c] if c in supposed else self.env.truth_now(c)

        self.runs += 1
        if self.runs > _RUNS:
            raise _TooManyError
        with self.env.answering(answer):
            try:
                found = self.ask()
            except Exception as error:
                found = type(error)
        same = True
        for i, question in enumerate(new):
            before = {c: self.env.truth_now(c) for c in new[:i]}
            other = {**supposed, **before, question: not self.env.truth_now(question)}
            if self.outcome(other) != found:
                same = False
                if not supposed:
                    self.matter.append(question)
        return found if same else _DIFFERS
