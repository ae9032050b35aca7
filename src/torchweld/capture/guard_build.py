"""Guards and sources -> the guard program that the dispatcher runs before every call."""

from __future__ import annotations

import types
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from torchweld.base.errors import InternalError
from torchweld.capture.size_guards import operand
from torchweld.frame.program import Builder, Op, Program, tensor_codes, torch_inference
from torchweld.ir.guard import Guard, SizeRelation
from torchweld.ir.source import (
    Applied,
    Attr,
    CellContents,
    ClosureCell,
    InstanceDict,
    Item,
    Keyed,
    Local,
    Pinned,
    Reduced,
    Source,
    TypeOf,
)

# up to this number, pairs of distinct objects are checked one by one
FEW_PAIRS = 4
# guards about an item of a dict that cannot change while the dict does not (the guard program
# itself checks the type again where `__class__` can be assigned)
_STABLE = ("is", "equal", "is_not", "type")
# guards about a dict that cannot change while it does not
_OF_DICT = ("lacks_key", "has_key", "keys", "length")


def is_no_inference(x: torch.Tensor) -> bool:
    """The opposite of `torch.is_inference`."""
    return not x.is_inference()


# predicates that a tensor guard of the same source answers without Python code
_INFERENCE: dict[object, bool] = {torch.is_inference: True, is_no_inference: False}


def _asks_inference(guard: Guard) -> bool:
    return guard.kind == "predicate" and guard.expected in _INFERENCE


def _merged(guards: list[Guard]) -> list[Guard]:
    """The guards of one source, with a predicate about inference inside of its tensor guard."""
    asked = next((g for g in guards if _asks_inference(g)), None)
    tensor = next((g for g in guards if g.kind == "tensor"), None)
    if asked is None or tensor is None or not torch_inference():
        return guards
    assert isinstance(tensor.expected, tuple)
    spec = (*tensor.expected, _INFERENCE[asked.expected])
    return [replace(g, expected=spec) if g is tensor else g
            for g in guards if not _asks_inference(g)]  # fmt: skip


class GuardBuilder:
    """Emits accesses once per source, and each source's checks right after it.

    Items of a dict are read inside one block that is skipped while the dict is unchanged.
    """

    def __init__(self, guards: Iterable[Guard], wanted: Iterable[Source], n_args: int) -> None:
        self.out = Builder(n_args)
        self.guards: dict[int, Guard] = {}  # by the number of the instruction that checks it
        self.registers: dict[Source, int] = {}
        self.states: list[Guard] = []
        self.relations: list[Guard] = []
        self.by_source: dict[Source, list[Guard]] = {}
        self.children: dict[Source, dict[Source, None]] = {}
        self.order: dict[Source, None] = {}
        for guard in guards:
            if isinstance(guard.expected, SizeRelation):
                self.relations.append(guard)
                for reading in guard.expected.readings:
                    self._need(reading.source)
                continue
            if guard.source is None:
                self.states.append(guard)
                continue
            self.by_source.setdefault(guard.source, []).append(guard)
            self._need(guard.source)
            if isinstance(guard.expected, Source):
                self._need(guard.expected)
        for source in wanted:
            self._need(source)

    def _need(self, source: Source) -> None:
        if source in self.order:
            return
        base = getattr(source, "base", None)
        if isinstance(source, Keyed):
            self._need(source.key)
        if base is not None and fixed_cell(source) is None:
            self._need(base)
            self.children.setdefault(base, {})[source] = None
        self.order[source] = None

    def build(self) -> Program:
        late: list[Guard] = []
        for guard in self.states:
            self._state(guard)
        depths: dict[Source, int] = {}
        for source in sorted(self.order, key=lambda s: _depth(s, depths)):
            self._emit(source, late)
        self._values(late)
        for guard in self._pairs([g for g in late if g.kind != "same_value"]):
            self._check(guard)
        for guard in self.relations:
            self._note(guard)
            assert isinstance(guard.expected, SizeRelation)
            self.out.check(Op.SIZES, obj=operand(guard.expected, self.register), why=guard.text())
        program = self.out.build()
        program.guards = self.guards
        return program

    def _pairs(self, late: list[Guard]) -> list[Guard]:
        """Many objects that must be distinct from one another are checked at once."""
        distinct = [g for g in late if g.kind == "distinct"]
        if len(distinct) <= FEW_PAIRS:
            return late
        for group in _connected(distinct):
            self._note(distinct[0])
            regs = tuple(sorted(self.registers[s] for s in group))
            self.out.check(Op.ALL_DISTINCT, obj=regs, why="distinct       all of "
                           + ", ".join(s.text() for s in group)[:200])  # fmt: skip
        return [g for g in late if g.kind != "distinct"]

    def _values(self, late: list[Guard]) -> None:
        """Tensors that must hold the same are compared at once."""
        groups: dict[object, list[Guard]] = {}
        for guard in late:
            if guard.kind == "same_value":
                groups.setdefault(guard.expected, []).append(guard)
        for first, group in groups.items():
            sources = [first, *(g.source for g in group)]
            self._note(group[0])
            regs = tuple(self.registers[s] for s in sources)  # type: ignore[index]
            spec = next(g for g in self.by_source[first]  # type: ignore[index]
                        if g.kind == "tensor").expected  # fmt: skip
            self.out.check(Op.SAME_VALUES, obj=regs, aux=_bytes_of(spec), why=group[0])

    def register(self, source: Source) -> int:
        return self.registers[source]

    def _note(self, guard: Guard) -> None:
        """The next instruction checks this guard."""
        self.guards[len(self.out.instrs)] = guard

    def _state(self, guard: Guard) -> None:
        self._note(guard)
        self.out.check(Op.STATE, obj=guard.expected, why=guard)

    def _emit(self, source: Source, late: list[Guard]) -> None:
        if source not in self.registers:
            self._access(source)
        items = [c for c in self.children.get(source, ()) if _is_dict_item(c)]
        mine = _merged(self.by_source.get(source, []))
        of_dict = [g for g in mine if g.kind in _OF_DICT and (items or g.kind != "length")]
        for guard in mine:
            if guard in of_dict or (_is_dict_item(source) and guard.kind in _STABLE):
                continue
            if guard.kind in _OF_TWO or guard.kind == "same_value":
                late.append(guard)
            else:
                self._check(guard)
        if items or of_dict:
            with self.out.while_unchanged(self.registers[source]):
                for guard in of_dict:
                    self._check(guard)
                for item in items:
                    self._access(item)
                    for guard in self.by_source.get(item, ()):
                        if guard.kind in _STABLE:
                            self._check(guard)

    def _access(self, source: Source) -> None:
        why = source
        cell = fixed_cell(source)
        if cell is not None:
            reg = self.out.access(Op.CONST, obj=cell, why=why)
            if isinstance(source, ClosureCell):
                reg = self.out.access(Op.CELL, reg, why=why)
            self.registers[source] = reg
            return
        match source:
            case Local():
                reg = self.out.arg(source.index)
            case Pinned():
                reg = self.out.access(Op.CONST, obj=source.token.obj, why=why)
            case Keyed():
                reg = self.out.access(Op.ITEM_KEYED, self.registers[source.base], None,
                                      self.registers[source.key], why)  # fmt: skip
            case _:
                op, obj, aux = _row(source)
                base = self.registers[source.base]  # type: ignore[attr-defined]
                reg = self.out.access(op, base, obj, aux, why)
        self.registers[source] = reg

    def _check(self, guard: Guard) -> None:
        assert guard.source is not None
        self._note(guard)
        reg = self.registers[guard.source]
        if guard.kind == "class_version":
            assert isinstance(guard.source, Pinned)
            self.out.check(Op.TYPE_VERSION, obj=guard.source.token.obj, why=guard)
            return
        if guard.kind in _OF_TWO:
            assert isinstance(guard.expected, Source)
            op = _OF_TWO[guard.kind]
            self.out.check(op, reg, None, self.registers[guard.expected], guard)
            return
        if guard.kind == "length":
            assert isinstance(guard.expected, int)
            self.out.check(Op.LEN, reg, None, guard.expected, guard)
            return
        op_of = _CHECKS.get(guard.kind)
        if op_of is None:
            raise InternalError(f"no instruction for guard {guard.kind}")
        if guard.expected is ... or guard.expected is NotImplemented:
            op_of = Op.IS
        self.out.check(op_of, reg, guard.expected, why=guard)


def _bytes_of(spec: object) -> int:
    """The bytes of an element, by the guard of a tensor of floats."""
    assert isinstance(spec, tuple)
    kinds = (torch.empty((), dtype=t, device="cpu") for t in _FLOATS)
    return next(x.itemsize for x in kinds if tensor_codes(x)[1] == spec[1])


_FLOATS = (torch.float32, torch.float64)  # that numbers.py compares
# guards about what is found at two sources
_OF_TWO = {"same": Op.SAME, "distinct": Op.DISTINCT, "lacks_tensor": Op.LACKS_KEYED}
_CHECKS = {
    "type": Op.TYPE, "is": Op.IS, "is_not": Op.IS_NOT, "equal": Op.EQ, "has_key": Op.HAS_KEY,
    "lacks_key": Op.LACKS_KEY, "keys": Op.KEYS, "tensor": Op.TENSOR, "predicate": Op.PREDICATE,
}  # fmt: skip


def fixed_cell(source: Source) -> types.CellType | None:
    """The cell that `source` is or reads, if it is one of a pinned function's: a function keeps its
    cells. The program then holds the cell and not the function, which may own the program."""
    match source:
        case ClosureCell(base=Pinned() as owner, index=i):
            pass
        case Item(base=Attr(base=Pinned() as owner, name="__closure__"), key=int(i)):
            pass
        case _:
            return None
    fn = owner.token.obj
    return fn.__closure__[i] if isinstance(fn, types.FunctionType) and fn.__closure__ else None


def _row(source: Source) -> tuple[Op, Any, int]:
    match source:
        case Attr():
            return Op.GETATTR, source.name, 0
        case Item() if source.sequence:
            assert isinstance(source.key, int)
            return Op.ITEM_SEQ, None, source.key
        case Item():
            return Op.ITEM_DICT, source.key, 0
        case InstanceDict():
            return Op.INSTANCE_DICT, None, 0
        case ClosureCell():
            return Op.CLOSURE, None, source.index
        case CellContents():
            return Op.CELL, None, 0
        case TypeOf():
            return Op.TYPE_OF, None, 0
        case Reduced():
            return Op.REDUCE, None, 0
        case Applied():
            return Op.APPLY, source.fn, 0
    raise InternalError(f"no access for {type(source).__name__}")


def _connected(distinct: list[Guard]) -> list[list[Source]]:
    """The sources of the pairs, those that are connected by pairs together."""
    group_of: dict[Source, list[Source]] = {}
    for guard in distinct:
        assert guard.source is not None
        assert isinstance(guard.expected, Source)
        a = group_of.setdefault(guard.source, [guard.source])
        b = group_of.setdefault(guard.expected, [guard.expected])
        if a is not b:
            a += b
            group_of.update((s, a) for s in b)
    return list({id(g): g for g in group_of.values()}.values())


def load(source: Source, args: tuple[object, ...],
         known: dict[Source, object] | None = None) -> object:  # fmt: skip
    """What is found at a source now. known: what was found before. Errors: what looking there
    raises."""
    if known is None:
        return _load(source, args, {})
    if source not in known:
        known[source] = _load(source, args, known)
    return known[source]


def _load(source: Source, args: tuple[object, ...], known: dict[Source, object]) -> object:
    match source:
        case Local():
            return args[source.index]
        case Pinned():
            return source.token.obj
        case Item():
            box: Any = load(source.base, args, known)
            if not source.sequence:
                return entry_of(box, source.key)
            kind: Any = list if isinstance(box, list) else tuple
            return kind.__getitem__(box, source.key)
        case Keyed():
            table: Any = load(source.base, args, known)
            return entry_of(table, load(source.key, args, known))
        case InstanceDict():
            owner = load(source.base, args, known)
            return dict(vars(owner)) if isinstance(owner, type) else (
                object.__getattribute__(owner, "__dict__"))  # fmt: skip
        case ClosureCell():
            fn: Any = load(source.base, args, known)
            return fn.__closure__[source.index].cell_contents
        case CellContents():
            cell: Any = load(source.base, args, known)
            return cell.cell_contents
        case Attr():
            return getattr(load(source.base, args, known), source.name)
        case TypeOf():
            return type(load(source.base, args, known))
        case Reduced():
            iterator: Any = load(source.base, args, known)
            return iterator.__reduce__()
        case Applied():
            return source.fn(load(source.base, args, known))
    raise InternalError(f"no access for {type(source).__name__}")


def entry_of(table: dict[Any, Any], key: object) -> object:
    """What a dict has under a key. Looking makes no entry: dict.__getitem__ asks __missing__."""
    if not dict.__contains__(table, key):
        raise KeyError(key)
    return dict.__getitem__(table, key)


def _is_dict_item(source: Source) -> bool:
    return isinstance(source, Item) and not source.sequence


def _depth(source: Source, known: dict[Source, int]) -> int:
    """How many steps lead to a value. known: of the sources that were asked for."""
    found = known.get(source)
    if found is None:
        base = getattr(source, "base", None)
        found = 0 if base is None else 1 + _depth(base, known)
        if isinstance(source, Keyed):
            found = max(found, 1 + _depth(source.key, known))
        known[source] = found
    return found
