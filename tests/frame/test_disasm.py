"""The listing of decoded code."""

from __future__ import annotations

from pathlib import Path
from types import CodeType

from dialect_programs import LISTED, parameters

from torchweld.frame.decode import decode
from torchweld.frame.disasm import text

GOLDEN = Path(__file__).parent / "golden"


def test_listing_shows_lines_labels_arguments_and_ranges():
    top = compile(LISTED, "f", "exec")
    listing = text(decode(next(c for c in top.co_consts if isinstance(c, CodeType))))
    assert listing == (GOLDEN / "listing.txt").read_text()


def test_listing_starts_with_the_signature():
    heads = [text(decode(fn.__code__)).splitlines()[0] for fn in parameters]
    assert heads == [
        "def <lambda>()",
        "def <lambda>(a, b)",
        "def <lambda>(a, /, b, *, c)",
        "def <lambda>(a, /)",
        "def <lambda>(a, /, *b, **c)",
        "def <lambda>(*a, b)",
        "def <lambda>(*, a, **b)",
    ]


def test_listing_has_no_addresses():
    def outer():
        def inner(): ...

        return inner

    assert "0x" not in text(decode(outer.__code__))
