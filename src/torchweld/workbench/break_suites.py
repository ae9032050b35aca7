"""Models that are broken in the middle, next to the same ones whole: what a graph break costs."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from torchweld.workbench.suites import Case
from torchweld.workbench.work import Work

LAYERS = 12


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(self.before(x)).view(batch, tokens, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        y: Tensor = x + self.down(nn.functional.gelu(self.up(self.between(x))))
        return y


class Layers(nn.Module):
    """Twelve blocks; `broken` looks at the data behind the sixth, which no compiler can capture."""

    def __init__(self, width: int, heads: int, broken: bool = True) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(LAYERS))
        self.broken = broken

    def forward(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            if self.broken and i == LAYERS // 2 and not torch.isfinite(x[0, 0, 0]):
                return x
            x = block(x)
        return x


def _layers(width: int, heads: int, tokens: int) -> Work:
    return Work(Layers(width, heads).eval(), (torch.randn(1, tokens, width),))


BREAK_CASES: tuple[Case, ...] = (
    Case("break_small", "12 layers of 64, 1x16, a break in the middle", "breaks",
         partial(_layers, 64, 4, 16)),
    Case("break_gpt2", "12 layers of 768, 1x128, a break in the middle", "breaks",
         partial(_layers, 768, 12, 128)),
)  # fmt: skip
