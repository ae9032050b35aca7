// Measures the functions of weld_vec_math.h against double precision. Called by test_math.py.
#include "weld_vec.h"

#include <math.h>
#include <string.h>

using namespace weld;

namespace {

constexpr int N = lanes<4>;
typedef vec<f32, N> V;

struct Result {
  double worst;
  float at;
  int64_t wrong;  // NaN, infinity or the sign of a zero differs
  float wrong_at;
};

uint64_t state = 88172645463325252ull;
uint32_t random32() {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (uint32_t)(state >> 16);
}

float sample(int64_t i, int64_t n) {
  static const float special[] = {0.f, -0.f, INFINITY, -INFINITY, NAN, 1.f, -1.f, 1e-45f, -1e-45f,
                                  1.17549435e-38f, 3.4028235e38f, -3.4028235e38f, .5f, -.5f, 2.f,
                                  88.8f};
  if (i < 16) return special[i];
  uint32_t u = random32();
  if (i < n / 2) u = (uint32_t)(i * (UINT32_MAX / (n / 2)));  // every exponent, evenly
  float x;
  memcpy(&x, &u, 4);
  if (i >= n * 3 / 4) {
    float reach = i % 3 == 0 ? 1.5f : i % 3 == 1 ? 12.f : 100.f;
    x = (float)((u / 4294967296.0 * 2 - 1) * reach);
  }
  return x;
}

double ulp(double want) {
  float a = fabsf((float)want);
  if (a < 1.17549435e-38f) return 0x1p-149;
  int e;
  frexp(isinf(a) ? 3.4028235e38f : a, &e);
  return ldexp(1.0, e - 24);
}

void compare(float x, float got, double want, Result& r) {
  float near = (float)want;
  bool wrong = isnan(want) != (bool)isnan(got);
  bool edge = fabs(want) > 3.4028230e38 && fabs(want) < 3.4028240e38;
  if (!wrong && !isnan(got) && (isinf(near) || isinf(got))) wrong = near != got && !edge;
  if (!wrong && want == 0) wrong = got != 0 || signbit(got) != signbit(want);
  if (wrong) {
    ++r.wrong;
    r.wrong_at = x;
  }
  if (wrong || isnan(got) || isinf(got) || isinf(near)) return;
  double u = fabs(got - want) / ulp(want);
  if (u > r.worst) {
    r.worst = u;
    r.at = x;
  }
}

template <class F, class G> void measure(F f, G want, int64_t n, Result* r) {
  *r = Result{};
  for (int64_t i = 0; i < n; i += N) {
    float in[N], out[N];
    for (int j = 0; j < N; ++j) in[j] = sample(i + j, n);
    store(out, f(load(in, full<N>{})), full<N>{});
    for (int j = 0; j < N; ++j) compare(in[j], out[j], want((double)in[j]), *r);
  }
}

}  // namespace

#define CHECK(name)                                                                \
  extern "C" __attribute__((visibility("default"))) void check_##name(int64_t n, Result* r) { \
    measure([](V x) { return weld::name(x); }, [](double x) { return ::name(x); }, n, r);     \
  }
static double sigmoid(double x) { return x < 0 ? ::exp(x) / (1 + ::exp(x)) : 1 / (1 + ::exp(-x)); }
static double rsqrt(double x) { return 1 / ::sqrt(x); }
CHECK(exp) CHECK(exp2) CHECK(expm1) CHECK(log) CHECK(log2) CHECK(log10) CHECK(log1p) CHECK(sin)
CHECK(cos) CHECK(tan) CHECK(asin) CHECK(acos) CHECK(atan) CHECK(sinh) CHECK(cosh) CHECK(tanh)
CHECK(erf) CHECK(erfc) CHECK(sqrt)
extern "C" void check_sigmoid(int64_t n, Result* r) {
  measure([](V x) { return weld::sigmoid(x); }, ::sigmoid, n, r);
}
extern "C" void check_rsqrt(int64_t n, Result* r) {
  measure([](V x) { return weld::rsqrt(x); }, ::rsqrt, n, r);
}
extern "C" void check_pow_to(float y, int64_t n, Result* r) {
  measure([=](V x) { return weld::pow(x, splat(y, full<N>{})); },
          [=](double x) { return ::pow(x, y); }, n, r);
}
extern "C" void check_pow_of(float b, int64_t n, Result* r) {
  measure([=](V x) { return weld::pow(splat(b, full<N>{}), x); },
          [=](double x) { return ::pow(b, x); }, n, r);
}
