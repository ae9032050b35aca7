"""The instructions of CPython 3.12 in the dialect: what differs from 3.11."""

from __future__ import annotations

from torchweld.frame import translate as tr
from torchweld.frame.versions import py311

_TESTS = ("POP_JUMP_IF_FALSE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE", "POP_JUMP_IF_TRUE")

# Numbered from 1.
INTRINSICS_1 = (
    ("PRINT", None),
    ("IMPORT_STAR", None),
    ("STOPITERATION_ERROR", None),
    ("ASYNC_GEN_WRAP", None),
    ("UNARY", "+"),
    ("LIST_TO_TUPLE", None),
    ("TYPEVAR", None),
    ("PARAMSPEC", None),
    ("TYPEVARTUPLE", None),
    ("SUBSCRIPT_GENERIC", None),
    ("TYPEALIAS", None),
)
INTRINSICS_2 = (
    ("PREP_RERAISE_STAR", None),
    ("TYPEVAR_WITH_BOUND", None),
    ("TYPEVAR_WITH_CONSTRAINTS", None),
    ("SET_FUNCTION_TYPE_PARAMS", None),
)


def _compare(t: tr.Translator, arg: int) -> None:
    t.emit("COMPARE_OP", py311.COMPARISONS[arg >> 4])


ROWS: tr.Rows = tr.successor(
    py311.ROWS,
    gone=(
        "ASYNC_GEN_WRAP", "IMPORT_STAR", "JUMP_IF_FALSE_OR_POP", "JUMP_IF_TRUE_OR_POP",
        "LIST_TO_TUPLE", "LOAD_CLASSDEREF", "LOAD_METHOD", "PRECALL", "PREP_RERAISE_STAR",
        "PRINT_EXPR", "UNARY_POSITIVE",
        *(name for name in py311.ROWS if name.startswith(("POP_JUMP_FOR", "POP_JUMP_BACK"))),
    ),
    new={
        **{name: tr.jump(name) for name in _TESTS},
        "BINARY_SLICE": tr.plain("BINARY_SLICE"),
        "CALL_INTRINSIC_1": tr.by_number(INTRINSICS_1),
        "CALL_INTRINSIC_2": tr.by_number(INTRINSICS_2),
        "CLEANUP_THROW": tr.plain("CLEANUP_THROW"),
        "COMPARE_OP": _compare,
        # SEND and CLEANUP_THROW of the dialect leave the result alone
        "END_SEND": tr.drop,
        "FOR_ITER": tr.jump("FOR_ITER", skip=("END_FOR",)),
        "LOAD_ATTR": tr.callee("LOAD_ATTR", 1, 1, above=False),
        "LOAD_FAST_AND_CLEAR": tr.local("LOAD_FAST_AND_CLEAR", "LOAD_CLOSURE_AND_CLEAR"),
        "LOAD_FAST_CHECK": py311.load_fast,
        "LOAD_FROM_DICT_OR_DEREF": tr.cell("LOAD_FROM_DICT_OR_DEREF"),
        "LOAD_FROM_DICT_OR_GLOBALS": tr.named("LOAD_FROM_DICT_OR_GLOBALS"),
        "LOAD_LOCALS": tr.plain("LOAD_LOCALS"),
        "LOAD_SUPER_ATTR": tr.callee("LOAD_SUPER_ATTR", 2, 1, above=False),
        "RETURN_CONST": tr.in_turn(tr.load_const, tr.plain("RETURN_VALUE")),
        "STORE_SLICE": tr.plain("STORE_SLICE"),
    },
)  # fmt: skip
