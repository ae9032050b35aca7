"""Plans of the kernels whose speed is measured, at their real sizes."""

GELU_CHAIN = """
a: bf16[16384, 8192] input
b: bf16[16384, 8192] input
c: f32[]
y: bf16[16384, 8192]
return y
plan
kernel k0 grid i:16384, j:8192 tile 1024 1 warps 4 args a, b, y  # from gelu, sigmoid
  register c
  stage
    c[] = f32(bf16(f32(bf16(f32(a[i, j]) * 1.5)) + f32(b[i, j])))  for i:16384, j:8192
    y[i, j] = bf16(f32(bf16(f32(bf16(c[] * 0.5 * (erf(c[] * 0.70710678) + 1.0))) * f32(bf16(sigmoid(f32(b[i, j])))))) - f32(a[i, j]))  for i:16384, j:8192
fresh y
arena 0
"""  # noqa: E501

SOFTMAX = """
x: bf16[16384, 8192] input
m: f32[16384]
e: f32[16384, 8192]
s: f32[16384]
y: bf16[16384, 8192]
return y
plan
kernel k0 grid i:16384 tile 1 8192 warps 8 args x, y  # from softmax
  scalar m
  row e
  scalar s
  stage j:8192
    m[i] = max over j:8192 of f32(x[i, j])  for i:16384
  stage j:8192
    e[i, j] = exp(f32(x[i, j]) - m[i])  for i:16384, j:8192
    s[i] = sum over j:8192 of e[i, j]  for i:16384
  stage j:8192
    y[i, j] = bf16(e[i, j] / s[i])  for i:16384, j:8192
fresh y
arena 0
"""

RMS_NORM = """
x: bf16[16384, 8192] input
w: bf16[8192] input
q: f32[16384]
y: bf16[16384, 8192]
return y
plan
kernel k0 grid i:16384 tile 1 8192 warps 8 args x, w, y  # from rms_norm
  scalar q
  stage j:8192
    q[i] = sum over j:8192 of f32(x[i, j]) * f32(x[i, j])  for i:16384
  stage j:8192
    y[i, j] = bf16(f32(x[i, j]) * rsqrt(q[i] * 0.00012207031 + 1e-6) * f32(w[j]))  for i:16384, j:8192
fresh y
arena 0
"""  # noqa: E501

LAYER_NORM = """
x: bf16[16384, 8192] input
h: bf16[16384, 8192] input
w: bf16[8192] input
b: bf16[8192] input
z: f32[16384, 8192]
a: f32[16384]
v: f32[16384]
y: bf16[16384, 8192]
return y
plan
kernel k0 grid i:16384 tile 1 8192 warps 16 args x, h, w, b, y  # from add, layer_norm
  row z
  scalar a
  scalar v
  stage j:8192
    z[i, j] = f32(bf16(f32(x[i, j]) + f32(h[i, j])))  for i:16384, j:8192
    a[i] = sum over j:8192 of z[i, j]  for i:16384
  stage j:8192
    v[i] = sum over j:8192 of (z[i, j] - a[i] * 0.00012207031) * (z[i, j] - a[i] * 0.00012207031)  for i:16384
  stage j:8192
    y[i, j] = bf16((z[i, j] - a[i] * 0.00012207031) * rsqrt(v[i] * 0.00012207031 + 1e-5) * f32(w[j]) + f32(b[j]))  for i:16384, j:8192
fresh y
arena 0
"""  # noqa: E501

CROSS_ENTROPY = """
x: bf16[8192, 50257] input
t: i64[8192] input
m: f32[8192]
s: f32[8192]
y: f32[8192]
return y
plan
kernel k0 grid i:8192 tile 1 4096 warps 8 args x, t, y  # from cross_entropy
  scalar m
  scalar s
  stage j:50257
    m[i] = max over j:50257 of f32(x[i, j])  for i:8192
  stage j:50257
    s[i] = sum over j:50257 of exp(f32(x[i, j]) - m[i])  for i:8192
  stage
    y[i] = log(s[i]) + m[i] - f32(x[i, <check_index(t[i], 50257) in 0..50256>])  for i:8192
fresh y
arena 0
"""

COLUMN_SUM = """
x: bf16[16384, 8192] input
y: f32[64, 8192]
return y
plan
kernel k0 grid k:64, i:8192 tile 128 32 warps 4 args x, y  # from sum
  stage r:256
    y[k, i] = sum over r:256 of f32(x[256*k + r, i]) * f32(x[256*k + r, i])  for k:64, i:8192
fresh y
arena 0
"""

EMBEDDING = """
table: f32[50257, 768] input
ids: i64[1024] input
y: f32[1024, 768]
return y
plan
kernel k0 grid i:1024, j:768 tile 1024 1 warps 4 args table, ids, y  # from embedding
  stage
    y[i, j] = table[<check_index(ids[i], 50257) in 0..50256>, j]  for i:1024, j:768
fresh y
arena 0
"""

TEXTS = {
    "gelu_chain": GELU_CHAIN, "softmax": SOFTMAX, "rms_norm": RMS_NORM, "layer_norm": LAYER_NORM,
    "cross_entropy": CROSS_ENTROPY, "column_sum": COLUMN_SUM, "embedding": EMBEDDING,
}  # fmt: skip
