"""Programs that launch Triton kernels of their own: run by test_user_kernels.py.

A process of its own, because Triton decides once per process whether it interprets.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl

import torchweld
from torchweld.base import config
from torchweld.graph.run import normalize
from torchweld.ir.launches import LAUNCHED
from torchweld.pipeline import STATISTICS

X, Y = torch.linspace(-1, 1, 50), torch.linspace(3, 4, 50)


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask) + tl.load(y_ptr + i, mask), mask)


@triton.jit
def scale(x_ptr, factor, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    p, mask = x_ptr + i, i < n
    tl.store(p, tl.load(p, mask) * factor, mask)


@triton.jit
def total(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out_ptr, tl.sum(tl.load(x_ptr + i, i < n, other=0.0)))


@triton.autotune(configs=[triton.Config({"BLOCK": 16}, num_warps=2)], key=["n"])
@triton.heuristics({"TWICE": lambda args: args["n"] > args["BLOCK"]})
@triton.jit
def tuned(x_ptr, out_ptr, n, BLOCK: tl.constexpr, TWICE: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, i < n) * (2 if TWICE else 1), i < n)


def fills(x, y):
    out = torch.empty_like(x)
    n = out.numel()
    add[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x * 2, y, out, n, BLOCK=16)
    return out.exp() + 1


def in_place(x, y):
    scale[(4,)](x, 3.0, x.numel(), 16)
    z = x + 1
    view = z[:25]
    scale[(4,)](z, 0.5, n=x.numel(), BLOCK=16)
    return z, view + 1


def twice(x, y):
    out = torch.zeros(1)
    total[(4,)](x, out, x.numel(), BLOCK=16)
    total[(4,)](y, out, x.numel(), BLOCK=16)
    return out / 2


def by_tuning(x, y):
    out = torch.empty_like(x)
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]) * (2 if meta["TWICE"] else 1),)
    tuned[grid](x, out, x.numel())
    return out + y


def wrapped(kernel):
    try:
        return torch.library.wrap_triton(kernel)
    except RuntimeError:  # torch 2.11 wraps no kernel that is interpreted
        return kernel


@torch.library.triton_op("torchweld_tests::add", mutates_args={})
def add_op(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrapped(add)[(4,)](x, y, out, x.numel(), BLOCK=16)
    return out


def by_operator(x, y):
    return add_op(x, y * 2) + 1


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        add[(4,)](x, x, out, x.numel(), BLOCK=16)
        return out

    @staticmethod
    def backward(ctx, gradient):
        out = torch.empty_like(gradient)
        add[(4,)](gradient, gradient, out, gradient.numel(), BLOCK=16)
        return out


def with_gradients(x, y):
    return (Doubled.apply(x.sin()) * y).sum()


def past_gradients(x, y):
    out = torch.empty_like(x)
    add[(4,)](x, y, out, x.numel(), BLOCK=16)
    return (out + x * x).sum()


def one_tensor(x, y):
    add[(4,)](x, x, x, x.numel(), BLOCK=16)
    return x + 1


def part(x, y):
    add[(1,)](x, y, x[:8], 8, BLOCK=16)
    return x + 1


def returned(x, y):
    out = torch.empty_like(x)
    kernel = add[(4,)](x, y, out, x.numel(), BLOCK=16)
    return out, kernel


def blanks(x, y):
    """How many tensors of each launch hold nothing before it."""
    return [node.args[2] for node in _functional(fills, x, y) if node.target is LAUNCHED]


def _functional(fn, x, y):
    graphs = []

    def keep(gm, inputs):
        graphs.extend(normalize(gm, config.current()).forward.nodes)
        return gm.forward

    torchweld.compile(fn, backend=keep)(x, y)
    return graphs


def same(want, got):
    if isinstance(want, torch.Tensor):
        return torch.allclose(want, got, atol=1e-6)
    if isinstance(want, tuple):
        return all(map(same, want, got))
    return want == got


def trained(fn):
    """As `answer`, of a function whose first argument wants gradients; graphs left to ATen."""
    compiled = torchweld.compile(fn)
    for _ in range(2):
        first, second = X.clone().requires_grad_(), X.clone().requires_grad_()
        fn(first, Y).backward()
        compiled(second, Y).backward()
        if not same(first.grad, second.grad):
            return "wrong"
    found = torchweld.statistics()
    return f"{found['graphs']} graphs, {found['externs']} calls, {found['aten_graphs']} in ATen"


def answer(fn):
    """What became of `fn`: graphs, ATen calls and breaks."""
    compiled = torchweld.compile(fn)
    for _ in range(2):
        first, second = (X.clone(), Y.clone()), (X.clone(), Y.clone())
        if not same((fn(*first), first), (compiled(*second), second)):
            return "wrong"
    found = torchweld.statistics()
    why = "; ".join(r.why for r in STATISTICS.refusals)
    return f"{found['graphs']} graphs, {found['externs']} calls, {why or 'no break'}"


if __name__ == "__main__":
    for fn in (fills, in_place, twice, by_tuning, by_operator, one_tensor, part, returned):
        torchweld.reset()
        print(f"{fn.__name__}: {answer(fn)}")
    for fn in (with_gradients, past_gradients):
        torchweld.reset()
        print(f"{fn.__name__}: {trained(fn)}")
    print(f"blanks: {blanks(X, Y)}")
