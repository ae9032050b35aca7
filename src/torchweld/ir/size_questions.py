"""Which questions about sizes matter: those whose answer changes what comes out.

torch's kernels for fake tensors also ask what only the choice between two algorithms depends on,
of which both give the same. Taking such an answer down as a fact would split the sizes in two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from torchweld.ir.conditions import Condition
from torchweld.ir.sizes import SizeEnv

_RUNS = 32


class _TooManyError(Exception):
    """There are more ways to answer than are tried."""


def decide_what_matters(env: SizeEnv, ask: Callable[[], object]) -> bool:
    """Decide the questions of `ask` on which its result depends; False if there are too many.

    ask: asks `env` and returns something that can be compared, or raises. Called several times.
    """
    search = _Search(env, ask)
    try:
        matter = search.matter()
    except _TooManyError:
        return False
    for question in matter:
        env.decide(question)
    return True


class _Search:
    def __init__(self, env: SizeEnv, ask: Callable[[], object]) -> None:
        self.env = env
        self.ask = ask
        self.runs = 0

    def matter(self) -> list[Condition]:
        """Questions whose answers now give the result now, whatever the other answers are.

        A set of questions is answered in the other way: one that matters already stays out of it,
        and where the result changes, the first one of the set matters.
        """
        result, asked = self.outcome(())
        found: list[Condition] = []
        flips = deque[tuple[Condition, ...]]((c,) for c in asked)
        while flips:
            flipped = flips.popleft()
            if not found or not any(c in found for c in flipped):
                other, asked = self.outcome(flipped)
                if other == result:
                    later = asked[asked.index(flipped[-1]) + 1 :]
                    flips.extend((*flipped, c) for c in later)
                else:
                    found.append(flipped[0])
        return found

    def outcome(self, flipped: tuple[Condition, ...]) -> tuple[object, list[Condition]]:
        """What comes out where these questions have the other answer, and what was asked."""
        asked: list[Condition] = []

        def answer(c: Condition) -> bool:
            if c not in asked:
                asked.append(c)
            return self.env.truth_now(c) is not (c in flipped)

        self.runs += 1
        if self.runs > _RUNS:
            raise _TooManyError
        with self.env.answering(answer):
            try:
                return self.ask(), asked
            except Exception as error:
                return type(error), asked
