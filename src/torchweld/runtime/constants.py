"""What a Program's prologue computed: kept for as long as the tensors it was computed from live."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Protocol

import torch

from torchweld.base.errors import InternalError
from torchweld.ir.program import Prologue

Tensors = tuple[torch.Tensor, ...]


class Run(Protocol):
    """A prologue that can be called."""

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]: ...


class Constants:
    """Called with a call's inputs, gives the constants that belong to them.

    One compiled function may serve several modules whose weights differ: each set of frozen inputs
    has constants of its own, found by the identity of the tensors. When one of these goes, so do
    the constants, and `forget` is called first: whoever remembers the last answer must not
    recognise another tensor at the same address.
    Cost: a call with the tensors of the last one should not get here.
    """

    __slots__ = ("__weakref__", "_kept", "_run", "forget", "frozen")

    def __init__(self, prologue: Prologue, run: Run) -> None:
        self.frozen = prologue.frozen
        self.forget: Callable[[], object] = _nothing
        self._run = run
        self._kept: dict[tuple[int, ...], tuple[Tensors, list[object]]] = {}

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        given = [inputs[i] for i in self.frozen]
        key = tuple(map(id, given))
        found = self._kept.get(key)
        if found is None:
            gone = functools.partial(_gone, weakref.ref(self), key)
            found = (self._made(given), [weakref.ref(t, gone) for t in given])
            self._kept[key] = found
        return found[0]

    def _made(self, given: list[torch.Tensor]) -> Tensors:
        # constants made in inference mode could not be used outside of it
        with torch.inference_mode(False):
            made = self._run(*given)
        tensors = tuple(t for t in made if t is not None)
        if len(tensors) != len(made):
            raise InternalError("a prologue gave no tensor for a constant")
        return tensors


def _nothing() -> None:
    pass


def _gone(owner: weakref.ref[Constants], key: tuple[int, ...], dead: object) -> None:
    """A tensor of `key` is gone, and so is what was computed from it."""
    constants = owner()
    if constants is not None:
        constants.forget()
        constants._kept.pop(key, None)
