"""Graphs of symbolic sizes in text form, and their Programs on either driver."""

import torch

from torchweld.base.config import Config, override
from torchweld.codegen.run import generate
from torchweld.fuse.run import fuse
from torchweld.ir.expr import evaluate as value_of
from torchweld.ir.loop_eval import evaluate
from torchweld.ir.loop_text import parse
from torchweld.pipeline import INCLUDE
from torchweld.runtime.calls import TORCH_DTYPE
from torchweld.runtime.executable import make_executable

BOTH = """
size m in 2..  is size 0 of 0  hint 8
size n in 2..  is size 1 of 0  hint 16
"""


SIZES = ((2, 2), (2, 7), (3, 16), (17, 17), (5, 64), (64, 33), (3, 1000), (1000, 3))
GRAPHS = {
    "pointwise": """
x: f32[m, n] input
w: f32[n] input
y: f32[m, n]
y[i, j] = exp(x[i, j]) * w[j] + 1.0  for i:m, j:n
return y
""",
    "softmax": """
x: f32[m, n] input
top: f32[m, 1]
e: f32[m, n]
total: f32[m, 1]
y: f32[m, n]
top[i, 0] = max over j:n of x[i, j]  for i:m
e[i, j] = exp(x[i, j] - top[i, 0])  for i:m, j:n
total[i, 0] = sum over j:n of e[i, j]  for i:m
y[i, j] = e[i, j] / total[i, 0]  for i:m, j:n
return y
""",
    "mean": """
x: f32[m, n] input
t: f32[m, 1]
y: f32[m, n]
t[i, 0] = sum over j:n of x[i, j]  for i:m
y[i, j] = x[i, j] - t[i, 0] / f32(index(n))  for i:m, j:n
return y
""",
    "columns": """
x: f32[m, n] input
y: f32[n]
y[j] = sum over i:m of x[i, j] * 2.0  for j:n
return y
""",
    "concatenation": """
x: f32[m, n] input
z: f32[m, 2*n] input
y: f32[m, 3*n]
y[i, j] = x[i, j]  for i:m, j:n
y[i, j + n] = z[i, j] * 2.0  for i:m, j:2*n
return y
""",
    "transposition": """
x: f32[m, n] input
y: f32[n, m]
y[j, i] = x[i, j] + 1.0  for i:m, j:n
return y
""",
    "positions and scans": """
x: f32[m, n] input
y: i64[m]
z: f32[m, n]
y[i] = argmax over j:n of x[i, j]  for i:m
z[i, j] = scan_sum over j:n of x[i, j]  for i:m
return y, z
""",
    "heads": """
x: f32[m, n, 12] input
y: f32[m, 3, n, 4]
y[i, a, j, b] = x[i, j, a*4 + b] * 2.0  for i:m, a:3, j:n, b:4
return y as [3*m, 4*n] strides (4*n, 1)
""",
    "flattened": """
x: f32[m, n] input
y: f32[m*n]
y[i] = x[i//n, i%n] + 1.0  for i:m*n
return y
""",
    "channels": """
x: f32[m, n] input
z: f32[2, 3, m, n] input
s: f32[3] input
y: f32[2, 3, m, n]
y[i, c, j, k] = z[i, c, j, k] * s[c]  for i:2, c:3, j:m, k:n
return y
""",
    "rotated halves": """
x: f32[m, n, 12] input
r: f32[m, n, 12]
y: f32[m, n, 12]
r[i, j, k] = neg(x[i, j, k + 6])  for i:m, j:n, k:6
r[i, j, k + 6] = x[i, j, k]  for i:m, j:n, k:6
y[i, j, k] = x[i, j, k] + r[i, j, k] * 2.0  for i:m, j:n, k:12
return y
""",
    "one behind the other": """
x: f32[m, n] input
z: f32[m, 2*n] input
r: f32[m, 3*n + 1]
y: f32[m, 3*n + 1]
r[i, j] = x[i, j]  for i:m, j:n
r[i, n] = x[i, 0]  for i:m
r[i, j + n + 1] = z[i, j]  for i:m, j:2*n
y[i, j] = r[i, j] * 2.0  for i:m, j:3*n + 1
return y
""",
    "negative or not": """
x: i64[m, n] input
y: i64[m, n]
y[i, j] = where(x[i, j] < 1, 100, x[i, j])  for i:m, j:n
return y
""",
    "part that may be empty": """
x: f32[m, n] input
y: f32[m, n - 2]
y[i, j] = x[i, j + 2]  for i:m, j:n - 2
return y
""",
}


def program_of(source, **cfg):
    return generate(fuse(parse(source), Config(verify=True, **cfg)))


class Sized:
    """A graph compiled once; `run` gives what a driver computes, `expected` the interpreter."""

    def __init__(self, source, driver="native", fixed=None, most_fixed=0, **cfg):
        self.graph = parse(source)
        with override(verify=True, driver=driver, **cfg) as settings:
            plan = fuse(self.graph, settings)
            self.program = generate(plan)
            self.executable = make_executable(
                self.program, settings, INCLUDE, fixed=fixed, most_fixed=most_fixed
            )

    def inputs(self, *values, seed=0):
        """Random inputs for values of the sizes."""
        env = dict(zip(self.graph.sizes, values, strict=True))
        made = torch.Generator().manual_seed(seed)
        out = []
        for b in self.graph.inputs:
            shape = [value_of(e, env) for e in b.shape]
            strides = [value_of(e, env) for e in b.strides]
            t = torch.empty_strided(shape, strides, dtype=TORCH_DTYPE[b.dtype])
            if b.dtype.is_float:
                t.copy_(torch.randn(shape, generator=made))
            else:
                t.copy_(torch.randint(0, 2, shape, generator=made))
            out.append(t)
        return out

    def run(self, inputs):
        return [None if t is None else t.clone() for t in self.executable(*inputs)]

    def expected(self, inputs, *values):
        env = dict(zip(self.graph.sizes, values, strict=True))
        flat = [t.flatten().tolist() for t in inputs]
        found = evaluate(self.graph, flat, sizes=env)
        shapes = [[value_of(e, env) for e in v.shape] for v in self.graph.outputs]
        kinds = [TORCH_DTYPE[v.buffer.dtype] for v in self.graph.outputs]
        parts = zip(found, kinds, shapes, strict=True)
        return [torch.tensor(f, dtype=k).reshape(s) for f, k, s in parts]

    def check(self, *values):
        """Asserts that what runs is what the graph means, at these sizes."""
        inputs = self.inputs(*values)
        for got, want in zip(self.run(inputs), self.expected(inputs, *values), strict=True):
            torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
