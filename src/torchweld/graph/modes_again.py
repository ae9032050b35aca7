"""The modes in which each node of a captured graph runs, and calls that bring them about again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node

from torchweld.graph.state import AUTOCAST, GRAD_MODE
from torchweld.ir.hooks import Pack

_ENTER: Any = torch.amp.autocast_mode._enter_autocast
_EXIT: Any = torch.amp.autocast_mode._exit_autocast
_CLEAR: Any = torch.clear_autocast_cache

Setters = Mapping[Any, Callable[..., Callable[[], Any]]]


@dataclass(frozen=True, slots=True)
class Set:
    """A call that sets a mode. Two of one function and `key` set the same one."""

    target: Any
    key: tuple[Any, ...]
    value: Any


@dataclass(frozen=True, slots=True)
class State:
    """sets: what was set, each mode once. entered: autocasts that are open."""

    sets: tuple[Set, ...] = ()
    entered: tuple[Node, ...] = ()

    def value(self, of: Set) -> Set | None:
        return next((s for s in self.sets if (s.target, s.key) == (of.target, of.key)), None)


@dataclass(slots=True)
class Modes:
    """calls: the nodes that change modes. of: the state in which each other node runs. setters:
    what reads a mode, of the function that sets it."""

    setters: Setters
    calls: set[Node] = field(default_factory=set)
    of: dict[Node, State] = field(default_factory=dict)


def follow(graph: Graph, setters: Setters, steps: frozenset[Any]) -> Modes | str:
    """The modes of a graph, or why they cannot be brought about again.

    setters, steps: calls that set one, and those that count how deep autocasts are nested.
    """
    found, state = Modes(setters), State()
    for node in graph.nodes:
        target = node.target
        if node.op != "call_function":
            found.of[node] = state
        elif isinstance(target, Pack):
            return "saved_tensors_hooks are on"
        elif target in setters:
            found.calls.add(node)
            made = Set(target, tuple(node.args[:-1]), node.args[-1])
            rest = tuple(s for s in state.sets if (s.target, s.key) != (target, made.key))
            state = State((*rest, made), state.entered)
        elif target in AUTOCAST:
            found.calls.add(node)
            if target is _EXIT and state.entered[-1:] != (node.args[0],):
                return "autocast is left in another order than it was entered"
            entered = (*state.entered, node) if target is _ENTER else state.entered[:-1]
            state = State(state.sets, entered)
        elif target in steps:
            found.calls.add(node)
        elif target in GRAD_MODE:
            return "inference mode is entered"
        else:
            found.of[node] = state
    return found


class Mode:
    """Writes the calls that lead from one state to the next into a graph."""

    def __init__(self, graph: Graph, setters: Setters) -> None:
        self.graph = graph
        self.setters = setters
        self.state = State()
        self._open: list[Node] = []
        self._changed = False

    def become(self, state: State) -> None:
        if state == self.state:
            return
        before, after = self.state.entered, state.entered
        same = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a is not b),
                    min(len(before), len(after)))  # fmt: skip
        while len(self._open) > same:
            self.graph.call_function(_EXIT, (self._open.pop(),))
        for s in {(s.target, s.key): s for s in (*self.state.sets, *state.sets)}.values():
            then = state.value(s) or Set(s.target, s.key, self._around(s))
            now = self.state.value(s)
            if (self._around(s) if now is None else now.value) != then.value:
                self.graph.call_function(s.target, (*s.key, then.value))
                self._changed = True
        for node in after[same:]:
            self._open.append(self.graph.call_function(_ENTER, node.args, node.kwargs))
        self.state = state

    def _around(self, s: Set) -> Any:
        """What the mode is around the graph."""
        return self.setters[s.target](*s.key, s.value)()

    def leave(self) -> None:
        """Back to how it is around the graph."""
        self.become(State())
        if self._changed and any("autocast" in str(n.target) for n in self.graph.nodes):
            self.graph.call_function(_CLEAR)  # what it has cast is another's later
