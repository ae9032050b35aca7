"""Which parameter gets which argument, by Python's rules and with its words."""

from __future__ import annotations

from torchweld.capture.state import Raised, raised
from torchweld.capture.values.base import Const, DictValue, TupleValue, Value
from torchweld.frame.instr import Code


def bind(code: Code, name: str, defaults: list[Value], kwdefaults: dict[str, Value],
         args: list[Value], kwargs: dict[str, Value]) -> dict[str, Value]:  # fmt: skip
    """Parameters -> arguments. name: of the function, for messages. Errors: Raised(TypeError)."""
    n = code.argcount
    out: dict[str, Value] = dict(zip(code.params[:n], args, strict=False))
    extra = _named(code, name, out, kwargs)
    if len(args) > n and code.varargs is None:
        raise _too_many(code, name, len(defaults), len(args), out)
    for kind, names in (("positional", code.params[:n]),
                        ("keyword-only", code.params[n : n + code.kwonly])):  # fmt: skip
        if kind == "positional" and defaults:
            given: dict[str, Value] = dict(zip(names[n - len(defaults) :], defaults, strict=True))
        else:
            given = kwdefaults if kind == "keyword-only" else {}
        for param in names:
            if param not in out and param in given:
                out[param] = given[param]
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
