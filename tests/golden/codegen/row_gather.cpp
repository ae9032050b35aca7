#include "weld_vec.h"
namespace weld {

WELD_KERNEL(k0) {
  if (begin >= end) return 0;
  auto t0 = (const f32*)t[0];
  auto t1 = (const i64*)t[1];
  auto t2 = (f32*)t[2];
  int bad = 0;
  for (i64 g = begin; g < end; ++g) {
    auto v0 = get(t1 + g);
    auto v1 = check_index(v0, i64(10), true, bad);
    row<lanes<4>, 24>([&](i64 c0, auto k) WELD_BODY {
      auto v2 = load(t0 + v1 * 24 + c0, k);
      store(t2 + g * 24 + c0, v2, k);
    });
  }
  return bad;
}

}  // namespace weld
