"""ATen graphs of symbolic sizes, written by calls, compiled once and compared with eager."""

from __future__ import annotations

from operator import getitem

import torch
from torch import fx
from torch.utils import _pytree as pytree

from torchweld.base.config import override
from torchweld.codegen.run import generate
from torchweld.fuse.run import fuse
from torchweld.ir.fake import FakeMode
from torchweld.ir.graph import GraphPair
from torchweld.ir.loop import Extern
from torchweld.ir.loop_verify import verify
from torchweld.ir.size_node import symbolic
from torchweld.ir.sizes import Size, SizeEnv
from torchweld.lower.run import lower
from torchweld.pipeline import INCLUDE
from torchweld.runtime.executable import make_executable


def operator(name):
    op, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, op), overload)


def eager(name, *args, **kwargs):
    """What a build function calls when it runs on real tensors."""
    return operator(name)(*args, **kwargs)


class Recorder:
    """What a build function calls to write a graph: values are fakes that know their nodes."""

    def __init__(self):
        self.graph = fx.Graph()
        self.env = SizeEnv()
        self.sizes = []
        self.symbols = {}
        self.mode = FakeMode(allow_non_fake_inputs=False, static_shapes=True)
        self.mode.cache_enabled = False
        self.nodes = {}

    def place(self, k, t, dims):
        """A placeholder like `t`. dims: dimension -> name of its symbol."""
        shape = [self._size(k, d, n, dims[d]) if d in dims else n for d, n in enumerate(t.shape)]
        with self.mode:
            fake = torch.empty(shape, dtype=t.dtype, device=t.device)
        return self._keep(self.graph.placeholder(f"x{k}"), fake)

    def _size(self, k, d, n, name):
        if name not in self.symbols:
            self.symbols[name] = self.env.symbol(n)
            self.sizes.append(Size(self.symbols[name], "size", k, d, n))
        return symbolic(self.env, self.symbols[name])

    def _keep(self, node, fake):
        node.meta["val"] = fake
        if isinstance(fake, torch.Tensor):
            self.nodes[id(fake)] = node, fake
        return fake

    def __call__(self, name, *args, **kwargs):
        with self.mode:
            fake = operator(name)(*args, **kwargs)
        given, named = pytree.tree_map(self._node, (args, kwargs))
        made = self.graph.call_function(operator(name), given, named)
        self._keep(made, fake)
        for i, part in enumerate(fake if isinstance(fake, tuple | list) else ()):
            self._keep(self.graph.call_function(getitem, (made, i)), part)
        return fake

    def _node(self, x):
        return self.nodes[id(x)][0] if isinstance(x, torch.Tensor) else x

    def pair(self, results):
        self.graph.output(tuple(map(self._node, results)))
        return GraphPair(self.graph, (), (None,) * len(results), sizes=tuple(self.sizes))


def compiled(build, tensors, dims):
    """The LoopGraph and the Executable of a build function; symbols are at `dims` of its inputs."""
    r = Recorder()
    inputs = [r.place(k, t, d) for k, (t, d) in enumerate(zip(tensors, dims, strict=True))]
    out = build(r, *inputs)
    with override(verify=True) as cfg:
        g = lower(r.pair(out if isinstance(out, tuple) else (out,)))
        verify(g)
        return g, make_executable(generate(fuse(g, cfg)), cfg, INCLUDE)


def check(build, make, dims, choices):
    """Asserts eager's results at every choice of sizes; answers the operators that ATen runs."""
    g, run = compiled(build, make(*choices[0]), dims)
    for sizes in choices:
        tensors = make(*sizes)
        want = build(eager, *tensors)
        for a, b in zip(run(*tensors), want if isinstance(want, tuple) else (want,), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)
            assert a.stride() == b.stride() or a.numel() < 2
    return [n.op for n in g.nodes if isinstance(n, Extern)]
