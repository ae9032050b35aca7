"""Calls a compiled function before and after a change, and counts what was compiled."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch

import torchweld
from torchweld.module import own_call


def same(got: Any, expected: Any) -> None:
    """The same structure, types and values, strides and requires_grad of tensors included."""
    assert type(got) is type(expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
        assert got.stride() == expected.stride()
        assert got.requires_grad == expected.requires_grad
    elif isinstance(expected, list | tuple):
        assert len(got) == len(expected)
        for a, b in zip(got, expected, strict=True):
            same(a, b)
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        same(list(got.values()), list(expected.values()))
    elif isinstance(expected, functools.partial):
        same((got.args, got.keywords), (expected.args, expected.keywords))
    else:
        assert got == expected or (got != got and expected != expected)


def graphs() -> int:
    counts = torchweld.statistics()
    assert counts["internal_errors"] == 0
    assert counts["breaks"] == 0
    return counts["graphs"]


def calls(fn: Callable[..., Any], *arguments: tuple[Any, ...], made: int, **options: Any) -> None:
    """`fn` called with each tuple of arguments: eager's results and changes, `made` graphs."""
    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager", **options)
    for args in arguments:
        given, expected_given = copy.deepcopy(args), copy.deepcopy(args)
        expected = fn(*expected_given)
        same(compiled(*given), expected)
        same(given, expected_given)
    assert graphs() == made


def changed(fn: Any, change: Callable[[], Any], made: int, *args: Any) -> None:
    """Called, changed, called twice more: eager's results each time, `made` graphs in all."""
    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager")
    same(compiled(*args), fn(*args))
    change()
    for _ in range(2):
        same(compiled(*args), fn(*args))
    assert graphs() == made


def settled(compiled: Any) -> bool:
    """Whether an entry that answers goes by a snapshot."""
    entries = getattr(compiled, "entries", None) or own_call(compiled).entries
    return any(e.hits and e.program.settled for e in entries)


def called_until_settled(fn: Any, grad: bool) -> Any:
    """`fn` compiled and called with a [2, 3] tensor until its calls go by a snapshot."""
    torchweld.reset()
    compiled = torchweld.compile(fn, backend="eager")
    x = torch.ones(2, 3)
    with torch.set_grad_enabled(grad):
        for _ in range(12):
            same(compiled(x.clone()), fn(x))
    assert settled(compiled)
    return compiled
