"""torch's own functions, changed so that calling them imports neither sympy nor torch._dynamo.

Two things inside torch import them on the first call of a function that gives shapes and dtypes:

- about 150 reference functions are kept from torch._dynamo by a wrapper that imports it
  (torch._disable_dynamo) and asks what to call instead. While nobody has imported it, that is the
  function itself: `Unwrapped` writes it into the slot where the wrapper looks first.
- about 150 functions import names of symbolic_shapes in their bodies. `Redirected` gives them code
  that differs in one word, the name of the module: it is `static_shapes`.

Both are taken back when the import of the real module begins. ADR 0015 says why that is safe.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

import torch
from torch._decomp import global_decomposition_table as _TABLES

from torchweld.ir import static_shapes
from torchweld.ir.static_shapes import FUNCTIONS, SHAPES, NoSympy


def codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the functions inside it."""
    yield code
    for c in code.co_consts:
        if isinstance(c, CodeType):
            yield from codes(c)


class UntilImported:
    """Calls `undo` when an import of `module` begins.

    It stands in sys.meta_path, where it sees imports, and finds nothing.
    """

    def __init__(self, module: str, undo: Callable[[], None]) -> None:
        self._module = module
        self._undo = undo

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == self._module:
            self._undo()


# ------------------------------------------------------------------------ torch._dynamo
_SLOT = "__dynamo_disable"
# of the function that torch._disable_dynamo makes of another, which it keeps in the cell `fn`
_DISABLE: Any = torch._disable_dynamo  # type: ignore[attr-defined]
_WRAPPER = _DISABLE(codes).__code__


class Unwrapped:
    """Functions that are called as they are until torch._dynamo is imported."""

    def __init__(self, functions: Iterable[FunctionType]) -> None:
        wrapped = [_cell(f, "fn") for f in functions if f.__code__ is _WRAPPER]
        self._functions = [f for f in wrapped if _SLOT not in vars(f)]
        for f in self._functions:
            setattr(f, _SLOT, f)

    def undo(self) -> None:
        for f in self._functions:
            vars(f).pop(_SLOT, None)
        self._functions = []


def _cell(f: FunctionType, name: str) -> Any:
    cells: Any = f.__closure__
    return cells[f.__code__.co_freevars.index(name)].cell_contents


# ---------------------------------------------------------------------- symbolic_shapes
# Python looks the first word of `import sympy` up in sys.modules: this is ours there.
SYMPY = "_torchweld_sympy"
sys.modules[SYMPY] = NoSympy(SYMPY)
_OURS = {SHAPES: static_shapes.__name__, FUNCTIONS: static_shapes.__name__, "sympy": SYMPY}


class Redirected:
    """Functions whose import statements find `static_shapes` until symbolic_shapes is imported."""

    def __init__(self, functions: Iterable[FunctionType]) -> None:
        self._before: list[tuple[FunctionType, CodeType, CodeType]] = []
        for f in functions:
            code = _redirected(f.__code__)
            if code is not f.__code__:
                self._before.append((f, f.__code__, code))
                f.__code__ = code

    def undo(self) -> None:
        for f, before, ours in self._before:
            if f.__code__ is ours:
                f.__code__ = before
        self._before = []


def _redirected(code: CodeType) -> CodeType:
    """The code, with our modules in its import statements; itself if it has none to change."""
    if all(_OURS.keys().isdisjoint(c.co_names) for c in codes(code)):
        return code
    consts = tuple(_redirected(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    changed = {name for name in code.co_names if name in _OURS and _only_imported(code, name)}
    if not changed and all(a is b for a, b in zip(consts, code.co_consts, strict=True)):
        return code
    names = tuple(_OURS[n] if n in changed else n for n in code.co_names)
    return code.replace(co_names=names, co_consts=consts)


def _only_imported(code: CodeType, name: str) -> bool:
    """Whether a name in `code` is only that of a module in statements that can be redirected.

    They are `from a.b import c`, and `import a`, which makes `a` a variable of the function. Not
    `import a.b`, which makes `a` a variable, nor `import a.b as c`, which reads b as an attribute.
    """
    first, *rest = name.split(".")
    local = first in (*code.co_varnames, *code.co_cellvars)
    return not local and rest[-1] not in code.co_names if rest else local


# --------------------------------------------------------------------------- finding them
# Modules with functions that run when an operator's result is predicted.
_PLACES = ("torch._refs", "torch._prims", "torch._decomp", "torch._meta_registrations",
           "torch._subclasses", "torch._library")  # fmt: skip


def _functions() -> list[FunctionType]:
    """The functions of these modules and in their tables, and what they wrap."""
    names = [n for n in list(sys.modules) if n.startswith(_PLACES)]
    todo = [f for n in names for f in _held(vars(sys.modules[n]))]
    tables: list[Mapping[Any, Any]] = [vars(torch), *_TABLES.values()]
    todo += [f for table in tables for f in table.values()]
    seen: set[int] = set()
    found: list[FunctionType] = []
    while todo:
        f = todo.pop()
        if isinstance(f, FunctionType) and id(f) not in seen:
            seen.add(id(f))
            found.append(f)
            todo += _inside(f)
    return found


def _held(module: dict[str, Any]) -> Iterator[object]:
    """What a module has under its names, and in its dicts and lists of functions."""
    for name, x in list(module.items()):
        yield x
        if isinstance(x, type) and x.__module__ == module["__name__"]:
            yield from vars(x).values()
        elif name != "__builtins__" and isinstance(x, (dict, list)):
            for item in list(x.values() if isinstance(x, dict) else x):
                yield from item if isinstance(item, tuple) else (item,)


def _inside(f: FunctionType) -> Iterator[object]:
    """What a function may wrap: what its cells hold."""
    for cell in f.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # the cell is still empty


def change() -> None:
    """Change torch's functions, once, where the real modules are not imported yet."""
    found = _functions()
    if "torch._dynamo" not in sys.modules:
        sys.meta_path.insert(0, UntilImported("torch._dynamo", Unwrapped(found).undo))
    if SHAPES not in sys.modules:
        sys.meta_path.insert(0, UntilImported(SHAPES, Redirected(found).undo))
