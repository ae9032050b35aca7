#include "weld_vec.h"
namespace weld {

WELD_KERNEL(k0) {
  if (begin >= end) return 0;
  auto t0 = (const f32*)t[0];
  auto t1 = (f32*)t[1];
  alignas(64) f32 a0[1008];
  for (i64 s = begin, e; s < end; s = e) {
    e = s / 1008 * 1008 + 1008;
    if (e > end) e = end;
    fill(a0, Sum::start<f32>, e - s);
    for (i64 c0 = 0; c0 < 64; ++c0) {
      span<lanes<4>>(s, e, [&](i64 l, auto k) WELD_BODY {
        auto v1 = load(t0 + c0 * 1000 + l, k);
        auto v2 = Sum::of(load(a0 + (l - s), k), v1);
        store(a0 + (l - s), v2, k);
      });
    }
    span<lanes<4>>(s, e, [&](i64 l, auto k) WELD_BODY {
      auto v3 = load(a0 + (l - s), k);
      store(t1 + l, v3, k);
    });
  }
  return 0;
}

}  // namespace weld
