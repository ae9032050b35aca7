#include "weld_vec.h"
namespace weld {

// softmax
WELD_KERNEL(k0) {
  if (begin >= end) return 0;
  auto t0 = (const f32*)t[0];
  auto t1 = (f32*)t[1];
  alignas(64) f32 r0[1000];
  for (i64 g = begin; g < end; ++g) {
    acc<Max, f32, lanes<4>, 4> a0;
    chains<lanes<4>, 4, 1000>([&](i64 c0, auto k, auto u) WELD_BODY {
      auto v1 = load(t0 + g * 1000 + c0, k);
      a0.add(v1, k, u);
    });
    auto v2 = a0.done();
    acc<Sum, f32, lanes<4>, 2> a3;
    chains<lanes<4>, 2, 1000>([&](i64 c0, auto k, auto u) WELD_BODY {
      auto v4 = load(t0 + g * 1000 + c0, k);
      auto v5 = v4 - splat(v2, k);
      auto v6 = exp(v5);
      store(r0 + c0, v6, k);
      a3.add(v6, k, u);
    });
    auto v7 = a3.done();
    row<lanes<4>, 1000>([&](i64 c0, auto k) WELD_BODY {
      auto v8 = load(r0 + c0, k);
      auto v9 = v8 / splat(v7, k);
      store(t1 + g * 1000 + c0, v9, k);
    });
  }
  return 0;
}

}  // namespace weld
