"""Objects in the residual program: how values are made again, or brought up to date."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import importlib
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from torchweld.capture.instances import CALLBACK, TARGET, VarsValue, drop_attr
from torchweld.capture.items import advanced
from torchweld.capture.object_ids import ObjectId
from torchweld.capture.residual_iterators import generator, stuck, waiting
from torchweld.capture.state import refuse
from torchweld.capture.strings import finished
from torchweld.capture.user_keys import UserKey
from torchweld.capture.values.base import (
    ArrayValue,
    BoundValue,
    CellValue,
    Const,
    DictValue,
    FunctionValue,
    GeneratorValue,
    IdKey,
    InstanceValue,
    IteratorValue,
    LateText,
    ListValue,
    Mutable,
    PartialValue,
    SetValue,
    SliceValue,
    Slot,
    TensorValue,
    TupleValue,
    Value,
    ViewValue,
)
from torchweld.capture.values.owned import OwnedValue, PreparedValue, ProxyValue
from torchweld.capture.values.past import Past
from torchweld.capture.values.sequences import DequeValue, GrowingList
from torchweld.capture.wrap import keys_in_order
from torchweld.ir.source import InstanceDict, Item

if TYPE_CHECKING:
    from torchweld.capture.residual import Residual


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
    if not r.cap.private.made:
        return r.assign(f"[{r.items(x.items)}]")
    return _filled(r, x, "[]", lambda: f".extend([{r.items(x.items)}])")


def _filled(r: Residual, x: Value, empty: str, fill: Callable[[], str]) -> str:
    """A container that may hold classes that the frame has made, which may hold it."""
    leads = importlib.import_module("torchweld.capture.remade").leads_to_open
    name = r.names[id(x)] = r.assign(empty)
    r._kept.append(x)

    def put() -> None:
        text = fill()  # whose statements come first
        r.lines.append(name + text)

    if leads(r, x):
        r.when_remade(put)
    else:
        put()
    return name


def _deque(r: Residual, x: DequeValue) -> str:
    kind = r.bind_const(collections.deque)
    return r.assign(f"{kind}([{r.items(x.items)}], {x.maxlen})")


def _dict(r: Residual, x: DictValue) -> str:
    if isinstance(x, VarsValue) and not (r.goes_on and r.cap.private.has(x.of.klass)):
        return r.assign(f"{r.expr(x.of)}.__dict__")
    if x.kind is dict and r.cap.private.made:
        return _filled(r, x, "{}", lambda: ".update({" + r.pairs(x) + "})")
    text = "{" + r.pairs(x) + "}"
    if x.kind is dict:
        return r.assign(text)
    kind = r.bind_const(x.kind)
    if x.kind is collections.defaultdict:
        return r.assign(f"{kind}({r.expr(x.factory)}, {text})")
    name = r.names[id(x)] = r.assign(f"{kind}({text})")
    r.lines += [f"{name}.{key} = {r.expr(value)}" for key, value in x.attrs.items()]
    return name


def _set(r: Residual, x: SetValue) -> str:
    """Errors: GraphBreak if the frame goes on with a set that is gone through in another order."""
    if x.twin is not None and x.real is None and len(x.items) > 1:
        order = list(x.twin)
        if list(_inserted(x)) != order:
            past = x.past if x.past is not None and _is_plain(x.past, x) else None
            if past is not None and list(_remade(past, x.kind)) == order:
                made = f"{r.bind_const(past.made)}()"
                return r.assign(made if x.kind is set else f"{r.bind_const(x.kind)}({made})")
            if r.cap.stop:
                raise refuse("W107", "a set whose order cannot be made again", r.cap.loc())
    body = r.items(list(x.items.values()))
    text = "{" + body + "}" if x.items else "set()"
    return r.assign(text if x.kind is set else f"{r.bind_const(x.kind)}({text})")


def _remade(past: Past, kind: type) -> Any:
    """A set as the frame makes it again: a copy may be gone through in another order."""
    return past.made() if kind is set else kind(past.made())


def _inserted(x: SetValue) -> set[object]:
    """The keys in the order of a set that gets them one after the other."""
    made: set[object] = set()
    for key in x.items:
        made.add(key)
    return made


def _is_plain(past: Past, x: SetValue) -> bool:
    """Whether a past is about the elements themselves, which are no objects of the frame."""
    return all(map(_is_itself, x.items.values())) and not any(
        isinstance(key, IdKey | UserKey) for key in past.elements())  # fmt: skip


def _is_itself(x: Slot) -> bool:
    """Whether a set files a value under what it is."""
    return isinstance(x, Const) or (
        isinstance(x, TupleValue) and x.kind is tuple and all(map(_is_itself, x.items)))


def _slice(r: Residual, x: SliceValue) -> str:
    return r.assign(f"slice({r.items(list(x.parts))})")


def _bound(r: Residual, x: BoundValue) -> str:
    func, self_ = r.expr(x.func), r.expr(x.self_)
    if isinstance(x.func, Const) and not isinstance(x.func.obj, types.FunctionType):
        name = getattr(x.func.obj, "__name__", None)
        if name is None:
            raise refuse("W107", "a bound method leaves the frame", r.cap.loc())
        # a number needs the brackets: 1.real is none
        return r.assign(f"({self_}).{name}" if isinstance(x.self_, Const) else f"{self_}.{name}")
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
    _fill(r, name, x)
    return name


def _fill(r: Residual, name: str, cell: CellValue) -> None:
    """Put into a real cell what the frame's holds, once all that it may hold exists."""
    contents = cell.contents

    def put() -> None:
        assert contents is not None
        text = r.expr(contents)  # whose statements come first
        r.lines.append(f"{name}.cell_contents = {text}")

    if contents is not None:
        r.when_remade(put)


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
        _fill(r, r.names[id(cell)], cell)
    r.lines.append(f"{name}.__qualname__ = {x.qualname!r}")
    if x.kwdefaults:
        named = ", ".join(f"{k!r}: {r.expr(v)}" for k, v in x.kwdefaults.items())
        r.lines.append(f"{name}.__kwdefaults__ = {{{named}}}")
    for key, value in x.attrs.items():
        r.lines.append(f"{name}.{key} = {r.expr(value)}")
    return name


def _weak(r: Residual, x: InstanceValue, kind: str) -> str:
    """A weak reference; what the frame alone held is gone when the frame is."""
    given = [TARGET, CALLBACK, "key"] if x.klass is weakref.KeyedRef else [TARGET, CALLBACK]
    if x.klass not in (weakref.ref, weakref.KeyedRef):
        raise stuck(r.cap, x)
    args = [v for v in (x.attrs.get(n) for n in given) if v is not None]
    return r.assign(f"{kind}({r.items(list(args))})")


_FROM_ARGS = ("args", "message", "exceptions")  # the last two: of an exception group


def _instance(r: Residual, x: InstanceValue) -> str:
    if x.klass in (torch._C._InferenceMode, contextvars.Token, types.TracebackType):
        raise stuck(r.cap, x)
    kind = r.bind_const(x.klass)
    if issubclass(x.klass, weakref.ref):
        return _weak(r, x, kind)
    if issubclass(x.klass, BaseException):
        args = r.expr(x.attrs.get("args") or TupleValue([]))
        made: str = r.assign(f"{kind}(*{args})")
        r.names[id(x)] = made
        for attr, value in x.attrs.items():
            if attr not in _FROM_ARGS and value is not None:
                r.lines.append(f"{made}.{attr} = {r.expr(value)}")
        return made
    box = x.payload
    if isinstance(box, Const):
        name = r.assign(f"{r.bind_const(box.cls().__new__)}({kind}, {r.expr(box)})")
    elif isinstance(box, SetValue) and box.kind is frozenset:
        name = r.assign(f"{r.bind_const(frozenset.__new__)}({kind}, {r.expr(box)})")
    elif isinstance(box, TupleValue):
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
    elif isinstance(box, SetValue) and box.kind is set:
        r.lines.append(f"{r.bind_const(set.update)}({name}, {_set(r, box)})")
    attrs = {k: v for k, v in x.attrs.items() if v is not None}
    r.when_remade(lambda: _set_attrs(r, x, name, attrs))
    return name


def _owned(r: Residual, x: OwnedValue) -> str:
    given = ", ".join(r.bind_const(a) for a in x.args)
    name: str = r.assign(f"{r.bind_const(x.make)}({given})")
    for fn, args, named in x.log:
        r.lines.append(f"{r.bind_const(again)}({r.bind_const(fn)}, {name}, {r.bind_const(args)}, "
                       f"{r.bind_const(named)})")  # fmt: skip
    return name


def _prepared(r: Residual, x: PreparedValue) -> str:
    return r.names[id(x.late)]


def again(fn: Any, x: Any, args: list[Any], named: dict[str, Any]) -> None:
    """Do again what was done to an object; what it raises was handled."""
    with contextlib.suppress(Exception):
        fn(x, *args, **named)


def _proxy(r: Residual, x: ProxyValue) -> str:
    assert x.payload is not None
    return r.assign(f"{r.bind_const(types.MappingProxyType)}({r.expr(x.payload)})")


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


def _late_text(r: Residual, x: LateText) -> str:
    return r.assign(f"{r.bind_const(finished)}(({r.items(list(x.parts))},))")


def _object_id(r: Residual, x: ObjectId) -> str:
    return r.assign(f"{r.bind_const(id)}({r.expr(x.of)})")


BUILDERS: dict[type, Any] = {
    TupleValue: _tuple, ListValue: _list, DequeValue: _deque, DictValue: _dict, VarsValue: _dict,
    SetValue: _set, SliceValue: _slice, BoundValue: _bound, PartialValue: _partial,
    ViewValue: _view, CellValue: _cell, FunctionValue: _function, InstanceValue: _instance,
    OwnedValue: _owned, ProxyValue: _proxy, IteratorValue: _iterator, GeneratorValue: generator,
    ArrayValue: _array, LateText: _late_text, ObjectId: _object_id, PreparedValue: _prepared,
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


def _write_deque(r: Residual, x: DequeValue) -> None:
    assert x.source is not None
    target, extend = r.param(x.source), r.bind_const(collections.deque.extend)
    items = f"[{r.items(x.tail)}]"
    if x.open is None:
        r.lines.append(f"{r.bind_const(collections.deque.clear)}({target})")
    r.lines.append(f"{extend}({target}, {items})")


def _reordered(x: DictValue, old: dict[object, object]) -> bool:
    """Whether the keys of a dict are not the old ones, in their order, and then the new ones."""
    new = [k for k in x.items if k not in old]
    return [k for k in old if k in x.items] + new != list(x.items)


def _write_dict(r: Residual, x: DictValue) -> None:
    assert isinstance(x.real, dict)
    assert x.source is not None
    target = r.param(x.source)
    base = x.kind if x.kind in (dict, collections.OrderedDict, collections.defaultdict) else (
        collections.OrderedDict if issubclass(x.kind, collections.OrderedDict) else dict
    )
    put, drop = r.bind_const(base.__setitem__), r.bind_const(base.__delitem__)
    old = {k: k for k in keys_in_order(x.real)}
    users = any(isinstance(k, UserKey) for k in (*x.items, *x.absent))
    if x.complete and (users or _reordered(x, old)):
        values = [(r.expr(x.keys[k]), r.expr(v)) for k, v in x.items.items()]
        r.lines.append(f"{r.bind_const(base.clear)}({target})")
        r.lines += [f"{put}({target}, {k}, {v})" for k, v in values]
        return
    gone = [k for k in old if k not in x.items and (x.complete or k in x.absent)]
    for key in gone:
        r.lines.append(f"{drop}({target}, {r.const(Const(old[key]))})")
    for key, slot in x.items.items():
        if key in old and r.unchanged(slot, Item.make(x.source, old[key], False)):
            continue
        r.lines.append(f"{put}({target}, {r.expr(x.keys[key])}, {r.expr(slot)})")


def _write_set(r: Residual, x: SetValue) -> None:
    assert x.source is not None
    target = r.param(x.source)
    if x.past is not None and _is_plain(x.past, x):
        r.lines.append(f"{r.bind_const(x.past.repeated)}({target})")
        return
    body = r.items(list(x.items.values()))
    r.lines.append(f"{r.bind_const(set.clear)}({target})")
    if body:
        r.lines.append(f"{r.bind_const(set.update)}({target}, ({body},))")


def _write_instance(r: Residual, x: InstanceValue) -> None:
    assert x.source is not None
    target = r.param(x.source)
    setting: dict[str, Value] = {}
    for name in x.written:
        value = x.attrs.get(name)
        own = Item.make(InstanceDict.make(x.source), name, False)
        if value is None:
            r.lines.append(f"{r.bind_const(drop_attr)}({target}, {name!r})")
        elif not (isinstance(value, Mutable | TensorValue) and r.unchanged(value, own)):
            setting[name] = value
    _set_attrs(r, x, target, setting)


def _write_iterator(r: Residual, x: IteratorValue) -> None:
    assert x.source is not None
    advanced(r, r.param(x.source), x.taken)


def _write_generator(r: Residual, x: GeneratorValue) -> None:
    assert x.source is not None
    r.lines.append(f"{r.param(x.source)}.move({waiting(r, x)})")


def _write_cell(r: Residual, x: CellValue) -> None:
    assert x.source is not None
    target = r.param(x.source)
    if x.contents is None:
        r.lines.append(f"del {target}.cell_contents")
    else:
        r.lines.append(f"{target}.cell_contents = {r.expr(x.contents)}")


WRITERS: dict[type, Any] = {
    ListValue: _write_list, GrowingList: _write_list, DequeValue: _write_deque,
    DictValue: _write_dict, SetValue: _write_set,
    InstanceValue: _write_instance, CellValue: _write_cell, IteratorValue: _write_iterator,
    GeneratorValue: _write_generator,
}  # fmt: skip
