"""The closed table of scalar operators: arity, result type, meaning in plain Python.

Arithmetic runs in the common dtype of the arguments (the verifier checks that they agree). Integer
arithmetic wraps in two's complement; float meanings are rounded to the dtype by `loop_eval`.
Floating-point corner cases follow eager: max/min pass NaN on, `round` is half to even, `trunc_div`
and `floor_div` by an integer zero are undefined here and refused by the lowering.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torchweld.base.registry import Registry
from torchweld.ir.philox import word

# how the result dtype follows from the arguments
SAME = "same"  # all arguments and the result have one dtype
BOOL = "bool"  # arguments have one dtype, the result is bool
LOGIC = "logic"  # bool arguments, bool result
SELECT = "select"  # (bool, T, T) -> T
CAST = "cast"  # one argument of any dtype, the node says the result
INDEX = "index"  # i64 arguments, i64 result


@dataclass(frozen=True, slots=True)
class OpRow:
    """One scalar operator.

    kinds: which types it takes: f float, i integer, b bool, q 8-bit float.
    """

    name: str
    arity: int
    rule: str
    kinds: str
    meaning: Callable[..., object]
    doc: str


OPS: Registry[str, OpRow] = Registry("scalar operators")


def _row(name: str, arity: int, rule: str, kinds: str, meaning: Callable[..., object],
         doc: str) -> None:  # fmt: skip
    OPS.add(name, OpRow(name, arity, rule, kinds, meaning, doc))


def _nan_first(pick: Callable[[float, float], float]) -> Callable[[float, float], float]:
    def meaning(a: float, b: float) -> float:
        return a if a != a else b if b != b else pick(a, b)

    return meaning


def _total(f: Callable[..., float]) -> Callable[..., float]:
    """`f` with Python's domain errors turned into what C returns."""

    def meaning(*args: float) -> float:
        if any(a != a for a in args):
            return math.nan
        try:
            return f(*args)
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan

    return meaning


def _div(a: float, b: float) -> float:
    if b != 0:
        return a / b
    if a != a or a == 0 or b != b:
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def _log(f: Callable[[float], float], at: float) -> Callable[[float], float]:
    return lambda x: -math.inf if x == at else _total(f)(x)


def _pow(a: float, b: float) -> float:
    try:
        out = a**b if not (a == 0 and b < 0) else _div(1.0, a**-b)
    except OverflowError:
        odd = float(b).is_integer() and int(b) % 2 == 1
        return -math.inf if a < 0 and odd else math.inf
    return out if isinstance(out, int | float) else math.nan


def _ipow(a: int, b: int) -> int:
    if b >= 0:
        return int(a**b)
    return 1 if a == 1 else (1 if b % 2 == 0 else -1) if a == -1 else 0


def _fmod(a: float, b: float) -> float:
    return math.nan if b == 0 or math.isinf(a) else math.fmod(a, b)


def _floordiv(a: float, b: float) -> float:
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 0:
        return _div(a, b)
    if math.isinf(a):
        return math.nan
    mod = math.fmod(a, b)
    div = (a - mod) / b
    if mod != 0 and (b < 0) != (mod < 0):
        div -= 1
    return math.copysign(0.0, a / b) if div == 0 else math.floor(div + 0.5)


def _truncdiv(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def _mod(a: float, b: float) -> float:
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if b == 0 or math.isinf(a):
        return math.nan
    r = math.fmod(a, b)
    return r + b if r != 0 and (b < 0) != (r < 0) else r


def _round(x: float) -> float:
    return x if math.isinf(x) or math.isnan(x) else math.copysign(float(round(x)), x)


def _whole(f: Callable[[float], int]) -> Callable[[float], float]:
    return lambda x: x if math.isinf(x) or math.isnan(x) else math.copysign(float(f(x)), x)


def _sign(x: float) -> float:
    return x if x != x else (x > 0) - (x < 0)


def _erfinv(x: float) -> float:
    if abs(x) >= 1:
        return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    y = 0.0
    for _ in range(100):  # Newton; slow and plain on purpose
        y -= (math.erf(y) - x) * math.sqrt(math.pi) / 2 * math.exp(min(y * y, 700.0))
    return y


def _in_half_turns(f: Callable[[float], float]) -> Callable[[float], float]:
    return _total(lambda x: f(math.pi * math.fmod(x, 2.0)))


def _wrap(i: int, n: int) -> int:
    j = i + n if i < 0 else i
    if not 0 <= j < n:
        raise IndexError(f"index {i} is out of bounds for size {n}")
    return j


def _bound(i: int, n: int) -> int:
    if not 0 <= i < n:
        raise RuntimeError(f"index {i} is out of bounds for size {n}")
    return i


_row("add", 2, SAME, "fi", lambda a, b: a + b, "a + b")
_row("sub", 2, SAME, "fi", lambda a, b: a - b, "a - b")
_row("mul", 2, SAME, "fi", lambda a, b: a * b, "a * b")
_row("div", 2, SAME, "f", _div, "true division")
_row("fma", 3, SAME, "f", lambda a, b, c: a * b + c, "a * b + c, rounded once or twice")
_row("floor_div", 2, SAME, "fi", _floordiv, "floor of the quotient, as Python's //")
_row("trunc_div", 2, SAME, "i", _truncdiv, "quotient rounded toward zero")
_row("mod", 2, SAME, "fi", _mod, "remainder with the sign of b, as Python's %")
_row("fmod", 2, SAME, "f", _fmod, "remainder with the sign of a, as C's fmod")
_row("neg", 1, SAME, "fi", lambda a: -a, "-a")
_row("abs", 1, SAME, "fi", abs, "absolute value")
_row("max", 2, SAME, "fib", _nan_first(max), "the larger; NaN if either is NaN")
_row("min", 2, SAME, "fib", _nan_first(min), "the smaller; NaN if either is NaN")
_row("pow", 2, SAME, "f", _pow, "a to the power b")
_row("ipow", 2, SAME, "i", _ipow, "integer power; negative exponents give 0, 1 or -1")
_row("exp", 1, SAME, "f", _total(math.exp), "e to the x")
_row("exp2", 1, SAME, "f", _total(lambda x: 2.0**x), "2 to the x")
_row("expm1", 1, SAME, "f", _total(math.expm1), "exp(x) - 1")
_row("log", 1, SAME, "f", _log(math.log, 0.0), "natural logarithm")
_row("log2", 1, SAME, "f", _log(math.log2, 0.0), "logarithm to base 2")
_row("log10", 1, SAME, "f", _log(math.log10, 0.0), "logarithm to base 10")
_row("log1p", 1, SAME, "f", _log(math.log1p, -1.0), "log(1 + x)")
_row("sqrt", 1, SAME, "f", _total(math.sqrt), "square root")
_row("rsqrt", 1, SAME, "f", lambda x: _div(1.0, _total(math.sqrt)(x)), "1 / sqrt(x)")
_row("sin", 1, SAME, "f", _total(math.sin), "sine")
_row("cos", 1, SAME, "f", _total(math.cos), "cosine")
_row("tan", 1, SAME, "f", _total(math.tan), "tangent")
_row("asin", 1, SAME, "f", _total(math.asin), "inverse sine")
_row("acos", 1, SAME, "f", _total(math.acos), "inverse cosine")
_row("atan", 1, SAME, "f", _total(math.atan), "inverse tangent")
_row("atan2", 2, SAME, "f", _total(math.atan2), "angle of the point (b, a)")
_row("sinh", 1, SAME, "f", lambda x: x if math.isinf(x) else _total(math.sinh)(x), "sinh")
_row("cosh", 1, SAME, "f", _total(math.cosh), "hyperbolic cosine")
_row("tanh", 1, SAME, "f", _total(math.tanh), "hyperbolic tangent")
_row("asinh", 1, SAME, "f", _total(math.asinh), "inverse hyperbolic sine")
_row("acosh", 1, SAME, "f", _total(math.acosh), "inverse hyperbolic cosine")
_row("atanh", 1, SAME, "f", lambda x: math.copysign(math.inf, x) if abs(x) == 1
     else _total(math.atanh)(x), "inverse hyperbolic tangent")  # fmt: skip
_row("erf", 1, SAME, "f", _total(math.erf), "error function")
_row("erfc", 1, SAME, "f", _total(math.erfc), "1 - erf(x)")
_row("erfinv", 1, SAME, "f", _total(_erfinv), "inverse error function")
_row("lgamma", 1, SAME, "f", lambda x: math.inf if x == math.floor(x) and x <= 0
     else _total(math.lgamma)(x), "log of the absolute gamma function")  # fmt: skip
_row("sigmoid", 1, SAME, "f", lambda x: _div(1.0, 1.0 + _total(math.exp)(-x)), "1 / (1 + exp(-x))")
_row("floor", 1, SAME, "f", _whole(math.floor), "round down")
_row("ceil", 1, SAME, "f", _whole(math.ceil), "round up")
_row("trunc", 1, SAME, "f", _whole(math.trunc), "round toward zero")
_row("round", 1, SAME, "f", _round, "round half to even")
_row("sign", 1, SAME, "fi", _sign, "-1, 0 or 1; NaN stays NaN")
_row("signbit", 1, BOOL, "fi", lambda x: math.copysign(1.0, x) < 0, "whether the sign bit is set")
_row("copysign", 2, SAME, "f", math.copysign, "|a| with the sign of b")
_row("hypot", 2, SAME, "f", math.hypot, "sqrt(a*a + b*b)")
_row("nextafter", 2, SAME, "f", math.nextafter, "the next value after a toward b")
_row("fast_sin", 1, SAME, "f", _total(math.sin), "sine to 2**-20, absolute, in 0..2 pi; on GPUs")
_row("fast_cos", 1, SAME, "f", _total(math.cos), "cosine to 2**-20, absolute, in 0..2 pi; on GPUs")
_row("sinpi", 1, SAME, "f", _in_half_turns(math.sin), "sine of pi x; on GPUs")
_row("cospi", 1, SAME, "f", _in_half_turns(math.cos), "cosine of pi x; on GPUs")
_row("isnan", 1, BOOL, "f", lambda x: x != x, "whether NaN")
_row("isinf", 1, BOOL, "f", lambda x: math.isinf(x), "whether infinite")
_row("eq", 2, BOOL, "fib", lambda a, b: a == b, "a == b")
_row("ne", 2, BOOL, "fib", lambda a, b: a != b, "a != b")
_row("lt", 2, BOOL, "fib", lambda a, b: a < b, "a < b")
_row("le", 2, BOOL, "fib", lambda a, b: a <= b, "a <= b")
_row("gt", 2, BOOL, "fib", lambda a, b: a > b, "a > b")
_row("ge", 2, BOOL, "fib", lambda a, b: a >= b, "a >= b")
_row("and", 2, LOGIC, "b", lambda a, b: a and b, "logical and")
_row("or", 2, LOGIC, "b", lambda a, b: a or b, "logical or")
_row("xor", 2, LOGIC, "b", lambda a, b: a != b, "logical exclusive or")
_row("not", 1, LOGIC, "b", lambda a: not a, "logical not")
_row("bit_and", 2, SAME, "i", lambda a, b: a & b, "bitwise and")
_row("bit_or", 2, SAME, "i", lambda a, b: a | b, "bitwise or")
_row("bit_xor", 2, SAME, "i", lambda a, b: a ^ b, "bitwise exclusive or")
_row("bit_not", 1, SAME, "i", lambda a: ~a, "bitwise not")
_row("shl", 2, SAME, "i", lambda a, b: a << b if 0 <= b < 64 else 0, "shift left")
_row("shr", 2, SAME, "i", lambda a, b: a >> b if 0 <= b < 64 else (-1 if a < 0 else 0),
     "arithmetic shift right")  # fmt: skip
_row("where", 3, SELECT, "fibq", lambda c, a, b: a if c else b, "a if c else b; lazy")
_row("cast", 1, CAST, "fibq", lambda x: x, "convert to the node's dtype")
_row("check_index", 2, INDEX, "i", _wrap, "index a into size b: negative counts from the end; "
     "out of range fails the call with an IndexError")  # fmt: skip
_row("check_bound", 2, INDEX, "i", _bound, "index a into size b, not negative; "
     "out of range fails the call with a RuntimeError")  # fmt: skip
_row("philox", 4, INDEX, "i", word, "32 random bits: word d of block b of subsequence c of seed a; "
     "on GPUs")  # fmt: skip

# Operators that only GPU kernels have.
ON_GPUS = frozenset({"fast_sin", "fast_cos", "sinpi", "cospi", "philox"})
# Operators that may fail a call -> what a kernel returns then (the codes are or-ed together).
CHECKS = {"check_index": 1, "check_bound": 2}
# The exception for each code; of several, the first one is raised.
FAILURES: dict[int, type[Exception]] = {1: IndexError, 2: RuntimeError}
