# mypy: ignore-errors
# ruff: noqa: RET505  Triton compiles what stands behind a return that has no else
"""What generated Triton kernels call: eager's mathematics, reductions, checks, atomics.

In a compiled kernel the functions of one element are libdevice's, as in eager's own kernels.
Triton's interpreter (TRITON_INTERPRET=1) knows neither libdevice nor the rounding of bf16, and
folds element by element: there, weld_numpy.py computes the same.

Triton's language only looks like Python, so mypy has no say here.
"""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

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
def split(x, first, n, width):
    """x // n and x % n of numbers with 0 <= first <= x < first + width: one division for all,
    unless n is smaller than that. Without signs, which cost half of a division."""
    q = unsigned_div(first, n)
    r = x - q * n
    if n >= width:
        over = (r >= n).to(tl.int32)
        quotient = q + over
        rest = r - over * n
    else:
        more = unsigned_div(r, n)
        quotient = q + more
        rest = r - more * n
    return quotient, rest


@triton.jit
def unsigned_div(a, b):
    return (a.to(tl.uint32) // b.to(tl.uint32)).to(tl.int32)


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
def groups(x, state, group: tl.constexpr, across: tl.constexpr):
    """A tile with an axis of its own for the `group` steps that share an element of `state`.

    They lie side by side in the row, or as far apart as can be (across): in one thread either way.
    """
    if len(state.shape) == 1:
        if across:
            x = tl.reshape(x, group, state.shape[0])
        else:
            x = tl.reshape(x, state.shape[0], group)
    else:
        if across:
            x = tl.reshape(x, state.shape[0], group, state.shape[1])
        else:
            x = tl.reshape(x, state.shape[0], state.shape[1], group)
    return x


@triton.jit
def online(m, s, x, group: tl.constexpr, across: tl.constexpr = False):
    """One tile of a running maximum m and s = sum exp(x - m), for each `group` of steps.

    What the fast exp loses is lost in the rounding of the sum.
    Source: Milakov and Gimelshein 2018, arXiv:1805.02867, algorithm 3.
    """
    axis: tl.constexpr = len(m.shape) - (1 if across else 0)
    x = groups(x, m, group, across)
    top = max_any(m, axis_max(x, axis))
    base = finite_top(top)
    s = s * fast_exp(m - base) + axis_sum(fast_exp(x - tl.expand_dims(base, axis)), axis)
    return top, s


@triton.jit
def online_one(m, s, x):
    """`online` where a tile is one step: nothing to take together."""
    top = max_any(m, x)
    base = finite_top(top)
    return top, s * fast_exp(m - base) + fast_exp(x - base)


@triton.jit
def online_sum(m, s, top, finite: tl.constexpr = False):
    """The groups' sums brought to the row's maximum `top`."""
    return online_end(row_sum(s * fast_exp(m - finite_top(top))), top, finite)


@triton.jit
def online_end(s, top, finite: tl.constexpr = False):
    """NaN where eager has exp(inf - inf). finite: eager has exp(inf - 0) there."""
    if finite:
        return tl.where(top == float("inf"), top, s)
    else:
        return tl.where(tl.abs(top) == float("inf"), float("nan"), s)


@triton.jit
def reciprocal(n):
    """1 / n of a count; of 0, that of 1."""
    if n.dtype == tl.float64:
        return 1.0 / tl.maximum(n, 1.0)
    else:
        return fast_inverse(tl.maximum(n, 1.0))


@triton.jit
def joined(s, k, q, n, t, m, u, c):
    """A sample with c values more: s and t are sums of what is left above k, m the mean of t, q and
    u squared distances from the means of either. The first mean becomes k, so that nothing of large
    numbers that differ little is lost.

    Source: Chan, Golub and LeVeque 1979, Updating formulae and a pairwise algorithm for computing
    sample variances, equation 1.3.
    """
    far = m - s * reciprocal(n)
    q = q + u + far * (far * (n * c * reciprocal(n + c)))
    move = tl.where((n == 0.0) & (tl.abs(m) < float("inf")), m, 0.0)
    return s + (t - c * move), k + move, q, n + c


@triton.jit
def moments(s, k, q, n, x, group: tl.constexpr, across: tl.constexpr = False):
    """One tile of what `joined` adds up, for each `group` of steps; n of each came before."""
    axis: tl.constexpr = len(s.shape) - (1 if across else 0)
    d = groups(x, s, group, across) - tl.expand_dims(k, axis)
    t = axis_sum(d, axis)
    m = t * (1.0 / group)
    d = d - tl.expand_dims(m, axis)
    return joined(s, k, q, n, t, m, axis_sum(d * d, axis), tl.full([], group, n.dtype))


@triton.jit
def moments_masked(s, k, q, n, x, inside, group: tl.constexpr, across: tl.constexpr = False):
    """`moments` where x counts only where `inside` holds."""
    axis: tl.constexpr = len(s.shape) - (1 if across else 0)
    inside = groups(tl.broadcast_to(inside, x.shape), s, group, across)
    d = groups(x, s, group, across) - tl.expand_dims(k, axis)
    d = tl.where(inside, d, 0.0)
    t, c = axis_sums(d, inside.to(x.dtype), axis)  # together: in the threads that hold x
    m = t * reciprocal(c)
    d = tl.where(inside, d - tl.expand_dims(m, axis), 0.0)
    return joined(s, k, q, n, t, m, axis_sum(d * d, axis), c)


@triton.jit
def moments_one(s, k, q, n, x):
    """`moments` where a tile is one step."""
    d = x - k
    return joined(s, k, q, n, d, d, 0.0, tl.full([], 1.0, n.dtype))


@triton.jit
def moments_end(s, k, q, n, size: tl.constexpr):
    """The sum of a row and the squared distances from its mean, of what its groups have."""
    top = row_max(tl.where(n > 0.0, k, -float("inf")))
    above = s + n * (k - top)
    total = row_sum(above)
    far = above * reciprocal(n) - total / size
    return total + top * size, row_sum(q + far * (far * n))


@triton.jit
def axis_sum(x, axis: tl.constexpr):
    return tl.reduce(x, axis, add)


@triton.jit
def add_both(a, b, c, d):
    return a + c, b + d


@triton.jit
def axis_sums(x, y, axis: tl.constexpr):
    return tl.reduce((x, y), axis, add_both)


@triton.jit
def axis_max(x, axis: tl.constexpr):
    return tl.reduce(x, axis, max_any)


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
    _path = Path(__file__).with_name("weld_numpy.py")
    _spec = spec_from_file_location(_path.stem, _path)
    _numpy = module_from_spec(_spec)
    _spec.loader.exec_module(_numpy)
    globals().update({k: v for k, v in vars(_numpy).items() if not k.startswith("_")})
