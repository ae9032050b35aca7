"""Construction and methods of list, tuple, dict, set and str."""

from __future__ import annotations

import collections
import enum
import functools
import operator
import types
from typing import Any

import torch

from torchweld.capture import polyfills
from torchweld.capture.comparison import NeedsUserCode, contains, equal
from torchweld.capture.items import (
    append,
    del_item,
    dict_set,
    get_item,
    key_error,
    list_of,
    plain_iterator,
    set_item,
)
from torchweld.capture.ops import (
    changed,
    counted,
    filed_key,
    payload,
    says_its_keys,
    user_method,
)
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.symbolic import number_value
from torchweld.capture.tables import METHODS, klass, method
from torchweld.capture.values.base import (
    Const,
    DictValue,
    GeneratorValue,
    InstanceValue,
    ListValue,
    NotConstant,
    TupleValue,
    Value,
    ViewValue,
    boolean,
    constant,
    is_constant,
)
from torchweld.capture.values.owned import ProxyValue
from torchweld.capture.values.sequences import GrowingList
from torchweld.capture.wrap import complete, read_key

Args = list[Value]
Kwargs = dict[str, Value]
DICTS = (dict, collections.OrderedDict, collections.defaultdict)


def collect(cap: Capture, x: Value, cont: Any) -> None:
    """All items of any iterable, as a Python list of values, given to `cont`."""
    box = payload(x)
    if isinstance(box, ListValue | TupleValue) and (
            box is x or user_method(cap, x, "__iter__") is None):  # fmt: skip
        cont(list(cap.force_items(box.items)))
        return
    if not isinstance(x, GeneratorValue) and user_method(cap, x, "__iter__") is None:
        iterator = plain_iterator(cap, box)
        if iterator is not None:
            out = []
            while (item := iterator.step()) is not None:
                out.append(item)
            cont(out)
            return

    def done(made: Value) -> None:
        assert isinstance(made, ListValue)
        cont(list(made.items))

    cap.call(Const(polyfills.list_), [x], {}, done)


# ---------------------------------------------------------------- construction
@klass(list)
def make_list(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if not args:
        cap.deliver(ListValue([]), cont)
        return
    collect(cap, args[0], lambda items: cap.deliver(ListValue(items), cont))


@klass(tuple)
def make_tuple(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if not args:
        cap.deliver(TupleValue([]), cont)
    elif isinstance(args[0], TupleValue) and args[0].kind is tuple:
        cap.deliver(args[0], cont)
    else:
        collect(cap, args[0], lambda items: cap.deliver(TupleValue(items), cont))


@klass(torch.Size)
def make_size(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if not args:
        cap.deliver(TupleValue([], torch.Size), cont)
        return

    def made(items: list[Value]) -> None:
        for i, x in enumerate(items):
            if isinstance(x, Const) and not hasattr(type(x.obj), "__index__"):
                raise raised(TypeError, "torch.Size() takes an iterable of 'int' "
                                        f"(item {i} is '{x.cls().__name__}')")  # fmt: skip
        cap.deliver(TupleValue(list(items), torch.Size), cont)

    collect(cap, args[0], made)


def _make_dict(kind: type) -> Any:
    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        out = DictValue(kind)
        rest = args
        if kind is collections.defaultdict and args:
            x = args[0]
            none = isinstance(x, Const) and x.obj is None
            if not (none or "__call__" in dir(x.cls())):
                raise raised(TypeError, "first argument must be callable or None")
            out.factory, rest = args[0], args[1:]
        dict_update(cap, [out, *rest], kwargs, lambda _: cap.deliver(out, cont))

    return handler


for _kind in DICTS:
    klass(_kind)(_make_dict(_kind))


# ------------------------------------------------------------------------ lists
def _list(cap: Capture, x: Value) -> ListValue:
    box = payload(x)
    if not isinstance(box, ListValue):
        raise raised(TypeError, f"descriptor requires a 'list' object, not '{x.cls().__name__}'")
    cap.force_items(box.items)
    return box


def _none(cap: Capture, cont: Cont | None) -> None:
    cap.deliver(Const(None), cont)


@method(list, "append")
def list_append(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = payload(args[0])
    append(cap, box if isinstance(box, GrowingList) else _list(cap, args[0]), args[1])
    _none(cap, cont)


@method(list, "extend")
def list_extend(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    given = payload(args[0])
    box = given if isinstance(given, GrowingList) else _list(cap, args[0])

    def fill(items: list[Value]) -> None:
        (box.tail if isinstance(box, GrowingList) else box.items).extend(items)
        changed(cap, box)
        _none(cap, cont)

    collect(cap, args[1], fill)


@method(list, "insert")
def list_insert(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _list(cap, args[0])
    try:
        box.items.insert(constant(args[1]), args[2])
    except NotConstant:
        raise refuse("W102", "insert at an index that is not constant", cap.loc()) from None
    changed(cap, box)
    _none(cap, cont)


@method(list, "pop")
def list_pop(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _list(cap, args[0])
    try:
        item = box.items.pop(constant(args[1]) if len(args) > 1 else -1)
    except (IndexError, TypeError) as error:
        raise raised(type(error), *error.args) from None
    except NotConstant:
        raise refuse("W102", "pop at an index that is not constant", cap.loc()) from None
    changed(cap, box)
    cap.deliver(cap.force(item), cont)


@method(list, "clear")
def list_clear(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _list(cap, args[0])
    box.items.clear()
    changed(cap, box)
    _none(cap, cont)


@method(list, "reverse")
def list_reverse(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _list(cap, args[0])
    box.items.reverse()
    changed(cap, box)
    _none(cap, cont)


@method(list, "remove")
def list_remove(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _list(cap, args[0])

    def drop(at: Value) -> None:
        assert isinstance(at, Const)
        if not isinstance(at.obj, int):
            raise raised(ValueError, "list.remove(x): x not in list")
        del box.items[at.obj]
        changed(cap, box)
        _none(cap, cont)

    _find(cap, box, args[1:2], drop)


@method(list, "sort")
def list_sort(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _list(cap, args[0])

    def replace(made: Value) -> None:
        assert isinstance(made, ListValue)
        box.items[:] = made.items
        changed(cap, box)
        _none(cap, cont)

    cap.call(Const(polyfills.sorted_), [ListValue(list(box.items))], kwargs, replace)


@method(list, "__imul__")
def list_imul(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _list(cap, args[0])
    try:
        box.items *= constant(args[1])
    except (NotConstant, TypeError):
        raise refuse("W107", "a list times something that is no number", cap.loc()) from None
    changed(cap, box)
    _none(cap, cont)


@method(list, "copy")
def list_copy(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(ListValue(list(_list(cap, args[0]).items)), cont)


@method((list, tuple, collections.deque), "index")
def sequence_index(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = payload(args[0])

    def found(at: Value) -> None:
        assert isinstance(at, Const)
        if at.obj is None:
            text = "tuple.index(x): x not in tuple"
            if not isinstance(box, TupleValue):
                try:
                    text = f"{constant(args[1])!r} is not in {box.cls().__name__}"
                except NotConstant:
                    raise refuse("W107", "text of an object", cap.loc()) from None
            raise raised(ValueError, text)
        cap.deliver(at, cont)

    _find(cap, box, args[1:], found)


def _find(cap: Capture, box: Value, args: Args, cont: Cont) -> None:
    """The index of args[0] in a sequence (from args[1] to args[2]) or None, given to `cont`."""
    items = list_of(cap, box)
    bounds = slice(*(constant(a) for a in args[1:])) if len(args) == 3 else slice(
        constant(args[1]) if len(args) > 1 else 0, None)  # fmt: skip
    try:
        for i in range(*bounds.indices(len(items))):
            if items[i] is args[0] or equal(cap, items[i], args[0]):
                cont(Const(i))
                return
    except NeedsUserCode:
        cap.call(Const(polyfills.index_), [box, *args], {}, cont)
        return
    cont(Const(None))


@method((list, tuple, collections.deque), "count")
def sequence_count(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    items = list_of(cap, args[0])
    try:
        n = sum(x is args[1] or equal(cap, x, args[1]) for x in items)
    except NeedsUserCode:
        cap.call(Const(polyfills.count_of), args, {}, cont)
        return
    cap.deliver(Const(n), cont)


@method(torch.Size, "numel")
def size_numel(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    sizes = cap.unwrap(args[0])
    assert isinstance(sizes, TupleValue)
    numbers = [cap.sizes.as_number(cap.force(n)) for n in sizes.items]
    cap.deliver(number_value(functools.reduce(operator.mul, numbers, 1)), cont)


@method((list, tuple, *DICTS), "__getitem__")
def getitem(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    get_item(cap, payload(args[0]), args[1], cont)


@method((list, *DICTS), "__setitem__")
def setitem(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    set_item(cap, payload(args[0]), args[1], args[2])
    _none(cap, cont)


@method((list, *DICTS), "__delitem__")
def delitem(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    del_item(cap, payload(args[0]), args[1])
    _none(cap, cont)


@method((list, tuple, set, frozenset, *DICTS), "__len__")
def len_method(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(counted(cap, payload(args[0])), cont)


@method((list, tuple, set, frozenset, *DICTS), "__contains__")
def contains_method(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    contains(cap, payload(args[0]), args[1], lambda t: cap.deliver(boolean(t), cont))


@method((list, tuple, set, frozenset, *DICTS), "__iter__")
def iter_method(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    made = plain_iterator(cap, payload(args[0]))
    if made is None:
        raise refuse("W107", f"iteration over {args[0].cls().__name__}", cap.loc())
    cap.deliver(made, cont)


@method((list, *DICTS, set), "__init__")
def container_init(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = payload(args[0])
    name = "extend" if isinstance(box, ListValue) else "update"
    if len(args) == 1 and not kwargs:
        _none(cap, cont)
        return
    owner = list if isinstance(box, ListValue) else dict if isinstance(box, DictValue) else set
    METHODS[(owner, name)](cap, [box, *args[1:]], kwargs, cont)


@method(list, "__payload__")
def list_payload(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    made = args[0]
    assert isinstance(made, InstanceValue)
    made.payload = ListValue([])


# ------------------------------------------------------------------------ dicts
def _dict(x: Value) -> DictValue:
    box = payload(x)
    if not isinstance(box, DictValue):
        raise raised(TypeError, f"descriptor requires a 'dict' object, not '{x.cls().__name__}'")
    return box


@method(DICTS, "get")
def dict_get(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    found = read_key(cap, _dict(args[0]), filed_key(cap, args[1]))
    default = args[2] if len(args) > 2 else kwargs.get("default", Const(None))
    cap.deliver(default if found is None else found, cont)


@method(DICTS, "pop")
def dict_pop(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _dict(args[0])
    found = read_key(cap, box, filed_key(cap, args[1]))
    if found is not None:
        del_item(cap, box, args[1])
        cap.deliver(found, cont)
        return
    default = args[2] if len(args) > 2 else kwargs.get("default")
    if default is None:
        raise key_error(args[1])
    cap.deliver(default, cont)


@method(DICTS, "setdefault")
def dict_setdefault(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _dict(args[0])
    found = read_key(cap, box, filed_key(cap, args[1]))
    if found is None:
        found = args[2] if len(args) > 2 else Const(None)
        dict_set(cap, box, args[1], found)
    cap.deliver(found, cont)


def _view(what: str) -> Any:
    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        cap.deliver(ViewValue(_dict(args[0]), what), cont)

    return handler


def _proxy_view(what: str) -> Any:
    """A view of a mapping proxy, which is guarded as a whole."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        (proxy,) = args
        if isinstance(proxy, DictValue):  # of the frame
            METHODS[dict, what](cap, [proxy], {}, cont)
            return
        assert isinstance(proxy, Const)
        assert isinstance(proxy.obj, types.MappingProxyType)
        box = DictValue(dict)
        for key, found in proxy.obj.items():
            if not isinstance(key, str):
                raise refuse("W107", "a mapping proxy with keys that are no texts", cap.loc())
            plain = isinstance(found, int | float | str | bytes | type(None))
            box.keys[key] = Const(key)
            box.items[key] = Const(found) if plain else cap.wrap(found, cap.pin(found))
        METHODS[dict, what](cap, [box], {}, cont)

    return handler


@klass(types.MappingProxyType)
def make_proxy(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """A proxy of a dict; one from outside must not be changed by the frame then."""
    box = _dict(args[0])
    complete(cap, box)
    plain = is_constant(cap.unwrap(box))
    if plain and cap.top.code.filename == enum.__file__:  # the members of an enum stay the same
        cap.deliver(Const(types.MappingProxyType(constant(box))), cont)
        return
    if box.source is None:
        cap.deliver(ProxyValue(box), cont)
        return
    if type(box.real) not in (dict, collections.OrderedDict) or box.changed or not plain:
        raise refuse("W107", "a mapping proxy of a dict that may change", cap.loc())
    cap.shown.add(id(box.real))
    cap.deliver(Const(types.MappingProxyType(box.real)), cont)  # type: ignore[arg-type]


for _what in ("keys", "values", "items"):
    method(DICTS, _what)(_view(_what))
    method(types.MappingProxyType, _what)(_proxy_view(_what))


def _asked_for_items(cap: Capture, x: Value, into: DictValue) -> bool:
    """Whether C code reads a dict by what its class says of its keys and items."""
    if not isinstance(x, InstanceValue) or not isinstance(x.payload, DictValue):
        return False
    names = ("keys", "__getitem__") if collections.OrderedDict in (
        *x.klass.__mro__, into.kind) else ()  # fmt: skip
    return says_its_keys(cap, x) or any(user_method(cap, x, n) is not None for n in names)


@method(DICTS, "update")
def dict_update(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _dict(args[0])

    def named(_: Value | None) -> None:
        for key, value in kwargs.items():
            dict_set(cap, box, Const(key), value)
        _none(cap, cont)

    if len(args) < 2:
        named(None)
        return
    other = args[1] if _asked_for_items(cap, args[1], box) else payload(args[1])
    if isinstance(other, DictValue):
        complete(cap, other)
        for key in list(other.items):
            dict_set(cap, box, other.keys[key], cap.force(other.items[key]))
        named(None)
    elif isinstance(other, InstanceValue) and (
            other.payload is not None or user_method(cap, other, "keys") is not None):  # fmt: skip
        cap.call(Const(polyfills.dict_update_mapping), [box, other], {}, named)
    else:
        cap.call(Const(polyfills.dict_update), [box, other], {}, named)


@method(DICTS, "clear")
def dict_clear(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _dict(args[0])
    complete(cap, box)
    box.items.clear()
    box.keys.clear()
    changed(cap, box)
    _none(cap, cont)


def _builtin_base(kind: type) -> type:
    return next(base for base in kind.__mro__ if base in DICTS)


@method(DICTS, "copy")
def dict_copy(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _dict(args[0])
    complete(cap, box)
    base = _builtin_base(box.kind)
    if base is not dict and base is not box.kind:
        raise refuse("W107", f"copy() of a {box.kind.__name__}", cap.loc())
    out = DictValue(base)  # of a dict, it is no instance of the subclass
    out.items.update(box.items)
    out.keys.update(box.keys)
    out.factory = box.factory
    cap.deliver(out, cont)


@method(DICTS, "popitem")
def dict_popitem(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _dict(args[0])
    complete(cap, box)
    if not box.items:
        says = "" if issubclass(args[0].cls(), collections.OrderedDict) else "popitem(): "
        raise raised(KeyError, f"{says}dictionary is empty")
    last = constant(args[1]) if len(args) > 1 else constant(kwargs.get("last", Const(True)))
    key = list(box.items)[-1 if last else 0]
    name, value = box.keys[key], cap.force(box.items[key])
    del_item(cap, box, name)
    cap.deliver(TupleValue([name, value]), cont)


@method(collections.OrderedDict, "move_to_end")
def move_to_end(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    box = _dict(args[0])
    complete(cap, box)
    filed = filed_key(cap, args[1])
    if filed not in box.items:
        raise key_error(args[1])
    last = constant(args[2]) if len(args) > 2 else constant(kwargs.get("last", Const(True)))
    slot = box.items.pop(filed)
    if last:
        box.items[filed] = slot
    else:
        rest = dict(box.items)
        box.items.clear()
        box.items[filed] = slot
        box.items.update(rest)
    changed(cap, box)
    _none(cap, cont)


@method(DICTS, "fromkeys")
def dict_fromkeys(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    kind = args[0]
    if not isinstance(kind, Const) or kind.obj not in DICTS:
        raise refuse("W107", "fromkeys of a subclass of dict", cap.loc())

    def fill(keys: list[Value]) -> None:
        out = DictValue(kind.obj)  # type: ignore[arg-type]
        for key in keys:
            dict_set(cap, out, key, args[2] if len(args) > 2 else Const(None))
        cap.deliver(out, cont)

    collect(cap, args[1], fill)
