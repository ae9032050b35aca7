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

ROWS = """
size n in 2..  is size 0 of 0  hint 16
"""
COLUMNS = """
size n in 2..  is size 1 of 0  hint 16
"""
BOTH = """
size m in 2..  is size 0 of 0  hint 8
size n in 2..  is size 1 of 0  hint 16
"""


def program_of(source, **cfg):
    return generate(fuse(parse(source), Config(verify=True, **cfg)))


class Sized:
    """A graph compiled once; `run` gives what a driver computes, `expected` the interpreter."""

    def __init__(self, source, driver="native", **cfg):
        self.graph = parse(source)
        with override(verify=True, driver=driver, **cfg) as settings:
            plan = fuse(self.graph, settings)
            self.program = generate(plan)
            self.executable = make_executable(self.program, settings, INCLUDE)

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
