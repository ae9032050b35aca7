"""Why an entry does not fit a call, in words: what was guarded, what is there now, the user's line.

The guard programs answer with the number of an instruction; here it becomes a sentence.
"""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from torchweld.base.loc import NOWHERE
from torchweld.capture.class_state import ClassState
from torchweld.capture.guard_build import load
from torchweld.capture.late import Decided
from torchweld.capture.predicates import Equals, SameElements, SameNumber
from torchweld.capture.session import is_library
from torchweld.capture.size_guards import value_of
from torchweld.frame.program import Entry, tensor_codes
from torchweld.ir.guard import Guard, SizeRelation
from torchweld.ir.source import (
    Attr,
    CellContents,
    InstanceDict,
    Item,
    Local,
    Pinned,
    Source,
    TypeOf,
)
from torchweld.pipeline import Miss

_SHOWN = 60
_MANY = 8  # values of one thing
# dtypes that torch warns of
_RARE = ("q", "complex32", "chalf")
_DEVICES = {0: "cpu", 1: "cuda"}
_GONE = object()


def why_missed(entries: Iterable[Entry], args: tuple[object, ...]) -> tuple[Miss, ...]:
    """What each entry's first failing guard is; the same reason once."""
    found: dict[Miss, None] = {}
    kept = list(entries)
    for entry in kept:
        at = entry.program.explain(args)
        if at >= 0:
            found[_miss(entry, at, args, kept)] = None
    return tuple(found)


def summary(entries: Sequence[Entry], args: tuple[object, ...]) -> str:
    """What most of these entries do not fit by, in one sentence with all of its values."""
    failing: dict[tuple[str, Source | None], list[Guard]] = {}
    for entry in entries:
        guard = getattr(entry.program, "guards", {}).get(entry.program.explain(args))
        if guard is not None:
            failing.setdefault((guard.kind, guard.source), []).append(guard)
    if not failing:
        return ""
    guards = max(failing.values(), key=len)
    last = guards[-1]
    now = _GONE if last.source is None else _now(last.source, args)
    what, fix = _WORDS[last.kind](last, now, args)
    values = list(dict.fromkeys(shown(g.expected) for g in guards))
    if len(values) > _MANY:
        values[_MANY - 1 : -1] = ["..."]
    if last.kind == "length" and now is not _GONE:
        what = f"{_name(last)} had length {', '.join(values)}, has {len(now)}"  # type: ignore[arg-type]
    elif last.kind == "equal":
        what = f"{_name(last)} was {', '.join(values)}, is {shown(now)}"
    return Miss(what, fix, last.why).text()


def _miss(entry: Entry, at: int, args: tuple[object, ...], entries: Sequence[Entry]) -> Miss:
    guards: dict[int, Guard] = getattr(entry.program, "guards", {})
    guard = guards.get(at)
    if guard is None:
        reasons: Sequence[str] = getattr(entry.program, "reasons", ())
        name = reasons[at] if at < len(reasons) else f"guard {at}"
        return Miss(f"`{name}` is not there any more")
    now = _GONE if guard.source is None else _now(guard.source, args)
    what, fix = _WORDS[guard.kind](guard, now, args)
    if fix in _LEARNED and _values(guard, entries) < 2:
        fix = _LEARNED[fix]
    return Miss(what, fix, NOWHERE if is_library(guard.why.file) else guard.why)


def _values(guard: Guard, entries: Sequence[Entry]) -> int:
    """For how many values, of what this guard is about, something was compiled."""
    return len({g.expected for e in entries for g in e.info.guards
                if (g.kind, g.source) == (guard.kind, guard.source)})  # fmt: skip


def _now(source: Source, args: tuple[object, ...]) -> object:
    try:
        return load(source, args)
    except Exception:  # whatever the user's own attributes raise
        return _GONE


# ---------------------------------------------------------------- places in words
_TABLES = ("_modules", "_parameters", "_buffers")


def place(source: Source) -> str:
    """Where a value is found, as the user would write it: `net.blocks[0].weight`."""
    match source:
        case Item(base=Item(base=InstanceDict(base=owner), key=str(table)), key=str(key)) if (
                table in _TABLES):  # fmt: skip
            return f"{place(owner)}[{key}]" if key.isdigit() else f"{place(owner)}.{key}"
        case Item(base=InstanceDict(base=owner), key=str(key)):
            return f"{place(owner)}.{key}"
        case Item(base=Pinned(), key=str(key)) if source.text() == key:
            return key  # a global
        case Item(key=key):
            return f"{place(source.base)}[{key!r}]"
        case Attr(base=base, name=name):
            return f"{place(base)}.{name}"
        case InstanceDict(base=base):
            return f"vars({place(base)})"
        case TypeOf(base=base):
            return f"type({place(base)})"
        case CellContents(base=base):
            return place(base)
        case Local(name=name) if name.startswith("."):
            return "what was computed at the break"
    return source.text()


def getter_words(getter: Any) -> str:
    """A nullary callable that reads a state of torch: `torch.is_grad_enabled()`."""
    fn = getattr(getter, "func", getter)
    args: tuple[Any, ...] = getattr(getter, "args", ())
    if fn is getattr:
        return f"{args[0].__name__}.{args[1]}"
    name = str(getattr(fn, "__name__", fn)).lstrip("_")
    return f"{name}({', '.join(map(shown, args))})"


# ---------------------------------------------------------------- objects in words
def shown(x: object) -> str:
    """An object in a few words."""
    if x is _GONE:
        return "not there"
    if isinstance(x, torch.Tensor):
        return f"{type(x).__name__} {str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
    if isinstance(x, types.BuiltinFunctionType):  # torch keeps its own in a class
        return f"{x.__module__ or 'builtins'}.{x.__name__}"
    if isinstance(x, types.FunctionType | type | types.MethodType):
        return f"{x.__module__}.{x.__qualname__}"
    if isinstance(x, list | dict | set | tuple):
        return f"{type(x).__name__} of {len(x)}"
    if isinstance(x, torch.nn.Module) or type(x).__repr__ is object.__repr__:
        return f"{type(x).__name__} at {id(x):#x}"
    try:
        said = repr(x)
    except Exception:
        said = type(x).__name__
    return said if len(said) <= _SHOWN else said[: _SHOWN - 3] + "..."


def shown_set(x: object) -> str:
    """A set with its elements, where they are few."""
    said = repr(x) if isinstance(x, set | frozenset) else shown(x)
    return said if len(said) <= _SHOWN else shown(x)


@functools.cache
def _dtypes() -> dict[int, str]:
    """libtorch's number of a dtype -> its name."""
    found: dict[int, str] = {}
    for name, d in vars(torch).items():
        if not isinstance(d, torch.dtype) or name.startswith(_RARE):
            continue
        try:
            found[tensor_codes(torch.empty(0, dtype=d))[1]] = str(d).removeprefix("torch.")
        except (RuntimeError, TypeError, NotImplementedError):
            continue  # a dtype without memory of its own
    return found


def _device(kind: int, index: int) -> str:
    name = _DEVICES.get(kind, f"device {kind}")
    return name if index < 0 or kind == 0 else f"{name}:{index}"


def spec_words(spec: Sequence[Any]) -> str:
    """The metadata of a tensor guard: `float32[2, 3] cpu`."""
    sizes = "[" + ", ".join("any" if n is None else str(n) for n in spec[6]) + "]"
    kind = "" if spec[0] in (torch.Tensor, torch.nn.Parameter) else f"{spec[0].__name__} "
    grad = " requires grad" if spec[5] else ""
    return f"{kind}{_dtypes().get(spec[1], spec[1])}{sizes} {_device(spec[2], spec[3])}{grad}"


# ---------------------------------------------------------------- guards in words
Words = Callable[[Guard, object, tuple[object, ...]], tuple[str, str]]
# what to do, where more than one kind of guard says so
_NUMBER = "its value is needed there: pass it as a tensor, or keep it the same"
_FEW = "each size is compiled for itself there: use few sizes"
# the same where only one value was seen: what differs is learned from
_LEARNED = {
    _NUMBER: "none needed: from now on it is an input where its value is not needed",
    _FEW: "none needed: unless dynamic=False it is a symbol from now on; mark_dynamic saves this",
}
_SPECIAL = "sizes 0 and 1 are compiled for themselves"
_ONCE = "none needed: each of them is compiled once"
_SETTLES = "none needed: each answer is compiled once"
_HOOKS = "register hooks before the first call, and leave them"
_MEMBERS = (bool, type(None), enum.Enum)


def _name(guard: Guard) -> str:
    return f"`{place(guard.source)}`" if guard.source is not None else "state"


def _one(kind: type) -> str:
    """A class with its article: an int, a float."""
    name = kind.__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def _equal(guard: Guard, now: object, args: tuple[object, ...]) -> tuple[str, str]:
    number = type(guard.expected) in (int, float) and type(now) in (int, float)
    few = isinstance(guard.expected, _MEMBERS) or now is None
    fix = _NUMBER if number else _ONCE if few else "keep it the same"
    return f"{_name(guard)} was {shown(guard.expected)}, is {shown(now)}", fix


def _identity(guard: Guard, now: object, args: tuple[object, ...]) -> tuple[str, str]:
    old, new = shown(guard.expected), shown(now)
    if isinstance(guard.expected, _MEMBERS):
        return f"{_name(guard)} was {old}, is {new}", _ONCE
    if old == new:
        return f"{_name(guard)} is another object: {new}", "pass the same object again"
    return f"{_name(guard)} was {old}, is {new}", "pass the same object again"


def _not_identity(guard: Guard, now: object, args: tuple[object, ...]) -> tuple[str, str]:
    return f"{_name(guard)} was not {shown(guard.expected)}, now it is", _ONCE


def _type(guard: Guard, now: object, args: tuple[object, ...]) -> tuple[str, str]:
    assert isinstance(guard.expected, type)
    new = "not there" if now is _GONE else "None" if now is None else _one(type(now))
    was = "None" if guard.expected is type(None) else _one(guard.expected)
    return f"{_name(guard)} was {was}, is {new}", "pass one type"


def _length(guard: Guard, now: Any, args: tuple[object, ...]) -> tuple[str, str]:
    try:
        new = str(len(now))
    except TypeError:
        new = "none"
    hooks = _hooks(guard)
    if hooks is not None:
        return f"{hooks[0]} had {guard.expected} {hooks[1]}, has {new}", _HOOKS
    what = f"{_name(guard)} had length {guard.expected}, has {new}"
    return what, "pass one length, or one Tensor of all"


def _hooks(guard: Guard) -> tuple[str, str] | None:
    """Whose hooks a guard is about, and which; None if it is about something else."""
    source = guard.source
    key = str(getattr(source, "key", ""))
    if not isinstance(source, Item) or not key.startswith("_") or not key.endswith("_hooks"):
        return None
    which = key.removeprefix("_global").strip("_").replace("_", " ")
    if key.startswith("_global"):
        return "`torch.nn.Module`", which
    base = source.base
    owner = base.base if isinstance(base, InstanceDict) else base
    return f"`{place(owner)}`", which


def _has_key(guard: Guard, now: object, args: tuple[object, ...]) -> tuple[str, str]:
    return f"{_name(guard)} had {guard.expected!r}, now it has not", _ONCE


def _lacks_key(guard: Guard, now: object, args: tuple[object, ...]) -> tuple[str, str]:
    return f"{_name(guard)} had no {guard.expected!r}, now it has", _ONCE


def _lacks_tensor(guard: Guard, now: object, args: tuple[object, ...]) -> tuple[str, str]:
    assert isinstance(guard.expected, Source)
    return f"{_name(guard)} had no `{place(guard.expected)}`, now it has", ""


def _keys(guard: Guard, now: Any, args: tuple[object, ...]) -> tuple[str, str]:
    new = tuple(now) if isinstance(now, dict) else ()
    assert isinstance(guard.expected, tuple)
    old = guard.expected
    hooks = _hooks(guard)
    if hooks is not None:
        return f"{hooks[0]} has other {hooks[1]}", _HOOKS
    if set(old) == set(new):
        return f"{_name(guard)} has its keys in another order", "keep the order"
    more = ", ".join(map(repr, [k for k in new if k not in old])) or "nothing"
    less = ", ".join(map(repr, [k for k in old if k not in new])) or "nothing"
    return f"{_name(guard)} has got {more} and lost {less}", "pass the same keys"


def _tensor(guard: Guard, now: object, args: tuple[object, ...]) -> tuple[str, str]:
    name, old = _name(guard), guard.expected
    assert isinstance(old, tuple)
    if not isinstance(now, torch.Tensor):
        return f"{name} was a tensor, is {shown(now)}", "pass a tensor"
    new = tensor_codes(now)
    if old[0] is not new[0]:
        return f"{name} was {_one(old[0])}, is {_one(new[0])}", "pass one class"
    if old[1] != new[1]:
        was = _dtypes().get(old[1], old[1])
        return f"{name} was {was}, is {str(now.dtype).removeprefix('torch.')}", "pass one dtype"
    if old[2:4] != new[2:4]:
        return f"{name} was on {_device(old[2], old[3])}, is on {now.device}", "pass one device"
    if old[5] is not None and old[5] != new[5]:
        return f"{name}.requires_grad was {old[5]}, is {new[5]}", "pass one or the other"
    if len(old[6]) != len(new[6]):
        return f"{name} had {len(old[6])} dimensions, has {len(new[6])}", "pass one rank"
    for i, (a, b) in enumerate(zip(old[6], new[6], strict=True)):
        if a is not None and a != b:
            fix = _SPECIAL if a in (0, 1) or b in (0, 1) else _FEW
            return f"{name} had size {a} in dimension {i}, has {b}", fix
    if old[7] != new[7]:
        return f"{name} had strides {old[7]}, has {new[7]}", "pass one layout: .contiguous()"
    return f"{name} was {spec_words(old)}, is another kind of tensor", ""


def _pair(guard: Guard, now: object, args: tuple[object, ...]) -> tuple[str, str]:
    assert isinstance(guard.expected, Source)
    other = f"`{place(guard.expected)}`"
    if guard.kind == "same":
        return f"{_name(guard)} and {other} were one object, are two", _ONCE
    if guard.kind == "same_value":
        return f"{_name(guard)} and {other} held the same number, do not any more", ""
    return f"{_name(guard)} and {other} were two objects, are one", _ONCE


def _class(guard: Guard, now: object, args: tuple[object, ...]) -> tuple[str, str]:
    if isinstance(guard.expected, ClassState):
        for base, name in guard.expected.changed():
            was, now = guard.expected.found[base][name], vars(base)[name]
            return f"`{base.__qualname__}.{name}` was {shown(was)}, is {shown(now)}", (
                "none needed: from now on it is read in each call")  # fmt: skip
    return f"an attribute of class {_name(guard)} or of its bases was set", "set it before"


def _state(guard: Guard, now: object, args: tuple[object, ...]) -> tuple[str, str]:
    assert isinstance(guard.expected, tuple)
    getter, old = guard.expected
    try:
        new = getter()
    except Exception:
        new = _GONE
    return f"{getter_words(getter)} was {shown(old)}, is {shown(new)}", _ONCE


def _sizes(guard: Guard, now: object, args: tuple[object, ...]) -> tuple[str, str]:
    """`2 <= x.shape[0]` held, does not hold where x.shape[0] is 1."""
    relation = guard.expected
    assert isinstance(relation, SizeRelation)
    names = relation.names(lambda r: r.name(place(r.source)))
    found = []
    for r in relation.readings:
        try:
            found.append(f"{names[r.symbol]} is {value_of(r, load(r.source, args))}")
        except Exception:  # the input is something else now
            found.append(f"{names[r.symbol]} is not there")
    said = relation.fact.text(names)
    is_size = any(r.kind == "size" for r in relation.readings)
    fix = _SPECIAL if said.startswith("2 <= ") and is_size else (
        _NUMBER if " == " in said and not is_size else _SETTLES)  # fmt: skip
    return f"`{said}` held, but {' and '.join(found)}", fix


def _predicate(guard: Guard, now: object, args: tuple[object, ...]) -> tuple[str, str]:
    if isinstance(guard.expected, Decided) and guard.source is not None and now is not _GONE:
        name = place(guard.source)
        number = now.item() if isinstance(now, torch.Tensor) else now
        return f"`{guard.expected.text(name)}` held, but `{name}` is {shown(number)}", (
            _SETTLES)  # fmt: skip
    if isinstance(guard.expected, Equals | SameNumber):
        words = f"{_name(guard)} was {shown(guard.expected.obj)}, is {shown(now)}"
        return words, "keep it the same"
    if isinstance(guard.expected, SameElements):
        old = guard.expected.kind(guard.expected.items)
        return f"{_name(guard)} was {shown_set(old)}, is {shown_set(now)}", "keep it the same"
    said = getattr(guard.expected, "__name__", guard.expected)
    return f"{said} was true of {_name(guard)}, is not", ""


_WORDS: dict[str, Words] = {
    "type": _type, "is": _identity, "is_not": _not_identity, "equal": _equal, "length": _length,
    "has_key": _has_key, "lacks_key": _lacks_key, "keys": _keys, "tensor": _tensor, "same": _pair,
    "distinct": _pair, "same_value": _pair, "class_version": _class, "state": _state,
    "sizes": _sizes, "predicate": _predicate, "lacks_tensor": _lacks_tensor,
}  # fmt: skip
