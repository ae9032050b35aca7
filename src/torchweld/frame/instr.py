"""The version-neutral instruction dialect: what capture sees of a CPython code object.

There is no NULL on the dialect's stack, no cache, no superinstruction and no call protocol of a
particular version. Jump targets and protected ranges are indices into `Code.instrs`. `EFFECTS` is
the list of all ops; `effect` says what each does to the depth of the stack.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any

from torchweld.base.loc import Loc

Effect = tuple[int, int]

_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass(frozen=True, slots=True)
class Instr:
    """One instruction. `target` is an index into `Code.instrs`, None for what does not jump."""

    op: str
    arg: Any
    offset: int
    line: int
    target: int | None = None

    def text(self) -> str:
        """The op and its argument, without position and target."""
        if self.arg is None and self.op != "LOAD_CONST":
            return self.op
        return f"{self.op} {_argument(self.arg)}"


@dataclass(frozen=True, slots=True)
class Protected:
    """An exception in instrs[start:end] cuts the stack to `depth`, pushes and goes to `target`.

    What is pushed: the index of the raising instruction when `lasti`, then the exception.
    """

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


@dataclass(frozen=True, slots=True, eq=False)
class Code:
    """A code object in the dialect.

    `params` are the flat parameters in the order of the frame's slots: positional, keyword-only,
    *args, **kwargs. A name may be in `varnames` and in `freevars` at once (3.12+: the variable of
    an inlined comprehension): *_FAST ops mean the former, *_DEREF ops the latter.
    """

    raw: CodeType
    name: str
    qualname: str
    filename: str
    firstlineno: int
    instrs: tuple[Instr, ...]
    argcount: int
    posonly: int
    kwonly: int
    varargs: str | None
    varkw: str | None
    params: tuple[str, ...]
    varnames: tuple[str, ...]
    cellvars: tuple[str, ...]
    freevars: tuple[str, ...]
    flags: int
    protected: tuple[Protected, ...]

    @property
    def is_generator(self) -> bool:
        """Can the frame be suspended: generator, coroutine or asynchronous generator?"""
        return bool(self.flags & _SUSPENDABLE)

    def loc(self, index: int) -> Loc:
        """The source line of an instruction."""
        return Loc(self.filename, self.instrs[index].line)

    def handler(self, index: int) -> Protected | None:
        """The protected range that an exception at this instruction goes to."""
        for row in self.protected:
            if row.start <= index < row.end:
                return row
        return None


def _argument(arg: object) -> str:
    """Without addresses and in a fixed order, so that two runs give the same text."""
    if isinstance(arg, CodeType):
        return f"<code {arg.co_qualname}>"
    if isinstance(arg, frozenset):
        return f"{{{', '.join(sorted(map(repr, arg)))}}}"
    return arg if isinstance(arg, str) and arg.isidentifier() else repr(arg)


def _count_to_one(n: int) -> Effect:
    return n, 1


def _call(arg: tuple[int, tuple[str, ...]]) -> Effect:
    return arg[0] + 1, 1


def _make_function(flags: frozenset[str]) -> Effect:
    return len(flags) + 1, 1


def _raise(n: int) -> Effect:
    return n, 0


# A row is (pops, pushes) or a function from the argument to that. For an op that jumps the row is
# the fall-through; where the jump differs it has a row in JUMP_EFFECTS.
EFFECTS: dict[str, Effect | Callable[[Any], Effect]] = {
    # constants and names
    "LOAD_CONST": (0, 1),
    "LOAD_FAST": (0, 1),
    "STORE_FAST": (1, 0),
    "DELETE_FAST": (0, 0),
    "LOAD_FAST_AND_CLEAR": (0, 1),  # pushes "unbound" when the local is; STORE_FAST takes it back
    "LOAD_DEREF": (0, 1),
    "STORE_DEREF": (1, 0),
    "DELETE_DEREF": (0, 0),
    "LOAD_CLOSURE": (0, 1),
    "LOAD_CLOSURE_AND_CLEAR": (0, 1),  # as LOAD_FAST_AND_CLEAR, of the cell itself
    "STORE_CLOSURE": (1, 0),
    "MAKE_CELL": (0, 0),  # a new cell inside an inlined comprehension; not those of the prologue
    "LOAD_CLASSDEREF": (0, 1),
    "LOAD_FROM_DICT_OR_DEREF": (1, 1),
    "LOAD_FROM_DICT_OR_GLOBALS": (1, 1),
    "LOAD_LOCALS": (0, 1),
    "LOAD_GLOBAL": (0, 1),
    "STORE_GLOBAL": (1, 0),
    "DELETE_GLOBAL": (0, 0),
    "LOAD_NAME": (0, 1),
    "STORE_NAME": (1, 0),
    "DELETE_NAME": (0, 0),
    # attributes and calls
    "LOAD_ATTR": (1, 1),
    "STORE_ATTR": (2, 0),
    "DELETE_ATTR": (1, 0),
    "LOAD_SUPER_ATTR": (3, 1),
    "CALL": _call,
    "CALL_EX": lambda has_kwargs: (3 if has_kwargs else 2, 1),
    # operators
    "BINARY_OP": (2, 1),
    "BINARY_SUBSCR": (2, 1),
    "STORE_SUBSCR": (3, 0),
    "DELETE_SUBSCR": (2, 0),
    "BINARY_SLICE": (3, 1),
    "STORE_SLICE": (4, 0),
    "COMPARE_OP": (2, 1),
    "IS_OP": (2, 1),
    "CONTAINS_OP": (2, 1),
    "UNARY": (1, 1),
    # the stack itself
    "POP_TOP": (1, 0),
    "COPY": lambda n: (n, n + 1),
    "SWAP": lambda n: (n, n),
    # containers and strings
    "BUILD_TUPLE": _count_to_one,
    "BUILD_LIST": _count_to_one,
    "BUILD_SET": _count_to_one,
    "BUILD_MAP": lambda n: (2 * n, 1),
    "BUILD_STRING": _count_to_one,
    "BUILD_CONST_KEY_MAP": lambda n: (n + 1, 1),
    "BUILD_SLICE": _count_to_one,
    "LIST_APPEND": (1, 0),
    "SET_ADD": (1, 0),
    "MAP_ADD": (2, 0),
    "LIST_EXTEND": (1, 0),
    "SET_UPDATE": (1, 0),
    "DICT_UPDATE": (1, 0),
    "DICT_MERGE": (1, 0),
    "LIST_TO_TUPLE": (1, 1),
    "CONVERT_VALUE": (1, 1),
    "FORMAT_VALUE": lambda arg: (1 + arg[1], 1),
    "UNPACK_SEQUENCE": lambda n: (1, n),
    "UNPACK_EX": lambda arg: (1, arg[0] + 1 + arg[1]),
    # iteration and matching
    "GET_ITER": (1, 1),
    "FOR_ITER": (1, 2),
    "GET_LEN": (1, 2),
    "MATCH_MAPPING": (1, 2),
    "MATCH_SEQUENCE": (1, 2),
    "MATCH_KEYS": (2, 3),
    "MATCH_CLASS": (3, 1),
    # control flow
    "JUMP": (0, 0),
    "POP_JUMP_IF_TRUE": (1, 0),
    "POP_JUMP_IF_FALSE": (1, 0),
    "POP_JUMP_IF_NONE": (1, 0),
    "POP_JUMP_IF_NOT_NONE": (1, 0),
    "RETURN_VALUE": (1, 0),
    # exceptions and with
    "RAISE": _raise,
    "RERAISE": (1, 0),
    "PUSH_EXC_INFO": (1, 2),
    "POP_EXCEPT": (1, 0),
    "CHECK_EXC_MATCH": (2, 2),
    "CHECK_EG_MATCH": (2, 2),
    "PREP_RERAISE_STAR": (2, 1),
    "WITH_EXCEPT_START": (4, 5),
    "BEFORE_WITH": (1, 2),
    "BEFORE_ASYNC_WITH": (1, 2),
    "LOAD_ASSERTION_ERROR": (0, 1),
    # definitions and imports
    "LOAD_BUILD_CLASS": (0, 1),
    "MAKE_FUNCTION": _make_function,
    "SET_FUNCTION_ATTRIBUTE": (2, 1),
    "SETUP_ANNOTATIONS": (0, 0),
    "IMPORT_NAME": (2, 1),
    "IMPORT_FROM": (1, 2),
    "IMPORT_STAR": (1, 1),
    "PRINT": (1, 1),
    "TYPEVAR": (1, 1),
    "PARAMSPEC": (1, 1),
    "TYPEVARTUPLE": (1, 1),
    "SUBSCRIPT_GENERIC": (1, 1),
    "TYPEALIAS": (1, 1),
    "TYPEVAR_WITH_BOUND": (2, 1),
    "TYPEVAR_WITH_CONSTRAINTS": (2, 1),
    "SET_FUNCTION_TYPE_PARAMS": (2, 1),
    "SET_TYPEPARAM_DEFAULT": (2, 1),
    # generators and coroutines
    "RETURN_GENERATOR": (0, 1),
    "YIELD_VALUE": (1, 1),
    "SEND": (2, 2),
    "CLEANUP_THROW": (3, 1),
    "GET_YIELD_FROM_ITER": (1, 1),
    "GET_AWAITABLE": (1, 1),
    "GET_AITER": (1, 1),
    "GET_ANEXT": (1, 2),
    "END_ASYNC_FOR": (2, 0),
    "ASYNC_GEN_WRAP": (1, 1),
    "STOPITERATION_ERROR": (1, 1),
    # what the table of the running version does not know, by its original name
    "UNKNOWN": (0, 0),
}

# The effect along the jump, where it is not that of the fall-through.
JUMP_EFFECTS: dict[str, Effect] = {
    "FOR_ITER": (1, 0),
    "SEND": (2, 1),
}

OPS: frozenset[str] = frozenset(EFFECTS)
"""All ops of the dialect."""

JUMPS: frozenset[str] = frozenset(
    (
        "FOR_ITER",
        "JUMP",
        "POP_JUMP_IF_FALSE",
        "POP_JUMP_IF_NONE",
        "POP_JUMP_IF_NOT_NONE",
        "POP_JUMP_IF_TRUE",
        "SEND",
    )
)
"""The ops that have a target."""

TERMINAL: frozenset[str] = frozenset(("JUMP", "RAISE", "RERAISE", "RETURN_VALUE", "UNKNOWN"))
"""The ops after which the next instruction is not reached by falling through."""


def effect(instr: Instr, *, jump: bool = False) -> Effect:
    """How many values the instruction takes off the stack and how many it puts there."""
    return effect_of(instr.op, instr.arg, jump=jump)


def effect_of(op: str, arg: Any, *, jump: bool = False) -> Effect:
    """`effect` of an instruction that is not built yet."""
    if jump and op in JUMP_EFFECTS:
        return JUMP_EFFECTS[op]
    row = EFFECTS[op]
    return row if isinstance(row, tuple) else row(arg)
