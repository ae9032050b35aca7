"""torch's fake tensors without torch._dynamo and sympy: importing them costs a second or more.

Making a FakeTensorMode, putting a tensor into it and running an operator there read settings of
torch._dynamo and names of torch._dynamo.source. `QuietFakeTensorMode` runs the same code on globals
whose `torch` answers those itself while nobody has imported torch._dynamo, and asks it from then
on. torch's own classes and modules stay as they are. What a newer torch reads beyond the tables
below is imported as before.

The same holds for torch.fx.experimental.symbolic_shapes, for the sake of which sympy is imported:
`static_shapes` answers for it. What operators' results are computed by lies outside of the classes:
`torch_functions` sees to functions, `fake_kernels` to kernels.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import fake_tensor, meta_utils
from torch._subclasses.fake_tensor import FakeTensorMode

from torchweld.ir import static_shapes, torch_functions
from torchweld.ir.fake_kernels import Kernels
from torchweld.ir.static_shapes import SHAPES
from torchweld.ir.torch_functions import codes


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
    if name not in sys.modules:
        if name == SHAPES and wanted:
            return static_shapes
        if name == "sympy":
            return sys.modules[torch_functions.SYMPY]
    package, _, part = name.rpartition(".")
    if package == "torch._dynamo" and part in _PARTS:
        if not wanted:
            return _TORCH
        if all(n in _UNLOADED[part] for n in wanted):
            return _PARTS[part]
    found = builtins.__import__(name, scope, local, wanted, level)
    return _TORCH if found is _REAL else found


def _names(f: FunctionType) -> set[str]:
    """The words that are used as names in a function, or are part of a module's."""
    return {word for c in codes(f.__code__) for name in c.co_names for word in name.split(".")}


def _quiet(kind: type, module: ModuleType, replaced: Mapping[str, object]) -> Any:
    """A subclass of a class of `module`, whose methods find `_TORCH` under the name torch.

    replaced: what they find under other names.
    """
    scope = {
        **vars(module), **replaced, "torch": _TORCH,
        "__builtins__": {**vars(builtins), "__import__": _import},
    }  # fmt: skip
    changed = {"_dynamo", SHAPES.rpartition(".")[2], *replaced}
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


if TYPE_CHECKING:
    QuietFakeTensorMode = FakeTensorMode
else:
    _meta = _quiet(meta_utils.MetaConverter, meta_utils, {})
    _converter = _quiet(fake_tensor.FakeTensorConverter, fake_tensor, {"MetaConverter": _meta})
    QuietFakeTensorMode = _quiet(
        FakeTensorMode,
        fake_tensor,
        {
            "FakeTensorConverter": _converter,
            "op_implementations_checks": Kernels(),
        },
    )
    torch_functions.change()
