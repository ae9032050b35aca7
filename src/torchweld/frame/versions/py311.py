"""The instructions of CPython 3.11 in the dialect: the table that later versions amend."""

from __future__ import annotations

from torchweld.frame import translate as tr

BINARY_OPERATORS = (
    "+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^",
    "+=", "&=", "//=", "<<=", "@=", "*=", "%=", "|=", "**=", ">>=", "-=", "/=", "^=",
)  # fmt: skip
COMPARISONS = ("<", "<=", "==", "!=", ">", ">=")
CONVERSIONS = (None, "s", "r", "a")
FUNCTION_PARTS = {1: "defaults", 2: "kwdefaults", 4: "annotations", 8: "closure"}

_PARTS_OF_FLAGS = tuple(
    frozenset(part for bit, part in FUNCTION_PARTS.items() if flags & bit) for flags in range(16)
)
_FORMATS = tuple((conversion, spec) for spec in (False, True) for conversion in CONVERSIONS)

_AS_THEY_ARE = (
    "ASYNC_GEN_WRAP", "BEFORE_ASYNC_WITH", "BEFORE_WITH", "BINARY_SUBSCR", "CHECK_EG_MATCH",
    "CHECK_EXC_MATCH", "DELETE_SUBSCR", "END_ASYNC_FOR", "GET_AITER", "GET_ANEXT", "GET_ITER",
    "GET_LEN", "GET_YIELD_FROM_ITER", "LIST_TO_TUPLE", "LOAD_ASSERTION_ERROR", "LOAD_BUILD_CLASS",
    "MATCH_KEYS", "MATCH_MAPPING", "MATCH_SEQUENCE", "POP_EXCEPT", "POP_TOP", "PREP_RERAISE_STAR",
    "PUSH_EXC_INFO", "RETURN_GENERATOR", "RETURN_VALUE", "SETUP_ANNOTATIONS", "STORE_SUBSCR",
    "WITH_EXCEPT_START", "YIELD_VALUE",
)  # fmt: skip
_COUNTED = (
    "BUILD_CONST_KEY_MAP", "BUILD_LIST", "BUILD_MAP", "BUILD_SET", "BUILD_SLICE", "BUILD_STRING",
    "BUILD_TUPLE", "GET_AWAITABLE", "MATCH_CLASS", "UNPACK_SEQUENCE",
)  # fmt: skip
_NAMED = (
    "DELETE_ATTR", "DELETE_GLOBAL", "DELETE_NAME", "IMPORT_FROM", "IMPORT_NAME", "LOAD_ATTR",
    "LOAD_NAME", "STORE_ATTR", "STORE_GLOBAL", "STORE_NAME",
)  # fmt: skip
_CELLS = ("DELETE_DEREF", "LOAD_CLASSDEREF", "LOAD_CLOSURE", "LOAD_DEREF", "STORE_DEREF")
_INTO = (
    "DICT_MERGE", "DICT_UPDATE", "LIST_APPEND", "LIST_EXTEND", "MAP_ADD", "SET_ADD", "SET_UPDATE",
)  # fmt: skip
_DROPPED = ("COPY_FREE_VARS", "NOP", "PRECALL", "RESUME")
_TESTS = ("IF_FALSE", "IF_NONE", "IF_NOT_NONE", "IF_TRUE")

load_fast = tr.local("LOAD_FAST", "LOAD_CLOSURE")
store_fast = tr.local("STORE_FAST", "STORE_CLOSURE")


def load_method(t: tr.Translator, arg: int) -> None:
    """The pair (method, self) is one bound attribute over the slot of a NULL."""
    _method(t, arg << 1 | 1)


_method = tr.callee("LOAD_ATTR", 1, 1, above=False)

ROWS: tr.Rows = {
    **{name: tr.plain(name) for name in _AS_THEY_ARE},
    **{name: tr.counted(name) for name in _COUNTED},
    **{name: tr.named(name) for name in _NAMED},
    **{name: tr.cell(name) for name in _CELLS},
    **{name: tr.into(name) for name in _INTO},
    **dict.fromkeys(_DROPPED, tr.drop),
    **{f"POP_JUMP_FORWARD_{test}": tr.jump(f"POP_JUMP_{test}") for test in _TESTS},
    **{f"POP_JUMP_BACKWARD_{test}": tr.jump(f"POP_JUMP_{test}", -1) for test in _TESTS},
    "BINARY_OP": tr.chosen("BINARY_OP", BINARY_OPERATORS),
    "CALL": tr.call(above=False),
    "CALL_FUNCTION_EX": tr.call_ex(above=False),
    "COMPARE_OP": tr.chosen("COMPARE_OP", COMPARISONS),
    "CONTAINS_OP": tr.chosen("CONTAINS_OP", (False, True)),
    "COPY": tr.peep("COPY"),
    "DELETE_FAST": tr.local("DELETE_FAST", None),
    "FORMAT_VALUE": tr.chosen("FORMAT_VALUE", _FORMATS),
    "FOR_ITER": tr.jump("FOR_ITER"),
    "IMPORT_STAR": tr.then_pop("IMPORT_STAR"),
    "IS_OP": tr.chosen("IS_OP", (False, True)),
    "JUMP_BACKWARD": tr.jump("JUMP", -1),
    "JUMP_BACKWARD_NO_INTERRUPT": tr.jump("JUMP", -1),
    "JUMP_FORWARD": tr.jump("JUMP"),
    "JUMP_IF_FALSE_OR_POP": tr.jump_or_pop("POP_JUMP_IF_FALSE"),
    "JUMP_IF_TRUE_OR_POP": tr.jump_or_pop("POP_JUMP_IF_TRUE"),
    "KW_NAMES": tr.kw_names,
    "LOAD_CONST": tr.load_const,
    "LOAD_FAST": load_fast,
    "LOAD_GLOBAL": tr.callee("LOAD_GLOBAL", 1, 1, above=False),
    "LOAD_METHOD": load_method,
    "MAKE_CELL": tr.make_cell,
    "MAKE_FUNCTION": tr.chosen("MAKE_FUNCTION", _PARTS_OF_FLAGS),
    "PRINT_EXPR": tr.then_pop("PRINT"),
    "PUSH_NULL": tr.push_null,
    "RAISE_VARARGS": tr.counted("RAISE"),
    "RERAISE": tr.reraise,
    "SEND": tr.jump("SEND"),
    "STORE_FAST": store_fast,
    "SWAP": tr.peep("SWAP"),
    "UNARY_INVERT": tr.plain("UNARY", "~"),
    "UNARY_NEGATIVE": tr.plain("UNARY", "-"),
    "UNARY_NOT": tr.plain("UNARY", "not"),
    "UNARY_POSITIVE": tr.plain("UNARY", "+"),
    "UNPACK_EX": tr.unpack_ex,
}
