"""A call of a module that is captured like an earlier one of another module of the same kind.

While a module's call is interpreted, what it adds to the graph and to the guards is remembered as
a slice. A later call with arguments that are alike gets copies of the nodes, if all facts that
guards state about the first module hold for the second one: then the interpreter would do the same
again. A call that does more than compute a result (it changes an object or a tensor from outside,
prints, sets a mode) makes no slice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch.fx import Node

from torchweld.capture.likeness import Likeness, Unlike
from torchweld.capture.session import Capture
from torchweld.capture.slice_copy import Copied, copy_value
from torchweld.capture.slice_facts import Facts, is_outside
from torchweld.capture.state import Cont, VFrame
from torchweld.capture.values.base import InstanceValue, Mutable, Value

_VARIANTS = 4  # slices of one key that are tried, the newest first


class Slice:
    """One call that was interpreted, and how far everything was before and after it.

    like: its arguments. line: the user's line that made the call. result: a copy of what it
    returned.
    """

    __slots__ = ("after", "before", "copied", "facts", "frame", "key", "like", "line",
                 "result")  # fmt: skip

    def __init__(self, cap: Capture, like: Likeness, key: Hashable) -> None:
        self.like = like
        self.key = key
        self.line = cap.loc()
        self.before = Position(cap)
        self.after = self.before
        self.frame: VFrame | None = None
        self.result: Value | None = None
        self.copied: Copied | None = None
        self.facts: dict[tuple[int, ...], Facts | None] = {}

    def close(self, cap: Capture, result: Value) -> bool:
        """The call has returned. False: it did what cannot be repeated."""
        self.frame = None
        self.after = after = Position(cap)
        if not _calm(cap) or after.effects != self.before.effects:
            return False
        old = {id(v) for v in self.like.values if isinstance(v, Mutable)}
        marked = cap.marked[self.before.marked : after.marked]
        if any(id(cell) in old or is_outside(cell) for cell in marked):
            return False
        known = {id(v): v for v in self.like.values}
        try:
            self.result = copy_value(result, known, lambda x: x)
        except Unlike:
            return False
        return True

    def repeated(self, cap: Capture, like: Likeness) -> Value | None:
        """What a call with these arguments returns, its nodes and guards added; None: unknown."""
        before, after = self.before, self.after
        if cap.stop and cap.steps + after.steps - before.steps >= cap.stop - 1:
            return None
        if self.copied is None:
            self.copied = Copied(cap, self)
        if not self.copied.usable or self.result is None or self.copied.was_written(cap):
            return None
        pairs = list(zip(self.like.values, like.values, strict=True))
        places = tuple(i for i, (a, b) in enumerate(pairs) if a is not b and a.source is not None)
        if places not in self.facts:
            self.facts[places] = Facts.found(cap, self, places)
        facts = self.facts[places]
        moved = facts.hold(cap, [like.values[i] for i in places]) if facts is not None else None
        if moved is None:
            return None
        lines = {self.line: cap.loc()}
        moved.keep(lines)
        made = self.copied.repeat(cap, pairs, moved, lines)
        cap.steps += after.steps - before.steps
        cap.builder.n_calls += after.calls - before.calls
        if cap.builder.risky:
            cap.note_risk()
        result: Value = copy_value(self.result, made.values, made.leaf)
        return result


class Position:
    """How far a capture is: lengths of what only grows."""

    __slots__ = ("asked", "calls", "effects", "guards", "marked", "node", "objects", "steps",
                 "touched", "writes")  # fmt: skip

    def __init__(self, cap: Capture) -> None:
        builder = cap.builder
        self.node: Node = builder.graph._root._prev
        self.guards = len(cap.guards)
        self.objects = len(cap.objects)
        self.marked = len(cap.marked)
        self.touched = len(cap.touched)
        self.asked = len(cap.asked)
        self.writes = len(builder.mode.writes)
        self.steps = cap.steps
        self.calls = builder.n_calls
        self.effects = (len(cap.effects), len(cap.modes), len(cap.state_restore), cap.unguarded,
                        cap.outside_stop, len(cap.sizes.readings))  # fmt: skip


def _calm(cap: Capture) -> bool:
    """Whether what a call does depends on nothing but its arguments and on what is guarded."""
    return not (cap.late.sources or cap.class_attrs or cap.globals_written or cap.handled
                or cap.private.made or cap.substituted or cap.inline_next or cap.inference
                or cap.builder.bodies or cap.sizes.data.found)  # fmt: skip


def _modes(cap: Capture) -> Hashable:
    """The modes that the frame can have changed."""
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
            tuple(getter() for getter, _ in cap.modes_before.values()))  # fmt: skip


class Slices:
    """The slices of one capture. repeated: how many calls were copies of earlier ones."""

    def __init__(self) -> None:
        self.by_key: dict[Hashable, list[Slice]] = {}
        self.open: list[tuple[int, Slice]] = []
        self.repeated = 0

    def call(self, cap: Capture, fn: InstanceValue, args: list[Value], kwargs: dict[str, Value],
             cont: Cont | None, run: Callable[[], None]) -> None:  # fmt: skip
        """Call an object: repeat an earlier call, or `run` this one."""
        result, opened = self._look(cap, fn, args, kwargs)
        if result is not None:
            self.repeated += 1
            cap.deliver(result, cont)
            return
        depth = len(cap.frames)
        run()
        if opened is not None and len(cap.frames) == depth + 1 and (
                cap.frames[depth].on_return is cont):  # fmt: skip
            self._drop(cap)
            opened.frame = cap.frames[depth]
            self.open.append((depth, opened))

    def _look(self, cap: Capture, fn: InstanceValue, args: list[Value],
             kwargs: dict[str, Value]) -> tuple[Value | None, Slice | None]:  # fmt: skip
        """The result of a call that repeats an earlier one, or the slice that it may become."""
        if fn.source is None or not _calm(cap) or not issubclass(fn.klass, torch.nn.Module):
            return None, None
        try:
            like = Likeness((fn, *args), kwargs)
        except Unlike:
            return None, None
        key = like.key(_modes(cap))
        for found in self.by_key.get(key, ()):
            made = found.repeated(cap, like)
            if made is not None:
                return made, None
        return None, Slice(cap, like, key)

    def end(self, cap: Capture, frame: VFrame, result: Value) -> None:
        """The innermost frame returns."""
        if not self.open:
            return
        if self.open[-1][1].frame is not frame:
            self._drop(cap)
            if not self.open or self.open[-1][1].frame is not frame:
                return
        _, found = self.open.pop()
        if found.close(cap, result):
            kept = self.by_key.setdefault(found.key, [])
            kept.insert(0, found)
            del kept[_VARIANTS:]

    def _drop(self, cap: Capture) -> None:
        """Forget calls that an exception has left."""
        frames = cap.frames
        while self.open:
            depth, found = self.open[-1]
            if depth < len(frames) and frames[depth] is found.frame:
                return
            self.open.pop()

