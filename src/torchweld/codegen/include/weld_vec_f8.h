// weld_vec_f8.h: 8-bit floats. Registers hold their codes, as u8; arithmetic casts to f32 first.
//
// M mantissa bits, exponent bias B. Magnitudes are handled as i32, which every x86 compares; f32
// subnormals never occur in a result that depends on them, so denormals may be flushed.
#pragma once

namespace weld {

WELD_INLINE i32 bits_of(f32 x) {
  i32 u;
  __builtin_memcpy(&u, &x, 4);
  return u;
}
WELD_INLINE f32 f32_of(i32 u) {
  f32 x;
  __builtin_memcpy(&x, &u, 4);
  return x;
}
template <class V> WELD_INLINE vec<i32, width<V>> bits_of(V x) { return (vec<i32, width<V>>)x; }
template <class V> WELD_INLINE vec<f32, width<V>> f32_of(V u) { return (vec<f32, width<V>>)u; }

constexpr i32 NAN_F32 = 0x7fc00000, INF_F32 = 0x7f800000;

// the bits of a magnitude (a code without its sign) as f32, NaN and infinity aside
template <int M, int B, class I> WELD_INLINE I f8_magnitude(I c) {
  I t = (c & 0x7f) << (23 - M);
  // below the least normal number: a mantissa with a leading 1, less that 1
  I small = bits_of(f32_of(t + ((128 - B) << 23)) - f32_of((128 - B) << 23));
  I normal = t + ((127 - B) << 23);
  return t < (1 << 23) ? small : normal;
}
template <class I> WELD_INLINE auto f8_signed(I magnitude, I c) {
  return f32_of(magnitude | (c & 0x80) << 24);
}
template <class I> WELD_INLINE auto f8_e4m3fn(I c) {
  I m = f8_magnitude<3, 7>(c);
  return f8_signed((c & 0x7f) == 0x7f ? m | NAN_F32 : m, c);
}
template <class I> WELD_INLINE auto f8_e5m2(I c) {
  I m = f8_magnitude<2, 15>(c);
  return f8_signed((c & 0x7f) >= 0x7c ? m + (112 << 23) : m, c);
}
template <int M, int B, class I> WELD_INLINE auto f8_fnuz(I c) {
  I m = f8_magnitude<M, B>(c);
  return f8_signed(c == 0x80 ? m | NAN_F32 : m, c);
}

// the magnitude of |x| (its bits), rounded to nearest even, above the largest code if it is larger
template <int M, int B, class I> WELD_INLINE I f8_rounded(I a) {
  constexpr i32 magic = (150 - B - M + 1) << 23;  // its last bit is the step of the subnormals
  I small = bits_of(f32_of(a) + f32_of(magic)) - magic;
  I normal = (a - ((127 - B) << 23) + ((1 << (22 - M)) - 1) + ((a >> (23 - M)) & 1)) >> (23 - M);
  return a < ((128 - B) << 23) ? small : normal;
}
// OVER: what is too large becomes
template <int M, int B, int OVER, class V> WELD_INLINE auto f8_code(V x) {
  auto u = bits_of(x);
  auto a = u & INT32_MAX;
  auto r = f8_rounded<M, B>(a);
  r = r > OVER ? (decltype(r){} + OVER) : r;
  r = a > INF_F32 ? (decltype(r){} + 0x7f) : r;
  return r | (u >> 24 & 0x80);
}
template <int M, int B, class V> WELD_INLINE auto f8_fnuz_code(V x) {
  auto u = bits_of(x);
  auto r = f8_rounded<M, B>(u & INT32_MAX);
  auto sign = u >> 24 & 0x80;
  r = r > 0x7f ? (decltype(r){} + 0x80) : r | (r == 0 ? (decltype(r){}) : sign);
  return r;
}

// from_T: codes to f32; to_T: f32 to codes
#define WELD_F8(name, decoded, encoded)                                                           \
  WELD_INLINE f32 from_##name(u8 c) { return decoded((i32)c); }                                   \
  WELD_INLINE u8 to_##name(f32 x) { return (u8)encoded(x); }                                      \
  template <class V> WELD_INLINE auto from_##name(V c) { return decoded(conv<i32>(c)); }          \
  template <class V> WELD_INLINE auto to_##name(V x) { return conv<u8>(encoded(x)); }
WELD_F8(f8e4m3fn, (f8_e4m3fn), (f8_code<3, 7, 0x7e>))
WELD_F8(f8e5m2, (f8_e5m2), (f8_code<2, 15, 0x7c>))
WELD_F8(f8e4m3fnuz, (f8_fnuz<3, 8>), (f8_fnuz_code<3, 8>))
WELD_F8(f8e5m2fnuz, (f8_fnuz<2, 16>), (f8_fnuz_code<2, 16>))
#undef WELD_F8

}  // namespace weld
