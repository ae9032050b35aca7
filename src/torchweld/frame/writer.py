"""What is written in front of a function's code, or in its place: it sets the frame up."""

from __future__ import annotations

from torchweld.frame.assemble import Assembler, Label, Unassemblable
from torchweld.frame.instr import Code
from torchweld.frame.points import CALLEE, Point, cell_names, needed
from torchweld.frame.versions import NULL_ABOVE

# raw instructions whose argument is the slot of a cell, of a local or a cell, of two locals
CELL_ARGS = frozenset((
    "DELETE_DEREF", "LOAD_CLASSDEREF", "LOAD_CLOSURE", "LOAD_DEREF", "LOAD_FROM_DICT_OR_DEREF",
    "MAKE_CELL", "STORE_DEREF",
))  # fmt: skip
LOCAL_ARGS = frozenset((
    "DELETE_FAST", "LOAD_FAST", "LOAD_FAST_AND_CLEAR", "LOAD_FAST_CHECK", "STORE_FAST",
))  # fmt: skip
PAIR_ARGS = frozenset(("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"))


class Names:
    """The variables of the code objects at one point: parameters, then what a piece needs itself.

    depth: values on the stack in the flat state. extra: parameters behind it. spare: slots of the
    stack beyond `depth` that have a variable too.
    """

    def __init__(self, code: Code, depth: int, extra: tuple[str, ...] = (), spare: int = 0) -> None:
        cells = cell_names(code)
        if len({*code.varnames, *code.freevars}) < len(code.varnames) + len(code.freevars):
            raise Unassemblable("a name is a local and a free variable")
        self.stack = tuple(f".stack {i}" for i in range(depth + spare))
        self.cells = tuple(f".cell {name}" for name in cells)
        params = (*code.varnames, *self.stack[:depth], *self.cells, *extra)
        self.params = len(params)
        self.all = (*params, *self.stack[depth:])
        self.index = {name: i for i, name in enumerate(self.all)}
        self.added = len(self.all) - len(code.varnames)
        self.slots: dict[str, int] = {}
        free = len(self.all)
        for name in code.cellvars:
            merged = name in code.varnames
            self.slots[name] = code.varnames.index(name) if merged else free
            free += not merged
        for name in code.freevars:
            self.slots[name] = free
            free += 1


class Writer(Assembler):
    """An assembler that knows the frame's variables."""

    def __init__(self, code: Code, names: Names, line: int | None, rest: bool = False) -> None:
        """rest: the code goes on to the end of the function, which may be a generator."""
        super().__init__(line=line)
        self.names = names
        self.consts = [*code.raw.co_consts]
        if code.freevars:  # who looks at the frame of a traceback expects a cell in each place
            self.emit("COPY_FREE_VARS", len(code.freevars))
        if rest and code.is_generator:
            self.emit("RETURN_GENERATOR")
            self.emit("POP_TOP")
        self.emit("RESUME")

    def load(self, name: str) -> None:
        self.emit("LOAD_FAST", self.names.index[name])

    def hole(self, name: str) -> None:
        """Push no value, as an inlined comprehension does for a local that has none."""
        self.drop((name,))
        self.emit("LOAD_FAST_AND_CLEAR", self.names.index[name])

    def store(self, name: str) -> None:
        self.emit("STORE_FAST", self.names.index[name])

    def const(self, obj: object) -> None:
        self.consts.append(obj)
        self.emit("LOAD_CONST", len(self.consts) - 1)

    def enter(self, code: Code, point: Point) -> None:
        """Cells and locals as they are at the point."""
        kept = needed(code, point)
        for name, param in zip(cell_names(code), self.names.cells, strict=True):
            if name in kept:
                self.load(param)
                self.emit("STORE_FAST", self.names.slots[name])
        for name in code.varnames:
            if name not in kept and name not in code.cellvars:
                self.emit("DELETE_FAST", self.names.index[name])

    def protect(self, start: Label) -> None:
        """The label of what is protected. 3.13 looks for the handler of an exception that a call
        passes on one code unit before the call."""
        self.mark(start)
        self.emit("NOP")

    def call(self) -> tuple[Label, Label]:
        """Call what the last two parameters say; the labels around the call."""
        if not NULL_ABOVE:
            self.emit("PUSH_NULL")
        self.load(".call")
        if NULL_ABOVE:
            self.emit("PUSH_NULL")
        self.load(".args")
        self.drop(CALLEE)
        start, end = Label(), Label()
        self.protect(start)
        self.emit("CALL_FUNCTION_EX")
        self.mark(end)
        return start, end

    def drop(self, names: tuple[str, ...]) -> None:
        """These parameters hold their values no longer."""
        for name in names:
            self.emit("DELETE_FAST", self.names.index[name])
