"""`make(seed)`: the source of one random program, its classes and its function `f`."""

from __future__ import annotations

from tests.fuzz.program_maker import STATEMENTS, Maker
from tests.fuzz.wider import KINDS, PRELUDE, WIDER

SIGNATURE = "f(x, y, n, s, items, table, box)"


def make(seed: int) -> str:
    """The source of the program for this seed."""
    m = Maker(seed, STATEMENTS + WIDER, KINDS)
    m.line("global counter")
    m.body(m.dice.randrange(3, 9))
    m.line("return " + ", ".join(name for kind in KINDS for name in m.names[kind]))
    return f"{PRELUDE}\n\ndef {SIGNATURE}:\n" + "\n".join(m.lines) + "\n"
