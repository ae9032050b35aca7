// weld_vec_ops.h: arithmetic, comparison, selection, integer operators, reductions.
// Every function takes C++ scalars or vectors; see weld_vec.h.
#pragma once

namespace weld {

template <class T>
constexpr bool is_scalar = same<T, f32> || same<T, f64> || same<T, i64> || same<T, i32> ||
                           same<T, i16> || same<T, i8> || same<T, u8> || same<T, bool>;
template <class T> constexpr bool is_real = same<T, f32> || same<T, f64>;

// --- comparison and logic -------------------------------------------------------------------------

#define WELD_COMPARE(name, op)                               \
  template <class T> WELD_INLINE auto name(T a, T b) {       \
    if constexpr (is_scalar<T>) return a op b;               \
    else return to_mask(a op b);                             \
  }
WELD_COMPARE(eq, ==)
WELD_COMPARE(ne, !=)
WELD_COMPARE(lt, <)
WELD_COMPARE(le, <=)
WELD_COMPARE(gt, >)
WELD_COMPARE(ge, >=)
#undef WELD_COMPARE

WELD_INLINE bool band(bool a, bool b) { return a && b; }
WELD_INLINE bool bor(bool a, bool b) { return a || b; }
WELD_INLINE bool bxor(bool a, bool b) { return a != b; }
WELD_INLINE bool bnot(bool a) { return !a; }
template <class M> WELD_INLINE M band(M a, M b) { return a & b; }
template <class M> WELD_INLINE M bor(M a, M b) { return a | b; }
template <class M> WELD_INLINE M bxor(M a, M b) { return a ^ b; }
template <class M> WELD_INLINE M bnot(M a) { return ~a; }

template <class T> WELD_INLINE T where(bool c, T a, T b) { return c ? a : b; }
template <class M, class V> WELD_INLINE V where(M m, V a, V b) {
  return mask_for<V>(m) ? a : b;
}

template <class T> WELD_INLINE auto isnan(T x) { return ne(x, x); }
template <class T> WELD_INLINE T abs(T x);
template <class T> WELD_INLINE auto isinf(T x) {
  if constexpr (is_scalar<T>) return abs(x) == (T)__builtin_inf();
  else return to_mask(abs(x) == (elem<T>)__builtin_inf());
}

// --- bits of floats -------------------------------------------------------------------------------

WELD_INLINE i32 as_int(f32 x) { i32 r; __builtin_memcpy(&r, &x, 4); return r; }
WELD_INLINE i64 as_int(f64 x) { i64 r; __builtin_memcpy(&r, &x, 8); return r; }
WELD_INLINE f32 as_real(i32 x) { f32 r; __builtin_memcpy(&r, &x, 4); return r; }
WELD_INLINE f64 as_real(i64 x) { f64 r; __builtin_memcpy(&r, &x, 8); return r; }
template <class V> WELD_INLINE sint<V> as_int(V x) { return (sint<V>)x; }
template <class I> WELD_INLINE auto as_real(I x) {
  if constexpr (sizeof(elem<I>) == 4) return (vec<f32, width<I>>)x;
  else return (vec<f64, width<I>>)x;
}
template <class T> struct ints { typedef elem<sint<T>> type; };
template <> struct ints<f32> { typedef i32 type; };
template <> struct ints<f64> { typedef i64 type; };
template <class T> constexpr typename ints<T>::type sign_bit =
    (typename ints<T>::type)1 << (sizeof(typename ints<T>::type) * 8 - 1);

// --- arithmetic -----------------------------------------------------------------------------------

// small integers: C++ computes in int, the result wraps back
template <class T> WELD_INLINE T add(T a, T b) { return (T)(a + b); }
template <class T> WELD_INLINE T sub(T a, T b) { return (T)(a - b); }
template <class T> WELD_INLINE T mul(T a, T b) { return (T)(a * b); }
template <class T> WELD_INLINE T neg(T a) { return (T)(-a); }

template <class T, bool scalar = is_scalar<T>> struct elem_type { typedef T type; };
template <class T> struct elem_type<T, false> { typedef elem<T> type; };

template <class T> WELD_INLINE T abs(T x) {
  typedef typename elem_type<T>::type E;
  if constexpr (is_real<E>) return as_real(as_int(x) & ~sign_bit<T>);
  else if constexpr (same<E, u8>) return x;
  else if constexpr (is_scalar<T>) return (T)(x < 0 ? -x : x);
  else return x < 0 ? -x : x;
}
template <class T> WELD_INLINE T copysign(T a, T b) {
  return as_real((as_int(a) & ~sign_bit<T>) | (as_int(b) & sign_bit<T>));
}
template <class T> WELD_INLINE auto signbit(T x) {
  typedef typename elem_type<T>::type E;
  if constexpr (is_real<E>) {
    if constexpr (is_scalar<T>) return as_int(x) < 0;
    else return to_mask(as_int(x) < 0);
  } else if constexpr (is_scalar<T>) return x < 0;
  else return to_mask(x < 0);
}
template <class T> WELD_INLINE T pick(bool c, T a, T b) { return c ? a : b; }
template <class M, class T> WELD_INLINE T pick(M c, T a, T b) { return c ? a : b; }
template <class T> WELD_INLINE T sign(T x) {
  typedef typename elem_type<T>::type E;
  T one = T{} + (E)1, zero = T{};
  if constexpr (same<E, u8>) return pick(x > zero, one, zero);
  else {
    T r = pick(x > zero, one, pick(x < zero, (T)(zero - one), zero));
    if constexpr (is_real<E>) return pick(x != x, x, r);
    else return r;
  }
}

// a > b ? a : b and a < b ? a : b: one instruction each, which gives b if either is NaN
template <class T> WELD_INLINE T greater(T a, T b) {
#ifdef WELD_X86
#ifdef WELD_AVX512
  if constexpr (same<T, vec<f32, 16>>) return __builtin_ia32_maxps512_mask(a, b, a, -1, 4);
  if constexpr (same<T, vec<f64, 8>>) return __builtin_ia32_maxpd512_mask(a, b, a, -1, 4);
#endif
  if constexpr (same<T, vec<f32, 8>>) return __builtin_ia32_maxps256(a, b);
  if constexpr (same<T, vec<f64, 4>>) return __builtin_ia32_maxpd256(a, b);
#endif
  return pick(a > b, a, b);
}
template <class T> WELD_INLINE T smaller(T a, T b) {
#ifdef WELD_X86
#ifdef WELD_AVX512
  if constexpr (same<T, vec<f32, 16>>) return __builtin_ia32_minps512_mask(a, b, a, -1, 4);
  if constexpr (same<T, vec<f64, 8>>) return __builtin_ia32_minpd512_mask(a, b, a, -1, 4);
#endif
  if constexpr (same<T, vec<f32, 8>>) return __builtin_ia32_minps256(a, b);
  if constexpr (same<T, vec<f64, 4>>) return __builtin_ia32_minpd256(a, b);
#endif
  return pick(a < b, a, b);
}
// NaN wins, a wins among equals; `_known` when b is not NaN saves a test
template <class T> WELD_INLINE T max(T a, T b) {
  T m = greater(b, a);
  if constexpr (is_real<typename elem_type<T>::type>) return pick(b != b, b, m);
  else return m;
}
template <class T> WELD_INLINE T min(T a, T b) {
  T m = smaller(b, a);
  if constexpr (is_real<typename elem_type<T>::type>) return pick(b != b, b, m);
  else return m;
}
template <class T> WELD_INLINE T max_known(T a, T b) { return greater(b, a); }
template <class T> WELD_INLINE T min_known(T a, T b) { return smaller(b, a); }

#define WELD_LANES_1(name, f, d)                                          \
  WELD_INLINE f32 name(f32 x) { return f(x); }                            \
  WELD_INLINE f64 name(f64 x) { return d(x); }                            \
  template <class V> WELD_INLINE V name(V x) {                            \
    for (int j = 0; j < width<V>; ++j) x[j] = name((elem<V>)x[j]);        \
    return x;                                                             \
  }
#define WELD_LANES_2(name, f, d)                                          \
  WELD_INLINE f32 name(f32 x, f32 y) { return f(x, y); }                  \
  WELD_INLINE f64 name(f64 x, f64 y) { return d(x, y); }                  \
  template <class V> WELD_INLINE V name(V x, V y) {                       \
    for (int j = 0; j < width<V>; ++j) x[j] = name((elem<V>)x[j], (elem<V>)y[j]); \
    return x;                                                             \
  }

// fused multiply-add, rounded once where the machine has it
WELD_INLINE f32 fma(f32 a, f32 b, f32 c) {
#ifdef __FMA__
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
WELD_INLINE f64 fma(f64 a, f64 b, f64 c) {
#ifdef __FMA__
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}
template <class V> WELD_INLINE V fma(V a, V b, V c) {
  constexpr bool f = sizeof(elem<V>) == 4;
#ifdef WELD_CLANG
  return __builtin_elementwise_fma(a, b, c);
#endif
#ifdef WELD_X86
#ifdef WELD_AVX512
  if constexpr (sizeof(V) == 64) {
    if constexpr (f) return __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4);
    else return __builtin_ia32_vfmaddpd512_mask(a, b, c, -1, 4);
  }
#endif
  if constexpr (sizeof(V) == 32) {
    if constexpr (f) return __builtin_ia32_vfmaddps256(a, b, c);
    else return __builtin_ia32_vfmaddpd256(a, b, c);
  }
  if constexpr (sizeof(V) == 16) {
    if constexpr (f) return __builtin_ia32_vfmaddps(a, b, c);
    else return __builtin_ia32_vfmaddpd(a, b, c);
  }
#endif
  if constexpr (sizeof(V) <= 64) {
#ifdef __FMA__
    for (int j = 0; j < width<V>; ++j) a[j] = fma((elem<V>)a[j], (elem<V>)b[j], (elem<V>)c[j]);
    return a;
#endif
  }
  return a * b + c;
}

// mode: 0 nearest even, 1 down, 2 up, 3 toward zero
template <int mode, class V> WELD_INLINE V round_to(V x) {
  constexpr bool f = sizeof(elem<V>) == 4;
#ifdef WELD_CLANG
  if constexpr (mode == 0) return __builtin_elementwise_roundeven(x);
  if constexpr (mode == 1) return __builtin_elementwise_floor(x);
  if constexpr (mode == 2) return __builtin_elementwise_ceil(x);
  if constexpr (mode == 3) return __builtin_elementwise_trunc(x);
#endif
#ifdef WELD_X86
#ifdef WELD_AVX512
  if constexpr (sizeof(V) == 64) {
    if constexpr (f) return __builtin_ia32_rndscaleps_mask(x, mode | 8, x, -1, 4);
    else return __builtin_ia32_rndscalepd_mask(x, mode | 8, x, -1, 4);
  }
#endif
  if constexpr (sizeof(V) == 32) {
    if constexpr (f) return __builtin_ia32_roundps256(x, mode | 8);
    else return __builtin_ia32_roundpd256(x, mode | 8);
  }
  if constexpr (sizeof(V) == 16) {
    if constexpr (f) return __builtin_ia32_roundps(x, mode | 8);
    else return __builtin_ia32_roundpd(x, mode | 8);
  }
#endif
  for (int j = 0; j < width<V>; ++j) {
    elem<V> y = x[j];
    if constexpr (mode == 0) y = f ? (elem<V>)__builtin_rintf(y) : __builtin_rint(y);
    if constexpr (mode == 1) y = f ? (elem<V>)__builtin_floorf(y) : __builtin_floor(y);
    if constexpr (mode == 2) y = f ? (elem<V>)__builtin_ceilf(y) : __builtin_ceil(y);
    if constexpr (mode == 3) y = f ? (elem<V>)__builtin_truncf(y) : __builtin_trunc(y);
    x[j] = y;
  }
  return x;
}
#define WELD_ROUND(name, mode, ff, dd)                             \
  WELD_INLINE f32 name(f32 x) { return ff(x); }                    \
  WELD_INLINE f64 name(f64 x) { return dd(x); }                    \
  template <class V> WELD_INLINE V name(V x) { return round_to<mode>(x); }
WELD_ROUND(round, 0, __builtin_rintf, __builtin_rint)
WELD_ROUND(floor, 1, __builtin_floorf, __builtin_floor)
WELD_ROUND(ceil, 2, __builtin_ceilf, __builtin_ceil)
WELD_ROUND(trunc, 3, __builtin_truncf, __builtin_trunc)
#undef WELD_ROUND

WELD_INLINE f32 sqrt(f32 x) { return __builtin_sqrtf(x); }
WELD_INLINE f64 sqrt(f64 x) { return __builtin_sqrt(x); }
template <class V> WELD_INLINE V sqrt(V x) {
  constexpr bool f = sizeof(elem<V>) == 4;
#ifdef WELD_CLANG
  return __builtin_elementwise_sqrt(x);
#endif
#ifdef WELD_X86
#ifdef WELD_AVX512
  if constexpr (sizeof(V) == 64) {
    if constexpr (f) return __builtin_ia32_sqrtps512_mask(x, x, -1, 4);
    else return __builtin_ia32_sqrtpd512_mask(x, x, -1, 4);
  }
#endif
  if constexpr (sizeof(V) == 32) {
    if constexpr (f) return __builtin_ia32_sqrtps256(x);
    else return __builtin_ia32_sqrtpd256(x);
  }
#endif
  for (int j = 0; j < width<V>; ++j) x[j] = sqrt((elem<V>)x[j]);
  return x;
}
template <class T> WELD_INLINE T rsqrt(T x) {
  return (T{} + (typename elem_type<T>::type)1) / sqrt(x);
}

// --- remainders and quotients ---------------------------------------------------------------------

WELD_LANES_2(fmod, __builtin_fmodf, __builtin_fmod)

template <class T> WELD_INLINE T real_mod(T a, T b) {
  T r = fmod(a, b);
  return r != 0 && (b < 0) != (r < 0) ? r + b : r;
}
template <class T> WELD_INLINE T real_floor_div(T a, T b) {
  if (b == 0) return a / b;
  T r = fmod(a, b), q = (a - r) / b;
  if (r != 0 && (b < 0) != (r < 0)) q -= 1;
  if (q == 0) return copysign((T)0, a / b);
  T f = floor(q);
  return q - f > (T)0.5 ? f + 1 : f;
}
// integers: no quotient traps, so that a lane behind a `where` may compute anything
template <class T> WELD_INLINE T trunc_div(T a, T b) {
  if constexpr (is_scalar<T>) {
    if (b == 0) return 0;
    if constexpr (!same<T, u8>)
      if (b == -1) return (T)(T{} - a);
    return (T)(a / b);
  } else {
    for (int j = 0; j < width<T>; ++j) a[j] = trunc_div((elem<T>)a[j], (elem<T>)b[j]);
    return a;
  }
}
template <class T> WELD_INLINE T floor_div(T a, T b) {
  if constexpr (is_real<T>) return real_floor_div(a, b);
  else if constexpr (is_scalar<T>) {
    T q = trunc_div(a, b), r = (T)(a - q * b);
    return r != 0 && (r < 0) != (b < 0) ? (T)(q - 1) : q;
  } else {
    for (int j = 0; j < width<T>; ++j) a[j] = floor_div((elem<T>)a[j], (elem<T>)b[j]);
    return a;
  }
}
template <class T> WELD_INLINE T mod(T a, T b) {
  if constexpr (is_real<T>) return real_mod(a, b);
  else if constexpr (is_scalar<T>) return b == 0 ? (T)0 : (T)(a - floor_div(a, b) * b);
  else {
    for (int j = 0; j < width<T>; ++j) a[j] = mod((elem<T>)a[j], (elem<T>)b[j]);
    return a;
  }
}
template <class T> WELD_INLINE T ipow(T a, T b) {
  if constexpr (is_scalar<T>) {
    if (b < 0) return a == 1 ? 1 : a == (T)-1 ? (b % 2 ? (T)-1 : 1) : 0;
    T r = 1;
    for (; b; b = (T)(b >> 1)) {
      if (b & 1) r = (T)(r * a);
      a = (T)(a * a);
    }
    return r;
  } else {
    for (int j = 0; j < width<T>; ++j) a[j] = ipow((elem<T>)a[j], (elem<T>)b[j]);
    return a;
  }
}
template <class T> WELD_INLINE T shl(T a, T b) {
  typedef typename elem_type<T>::type E;
  constexpr int n = sizeof(E) * 8;
  if constexpr (is_scalar<T>) return b >= 0 && b < n ? (T)((uint64_t)a << b) : (T)0;
  else return (b >= 0) & (b < n) ? a << (b & (E)(n - 1)) : T{};
}
template <class T> WELD_INLINE T shr(T a, T b) {
  typedef typename elem_type<T>::type E;
  constexpr int n = sizeof(E) * 8;
  if constexpr (is_scalar<T>) return b >= 0 && b < n ? (T)(a >> b) : a < 0 ? (T)-1 : (T)0;
  else return (b >= 0) & (b < n) ? a >> (b & (E)(n - 1)) : (T)(a < 0);
}
// an index into `n` elements; out of range sets a bit of `bad` (the codes of CHECKS), and gives 0
WELD_INLINE i64 check(i64 i, i64 n, bool guard, int code, int& bad) {
  bool ok = (uint64_t)i < (uint64_t)n;
  bad |= guard && !ok ? code : 0;
  return ok ? i : 0;
}
template <class V, class K> WELD_INLINE V check(V i, V n, K k, int code, int& bad) {
  auto out = (i < 0) | (i >= n);
  if (__builtin_expect(any(to_mask(out) & mask_of(k)), 0)) bad |= code;
  return out ? V{} : i;
}
WELD_INLINE i64 check_index(i64 i, i64 n, bool guard, int& bad) {
  return check(i < 0 ? i + n : i, n, guard, 1, bad);  // negative counts from the end
}
template <class V, class K> WELD_INLINE V check_index(V i, V n, K k, int& bad) {
  V j = i < 0 ? i + n : i;
  return check(j, n, k, 1, bad);
}
WELD_INLINE i64 check_bound(i64 i, i64 n, bool guard, int& bad) {
  return check(i, n, guard, 2, bad);
}
template <class V, class K> WELD_INLINE V check_bound(V i, V n, K k, int& bad) {
  return check(i, n, k, 2, bad);
}
WELD_INLINE i64 div_floor(i64 a, i64 b) { return a / b - (a % b < 0); }  // b > 0
WELD_INLINE i64 mod_floor(i64 a, i64 b) { return a % b < 0 ? a % b + b : a % b; }

// --- reductions -----------------------------------------------------------------------------------

template <class T> constexpr T lowest = sizeof(T) == 8   ? (T)INT64_MIN
                                        : sizeof(T) == 4 ? (T)INT32_MIN
                                        : sizeof(T) == 2 ? (T)INT16_MIN
                                                         : (T)INT8_MIN;
template <> constexpr f32 lowest<f32> = -__builtin_inff();
template <> constexpr f64 lowest<f64> = -__builtin_inf();
template <> constexpr u8 lowest<u8> = 0;
template <class T> constexpr T highest = (T)~lowest<T>;
template <> constexpr f32 highest<f32> = __builtin_inff();
template <> constexpr f64 highest<f64> = __builtin_inf();

struct Set { template <class T> static WELD_INLINE T of(T, T b) { return b; } };
struct Sum {
  template <class T> static constexpr T start = 0;
  template <class T> static WELD_INLINE T of(T a, T b) { return (T)(a + b); }
};
struct Prod {
  template <class T> static constexpr T start = 1;
  template <class T> static WELD_INLINE T of(T a, T b) { return (T)(a * b); }
};
struct Max {
  template <class T> static constexpr T start = lowest<T>;
  template <class T> static WELD_INLINE T of(T a, T b) { return max(a, b); }
};
struct Min {
  template <class T> static constexpr T start = highest<T>;
  template <class T> static WELD_INLINE T of(T a, T b) { return min(a, b); }
};
struct Any {
  template <class T> static constexpr T start = 0;
  template <class T> static WELD_INLINE T of(T a, T b) { return bor(a, b); }
};
struct All {
  template <class T> static constexpr T start = (T)-1;
  template <class T> static WELD_INLINE T of(T a, T b) { return band(a, b); }
};

template <class V> WELD_INLINE auto low_half(V v) {
  vec<elem<V>, width<V> / 2> r;
  __builtin_memcpy(&r, &v, sizeof r);
  return r;
}
template <class V> WELD_INLINE auto high_half(V v) {
  vec<elem<V>, width<V> / 2> r;
  __builtin_memcpy(&r, (const char*)&v + sizeof r, sizeof r);
  return r;
}
template <class Op, class V> WELD_INLINE elem<V> across(V v) {
  if constexpr (width<V> == 2) {
    return Op::of((elem<V>)v[0], (elem<V>)v[1]);
  } else {
    return across<Op>(Op::of(low_half(v), high_half(v)));
  }
}

// U vectors that each collect every U-th vector of a loop
template <class Op, class T, int W, int U> struct acc {
  vec<T, W> v[U];
  WELD_INLINE acc() {
    for (int u = 0; u < U; ++u) v[u] = splat(Op::template start<T>, full<W>{});
  }
  template <int u> WELD_INLINE void add(vec<T, W> x, full<W>, num<u>) { v[u] = Op::of(v[u], x); }
  template <int u> WELD_INLINE void add(vec<T, W> x, part<W> k, num<u>) {
    v[u] = where(mask_of(k), Op::of(v[u], x), v[u]);
  }
  WELD_INLINE T done() {
    if constexpr (U == 4) v[0] = Op::of(Op::of(v[0], v[2]), Op::of(v[1], v[3]));
    if constexpr (U == 2) v[0] = Op::of(v[0], v[1]);
    return across<Op>(v[0]);
  }
};

// max and min of floats: NaN is collected beside the extreme, which keeps the chain short
template <class Op, class T, int W, int U> struct extreme_acc {
  vec<T, W> v[U], nan = vec<T, W>{};
  WELD_INLINE extreme_acc() {
    for (int u = 0; u < U; ++u) v[u] = splat(Op::template start<T>, full<W>{});
  }
  static WELD_INLINE vec<T, W> best(vec<T, W> a, vec<T, W> b) {
    if constexpr (same<Op, Max>) return greater(a, b);
    else return smaller(a, b);
  }
  template <int u> WELD_INLINE void add(vec<T, W> x, full<W>, num<u>) {
    v[u] = best(x, v[u]);
    nan = x != x ? x : nan;
  }
  template <int u> WELD_INLINE void add(vec<T, W> x, part<W> k, num<u>) {
    add(where(mask_of(k), x, v[u]), full<W>{}, num<u>{});
  }
  WELD_INLINE T done() {
    for (int u = 1; u < U; ++u) v[0] = best(v[u], v[0]);
    return across<Op>(nan != nan ? nan : v[0]);
  }
};
template <int W, int U> struct acc<Max, f32, W, U> : extreme_acc<Max, f32, W, U> {};
template <int W, int U> struct acc<Min, f32, W, U> : extreme_acc<Min, f32, W, U> {};
template <int W, int U> struct acc<Max, f64, W, U> : extreme_acc<Max, f64, W, U> {};
template <int W, int U> struct acc<Min, f64, W, U> : extreme_acc<Min, f64, W, U> {};

// does `a` come before `b` for argmax / argmin? NaN first, then the better value
template <class Op, class T> WELD_INLINE auto better(T a, T b) {
  if constexpr (is_scalar<T>) {
    bool wins = same<Op, Max> ? a > b : a < b;
    return wins || (a != a && b == b);
  } else {
    auto wins = same<Op, Max> ? a > b : a < b;
    return to_mask(wins | ((a != a) & (b == b)));
  }
}
template <class Op, class T> struct arg_one {
  T best;
  i64 at = -1;
  WELD_INLINE void add(T x, i64 p) {
    if (at < 0 || better<Op>(x, best)) best = x, at = p;
  }
  WELD_INLINE i64 done() { return at < 0 ? 0 : at; }
};
// positions are below 2^31; -1 marks a lane that saw nothing
template <class Op, class T, int W> struct arg_acc {
  vec<T, W> best = vec<T, W>{};
  mask<W> at = mask<W>{} - 1;
  template <class K> WELD_INLINE void add(vec<T, W> x, mask<W> p, K k) {
    mask<W> m = ((at < 0) | better<Op>(x, best)) & mask_of(k);
    best = where(m, x, best);
    at = where(m, p, at);
  }
  WELD_INLINE i64 done() {
    T b{};
    i64 r = -1;
    for (int j = 0; j < W; ++j) {
      if (at[j] < 0) continue;
      T x = best[j];
      bool tie = x == b || (x != x && b != b);
      if (r < 0 || better<Op>(x, b) || (tie && at[j] < r)) b = x, r = at[j];
    }
    return r < 0 ? 0 : r;
  }
};

// the same for one row of many: `best` and `at` are arrays over the lanes, `at` starts as -1
template <class Op, class T, class V, class K>
WELD_INLINE void arg_lanes(T* best, i32* at, V x, i32 p, K k) {
  auto b = load(best, k);
  auto q = load(at, k);
  auto m = (q < 0) | better<Op>(x, b);
  store(best, where(m, x, b), k);
  store(at, where(m, splat(p, k), q), k);
}
template <class T> WELD_INLINE void fill(T* p, typename rep<T>::value v, i64 n) {
  for (i64 i = 0; i < n; ++i) put(p + i, v);
}

}  // namespace weld
