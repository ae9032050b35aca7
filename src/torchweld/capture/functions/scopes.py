"""globals(), locals(), vars(), dir() and eval(): names as objects."""

from __future__ import annotations

import types

from torchweld.capture.attrs import from_python, get_attr, mro_lookup, watch_class
from torchweld.capture.calls import push_frame
from torchweld.capture.class_writes import show
from torchweld.capture.functions.containers import collect
from torchweld.capture.instances import load_all_attrs, slot_names, vars_of
from torchweld.capture.ops import user_method
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, VFrame, refuse
from torchweld.capture.tables import function
from torchweld.capture.values.base import (
    Const,
    DictValue,
    InstanceValue,
    ListValue,
    TensorValue,
    Value,
)
from torchweld.capture.wrap import complete
from torchweld.frame.decode import decode
from torchweld.frame.points import is_rest
from torchweld.ir.source import InstanceDict

Args = list[Value]
Kwargs = dict[str, Value]


def _locals_stay() -> bool:
    """Whether Python gives the same dict each time that a function asks for its locals."""
    first = locals()
    return locals() is first


_STAY = _locals_stay()


@function(globals)
def globals_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(cap.wrap(cap.top.globals, cap.top.globals_source), cont)


@function(locals)
def locals_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(local_names(cap, cap.top), cont)


def local_names(cap: Capture, frame: VFrame) -> DictValue:
    """The local and free variables that have a value, as a dict."""
    if frame.names is not None or is_rest(frame.code.raw):
        raise refuse("W106", "locals() of a frame that is not a whole function", cap.loc())
    box = frame.scope if _STAY else None
    if box is None:
        box = frame.scope = DictValue(dict)
    raw = frame.code.raw
    plain = [n for n in raw.co_varnames if n not in frame.code.cellvars]
    found: dict[str, Value] = {}
    for name in (*raw.co_varnames, *raw.co_cellvars, *raw.co_freevars):
        if name in plain:
            value = frame.locals.get(name)
        else:
            cell = frame.cells.get(name)
            value = None if cell is None or cell.contents is None else cap.force(cell.contents)
        if value is not None:
            found[name] = cap.force(value)
    for name in [k for k in box.items if k in raw.co_varnames and k not in found]:
        del box.items[name], box.keys[name]
    box.items.update(found)
    box.keys.update({n: Const(n) for n in found})
    return box


@function(vars)
def vars_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if not args:
        cap.deliver(local_names(cap, cap.top), cont)
    elif isinstance(args[0], InstanceValue):
        cap.deliver(vars_of(cap, args[0]), cont)
    elif isinstance(args[0], Const) and isinstance(args[0].obj, type | types.ModuleType):
        get_attr(cap, args[0], "__dict__", cont)
    else:
        raise refuse("W107", f"vars() of {args[0].cls().__name__}", cap.loc())


@function(dir)
def dir_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if not args:
        names = local_names(cap, cap.top).items
        cap.deliver(from_python(sorted(map(str, names))), cont)
        return
    (x,) = args
    hook = user_method(cap, x, "__dir__")
    if hook is not None:
        cap.call(Const(hook), [x], {}, lambda found: collect(cap, found, lambda items: cap.call(
            Const(sorted), [ListValue(items)], {}, cont)))  # fmt: skip
        return
    cap.deliver(from_python(sorted(_names(cap, x))), cont)


def _names(cap: Capture, x: Value) -> list[str]:
    """What dir(x) finds. Errors: GraphBreak."""
    if isinstance(x, Const) and isinstance(x.obj, type):
        return _class_names(cap, x.obj)
    if isinstance(x, Const) and isinstance(x.obj, types.ModuleType):
        if "__dir__" in vars(x.obj):
            raise refuse("W107", "dir() of a module with its own __dir__", cap.loc())
        table = cap.wrap(vars(x.obj), InstanceDict.make(x.source or cap.pin(x.obj)))
        assert isinstance(table, DictValue)
        complete(cap, table)
        return [str(k) for k in table.items]
    kind = x.cls()
    plain = mro_lookup(kind, "__dir__") is object.__dir__
    if not plain or isinstance(x, TensorValue) or (
            isinstance(x, InstanceValue) and issubclass(kind, BaseException)):  # fmt: skip
        raise refuse("W107", f"dir() of a {kind.__name__}", cap.loc())
    own: list[str] = []
    if isinstance(x, InstanceValue):
        load_all_attrs(cap, x)
        slots = slot_names(kind)
        own = [k for k, v in x.attrs.items() if v is not None and k not in slots]
    elif isinstance(x, Const) and getattr(x.obj, "__dict__", None):
        raise refuse("W107", f"dir() of a {kind.__name__}", cap.loc())
    return list({*own, *_class_names(cap, kind)})


def _class_names(cap: Capture, kind: type) -> list[str]:
    if mro_lookup(type(kind), "__dir__") is not type.__dir__:
        raise refuse("W107", f"dir() of {kind.__name__}", cap.loc())
    show(cap, kind, "dir()")
    for base in kind.__mro__:
        watch_class(cap, base)
    return dir(kind)


@function(eval)
def eval_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """An expression in the names of the frame; what it defines is lost."""
    text = args[0]
    if len(args) > 1 or not isinstance(text, Const) or not isinstance(text.obj, str):
        raise refuse("W106", "eval() of anything but an expression in the frame", cap.loc())
    try:
        code = decode(compile(text.obj.lstrip(" \t"), "<string>", "eval"))
    except SyntaxError:
        raise refuse("W106", "eval() of a text that is no expression", cap.loc()) from None
    frame = cap.top
    names = {str(k): cap.force(v) for k, v in local_names(cap, frame).items.items()}
    push_frame(cap, code, frame.globals, {}, {}, cont, None, None)
    cap.top.names = names


@function(input, open, exec, compile)
def unsupported(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    raise refuse("W106", "a builtin that looks at or changes the frame or the system", cap.loc())
