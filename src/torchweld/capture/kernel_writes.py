"""Which of its arguments a Triton kernel may write to, by its source.

A parameter flows into everything that is computed from it, but for what `tl.load` reads. Where a
value that a parameter flows into is stored to, or handed to a function that is not Triton's own,
the parameter may be written. Anything that is not understood makes all of them written.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Iterator

_WRITES = ("store", "atomic_")
# what is read through a pointer does not point there
_READS = ("load", "gather")
_PLAIN = frozenset((
    "range", "min", "max", "abs", "len", "float", "int", "bool", "print", "isinstance", "tuple",
))  # fmt: skip


@functools.lru_cache(maxsize=256)
def written_parameters(fn: types.FunctionType) -> frozenset[str]:
    """The parameters that may be written through."""
    names = frozenset(inspect.signature(fn).parameters)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(fn)))
    except (OSError, TypeError, SyntaxError):
        return names
    body = tree.body[0]
    if not isinstance(body, ast.FunctionDef) or _is_beyond(body):
        return names
    flows = _Flows(fn, names)
    while flows.grow(body):
        pass
    return frozenset(flows.written)


def _is_beyond(body: ast.FunctionDef) -> bool:
    """Whether numbers become pointers, or code is not Triton's."""
    words = {n.attr for n in ast.walk(body) if isinstance(n, ast.Attribute)} | {
        n.id for n in ast.walk(body) if isinstance(n, ast.Name)}  # fmt: skip
    inner = any(isinstance(n, ast.FunctionDef | ast.Lambda | ast.ClassDef)
                for n in ast.walk(body) if n is not body)  # fmt: skip
    return inner or any("pointer_type" in w or "inline_asm" in w or "extern" in w for w in words)


class _Flows:
    """The parameters that flow into each variable, and those that are written, so far."""

    def __init__(self, fn: types.FunctionType, names: frozenset[str]) -> None:
        self.fn = fn
        self.into: dict[str, set[str]] = {n: {n} for n in names}
        self.written: set[str] = set()

    def grow(self, body: ast.FunctionDef) -> bool:
        """Follow every statement once; whether anything new was found."""
        before = sum(map(len, self.into.values())), len(self.written)
        for node in ast.walk(body):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    self._bind(target, node.value)
            elif isinstance(node, ast.For | ast.comprehension):
                self._assign(node.target, self.of(node.iter))
            elif isinstance(node, ast.Call):
                self._call(node)
        return before != (sum(map(len, self.into.values())), len(self.written))

    def _bind(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and (
                len(target.elts) == len(value.elts)):  # fmt: skip
            for inner, part in zip(target.elts, value.elts, strict=True):
                self._bind(inner, part)
        elif value is not None:
            self._assign(target, self.of(value))

    def _assign(self, target: ast.expr, found: set[str]) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self.into.setdefault(node.id, set()).update(found)

    def of(self, value: ast.AST) -> set[str]:
        """The parameters that flow into an expression."""
        if isinstance(value, ast.Call) and _name(value.func).startswith(_READS):
            return set()
        if isinstance(value, ast.Name):
            return self.into.get(value.id, set())
        found: set[str] = set()
        for inner in ast.iter_child_nodes(value):
            found |= self.of(inner)
        return found

    def _call(self, call: ast.Call) -> None:
        name = _name(call.func)
        given = [*call.args, *(k.value for k in call.keywords)]
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        if name.startswith(_WRITES) or not self._is_known(call.func):
            for x in (*given, *([receiver] if receiver is not None else [])):
                self.written |= self.of(x)

    def _is_known(self, func: ast.expr) -> bool:
        """Whether a function is Triton's own, a built-in one, or a method of a value of its."""
        root = func
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name):
            return isinstance(func, ast.Attribute)  # a method of what an expression gives
        if root.id in self.into:
            return isinstance(func, ast.Attribute)
        if root.id in _PLAIN:
            return func is root
        found = self._global(root.id)
        return str(getattr(found, "__module__", "") or getattr(found, "__name__", "")).startswith(
            "triton")  # fmt: skip

    def _global(self, name: str) -> object:
        free = dict(zip(self.fn.__code__.co_freevars, _cells(self.fn), strict=True))
        return free.get(name, self.fn.__globals__.get(name))


def _cells(fn: types.FunctionType) -> Iterator[object]:
    for cell in fn.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            yield None


def _name(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
