"""What a first compilation imports, in fresh processes, and that torch is itself afterwards."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

SOFTMAX = """
    def fn(x):
        return torch.softmax(x * 2 + 1, -1)

    args = (torch.randn(4, 8),)
"""
NORM = """
    fn = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16)).eval()
    args = (torch.randn(4, 8),)
"""
# Views, copies, writes in place, a mask, numbers without dimensions: what a small BERT is made of.
# (transformers itself imports sympy.)
ENCODER = """
    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = torch.nn.Embedding(9, 8), torch.nn.Embedding(6, 8)
            self.q, self.k, self.v, self.o = (torch.nn.Linear(8, 8) for _ in range(4))
            self.norm, self.up, self.down = (torch.nn.LayerNorm(8), torch.nn.Linear(8, 16),
                                             torch.nn.Linear(16, 8))
            self.head = torch.nn.Conv1d(8, 3, 1)

        def heads(self, x):
            return x.view(2, 6, 2, 4).permute(0, 2, 1, 3)

        def forward(self, ids, mask):
            x = self.words(ids) + self.places(torch.arange(6))
            q, k, v = (self.heads(f(x)) for f in (self.q, self.k, self.v))
            score = torch.einsum("bhid,bhjd->bhij", q, k) / torch.sqrt(torch.tensor(4.0))
            score = score.masked_fill(~mask[:, None, None, :], float("-inf"))
            y = (score.softmax(-1) @ v).permute(0, 2, 1, 3).contiguous().view(2, 6, 8)
            x = self.norm(x + self.o(y)).clone().clamp_(-3, 3)
            x[:, 0].copy_(x[:, 1])
            x = x + self.down(torch.nn.functional.gelu(self.up(x)))
            return self.head(x.transpose(1, 2)).triu().any(1), x.cumsum(1).tanh()

    fn = Encoder().eval()
    args = (torch.randint(9, (2, 6)), torch.ones(2, 6, dtype=torch.bool))
"""
COMPILED = """
    def flat(x):
        return x if isinstance(x, tuple) else (x,)

    with torch.no_grad():
        compiled = torchweld.compile(fn, fullgraph=True)
        results = flat(compiled(*args))
        assert torchweld.statistics()["graphs"] == 1
        avoided = ("sympy", "torch._dynamo", "torch._inductor", "torch.distributed.tensor")
        loaded = [name for name in avoided if name in sys.modules]
        assert not loaded, loaded
        for got, want in zip(results, flat(fn(*args))):
            torch.testing.assert_close(got, want)
"""


def run(*parts: str) -> None:
    program = "\n".join(textwrap.dedent(p) for p in ("import sys, torch, torchweld", *parts))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("model", [SOFTMAX, NORM, ENCODER], ids=["softmax", "norm", "encoder"])
def test_a_cold_compilation_imports_neither_a_peer_nor_sympy(model):
    run(model, COMPILED)


def test_symbolic_shapes_work_after_a_cold_compilation():
    run(
        SOFTMAX,
        COMPILED,
        """
    from torch.fx.experimental.proxy_tensor import make_fx

    grown = torch.compile(fn, backend="eager", dynamic=True)
    torch.testing.assert_close(grown(torch.randn(2, 3)).sum(), torch.tensor(2.0))
    graph = make_fx(lambda x: x.expand(3, *x.shape).reshape(-1) * x.shape[0],
                    tracing_mode="symbolic")(torch.randn(4, 5))
    assert "sym_size" in graph.code
    torch.testing.assert_close(compiled(torch.ones(2, 2)), torch.full((2, 2), 0.5))
    """,
    )


CHANGED = """
    import gc, types

    def changed():
        from torchweld.ir.torch_functions import codes

        functions = [f for f in gc.get_objects() if type(f) is types.FunctionType]
        return [f for f in functions if str(f.__module__).startswith("torch.")
                and any("torchweld.ir.static_shapes" in c.co_names for c in codes(f.__code__))]
"""


def test_functions_are_torchs_own_again_when_symbolic_shapes_is_imported():
    run(
        CHANGED,
        """
    import torchweld.ir.fake

    assert len(changed()) > 50
    import torch.fx.experimental.symbolic_shapes
    assert not changed(), changed()
    assert not hasattr(torch.fx.experimental.symbolic_shapes, "NoSympy")
    """,
    )


def test_nothing_is_changed_where_symbolic_shapes_is_imported_already():
    run(
        CHANGED,
        """
    import torch.fx.experimental.symbolic_shapes
    import torchweld.ir.fake
    from torchweld.ir.quiet import _import

    assert not changed(), changed()
    found = _import("torch.fx.experimental.symbolic_shapes", wanted=("sym_eq",))
    assert found is torch.fx.experimental.symbolic_shapes
    """,
    )


def test_sympy_imported_alone_is_recognised():
    run("""
    import torchweld.ir.fake, sympy
    from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    assert elementwise_dtypes(sympy.Integer(2), type_promotion_kind=kind)[1] is torch.int64
    """)
