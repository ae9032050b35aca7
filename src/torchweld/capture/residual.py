"""The residual program: Python source that brings the world to the state after the frame.

It runs after the graph: writes changed objects back, performs deferred effects in order, builds the
return value. Objects that several values share are built once, so identity and aliasing hold.
"""

from __future__ import annotations

import collections
import math
import types
import weakref
from typing import Any

import torch

from torchweld.base.errors import InternalError
from torchweld.capture.class_writes import class_statements
from torchweld.capture.grads import dropped, is_spent, spent, unchanged, without_graph
from torchweld.capture.instances import TARGET
from torchweld.capture.items import advanced
from torchweld.capture.late import TYPE_VARIES, LateNumber
from torchweld.capture.modes import around, copied, memory
from torchweld.capture.modes_kept import Calls
from torchweld.capture.numbers import value_read
from torchweld.capture.residual_iterators import generator, stuck
from torchweld.capture.session import Capture
from torchweld.capture.state import refuse
from torchweld.capture.suspend import GO_ON, PIECE, Rest
from torchweld.capture.values.base import (
    ArrayValue,
    BoundValue,
    CellValue,
    Const,
    DequeValue,
    DictValue,
    FunctionValue,
    GeneratorValue,
    GrowingList,
    InstanceValue,
    IteratorValue,
    Lazy,
    ListValue,
    Loose,
    Mutable,
    PartialValue,
    SetValue,
    SizeValue,
    SliceValue,
    Slot,
    TensorValue,
    TupleValue,
    Value,
    ViewValue,
)
from torchweld.capture.values.number import GraphNumber
from torchweld.capture.values.unread import UnreadTensor
from torchweld.capture.wrap import keys_in_order
from torchweld.ir.region import Finish
from torchweld.ir.source import InstanceDict, Item, Source

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
        self.params: dict[Source, str] = {}
        self.consts: dict[str, object] = {}
        self.names: dict[int, str] = {}
        self.outputs: list[TensorValue] = []
        self._output_index: dict[int, int] = {}
        self._const_names: dict[int, str] = {}
        self._open: set[int] = set()
        self._kept: list[object] = []
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
            case GraphNumber():
                return self.number(slot)
            case SizeValue():
                return self.cap.sizes.text(slot.number.node.value, self.param, self.bind_const)
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
        builder = _BUILDERS.get(type(slot))
        if builder is None:
            raise stuck(self.cap, slot)
        name: str = builder(self, slot)
        self._open.discard(id(slot))
        self.names[id(slot)] = name
        self._kept.append(slot)
        return name

    def tensor(self, x: TensorValue) -> str:
        unread = isinstance(x, UnreadTensor) and x.found is None
        source = x.source if unread else self._inputs.get(id(x))
        if source is not None:
            return self.param(source)
        if id(x) in self.names:
            return self.names[id(x)]
        if x.node.graph is not self.cap.builder.root:
            raise self.cap.builder.left_body(x)
        at = self._output_index.get(id(x))
        if at is None:
            at = self._output_index[id(x)] = len(self.outputs)
            self.outputs.append(x)
        if self.cap.backwards and x.fake.requires_grad and is_spent(self.cap, x.fake):
            self.outputs[at] = without_graph(self.cap, x)
            name = self.names[id(x)] = self.assign(f"{self.bind_const(spent)}(outs[{at}])")
            return name
        if not x.fake.requires_grad and memory(x) in self._with_grad:
            return f"{self.bind_const(without_grad)}(outs[{at}])"
        return f"outs[{at}]"

    def late(self, x: LateNumber) -> str:
        """Numbers that are computed have their names from `prologue`."""
        return self.param(x.source) if x.source is not None else self.names[id(x)]

    def number(self, x: GraphNumber) -> str:
        """A number of the graph's that the frame hands out is computed as Python computes it."""
        name = self.names.get(id(x))
        if name is None:
            name = self.names[id(x)] = self.assign(
                f"{self.tensor(value_read(self.cap, x))}.item()" if x.fn is None else
                f"{self.bind_const(x.fn)}({', '.join(map(self.expr, x.args))})")  # fmt: skip
            self._kept.append(x)
        return name

    def prologue(self) -> list[str]:
        """Statements that compute the late numbers, or leave to the eager function."""
        body = []
        for i, x in enumerate(self.cap.late.computed):
            args = ", ".join(self.late(a) if isinstance(a, LateNumber) else self.expr(a)
                             for a in x.args)  # fmt: skip
            name = self.names[id(x)] = f"n{i}"
            body.append(f"{name} = {self.bind_const(x.fn)}({args})")
            if x.fn in TYPE_VARIES:
                kind = self.bind_const(type(x.now))
                body.append(f"if type({name}) is not {kind}: raise TypeError")
        if not body:
            return []
        return ["try:", *("    " + line for line in body),
                "except Exception:", f"    return {EAGER}(None, *flat)"]  # fmt: skip

    def graph_call(self) -> str:
        places = (self.late(p) if isinstance(p, LateNumber) else self.param(p)
                  for p in self.cap.builder.places)  # fmt: skip
        return f"outs = {CALL}({', '.join(places)})"

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
            raise refuse("W106", _PRIVATE, self.cap.loc())
        name = self._const_names.get(id(obj))
        if name is None:
            name = self._const_names[id(obj)] = f"c{len(self.consts)}"
            self.consts[name] = obj
        return name

    def param(self, source: Source) -> str:
        if self.cap.private.owns(source):
            raise refuse("W106", _PRIVATE, self.cap.loc())
        name = self.params.get(source)
        if name is None:
            name = self.params[source] = f"x{len(self.params)}"
        return name

    def assign(self, text: str) -> str:
        name = f"v{len(self.lines)}"
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
        writer = _WRITERS.get(type(cell))
        if writer is None:
            raise InternalError(f"no write-back for {type(cell).__name__}")
        writer(self, cell)

    def unchanged(self, slot: Slot | None, source: Source) -> bool:
        """Whether a slot still holds what was read from `source`."""
        if slot is None:
            return False
        return slot.source is source


def without_grad(x: torch.Tensor) -> torch.Tensor:
    """Compiled code may give the memory of an input as the input itself, or a view of it."""
    return x.detach() if x.requires_grad else x


# ------------------------------------------------------------------- new objects
def _tuple(r: Residual, x: TupleValue) -> str:
    body = r.items(x.items)
    text = f"({body},)" if x.items else "()"
    if x.kind is tuple:
        return r.assign(text)
    kind = r.bind_const(x.kind)
    if x.kind is torch.Size or not hasattr(x.kind, "_fields"):
        return r.assign(f"{kind}({text})")
    return r.assign(f"{r.bind_const(tuple.__new__)}({kind}, {text})")


def _list(r: Residual, x: ListValue) -> str:
    return r.assign(f"[{r.items(x.items)}]")


def _deque(r: Residual, x: DequeValue) -> str:
    return r.assign(f"{r.bind_const(collections.deque)}([{r.items(x.items)}], {x.maxlen})")


def _dict(r: Residual, x: DictValue) -> str:
    if type(x) is not DictValue:
        raise refuse("W107", "vars() of an object leaves the frame", r.cap.loc())
    text = "{" + r.pairs(x) + "}"
    if x.kind is dict:
        return r.assign(text)
    kind = r.bind_const(x.kind)
    if x.kind is collections.defaultdict:
        return r.assign(f"{kind}({r.expr(x.factory)}, {text})")
    return r.assign(f"{kind}({text})")


def _set(r: Residual, x: SetValue) -> str:
    """Errors: GraphBreak if the frame goes on with a set that is gone through in another order."""
    if r.cap.stop and x.twin is not None and x.real is None and len(x.items) > 1:
        again: set[object] = set()
        for key in x.items:
            again.add(key)
        if list(again) != list(x.twin):
            raise refuse("W107", "a set whose order cannot be made again", r.cap.loc())
    body = r.items(list(x.items.values()))
    text = "{" + body + "}" if x.items else "set()"
    return r.assign(text if x.kind is set else f"{r.bind_const(x.kind)}({text})")


def _slice(r: Residual, x: SliceValue) -> str:
    return r.assign(f"slice({r.items(list(x.parts))})")


def _bound(r: Residual, x: BoundValue) -> str:
    func, self_ = r.expr(x.func), r.expr(x.self_)
    if isinstance(x.func, Const) and not isinstance(x.func.obj, types.FunctionType):
        name = getattr(x.func.obj, "__name__", None)
        if name is None:
            raise refuse("W107", "a bound method leaves the frame", r.cap.loc())
        return r.assign(f"{self_}.{name}")
    return r.assign(f"{r.bind_const(types.MethodType)}({func}, {self_})")


def _partial(r: Residual, x: PartialValue) -> str:
    named = "".join(f", {k}={r.expr(v)}" for k, v in x.kwargs.items())
    args = "".join(f", {r.expr(a)}" for a in x.args)
    return r.assign(f"{r.bind_const(x.kind)}({r.expr(x.func)}{args}{named})")


def _view(r: Residual, x: ViewValue) -> str:
    return r.assign(f"{r.expr(x.of)}.{x.what}()")


def _array(r: Residual, x: ArrayValue) -> str:
    return r.assign(f"{r.expr(x.tensor)}.numpy(){'[()]' * x.scalar}")


def _cell(r: Residual, x: CellValue) -> str:
    """Filled when it exists, since what is in it may refer to it."""
    name = r.names[id(x)] = r.assign(f"{r.bind_const(types.CellType)}()")
    r._kept.append(x)
    if x.contents is not None:
        r.lines.append(f"{name}.cell_contents = {r.expr(x.contents)}")
    return name


def _iterator(r: Residual, x: IteratorValue) -> str:
    if x.remake is None:
        raise stuck(r.cap, x)
    return x.remake(r)


def _function(r: Residual, x: FunctionValue) -> str:
    """Cells may refer to the function itself, so they are filled after it exists."""
    cells = []
    late = []
    for cell in x.closure:
        if cell.source is None and id(cell) not in r.names:
            r.names[id(cell)] = r.assign(f"{r.bind_const(types.CellType)}()")
            r._kept.append(cell)
            late.append(cell)
        cells.append(r.expr(cell))
    defaults = f"({r.items(list(x.defaults))},)" if x.defaults else "None"
    closure = f"({', '.join(cells)},)" if cells else "None"
    name = r.assign(f"{r.bind_const(types.FunctionType)}({r.bind_const(x.code)}, "
                    f"{r.expr(x.globals)}, {x.name!r}, {defaults}, {closure})")  # fmt: skip
    r.names[id(x)] = name
    for cell in late:
        if cell.contents is not None:
            r.lines.append(f"{r.names[id(cell)]}.cell_contents = {r.expr(cell.contents)}")
    r.lines.append(f"{name}.__qualname__ = {x.qualname!r}")
    if x.kwdefaults:
        named = ", ".join(f"{k!r}: {r.expr(v)}" for k, v in x.kwdefaults.items())
        r.lines.append(f"{name}.__kwdefaults__ = {{{named}}}")
    for key, value in x.attrs.items():
        r.lines.append(f"{name}.{key} = {r.expr(value)}")
    return name


def _instance(r: Residual, x: InstanceValue) -> str:
    if x.klass is torch._C._InferenceMode:
        raise stuck(r.cap, x)
    kind = r.bind_const(x.klass)
    if x.klass is weakref.ref:
        return r.assign(f"{kind}({r.expr(x.attrs[TARGET])})")  # type: ignore[arg-type]
    if issubclass(x.klass, BaseException):
        args = r.expr(x.attrs.get("args") or TupleValue([]))
        made: str = r.assign(f"{kind}(*{args})")
        r.names[id(x)] = made
        for attr, value in x.attrs.items():
            if attr != "args" and value is not None:
                r.lines.append(f"{made}.{attr} = {r.expr(value)}")
        return made
    box = x.payload
    if isinstance(box, TupleValue):
        name = r.assign(f"{r.bind_const(tuple.__new__)}({kind}, ({r.items(box.items)},))")
    else:
        base = _made_by(x.klass) if box is None else box.cls()
        name = r.assign(f"{r.bind_const(base.__new__)}({kind})")
    r.names[id(x)] = name
    if isinstance(box, DictValue):
        kind_of_box: Any = box.kind
        put = r.bind_const(kind_of_box.__setitem__)
        for key, slot in box.items.items():
            r.lines.append(f"{put}({name}, {r.expr(box.keys[key])}, {r.expr(slot)})")
    elif isinstance(box, ListValue):
        r.lines.append(f"{r.bind_const(list.extend)}({name}, [{r.items(box.items)}])")
    _set_attrs(r, x, name, {k: v for k, v in x.attrs.items() if v is not None})
    return name


def _made_by(kind: type) -> type:
    return kind if kind is types.SimpleNamespace else object


def _set_attrs(r: Residual, x: InstanceValue, name: str, attrs: dict[str, Value]) -> None:
    slots = {s for k in x.klass.__mro__ for s, d in vars(k).items()
             if isinstance(d, types.MemberDescriptorType)}  # fmt: skip
    plain = {k: v for k, v in attrs.items() if k not in slots}
    if plain:
        table = r.assign(f"{name}.__dict__")
        for key, value in plain.items():
            r.lines.append(f"{table}[{key!r}] = {r.expr(value)}")
    for key in attrs.keys() - plain.keys():
        setter = r.bind_const(object.__setattr__)
        r.lines.append(f"{setter}({name}, {key!r}, {r.expr(attrs[key])})")


_BUILDERS: dict[type, Any] = {
    TupleValue: _tuple, ListValue: _list, DequeValue: _deque, DictValue: _dict,
    SetValue: _set, SliceValue: _slice, BoundValue: _bound, PartialValue: _partial,
    ViewValue: _view, CellValue: _cell, FunctionValue: _function, InstanceValue: _instance,
    IteratorValue: _iterator, GeneratorValue: generator, ArrayValue: _array,
}  # fmt: skip


# --------------------------------------------------------------- changed objects
def _write_list(r: Residual, x: ListValue) -> None:
    assert isinstance(x.real, list)
    assert x.source is not None
    target = r.param(x.source)
    if isinstance(x, GrowingList) and x.open is not None:
        r.lines.append(f"{r.bind_const(list.extend)}({target}, [{r.items(x.tail)}])")
        return
    old = len(x.real)
    kept = len(x.items) >= old and all(
        r.unchanged(x.items[i], Item.make(x.source, i, True)) for i in range(old)
    )
    if kept:
        if len(x.items) > old:
            r.lines.append(f"{r.bind_const(list.extend)}({target}, [{r.items(x.items[old:])}])")
        return
    r.lines.append(f"{r.bind_const(list.__setitem__)}({target}, {r.bind_const(slice(None))}, "
                   f"[{r.items(x.items)}])")  # fmt: skip


def _write_dict(r: Residual, x: DictValue) -> None:
    assert isinstance(x.real, dict)
    assert x.source is not None
    target = r.param(x.source)
    base = x.kind if x.kind in (dict, collections.OrderedDict, collections.defaultdict) else (
        collections.OrderedDict if issubclass(x.kind, collections.OrderedDict) else dict
    )
    put, drop = r.bind_const(base.__setitem__), r.bind_const(base.__delitem__)
    old = {k: k for k in keys_in_order(x.real)}
    gone = [k for k in old if k not in x.items and (x.complete or k in x.absent)]
    if x.complete and [k for k in old if k in x.items] + [k for k in x.items if k not in old] != \
            list(x.items):  # fmt: skip
        values = [(r.expr(x.keys[k]), r.expr(v)) for k, v in x.items.items()]
        r.lines.append(f"{r.bind_const(base.clear)}({target})")
        r.lines += [f"{put}({target}, {k}, {v})" for k, v in values]
        return
    for key in gone:
        r.lines.append(f"{drop}({target}, {r.const(Const(old[key]))})")
    for key, slot in x.items.items():
        if key in old and r.unchanged(slot, Item.make(x.source, old[key], False)):
            continue
        r.lines.append(f"{put}({target}, {r.expr(x.keys[key])}, {r.expr(slot)})")


def _write_set(r: Residual, x: SetValue) -> None:
    assert x.source is not None
    target = r.param(x.source)
    body = r.items(list(x.items.values()))
    r.lines.append(f"{target}.clear()")
    if body:
        r.lines.append(f"{target}.update(({body},))")


def _write_instance(r: Residual, x: InstanceValue) -> None:
    assert x.source is not None
    target = r.param(x.source)
    setting: dict[str, Value] = {}
    for name in x.written:
        value = x.attrs.get(name)
        own = Item.make(InstanceDict.make(x.source), name, False)
        if value is None:
            if name in getattr(x.real, "__dict__", {}):
                r.lines.append(f"del {target}.__dict__[{name!r}]")
            elif hasattr(x.klass, name):
                r.lines.append(f"{r.bind_const(object.__delattr__)}({target}, {name!r})")
        elif not (isinstance(value, Mutable | TensorValue) and r.unchanged(value, own)):
            setting[name] = value
    _set_attrs(r, x, target, setting)


def _write_iterator(r: Residual, x: IteratorValue) -> None:
    assert x.source is not None
    advanced(r, r.param(x.source), x.taken)


def _write_cell(r: Residual, x: CellValue) -> None:
    assert x.source is not None
    target = r.param(x.source)
    if x.contents is None:
        r.lines.append(f"del {target}.cell_contents")
    else:
        r.lines.append(f"{target}.cell_contents = {r.expr(x.contents)}")


_WRITERS: dict[type, Any] = {
    ListValue: _write_list, GrowingList: _write_list, DictValue: _write_dict, SetValue: _write_set,
    InstanceValue: _write_instance, CellValue: _write_cell, IteratorValue: _write_iterator,
}  # fmt: skip


def residualize(cap: Capture, grad_mode: bool, locals_: list[Source], modes: Calls,
                rest: Rest | None) -> Outcome:  # fmt: skip
    """Graph outputs, the index of the one that is the whole result, else the residual program.

    grad_mode: whether grad mode was on when the frame started. locals_: the frame's arguments.
    modes: calls that set other modes. rest: the frames that go on; None if they have ended.
    """
    r = Residual(cap)
    head = r.prologue()
    again = _runs_again(cap)
    gone = [] if again else dropped(cap)
    call = r.graph_call() if head or cap.builder.numbers or again or gone or cap.locks else ""
    head += [f"{r.tensor(x)}.grad = None" for x in gone]  # the graph may need the memory
    _effects(r, grad_mode)
    if rest is not None:
        result = f"{GO_ON}({PIECE}, {rest.state(r.expr)})"
        r.consts.update(dict.fromkeys((GO_ON, PIECE)))
    else:
        assert cap.result is not None
        result = r.expr(cap.result)
    _assign_grads(r)
    _deferred(r)
    for fn, args in modes:
        r.lines.append(f"{r.bind_const(fn)}(*{r.bind_const(args)})")
    call, calling = r.calling(call)
    head += _or_eagerly(calling) if again else calling
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

    It can, if the graph has written nothing.
    """
    does = (*cap.effects, *cap.globals_written, *cap.class_writes,
            *(c for c in cap.changed if c.source is not None))  # fmt: skip
    needed = cap.in_block or (cap.builder.risky and (cap.handles_risk or len(does) > 0))
    return needed and cap.builder.n_calls > 0 and not cap.builder.mutated_inputs()


def _or_eagerly(calling: list[str]) -> list[str]:
    """Statements that call the graph; if it fails, the frame runs eagerly instead."""
    return ["failed = False", "try:", *("    " + line for line in calling), "except Exception:",
            "    failed = True", "if failed:", f"    return {EAGER}(None, *flat)"]  # fmt: skip


def _effects(r: Residual, grad_mode: bool) -> None:
    """What the frame changed outside."""
    cap = r.cap
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


def _deferred(r: Residual) -> None:
    """Calls that were put off, in order."""
    for fn, args, kwargs in r.cap.effects:
        named = "".join(f", {k}={r.expr(v)}" for k, v in kwargs.items())
        r.lines.append(f"{r.expr(fn)}({r.items(list(args))}{named})".replace("(, ", "("))
