// weld_vec_math.h: elementary functions on f32 vectors; f64, scalars and rare functions use libm.
//
// Largest error in ULP of f32 that tests/codegen/test_math.py accepts, over all exponents, against
// double precision (NaN, infinities, -0.0 and subnormals are right):
//
//   exp 1.0      log 1.0      sin 1.6      tanh 2.5     asin 2.4     pow 0.6
//   exp2 1.0     log2 1.4     cos 1.6      sigmoid 2.3  acos 1.2     erfc 0.6
//   expm1 1.5    log10 1.0    tan 1.3      erf 2.1      atan 1.3
//   sinh 1.7     log1p 1.0    rsqrt 1.5    cosh 1.5     sqrt 0.5
//
// Others (asinh, acosh, atanh, atan2, hypot, nextafter, lgamma) are libm's; erfinv runs Halley's
// method in f64. f64 is libm's throughout. The few functions above 2 ULP lose it in the roundings
// of a last quotient; more would cost more than the kernels that use them can hide.
//
// Polynomials are minimax fits of our own (relative error; C. L. Lawson's reweighted iteration,
// 1961).
// Reductions: W. J. Cody and W. Waite, "Software Manual for the Elementary Functions", 1980.
// log1p carries the rounding error of 1 + x: W. Kahan's correction.
#pragma once

extern "C" double lgamma_r(double, int*) noexcept;
extern "C" float lgammaf_r(float, int*) noexcept;

namespace weld {

#if WELD_BYTES >= 32 || defined(__ARM_FEATURE_FMA)
#define WELD_OWN_MATH 1  // the error bounds rely on fma
#endif

// one value at a time, out of line: rare lanes and rare functions. What is of some length is also in
// `far`, where it is called: a kernel with many calls is printed in that namespace.
#define WELD_LIBM_1(name, f, d)                                                   \
  WELD_INLINE f32 name(f32 x) { return f(x); }                                    \
  WELD_INLINE f64 name(f64 x) { return d(x); }                                    \
  template <class V> WELD_FAR V name##_lanes(V x) {                               \
    for (int j = 0; j < width<V>; ++j) x[j] = name((elem<V>)x[j]);                \
    return x;                                                                     \
  }
#define WELD_LIBM_2(name, f, d)                                                   \
  WELD_INLINE f32 name(f32 x, f32 y) { return f(x, y); }                          \
  WELD_INLINE f64 name(f64 x, f64 y) { return d(x, y); }                          \
  template <class V> WELD_FAR V name##_lanes(V x, V y) {                          \
    for (int j = 0; j < width<V>; ++j) x[j] = name((elem<V>)x[j], (elem<V>)y[j]); \
    return x;                                                                     \
  }
#define WELD_BUILTIN_1(name) WELD_LIBM_1(name, __builtin_##name##f, __builtin_##name)
#define WELD_BUILTIN_2(name) WELD_LIBM_2(name, __builtin_##name##f, __builtin_##name)
#define WELD_RARE_1(name) \
  template <class V> WELD_INLINE V name(V x) { return name##_lanes(x); }
#define WELD_RARE_2(name) \
  template <class V> WELD_INLINE V name(V x, V y) { return name##_lanes(x, y); }
#define WELD_CALLED_1(name) \
  namespace far { template <class V> WELD_FAR V name(V x) { return weld::name(x); } }
#ifdef WELD_OWN_MATH
#define WELD_OWN_1(name)                                    \
  template <class V> WELD_INLINE V name(V x) {              \
    if constexpr (sizeof(elem<V>) == 4) return own::name(x); \
    else return name##_lanes(x);                            \
  }                                                         \
  WELD_CALLED_1(name)
#else
#define WELD_OWN_1(name) WELD_RARE_1(name) WELD_CALLED_1(name)
#endif

WELD_BUILTIN_1(exp)
WELD_BUILTIN_1(exp2)
WELD_BUILTIN_1(expm1)
WELD_BUILTIN_1(log)
WELD_BUILTIN_1(log2)
WELD_BUILTIN_1(log10)
WELD_BUILTIN_1(log1p)
WELD_BUILTIN_1(sin)
WELD_BUILTIN_1(cos)
WELD_BUILTIN_1(tan)
WELD_BUILTIN_1(asin)
WELD_BUILTIN_1(acos)
WELD_BUILTIN_1(atan)
WELD_BUILTIN_1(sinh)
WELD_BUILTIN_1(cosh)
WELD_BUILTIN_1(tanh)
WELD_BUILTIN_1(asinh)
WELD_BUILTIN_1(acosh)
WELD_BUILTIN_1(atanh)
WELD_BUILTIN_1(erf)
WELD_LIBM_1(erfc, (f32)__builtin_erfc, __builtin_erfc)
WELD_BUILTIN_2(pow)
WELD_BUILTIN_2(atan2)
WELD_BUILTIN_2(hypot)
WELD_BUILTIN_2(nextafter)

WELD_FAR f64 erfinv_one(f64 x) {
  f64 a = __builtin_fabs(x);
  if (!(a < 1)) return a == 1 ? x * __builtin_inf() : __builtin_nan("");
  if (a < 1e-8) return x * 0.88622692545275801365;
  // start: S. Winitzki's closed form; then Halley's method on erf, or on erfc in the tails
  f64 l = __builtin_log1p(-a * a), h = 4.3307467508 + l / 2;
  f64 y = __builtin_sqrt(__builtin_sqrt(h * h - l / 0.147) - h);
  for (int i = 0; i < 3; ++i) {
    f64 f = a > 0.5 ? (1 - a) - __builtin_erfc(y) : __builtin_erf(y) - a;
    f64 u = f * __builtin_exp(y * y) * 0.88622692545275801365;
    y -= u / (1 + y * u);
  }
  return __builtin_copysign(y, x);
}
WELD_INLINE f64 lgamma_one(f64 x) {
  int sign;
  return ::lgamma_r(x, &sign);
}
WELD_INLINE f32 lgamma_onef(f32 x) {
  int sign;
  return ::lgammaf_r(x, &sign);
}
WELD_LIBM_1(erfinv, erfinv_one, erfinv_one)
WELD_LIBM_1(lgamma, lgamma_onef, lgamma_one)

#ifdef WELD_OWN_MATH
namespace own {

template <class V> WELD_INLINE V all(f32 c) { return V{} + c; }

// coefficients from the highest power down
template <class V, class... C> WELD_INLINE V poly(V x, elem<V> first, C... rest) {
  V r = V{} + first;
  ((r = weld::fma(r, x, V{} + (elem<V>)rest)), ...);
  return r;
}

// p * 2^n for whole n, -160 < n < 160, with one rounding in the subnormal range
template <class V> WELD_INLINE V scale(V p, V n) {
#if defined(WELD_X86) && defined(WELD_AVX512)
  if constexpr (sizeof(V) == 64) return __builtin_ia32_scalefps512_mask(p, n, p, -1, 4);
  if constexpr (sizeof(V) == 32) return __builtin_ia32_scalefps256_mask(p, n, p, -1);
#endif
  sint<V> i = conv<i32>(n), a = i >> 1, b = i - a;
  return p * as_real((a + 127) << 23) * as_real((b + 127) << 23);
}
template <class V> WELD_INLINE V clamp(V x, f32 lo, f32 hi) {  // NaN stays
  return max_known(min_known(x, all<V>(hi)), all<V>(lo));
}

// e^x * 2^k
template <class V> WELD_INLINE V exp_times(V x, f32 k) {
  V y = clamp(x, -104.0f, 90.0f);
  V n = round_to<0>(y * 1.44269504f);
  V r = weld::fma(n, all<V>(-0.693147182f), y);
  r = weld::fma(n, all<V>(1.90465432e-9f), r);
  V q = poly(r, 0.00138131448f, 0.00836941879f, 0.041668456f, 0.166665152f, 0.49999994f);
  V p = weld::fma(r * r, q, r) + 1.0f;
  return scale(p, k == 0 ? n : n + k);
}
template <class V> WELD_INLINE V exp(V x) { return exp_times(x, 0); }

template <class V> WELD_INLINE V exp2(V x) {
  V y = clamp(x, -151.0f, 129.0f);
  V n = round_to<0>(y), r = y - n;
  V q = poly(r, 0.000153531539f, 0.00133991323f, 0.00961843971f, 0.0555033199f, 0.240226477f,
             0.693147182f);
  return scale(weld::fma(r, q, all<V>(1.0f)), n);
}

template <class V> WELD_INLINE V expm1(V x) {
  V y = clamp(x, -18.0f, 89.0f);
  V n = round_to<0>(y * 1.44269504f);
  V r = weld::fma(n, all<V>(-0.693147182f), y);
  r = weld::fma(n, all<V>(1.90465432e-9f), r);
  V q = poly(r, 0.000198459587f, 0.00139416521f, 0.00833339151f, 0.0416663475f, 0.166666657f,
             0.5f);
  V p = weld::fma(r * r, q, r);
  V half = as_real((conv<i32>(n) + 126) << 23);  // 2^(n-1): 2^128 is no float
  V e = weld::fma(half, p, half - 0.5f) * 2.0f;
  return weld::abs(x) < 1e-30f ? x : e;
}

// x = 2^n * (1 + f), 1 + f in [sqrt(1/2), sqrt(2))
template <class V> struct split {
  V n, f;
};
template <class V> WELD_INLINE split<V> frexp(V x) {
  auto tiny = x < 0x1p-126f;
  sint<V> i = as_int(tiny ? x * 0x1p23f : x);
  sint<V> k = (i - 0x3f3504f3) >> 23;
  V n = conv<f32>(k);
  return {tiny ? n - 23.0f : n, as_real(i - (k << 23)) - 1.0f};
}
// log(1 + f) - f
template <class V> WELD_INLINE V log_rest(V f) {
  V z = f * f;
  V q = poly(f, 0.0674663857f, -0.116756514f, 0.118881628f, -0.124055892f, 0.142195523f,
             -0.166679963f, 0.200021192f, -0.250000089f, 0.333333135f);
  return weld::fma(z, all<V>(-0.5f), f * z * q);
}
template <class V> WELD_INLINE V log_special(V x, V r) {
  V odd = x == 0.0f ? all<V>(-__builtin_inff())
                    : (x > 0.0f ? x : all<V>(__builtin_nanf("")));
  return (x > 0.0f) & (x < __builtin_inff()) ? r : odd;
}
// log(x) with `c` added before the last roundings
template <class V> WELD_INLINE V log_plus(V x, V c) {
  auto [n, f] = frexp(x);
  V y = weld::fma(n, all<V>(-1.90465432e-9f), log_rest(f) + c);
  return weld::fma(n, all<V>(0.693147182f), f + y);
}
template <class V> WELD_INLINE V log(V x) { return log_special(x, log_plus(x, V{})); }
template <class V> WELD_INLINE V log2(V x) {
  auto [n, f] = frexp(x);
  V y = log_rest(f);
  V t = weld::fma(f, all<V>(0.442695041f), y * 0.442695041f);
  return log_special(x, (t + y) + f + n);
}
template <class V> WELD_INLINE V log10(V x) {
  auto [n, f] = frexp(x);
  V y = log_rest(f);
  V t = weld::fma(f, all<V>(7.00731903e-4f), y * 7.00731903e-4f);
  t = weld::fma(n, all<V>(2.48745664e-4f), t);
  t = weld::fma(y, all<V>(0.43359375f), t);
  t = weld::fma(f, all<V>(0.43359375f), t);
  return log_special(x, weld::fma(n, all<V>(0.30078125f), t));
}
template <class V> WELD_INLINE V log1p(V x) {
  V u = x + 1.0f;
  V c = (x > 1.0f ? 1.0f - (u - x) : x - (u - 1.0f)) / u;
  c = weld::abs(c) < 1.0f ? c : V{};  // u is 0 or infinite
  V r = log_special(u, log_plus(u, c));
  return weld::abs(x) < 1e-30f ? x : r;
}

// with e = expm1(2a): e / (e + 2) where that is small, else 1 - 2 / (e + 2)
template <class V> WELD_INLINE V tanh(V x) {
  V a = weld::abs(x);
  a = min_known(a, all<V>(10.0f));
  V n = round_to<0>(a * 2.88539008f);
  V r = weld::fma(n, all<V>(-0.693147182f), a + a);
  r = weld::fma(n, all<V>(1.90465432e-9f), r);
  V q = poly(r, 0.00138823956f, 0.00836718082f, 0.041667223f, 0.16666539f, 0.49999997f);
  V p = weld::fma(r * r, q, r), s = as_real((conv<i32>(n) + 127) << 23);
  auto large = a > 0.55f;
  V d = (large ? all<V>(-2.0f) : weld::fma(s, p, s - 1.0f)) / weld::fma(s, p, s + 1.0f);
  return copysign(large ? d + 1.0f : d, x);
}
// below 1.3 a polynomial, above 1 - P(a)^-16: the error of P counts 16 erfc(a) < 1.1 times
template <class V> WELD_INLINE V erf(V x) {
  V a = weld::abs(x), t = x * x;
  V s = poly(t, -7.17309604e-6f, 0.000101797159f, -0.00082946429f, 0.00520435814f,
             -0.0268577766f, 0.11283613f, -0.37612623f, 0.128379166f);
  V b = min_known(a, all<V>(4.0f));
  V p = poly(b, 0.000147484025f, -0.000683692982f, 0.0038368383f, 0.00169322756f, 0.0511005484f,
             0.0650180355f, 1.0014379f);
  p = p * p;
  p = p * p;
  p = p * p;
  V r = 1.0f - 1.0f / (p * p);
  return a < 1.3f ? weld::fma(x, s, x) : copysign(r, x);
}
template <class V> WELD_INLINE V sigmoid(V x) {
  V e = own::exp(-weld::abs(x));  // never overflows, and small results keep their precision
  return (x < 0.0f ? e : all<V>(1.0f)) / (e + 1.0f);
}

// x - n * pi/2 in three parts; exact enough below 1e5
template <class V> WELD_INLINE V quarter(V x, V n) {
  V r = weld::fma(n, all<V>(-1.57079637f), x);
  r = weld::fma(n, all<V>(4.37113883e-8f), r);
  return weld::fma(n, all<V>(1.71512451e-15f), r);
}
template <class V> WELD_INLINE V wave(V r, sint<V> q) {
  V t = r * r;
  V s = weld::fma(r * t, poly(t, -0.000195087414f, 0.0083321128f, -0.166666538f), r);
  V c = poly(t, 2.44256807e-5f, -0.00138872513f, 0.0416666456f);
  c = weld::fma(t * t, c, weld::fma(t, all<V>(-0.5f), all<V>(1.0f)));
  V y = (q & 1) != 0 ? c : s;
  return as_real(as_int(y) ^ ((q & 2) << 30));
}
template <class V> WELD_INLINE V sin(V x) {
  auto far = weld::abs(x) > 1e5f;
  if (__builtin_expect(any(far), 0)) return sin_lanes(x);
  V n = round_to<0>(x * 0.636619772f);
  V y = wave(quarter(x, n), conv<i32>(n));
  return weld::abs(x) < 1e-5f ? x : y;
}
template <class V> WELD_INLINE V cos(V x) {
  auto far = weld::abs(x) > 1e5f;
  if (__builtin_expect(any(far), 0)) return cos_lanes(x);
  V n = round_to<0>(x * 0.636619772f);
  return wave(quarter(x, n), conv<i32>(n) + 1);
}

template <class V> WELD_INLINE V atan(V x) {
  V a = weld::abs(x);
  auto big = a > 1.0f;
  V z = big ? 1.0f / a : a, t = z * z;
  V q = poly(t, 0.00111378834f, -0.00731795467f, 0.0225398615f, -0.0446899347f, 0.0674159676f,
             -0.0881109089f, 0.110582232f, -0.142798334f, 0.19999671f, -0.333333284f);
  V p = weld::fma(z * t, q, z);
  return copysign(big ? 1.57079637f - (p + 4.37113883e-8f) : p, x);
}
template <class V> WELD_INLINE V asin_rest(V t) {
  return poly(t, 0.0375293829f, 0.0144298375f, 0.0318099111f, 0.0445167087f, 0.0750050545f,
              0.166666597f);
}
template <class V> WELD_INLINE V asin(V x) {
  V a = weld::abs(x);
  auto big = a > 0.5f;
  V t = big ? (1.0f - a) * 0.5f : a * a, s = big ? weld::sqrt(t) : a;
  V p = weld::fma(s * t, asin_rest(t), s);
  return copysign(big ? 1.57079637f - (p * 2.0f + 4.37113883e-8f) : p, x);
}
template <class V> WELD_INLINE V acos(V x) {
  V a = weld::abs(x);
  auto big = a > 0.5f;
  V t = big ? (1.0f - a) * 0.5f : a * a, s = big ? weld::sqrt(t) : x;
  V p = weld::fma(s * t, asin_rest(t), s);
  V wide = x < 0.0f ? 3.14159274f - (p * 2.0f + 8.74227766e-8f) : p * 2.0f;
  return big ? wide : 1.57079637f - (p + 4.37113883e-8f);
}
template <class V> WELD_INLINE V sinh(V x) {
  V a = weld::abs(x), t = x * x;
  V e = exp_times(a, -1.0f);
  V p = poly(t, 2.81695134e-6f, 0.000198361595f, 0.0083333496f, 0.166666672f);
  return a < 1.0f ? weld::fma(x * t, p, x) : copysign(e - 0.25f / e, x);
}
template <class V> WELD_INLINE V cosh(V x) {
  V e = exp_times(weld::abs(x), -1.0f);
  return e + 0.25f / e;
}

// x^y through 2^(y * log2 x) in double precision
template <class D> WELD_INLINE D pow_wide(D a, D y) {
  sint<D> i = as_int(a), k = (i - 0x3fe6a09e667f3bcd) >> 52;
  D m = as_real(i - (k << 52)), z = (m - 1.0) / (m + 1.0), t = z * z;
  D l = poly(t, 0.28311822389818558, 0.31989120269318577, 0.41220958523154416,
             0.57707793929578222, 0.96179669412302449, 2.8853900817778455);
  l = weld::fma(z, l, conv<f64>(conv<i32>(k)));
  l = a == 0.0 ? D{} - __builtin_inf() : a == __builtin_inf() ? a : l;
  l = a == a ? l : a;
  D w = y * l;
  w = w > 160.0 ? D{} + 160.0 : w;
  w = w < -160.0 ? D{} - 160.0 : w;
  D n = round_to<0>(w), r = w - n;
  D p = poly(r, 1.3175840055841664e-06, 1.5309736942433016e-05, 0.00015403851822381109,
             0.0013333452064138694, 0.0096181285427729708, 0.05550410939339586,
             0.24022650698880657, 0.69314718054651503, 0.99999999999976252);
  D s = as_real((__builtin_convertvector(conv<i32>(n), sint<D>) + 1023) << 52);
  return w == w ? p * s : w;
}
template <class V> WELD_INLINE V pow_positive(V a, V y) {
  if constexpr (sizeof(V) * 2 > WELD_BYTES) {
    typedef vec<f32, width<V> / 2> H;
    H part[2] = {pow_positive<H>(low_half(a), low_half(y)),
                 pow_positive<H>(high_half(a), high_half(y))};
    return raw_load((const f32*)part, full<width<V>>{});
  } else {
    return conv<f32>(pow_wide(conv<f64>(a), conv<f64>(y)));
  }
}
template <class V> WELD_FAR V pow(V x, V y) {
  V a = weld::abs(x), h = y * 0.5f, r = pow_positive(a, y);
  auto whole = round_to<3>(y) == y;
  auto odd = whole & (round_to<3>(h) != h);
  r = as_real(as_int(r) ^ (as_int(x) & odd & sign_bit<V>));
  r = (x < 0.0f) & (a != __builtin_inff()) & ~whole ? all<V>(__builtin_nanf("")) : r;
  return (y == 0.0f) | (x == 1.0f) | ((a == 1.0f) & (weld::abs(y) == __builtin_inff()))
             ? all<V>(1.0f) : r;
}

}  // namespace own
#endif

WELD_OWN_1(exp)
WELD_OWN_1(exp2)
WELD_OWN_1(expm1)
WELD_OWN_1(log)
WELD_OWN_1(log2)
WELD_OWN_1(log10)
WELD_OWN_1(log1p)
WELD_OWN_1(sin)
WELD_OWN_1(cos)
WELD_RARE_1(tan)
WELD_OWN_1(asin)
WELD_OWN_1(acos)
WELD_OWN_1(atan)
WELD_OWN_1(sinh)
WELD_OWN_1(cosh)
WELD_OWN_1(tanh)
WELD_RARE_1(asinh)
WELD_RARE_1(acosh)
WELD_RARE_1(atanh)
WELD_OWN_1(erf)
WELD_RARE_1(erfc)
WELD_RARE_1(erfinv)
WELD_RARE_1(lgamma)
WELD_RARE_2(atan2)
WELD_RARE_2(hypot)
WELD_RARE_2(nextafter)

template <class V> WELD_INLINE V pow(V x, V y) {
#ifdef WELD_OWN_MATH
  if constexpr (sizeof(elem<V>) == 4) return own::pow(x, y);
#endif
  return pow_lanes(x, y);
}
WELD_INLINE f32 sigmoid(f32 x) { return 1.0f / (1.0f + __builtin_expf(-x)); }
WELD_INLINE f64 sigmoid(f64 x) { return 1.0 / (1.0 + __builtin_exp(-x)); }
template <class V> WELD_INLINE V sigmoid(V x) {
#ifdef WELD_OWN_MATH
  if constexpr (sizeof(elem<V>) == 4) return own::sigmoid(x);
#endif
  return (elem<V>)1 / (exp(-x) + (elem<V>)1);
}
WELD_CALLED_1(sigmoid)

}  // namespace weld
