"""torch's fake tensors without torch._dynamo: importing it costs a second, for some defaults.

Making a FakeTensorMode, putting a tensor into it and running an operator there read settings of
torch._dynamo and names of torch._dynamo.source. `QuietFakeTensorMode` runs the same code on globals
whose `torch` answers those itself while nobody has imported torch._dynamo, and asks it from then
on. torch's own classes and modules stay as they are. What a newer torch reads beyond the tables
below is imported as before.

Besides, about 150 of torch's reference functions, which give shapes and dtypes of results, are kept
from torch._dynamo by a wrapper that imports it (torch._disable_dynamo) and asks what to call
instead. While nobody has imported it, that is the function itself: `References` writes it into the
slot where the wrapper looks first, and takes it out again when an import of torch._dynamo begins.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch._decomp import global_decomposition_table as _TABLES
from torch._subclasses import fake_tensor, meta_utils
from torch._subclasses.fake_tensor import FakeTensorMode


class _Source:
    """Says where a tensor came from, to code that only passes it on."""

    name = "unknown"

    def __init__(self, *parts: object) -> None:
        pass


def _source(name: str) -> type[_Source]:
    return type(name, (_Source,), {})


UNKNOWN_SOURCE: Any = _Source()

# Parts of torch._dynamo, and what is in them while nobody has imported them.
_UNLOADED: dict[str, dict[str, object]] = {
    "config": {
        "fake_tensor_cache_enabled": True,
        "fake_tensor_cache_crosscheck_enabled": False,
        "_custom_ops_profile": None,
    },
    "source": {n: _source(n) for n in ("ConstantSource", "AttrSource", "RandomValueSource")},
}


class _Part:
    """One part of torch._dynamo. Attributes that the table lacks are read from the module."""

    def __init__(self, name: str) -> None:
        self._full = f"torch._dynamo.{name}"
        self._table = _UNLOADED[name]

    def __getattr__(self, name: str) -> Any:
        if name in self._table:
            return getattr(sys.modules.get(self._full), name, self._table[name])
        builtins.__import__(self._full)
        return getattr(sys.modules[self._full], name)


_PARTS = {name: _Part(name) for name in _UNLOADED}


class _Dynamo:
    def __getattr__(self, name: str) -> Any:
        return _PARTS[name] if name in _PARTS else getattr(_REAL._dynamo, name)


class _Torch:
    """torch, but for `_dynamo`."""

    _dynamo = _Dynamo()

    def __getattr__(self, name: str) -> Any:
        return getattr(_REAL, name)


_REAL: Any = torch
_TORCH = _Torch()


def _import(
    name: str, scope: Any = None, local: Any = None, wanted: Any = (), level: int = 0
) -> Any:
    """The import statement, for code whose `torch` is `_TORCH`."""
    package, _, part = name.rpartition(".")
    if package == "torch._dynamo" and part in _PARTS:
        if not wanted:
            return _TORCH
        if all(n in _UNLOADED[part] for n in wanted):
            return _PARTS[part]
    found = builtins.__import__(name, scope, local, wanted, level)
    return _TORCH if found is _REAL else found


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the functions inside it."""
    yield code
    for c in code.co_consts:
        if isinstance(c, CodeType):
            yield from _codes(c)


def _names(f: FunctionType) -> set[str]:
    """The words that are used as names in a function, or are part of a module's."""
    return {word for c in _codes(f.__code__) for name in c.co_names for word in name.split(".")}


def _quiet(kind: type, module: ModuleType, replaced: Mapping[str, object]) -> Any:
    """A subclass of a class of `module`, whose methods find `_TORCH` under the name torch.

    replaced: what they find under other names.
    """
    scope = {
        **vars(module), **replaced, "torch": _TORCH,
        "__builtins__": {**vars(builtins), "__import__": _import},
    }  # fmt: skip
    changed = {"_dynamo", *replaced}
    methods: dict[str, FunctionType] = {}
    for name, f in vars(kind).items():
        own = isinstance(f, FunctionType) and f.__globals__ is vars(module)
        if own and not changed.isdisjoint(_names(f)):
            twin = FunctionType(f.__code__, scope, name, f.__defaults__, f.__closure__)
            twin.__kwdefaults__ = f.__kwdefaults__
            methods[name] = twin
    # without a wrapper of torch._dynamo around __torch_dispatch__
    skips = {"_should_skip_dynamo": classmethod(lambda cls: False)}
    return type("Quiet" + kind.__name__, (kind,), {**methods, **skips})


# ---------------------------------------------------------------- reference functions
_SLOT = "__dynamo_disable"
# of the function that torch._disable_dynamo makes of another, which it keeps in the cell `fn`
_WRAPPER = _REAL._disable_dynamo(_codes).__code__


class References:
    """Reference functions that are called as they are until torch._dynamo is imported.

    It stands in sys.meta_path, where it sees imports, and finds nothing.
    """

    def __init__(self, functions: Iterable[FunctionType]) -> None:
        self._functions = [f for f in functions if _SLOT not in vars(f)]
        for f in self._functions:
            setattr(f, _SLOT, f)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torch._dynamo":
            for f in self._functions:
                vars(f).pop(_SLOT, None)
            self._functions = []


def _cell(f: FunctionType, name: str) -> Any:
    cells: Any = f.__closure__
    return cells[f.__code__.co_freevars.index(name)].cell_contents


def _inside(f: FunctionType) -> Iterator[object]:
    """What a function may wrap: what its cells hold."""
    for cell in f.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # the cell is still empty


def _kept_from_dynamo() -> Iterator[FunctionType]:
    """What torch._disable_dynamo wraps among the reference functions and decompositions."""
    names = [n for n in sys.modules if n.startswith("torch._refs")]
    todo: list[object] = [f for n in names for f in vars(sys.modules[n]).values()]
    todo += [f for table in _TABLES.values() for f in table.values()]
    seen: set[int] = set()
    while todo:
        f = todo.pop()
        if not isinstance(f, FunctionType) or id(f) in seen:
            continue
        seen.add(id(f))
        todo += _inside(f)
        if f.__code__ is _WRAPPER:
            yield _cell(f, "fn")


if TYPE_CHECKING:
    QuietFakeTensorMode = FakeTensorMode
else:
    _meta = _quiet(meta_utils.MetaConverter, meta_utils, {})
    _converter = _quiet(fake_tensor.FakeTensorConverter, fake_tensor, {"MetaConverter": _meta})
    QuietFakeTensorMode = _quiet(FakeTensorMode, fake_tensor, {"FakeTensorConverter": _converter})
    if "torch._dynamo" not in sys.modules:
        sys.meta_path.insert(0, References(_kept_from_dynamo()))
