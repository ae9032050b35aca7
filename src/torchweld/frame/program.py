"""Guard programs as Python sees them: the ops, the instruction tuple, and a builder.

The C extension checks a program when it is made and runs it at every call; `_ops.c` says what each
op does. A `Builder` numbers the registers and keeps one human reason per instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Protocol, TypeAlias, overload

from torchweld.frame._frame import (
    Dispatcher,
    Entry,
    Program,
    set_pending,
    tensor_codes,
    torch_fast,
    torch_inference,
    torch_init,
)

__all__ = [
    "Builder",
    "Dispatcher",
    "Entry",
    "Instruction",
    "Miss",
    "Op",
    "Program",
    "TensorSpec",
    "explain",
    "set_pending",
    "tensor_codes",
    "torch_fast",
    "torch_inference",
    "torch_init",
]


class Op(IntEnum):
    """The ops of a guard program; the numbers are those of the extension."""

    ARG = 0
    CONST = 1
    ITEM_DICT = 2
    ITEM_SEQ = 3
    GETATTR = 4
    INSTANCE_DICT = 5
    CELL = 6
    CLOSURE = 7
    TYPE_OF = 8
    CALL0 = 9
    IS = 10
    IS_NOT = 11
    TYPE = 12
    EQ = 13
    LEN = 14
    HAS_KEY = 15
    LACKS_KEY = 16
    KEYS = 17
    SAME = 18
    DISTINCT = 19
    TENSOR = 20
    PREDICATE = 21
    INT_RANGE = 22
    TYPE_VERSION = 23
    DICT_UNCHANGED = 24
    ALL_DISTINCT = 25
    STATE = 26
    APPLY = 27
    SIZES = 28
    ITEM_KEYED = 29
    LACKS_KEYED = 30
    REDUCE = 31
    SAME_VALUES = 32

    @property
    def is_access(self) -> bool:
        """Whether the op writes a register."""
        return self <= Op.CALL0 or self in (Op.APPLY, Op.ITEM_KEYED, Op.REDUCE)


class Postfix(IntEnum):
    """The codes of a SIZES program; IS_ZERO and the next two take a value off the stack and check
    it.

    Floats are on the stack by their bits: PUSH takes those of one. FLOAT makes one of an integer,
    TRUNC, FLOOR, CEIL and ROUND integers of one.
    """

    PUSH = 0
    LOAD = 1
    ADD = 2
    MUL = 3
    FLOORDIV = 4
    MOD = 5
    IS_ZERO = 6
    NOT_ZERO = 7
    AT_MOST_ZERO = 8
    F_ADD = 9
    F_SUB = 10
    F_MUL = 11
    F_DIV = 12
    F_POW = 13
    FLOAT = 14
    F_SQRT = 15
    F_LOG = 16
    F_LOG2 = 17
    F_LOG10 = 18
    F_EXP = 19
    TRUNC = 20
    FLOOR = 21
    CEIL = 22
    ROUND = 23


# what a SIZES program reads of a register: a size or stride of a tensor, or an int
READS = ("size", "stride", "number")

# class, dtype, device type, device index, layout, requires_grad, sizes, strides; None is "any", and
# an empty tuple of strides is "any strides". A ninth item, which `tensor_codes` does not give, is
# whether it is an inference tensor. The codes are those of libtorch's C shim.
TensorSpec: TypeAlias = tuple[
    type, int, int, int, int, bool | None, tuple[int | None, ...], tuple[int | None, ...]
]
# op, dst, src, obj, aux
Instruction: TypeAlias = tuple[int, int, int, object, int]
Miss: TypeAlias = Callable[[Dispatcher, tuple[object, ...]], Entry | None]


class Reason(Protocol):
    """What can say why an instruction is there."""

    def text(self) -> str:
        """The reason, in words."""
        ...


class Reasons(Sequence[str]):
    """One reason per instruction; its words are put together when somebody asks."""

    __slots__ = ("given",)

    def __init__(self, given: Sequence[str | Reason]) -> None:
        self.given = tuple(given)

    def __len__(self) -> int:
        return len(self.given)

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[str]: ...
    def __getitem__(self, i: int | slice) -> str | Sequence[str]:
        if isinstance(i, slice):
            return Reasons(self.given[i])
        found = self.given[i]
        return found if isinstance(found, str) else found.text()


class Builder:
    """Collects the instructions of one program; an access returns the register that it writes."""

    def __init__(self, n_args: int) -> None:
        self.n_args = n_args
        self.instrs: list[Instruction] = []
        self.reasons: list[str | Reason] = []
        self._n_regs = 0

    def access(self, op: Op, src: int = -1, obj: object = None, aux: int = 0,
               why: str | Reason = "") -> int:  # fmt: skip
        """Adds an access; the register that will hold its value."""
        if not op.is_access:
            raise ValueError(f"{op.name} is a check: it writes no register")
        dst = self._n_regs
        self._n_regs += 1
        self._append(op, dst, src, obj, aux, why)
        return dst

    def check(self, op: Op, src: int = -1, obj: object = None, aux: int = 0,
              why: str | Reason = "") -> None:  # fmt: skip
        """Adds a check."""
        if op.is_access:
            raise ValueError(f"{op.name} is an access: it writes a register")
        self._append(op, -1, src, obj, aux, why)

    def arg(self, index: int) -> int:
        """The register of a flat argument."""
        return self.access(Op.ARG, aux=index, why=f"argument {index}")

    @contextmanager
    def while_unchanged(self, src: int) -> Iterator[None]:
        """What is added inside is skipped at run time while the dict in `src` has not changed."""
        at = len(self.instrs)
        self._append(Op.DICT_UNCHANGED, -1, src, None, 0, "")
        yield
        count = len(self.instrs) - at - 1
        self.instrs[at] = (Op.DICT_UNCHANGED, -1, src, None, count)

    def build(self) -> Program:
        """The program; its reasons are kept on it as `program.reasons`."""
        program = Program(self.instrs, self._n_regs, self.n_args)
        program.reasons = Reasons(self.reasons)
        return program

    def _append(self, op: Op, dst: int, src: int, obj: object, aux: int, why: str | Reason) -> None:
        self.instrs.append((int(op), dst, src, obj, aux))
        self.reasons.append(why or op.name)


def explain(program: Program, args: tuple[object, ...]) -> str | None:
    """Why the program fails on these flat arguments; None if it succeeds."""
    at = program.explain(args)
    if at < 0:
        return None
    reasons: Sequence[str] = getattr(program, "reasons", ())
    return reasons[at] if at < len(reasons) else f"guard {at}"
