"""Graphs in text form for the tests of fuse, and what a plan is made of."""

import math
import random

from tests.ir.strategies import EXTERNS

from torchweld.base.config import Config
from torchweld.fuse.run import fuse
from torchweld.ir.loop_eval import Storage, evaluate
from torchweld.ir.loop_text import parse
from torchweld.ir.plan import Bundle, Kernel, kernels_of
from torchweld.ir.plan_eval import evaluate_plan

SOFTMAX = """
x: f32[{m}, {n}] input
top: f32[{m}, 1]
e: f32[{m}, {n}]
total: f32[{m}, 1]
y: f32[{m}, {n}]
top[i, 0] = max over j:{n} of x[i, j]  for i:{m}
e[i, j] = exp(x[i, j] - top[i, 0])  for i:{m}, j:{n}
total[i, 0] = sum over j:{n} of e[i, j]  for i:{m}
y[i, j] = e[i, j] / total[i, 0]  for i:{m}, j:{n}
return y
"""

ADD_LAYER_NORM = """
x: f32[{m}, {n}] input
y: f32[{m}, {n}] input
w: f32[{n}] input
b: f32[{n}] input
s: f32[{m}, {n}]
total: f32[{m}, 1]
mean: f32[{m}, 1]
d: f32[{m}, {n}]
squares: f32[{m}, 1]
scale: f32[{m}, 1]
o: f32[{m}, {n}]
s[i, j] = x[i, j] + y[i, j]  for i:{m}, j:{n}
total[i, 0] = sum over j:{n} of s[i, j]  for i:{m}
mean[i, 0] = total[i, 0] / {n}.0  for i:{m}
d[i, j] = s[i, j] - mean[i, 0]  for i:{m}, j:{n}
squares[i, 0] = sum over j:{n} of d[i, j] * d[i, j]  for i:{m}
scale[i, 0] = rsqrt(squares[i, 0] / {n}.0 + 0.001)  for i:{m}
o[i, j] = d[i, j] * scale[i, 0] * w[j] + b[j]  for i:{m}, j:{n}
return s, o
"""


def plan_of(source, **cfg):
    return fuse(parse(source), Config(verify=True, **cfg))


def kernels(plan):
    return list(kernels_of(plan.steps))


def launches(plan):
    """The kernels of each launch, by name."""
    return [
        [k.name for k in kernels_of((s,))] for s in plan.steps if isinstance(s, Kernel | Bundle)
    ]


def why(plan):
    return "\n".join(r.why for r in plan.refusals)


def numbers_for(g, seed=0):
    rng = random.Random(seed)
    out = []
    for b in g.inputs:
        draw = (lambda: rng.uniform(-2, 2)) if b.dtype.is_float else (lambda: rng.randrange(4))
        out.append([draw() for _ in range(Storage(b, {}).extent)])
    return out


def close(xs, ys):
    return len(xs) == len(ys) and all(
        math.isclose(x, y, rel_tol=1e-4, abs_tol=1e-5) or (x != x and y != y)
        for x, y in zip(xs, ys, strict=True)
    )


def agreeing(source, **cfg):
    """The plan of a graph, after checking that it computes what the graph says."""
    g = parse(source)
    plan = fuse(g, Config(verify=True, **cfg))
    mine, yours = numbers_for(g), numbers_for(g)
    expected = evaluate(g, yours, EXTERNS)
    got = evaluate_plan(plan, mine, EXTERNS)
    assert all(close(a, b) for a, b in zip(got, expected, strict=True))
    assert all(close(a, b) for a, b in zip(mine, yours, strict=True))
    return plan
