// placeholder: libm per lane
#pragma once
namespace weld {
#define M1(name) WELD_LANES_1(name, __builtin_##name##f, __builtin_##name)
M1(exp) M1(exp2) M1(expm1) M1(log) M1(log2) M1(log10) M1(log1p) M1(sin) M1(cos) M1(tan) M1(asin) M1(acos) M1(atan)
M1(sinh) M1(cosh) M1(tanh) M1(asinh) M1(acosh) M1(atanh) M1(erf) M1(erfc) M1(lgamma)
WELD_LANES_2(pow, __builtin_powf, __builtin_pow)
WELD_LANES_2(atan2, __builtin_atan2f, __builtin_atan2)
WELD_LANES_2(hypot, __builtin_hypotf, __builtin_hypot)
WELD_LANES_2(nextafter, __builtin_nextafterf, __builtin_nextafter)
template <class T> WELD_INLINE T sigmoid(T x) { T one = T{} + (typename elem_type<T>::type)1; return one / (one + exp(-x)); }
}
