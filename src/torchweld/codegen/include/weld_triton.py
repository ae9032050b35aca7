# mypy: ignore-errors
# ruff: noqa: RET505  Triton compiles what stands behind a return that has no else
"""What generated Triton kernels call: eager's mathematics, reductions, checks, atomics.

In a compiled kernel the functions of one element are libdevice's, as in eager's own kernels.
Triton's interpreter (TRITON_INTERPRET=1) knows neither libdevice nor the rounding of bf16, and
folds element by element: there, the second half of this file computes the same with NumPy.

Triton's language only looks like Python, so mypy has no say here.
"""

import math

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

INTERPRETED = triton.knobs.runtime.interpret

# --- one element, in Triton's own operators


@triton.jit
def neg(x):
    """-x: Triton's minus is 0 - x, which loses the sign of zero."""
    return x * -1.0


@triton.jit
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def divide(a, b):
    """IEEE division: Triton's / is faster and less exact in f32."""
    if b.dtype == tl.float64:
        return a / b
    else:
        return tl.div_rn(a, b)


@triton.jit
def quotient(a, b):
    """a / b to 2 ULP for one b per row: one division there. Scaled, so that 1 / b is normal."""
    size = tl.abs(b)
    scale = tl.where(size < 5.421010862427522e-20, 18446744073709551616.0, 1.0)
    scale = tl.where(size > 18446744073709551616.0, 5.421010862427522e-20, scale)
    return (a * scale) * tl.div_rn(1.0, b * scale)


@triton.jit
def fast_sigmoid(x):
    return fast_inverse(1.0 + fast_exp(-x))


@triton.jit
def fast_erf(x):
    """erf to 1.5e-7, absolute: for 1 + erf(x), which eager has to 6e-8.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
    """
    z = tl.abs(x)
    t = fast_inverse(tl.fma(z, 0.3275911, 1.0))
    p = tl.fma(t, 1.061405429, -1.453152027)
    p = tl.fma(t, p, 1.421413741)
    p = tl.fma(t, p, -0.284496736)
    p = tl.fma(t, p, 0.254829592)
    out = tl.fma(-(p * t), fast_exp(-(z * z)), 1.0)
    return tl.where(x < 0, -out, out)


@triton.jit
def sign(x):
    return tl.where(x != x, x, (x > 0).to(x.dtype) - (x < 0).to(x.dtype))


@triton.jit
def signbit(x):
    if x.dtype == tl.float64:
        return x.to(tl.int64, bitcast=True) < 0
    else:
        return x.to(tl.int32, bitcast=True) < 0


@triton.jit
def int_mod(a, b):
    """The remainder with the sign of b."""
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def int_floor_div(a, b):
    q = a // b
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1, q)


@triton.jit
def shl(a, b):
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    inside = (b >= 0) & (b < bits)
    return tl.where(inside, a << tl.where(inside, b, 0).to(a.dtype), 0).to(a.dtype)


@triton.jit
def shr(a, b):
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    inside = (b >= 0) & (b < bits)
    if a.dtype.is_int_signed():
        return a >> tl.where(inside, b, bits - 1).to(a.dtype)
    else:
        return tl.where(inside, a >> tl.where(inside, b, 0).to(a.dtype), 0).to(a.dtype)


@triton.jit
def ipow(a, b):
    """Square and multiply; a negative exponent gives 0, 1 or -1."""
    base = a
    left = b
    out = ((a == a) & (b == b)).to(a.dtype)  # 1, of the shape of both
    for _ in range(a.dtype.primitive_bitwidth):
        out = tl.where((left & 1) != 0, out * base, out)
        base = base * base
        left = left >> 1
    one = (a == 1).to(a.dtype)
    if a.dtype.is_int_signed():
        odd = ((b & 1) != 0) & (a == -1)
        even = ((b & 1) == 0) & (a == -1)
        one = one + even.to(a.dtype) - odd.to(a.dtype)
    return tl.where(b < 0, one, out)


@triton.jit
def wrap_index(i, n):
    """Negative indices count from the end; what is out of range becomes 0."""
    return tl.where((i >= 0) & (i < n), i, tl.where((i < 0) & (i >= -n), i + n, 0))


# --- combining two, and along a row: the last axis, which stays with size 1 in a tile


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def mul(a, b):
    return a * b


@triton.jit
def max_any(a, b):
    """The larger; NaN wins."""
    if a.dtype.is_floating():
        return maximum(a, b)
    else:
        return tl.maximum(a, b)


@triton.jit
def min_any(a, b):
    if a.dtype.is_floating():
        return minimum(a, b)
    else:
        return tl.minimum(a, b)


@triton.jit
def pick_max(a, i, b, j):
    """The larger of two with its position: the first of equals, the first NaN."""
    first = (a > b) | ((a == b) & (i < j))
    if a.dtype.is_floating():
        first = first | ((a != a) & ((b == b) | (i < j)))
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def pick_min(a, i, b, j):
    first = (a < b) | ((a == b) & (i < j))
    if a.dtype.is_floating():
        first = first | ((a != a) & ((b == b) | (i < j)))
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def finite_top(m):
    """A maximum that exponents can be taken from: where all is -inf, exp(-inf - 0) adds nothing."""
    return tl.where(m == -float("inf"), 0.0, m)


@triton.jit
def online(m, s, x, group: tl.constexpr):
    """One tile of a running maximum m and s = sum exp(x - m), for each `group` neighbours of x.

    What the fast exp loses is lost in the rounding of the sum.
    Source: Milakov and Gimelshein 2018, arXiv:1805.02867, algorithm 3.
    """
    if len(m.shape) == 1:
        x = tl.reshape(x, m.shape[0], group)
    else:
        x = tl.reshape(x, m.shape[0], m.shape[1], group)
    top = max_any(m, last_max(x))
    base = finite_top(top)
    s = s * fast_exp(m - base) + last_sum(fast_exp(x - tl.expand_dims(base, len(m.shape))))
    return top, s


@triton.jit
def online_one(m, s, x):
    """`online` where a tile is one step: nothing to take together."""
    top = max_any(m, x)
    base = finite_top(top)
    return top, s * fast_exp(m - base) + fast_exp(x - base)


@triton.jit
def online_sum(m, s, top):
    """The groups' sums brought to the row's maximum `top`."""
    return online_end(row_sum(s * fast_exp(m - finite_top(top))), top)


@triton.jit
def online_end(s, top):
    """NaN where eager has exp(inf - inf)."""
    return tl.where(tl.abs(top) == float("inf"), float("nan"), s)


@triton.jit
def last_sum(x):
    return tl.reduce(x, len(x.shape) - 1, add)


@triton.jit
def last_max(x):
    return tl.reduce(x, len(x.shape) - 1, max_any)


@triton.jit
def row_sum(x):
    total = tl.reduce(x, len(x.shape) - 1, add, keep_dims=len(x.shape) > 1)
    if total.dtype.is_floating():
        total += 0.0  # a sum starts from 0.0: that of -0.0 is 0.0
    return total


@triton.jit
def row_prod(x):
    return tl.reduce(x, len(x.shape) - 1, mul, keep_dims=len(x.shape) > 1)


@triton.jit
def row_max(x):
    return tl.reduce(x, len(x.shape) - 1, max_any, keep_dims=len(x.shape) > 1)


@triton.jit
def row_min(x):
    return tl.reduce(x, len(x.shape) - 1, min_any, keep_dims=len(x.shape) > 1)


@triton.jit
def row_argmax(x, at):
    """The position `at` of the largest."""
    _, best = tl.reduce((x, at), len(x.shape) - 1, pick_max, keep_dims=len(x.shape) > 1)
    return best


@triton.jit
def row_argmin(x, at):
    _, best = tl.reduce((x, at), len(x.shape) - 1, pick_min, keep_dims=len(x.shape) > 1)
    return best


@triton.jit
def scan_sum(x):
    return tl.associative_scan(x, len(x.shape) - 1, add)


@triton.jit
def scan_prod(x):
    return tl.associative_scan(x, len(x.shape) - 1, mul)


@triton.jit
def scan_max(x):
    return tl.associative_scan(x, len(x.shape) - 1, max_any)


@triton.jit
def scan_min(x):
    return tl.associative_scan(x, len(x.shape) - 1, min_any)


# --- several points that store to one element


@triton.jit
def swap_until_done(base, at, x, mask, combine: tl.constexpr):
    """Compare and swap until every lane has had its turn. `base`: any address that is valid."""
    bits: tl.constexpr = tl.core.get_int_dtype(x.dtype.primitive_bitwidth, True)
    todo = mask & (at == at)  # of the shape of all places
    while tl.max(todo.to(tl.int32).reshape([todo.numel])) > 0:
        here = tl.where(todo, (base + at).to(tl.uint64), base.to(tl.uint64))
        here = here.to(tl.pointer_type(bits))
        old = tl.load(here, volatile=True)
        new = old.to(x.dtype, bitcast=True)
        if x.dtype.primitive_bitwidth == 16:
            new = combine(new.to(tl.float32), x.to(tl.float32)).to(x.dtype).to(bits, bitcast=True)
        else:
            new = combine(new, x).to(bits, bitcast=True)
        seen = tl.atomic_cas(here, old, tl.where(todo, new, old))
        todo = todo & (seen != old)


@triton.jit
def atomic_add(base, at, x, mask):
    tl.atomic_add(base + at, x, mask=mask, sem="relaxed")


@triton.jit
def atomic_mul(base, at, x, mask):
    swap_until_done(base, at, x, mask, mul)


@triton.jit
def atomic_max(base, at, x, mask):
    if x.dtype.is_floating():
        swap_until_done(base, at, x, mask, max_any)
    else:
        tl.atomic_max(base + at, x, mask=mask, sem="relaxed")


@triton.jit
def atomic_min(base, at, x, mask):
    if x.dtype.is_floating():
        swap_until_done(base, at, x, mask, min_any)
    else:
        tl.atomic_min(base + at, x, mask=mask, sem="relaxed")


if not INTERPRETED:
    LIBDEVICE = """exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh
    tanh asinh acosh atanh erf erfc erfinv lgamma rsqrt pow fmod trunc copysign hypot nextafter"""
    for _name in LIBDEVICE.split():
        globals()[_name] = getattr(libdevice, _name)
    round = libdevice.nearbyint

    @triton.jit
    def sigmoid(x):
        return divide(1.0, 1.0 + libdevice.exp(-x))

    @triton.jit
    def fast_exp(x):
        """exp in two instructions, to a relative error of 2**-22 + |x| 2**-24: for what is rounded
        to f16 or bf16, or summed."""
        if x.dtype == tl.float64:
            return libdevice.exp(x)
        else:
            return tl.inline_asm_elementwise(
                "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * 1.4426950408889634], tl.float32, True, 1
            )

    @triton.jit
    def fast_inverse(x):
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1
        )

    @triton.jit
    def to_bf16(x):
        return x.to(tl.bfloat16)

    @triton.jit
    def mod(a, b):
        """The remainder with the sign of b."""
        r = libdevice.fmod(a, b)
        return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)

    @triton.jit
    def floor_div(a, b):
        """Python's // on floats, infinities and zeros as in eager."""
        r = libdevice.fmod(a, b)
        q = divide(a - r, b)
        q = tl.where((r != 0) & ((b < 0) != (r < 0)), q - 1.0, q)
        whole = tl.floor(q)
        whole = tl.where(q - whole > 0.5, whole + 1.0, whole)
        zero = libdevice.copysign(q * 0.0, divide(a, b))
        return tl.where(b == 0, divide(a, b), tl.where(q == 0, zero, whole))

    @triton.jit
    def check_index(i, n, mask):
        """Index i into size n, checked where `mask` holds, as eager's kernels do."""
        tl.device_assert((i >= -n) & (i < n), "index out of bounds", mask=mask)
        return wrap_index(i, n)

    @triton.jit
    def check_bound(i, n, mask):
        """Index i, which may not be negative, into size n."""
        inside = (i >= 0) & (i < n)
        tl.device_assert(inside, "index out of bounds", mask=mask)
        return tl.where(inside, i, 0)

else:
    import numpy as np
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
            return wrap_index(i, n)

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

    def last_sum(x):
        return _tensor(_data(x).sum(-1, dtype=_data(x).dtype), x.dtype)

    def last_max(x):
        return _tensor(np.maximum.reduce(_data(x), axis=-1), x.dtype)

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
