"""Attributes of functions, methods, partials, tuples, slices and super() of the frame."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence

from torchweld.capture.attrs import bind_raw, builtin_attr, get_attr, watch_class
from torchweld.capture.class_writes import known_attr
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised
from torchweld.capture.tables import GETATTR
from torchweld.capture.values.base import (
    NONE,
    BoundValue,
    CellValue,
    Const,
    DictValue,
    FunctionValue,
    PartialValue,
    SliceValue,
    Slot,
    SuperValue,
    TupleValue,
    Value,
    constant,
)
from torchweld.capture.values.number import RangeValue
from torchweld.capture.values.sequences import UnreadTuple


def _super_attr(cap: Capture, obj: SuperValue, name: str, cont: Cont | None) -> None:
    start = obj.self_
    real = start.obj if isinstance(start, Const) and isinstance(start.obj, type) else None
    if real is not None and not issubclass(real, obj.klass):
        real = None  # a method of a metaclass: the class is the instance
    kind: type = real if real is not None else start.cls()
    mro = kind.__mro__
    known = known_attr(cap, mro[mro.index(obj.klass) + 1 :], name, start if real is None else None)
    if known is not None:
        watch_class(cap, kind)
        cap.deliver(known, cont)
        return
    for base in mro[mro.index(obj.klass) + 1 :]:
        if name in base.__dict__:
            raw = base.__dict__[name]
            watch_class(cap, kind)
            if real is not None and isinstance(raw, types.FunctionType):
                cap.deliver(Const(raw), cont)
            elif isinstance(raw, staticmethod) or (name == "__new__"):
                inner = raw.__func__ if isinstance(raw, staticmethod) else raw
                cap.deliver(Const(inner), cont)
            elif isinstance(raw, classmethod):
                cap.deliver(BoundValue(Const(raw.__func__), Const(kind)), cont)
            elif isinstance(raw, types.ClassMethodDescriptorType):
                cap.deliver(BoundValue(Const(raw), Const(kind)), cont)
            else:
                bind_raw(cap, start, raw, name, base, cont)
            return
    raise raised(AttributeError, f"'super' object has no attribute '{name}'")


def _functionvalue_attr(cap: Capture, obj: FunctionValue, name: str, cont: Cont | None) -> None:
    if name in obj.attrs:
        cap.deliver(obj.attrs[name], cont)
    elif name in ("__name__", "__qualname__"):
        cap.deliver(Const(obj.name if name == "__name__" else obj.qualname), cont)
    elif name == "__code__":
        cap.deliver(Const(obj.code), cont)
    elif name == "__module__":
        assert isinstance(obj.globals, Const)
        cap.deliver(Const(obj.globals.obj.get("__name__")), cont)  # type: ignore[attr-defined]
    elif name == "__globals__":
        table = constant(obj.globals)
        cap.deliver(cap.wrap(table, cap.pin(table, "globals")), cont)
    elif name == "__doc__":
        cells = tuple(types.CellType() for _ in obj.code.co_freevars)
        cap.deliver(Const(types.FunctionType(obj.code, {}, closure=cells).__doc__), cont)
    elif name == "__dict__":
        out = DictValue(dict)
        for key, value in obj.attrs.items():
            if not key.startswith("__") or key == "__wrapped__":
                out.items[key] = value
                out.keys[key] = Const(key)
        cap.deliver(out, cont)
    elif name == "__annotations__":
        obj.attrs[name] = DictValue(dict)
        cap.deliver(obj.attrs[name], cont)
    elif name == "__get__":
        cap.deliver(BoundValue(Const(types.FunctionType.__get__), obj), cont)
    elif name in _PARTS:
        cap.deliver(_PARTS[name](obj), cont)
    else:
        raise raised(AttributeError, f"'function' object has no attribute '{name}'")


def _tuple_or_none(items: Sequence[Slot]) -> Value:
    return TupleValue(list(items)) if items else NONE


def _kwdefaults(fn: FunctionValue) -> Value:
    out = DictValue(dict)
    for key, value in fn.kwdefaults.items():
        out.items[key] = value
        out.keys[key] = Const(key)
    return out if fn.kwdefaults else NONE


_PARTS: dict[str, Callable[[FunctionValue], Value]] = {
    "__closure__": lambda fn: _tuple_or_none(fn.closure),
    "__defaults__": lambda fn: _tuple_or_none(fn.defaults),
    "__kwdefaults__": _kwdefaults,
}
if hasattr(types.FunctionType, "__type_params__"):  # those that are set are in `attrs`
    _PARTS["__type_params__"] = lambda fn: TupleValue([])


def _cell_attr(cap: Capture, obj: CellValue, name: str, cont: Cont | None) -> None:
    if name != "cell_contents":
        builtin_attr(cap, obj, name, cont)
        return
    if obj.contents is None:
        raise raised(ValueError, "Cell is empty")
    obj.contents = value = cap.force(obj.contents)
    cap.deliver(value, cont)


def _bound_attr(cap: Capture, obj: BoundValue, name: str, cont: Cont | None) -> None:
    if name == "__self__":
        cap.deliver(obj.self_, cont)
    elif name == "__func__":
        cap.deliver(obj.func, cont)
    else:
        get_attr(cap, obj.func, name, cont)


def _partial_attr(cap: Capture, obj: PartialValue, name: str, cont: Cont | None) -> None:
    if name == "func":
        cap.deliver(obj.func, cont)
    elif name == "args":
        cap.deliver(TupleValue(list(obj.args)), cont)
    elif name == "keywords":
        out = DictValue(dict)
        for key, value in obj.kwargs.items():
            out.items[key] = value
            out.keys[key] = Const(key)
        cap.deliver(out, cont)
    else:
        raise raised(AttributeError, f"'functools.partial' object has no attribute '{name}'")


def _tuple_attr(cap: Capture, obj: TupleValue, name: str, cont: Cont | None) -> None:
    fields = getattr(obj.kind, "_fields", ())
    if name in fields:
        i = fields.index(name)
        value = obj.items[i] = cap.force(obj.items[i])
        cap.deliver(value, cont)
        return
    n_struct = getattr(obj.kind, "n_sequence_fields", 0)
    if n_struct:  # torch.return_types
        for i, field in enumerate(str(f) for f in _struct_fields(obj.kind)):
            if field == name:
                cap.deliver(cap.force(obj.items[i]), cont)
                return
    builtin_attr(cap, obj, name, cont)


def _struct_fields(kind: type) -> list[str]:
    """Field names of a struct sequence class, in order."""
    found = [n for n, d in vars(kind).items() if isinstance(d, types.MemberDescriptorType)]
    return found[: getattr(kind, "n_sequence_fields", 0)]


def _slice_attr(cap: Capture, obj: SliceValue | RangeValue, name: str,
                cont: Cont | None) -> None:  # fmt: skip
    """A part of a slice or range stays what it is; whatever else is asked fixes the parts."""
    part = dict(zip(("start", "stop", "step"), obj.parts, strict=True)).get(name)
    if part is not None:
        cap.deliver(part, cont)
        return
    get_attr(cap, Const(constant(obj)), name, cont)


for _family, _handler in (
    (SuperValue, _super_attr), (FunctionValue, _functionvalue_attr), (BoundValue, _bound_attr),
    (PartialValue, _partial_attr), (TupleValue, _tuple_attr), (UnreadTuple, _tuple_attr),
    (CellValue, _cell_attr), (SliceValue, _slice_attr), (RangeValue, _slice_attr),
):  # fmt: skip
    GETATTR.add(_family, _handler)
