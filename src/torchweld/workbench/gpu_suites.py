"""The benchmark's cases on a GPU. They are built under `torch.device`: nothing is copied there.

Sizes are those of the models as they are served: bf16, several sequences or images at a time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from torchweld.workbench.suites import (
    Case,
    First,
    ManyLayers,
    SeedMLP,
    add_one,
    gelu_chain,
    residual_layernorm,
    rmsnorm,
    seed_mlp_inside,
    softmax,
)
from torchweld.workbench.work import Work

BF16 = torch.bfloat16
ROWS, COLUMNS = 16384, 8192
PLANE = ROWS * COLUMNS * 2  # bytes
VOCABULARY, TOKENS = 50257, 8192


def _randn(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype)


def cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.float(), target)


def column_sum_of_squares(x: torch.Tensor) -> torch.Tensor:
    return x.float().square().sum(0)


def _mlp(dtype: torch.dtype) -> Work:
    return Work(SeedMLP().to(dtype).eval(), (_randn(1024, 512, dtype=dtype),))


def _models() -> Any:
    return importlib.import_module("torchweld.workbench.models")


def _zoo(name: str, **changes: Any) -> Work:
    """A model in bf16 with positional tensors in and its first output out."""
    work = _models().served(name, **changes)
    inputs = {k: v for k, v in work.kwargs.items() if isinstance(v, torch.Tensor)}
    fixed = {k: v for k, v in work.kwargs.items() if k not in inputs}
    model = First(work.fn, tuple(inputs), fixed).to(BF16).eval()
    return Work(model, tuple(v.to(BF16) if v.is_floating_point() else v for v in inputs.values()))


def _decode() -> Work:
    return _models().decode()  # type: ignore[no-any-return]


def _many_layers() -> Work:
    return Work(ManyLayers().eval(), (_randn(4, 8, dtype=torch.float32),))


def _two_planes() -> tuple[torch.Tensor, torch.Tensor]:
    return _randn(ROWS, COLUMNS), _randn(ROWS, COLUMNS)


def _case(name: str, title: str, group: str, build: Callable[[], Work], nbytes: int = 0,
          random: bool = False) -> Case:  # fmt: skip
    return Case(f"gpu_{name}", title, group, build, nbytes, random, device="cuda")


GPU_CASES: tuple[Case, ...] = (
    _case("mlp", "article's MLP 1024x512, bf16", "article", partial(_mlp, BF16)),
    _case("mlp_f32", "article's MLP 1024x512, f32", "article", partial(_mlp, torch.float32)),
    _case("mlp_inside", "article's MLP, weights made inside, f32", "article",
          lambda: Work(seed_mlp_inside, (_randn(1024, 512, dtype=torch.float32),)), random=True),
    _case("add_one", "x + 1 on 4 elements", "dispatch", lambda: Work(add_one, (_randn(4),))),
    _case("many_layers", "40 x (Linear 8x8, LayerNorm), 160 parameters", "dispatch", _many_layers),
    _case("gelu_chain", "gelu chain 16384x8192, two inputs", "memory",
          lambda: Work(gelu_chain, _two_planes()), 3 * PLANE),
    _case("softmax", "softmax 16384x8192", "memory",
          lambda: Work(softmax, (_randn(ROWS, COLUMNS),)), 2 * PLANE),
    _case("rmsnorm", "RMSNorm 16384x8192", "memory",
          lambda: Work(rmsnorm, (_randn(ROWS, COLUMNS), _randn(COLUMNS))), 2 * PLANE),
    _case("layernorm", "residual + LayerNorm 16384x8192", "memory",
          lambda: Work(residual_layernorm, (*_two_planes(), _randn(COLUMNS), _randn(COLUMNS))),
          3 * PLANE),
    _case("cross_entropy", "cross entropy 8192x50257, bf16 to f32", "memory",
          lambda: Work(cross_entropy, (_randn(TOKENS, VOCABULARY),
                                       torch.randint(0, VOCABULARY, (TOKENS,)))),
          TOKENS * VOCABULARY * 2),
    _case("column_sum", "column sum of squares 16384x8192", "memory",
          lambda: Work(column_sum_of_squares, (_randn(ROWS, COLUMNS),)), PLANE),
    _case("resnet50", "ResNet-50 8x224x224", "models", partial(_zoo, "resnet")),
    _case("vit", "ViT base 8x224x224", "models", partial(_zoo, "vit")),
    _case("bert", "BERT base 8x128", "models", partial(_zoo, "bert")),
    _case("gpt2", "GPT-2 4x256", "models", partial(_zoo, "gpt2")),
    _case("llama", "Llama-shaped, 8 layers of 2048, 1x512", "models", partial(_zoo, "llama")),
    _case("decode", "Llama-shaped, 8 layers, one token, static cache of 1024", "models", _decode),
    _case("gpt2_48", "GPT-2 with 48 layers, 1x128", "compile", partial(_zoo, "gpt2", layers=48)),
    _case("gpt2_12", "GPT-2 with 12 layers, 1x128", "compile", partial(_zoo, "gpt2", layers=12)),
)  # fmt: skip
