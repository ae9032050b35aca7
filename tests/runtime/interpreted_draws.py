"""A graph with random operators on CPU tensors, interpreted: run by test_runtime_draws.py."""

from __future__ import annotations

import re

import torch
from test_runtime_draws import Generator

from torchweld.base.config import override
from torchweld.codegen.run import generate
from torchweld.fuse.run import fuse
from torchweld.ir.loop_eval import evaluate
from torchweld.ir.loop_text import parse, text
from torchweld.ir.philox import DRAW
from torchweld.lower import random_draws
from torchweld.pipeline import INCLUDE
from torchweld.runtime import draws
from torchweld.runtime.executable import make_executable

GRAPH = """\
x: f32[40, 32] on "cuda:0" input
a: f32[40, 32] on "cuda:0"
b: f32[40, 32] on "cuda:0"
c: f32[40, 32] on "cuda:0"
kept: bool[40, 32] on "cuda:0"
y: f32[40, 32] on "cuda:0"

a = aten.uniform.default(x, 1.0, 3.0)
b[i, j] = x[i, j] + a[i, j]  for i:40, j:32
c, kept = aten.native_dropout.default(b, 0.25, true)
d = aten.randn_like.default(c)
y[i, j] = c[i, j] * 0.5 + d[i, j]  for i:40, j:32

return y, kept
""".replace("y: f32", 'd: f32[40, 32] on "cuda:0"\ny: f32', 1)

generator = Generator(0xC0FFEE1234567890, 128)
draws.generator_of = lambda device: generator
random_draws.threads_of = lambda device, predict: 256
drawn = text(random_draws.draw_in_nests(parse(GRAPH)))
loops = parse(re.sub(r' on "cuda:0"', "", drawn))
x = torch.arange(40.0 * 32).reshape(40, 32) / 640
wanted = evaluate(loops, [x.flatten().tolist()], {
    DRAW: lambda device, count: ([generator.seed - (1 << 64)], [generator.offset // 4]),
})  # fmt: skip
with override(interpret=True, cache_dir="off", verify=True) as cfg:
    run = make_executable(generate(fuse(loops, cfg)), cfg, INCLUDE)
print(generator.offset)
for got, flat in zip(run(x), wanted, strict=True):
    flat = torch.tensor(flat, dtype=got.dtype).reshape(got.shape)
    torch.testing.assert_close(got, flat, rtol=1e-5, atol=5e-6)
print(generator.offset - 128)
