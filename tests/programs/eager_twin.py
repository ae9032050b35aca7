"""Runs a program compiled and eagerly on equal inputs, and compares everything that can be seen."""

from __future__ import annotations

import collections
import copy
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

import torchweld
import torchweld.pipeline
from torchweld.base.errors import FullGraphError


def check(fn: Callable[..., Any], *calls: tuple[Any, ...], graphs: int = 1) -> None:
    """`fn` gives eager's results, exceptions and changes of its arguments, in `graphs` graphs."""
    check_made(lambda: fn, *calls, graphs=graphs)


def check_made(make: Callable[[], Any], *calls: tuple[Any, ...], graphs: int = 1) -> None:
    """As `check`, of a function that `make` makes anew for each side.

    `make` returns the function, or (function, state): state is compared after every call.
    Each call is made twice; arguments are copied for each side.
    """
    torchweld.reset()
    eager, eager_state = _made(make)
    plain, state = _made(make)
    compiled = torchweld.compile(plain, fullgraph=True, backend="eager")
    for args in calls or ((),):
        for _ in range(2):
            expected_args, got_args = copy.deepcopy(args), copy.deepcopy(args)
            expected = outcome(eager, expected_args)
            got = outcome(compiled, got_args)
            Twins().equal((expected, expected_args, eager_state), (got, got_args, state))
    counts = torchweld.statistics()
    assert counts["breaks"] == 0, counts
    assert counts["internal_errors"] == 0
    assert counts["graphs"] == graphs


def check_refused(fn: Callable[..., Any], *args: Any, code: str, says: str) -> None:
    """`fn` is not captured, for the reason given, and still gives eager's result."""
    torchweld.reset()
    expected_args, got_args = copy.deepcopy(args), copy.deepcopy(args)
    expected = outcome(fn, expected_args)
    got = outcome(torchweld.compile(fn, backend="eager"), got_args)
    Twins().equal((expected, expected_args), (got, got_args))
    refusals = torchweld.pipeline.STATISTICS.refusals
    assert any(code in r.code and says in r.why for r in refusals), [r.text() for r in refusals]
    assert torchweld.statistics()["internal_errors"] == 0


def _made(make: Callable[[], Any]) -> tuple[Callable[..., Any], Any]:
    made = make()
    return made if isinstance(made, tuple) else (made, None)


def outcome(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What the call returns, or the exception."""
    try:
        return fn(*args)
    except FullGraphError:
        raise
    except Exception as error:
        return type(error), error.args


class Twins:
    """Compares two object graphs: types, values, and which places share one object."""

    def __init__(self) -> None:
        self.pairs: dict[int, object] = {}
        self.back: dict[int, object] = {}
        self.kept: list[object] = []

    def equal(self, a: Any, b: Any, at: str = "it") -> None:
        if isinstance(a, type | types.ModuleType | types.BuiltinFunctionType) or a is None:
            assert a is b, at
            return
        kinds = type(a), type(b)  # a class made by `make` is made once for each side
        assert kinds[0] is kinds[1] or kinds[0].__qualname__ == kinds[1].__qualname__, (
            f"{at}: {kinds}"
        )
        if isinstance(a, bool | int | float | complex | str | bytes | torch.dtype | torch.device):
            assert a == b or (a != a and b != b), f"{at}: {a!r} and {b!r}"
            return
        if not isinstance(a, types.MethodType | tuple | frozenset) and self._seen(a, b, at):
            return
        self._parts(a, b, at)

    def _seen(self, a: Any, b: Any, at: str) -> bool:
        if id(a) in self.pairs or id(b) in self.back:
            assert self.pairs.get(id(a)) is b, f"{at}: shared on one side only"
            assert self.back.get(id(b)) is a, f"{at}: shared on one side only"
            return True
        self.pairs[id(a)] = b
        self.back[id(b)] = a
        self.kept += [a, b]
        return False

    def _parts(self, a: Any, b: Any, at: str) -> None:
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(b, a, rtol=0, atol=0, equal_nan=True)
            assert a.requires_grad == b.requires_grad, at
            assert a.is_inference() == b.is_inference(), at
        elif isinstance(a, set | frozenset):
            assert a == b, at
        elif isinstance(a, dict):
            assert list(map(_name, a)) == list(map(_name, b)), at
            for (key, x), y in zip(a.items(), b.values(), strict=True):
                self.equal(x, y, f"{at}[{key!r}]")
        elif isinstance(a, list | tuple | collections.deque):
            assert len(a) == len(b), at
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                self.equal(x, y, f"{at}[{i}]")
        elif isinstance(a, types.FunctionType):
            assert (a.__code__, a.__name__) == (b.__code__, b.__name__), at
        elif isinstance(a, types.MethodType):
            self.equal(a.__func__, b.__func__, at + ".__func__")
            self.equal(a.__self__, b.__self__, at + ".__self__")
        elif isinstance(a, weakref.ref):
            self.equal(a(), b(), at + "()")
        elif not hasattr(a, "__dict__"):
            assert a == b or type(a).__eq__ is object.__eq__, f"{at}: {a!r} and {b!r}"
        if hasattr(a, "__dict__") and not isinstance(a, types.FunctionType | torch.Tensor):
            self.equal(vars(a), vars(b), at + ".__dict__")


def _name(key: object) -> object:
    return key if isinstance(key, str | int | float | tuple | None) else type(key)
