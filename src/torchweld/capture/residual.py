"""The residual program: Python source that brings the world to the state after the frame.

It runs after the graph: writes changed objects back, performs deferred effects in order, builds the
return value. Objects that several values share are built once, so identity and aliasing hold.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable

import numpy as np
import torch

from torchweld.base.errors import InternalError, Untouched
from torchweld.capture.by_data import Made
from torchweld.capture.class_writes import class_statements
from torchweld.capture.draws import DEFAULT, go_back, state_of
from torchweld.capture.grads import dropped, is_spent, spent, unchanged, without_graph
from torchweld.capture.late import TYPE_VARIES, LateNumber, LateTensor
from torchweld.capture.modes import around, copied, memory
from torchweld.capture.modes_kept import Calls
from torchweld.capture.numbers import number_text, unwritten
from torchweld.capture.rebuild import BUILDERS, WRITERS
from torchweld.capture.residual_iterators import stuck
from torchweld.capture.session import Capture
from torchweld.capture.state import Stuck, refuse
from torchweld.capture.suspend import GO_ON, PIECE, Rest, to_close
from torchweld.capture.values.base import (
    Const,
    DictValue,
    Lazy,
    Loose,
    Mutable,
    SizeValue,
    Slot,
    TensorValue,
    Value,
)
from torchweld.capture.values.number import GraphNumber, RangeValue
from torchweld.capture.values.unread import is_no_input
from torchweld.ir.conditions import Junction, Relation
from torchweld.ir.graph import DRAWS, WRITES
from torchweld.ir.raising import is_risky
from torchweld.ir.region import Finish
from torchweld.ir.source import Source

# names that the source of a residual program uses if it calls the graph itself; the pipeline gives
# them their meaning: the compiled graph, and the eager function of (None, *flat arguments)
CALL, EAGER = "call", "eager"
_LITERALS = (type(None), bool, int, str, bytes, type(Ellipsis))


_PRIVATE = "a class made in the frame, or an instance or part of it, leaves the frame"
Outcome = tuple[list[TensorValue], int | None, Finish | None]


class Residual:
    """Builds the Finish of a capture, and the list of graph outputs that it needs."""

    def __init__(self, cap: Capture) -> None:
        self.cap = cap
        self.lines: list[str] = []
        self._assigned = 0
        self.params: dict[Source, str] = {}
        self.consts: dict[str, object] = {}
        self.names: dict[int, str] = {}
        self.outputs: list[TensorValue] = []
        self._output_index: dict[int, int] = {}
        self._const_names: dict[int, str] = {}
        self._open: set[int] = set()
        self.remaking = 0  # how many classes are being made
        self.waiting: list[Callable[[], None]] = []
        self.goes_on = bool(cap.stop) or cap.handed is not None
        self._kept: list[object] = []
        self._computes: list[LateNumber] = []
        self._inputs = {id(v): s for s, v, _ in cap.builder.inputs}
        self._with_grad = {memory(v) for _, v, _ in cap.builder.inputs if v.fake.requires_grad}

    # -------------------------------------------------------------- expressions
    def expr(self, slot: Slot) -> str:
        """A Python expression for the value; statements that it needs go to `lines` first."""
        if isinstance(slot, Lazy):
            return self.param(slot.source)
        match slot:
            case TensorValue():
                return self.tensor(slot)
            case LateNumber() if not slot.fixed:
                return self.late(slot)
            case RangeValue():
                return f"{self.bind_const(range)}({', '.join(map(self.expr, slot.parts))})"
            case GraphNumber():
                return number_text(self.cap, slot, self)
            case SizeValue():
                return self._size(slot)
            case Loose() if not slot.fixed:
                assert slot.source is not None
                return self.param(slot.source)
            case Const():
                return self.const(slot)
        if slot.source is not None:
            return self.param(slot.source)
        known = self.names.get(id(slot))
        if known is not None:
            return known
        if id(slot) in self._open:
            raise refuse("W107", "a result that contains itself", self.cap.loc())
        self._open.add(id(slot))
        builder = BUILDERS.get(type(slot))
        if builder is None:
            raise stuck(self.cap, slot)
        name: str = builder(self, slot)
        self._open.discard(id(slot))
        self.names[id(slot)] = name
        self._kept.append(slot)
        return name

    def tensor(self, x: TensorValue) -> str:
        source = x.source if is_no_input(x) else self._inputs.get(id(x))
        if source is not None:
            return self.param(source)
        if id(x) in self.names:
            return self.names[id(x)]
        if x.node.graph is not self.cap.builder.root:
            raise self.cap.builder.left_body(x)
        if x.kind is torch.nn.Parameter:
            why = "a Parameter made in the frame leaves it"
            raise Stuck("W107", why, self.cap.loc(), self.cap.birth(x))
        at = self._output_index.get(id(x))
        if at is None:
            at = self._output_index[id(x)] = len(self.outputs)
            self.outputs.append(x)
        if self.cap.backwards and x.fake.requires_grad and is_spent(self.cap, x.fake):
            self.outputs[at] = without_graph(self.cap, x)
            name = self.names[id(x)] = self.assign(f"{self.bind_const(spent)}(outs[{at}])")
            return name
        if not x.fake.requires_grad and memory(x) in self._with_grad:
            name = self.names[id(x)] = self.assign(f"{self.bind_const(without_grad)}(outs[{at}])")
            return name
        return f"outs[{at}]"

    def check_finalized(self) -> None:
        """Errors: GraphBreak if the frame drops an object whose class runs code then."""
        for x in self.cap.finalized:
            if x.source is None and id(x) not in self.names:
                name = x.cls().__qualname__
                raise refuse("W123", f"a {name}, which has a __del__, is dropped", self.cap.loc())

    def _size(self, x: SizeValue) -> str:
        value = x.number.node.value
        if isinstance(value, bool | Relation | Junction):
            value = x.obj  # which asks
        return self.cap.sizes.text(value, self.param, self.bind_const, self._made)

    def _made(self, made: Made) -> str:
        """A number that only the data decides, of what the graph has made."""
        if made.node is None:
            return f"{self.tensor(made.tensor)}.shape[{made.dim}]"
        name = self.names.get(id(made.node))
        if name is None:
            self.cap.kept.append(made.node)
            whole = self.tensor(unwritten(self.cap, made.tensor, made.node))
            at = str(list(made.place)) if made.place else ""
            name = self.names[id(made.node)] = self.assign(f"{whole}{at}.item()")
        return name

    def late(self, x: LateNumber) -> str:
        """Numbers that are computed have their names from `prologue`."""
        return self.param(x.source) if x.source is not None else self.names[id(x)]

    def prologue(self, again: bool) -> list[str]:
        """Statements that compute the late numbers and draw the random ones.

        again: whether the eager function may run after them; random numbers are then drawn anew.
        """
        numbers = [x for x in self.cap.late.computed if not x.after]
        body = [line for x in numbers for line in self._computed(x)]
        if all(map(_cannot_fail, numbers)):
            return [*self._states(), *body] if again else body
        return [*self._states(), "try:", *("    " + line for line in body), "except Exception:",
                *self.back(), f"    return {EAGER}(None, *flat)"]  # fmt: skip

    def after_graph(self) -> None:
        """Compute what depends on the time after the graph; it raises what Python raises."""
        for x in self.cap.late.computed:
            if x.after:
                self.lines += self._computed(x)

    def _computed(self, x: LateNumber) -> list[str]:
        kept, self.lines = self.lines, []
        args = ", ".join(self.late(a) if isinstance(a, LateNumber) else self.expr(a)
                         for a in x.args)  # fmt: skip
        lines, self.lines = self.lines, kept
        name = self.names[id(x)] = f"n{len(self._computes)}"
        self._computes.append(x)
        lines.append(f"{name} = {self.bind_const(x.fn)}({args})")
        if isinstance(x, LateTensor) and x.value is not None:
            self.names[id(x.value)] = name
        if x.fn in TYPE_VARIES:
            lines.append(f"if type({name}) is not {self.bind_const(type(x.now))}: raise TypeError")
        return lines

    def _states(self) -> list[str]:
        """Statements that keep the states of the generators that the frame draws from."""
        return [f"s{i} = {self.bind_const(state_of)}({self.expr(x)})"
                for i, x in enumerate(self._generators())]  # fmt: skip

    def _generators(self) -> list[Value]:
        """What the frame and its graph draw from, and the settings that the frame changes."""
        found = [g.value for g in self.cap.generators.values()]
        draws = any(DRAWS in n.meta for g in self.cap.builder.graphs() for n in g.nodes)
        return [*found, Const(DEFAULT)] if draws else found

    def back(self) -> list[str]:
        """Statements of a block that set the generators back."""
        return [f"    {self.bind_const(go_back)}({self.expr(x)}, s{i})"
                for i, x in enumerate(self._generators())]  # fmt: skip

    def graph_call(self) -> str:
        places = (self._number(p) if isinstance(p, LateNumber) else self.param(p)
                  for p in self.cap.builder.places)  # fmt: skip
        return f"outs = {CALL}({', '.join(places)})"

    def _number(self, x: LateNumber) -> str:
        """A late number as the graph gets it."""
        return f"{self.late(x)}.item()" if isinstance(x.now, np.generic) else self.late(x)

    def calling(self, call: str) -> tuple[str, list[str]]:
        """The statements that call the graph, so that its outputs are inference tensors where
        eager's are. call: the statement, or empty if the graph need not be called from here."""
        how = around(self.cap.builder.graph, [v for _, v, _ in self.cap.builder.inputs],
                     self.outputs)  # fmt: skip
        if how.mode is not None:
            guard = self.bind_const(torch._C._InferenceMode)
            call = f"with {guard}({how.mode}): {call or self.graph_call()}"
        statements = [call] if call else []
        if how.copied:
            remake = self.bind_const(copied)
            statements.append(f"outs = {remake}(outs, {how.copied}, {how.kind})")
        return call, statements

    def const(self, x: Const) -> str:
        obj = x.obj
        if isinstance(obj, _LITERALS) and type(obj) in _LITERALS:
            return repr(obj)
        if type(obj) is float and math.isfinite(obj):
            return repr(obj)
        return self.bind_const(obj)

    def bind_const(self, obj: object) -> str:
        if self.cap.private.has(obj):
            return self._remade(obj)
        name = self._const_names.get(id(obj))
        if name is None:
            name = self._const_names[id(obj)] = f"c{len(self.consts)}"
            self.consts[name] = obj
        return name

    def _remade(self, obj: object) -> str:
        """What only the capture has, made again, or what is found there.

        Errors: GraphBreak, also if the frame goes on: what goes on is compiled for this class, and
        the next call would have another one.
        """
        if self.goes_on:
            raise refuse("W106", _PRIVATE, self.cap.loc())
        make = importlib.import_module("torchweld.capture.remade").remade
        text: str = make(self, obj)
        return text

    def when_remade(self, fill: Callable[[], None]) -> None:
        """Call `fill` when all classes that are being made exist."""
        if self.remaking:
            self.waiting.append(fill)
        else:
            fill()

    def param(self, source: Source) -> str:
        if self.cap.private.owns(source):
            return self._remade(source)
        name = self.params.get(source)
        if name is None:
            name = self.params[source] = f"x{len(self.params)}"
        return name

    def assign(self, text: str) -> str:
        name = f"v{self._assigned}"
        self._assigned += 1
        self.lines.append(f"{name} = {text}")
        return name

    def items(self, slots: list[Slot]) -> str:
        return ", ".join(self.expr(s) for s in slots)

    def pairs(self, d: DictValue) -> str:
        return ", ".join(
            f"{self.expr(d.keys[k])}: {self.expr(v)}" for k, v in d.items.items()
        )

    # ------------------------------------------------------------------ effects
    def write_back(self, cell: Mutable) -> None:
        """Statements that bring an object from outside up to date."""
        if cell.source is None or cell.real is None:
            return
        writer = WRITERS.get(type(cell))
        if writer is None:
            raise InternalError(f"no write-back for {type(cell).__name__}")
        writer(self, cell)

    def unchanged(self, slot: Slot | None, source: Source) -> bool:
        """Whether a slot still holds what was read from `source`."""
        if slot is None:
            return False
        return slot.source is source


def _cannot_fail(x: LateNumber) -> bool:
    """Whether a draw depends on nothing but the state of its generator."""
    return x.drawn and not isinstance(x, LateTensor) and not any(
        isinstance(a, LateNumber) for a in x.args)  # fmt: skip


def without_grad(x: torch.Tensor) -> torch.Tensor:
    """Compiled code may give the memory of an input as the input itself, or a view of it."""
    return x.detach() if x.requires_grad else x


def residualize(cap: Capture, grad_mode: bool, locals_: list[Source], modes: Calls,
                rest: Rest | None) -> Outcome:  # fmt: skip
    """Graph outputs, the index of the one that is the whole result, else the residual program.

    grad_mode: whether grad mode was on when the frame started. locals_: the frame's arguments.
    modes: calls that set other modes. rest: the frames that go on; None if they have ended.
    """
    r = Residual(cap)
    again = _runs_again(cap)
    head = r.prologue(again)
    gone = [] if again else dropped(cap)
    call = r.graph_call() if head or cap.builder.numbers or again or gone or cap.locks else ""
    head += [f"{r.tensor(x)}.grad = None" for x in gone]  # the graph may need the memory
    r.after_graph()
    for number in cap.builder.may_fail:
        r.expr(number)  # raises what Python raises
    computed = r.lines[:]
    if again:
        r.lines.clear()
    _effects(r, grad_mode)
    if rest is not None:
        result = f"{GO_ON}({PIECE}, {rest.state(r.expr)})"
        for made in to_close(cap):
            r.expr(made)  # it is closed when nothing refers to it any more
        r.consts.update(dict.fromkeys((GO_ON, PIECE)))
    else:
        assert cap.result is not None
        result = r.expr(cap.result)
    _assign_grads(r)
    _assign_attrs(r)
    _deferred(r)
    r.check_finalized()
    for fn, args in modes:
        r.lines.append(f"{r.bind_const(fn)}(*{r.bind_const(args)})")
    call, calling = r.calling(call)
    head += _or_eagerly(r, [*calling, *computed]) if again else calling
    if not head and not r.lines and result == "outs[0]":
        return r.outputs, 0, None
    params = ["outs", *r.params.values()]
    inputs = tuple(r.params)
    if call:
        params.append("*flat")
        inputs += tuple(locals_)
        r.consts.update({CALL: None, EAGER: None})
    body = [*head, *r.lines, f"return {result}"]
    source = f"def finish({', '.join(params)}):\n" + "".join(f"    {line}\n" for line in body)
    return r.outputs, None, Finish(source, inputs, r.consts)


def _runs_again(cap: Capture) -> bool:
    """Whether the frame runs eagerly, from its start, if the graph fails: what handles the
    exception is in the frame, or what the frame had done before must be seen.

    It can, if the graph has written nothing; one that writes says whether it had (Untouched).
    Errors: GraphBreak if it writes, and the frame may catch the exception: a graph that ends before
    the operator that fails leaves it to Python.
    """
    does = (*cap.effects, *cap.globals_written, *cap.class_writes, *cap.generators,
            *(c for c in cap.changed if c.source is not None))  # fmt: skip
    risky = cap.builder.risky or len(cap.builder.may_fail) > 0
    needed = cap.in_block or cap.sizes.data.asks or (
        risky and (cap.handles_risk or len(does) > 0))  # fmt: skip
    if not needed or (cap.builder.n_calls == 0 and not cap.builder.may_fail):
        return False
    if not cap.builder.mutated_inputs():
        return True
    if risky and cap.catches_risk is not None:
        why = "an operator whose error is caught, in a graph that writes an input"
        stop, loc = cap.catches_risk
        raise Stuck("W106", why, loc, stop)
    cap.untouched = cap.builder.risky and _tells(cap)
    return cap.untouched


def _tells(cap: Capture) -> bool:
    """Whether a failed graph knows that it has written to no input: version counters say it, but of
    an operator that fails while it writes, and a GPU's operators do not fail where they are called.
    Whole steps need the memory that a frame that runs again would keep."""
    fakes = [v.fake for _, v, _ in cap.builder.inputs]
    return not (
        any(WRITES in n.meta and is_risky(n) for n in cap.builder.root.nodes)
        or cap.sizes.data.asks or cap.backwards or cap.builder.mode.written
        or any(x.is_inference() or x.device.type != "cpu" for x in fakes)
    )  # fmt: skip


def _or_eagerly(r: Residual, calling: list[str]) -> list[str]:
    """Statements that call the graph; if it fails, the frame runs eagerly instead."""
    kind = r.bind_const(Untouched) if r.cap.untouched else "Exception"
    return ["failed = False", "try:", *("    " + line for line in calling), f"except {kind}:",
            "    failed = True", "if failed:", *r.back(),
            f"    return {EAGER}(None, *flat)"]  # fmt: skip


def _effects(r: Residual, grad_mode: bool) -> None:
    """What the frame changed outside."""
    cap = r.cap
    if any(c.source is not None for c in cap.changed):
        importlib.import_module("torchweld.capture.let_go").check_overwritten(cap)
    for cell in list(cap.changed):
        r.write_back(cell)
    for (_, name), (table, value) in cap.globals_written.items():
        assert value is not None
        r.lines.append(f"{r.bind_const(table)}[{name!r}] = {r.expr(value)}")
    r.lines += class_statements(cap, r.bind_const, r.expr)
    if torch.is_grad_enabled() != grad_mode:
        r.lines.append(f"{r.bind_const(torch._C._set_grad_enabled)}({torch.is_grad_enabled()})")


def _assign_grads(r: Residual) -> None:
    """What the frame assigned to `.grad`: of tensors from outside, and of those that leave it."""
    for x, value in r.cap.grads.values():
        if (x.source is not None or id(x) in r._output_index) and not unchanged(r.cap, x, value):
            r.lines.append(f"{r.tensor(x)}.grad = {r.expr(value)}")


def _assign_attrs(r: Residual) -> None:
    """What the frame has put on tensors from outside, and on those that leave it."""
    waiting, seen = dict(r.cap.tensor_attrs), -1
    while seen != len(waiting):
        seen = len(waiting)
        for key, (x, value) in list(waiting.items()):
            if id(x) in r._inputs or x.source is not None or id(x) in r._output_index:
                del waiting[key]
                r.lines.append(f"{r.tensor(x)}.{key[1]} = {r.expr(value)}")


def _deferred(r: Residual) -> None:
    """Calls that were put off, in order."""
    for fn, args, kwargs in r.cap.effects:
        named = "".join(f", {k}={r.expr(v)}" for k, v in kwargs.items())
        r.lines.append(f"{r.expr(fn)}({r.items(list(args))}{named})".replace("(, ", "("))
