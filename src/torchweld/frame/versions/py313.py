"""The instructions of CPython 3.13 in the dialect: what differs from 3.12."""

from __future__ import annotations

from torchweld.frame import translate as tr
from torchweld.frame.versions import py311, py312

_TO_BOOL = 16  # in the argument of COMPARE_OP

_BITS = {name: bit for bit, name in py311.FUNCTION_PARTS.items()}

_call = tr.call(above=True)


def _compare(t: tr.Translator, arg: int) -> None:
    t.emit("COMPARE_OP", py311.COMPARISONS[arg >> 5])
    if arg & _TO_BOOL:
        tr.to_bool(t, 0)


def _call_kw(t: tr.Translator, arg: int) -> None:
    """The names lie on the stack, as a constant loaded just before."""
    t.kwnames = t.absorb("LOAD_CONST")
    _call(t, arg)


def _format_simple(t: tr.Translator, arg: int) -> None:
    conversion = t.absorb("CONVERT_VALUE") if t.last() == "CONVERT_VALUE" else None
    t.emit("FORMAT_VALUE", (conversion, False))


def _set_function_attribute(t: tr.Translator, arg: int) -> None:
    """Folded into the MAKE_FUNCTION before it when the operands lie in the order of the bits."""
    part = py311.FUNCTION_PARTS[arg]
    if t.last() != "MAKE_FUNCTION" or any(_BITS[name] <= arg for name in t.out[-1][1]):
        t.emit("SET_FUNCTION_ATTRIBUTE", part)
        return
    parts = t.absorb("MAKE_FUNCTION")
    t.emit("MAKE_FUNCTION", parts | {part})


ROWS: tr.Rows = tr.successor(
    py312.ROWS,
    gone=("FORMAT_VALUE", "KW_NAMES", "LOAD_CLOSURE"),
    new={
        "CALL": _call,
        "CALL_FUNCTION_EX": tr.call_ex(above=True),
        "CALL_INTRINSIC_2": tr.by_number((*py312.INTRINSICS_2, ("SET_TYPEPARAM_DEFAULT", None))),
        "CALL_KW": _call_kw,
        "COMPARE_OP": _compare,
        "CONVERT_VALUE": tr.chosen("CONVERT_VALUE", py311.CONVERSIONS),
        "FORMAT_SIMPLE": _format_simple,
        "FORMAT_WITH_SPEC": tr.plain("FORMAT_VALUE", (None, True)),
        "FOR_ITER": tr.jump("FOR_ITER", skip=("END_FOR", "POP_TOP")),
        "LOAD_ATTR": tr.callee("LOAD_ATTR", 1, 1, above=True),
        "LOAD_FAST_LOAD_FAST": tr.pair(py311.load_fast, py311.load_fast),
        "LOAD_GLOBAL": tr.callee("LOAD_GLOBAL", 1, 1, above=True),
        "LOAD_SUPER_ATTR": tr.callee("LOAD_SUPER_ATTR", 2, 1, above=True),
        "MAKE_FUNCTION": tr.plain("MAKE_FUNCTION", frozenset()),
        "SET_FUNCTION_ATTRIBUTE": _set_function_attribute,
        "STORE_FAST_LOAD_FAST": tr.pair(py311.store_fast, py311.load_fast),
        "STORE_FAST_STORE_FAST": tr.pair(py311.store_fast, py311.store_fast),
        "TO_BOOL": tr.to_bool,
    },
)
