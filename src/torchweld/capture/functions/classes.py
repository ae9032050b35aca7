"""Class statements, and what is done to classes and functions while they are made.

The body is interpreted like any other code; then the class is made for real (private.py).
"""

from __future__ import annotations

import abc
import builtins
import collections
import dataclasses
import enum
import functools
import sys
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any

from torchweld.capture.attrs import MISSING, mro_lookup, owner_of
from torchweld.capture.attrs_write import set_private_attr
from torchweld.capture.calls import push_frame
from torchweld.capture.class_writes import set_class_attr
from torchweld.capture.ops import payload
from torchweld.capture.private import Recipe, keep, keep_parts, note, real_cell, real_of
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.tables import CLASSES, FUNCTIONS, METHODS, CallHandler, function, method
from torchweld.capture.values.base import (
    NONE,
    CellValue,
    Const,
    DictValue,
    FunctionValue,
    InstanceValue,
    PartialValue,
    TupleValue,
    Value,
)
from torchweld.capture.wrap import complete
from torchweld.frame.decode import decode

Args = list[Value]
Kwargs = dict[str, Value]

_TRUSTED = frozenset((*sys.stdlib_module_names, "torch", "typing_extensions")) - {"__main__"}
# methods that run while an enum is made: those of the user's may do anything
_RUN_BY_ENUM = ("__new__", "__init__", "_generate_next_value_", "_missing_")


@function(builtins.__build_class__)
def build_class(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """The class statement: run the body, then make the class."""
    body, name, *bases = args
    if not isinstance(body, FunctionValue) or not isinstance(name, Const):
        raise refuse("W107", "a class statement whose body is no function", cap.loc())
    given = tuple(real_of(cap, b) for b in bases)
    for base in given:
        if not isinstance(base, type):
            _need_trusted(cap, type(base), ("__mro_entries__",))
    resolved = types.resolve_bases(given)
    named = dict(kwargs)
    meta = _metaclass(cap, resolved, named.pop("metaclass", None))

    def begin(prepared: Any, names: dict[str, Value]) -> None:
        def made(_: Value) -> None:
            if resolved is not given:
                names["__orig_bases__"] = TupleValue([Const(b) for b in given])
            if not _is_trusted(meta):
                _call_metaclass(cap, meta, name, resolved, names, named, cont)
                return
            plan = Plan(meta, meta, str(name.obj), resolved, prepared)
            make(cap, plan, names, named, cont)

        _run_body(cap, body, names, made)

    hook = mro_lookup(meta, "__prepare__")
    if isinstance(hook, classmethod) and isinstance(hook.__func__, types.FunctionType) and (
            not _is_trusted(owner_of(meta, "__prepare__"))):  # fmt: skip
        prepare = [Const(meta), name, TupleValue([Const(b) for b in resolved])]
        cap.call(Const(hook.__func__), list(prepare), named,
                 lambda found: begin({}, _names_of(cap, found)))  # fmt: skip
        return
    begin(_real(cap, meta.__prepare__, str(name.obj), resolved), {})


def _metaclass(cap: Capture, bases: tuple[Any, ...], given: Value | None) -> Any:
    meta = real_of(cap, given) if given is not None else type(bases[0]) if bases else type
    if not isinstance(meta, type):
        raise refuse("W107", "a metaclass that is no class", cap.loc())
    return _real(cap, types._calculate_meta, meta, bases)  # type: ignore[attr-defined]


def _names_of(cap: Capture, found: Value) -> dict[str, Value]:
    """What `__prepare__` has given, which must be a plain dict."""
    if type(found) is not DictValue or found.kind is not dict or found.source is not None:
        raise refuse("W107", f"a {found.cls().__name__} as the namespace of a class", cap.loc())
    return {str(k): cap.force(v) for k, v in found.items.items()}


def _run_body(cap: Capture, body: FunctionValue, names: dict[str, Value], made: Cont) -> None:
    code = decode(body.code)
    assert isinstance(body.globals, Const)
    assert isinstance(body.globals.obj, dict)
    cells = dict(zip(code.freevars, body.closure, strict=True))
    push_frame(cap, code, body.globals.obj, {}, cells, made, None, body)
    cap.top.names = names


def _call_metaclass(cap: Capture, meta: Any, name: Value, bases: tuple[Any, ...],
                    names: dict[str, Value], named: Kwargs, cont: Cont | None) -> None:  # fmt: skip
    """meta(name, bases, namespace): the metaclass is the user's, and interpreted."""
    space = DictValue(dict)
    space.items.update(names)
    space.keys.update({k: Const(k) for k in names})
    cap.call(Const(meta), [name, TupleValue([Const(b) for b in bases]), space], named, cont)


# --------------------------------------------------------------------------- making the class
@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """A class to be made. create: what makes it of a name, bases and a namespace."""

    create: Callable[..., Any]
    meta: Any
    name: str
    bases: tuple[Any, ...]
    namespace: Any


class Silent:
    """Comes before the bases of a class while it is made, so that nothing of the user's runs."""

    def __init_subclass__(cls, **kwargs: object) -> None: ...


def make(cap: Capture, plan: Plan, names: dict[str, Value], named: Kwargs,
         cont: Cont | None) -> None:  # fmt: skip
    """Make a class for real, then run what Python runs of the user's: `__set_name__` of its
    attributes, `__init_subclass__` of its bases."""
    own_cell = names.get("__classcell__")
    if issubclass(plan.meta, enum.EnumMeta):
        _check_enum(cap, plan.bases, names)
    jobs: list[tuple[Any, Args, Kwargs]] = []
    names = dict(names)
    for key, value in names.items():
        real = real_cell(cap, value) if isinstance(value, CellValue) else real_of(cap, value)
        plan.namespace[key] = real
        hook = mro_lookup(value.cls(), "__set_name__")
        if isinstance(hook, types.FunctionType) and isinstance(value, InstanceValue):
            jobs.append((hook, [value], {"owner": NONE, "name": Const(key)}))
        else:
            _need_trusted(cap, type(real), ("__set_name__",))
    kind = _created(cap, plan, named, jobs)
    keep(cap, kind, _again(cap, plan, names, named, jobs))
    keep_parts(cap, kind, plan.namespace)
    if isinstance(own_cell, CellValue):
        own_cell.contents = Const(kind)
    space_cell = names.get("__classdictcell__")
    if isinstance(space_cell, CellValue):
        space_cell.contents = None  # what is computed late of the names is computed by now

    def step(_: Value | None) -> None:
        if not jobs:
            cap.deliver(Const(kind), cont)
            return
        hook, given, more = jobs.pop(0)
        if "owner" in more and given:
            cap.call(Const(hook), [*given, Const(kind), more["name"]], {}, step)
        else:
            cap.call(Const(hook), [Const(kind)], more, step)

    step(None)


def _created(cap: Capture, plan: Plan, named: Kwargs, jobs: list[tuple[Any, Args, Kwargs]]) -> Any:
    """The class. A user's `__init_subclass__` that has not run is added to `jobs`."""
    owner = next((b for b in _real(cap, _order_of, plan.bases) if "__init_subclass__" in vars(b)),
                 object)  # fmt: skip
    if _is_trusted(owner):
        given = {k: real_of(cap, v) for k, v in named.items()}
        return _real(cap, plan.create, plan.name, plan.bases, plan.namespace, **given)
    kind = _real(cap, plan.create, plan.name, (Silent, *plan.bases), plan.namespace)
    _real(cap, setattr, kind, "__bases__", plan.bases)
    hook = vars(owner)["__init_subclass__"]
    jobs.append((hook.__func__ if isinstance(hook, classmethod) else hook, [], named))
    return kind


def _again(cap: Capture, plan: Plan, names: dict[str, Value], named: Kwargs,
           jobs: list[tuple[Any, Args, Kwargs]]) -> Recipe:  # fmt: skip
    """How the class is made again, without what runs of the user's: that was interpreted."""
    hooked = tuple(str(more["name"].obj) for _, given, more in jobs if given)  # type: ignore[attr-defined]
    quiet = any(not given for _, given, _ in jobs)
    how = Const((plan.create is plan.meta, plan.name, tuple(names), hooked, quiet))
    bases = TupleValue([Const(b) for b in plan.bases])
    given = [how, Const(plan.meta), bases, TupleValue(list(names.values()))]
    return Recipe(made_class, given, {} if quiet else named)


def made_class(how: tuple[bool, str, tuple[str, ...], tuple[str, ...], bool], meta: Any,
               bases: tuple[Any, ...], values: tuple[Any, ...], **named: Any) -> Any:  # fmt: skip
    """A class. how: whether its metaclass is called, as the class statement does it; its name and
    those of its attributes; of attributes that are only put there when it exists; whether its bases
    are told nothing of it."""
    by_statement, name, keys, hooked, quiet = how
    names = dict(zip(keys, values, strict=True))
    space = meta.__prepare__(name, bases) if by_statement else {}
    for key, value in names.items():
        space[key] = None if key in hooked else value
    create = meta if by_statement else functools.partial(type.__new__, meta)
    made = create(name, (Silent, *bases) if quiet else bases, space, **named)
    if quiet:
        made.__bases__ = bases
    for key in hooked:
        type.__setattr__(made, key, names[key])
    return made


def _order_of(bases: tuple[Any, ...]) -> tuple[type, ...]:
    """In which order attributes are looked up in a class with these bases."""
    if len(bases) < 2:
        return bases[0].__mro__ if bases else (object,)
    metas = [type(b) for b in bases]
    meta = next(m for m in metas if all(issubclass(m, other) for other in metas))
    made: type = type.__new__(meta, "_", (Silent, *bases), {})
    return made.__mro__[2:]


@method(type, "__new__")
@function(type.__new__)
def type_new(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """type.__new__(meta, name, bases, namespace), reached by metaclasses and by type()."""
    meta, name, bases, space = args
    space = payload(space)
    if not (isinstance(meta, Const) and isinstance(meta.obj, type) and isinstance(name, Const)
            and isinstance(bases, TupleValue) and isinstance(space, DictValue)):  # fmt: skip
        raise refuse("W107", "a class of such arguments", cap.loc())
    real_bases = tuple(real_of(cap, b) for b in cap.force_items(bases.items))
    if _metaclass(cap, real_bases, meta) is not meta.obj:
        raise refuse("W107", "a class whose bases have another metaclass", cap.loc())
    complete(cap, space)
    names = {str(k): cap.force(v) for k, v in space.items.items()}
    names.setdefault("__module__", Const(cap.top.globals.get("__name__")))
    create = functools.partial(type.__new__, meta.obj)
    make(cap, Plan(create, meta.obj, str(name.obj), real_bases, {}), names, kwargs, cont)


@method(type, "__init__")
def type_init(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(NONE, cont)


@method(type, "__setattr__")
def type_setattr(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    kind, name, value = args
    if not isinstance(kind, Const) or not isinstance(name, Const):
        raise refuse("W106", "assignment to an attribute of a class", cap.loc())
    outside = isinstance(kind.obj, type) and not cap.private.has(kind.obj)
    if not outside or not set_class_attr(
            cap, kind.obj, str(name.obj), value, hooked=True):  # type: ignore[arg-type]  # fmt: skip
        set_private_attr(cap, kind, str(name.obj), value)
    cap.deliver(NONE, cont)


def _check_enum(cap: Capture, bases: Iterable[type], names: dict[str, Value]) -> None:
    """The machinery of enums looks at the values, and calls some methods."""
    for base in bases:
        _need_trusted(cap, base, _RUN_BY_ENUM)
    for name, value in names.items():
        if name in _RUN_BY_ENUM:
            raise refuse("W107", f"an enum with its own {name}, made in the frame", cap.loc())
        real = value if isinstance(value, CellValue) else real_of(cap, value)
        if id(real) in cap.private.stand_ins and not name.startswith("__"):
            raise refuse("W107", "an enum of values that are not constant", cap.loc())


def _real(cap: Capture, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """fn(*args) for real, on what only the frame knows; eager raises what it raises."""
    try:
        return fn(*args, **kwargs)
    except Exception as error:
        why = f"{getattr(fn, '__name__', fn)} in a class statement: {type(error).__name__}: {error}"
        raise refuse("W107", why, cap.loc()) from None


def _need_trusted(cap: Capture, kind: type, names: Iterable[str]) -> None:
    """Refuse a class some of whose methods are the user's own."""
    for name in names:
        raw = mro_lookup(kind, name)
        if raw is not MISSING:
            owner = next(base for base in kind.__mro__ if name in base.__dict__)
            _need_trusted_class(cap, owner)


def _is_trusted(kind: type) -> bool:
    meta: type = type(kind)
    return all(k.__module__.split(".")[0] in _TRUSTED for k in (*kind.__mro__, *meta.__mro__))


def _need_trusted_class(cap: Capture, kind: type) -> None:
    if kind.__module__.split(".")[0] not in _TRUSTED:
        raise refuse("W107", f"a class statement that runs code of {kind.__name__}", cap.loc())


# --------------------------------------------------------- what is done to classes and functions
def _run_for_real(fn: Any) -> CallHandler:
    """A handler that makes a real object of the frame's own out of the arguments."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        real_args = [real_of(cap, a) for a in args]
        first = real_args[0] if real_args else None
        before = dict(vars(first)) if isinstance(first, type) else {}
        made = _real(cap, fn, *real_args, **{k: real_of(cap, v) for k, v in kwargs.items()})
        if made is first or made is None:
            note(cap, first, fn, args[1:], kwargs)
        else:
            keep(cap, made, Recipe(fn, args, kwargs))
        if isinstance(made, type):
            keep_parts(cap, made, before)
        cap.deliver(Const(made), cont)

    return handler


_made_for_real: tuple[Any, ...] = (
    property, staticmethod, classmethod, functools.cached_property, enum.auto, typing.TypeVar,
    typing.ParamSpec,
)  # fmt: skip
for _kind in _made_for_real:
    CLASSES.add(_kind, _run_for_real(_kind))
for _name in ("getter", "setter", "deleter"):
    METHODS.add((property, _name), _run_for_real(getattr(property, _name)))
FUNCTIONS.add(dataclasses.field, _run_for_real(dataclasses.field))
FUNCTIONS.add(abc._abc_init, _run_for_real(abc._abc_init))  # type: ignore[attr-defined]


@function(collections.namedtuple)
def namedtuple(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    module = {"module": Const(cap.top.globals.get("__name__")), **kwargs}
    _run_for_real(collections.namedtuple)(cap, args, module, cont)


@function(enum.EnumMeta.__call__)
def enum_call(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Enum(name, members): a class."""
    kind, *given = args
    assert isinstance(kind, Const)
    assert isinstance(kind.obj, type)
    if kind.obj.__members__:  # type: ignore[attr-defined]
        raise refuse("W107", "an enum that is called with more than a value", cap.loc())
    _check_enum(cap, (kind.obj,), {})
    module = {"module": Const(cap.top.globals.get("__name__")), **kwargs}
    _run_for_real(enum.EnumMeta.__call__)(cap, [kind, *given], module, cont)


def _decorator(fn: Any) -> None:
    """A class decorator that changes the class: done for real to the frame's own classes."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        if not args:
            cap.deliver(PartialValue(Const(fn), [], kwargs, functools.partial), cont)
            return
        kind = args[0]
        if not (isinstance(kind, Const) and isinstance(kind.obj, type)
                and cap.private.has(kind.obj)):  # fmt: skip
            raise refuse("W106", f"{fn.__name__} changes a class from outside", cap.loc())
        _run_for_real(fn)(cap, args, kwargs, cont)

    FUNCTIONS.add(fn, handler)


_decorators: tuple[Any, ...] = (
    dataclasses.dataclass, functools.total_ordering, enum.unique, typing.final,
    typing.runtime_checkable,
)  # fmt: skip
for _fn in _decorators:
    _decorator(_fn)
