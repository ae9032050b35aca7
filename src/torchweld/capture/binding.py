"""Which parameter gets which argument, by Python's rules and with its words."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping, Sequence

from torchweld.capture.session import Capture
from torchweld.capture.state import Raised, raised
from torchweld.capture.values.base import Const, DictValue, Lazy, Slot, TupleValue, Value
from torchweld.capture.wrap import IMMUTABLE, complete
from torchweld.frame.instr import Code
from torchweld.ir.source import Attr, Item, Source

Defaults = tuple[list[Slot], dict[str, Slot]]  # by position, by keyword


def defaults_of(cap: Capture, real: types.FunctionType, source: Source) -> Defaults:
    """The defaults of a function that is known by its identity.

    They are guarded by what they are where they are used, so that equal new ones fit; constants of
    torch's and the standard library's functions are not watched.
    """
    top = str(real.__module__).split(".")[0]
    watched = top not in ("torch", "torchweld") and top not in sys.stdlib_module_names
    values, named = real.__defaults__ or (), real.__kwdefaults__ or {}
    base, by_name = Attr.make(source, "__defaults__"), Attr.make(source, "__kwdefaults__")
    if watched and values:
        cap.guard("type", base, tuple)
        cap.guard("length", base, len(values))
    if watched and named:
        cap.guard("type", by_name, dict)

    def slot(value: object, at: Source) -> Slot:
        fixed = not watched and isinstance(value, (*IMMUTABLE, type, types.FunctionType))
        return Const(value) if fixed else Lazy(value, at)

    return ([slot(v, Item.make(base, i, True)) for i, v in enumerate(values)],
            {k: slot(v, Item.make(by_name, k, False)) for k, v in named.items()})  # fmt: skip


def given_defaults(cap: Capture, real: types.FunctionType, source: Source) -> Defaults:
    """The defaults of a function that is another object in each call."""
    given = cap.wrap(real.__defaults__, Attr.make(source, "__defaults__"))
    named = cap.wrap(real.__kwdefaults__, Attr.make(source, "__kwdefaults__"))
    by_name: dict[str, Slot] = {}
    if isinstance(named, DictValue):
        complete(cap, named)
        by_name = {str(k): v for k, v in named.items.items()}
    return [*given.items] if isinstance(given, TupleValue) else [], by_name


def bind(code: Code, name: str, defaults: Sequence[Slot], kwdefaults: Mapping[str, Slot],
         args: list[Value], kwargs: dict[str, Value],
         force: Callable[[Slot], Value]) -> dict[str, Value]:  # fmt: skip
    """Parameters -> arguments. name: of the function, for messages. force: reads a default that is
    used. Errors: Raised(TypeError)."""
    n = code.argcount
    out: dict[str, Value] = dict(zip(code.params[:n], args, strict=False))
    extra = _named(code, name, out, kwargs)
    if len(args) > n and code.varargs is None:
        raise _too_many(code, name, len(defaults), len(args), out)
    for kind, names in (("positional", code.params[:n]),
                        ("keyword-only", code.params[n : n + code.kwonly])):  # fmt: skip
        if kind == "positional" and defaults:
            given: Mapping[str, Slot] = dict(
                zip(names[n - len(defaults) :], defaults, strict=True))  # fmt: skip
        else:
            given = kwdefaults if kind == "keyword-only" else {}
        for param in names:
            if param not in out and param in given:
                out[param] = force(given[param])
        missing = [repr(p) for p in names if p not in out]
        if missing:
            raise raised(TypeError, f"{name}() missing {len(missing)} required {kind} "
                                    f"argument{_s(missing)}: {_listed(missing)}")  # fmt: skip
    if code.varargs is not None:
        out[code.varargs] = TupleValue(list(args[n:]))
    if code.varkw is not None:
        out[code.varkw] = extra
    return out


def _named(code: Code, name: str, out: dict[str, Value], kwargs: dict[str, Value]) -> DictValue:
    """Put keyword arguments into `out`: those that no parameter takes."""
    extra = DictValue(dict)
    by_keyword = set(code.params[code.posonly : code.argcount + code.kwonly])
    for key, value in kwargs.items():
        if key in by_keyword:
            if key in out:
                raise raised(TypeError, f"{name}() got multiple values for argument '{key}'")
            out[key] = value
        elif code.varkw is not None:
            extra.items[key] = value
            extra.keys[key] = Const(key)
        elif (wrong := [p for p in code.params[: code.posonly] if p in kwargs]):
            raise raised(TypeError, f"{name}() got some positional-only arguments passed as "
                                    f"keyword arguments: '{', '.join(wrong)}'")  # fmt: skip
        else:
            raise raised(TypeError, f"{name}() got an unexpected keyword argument '{key}'")
    return extra


def _too_many(code: Code, name: str, n_defaults: int, n_args: int,
              out: dict[str, Value]) -> Raised:  # fmt: skip
    n = code.argcount
    takes = f"from {n - n_defaults} to {n}" if n_defaults else str(n)
    plural = "s" if n_defaults or n != 1 else ""
    named = sum(p in out for p in code.params[n : n + code.kwonly])
    given = str(n_args)
    if named:
        given += (f" positional argument{'s' if n_args != 1 else ''} "
                  f"(and {named} keyword-only argument{'s' if named != 1 else ''})")  # fmt: skip
    verb = "was" if n_args == 1 and not named else "were"
    return raised(TypeError, f"{name}() takes {takes} positional argument{plural} but {given} "
                             f"{verb} given")  # fmt: skip


def _s(items: list[str]) -> str:
    return "" if len(items) == 1 else "s"


def _listed(items: list[str]) -> str:
    """'a', 'b', and 'c'."""
    if len(items) < 3:
        return " and ".join(items)
    return f"{', '.join(items[:-1])}, and {items[-1]}"
