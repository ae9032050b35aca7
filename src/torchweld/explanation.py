"""explain(): what was captured, what was not and why, and what is guarded."""

from __future__ import annotations

import atexit
import functools
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.fx import GraphModule

from torchweld.api import options_of, unshared
from torchweld.base.errors import Refusal
from torchweld.base.loc import NOWHERE, Loc
from torchweld.capture.session import OWN_CODE
from torchweld.data_words import piece_lines, pieces_of
from torchweld.frame.program import Dispatcher
from torchweld.ir.guard import Guard, SizeRelation
from torchweld.ir.source import Source
from torchweld.ir.steps import Steps
from torchweld.misses import getter_words, place, shown, spec_words
from torchweld.module import uncompiled
from torchweld.pipeline import Backend, Captured, Eager, Notes, Recompiled, listen, listening

# guards that are printed of one graph; all of them are in `Explanation.guards`
_GUARDS = 40
# keys of a dict that are printed
_KEYS = 6
# the kinds that are always printed
_TOLD = ("tensor", "sizes", "equal", "length", "keys", "has_key", "same", "distinct",
         "same_value", "predicate")
# modules whose classes go without saying
_PLAIN = ("builtins", "collections", "torch")
# of the modes of torch, those that users know
_MODES = ("is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled",
          "get_default_dtype", "get_autocast")  # fmt: skip
# there was nothing to compile
_NOTHING = ("W113",)


class Explanation:
    """What compiling found. `print` it, or look at its parts.

    graphs: in the order of capture. breaks: why something was not captured. guards: of all graphs.
    recompiles: with their reasons. eager: what runs eagerly, frame by frame.
    """

    def __init__(self, notes: Notes) -> None:
        self.captured: list[Captured] = notes.captured
        self.eager: list[Eager] = notes.eager
        self.recompiles: list[Recompiled] = notes.recompiled

    @property
    def graphs(self) -> list[GraphModule]:
        return [c.graph for c in self.captured]

    @property
    def breaks(self) -> list[Refusal]:
        return [e.why for e in self.eager if e.why.code not in _NOTHING]

    @property
    def guards(self) -> list[Guard]:
        return [g for c in self.captured for g in c.guards]

    @property
    def pieces(self) -> int:
        """How many pieces the graphs have in which the data decides sizes (docs/dynamic.md)."""
        found = [pieces_of(c.graph.graph) for c in self.captured]
        return sum(steps.compiled for steps in found if isinstance(steps, Steps))

    @property
    def operators(self) -> list[Counter[str]]:
        """Of each graph, how often it calls each operator."""
        return [c.operators() for c in self.captured]

    def __str__(self) -> str:
        return self.text()

    def text(self, guards: bool = True) -> str:
        """What is printed. guards: list them, by the line that made them necessary."""
        lines = list(self._lines())
        for i, one in enumerate(self.captured if guards else ()):
            lines += ("", f"guards: graph {i}", *_guard_lines(one.guards))
        return "\n".join(lines)

    def _lines(self) -> Iterator[str]:
        pieces = self.pieces
        yield ", ".join((
            _count(len(self.graphs), "graph"), *([_count(pieces, "piece")] if pieces else []),
            _count(len(self.breaks), "break"),
            _count(len(self.recompiles), "recompile"), _count(len(self.guards), "guard"),
        ))  # fmt: skip
        for i, one in enumerate(self.captured):
            yield from ("", *_graph_lines(i, one))
        for why, names in _by_reason(self.eager).items():
            yield from ("", why.text(), f"  ran eagerly: {names}")
        if self.recompiles:
            yield ""
        for text, n in Counter(r.text() for r in self.recompiles).items():
            yield text if n == 1 else f"{text}  ({n} times)"


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _graph_lines(i: int, one: Captured) -> Iterator[str]:
    counts = one.operators()
    listed = ", ".join(f"{name} {n}" if n > 1 else name for name, n in counts.most_common())
    yield f"graph {i}: {one.of.name}  {one.of.at.file}:{one.of.at.line}"
    yield f"  {_count(sum(counts.values()), 'operator')}: {listed}"
    yield from (f"  {line}" for line in piece_lines(one.graph.graph))
    if one.runs:
        yield f"  runs as {one.runs}"


def _by_reason(eager: Iterable[Eager]) -> dict[Refusal, str]:
    """The reasons in order, with the frames that each one made run eagerly."""
    found: dict[Refusal, Counter[str]] = {}
    for e in eager:
        found.setdefault(e.why, Counter())[f"{e.of.name} ({e.of.at.file}:{e.of.at.line})"] += 1
    return {
        why: ", ".join(name if n == 1 else f"{name} {n} times" for name, n in names.items())
        for why, names in found.items()
    }


def _guard_lines(guards: tuple[Guard, ...]) -> Iterator[str]:
    """The guards under the line of the user that made them necessary; the rest is counted."""
    states = [guard_words(g) for g in guards if g.kind == "state"]
    modes = [said for said in states if said.startswith(_MODES)]
    by_line: dict[str, list[str]] = {"modes of torch": modes} if modes else {}
    for guard in guards:
        if _is_told(guard):
            at = guard.why.text() if _is_users(guard.why) else "PyTorch's own code"
            by_line.setdefault(at, []).append(guard_words(guard))
    left = _GUARDS
    for at, some in by_line.items():
        if left > 0:
            yield f"  {at}"
            yield from (f"    {words}" for words in some[:left])
        left -= len(some)
    if left < 0:
        yield f"  and {-left} more of this kind"
    rest = len(guards) - sum(map(len, by_line.values()))
    if rest:
        yield f"  and {rest} of classes, hooks and the functions that PyTorch's code calls"


def _is_told(guard: Guard) -> bool:
    """Whether a guard says something about the user's values, not about how modules are built."""
    if guard.kind in _TOLD:
        return "_hooks" not in place(guard.source) if guard.source is not None else True
    if not _is_users(guard.why):
        return False
    expected = guard.expected
    if guard.kind == "type":
        return isinstance(expected, type) and expected.__module__ not in _PLAIN and not issubclass(
            expected, torch.nn.Module)  # fmt: skip
    module = str(getattr(expected, "__module__", ""))
    plain = isinstance(expected, types.ModuleType | types.CodeType) or module == "builtins"
    return guard.kind == "is" and not plain and not module.startswith("torch.nn.modules")


def _is_users(at: Loc) -> bool:
    return at is not NOWHERE and not at.file.startswith(OWN_CODE)


def guard_words(guard: Guard) -> str:
    """What must hold, in a few words."""
    name = place(guard.source) if guard.source is not None else ""
    if guard.kind == "state":
        assert isinstance(guard.expected, tuple)
        getter, value = guard.expected
        return f"{getter_words(getter)} is {shown(value)}"
    if isinstance(guard.expected, SizeRelation):
        relation = guard.expected
        return relation.fact.text(relation.names(lambda r: r.name(place(r.source))))
    if guard.kind == "tensor":
        assert isinstance(guard.expected, tuple)
        return f"{name} is {spec_words(guard.expected)}"
    return _SAID[guard.kind].format(name=name, value=_value(guard))


def _value(guard: Guard) -> str:
    expected = guard.expected
    if isinstance(expected, Source):
        return place(expected)
    if isinstance(expected, type):
        return expected.__qualname__
    if guard.kind == "keys" and isinstance(expected, tuple):
        said = ", ".join(map(repr, expected[:_KEYS]))
        return said + ", ..." * (len(expected) > _KEYS)
    return getattr(expected, "__name__", "") if guard.kind == "predicate" else shown(expected)


_SAID = {
    "type": "{name} is a {value}", "is": "{name} is the object {value}",
    "is_not": "{name} is not the object {value}", "equal": "{name} == {value}",
    "length": "len({name}) == {value}", "has_key": "{name} has {value}",
    "lacks_key": "{name} has no {value}", "keys": "the keys of {name} are {value}",
    "same": "{name} is {value}", "distinct": "{name} is not {value}",
    "same_value": "{name} holds what {value} holds",
    "class_version": "no attribute of class {name} was set",
    "predicate": "{value}({name})",
}  # fmt: skip


# ---------------------------------------------------------------- asking
def explain(fn: Any, *, backend: str | Backend = "eager") -> Callable[..., Explanation]:
    """explain(fn)(*args): run `fn` once and tell what was captured, what broke, what is guarded.

    fn: also one that is compiled already; it is captured anew.
    backend: what the graphs are compiled with; "torchweld" tells their kernels too.
    """

    options = options_of(False, None, backend, None, None, False)

    def run(*args: Any, **kwargs: Any) -> Explanation:
        made = unshared(_uncompiled(fn), options)
        with listening() as notes:
            made(*args, **kwargs)
        return Explanation(notes)

    return run


def _uncompiled(fn: Any) -> Any:
    """The function or module that was given to compile()."""
    if isinstance(fn, Dispatcher):
        return fn.fn
    if isinstance(fn, types.MethodType) and isinstance(fn.__func__, Dispatcher):
        return types.MethodType(fn.__func__.fn, fn.__self__)
    return uncompiled(fn)


@functools.cache
def explain_at_exit() -> None:
    """TORCHWELD_EXPLAIN=1: print at the end what was compiled and what was not."""
    notes = listen()
    atexit.register(lambda: print(Explanation(notes).text(guards=False), file=sys.stderr))
