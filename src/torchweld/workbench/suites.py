"""The benchmark's cases: what is called, and how many bytes it must move."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from torchweld.workbench.work import Work

F32 = 4  # bytes


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the benchmark.

    nbytes: bytes read and written by a perfect implementation, for rows bound by memory; else 0.
    random: the callable draws random numbers, so compilers with a stream of their own differ.
    device: where the case is built, if not on the CPU.
    """

    name: str
    title: str
    group: str
    build: Callable[[], Work]
    nbytes: int = 0
    random: bool = False
    device: str = ""


class SeedMLP(torch.nn.Module):
    """The article's benchmark with its weights as parameters: 4 x (linear, relu), then softmax."""

    def __init__(self, width: int = 512, layers: int = 4) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.randn(width, width) * (2 / width) ** 0.5)
            for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for w in self.weights:
            x = torch.relu(F.linear(x, w))
        return torch.softmax(x, -1)


def seed_mlp_inside(x: torch.Tensor) -> torch.Tensor:
    """The article's benchmark as it stands: weights are drawn inside, on every call."""
    for _ in range(4):
        x = F.linear(x, torch.randn(512, 512, device=x.device))
        x = torch.relu(x)
    return torch.softmax(x, dim=-1)


def gelu_chain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(a * 1.5 + b) * torch.sigmoid(b) - a


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def residual_layernorm(
    x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    return F.layer_norm(x + y, (x.shape[-1],), w, b)


def rmsnorm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


class ManyLayers(torch.nn.Module):
    """40 x (Linear 8x8, LayerNorm): 160 parameters and next to no arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        pairs = ((torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)) for _ in range(40))
        self.layers = torch.nn.Sequential(*(layer for pair in pairs for layer in pair))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


class First(torch.nn.Module):
    """A model with positional tensors in and one tensor out: what every compiler can take."""

    def __init__(self, model: Any, names: tuple[str, ...], fixed: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.names = names
        self.fixed = fixed

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        named = dict(zip(self.names, inputs, strict=True))
        return self.model(**named, **self.fixed)[0]  # type: ignore[no-any-return]


def _rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def _cross_entropy() -> Work:
    return Work(F.cross_entropy, (_rand(512, 30000), torch.randint(0, 30000, (512,))))


def _model(name: str) -> Work:
    """A zoo model in its published size; transformers is imported only when one is asked for."""
    zoo = importlib.import_module("torchweld.workbench.models").ZOO
    work = zoo[name]("full")
    inputs = {k: v for k, v in work.kwargs.items() if isinstance(v, torch.Tensor)}
    fixed = {k: v for k, v in work.kwargs.items() if k not in inputs}
    return Work(First(work.fn, tuple(inputs), fixed).eval(), tuple(inputs.values()))


ROWS, COLUMNS = 4096, 1024
PLANE = ROWS * COLUMNS * F32

CASES: tuple[Case, ...] = (
    Case("mlp_inside", "article's MLP 1024x512, weights made inside", "article",
         lambda: Work(seed_mlp_inside, (_rand(1024, 512),)), random=True),
    Case("mlp", "article's MLP 1024x512, weights as parameters", "article",
         lambda: Work(SeedMLP().eval(), (_rand(1024, 512),))),
    Case("gelu_chain", "gelu chain 4096x1024, two inputs", "memory",
         lambda: Work(gelu_chain, (_rand(ROWS, COLUMNS), _rand(ROWS, COLUMNS))), 3 * PLANE),
    Case("softmax", "softmax 4096x1024", "memory",
         lambda: Work(softmax, (_rand(ROWS, COLUMNS),)), 2 * PLANE),
    Case("layernorm", "residual + LayerNorm 4096x1024", "memory",
         lambda: Work(residual_layernorm, (_rand(ROWS, COLUMNS), _rand(ROWS, COLUMNS),
                                           _rand(COLUMNS), _rand(COLUMNS))), 3 * PLANE),
    Case("rmsnorm", "RMSNorm 4096x1024", "memory",
         lambda: Work(rmsnorm, (_rand(ROWS, COLUMNS), _rand(COLUMNS))), 2 * PLANE),
    Case("cross_entropy", "cross entropy 512x30000", "memory", _cross_entropy, 512 * 30000 * F32),
    Case("add_one", "x + 1 on 4 elements", "dispatch", lambda: Work(add_one, (_rand(4),))),
    Case("many_layers", "40 x (Linear 8x8, LayerNorm), 160 parameters", "dispatch",
         lambda: Work(ManyLayers().eval(), (_rand(4, 8),))),
    Case("bert", "BERT base 1x128", "models", partial(_model, "bert")),
    Case("gpt2", "GPT-2 1x128", "models", partial(_model, "gpt2")),
    Case("llama", "Llama-shaped, 4 layers of 1024, 1x128", "models", partial(_model, "llama")),
    Case("vit", "ViT base 1x224x224", "models", partial(_model, "vit")),
    Case("resnet50", "ResNet-50 1x224x224", "models", partial(_model, "resnet")),
    Case("convnext", "ConvNeXt tiny 1x224x224", "models", partial(_model, "convnext")),
)  # fmt: skip

BY_NAME: dict[str, Case] = {case.name: case for case in CASES}

SUITES: dict[str, tuple[str, ...]] = {
    "demo": ("mlp_inside", "mlp", "bert"),
    "micro": tuple(c.name for c in CASES if c.group != "models"),
    "models": tuple(c.name for c in CASES if c.group == "models"),
    "all": tuple(c.name for c in CASES),
}


def to_device(work: Work, device: str) -> Work:
    """The same work with its module and tensors on `device`."""

    def move(value: Any) -> Any:
        if type(value) is tuple:
            return tuple(map(move, value))
        if type(value) is dict:
            return {k: move(v) for k, v in value.items()}
        return value.to(device) if isinstance(value, (torch.Tensor, torch.nn.Module)) else value

    return replace(work, **{f.name: move(getattr(work, f.name)) for f in fields(work) if f.init})
