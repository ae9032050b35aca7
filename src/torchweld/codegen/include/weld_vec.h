// weld_vec.h: what generated kernels are made of. Vectors, masks, loads, stores, scalar operators.
//
// A kernel picks W, the number of lanes of a loop (`lanes<S>` for elements of at most S bytes), and
// writes one loop body that runs with k = full<W> (all lanes) and k = part<W> (the first n lanes).
// Every operator exists for C++ scalars and for vectors under one name. Values: bool lanes are
// vec<i32, W> of 0 or -1; bf16 and f16 are computed on as f32; everything else is itself
// (8-bit floats are their codes: weld_vec_f8.h).
//
// Built with GCC vector extensions; x86 instructions that those cannot express are builtins or one
// line of assembly, because <immintrin.h> alone costs 0.3 s per compilation. Needs: -fwrapv
// -fno-strict-aliasing -fno-math-errno -ffp-contract=off; never -ffast-math.
#pragma once
#include <stdint.h>

#define WELD_INLINE inline __attribute__((always_inline))
#define WELD_BODY __attribute__((always_inline))
#define WELD_FAR static __attribute__((noinline))
#define WELD_KERNEL(name)                                                    \
  extern "C" __attribute__((visibility("default"))) int32_t name(            \
      void* const* t, int64_t begin, int64_t end)

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define WELD_AVX512 1
#define WELD_BYTES 64
#elif defined(__AVX2__) && defined(__FMA__)
#define WELD_BYTES 32
#else
#define WELD_BYTES 16
#endif
#if defined(__GNUC__) && !defined(__clang__) && WELD_BYTES >= 32
#define WELD_X86 1  // GCC's names of x86 builtins
#endif
#if defined(__clang__) && defined(__has_builtin) && defined(__FMA__)
#if __has_builtin(__builtin_elementwise_fma) && __has_builtin(__builtin_elementwise_sqrt)
#define WELD_CLANG 1  // clang's generic names of the same instructions
#endif
#endif

namespace weld {

typedef float f32;
typedef double f64;
typedef int64_t i64;
typedef int32_t i32;
typedef int16_t i16;
typedef int8_t i8;
typedef uint8_t u8;
struct bf16 { uint16_t raw; };
struct f16 { uint16_t raw; };
struct b8 { uint8_t raw; };

template <int S> constexpr int lanes = WELD_BYTES / S;

template <class T, int W> struct vec_of {
  typedef T type __attribute__((vector_size(W * sizeof(T))));
  typedef T loose __attribute__((vector_size(W * sizeof(T)), aligned(sizeof(T)), may_alias));
};
template <class T, int W> using vec = typename vec_of<T, W>::type;
template <class A, class B> constexpr bool same = false;
template <class A> constexpr bool same<A, A> = true;
template <class T> struct bare { typedef T type; };
template <class T> struct bare<T&> { typedef T type; };
template <class V> using elem = typename bare<decltype((*(V*)0)[0])>::type;
template <class V> constexpr int width = sizeof(V) / sizeof(elem<V>);
template <class V> using sint = decltype(V{} < V{});  // integers of the same size: a raw mask
template <int W> using mask = vec<i32, W>;

// --- which lanes are on ---------------------------------------------------------------------------

template <int W> struct full { enum { w = W }; };
template <int W> struct part { enum { w = W }; int n; };
template <int W> struct some { enum { w = W }; mask<W> m; };
template <int N> struct num { enum { n = N }; };

template <class V> WELD_INLINE V iota_lanes() {
  V v;
  for (int j = 0; j < width<V>; ++j) v[j] = (elem<V>)j;
  return v;
}
#if WELD_BYTES == 64
template <> WELD_INLINE vec<i32, 16> iota_lanes<vec<i32, 16>>() {
  return vec<i32, 16>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
}
template <> WELD_INLINE vec<i64, 8> iota_lanes<vec<i64, 8>>() {
  return vec<i64, 8>{0, 1, 2, 3, 4, 5, 6, 7};
}
#endif
#if WELD_BYTES >= 32
template <> WELD_INLINE vec<i32, 8> iota_lanes<vec<i32, 8>>() {
  return vec<i32, 8>{0, 1, 2, 3, 4, 5, 6, 7};
}
template <> WELD_INLINE vec<i64, 4> iota_lanes<vec<i64, 4>>() { return vec<i64, 4>{0, 1, 2, 3}; }
#endif

template <int W> WELD_INLINE mask<W> mask_of(full<W>) { return mask<W>{} - 1; }
template <int W> WELD_INLINE mask<W> mask_of(part<W> k) { return iota_lanes<mask<W>>() < k.n; }
template <int W> WELD_INLINE mask<W> mask_of(some<W> k) { return k.m; }
template <int W> WELD_INLINE bool on(full<W>, int) { return true; }
template <int W> WELD_INLINE bool on(part<W> k, int j) { return j < k.n; }
template <int W> WELD_INLINE bool on(some<W> k, int j) { return k.m[j] != 0; }
template <class K> WELD_INLINE some<K::w> guard(K k, mask<K::w> m) { return {m & mask_of(k)}; }

#ifdef WELD_AVX512
template <int W> WELD_INLINE uint32_t bits(part<W> k) { return (1u << k.n) - 1; }
template <int W> WELD_INLINE uint32_t bits(some<W> k) {
  if constexpr (W >= 4) {
    uint16_t b;
    asm("vpmovd2m %1, %0" : "=Yk"(b) : "v"(k.m));
    return b;
  } else {
    uint32_t b = 0;
    for (int j = 0; j < W; ++j) b |= (k.m[j] != 0) << j;
    return b;
  }
}
#endif

template <class V> WELD_INLINE bool any(V m) {
  sint<V> z = m != 0;
#ifdef WELD_AVX512
  if constexpr (sizeof(V) == 64 && sizeof(elem<V>) == 4) {
    return bits(some<16>{z}) != 0;
  }
#endif
#ifdef WELD_X86
  if constexpr (sizeof(V) == 32) {
    return !__builtin_ia32_ptestz256((vec<long long, 4>)z, (vec<long long, 4>)z);
  }
#endif
  i64 r = 0;
  for (int j = 0; j < width<V>; ++j) r |= z[j];
  return r != 0;
}

// --- conversions ----------------------------------------------------------------------------------

template <class T, class V> WELD_INLINE vec<T, width<V>> conv(V v) {
  return __builtin_convertvector(v, vec<T, width<V>>);
}
template <class V> WELD_INLINE mask<width<V>> to_mask(V raw) {
  if constexpr (sizeof(elem<V>) == 4) return (mask<width<V>>)raw;
  else return conv<i32>(raw);
}
template <class V> WELD_INLINE sint<V> mask_for(mask<width<V>> m) {
  if constexpr (sizeof(elem<V>) == 4) return (sint<V>)m;
  else return conv<elem<sint<V>>>(m);
}

template <int W> WELD_INLINE vec<f32, W> widen_bf16(vec<uint16_t, W> r) {
  return (vec<f32, W>)(conv<uint32_t>(r) << 16);
}
WELD_INLINE f32 widen_bf16(uint16_t r) {
  uint32_t u = (uint32_t)r << 16;
  f32 x;
  __builtin_memcpy(&x, &u, 4);
  return x;
}
// round to nearest even; NaN stays NaN (its top mantissa bit is set)
template <class V> WELD_INLINE vec<uint32_t, width<V>> bf16_bits(V x) {
  typedef vec<uint32_t, width<V>> U;
  U u = (U)x;
  U r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  return x != x ? (u >> 16) | 0x40 : r;
}
WELD_INLINE uint32_t bf16_bits(f32 x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  return x != x ? (u >> 16) | 0x40 : (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}

WELD_INLINE f32 widen_f16(uint16_t h) {
  uint32_t e = (h >> 10) & 31, m = h & 1023, s = (uint32_t)(h >> 15) << 31, u;
  if (e == 31) u = s | 0x7f800000 | m << 13;
  else if (e) u = s | (e + 112) << 23 | m << 13;
  else {
    f32 x = (f32)m * 0x1p-24f;
    return s ? -x : x;
  }
  f32 x;
  __builtin_memcpy(&x, &u, 4);
  return x;
}
WELD_INLINE uint16_t narrow_f16(f32 x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  uint32_t s = (u >> 16) & 0x8000, a = u & 0x7fffffff;
  if (a > 0x7f800000) return s | 0x7e00;
  if (a >= 0x47800000) return s | 0x7c00;  // 65536 and more
  if (a < 0x38800000) {                    // a subnormal: let the f32 adder round
    f32 y;
    __builtin_memcpy(&y, &a, 4);
    y += 0.5f;
    __builtin_memcpy(&a, &y, 4);
    return s | (a - 0x3f000000);
  }
  return s | ((a - 0x38000000 + 0xfff + ((a >> 13) & 1)) >> 13);
}
template <int W> WELD_INLINE vec<f32, W> widen_f16v(vec<uint16_t, W> h) {
  vec<f32, W> x;
#if defined(__F16C__)
  if constexpr (W == 8 || WELD_BYTES == 64) {
    if constexpr (W >= 8) {
      asm("vcvtph2ps %1, %0" : "=v"(x) : "v"(h));
      return x;
    }
  }
#endif
  for (int j = 0; j < W; ++j) x[j] = widen_f16(h[j]);
  return x;
}
template <int W> WELD_INLINE vec<uint16_t, W> narrow_f16v(vec<f32, W> x) {
  vec<uint16_t, W> h;
#if defined(__F16C__)
  if constexpr (W == 8 || WELD_BYTES == 64) {
    if constexpr (W >= 8) {
      asm("vcvtps2ph $0, %1, %0" : "=v"(h) : "v"(x));
      return h;
    }
  }
#endif
  for (int j = 0; j < W; ++j) h[j] = narrow_f16(x[j]);
  return h;
}

// how an element type looks in memory (raw) and in registers (the value)
template <class T> struct rep {
  typedef T raw;
  typedef T value;
  template <class V> static WELD_INLINE V widen(V v) { return v; }
  template <class V> static WELD_INLINE V narrow(V v) { return v; }
};
template <> struct rep<bf16> {
  typedef uint16_t raw;
  typedef f32 value;
  template <class V> static WELD_INLINE auto widen(V r) { return widen_bf16<width<V>>(r); }
  template <class V> static WELD_INLINE auto narrow(V x) { return conv<uint16_t>(bf16_bits(x)); }
  static WELD_INLINE f32 widen(uint16_t r) { return widen_bf16(r); }
  static WELD_INLINE uint16_t narrow(f32 x) { return (uint16_t)bf16_bits(x); }
};
template <> struct rep<f16> {
  typedef uint16_t raw;
  typedef f32 value;
  template <class V> static WELD_INLINE auto widen(V r) { return widen_f16v<width<V>>(r); }
  template <class V> static WELD_INLINE auto narrow(V x) { return narrow_f16v<width<V>>(x); }
  static WELD_INLINE f32 widen(uint16_t r) { return widen_f16(r); }
  static WELD_INLINE uint16_t narrow(f32 x) { return narrow_f16(x); }
};
template <> struct rep<b8> {
  typedef int8_t raw;
  typedef bool value;
  template <class V> static WELD_INLINE auto widen(V r) { return conv<i32>(r != 0); }
  template <class V> static WELD_INLINE auto narrow(V m) { return conv<int8_t>(m & 1); }
  static WELD_INLINE bool widen(int8_t r) { return r != 0; }
  static WELD_INLINE int8_t narrow(bool b) { return b; }
};

// the value rounded to a narrow type, still held as f32
template <class V> WELD_INLINE V round_to_bf16(V x) {
  return (V)(bf16_bits(x) << 16);
}
WELD_INLINE f32 round_to_bf16(f32 x) { return widen_bf16((uint16_t)bf16_bits(x)); }
template <class V> WELD_INLINE V round_to_f16(V x) {
  return widen_f16v<width<V>>(narrow_f16v<width<V>>(x));
}
WELD_INLINE f32 round_to_f16(f32 x) { return widen_f16(narrow_f16(x)); }

// casts as x86 eager does them: float to integer through the signed type of at least 32 bits
// (out of range gives its smallest value), then truncation of bits
template <class T, class S> WELD_INLINE T to(S x) {
  if constexpr (same<S, f32> || same<S, f64>) {
    if constexpr (same<T, f32> || same<T, f64>) return (T)x;
    else if constexpr (same<T, i64> || same<T, u8>) {
      bool ok = x >= -0x1p63 && x < 0x1p63;
      return (T)(ok ? (i64)x : INT64_MIN);
    } else {
      bool ok = x > -2147483649.0 && x < 0x1p31;
      return (T)(ok ? (i32)x : INT32_MIN);
    }
  } else {
    return (T)x;
  }
}
template <class T, class V> WELD_INLINE vec<T, width<V>> vto(V x) {
  typedef elem<V> S;
  constexpr bool real = same<S, f32> || same<S, f64>;
  if constexpr (same<S, T>) return x;
  else if constexpr (real && same<T, u8> && same<S, f64>) return conv<T>(vto<i64>(x));
  else if constexpr (real && sizeof(T) < 4) return conv<T>(conv<i32>(x));
  else if constexpr (real && same<T, i64> && WELD_BYTES < 64) {
    vec<T, width<V>> r;
    for (int j = 0; j < width<V>; ++j) r[j] = to<T>((S)x[j]);
    return r;
  } else return conv<T>(x);
}
template <class V> WELD_INLINE mask<width<V>> vto_bool(V x) { return to_mask(x != 0); }
template <class T, class V> WELD_INLINE vec<T, width<V>> vfrom_bool(V m) {
  if constexpr (same<T, f32>) return (vec<f32, width<V>>)(m & 0x3f800000);
  else return conv<T>(m & 1);
}

template <class S, class K> WELD_INLINE auto splat(S x, K) {
  if constexpr (same<S, bool>) {
    return mask<K::w>{} - (i32)x;
  } else if constexpr (same<S, f32> || same<S, f64>) {
    vec<S, K::w> v;  // 0 + x would lose -0.0
    for (int j = 0; j < K::w; ++j) v[j] = x;
    return v;
  } else {
    return vec<S, K::w>{} + x;
  }
}

// --- memory ---------------------------------------------------------------------------------------

template <class T, int W> WELD_INLINE vec<T, W> raw_load(const T* p, full<W>) {
  return *(const typename vec_of<T, W>::loose*)p;
}
template <class T, int W> WELD_INLINE void raw_store(T* p, vec<T, W> v, full<W>) {
  *(typename vec_of<T, W>::loose*)p = v;
}

#ifdef WELD_AVX512
#define WELD_MASKED(op) op " %1, %0%{%2%}"
// a vector register can hold it: masked moves of 16, 32 and 64 bytes exist
template <class T, int W> constexpr bool maskable = W * sizeof(T) >= 16;
template <class T, int W> WELD_INLINE vec<T, W> load_bits(const T* p, uint32_t b) {
  typedef typename vec_of<T, W>::loose L;
  vec<T, W> v;
  const L& m = *(const L*)p;
  if constexpr (sizeof(T) == 1) asm(WELD_MASKED("vmovdqu8") "%{z%}" : "=v"(v) : "m"(m), "Yk"(b));
  else if constexpr (sizeof(T) == 2)
    asm(WELD_MASKED("vmovdqu16") "%{z%}" : "=v"(v) : "m"(m), "Yk"(b));
  else if constexpr (sizeof(T) == 4)
    asm(WELD_MASKED("vmovdqu32") "%{z%}" : "=v"(v) : "m"(m), "Yk"((uint16_t)b));
  else asm(WELD_MASKED("vmovdqu64") "%{z%}" : "=v"(v) : "m"(m), "Yk"((uint8_t)b));
  return v;
}
template <class T, int W> WELD_INLINE void store_bits(T* p, vec<T, W> v, uint32_t b) {
  typedef typename vec_of<T, W>::loose L;
  L& m = *(L*)p;
  if constexpr (sizeof(T) == 1) asm(WELD_MASKED("vmovdqu8") : "+m"(m) : "v"(v), "Yk"(b));
  else if constexpr (sizeof(T) == 2) asm(WELD_MASKED("vmovdqu16") : "+m"(m) : "v"(v), "Yk"(b));
  else if constexpr (sizeof(T) == 4)
    asm(WELD_MASKED("vmovdqu32") : "+m"(m) : "v"(v), "Yk"((uint16_t)b));
  else asm(WELD_MASKED("vmovdqu64") : "+m"(m) : "v"(v), "Yk"((uint8_t)b));
}
#else
template <class T, int W> constexpr bool maskable = WELD_BYTES == 32 && sizeof(T) * W == 32;
#endif

template <class T, int W, class K> WELD_INLINE vec<T, W> raw_load_some(const T* p, K k) {
  if constexpr (maskable<T, W>) {
#ifdef WELD_AVX512
    return load_bits<T, W>(p, bits(k));
#elif WELD_BYTES == 32
    typedef typename vec_of<T, W>::loose L;
    vec<T, W> v;
    auto m = mask_for<vec<T, W>>(mask_of(k));
    if constexpr (sizeof(T) == 4)
      asm("vpmaskmovd %1, %2, %0" : "=x"(v) : "m"(*(const L*)p), "x"(m));
    else asm("vpmaskmovq %1, %2, %0" : "=x"(v) : "m"(*(const L*)p), "x"(m));
    return v;
#endif
  }
  alignas(64) T tmp[W] = {};
  for (int j = 0; j < W; ++j)
    if (on(k, j)) tmp[j] = p[j];
  return raw_load(tmp, full<W>{});
}
template <class T, int W, class K> WELD_INLINE void raw_store_some(T* p, vec<T, W> v, K k) {
  if constexpr (maskable<T, W>) {
#ifdef WELD_AVX512
    return store_bits<T, W>(p, v, bits(k));
#elif WELD_BYTES == 32
    typedef typename vec_of<T, W>::loose L;
    auto m = mask_for<vec<T, W>>(mask_of(k));
    if constexpr (sizeof(T) == 4)
      asm("vpmaskmovd %1, %2, %0" : "+m"(*(L*)p) : "x"(v), "x"(m));
    else asm("vpmaskmovq %1, %2, %0" : "+m"(*(L*)p) : "x"(v), "x"(m));
    return;
#endif
  }
  for (int j = 0; j < W; ++j)
    if (on(k, j)) p[j] = v[j];
}
template <class T, int W> WELD_INLINE vec<T, W> raw_load(const T* p, part<W> k) {
  return raw_load_some<T, W>(p, k);
}
template <class T, int W> WELD_INLINE vec<T, W> raw_load(const T* p, some<W> k) {
  return raw_load_some<T, W>(p, k);
}

template <class T> WELD_INLINE typename rep<T>::value get(const T* p) {
  return rep<T>::widen(*(const typename rep<T>::raw*)p);
}
template <class T> WELD_INLINE typename rep<T>::value get(const T* p, bool guard) {
  return guard ? get(p) : typename rep<T>::value{};
}
template <class T> WELD_INLINE void put(T* p, typename rep<T>::value v) {
  *(typename rep<T>::raw*)p = rep<T>::narrow(v);
}
template <class T, class K> WELD_INLINE auto load(const T* p, K k) {
  return rep<T>::widen(raw_load((const typename rep<T>::raw*)p, k));
}
template <class T, class V, int W> WELD_INLINE void store(T* p, V v, full<W> k) {
  typedef typename rep<T>::raw R;
  raw_store<R, W>((R*)p, rep<T>::narrow(v), k);
}
template <class T, class V, class K> WELD_INLINE void store(T* p, V v, K k) {
  typedef typename rep<T>::raw R;
  raw_store_some<R, K::w>((R*)p, rep<T>::narrow(v), k);
}
// past the caches, for results that no cache can hold; `fence` ends a kernel that streams
template <class T, class V, class K> WELD_INLINE void stream(T* p, V v, K k) { store(p, v, k); }
#if WELD_BYTES >= 32
template <class T, class V, int W> WELD_INLINE void stream(T* p, V v, full<W> k) {
  typedef typename rep<T>::raw R;
  constexpr int size = W * sizeof(R);
  if constexpr (size < 16) {
    store(p, v, k);
  } else {
    vec<R, W> r = rep<T>::narrow(v);
    if (((uintptr_t)p & (size - 1)) == 0) asm("vmovntdq %1, %0" : "=m"(*(vec<R, W>*)p) : "v"(r));
    else raw_store<R, W>((R*)p, r, k);
  }
}
WELD_INLINE void fence() { asm volatile("sfence" ::: "memory"); }
#else
WELD_INLINE void fence() {}
#endif

template <int W> struct offsets { i64 at[W]; };

template <class K, class F> WELD_INLINE offsets<K::w> each_lane(K k, i64 c, F f) {
  offsets<K::w> o;
  for (int j = 0; j < K::w; ++j) o.at[j] = on(k, j) ? f(c + j) : 0;
  return o;
}
template <class K> WELD_INLINE offsets<K::w> as_offsets(vec<i64, K::w> v, K) {
  offsets<K::w> o;
  for (int j = 0; j < K::w; ++j) o.at[j] = v[j];
  return o;
}
template <int W> WELD_INLINE vec<i64, W> as_vec(offsets<W> o) {
  return raw_load(o.at, full<W>{});
}
template <class T, class K> WELD_INLINE auto gather(const T* p, offsets<K::w> o, K k) {
  typedef typename rep<T>::raw R;
  alignas(64) R tmp[K::w];
  const R* q = (const R*)p;
  for (int j = 0; j < K::w; ++j) tmp[j] = on(k, j) ? q[o.at[j]] : R{};
  return rep<T>::widen(raw_load(tmp, full<K::w>{}));
}
template <class T, class K> WELD_INLINE auto strided(const T* p, i64 step, K k) {
  typedef typename rep<T>::raw R;
  alignas(64) R tmp[K::w];
  const R* q = (const R*)p;
  for (int j = 0; j < K::w; ++j) tmp[j] = on(k, j) ? q[j * step] : R{};
  return rep<T>::widen(raw_load(tmp, full<K::w>{}));
}
// Op::of(old, new) at each lane in order, so that colliding lanes see each other
template <class Op, class T, class V, class K>
WELD_INLINE void scatter(T* p, offsets<K::w> o, V v, K k) {
  for (int j = 0; j < K::w; ++j)
    if (on(k, j)) {
      if constexpr (same<T, b8>) put(p + o.at[j], Op::of(get(p + o.at[j]), v[j] != 0));
      else put(p + o.at[j], Op::of(get(p + o.at[j]), (typename rep<T>::value)v[j]));
    }
}

template <class T, class K> WELD_INLINE vec<T, K::w> iota(T start, T step, K) {
  return iota_lanes<vec<T, K::w>>() * step + start;
}

// a thread's own memory, kept between calls
WELD_FAR char* scratch(i64 bytes) {
  static thread_local char* block = nullptr;
  static thread_local i64 size = 0;
  if (bytes > size) {
    __builtin_free(block);
    block = (char*)__builtin_malloc(bytes + 64);
    size = block ? bytes : 0;
    if (!block) __builtin_trap();
  }
  return block + (-(uintptr_t)block & 63);
}

// --- loops ----------------------------------------------------------------------------------------

// f(c, k) over lo <= c < hi in steps that end at multiples of W
template <int W, class F> WELD_INLINE void span(i64 lo, i64 hi, F f) {
  i64 c = lo;
  while (c < hi) {
    if (!(c & (W - 1))) {
      i64 stop = c + ((hi - c) & ~(i64)(W - 1));
      for (; c < stop; c += W) f(c, full<W>{});
      if (c >= hi) return;
    }
    i64 n = W - (c & (W - 1));
    if (n > hi - c) n = hi - c;
    f(c, part<W>{(int)n});
    c += n;
  }
}
// f(c, k) over 0 <= c < N
template <int W, i64 N, class F> WELD_INLINE void row(F f) {
  for (i64 c = 0; c < N / W * W; c += W) f(c, full<W>{});
  if constexpr (N % W) f(N / W * W, part<W>{(int)(N % W)});
}
// the same with U independent chains: f(c, k, num<u>)
template <int W, int U, i64 N, class F> WELD_INLINE void chains(F f) {
  constexpr i64 big = N / (W * U) * (W * U), whole = N / W * W;
  for (i64 c = 0; c < big; c += W * U) {
    f(c, full<W>{}, num<0>{});
    if constexpr (U > 1) f(c + W, full<W>{}, num<1>{});
    if constexpr (U > 2) {
      f(c + 2 * W, full<W>{}, num<2>{});
      f(c + 3 * W, full<W>{}, num<3>{});
    }
  }
  if constexpr (whole > big)
    for (i64 c = big; c < whole; c += W) f(c, full<W>{}, num<0>{});
  if constexpr (N % W) f(whole, part<W>{(int)(N % W)}, num<0>{});
}
// the same two over 0 <= c < n, for a size that is known when a call begins
template <int W, class F> WELD_INLINE void row_of(i64 n, F f) {
  i64 whole = n / W * W;
  for (i64 c = 0; c < whole; c += W) f(c, full<W>{});
  if (n > whole) f(whole, part<W>{(int)(n - whole)});
}
template <int W, int U, class F> WELD_INLINE void chains_of(i64 n, F f) {
  i64 big = n / (W * U) * (W * U), whole = n / W * W;
  for (i64 c = 0; c < big; c += W * U) {
    f(c, full<W>{}, num<0>{});
    if constexpr (U > 1) f(c + W, full<W>{}, num<1>{});
    if constexpr (U > 2) {
      f(c + 2 * W, full<W>{}, num<2>{});
      f(c + 3 * W, full<W>{}, num<3>{});
    }
  }
  if constexpr (U > 1)
    for (i64 c = big; c < whole; c += W) f(c, full<W>{}, num<0>{});
  if (n > whole) f(whole, part<W>{(int)(n - whole)}, num<0>{});
}

}  // namespace weld

#include "weld_vec_f8.h"
#include "weld_vec_ops.h"
#include "weld_vec_math.h"
