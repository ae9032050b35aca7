"""Tokens of the text forms, and the cursor that the parsers share."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from torchweld.base.errors import InternalError

_TOKEN = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<comment>\#.*)
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<number>0x[0-9a-fA-F]+|\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)?)
    | (?P<name>[^\W\d]\w*(?:\.\w+)*)
    | (?P<sign>//|\.\.|==|!=|<=|>=|\+=|\*=|[-+*/%()\[\]{}<>=,:@])
    """,
    re.VERBOSE,
)
_ORIGIN = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s,"]+')


@dataclass(frozen=True, slots=True)
class Token:
    """kind: name, number, string, sign, or end."""

    kind: str
    text: str


END = Token("end", "end of line")


class Line:
    """One line of text as tokens, with a cursor; `origins` come from its `# from` comment."""

    def __init__(self, number: int, source: str) -> None:
        self.number = number
        self.source = source
        self.origins: tuple[str, ...] = ()
        self.tokens: list[Token] = []
        self.at = 0
        place = 0
        while place < len(source):
            found = _TOKEN.match(source, place)
            if found is None:
                self.fail(f"no token starts at {source[place:]!r}")
                return
            place = found.end()
            kind = found.lastgroup or ""
            if kind == "comment":
                self.origins = _origins(found.group())
            elif kind != "space":
                self.tokens.append(Token(kind, found.group()))

    def fail(self, why: str) -> None:
        raise InternalError(f"line {self.number}: {why} (in {self.source.strip()!r})")

    def peek(self, ahead: int = 0) -> Token:
        place = self.at + ahead
        return self.tokens[place] if place < len(self.tokens) else END

    def next(self) -> Token:
        token = self.peek()
        self.at += 1
        return token

    def take(self, text: str) -> bool:
        """Step over `text` if it comes next."""
        if self.peek().text == text and self.peek().kind in ("sign", "name"):
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.take(text):
            self.fail(f"expected {text!r}, found {self.peek().text!r}")

    def name(self) -> str:
        token = self.next()
        if token.kind != "name":
            self.fail(f"expected a name, found {token.text!r}")
        return token.text

    def string(self) -> str:
        token = self.next()
        if token.kind != "string":
            self.fail(f"expected a string, found {token.text!r}")
        return str(json.loads(token.text))

    def integer(self) -> int:
        minus = self.take("-")
        token = self.next()
        if not token.text.isdigit():
            self.fail(f"expected an integer, found {token.text!r}")
        return -int(token.text) if minus else int(token.text)

    def end(self) -> None:
        if self.peek() is not END:
            self.fail(f"unexpected {self.peek().text!r}")

    def find(self, text: str) -> int | None:
        """The position of a name token outside of all brackets, from the cursor on."""
        depth = 0
        for place in range(self.at, len(self.tokens)):
            t = self.tokens[place]
            depth += (t.text in "([{") - (t.text in ")]}") if t.kind == "sign" else 0
            if depth == 0 and t.kind == "name" and t.text == text:
                return place
        return None


def _origins(comment: str) -> tuple[str, ...]:
    words = comment[1:].strip()
    if not words.startswith("from "):
        return ()
    found = _ORIGIN.findall(words[5:])
    return tuple(json.loads(o) if o.startswith('"') else o for o in found)


def lines_of(source: str) -> list[Line]:
    """The lines that hold a statement."""
    lines = [Line(k, line) for k, line in enumerate(source.splitlines(), 1)]
    return [line for line in lines if line.tokens]
