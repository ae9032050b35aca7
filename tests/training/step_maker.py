"""Random whole training steps: a model, a loss, an optimizer, and what is done around them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

STEPS, ROWS, WIDTH, CLASSES = 5, 12, 8, 4


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.narrow, self.again = nn.Linear(2 * WIDTH, WIDTH), False

    def inner(self, x: Tensor) -> Tensor:
        return self.narrow(F.gelu(self.wide(self.norm(x))))

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(self.inner, x, use_reentrant=False) if self.again else self.inner(x)
        return x + y


class Checkpointed(Residual):
    def __init__(self) -> None:
        super().__init__()
        self.again = True


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.all, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.all(x.view(3, ROWS // 3, WIDTH)[:, :, :]).chunk(3, -1) if (
            x.shape[0] == ROWS) else self.all(x[None]).chunk(3, -1)  # fmt: skip
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(out).reshape(x.shape)


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.out = nn.Linear(4, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x.view(-1, 1, 2, WIDTH // 2)))
        return self.out(F.relu(y).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[:, None])[0][:, 0]


class Tied(nn.Module):
    """The same weight twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight) @ self.weight.t()


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "residual": Residual, "checkpointed": Checkpointed, "attention": Attention, "images": Images,
    "gru": Recurrent, "tied": Tied, "linear": lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH), "dropout": lambda: nn.Dropout(0.2),
    "silu": nn.SiLU, "group norm": lambda: nn.GroupNorm(2, WIDTH), "prelu": nn.PReLU,
}  # fmt: skip
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": lambda out, y: F.mse_loss(out, F.one_hot(y, CLASSES).to(out.dtype)),
    "cross entropy": lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1),
    "smooth l1": lambda out, y: F.smooth_l1_loss(out, F.one_hot(y, CLASSES).to(out.dtype)),
    "logits": lambda out, y: F.binary_cross_entropy_with_logits(
        out, F.one_hot(y, CLASSES).to(out.dtype)),
    "nll": lambda out, y: F.nll_loss(F.log_softmax(out, -1), y, reduction="sum") / len(y),
}  # fmt: skip
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, lr_decay=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
}  # fmt: skip
CLIPS: dict[str, Callable[[list[Any]], Any]] = {
    "none": lambda p: None,
    "norm": lambda p: nn.utils.clip_grad_norm_(p, 0.1),
    "norm, one by one": lambda p: nn.utils.clip_grad_norm_(p, 0.1, foreach=False),
    "largest": lambda p: nn.utils.clip_grad_norm_(p, 0.05, norm_type=float("inf")),
    "value": lambda p: nn.utils.clip_grad_value_(p, 0.01),
}  # fmt: skip
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "none": lambda o: None,
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "decay": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
}  # fmt: skip
EXTRAS = ("none", "none", "ema", "hooks", "penalty", "frozen", "l2")
AMP = ("none", "none", "bf16", "scaler")


@dataclass(frozen=True)
class Recipe:
    """What a step is made of; its text is what a failure prints."""

    blocks: tuple[str, ...]
    loss: str
    optimizer: str
    clip: str
    schedule: str
    extra: str
    amp: str
    parts: int
    keep: bool  # gradients are zeroed, not dropped

    @classmethod
    def drawn(cls, seed: int) -> Recipe:
        r = random.Random(seed)
        blocks = tuple(r.choice(list(BLOCKS)) for _ in range(r.randint(1, 3)))
        loss, optimizer, clip, schedule = (
            r.choice(list(t)) for t in (LOSSES, OPTIMIZERS, CLIPS, SCHEDULES))  # fmt: skip
        extra, amp, parts = r.choice(EXTRAS), r.choice(AMP), r.choice((1, 1, 2, 3))
        if amp != "none" and optimizer == "rmsprop":
            optimizer = "adam"  # the other one's first steps are ten times the learning rate
        return cls(blocks, loss, optimizer, clip, schedule, extra, amp, parts, r.random() < 0.3)

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.amp == "none" else torch.float32


def bounded(p: Tensor) -> None:
    assert p.grad is not None
    p.grad.clamp_(-1, 1)


class Made:
    """A step with all that it changes."""

    def __init__(self, recipe: Recipe) -> None:
        torch.manual_seed(1)
        self.recipe = recipe
        blocks = [BLOCKS[name]() for name in recipe.blocks]
        head = nn.Linear(WIDTH, CLASSES)
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *blocks, head).to(recipe.dtype)
        if recipe.extra == "frozen":
            self.model[0].requires_grad_(False)
        self.params = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = OPTIMIZERS[recipe.optimizer](self.params)
        self.schedule = SCHEDULES[recipe.schedule](self.optimizer)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2,
                                           enabled=recipe.amp == "scaler")  # fmt: skip
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        if recipe.extra == "hooks":
            for p in self.params:
                p.register_hook(lambda g: g * 0.5)
                p.register_post_accumulate_grad_hook(bounded)

    def part(self, x: Tensor, y: Tensor) -> Tensor:
        recipe = self.recipe
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=recipe.amp != "none"):
            x = x.clone().requires_grad_() if recipe.extra == "penalty" else x
            out = self.model(x)
            loss = LOSSES[recipe.loss](out, y)
        if recipe.extra == "penalty":
            (slope,) = torch.autograd.grad(out.float().sum(), x, create_graph=True)
            loss = loss + slope.square().mean()
        if recipe.extra == "l2":
            loss = loss + 0.01 * sum(p.square().sum() for p in self.params)
        self.scaler.scale(loss / recipe.parts).backward()
        return loss.detach()

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        recipe, losses = self.recipe, []
        self.optimizer.zero_grad(set_to_none=not recipe.keep)
        for own, labels in zip(x.chunk(recipe.parts), y.chunk(recipe.parts), strict=True):
            losses.append(self.part(own, labels))
        if recipe.clip != "none":
            self.scaler.unscale_(self.optimizer)
            CLIPS[recipe.clip](self.params)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.schedule is not None:
            self.schedule.step()
        if recipe.extra == "ema":
            self.average.update_parameters(self.model)
        return torch.stack(losses)

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(), "average": self.average.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "gradients": [p.grad for p in self.params],
        }  # fmt: skip


def batches() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(2)
    return [(torch.randn(ROWS, WIDTH), torch.randint(CLASSES, (ROWS,))) for _ in range(STEPS)]
