"""Scalar operators as C++: one row per operator, the same text for scalars and for vectors."""

from __future__ import annotations

from collections.abc import Callable

from torchweld.base.errors import InternalError
from torchweld.codegen.cpp_types import COMPUTED, HELD_AS_F32, NARROW
from torchweld.ir.dtype import DType
from torchweld.ir.loop import Const, Op

Text = Callable[[list[str]], str]

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
WRAPPING = frozenset({DType.I16, DType.I8, DType.U8})  # C++ computes these in int

# operators that are a function of the header under their own name
CALLS = frozenset(
    [
        "fma",
        "trunc_div",
        "floor_div",
        "mod",
        "fmod",
        "abs",
        "pow",
        "ipow",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "atan2",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "erf",
        "erfc",
        "erfinv",
        "lgamma",
        "sigmoid",
        "floor",
        "ceil",
        "trunc",
        "round",
        "sign",
        "signbit",
        "copysign",
        "hypot",
        "nextafter",
        "isnan",
        "isinf",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "max",
        "min",
        "shl",
        "shr",
    ]
)

# those of the header's functions that are long enough to be called, not copied, in long kernels
LONG = frozenset(
    ["exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "asin", "acos", "atan",
     "sinh", "cosh", "tanh", "erf", "sigmoid"]
)  # fmt: skip

# on bool arguments
LOGIC: dict[str, Text] = {
    "and": lambda a: f"band({a[0]}, {a[1]})",
    "or": lambda a: f"bor({a[0]}, {a[1]})",
    "xor": lambda a: f"bxor({a[0]}, {a[1]})",
    "not": lambda a: f"bnot({a[0]})",
    "max": lambda a: f"bor({a[0]}, {a[1]})",
    "min": lambda a: f"band({a[0]}, {a[1]})",
    "ne": lambda a: f"bxor({a[0]}, {a[1]})",
    "eq": lambda a: f"bnot(bxor({a[0]}, {a[1]}))",
    "lt": lambda a: f"band(bnot({a[0]}), {a[1]})",
    "gt": lambda a: f"band({a[0]}, bnot({a[1]}))",
    "le": lambda a: f"bor(bnot({a[0]}), {a[1]})",
    "ge": lambda a: f"bor({a[0]}, bnot({a[1]}))",
    "add": lambda a: f"bor({a[0]}, {a[1]})",
    "mul": lambda a: f"band({a[0]}, {a[1]})",
}

BITS = {"bit_and": "&", "bit_or": "|", "bit_xor": "^"}


def op_text(x: Op, args: list[str], vec: bool) -> str:
    """The C++ expression of `x` (not where, cast or a check) on named arguments."""
    if x.args[0].dtype is DType.BOOL:
        return LOGIC[x.name](args)
    text = _arithmetic(x, args, vec)
    narrow = NARROW.get(x.dtype)
    return f"{narrow}({text})" if narrow else text


def _arithmetic(x: Op, args: list[str], vec: bool) -> str:
    small = x.dtype in WRAPPING and not vec
    if x.name in INFIX:
        if small:
            return f"{x.name}({args[0]}, {args[1]})"
        return f"{args[0]} {INFIX[x.name]} {args[1]}"
    if x.name == "neg":
        # -x of a negative literal would read as a decrement
        return f"neg({args[0]})" if small or args[0].startswith("-") else f"-{args[0]}"
    if x.name in BITS:
        text = f"{args[0]} {BITS[x.name]} {args[1]}"
        return f"{COMPUTED[x.dtype]}({text})" if small else text
    if x.name == "bit_not":
        return f"{COMPUTED[x.dtype]}(~{args[0]})" if small else f"~{args[0]}"
    if x.name in ("max", "min"):
        return _extreme(x, args)
    if x.name in CALLS:
        return f"{x.name}({', '.join(args)})"
    raise InternalError(f"operator {x.name} has no C++ text")


def _extreme(x: Op, args: list[str]) -> str:
    """max and min, cheaper when one side is a constant: it is not NaN."""
    for side in (1, 0):
        c = x.args[side]
        if isinstance(c, Const) and c.dtype.is_float and c.value == c.value:
            return f"{x.name}_known({args[1 - side]}, {args[side]})"
    return f"{x.name}({args[0]}, {args[1]})"


def cast_text(src: DType, dst: DType, arg: str, vec: bool) -> str | None:
    """The C++ conversion, None when the value is the same in registers."""
    if src.is_float8:
        wide = f"from_{src.value}({arg})"
        return wide if dst in HELD_AS_F32 else cast_text(DType.F32, dst, wide, vec)
    if dst.is_float8:
        return f"to_{dst.value}({cast_text(src, DType.F32, arg, vec) or arg})"
    if dst is DType.BOOL:
        return f"vto_bool({arg})" if vec else f"({arg} != 0)"
    have, want = COMPUTED[src], COMPUTED[dst]
    if have != want:
        if not vec:
            arg = f"to<{want}>({arg})"
        else:
            arg = f"vfrom_bool<{want}>({arg})" if src is DType.BOOL else f"vto<{want}>({arg})"
    exact = src in (dst, DType.BOOL)
    if dst in NARROW and not exact:
        return f"{NARROW[dst]}({arg})"
    return arg if have != want else None
