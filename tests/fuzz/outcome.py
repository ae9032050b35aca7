"""What a program did, as data that can be compared: results, aliases, mutations, output, errors."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import operator
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

GLOBALS = {"torch": torch, "functools": functools, "operator": operator, "math": math,
           "contextlib": contextlib}  # fmt: skip


class Box:
    """An object with attributes and methods."""

    def __init__(self, held: Tensor, count: int) -> None:
        self.held, self.count = held, count

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.count + self.held

    def bump(self, k: int) -> None:
        self.count += k


class Manager:
    """A context manager that says when it is entered and left."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def __enter__(self) -> int:
        self.log.append("enter")
        return 3

    def __exit__(self, kind: Any, *rest: Any) -> bool:
        self.log.append(getattr(kind, "__name__", None))
        return False


def function(source: str) -> tuple[Callable[..., Any], list[Any]]:
    """The function, and the list that it logs to."""
    log: list[Any] = []
    namespace: dict[str, Any] = {**GLOBALS, "Box": Box, "Manager": Manager, "log": log}
    exec(compile(source, f"<program {hash(source)}>", "exec"), namespace)
    return namespace["f"], log


def arguments(seed: int, call: int) -> tuple[Any, ...]:
    """Fresh arguments; the same for the same numbers."""
    dice = random.Random(seed * 31 + call)
    own = torch.Generator().manual_seed(seed * 31 + call)
    x, y = (torch.randn(4, 3, generator=own) for _ in range(2))
    items = [torch.randn(4, 3, generator=own) for _ in range(2)]
    table = {"a": dice.randrange(5), "c": dice.randrange(5)}
    return x, y, dice.randrange(6), dice.choice([0.5, 1.5]), items, table, Box(x, dice.randrange(4))


def outcome(fn: Callable[..., Any], log: list[Any], args: tuple[Any, ...]) -> list[Any]:
    """Everything that a call did."""
    del log[:]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            result: Any = fn(*args)
        except Exception as error:
            result = (type(error).__name__, str(error)[:60])
    return describe([result, args, list(log), said.getvalue(), torch.is_grad_enabled()], {})


def describe(x: Any, seen: dict[int, tuple[int, Any]]) -> list[Any]:
    """`x` as nested lists; an object met before is a number: aliases are part of the outcome."""
    if isinstance(x, Tensor | list | dict | Box):
        if id(x) in seen:
            return ["again", seen[id(x)][0]]
        seen[id(x)] = (len(seen), x)
    if isinstance(x, Tensor):
        return ["tensor", x.detach().clone(), list(x.shape), x.requires_grad]
    if isinstance(x, dict):
        return ["dict", *([repr(k), describe(v, seen)] for k, v in x.items())]
    if isinstance(x, Box):
        return ["box", *([k, describe(v, seen)] for k, v in vars(x).items())]
    if isinstance(x, list | tuple):
        return [type(x).__name__, *(describe(v, seen) for v in x)]
    return [type(x).__name__, repr(x)]


def difference(a: Any, b: Any, where: str = "") -> str:
    """Where two outcomes differ, or ""."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        same = a.shape == b.shape and torch.allclose(a, b, 1e-4, 1e-5, equal_nan=True)
        return "" if same else f"{where}: {a} is {b}"
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return next((d for i, (p, q) in enumerate(zip(a, b, strict=True))
                     if (d := difference(p, q, f"{where}.{i}"))), "")  # fmt: skip
    return "" if type(a) is type(b) and a == b else f"{where}: {a!r} is {b!r}"
