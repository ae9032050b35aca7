# ruff: noqa: C408
# The programs are written as users write them.
"""Everyday programs: models and what training code does around them."""

import abc
import contextlib
import functools
import logging
import math
import time
import warnings

import pytest
import torch
from everyday import Everyday, check
from torch import nn
from torch.nn import functional as F

EVERYDAY = Everyday()
program, model = EVERYDAY.program, EVERYDAY.model


@model
class Diffusion(nn.Module):
    """sampler loop with generator, scheduler state and callbacks"""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(5, 4)
        self.betas = torch.linspace(1e-3, 2e-2, 5)
        self.hist = []

    def step(self, x, t, gen):
        a = 1 - self.betas[t]
        eps = self.net(torch.cat([x, torch.full((1,), float(t))]))
        noise = torch.randn(x.shape, generator=gen) if t > 0 else torch.zeros_like(x)
        return (x - (1 - a) / (1 - a).sqrt() * eps) / a.sqrt() + self.betas[t].sqrt() * noise

    @torch.no_grad()
    def forward(self, x, y, n, callback=None):
        gen = torch.Generator().manual_seed(n)
        for t in reversed(range(3)):
            x = self.step(x, t, gen)
            self.hist.append(x.mean())
        return x, len(self.hist)


@model
class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Linear(4, 4)
        self.d = nn.Linear(2, 4)

    def forward(self, x, y, n):
        mu, lv = self.e(x).chunk(2)
        z = mu + torch.randn_like(mu) * (0.5 * lv).exp()
        r = self.d(z)
        kl = -0.5 * (1 + lv - mu**2 - lv.exp()).sum()
        return {"loss": F.mse_loss(r, x) + kl, "recon": r, "parts": dict(kl=kl.detach())}


@model
class Gnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)

    def forward(self, x, y, n):
        h = torch.stack([x, y, x * y])
        ei = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]])
        src, dst = ei
        m = self.l(h)[src]
        agg = torch.zeros_like(h).index_add(0, dst, m)
        deg = torch.bincount(dst, minlength=h.size(0)).clamp(min=1).unsqueeze(-1)
        sm = torch.zeros(3).scatter_reduce(0, dst, m.sum(-1), reduce="amax", include_self=False)
        return agg / deg, sm, [list(e) for e in ei.tolist()]


@model
class Lora(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(4, 4)
        self.ad = nn.ModuleDict(
            {
                k: nn.ParameterDict(
                    {"a": nn.Parameter(torch.randn(4, 1)), "b": nn.Parameter(torch.randn(1, 4))}
                )
                for k in ("x", "z")
            }
        )
        self.active = ["x"]
        self.merged = False

    @contextlib.contextmanager
    def using(self, *names):
        old, self.active = self.active, list(names)
        try:
            yield self
        finally:
            self.active = old

    def forward(self, x, y, n):
        with self.using("x", "z") if n % 2 else contextlib.nullcontext():
            out = self.base(x)
            for k in self.active:
                out = out + x @ self.ad[k]["a"] @ self.ad[k]["b"] * (n / 4)
        return out, list(self.active)


@model
class Spec(nn.Module):
    def forward(self, x, y, n):
        w = torch.hann_window(4)
        s = torch.fft.rfft(x * w)
        c = torch.view_as_real(s)
        st = torch.stft(torch.cat([x, y, x, y]), 4, 2, window=w, return_complex=True, center=False)
        return c, st.abs(), s.abs() ** 2, torch.angle(s), torch.fft.irfft(s, n=4)


@model
class PosEmb(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = {}
        self.max_seen = 0

    def get(self, n, dev):
        key = (n, str(dev))
        if key not in self.cache:
            p = torch.arange(n)[:, None] / (10000 ** (torch.arange(0, 4, 2) / 4))
            self.cache[key] = torch.cat([p.sin(), p.cos()], -1)
        self.max_seen = max(self.max_seen, n)
        return self.cache[key]

    def forward(self, x, y, n):
        return x + self.get(n, x.device).sum(0), self.max_seen, len(self.cache)


@model
class Router(nn.Module):
    def forward(self, x, y, n):
        h = torch.stack([x, y, x + y, y * 0])
        g = h.sum(-1)
        order = torch.argsort(g, descending=True, stable=True)
        cap = int(h.size(0) * 0.5)
        keep, drop = order[:cap], order[cap:]
        o = h.clone()
        o[keep] = o[keep] * 2
        o[drop] = 0
        return o, cap, torch.isin(torch.arange(4), keep)


@model
class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)

    def forward(self, x, y, n):
        batch = {"ids": [x, y], "meta": {"n": n, "names": ("a", "b")}, "opt": None}

        def walk(o, fn):
            if isinstance(o, torch.Tensor):
                return fn(o)
            if isinstance(o, dict):
                return {k: walk(v, fn) for k, v in o.items()}
            if isinstance(o, (list, tuple)):
                return type(o)(walk(v, fn) for v in o)
            return o

        return walk(batch, self.l), walk(batch, lambda t: t.shape)


@model
class Callbacks(nn.Module):
    def __init__(self):
        super().__init__()
        self.cbs = []
        self.on("end", lambda s, **k: s.log.append(("end", k["n"])))
        self.on("start", self.started)
        self.log = []

    def on(self, ev, fn):
        self.cbs.append((ev, fn))
        return fn

    def started(self, s, **k):
        self.log.append("start")

    def fire(self, ev, **k):
        for e, fn in self.cbs:
            if e == ev:
                fn(self, **k)

    def forward(self, x, y, n):
        self.fire("start", n=n)
        x = x * n
        self.fire("end", n=n)
        return x, list(self.log)


@model
class Timer(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = {}

    @contextlib.contextmanager
    def time(self, k):
        s = time.perf_counter()
        try:
            yield
        finally:
            self.t[k] = self.t.get(k, 0.0) + time.perf_counter() - s

    def forward(self, x, y, n):
        with self.time("a"):
            x = x * 2
        with self.time("b"):
            x = x + y
        return x, sorted(self.t)


@model
class Warner(nn.Module):
    def forward(self, x, y, n):
        if x.dim() == 1:
            warnings.warn("one dim", UserWarning, stacklevel=2)
        logging.getLogger("brk").warning("n=%d", n)
        return x.unsqueeze(0)


@model
class AbcMod(nn.Module):
    def __init__(self):
        super().__init__()

        class Base(abc.ABC):
            @abc.abstractmethod
            def run(self, x): ...
            def __call__(self, x):
                return self.run(x)

        class Add(Base):
            def __init__(self, k):
                self.k = k

            def run(self, x):
                return x + self.k

        class Mul(Add):
            def run(self, x):
                return super().run(x) * self.k

        self.ops = [Add(1), Mul(2)]

    def forward(self, x, y, n):
        return functools.reduce(lambda a, o: o(a), self.ops, x), [
            type(o).__name__ for o in self.ops
        ]


@model
class Quant(nn.Module):
    def forward(self, x, y, n):
        s = (x.max() - x.min()) / 255
        zp = (-x.min() / s).round().clamp(0, 255)
        q = (x / s + zp).round().clamp(0, 255).to(torch.uint8)
        return q, (q.float() - zp) * s, torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)


@model
class Attn(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)).bool())

    def forward(self, x, y, n):
        h = torch.stack([x, y, x - y])[None]
        B, T, C = h.shape
        q, k, v = self.qkv(h).view(B, T, 3, 2, C // 2).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        a = a.masked_fill(~self.mask[:T, :T], float("-inf")).softmax(-1)
        return (a @ v).transpose(1, 2).reshape(B, T, C), F.scaled_dot_product_attention(
            q, k, v, is_causal=True
        )


@model
class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(1, 2, 3, padding=1)
        self.b = nn.BatchNorm2d(2)
        self.p = nn.AdaptiveAvgPool2d(1)

    def forward(self, x, y, n):
        im = torch.outer(x, y)[None, None]
        h = F.relu(self.b(self.c(im)), inplace=True)
        h = F.interpolate(h, scale_factor=2, mode="bilinear", align_corners=False)
        h = F.max_pool2d(F.pad(h, (1, 1, 1, 1), mode="reflect"), 2)
        return self.p(h).flatten(1), h.shape, F.pixel_shuffle(torch.ones(1, 4, 2, 2), 2).shape


@model
class Contrastive(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(4, 4)
        self.register_buffer("queue", torch.randn(4, 6))
        self.ptr = 0

    def forward(self, x, y, n):
        q = F.normalize(self.q(torch.stack([x, y])), dim=1)
        k = F.normalize(torch.stack([y, x]) + 1e-3, dim=1).detach()
        pos = torch.einsum("nc,nc->n", q, k)[:, None]
        neg = q @ self.queue.clone()
        with torch.no_grad():
            self.queue[:, self.ptr : self.ptr + 2] = k.T
            self.ptr = (self.ptr + 2) % 6
        return F.cross_entropy(
            torch.cat([pos, neg], 1) / 0.07, torch.zeros(2, dtype=torch.long)
        ), self.ptr


@model
class StatefulGen(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = torch.Generator()
        self.g.manual_seed(0)

    def forward(self, x, y, n):
        mask = torch.rand(x.shape, generator=self.g) > 0.5
        noise = torch.empty_like(x).uniform_(-1, 1, generator=self.g)
        return torch.where(mask, x + noise, y), torch.randint(
            0, 10, (2,), generator=self.g
        ).tolist()


@pytest.mark.parametrize("make", EVERYDAY.rows)
def test_everyday(make):
    check(make)
