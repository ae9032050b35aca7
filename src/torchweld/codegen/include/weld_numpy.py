# mypy: ignore-errors
"""The functions of the kernels' prelude in NumPy, for Triton's interpreter.

It knows neither libdevice nor the rounding of bf16, and folds element by element.
"""

import math

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle
from triton.runtime.interpreter import _interpreter as memory


def _splat(self, shape, x):
    """A scalar as a block: Triton 3.6 makes floats of the answers of comparisons."""
    return TensorHandle(np.full(shape.shape, x.data.ravel()[0], x.data.dtype), x.dtype.scalar)


InterpreterBuilder.create_splat = _splat


def _tensor(data, dtype):
    """A block (or, for data of shape (), a scalar) of the interpreter."""
    kind = tl.block_type(dtype, list(data.shape)) if data.shape else dtype
    return tl.core.tensor(TensorHandle(np.atleast_1d(data), dtype), kind)


def _data(x):
    """The numbers of a block; of shape () for a scalar."""
    if not isinstance(x, tl.core.tensor):
        return np.float32(x)
    data = x.handle.data
    return data if x.type.is_block() else data.reshape(())


def _lift(f):
    """f on arrays of doubles as a function of the kernel's language, rounded to its type."""

    def call(*args):
        dtype = next(x.dtype for x in args if isinstance(x, tl.core.tensor))
        with np.errstate(all="ignore"):
            out = np.asarray(f(*(np.float64(_data(x)) for x in args)))
        return _tensor(out.astype(_data_type(dtype)), dtype)

    return call


def _data_type(dtype):
    return np.float64 if dtype == tl.float64 else np.float32


def _plain(f, odd=math.nan):
    """A function of math on arrays; `odd` where it has no answer."""

    def one(*x):
        try:
            return f(*x)
        except (ValueError, OverflowError):
            return odd

    return lambda *x: np.vectorize(one, otypes=[float])(*x)


def _erfinv(x):
    if not abs(x) < 1:
        return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    y = 0.0
    for _ in range(100):
        y -= (math.erf(y) - x) * math.sqrt(math.pi) / 2 * math.exp(min(y * y, 700.0))
    return y


exp = fast_exp = _lift(np.exp)
fast_inverse = _lift(lambda x: 1.0 / x)
exp2, expm1 = _lift(np.exp2), _lift(np.expm1)
log, log2, log10, log1p = _lift(np.log), _lift(np.log2), _lift(np.log10), _lift(np.log1p)
sin, cos, tan = _lift(np.sin), _lift(np.cos), _lift(np.tan)
sinpi, cospi = _lift(lambda x: np.sin(np.pi * x)), _lift(lambda x: np.cos(np.pi * x))
asin, acos, atan = _lift(np.arcsin), _lift(np.arccos), _lift(np.arctan)
atan2, hypot = _lift(np.arctan2), _lift(np.hypot)
sinh, cosh, tanh = _lift(np.sinh), _lift(np.cosh), _lift(np.tanh)
asinh, acosh, atanh = _lift(np.arcsinh), _lift(np.arccosh), _lift(np.arctanh)
erf, erfc, erfinv = _lift(_plain(math.erf)), _lift(_plain(math.erfc)), _lift(_plain(_erfinv))
lgamma = _lift(_plain(math.lgamma, math.inf))
rsqrt = _lift(lambda x: 1.0 / np.sqrt(x))
pow, fmod = _lift(np.power), _lift(np.fmod)
trunc, round, copysign = _lift(np.trunc), _lift(np.rint), _lift(np.copysign)
sigmoid = _lift(lambda x: 1.0 / (1.0 + np.exp(-x)))


def nextafter(a, b):
    return _tensor(np.asarray(np.nextafter(_data(a), _data(b))), a.dtype)


def _mod(a, b):
    r = np.fmod(a, b)
    return np.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


def _floor_div(a, b):
    r = np.fmod(a, b)
    q = (a - r) / b
    q = np.where((r != 0) & ((b < 0) != (r < 0)), q - 1, q)
    whole = np.floor(q)
    whole = np.where(q - whole > 0.5, whole + 1, whole)
    zero = np.copysign(q * 0.0, a / b)
    return np.where(b == 0, a / b, np.where(q == 0, zero, whole))


mod, floor_div = _lift(_mod), _lift(_floor_div)


def to_bf16(x):
    """Rounded to nearest even: the interpreter cuts."""
    bits = np.asarray(_data(x), np.float32).view(np.uint32).astype(np.uint64)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    up = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    out = np.where(nan, (bits >> np.uint64(16)) | np.uint64(0x40), up)
    return _tensor(np.asarray(out.astype(np.uint16)), tl.bfloat16)


class BadIndex(AssertionError, IndexError):
    """What tl.device_assert raises here, and what the CPU's kernels report."""


class BadBound(AssertionError, RuntimeError):
    """The same for an index that may not be negative."""


def _checked(negative, error):
    def check(i, n, mask):
        at, size, ask = _data(i), _data(n), _data(mask)
        bad = ask & ((at < (-size if negative else 0)) | (at >= size))
        if bad.any():
            raise error(f"index {np.broadcast_to(at, bad.shape)[bad][0]} is out of bounds")
        at, size = np.broadcast_arrays(at, size)
        inside = (at >= -size) & (at < size)
        out = np.where(inside, np.where(at < 0, at + size, at), 0).astype(at.dtype)
        return _tensor(out, i.dtype)

    return check


check_index, check_bound = _checked(True, BadIndex), _checked(False, BadBound)


def _row(f):
    def call(x):
        data = _data(x)
        with np.errstate(all="ignore"):
            out = f(data, axis=-1, keepdims=data.ndim > 1, dtype=data.dtype)
        return _tensor(np.asarray(out), x.dtype)

    return call


def _extreme(f):
    return lambda data, axis, keepdims, dtype: f.reduce(data, axis=axis, keepdims=keepdims)


row_sum, row_prod = _row(np.sum), _row(np.prod)
row_max, row_min = _row(_extreme(np.maximum)), _row(_extreme(np.minimum))


def axis_sum(x, axis):
    return _tensor(_data(x).sum(int(axis), dtype=_data(x).dtype), x.dtype)


def axis_sums(x, y, axis):
    return axis_sum(x, axis), axis_sum(y, axis)


def axis_max(x, axis):
    return _tensor(np.maximum.reduce(_data(x), axis=int(axis)), x.dtype)


def _pick(x, at, sign):
    data, places = _data(x), np.broadcast_to(_data(at), _data(x).shape)
    key = data.astype(np.float64) if x.dtype.is_floating() else data.astype(object)
    best = (np.maximum if sign > 0 else np.minimum).reduce(key, axis=-1, keepdims=True)
    hit = (key != key) if x.dtype.is_floating() else np.zeros(key.shape, bool)
    hit = np.where(hit.any(-1, keepdims=True), hit, key == best)
    far = np.iinfo(places.dtype).max
    out = np.where(hit, places, far).min(axis=-1, keepdims=data.ndim > 1)
    return _tensor(np.asarray(out.astype(places.dtype)), at.dtype)


row_argmax, row_argmin = (lambda x, at: _pick(x, at, 1)), (lambda x, at: _pick(x, at, -1))


def _scan(f):
    def call(x):
        with np.errstate(all="ignore"):
            out = f.accumulate(_data(x), axis=-1)
        return _tensor(out.astype(_data(x).dtype), x.dtype)

    return call


scan_sum, scan_prod = _scan(np.add), _scan(np.multiply)
scan_max, scan_min = _scan(np.maximum), _scan(np.minimum)


def _atomic(combine):
    """One lane after the other."""

    def call(base, at, x, mask):
        here = _data(base + at)
        shape = np.broadcast_shapes(here.shape, _data(x).shape, _data(mask).shape)
        places, values, do = (
            np.broadcast_to(v, shape).ravel() for v in (here, _data(x), _data(mask))
        )
        for place, value in zip(places[do], values[do], strict=True):
            one = np.array([place], np.uint64)
            kind, yes = value.dtype, np.ones(1, bool)
            old = memory.load(one, yes, np.zeros(1, kind), kind)
            memory.store(one, combine(old, np.array([value], kind), x.dtype), yes)

    return call


def _wide(f):
    def combine(old, new, dtype):
        if dtype == tl.bfloat16:
            old, new = ((v.astype(np.uint32) << 16).view(np.float32) for v in (old, new))
            return to_bf16(_tensor(f(old, new), tl.float32)).handle.data
        with np.errstate(all="ignore"):
            return f(old, new).astype(old.dtype)

    return combine


atomic_add, atomic_mul = _atomic(_wide(np.add)), _atomic(_wide(np.multiply))
atomic_max, atomic_min = _atomic(_wide(np.maximum)), _atomic(_wide(np.minimum))
