"""Scalar operators in Triton's language: one row per operator."""

from __future__ import annotations

from collections.abc import Callable

from torchweld.base.errors import InternalError
from torchweld.codegen.cpp_types import HELD_AS_F32
from torchweld.codegen.triton_types import COMPUTED, NARROW, keeps_type
from torchweld.ir.dtype import DType
from torchweld.ir.loop import Op, Scalar

Text = Callable[[list[str]], str]

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "bit_and": "&", "bit_or": "|", "bit_xor": "^",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip

# functions of the prelude under their own name: on the GPU, the ones that eager calls
PRELUDE = frozenset({
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos",
    "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv",
    "lgamma", "sigmoid", "rsqrt", "pow", "fmod", "trunc", "round", "sign", "signbit", "copysign",
    "hypot", "nextafter",
})  # fmt: skip

# functions of the text itself: triton_random.py
RANDOM = frozenset({"philox", "fast_sin", "fast_cos", "sinpi", "cospi"})

FLOAT: dict[str, Text] = {
    "neg": lambda a: f"weld.neg({a[0]})",
    "abs": lambda a: f"tl.abs({a[0]})",
    "fma": lambda a: f"tl.fma({a[0]}, {a[1]}, {a[2]})",
    "max": lambda a: f"weld.maximum({a[0]}, {a[1]})",
    "min": lambda a: f"weld.minimum({a[0]}, {a[1]})",
    "floor": lambda a: f"tl.floor({a[0]})",
    "ceil": lambda a: f"tl.ceil({a[0]})",
    "floor_div": lambda a: f"weld.floor_div({a[0]}, {a[1]})",
    "mod": lambda a: f"weld.mod({a[0]}, {a[1]})",
    "isnan": lambda a: f"{a[0]} != {a[0]}",
    "isinf": lambda a: f'tl.abs({a[0]}) == float("inf")',
}

INTEGER: dict[str, Text] = {
    "neg": lambda a: f"-{a[0]}",
    "abs": lambda a: f"tl.abs({a[0]})",
    "max": lambda a: f"tl.maximum({a[0]}, {a[1]})",
    "min": lambda a: f"tl.minimum({a[0]}, {a[1]})",
    "trunc_div": lambda a: f"{a[0]} // {a[1]}",
    "floor_div": lambda a: f"weld.int_floor_div({a[0]}, {a[1]})",
    "mod": lambda a: f"weld.int_mod({a[0]}, {a[1]})",
    "ipow": lambda a: f"weld.ipow({a[0]}, {a[1]})",
    "sign": lambda a: f"weld.sign({a[0]})",
    "signbit": lambda a: f"{a[0]} < 0",
    "bit_not": lambda a: f"~{a[0]}",
    "shl": lambda a: f"weld.shl({a[0]}, {a[1]})",
    "shr": lambda a: f"weld.shr({a[0]}, {a[1]})",
}

# int1 is a signed type to Triton: its comparisons would be upside down
LOGIC: dict[str, Text] = {
    "and": lambda a: f"{a[0]} & {a[1]}",
    "or": lambda a: f"{a[0]} | {a[1]}",
    "xor": lambda a: f"{a[0]} ^ {a[1]}",
    "not": lambda a: f"~{a[0]}",
    "max": lambda a: f"{a[0]} | {a[1]}",
    "min": lambda a: f"{a[0]} & {a[1]}",
    "ne": lambda a: f"{a[0]} ^ {a[1]}",
    "eq": lambda a: f"~({a[0]} ^ {a[1]})",
    "lt": lambda a: f"~{a[0]} & {a[1]}",
    "gt": lambda a: f"{a[0]} & ~{a[1]}",
    "le": lambda a: f"~{a[0]} | {a[1]}",
    "ge": lambda a: f"{a[0]} | ~{a[1]}",
    "add": lambda a: f"{a[0]} | {a[1]}",
    "mul": lambda a: f"{a[0]} & {a[1]}",
}

_COMPARED = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})

# functions of the prelude that look at the types of their arguments
_ASKS_TYPES = frozenset({"floor_div", "mod", "shl", "shr", "ipow", "philox"})


def infix(x: Op) -> bool:
    """Whether `x` is written between its arguments, so that a literal takes the other's type."""
    return x.name in INFIX and x.args[0].dtype is not DType.BOOL


def needs_type(x: Op, literal: Scalar, between: bool) -> bool:
    """Whether a number must get its type before `x` meets it. between: it is written infix.

    Arithmetic takes the type of the tensor; everything else, comparisons too, makes a tensor of
    the number first.
    """
    if between:
        return x.name in _COMPARED and literal.dtype.is_float and not keeps_type(literal)
    return x.name in _ASKS_TYPES or not keeps_type(literal)


def op_text(x: Op, args: list[str]) -> str:
    """The expression of `x` (not where, cast or check_index) on named arguments."""
    kind = x.args[0].dtype
    if kind is DType.BOOL:
        return LOGIC[x.name](args)
    text = _arithmetic(x, kind, args)
    return rounded(text, x.dtype) if x.dtype in NARROW else text


def fast_text(x: Op, args: list[str], by_row: bool) -> str:
    """The fast form of an operator in f32. by_row: the divisor is one value per row."""
    if x.name != "div":
        return f"weld.fast_{x.name}({args[0]})"
    return f"weld.quotient({args[0]}, {args[1]})" if by_row else f"{args[0]} / {args[1]}"


def _arithmetic(x: Op, kind: DType, args: list[str]) -> str:
    if x.name in INFIX:
        return f"{args[0]} {INFIX[x.name]} {args[1]}"
    table = FLOAT if kind.is_float else INTEGER
    if x.name == "bit_not" and kind is DType.U8:
        return f"{args[0]} ^ 255"
    if x.name in table:
        return table[x.name](args)
    if x.name == "div":
        return f"{args[0]} / {args[1]}" if kind is DType.F64 else f"tl.div_rn({', '.join(args)})"
    if x.name == "sqrt":
        return f"tl.sqrt({args[0]})" if kind is DType.F64 else f"tl.sqrt_rn({args[0]})"
    if x.name in PRELUDE:
        return f"weld.{x.name}({', '.join(args)})"
    if x.name in RANDOM:
        return f"{x.name}({', '.join(args)})"
    raise InternalError(f"operator {x.name} has no Triton text")


def narrowed(text: str, dtype: DType) -> str:
    """An f32 expression as f16 or bf16."""
    if dtype is DType.BF16:
        return f"weld.to_bf16({text})"
    return f"({text}).to(tl.float16)" if " " in text else f"{text}.to(tl.float16)"


def rounded(text: str, dtype: DType) -> str:
    """An f32 expression with the precision of f16 or bf16."""
    return f"{narrowed(text, dtype)}.to(tl.float32)"


def cast_text(src: DType, dst: DType, arg: str) -> str | None:
    """The conversion of a named value, None when it is the same in registers."""
    if src.is_float8:
        wide = f"from_{src.value}({arg})"
        return wide if dst in HELD_AS_F32 else cast_text(DType.F32, dst, wide)
    if dst.is_float8:
        return f"to_{dst.value}({cast_text(src, DType.F32, arg) or arg})"
    if dst is DType.BOOL:
        return f"{arg} != 0"
    if dst is DType.U8 and src.is_float:
        arg = f"{arg}.to(tl.int64)"  # as eager: negative numbers wrap
    have, want = COMPUTED[src], COMPUTED[dst]
    text = f"{arg}.to({want})" if have != want else arg
    if dst in NARROW and src not in (dst, DType.BOOL):
        return rounded(text, dst)
    return text if have != want else None
