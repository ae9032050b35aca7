"""The forms in which users say which sizes vary, as one: torchweld's, those of torch.export, and
the shape specs of torch.compile (torch.fx.experimental.dynamic_spec).

torch's objects are known by their classes' names, so that nothing of it is imported for that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torchweld.base.errors import UsageError, UsageTypeError
from torchweld.capture.promises import STAYS, Promise
from torchweld.ir.conditions import Condition, Junction, Relation, junction, negation
from torchweld.ir.dims import Dim, Hint, Shapes, of
from torchweld.ir.expr import Expr, Sym, as_expr

_EXPORT = "torch.export.dynamic_shapes"
# class of torch's shape specs -> where it keeps what is in it
_KEPT = {"TensorSpec": "_specs", "ObjectSpec": "_fields", "DictSpec": "_entries",
         "SeqSpec": "_entries"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Given:
    """What is said of the parameters: by name, in order, of those of * and of **."""

    named: Mapping[str, Any] = field(default_factory=dict)
    ordered: tuple[Any, ...] = ()
    rest: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    assumptions: tuple[Condition, ...] = ()

    def check(self, model: Any) -> None:
        """Errors: UsageError for the name of something that the callable has no parameter for."""
        try:
            known = inspect.signature(getattr(model, "forward", model)).parameters
        except (TypeError, ValueError):
            return
        if any(p.kind is p.VAR_KEYWORD for p in known.values()):
            return
        for name in (*self.named, *self.keywords):
            if name not in known:
                raise UsageError("W401", f"dynamic_shapes names {name!r}, which is no parameter; "
                                         f"there are {', '.join(known)}")  # fmt: skip


def read(given: Any) -> Given:
    """The one form. Errors: UsageTypeError for what is none of the forms."""
    kind = type(given).__name__
    if isinstance(given, Shapes):
        inner = read(given.params) if given.params is not None else Given()
        return Given(inner.named, inner.ordered, inner.rest, inner.keywords, given.assumptions)
    if kind == "ShapesSpec":
        inner = read(given._params) if given._params is not None else Given()
        return Given(inner.named, (), inner.rest, inner.keywords,
                     tuple(map(condition, given.assumptions)))  # fmt: skip
    if kind == "ParamsSpec":
        return Given(given._named_args, (), tuple(given._varargs or ()), given._varkw or {})
    if isinstance(given, Mapping) and all(isinstance(k, str) for k in given):
        named = {k: v for k, v in given.items() if not k.startswith("*")}
        return Given(named, (), tuple(given.get("*args", ())), given.get("**kwargs", {}))
    if isinstance(given, tuple | list):
        return Given({}, tuple(given))
    raise UsageTypeError("W401", "dynamic_shapes must be a dict by parameter, a tuple in their "
                                 f"order, Shapes or one of torch's specs, not {kind}")  # fmt: skip


def inside(spec: Any) -> Any:
    """What is in one of torch's specs of tensors, objects, dicts and sequences; else itself."""
    name = _KEPT.get(type(spec).__name__)
    return spec if name is None or not hasattr(spec, name) else getattr(spec, name)


def promise_of(entry: Any, place: str, now: int) -> Promise:
    """What an entry says of one size or number. now: its value.

    Errors: UsageTypeError if it is no such entry.
    """
    if entry is None:
        return STAYS
    if isinstance(entry, bool):
        raise _no_entry(entry, place)
    if isinstance(entry, Dim):
        return Promise(entry.expr)
    if isinstance(entry, Hint):
        return _hinted(entry.kind, entry.min, entry.max, place)
    if type(entry) is int:
        return Promise(as_expr(entry))
    if isinstance(entry, torch.SymInt):
        return Promise(_of_sympy(entry.node.expr, _ranges(entry)))
    if type(entry).__module__ == _EXPORT:
        return _exported(entry, place)
    raise _no_entry(entry, place)


def _no_entry(entry: object, place: str) -> UsageTypeError:
    return UsageTypeError("W401", f"dynamic_shapes: {place} must be said to be a Dim, an int or "
                                  f"None, not {entry!r}")  # fmt: skip


def _hinted(kind: str, lo: Any, hi: Any, place: str) -> Promise:
    if kind == "static":
        return STAYS
    return Promise(Sym.make(place, _whole(lo), _whole(hi)), kind == "dynamic")


def _exported(entry: Any, place: str) -> Promise:
    if hasattr(entry, "type"):  # Dim.AUTO, Dim.DYNAMIC, Dim.STATIC
        return _hinted(entry.type.name.lower(), entry.min, entry.max, place)
    return Promise(_dim(entry))


def _dim(entry: Any) -> Expr:
    """The expression of torch.export.Dim."""
    if hasattr(entry, "root"):
        return entry.fn(_dim(entry.root))  # type: ignore[no-any-return]
    if hasattr(entry, "value"):
        return as_expr(entry.value)
    return Sym.make(entry.__name__, _whole(entry.min), _whole(entry.max))


def _whole(x: Any) -> int | None:
    """A bound; infinity is none."""
    return int(x) if isinstance(x, int) or getattr(x, "is_Integer", False) else None


# ---------------------------------------------------------------- expressions of sympy
def _ranges(entry: Any) -> Mapping[Any, Any]:
    return entry.node.shape_env.var_to_range  # type: ignore[no-any-return]


def _product(parts: Iterable[Any]) -> Any:
    out: Any = 1
    for p in parts:
        out = p * out
    return out


_MADE: dict[str, Callable[..., Any]] = {
    "Add": lambda *a: sum(a[1:], a[0]), "Mul": lambda *a: _product(a),
    "Pow": lambda a, b: _product([a] * b.value), "FloorDiv": lambda a, b: a // b,
    "Mod": lambda a, b: a % b, "PythonMod": lambda a, b: a % b,
    "CleanDiv": lambda a, b: a // b,
}  # fmt: skip


def _of_sympy(e: Any, ranges: Mapping[Any, Any]) -> Expr:
    """An expression of IntVars and ShapeVars."""
    if e.is_Symbol:
        known = ranges[e]
        return Sym.make(str(e), _whole(known.lower), _whole(known.upper))
    if e.is_Integer:
        return as_expr(int(e))
    how = _MADE.get(e.func.__name__)
    if how is None:
        raise UsageError("W401", f"dynamic_shapes: {e} is no sum, product or quotient of sizes")
    return how(*(_of_sympy(a, ranges) for a in e.args))  # type: ignore[no-any-return]


_RELATIONS: dict[str, Callable[[Dim, Dim], Condition]] = {
    "Equality": lambda a, b: a == b, "Unequality": lambda a, b: a != b,
    "LessThan": lambda a, b: a <= b, "StrictLessThan": lambda a, b: a < b,
    "GreaterThan": lambda a, b: a >= b, "StrictGreaterThan": lambda a, b: a > b,
}  # fmt: skip


def condition(given: Any) -> Condition:
    """A condition on sizes: torchweld's, or torch's SymBool."""
    if isinstance(given, Relation | Junction | bool):
        return given
    return _condition(given.node.expr, _ranges(given))


def _condition(e: Any, ranges: Mapping[Any, Any]) -> Condition:
    name = e.func.__name__
    if name in ("And", "Or"):
        return junction(name == "And", *(_condition(a, ranges) for a in e.args))
    if name == "Not":
        return negation(_condition(e.args[0], ranges))
    if name in ("BooleanTrue", "BooleanFalse"):
        return bool(name == "BooleanTrue")
    if name not in _RELATIONS:
        raise UsageError("W401", f"dynamic_shapes: {e} is no comparison of sizes")
    left, right = (of(_of_sympy(a, ranges)) for a in e.args)
    return _RELATIONS[name](left, right)

