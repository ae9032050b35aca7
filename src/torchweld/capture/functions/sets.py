"""Construction and methods of set and frozenset, in Python's own order."""

from __future__ import annotations

from typing import Any

from torchweld.capture import polyfills
from torchweld.capture.comparison import keys_of
from torchweld.capture.functions.containers import collect
from torchweld.capture.items import key_error
from torchweld.capture.ops import changed, filed_key, payload
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.tables import function, klass, method
from torchweld.capture.values.base import (
    Const,
    DictValue,
    ListValue,
    SetValue,
    Value,
    ViewValue,
    boolean,
)
from torchweld.capture.values.past import Past
from torchweld.capture.wrap import set_order

Args = list[Value]
Kwargs = dict[str, Value]


def _none(cap: Capture, cont: Cont | None) -> None:
    cap.deliver(Const(None), cont)


def _make_set(kind: type) -> Any:
    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        out = SetValue(kind)
        if not args:
            cap.deliver(out, cont)
            return

        def fill(items: list[Value]) -> None:
            for item in items:
                out.add(filed_key(cap, item), item)
            cap.deliver(out, cont)

        source = payload(args[0])
        if isinstance(source, SetValue):
            like(out, source)
            cap.deliver(out, cont)
            return
        collect(cap, args[0], fill)
        given: Any = None
        if isinstance(source, Const) and isinstance(source.obj, frozenset):
            given = source.obj
        elif isinstance(source, DictValue):
            given = dict.fromkeys(out.items)  # C looks at its size first
        if given is not None:
            out.twin, out.past = set(given), Past(None, [("update", (given,))])

    return handler


klass(set)(_make_set(set))
klass(frozenset)(_make_set(frozenset))


def _elements(cap: Capture, x: Value, cont: Any) -> None:
    """The elements of any iterable as {key: value}, given to `cont`."""
    if isinstance(x, SetValue):
        cont(dict(x.items))
        return
    if isinstance(x, ViewValue) and x.what == "keys":
        keys = keys_of(cap, x)
        cont({k: x.of.keys[k] for k in keys})
        return

    def fill(items: list[Value]) -> None:
        out: dict[object, Value] = {}
        for item in items:
            out.setdefault(filed_key(cap, item), item)
        cont(out)

    collect(cap, x, fill)


_COMBINE: dict[str, Any] = {
    "union": lambda a, b: {**b, **a},
    "intersection": lambda a, b: {k: v for k, v in a.items() if k in b},
    "difference": lambda a, b: {k: v for k, v in a.items() if k not in b},
    "symmetric_difference": lambda a, b: {k: v for k, v in (*a.items(), *b.items())
                                          if (k in a) != (k in b)},
}  # fmt: skip


def _combined(name: str, in_place: bool) -> Any:
    combine = _COMBINE[name]

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        others: list[object] = []
        noted: list[object] = []

        def go(current: dict[object, Value], rest: Args) -> None:
            if rest:
                def more(other: dict[object, Value]) -> None:
                    others.append(_real_order(rest[0], other))
                    noted.append(_noted(rest[0], others[-1]))
                    go(combine(current, other), rest[1:])

                _elements(cap, rest[0], more)
                return
            target = _set(cap, args[0]) if in_place else SetValue(_result_kind(args[0]))
            if in_place:
                _do_in_place(target, _INTO[name], others, noted)
            else:
                _combined_twin(target, name, args[0], others, noted)
            target.items.clear()
            target.items.update(current)
            if in_place:
                changed(cap, target)
            cap.deliver(Const(None) if in_place else target, cont)

        _elements(cap, args[0], lambda first: go(first, args[1:]))

    return handler


def like(out: SetValue, x: SetValue) -> None:
    """Make an empty set a copy of another one, in the order that a copy has in Python."""
    out.items.update(x.items)
    order = _real_order(x, {})
    out.twin = None if order is None else set(order)  # type: ignore[call-overload]
    out.past = None if x.real is not None or x.past is None else Past((x.past.copy(), "copy", ()))


_INTO = {"union": "update", "intersection": "intersection_update",
         "difference": "difference_update",
         "symmetric_difference": "symmetric_difference_update"}  # fmt: skip


def _real_order(x: Value, elements: dict[object, Value]) -> object:
    """A real iterable that Python goes through as it does through x; None if that is not known."""
    if isinstance(x, SetValue):
        return x.real if x.real is not None and not x.changed else x.twin
    if isinstance(x, Const) and isinstance(x.obj, frozenset):
        return x.obj
    return dict.fromkeys(elements) if isinstance(x, DictValue) else list(elements)


def _noted(x: Value, order: object) -> object:
    """The same, as the past of a set holds it; None if that is not known."""
    if isinstance(x, SetValue) and x.real is None:
        return None if x.past is None else x.past.copy()
    return tuple(order) if isinstance(order, set) else order


def _combined_twin(out: SetValue, name: str, first: Value, others: list[Any],
                   noted: list[Any]) -> None:  # fmt: skip
    """Give a new set the order that Python's operation gives it."""
    out.twin = out.past = None
    before: Any = _real_order(first, {}) if isinstance(first, SetValue) else None
    if isinstance(first, ViewValue) and name != "intersection" and others[0] is not None:
        out.twin = set(dict.fromkeys(first.of.items))  # which is then changed in place
        getattr(out.twin, _INTO[name])(*others)
    elif before is not None and not any(o is None for o in others):
        out.twin = getattr(before, name)(*others)
    past = _noted(first, before)
    if isinstance(past, Past) and not any(n is None for n in noted):
        out.past = Past((past, name, tuple(noted)))


def _do_in_place(box: SetValue, name: str, others: list[Any], noted: list[Any]) -> None:
    if any(n is None for n in noted):
        box.past = None
    if box.real is not None or any(o is None for o in others):
        box.twin = None  # an outside set has an order that only the outside knows
    box.do(name, others, tuple(noted))


def _result_kind(x: Value) -> type:
    return x.kind if isinstance(x, SetValue) else set


for _op in _COMBINE:
    method((set, frozenset), _op)(_combined(_op, in_place=False))
for _op, _into in _INTO.items():
    method(set, _into)(_combined(_op, in_place=True))


def _set(cap: Capture, x: Value) -> SetValue:
    if not isinstance(x, SetValue):
        raise refuse("W107", f"a set method of {x.cls().__name__}", cap.loc())
    return x


@method(set, "add")
def set_add(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _set(cap, args[0])
    box.add(filed_key(cap, args[1]), args[1])
    changed(cap, box)
    _none(cap, cont)


@method(set, "remove")
def set_remove(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if filed_key(cap, args[1]) not in _set(cap, args[0]).items:
        raise key_error(args[1])
    set_discard(cap, args, kwargs, cont)


@method(set, "pop")
def set_pop(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _set(cap, args[0])
    if not box.items:
        raise raised(KeyError, "pop from an empty set")
    if box.real is not None:
        raise refuse("W107", "pop of a set from outside", cap.loc())
    set_order(cap, box)
    key = box.do("pop", (), ()) if box.twin is not None else next(iter(box.items))
    cap.deliver(box.items.pop(key), cont)


@method(set, "discard")
def set_discard(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _set(cap, args[0])
    box.drop(filed_key(cap, args[1]))
    changed(cap, box)
    _none(cap, cont)


@method(set, "clear")
def set_clear(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _set(cap, args[0])
    box.items.clear()
    box.do("clear", (), ())
    changed(cap, box)
    _none(cap, cont)


@method((set, frozenset), "copy")
def set_copy(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _set(cap, args[0])
    out = SetValue(box.kind)
    like(out, box)
    cap.deliver(out, cont)


def _relation(test: Any) -> Any:
    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        def answer(a: dict[object, Value], b: dict[object, Value]) -> None:
            cap.deliver(boolean(test(a.keys(), b.keys())), cont)

        _elements(cap, args[0], lambda a: _elements(cap, args[1], lambda b: answer(a, b)))

    return handler


method((set, frozenset), "issubset")(_relation(lambda a, b: a <= b))
method((set, frozenset), "issuperset")(_relation(lambda a, b: a >= b))
method((set, frozenset, type({}.keys()), type({}.items())), "isdisjoint")(
    _relation(lambda a, b: not (a & b)))


@function(sorted)
def sorted_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Constants of a set are sorted whatever order they are gone through in."""
    box = args[0] if len(args) == 1 else None
    items = list(box.items.values()) if isinstance(box, SetValue) else []
    found = [x.obj for x in items if isinstance(x, Const) and getattr(x, "fixed", True)]
    flag = kwargs.get("reverse", boolean(False))
    alike = len(found) == len(items) > 1 and {type(x) for x in found} in ({int}, {str})
    if alike and kwargs.keys() <= {"reverse"} and type(flag) is Const:
        made: Any = sorted(found, reverse=bool(flag.obj))
        cap.deliver(ListValue([Const(x) for x in made]), cont)
        return
    cap.call(Const(polyfills.sorted_), args, kwargs, cont)
