"""What a program did, as data that can be compared: results, aliases, mutations, output, errors."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import io
import itertools
import math
import operator
import random
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

NAME = "random_program"
GLOBALS = {"torch": torch, "functools": functools, "operator": operator, "math": math,
           "contextlib": contextlib, "collections": collections, "dataclasses": dataclasses,
           "itertools": itertools}  # fmt: skip
# how many rows the tensors have in a call, for programs whose sizes vary
ROWS = (4, 5, 4, 2, 1, 7)


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


class Log(list[Any]):
    """What a program logs, and its globals."""

    namespace: dict[str, Any]


def function(source: str) -> tuple[Callable[..., Any], Log]:
    """The function, and the list that it logs to."""
    log, module = Log(), types.ModuleType(NAME)
    sys.modules[NAME] = module  # what the frame hook asks about functions of the program
    log.namespace = vars(module)
    log.namespace.update(GLOBALS, Box=Box, Manager=Manager, log=log)
    exec(compile(source, f"<program {hash(source)}>", "exec"), log.namespace)
    return log.namespace["f"], log


def arguments(seed: int, call: int) -> tuple[Any, ...]:
    """Fresh arguments; the same for the same numbers."""
    traits = random.Random(seed)
    rows = traits.choice(ROWS[:1] * 3 + ROWS) if traits.random() < 0.5 else 0
    trained = traits.choice([(), (), (), (0,), (0, 1), (1, 2), (3,)])
    rows = ROWS[(rows + call) % len(ROWS)] if rows else 4
    dice = random.Random(seed * 31 + call)
    own = torch.Generator().manual_seed(seed * 31 + call)
    made = [torch.randn(rows, 3, generator=own) for _ in range(4)]
    for i in trained:
        made[i] = made[i].requires_grad_() * 1.0  # no leaf: it may be written to
    x, y, *items = made
    table = {"a": dice.randrange(5), "c": dice.randrange(5)}
    return x, y, dice.randrange(6), dice.choice([0.5, 1.5]), items, table, Box(x, dice.randrange(4))


def outcome(fn: Callable[..., Any], log: Log, args: tuple[Any, ...]) -> list[Any]:
    """Everything that a call did."""
    del log[:]
    leaves = _leaves(args)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            result: Any = fn(*args)
        except Exception as error:
            result = (type(error).__name__, str(error)[:60])
    seen: dict[int, tuple[int, Any]] = {}
    state = [torch.is_grad_enabled(), log.namespace.get("counter"), _class_state(log.namespace)]
    did = describe([result, args, list(log), said.getvalue(), state], seen)
    return [*did, *gradients([x for _, x in seen.values()], leaves)]


def _leaves(args: tuple[Any, ...]) -> list[Tensor]:
    """The leaves that the arguments were made of."""
    made = [x for x in (*args[:2], *args[4]) if x.grad_fn is not None]
    return [x.grad_fn.next_functions[0][0].variable for x in made]


def _class_state(namespace: dict[str, Any]) -> list[Any]:
    kinds = [namespace[k] for k in ("Node", "Leaf") if k in namespace]
    return [(k, v) for kind in kinds for k, v in vars(kind).items() if isinstance(v, int)]


def gradients(found: list[Any], leaves: list[Tensor]) -> list[Any]:
    """The gradients of the leaves after a backward of everything that was found."""
    ends = [x for x in found if isinstance(x, Tensor) and x.requires_grad and x.is_floating_point()]
    if not ends or not leaves:
        return []
    try:
        torch.autograd.backward([x.sum() for x in ends])
    except RuntimeError as error:
        return ["RuntimeError", str(error)[:30]]
    return [None if x.grad is None else x.grad.clone() for x in leaves]


def describe(x: Any, seen: dict[int, tuple[int, Any]]) -> list[Any]:
    """`x` as nested lists; an object met before is a number: aliases are part of the outcome."""
    own = type(x).__module__ in (NAME, __name__)
    if own or isinstance(x, Tensor | list | dict | collections.deque | set):
        if id(x) in seen:
            return ["again", seen[id(x)][0]]
        seen[id(x)] = (len(seen), x)
    if isinstance(x, Tensor):
        return ["tensor", x.detach().clone(), list(x.shape), x.requires_grad]
    if isinstance(x, dict):
        return ["dict", *([repr(k), describe(v, seen)] for k, v in x.items())]
    if own:
        held = {k: getattr(x, k) for k in getattr(type(x), "__slots__", ())}
        held = {**held, **getattr(x, "__dict__", {})}
        return [type(x).__name__, *([k, describe(v, seen)] for k, v in held.items())]
    if isinstance(x, list | tuple | collections.deque | set):
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
