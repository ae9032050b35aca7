"""Captures with and without repeated calls, and what of them must be equal."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from torchweld import frames
from torchweld.base import config
from torchweld.base.errors import GraphBreak
from torchweld.capture.session import Capture
from torchweld.capture.slices import Slices
from torchweld.capture.wrap import _SameMapping
from torchweld.ir.graph import LOC, VAL
from torchweld.ir.nested import Nested
from torchweld.ir.region import Region
from torchweld.ir.source import Source

Look = tuple[Any, ...]


@contextmanager
def twins() -> Iterator[list[int]]:
    """Every capture is made twice, and compared. Gives how many calls each one has repeated."""
    real = frames.capture
    counts: list[int] = []
    wrong: list[AssertionError] = []

    def both(cap: Capture, fn: Any, args: Any) -> Region:
        other = Capture(cap.sizes.varying, cap.stop)
        now = config.current()
        with config.override(skip=(*now.skip, "slices")):
            plain = _outcome(real, other, fn, args)
        made = _outcome(real, cap, fn, args)
        counts.append(cap.slices.repeated if isinstance(cap.slices, Slices) else 0)
        try:
            _compare(other, plain, cap, made)
        except AssertionError as error:  # the pipeline would run the frame eagerly
            wrong.append(error)
        other.close()
        if isinstance(made, Exception):
            raise made
        return made

    frames.capture = both  # type: ignore[assignment]
    try:
        yield counts
    finally:
        frames.capture = real
    for error in wrong:
        raise error


def _compare(other: Capture, plain: object, cap: Capture, made: object) -> None:
    if isinstance(made, Region) and isinstance(plain, Region):
        assert_equal(plain, made)
    else:
        assert isinstance(made, GraphBreak), made
        assert (type(plain), str(plain)) == (type(made), str(made))
        assert other.stops == cap.stops
    assert other.steps == cap.steps


def _outcome(real: Callable[..., Region], cap: Capture, fn: Any, args: Any) -> Region | Exception:
    try:
        return real(cap, fn, args)
    except Exception as error:
        return error


def assert_equal(plain: Region, made: Region) -> None:
    """Graphs, guards and residual programs are equal but for names of nodes."""
    first, second = _graph(plain), _graph(made)
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert a == b
    assert plain.inputs == made.inputs
    assert (plain.result, plain.operators) == (made.result, made.operators)
    assert plain.graph.meta == made.graph.meta
    if plain.finish is not None or made.finish is not None:
        assert plain.finish is not None
        assert made.finish is not None
        assert plain.finish.source == made.finish.source
        assert plain.finish.inputs == made.finish.inputs
    left, right = (_guards(r) for r in (plain, made))
    assert left.keys() == right.keys()
    assert not [k for k in left if not all(map(_same, left[k], right[k]))]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, functools.partial):
        return (a.func, a.args, a.keywords) == (b.func, b.args, b.keywords)
    if isinstance(a, Source) and isinstance(b, Source):
        return a is b or a.text() == b.text()  # of an object that each capture makes anew
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return a is b or bool(a == b) or (isinstance(a, _SameMapping) and isinstance(b, _SameMapping))


def _guards(region: Region) -> dict[str, Any]:
    found = {}
    for g in region.guards:
        shown = g.text()
        if g.kind == "predicate" and g.source is not None:
            shown = f"{g.kind} {g.source.text()} {type(g.expected)}"
        found[f"{shown} {g.why}"] = (g.kind, g.source, g.expected)
    return found


def _graph(region: Region) -> list[Look]:
    numbers: dict[Node, int] = {}
    memories: dict[int, int] = {}
    fakes: dict[int, int] = {}
    rows: list[Look] = []
    for n in region.graph.graph.nodes:
        numbers[n] = len(numbers)
        args, kwargs = (map_arg(a, lambda x: f"%{numbers[x]}") for a in (n.args, n.kwargs))
        target = n.target if n.op != "placeholder" else ""
        if isinstance(target, Nested):  # each capture makes its own
            target = type(target)
        rows.append((n.op, target, repr(args), repr(kwargs), n.meta.get(LOC),
                     _value(n.meta.get(VAL), memories, fakes), sorted(n.meta)))  # fmt: skip
    return rows


def _value(x: Any, memories: dict[int, int], fakes: dict[int, int]) -> Any:
    if isinstance(x, torch.Tensor):
        memory = memories.setdefault(x.untyped_storage()._cdata, len(memories))
        fake = fakes.setdefault(id(x), len(fakes))
        return (memory, fake, type(x), x.dtype, tuple(x.shape), x.stride(), x.storage_offset(),
                x.device, x.requires_grad, x.is_inference(),
                x.untyped_storage().nbytes())  # fmt: skip
    if isinstance(x, tuple | list):
        return type(x), [_value(i, memories, fakes) for i in x]
    return x
