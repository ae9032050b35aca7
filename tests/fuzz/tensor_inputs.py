"""The arguments of random tensor programs: sizes, dtypes, layouts, aliases, what needs gradients.

A program is `f(a, b, c, d, i, k, s)`: two matrices [r, q], images [n, m, h, w], a vector [q],
indices of rows [r], an int and a float. `Traits.drawn(seed)` says what a seed's arguments are like;
`arguments(seed, call)` makes them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

NAMES = ("a", "b", "c", "d", "i", "k", "s")
FIXED_CALLS, VARYING_CALLS = 3, 5
FLOATS = (torch.float32,) * 14 + (torch.float64, torch.float64) + (
    torch.bfloat16, torch.bfloat16, torch.float16)  # fmt: skip
OTHERS = (torch.int64, torch.int64, torch.bool, torch.bool, torch.int32, torch.uint8, torch.int16,
          torch.complex64, torch.float32, torch.bfloat16)  # fmt: skip
# how many of each there are if they do not vary, and if they do
FEW = {"r": (4, 4, 4, 5, 3, 8, 1, 17), "q": (3, 4, 4, 6, 8, 1, 16), "n": (1, 2, 2, 3),
       "m": (1, 2, 3, 4), "h": (4, 5, 6, 8), "w": (4, 6, 7)}  # fmt: skip
MANY = {"r": (2, 3, 4, 5, 6, 7, 9, 12, 16), "q": (2, 3, 4, 5, 6, 8, 9), "n": (2, 3, 4, 5, 6),
        "m": (1, 2, 3), "h": (4, 5, 6, 7, 8, 9, 11), "w": (4, 5, 6, 7, 8, 10)}  # fmt: skip

Make = Callable[[list[int]], Tensor]


def _transposed(shape: list[int], make: Make) -> Tensor:
    return make(shape[::-1]).permute(*reversed(range(len(shape))))


def _sliced(shape: list[int], make: Make) -> Tensor:
    return make([2 * n + 1 for n in shape])[(slice(1, None, 2),) * len(shape)]


def _expanded(shape: list[int], make: Make) -> Tensor:
    return make([1, *shape[1:]]).expand(shape)


def _overlapping(shape: list[int], make: Make) -> Tensor:
    return make([sum(shape) + 1]).as_strided(shape, (1,) * len(shape))


def _channels_last(shape: list[int], make: Make) -> Tensor:
    if len(shape) != 4:
        return _transposed(shape, make)
    n, m, h, w = shape
    return make([n, h, w, m]).permute(0, 3, 1, 2)


LAYOUTS: dict[str, Callable[[list[int], Make], Tensor]] = {
    "plain": lambda shape, make: make(shape), "transposed": _transposed, "sliced": _sliced,
    "offset": lambda shape, make: make([shape[0] + 1, *shape[1:]])[1:],
    "rows": lambda shape, make: make([2 * shape[0], *shape[1:]])[::2],
    "inner": lambda shape, make: make([*shape, 2])[..., 1],
    "expanded": _expanded, "overlapping": _overlapping, "channels last": _channels_last,
}  # fmt: skip
DRAWN = ("plain",) * 9 + ("channels last",) * 3 + tuple(LAYOUTS)
# what b is if it shares its memory with a
ALIASES: dict[str, Callable[[Tensor], Tensor]] = {
    "same": lambda a: a, "detached": lambda a: a.detach(), "rows": lambda a: a[1:],
    "columns": lambda a: a[:, ::2], "turned": lambda a: a.t(), "again": lambda a: a.view(a.shape),
    "row": lambda a: a[0],
}  # fmt: skip


@dataclass(frozen=True)
class Traits:
    """What all calls of a seed's program have in common, and what of them changes."""

    dtypes: tuple[torch.dtype, ...]  # of a, b, c and d
    layouts: tuple[str, ...]
    alias: str  # of b, "" if it has memory of its own
    trained: tuple[int, ...]
    leaves: bool  # what is trained are leaves of the autograd graph
    sizes: tuple[dict[str, int], ...]  # of each call
    changing: bool  # layouts and aliases are others in each call
    numbers: bool  # so are numbers
    wide: bool = False  # lines of tensor_more are among those of the program
    twice: bool = False  # what is differentiated is the square of the gradients
    rare: bool = False  # lines of tensor_rare are among those of the program

    @property
    def varying(self) -> bool:
        return len(self.sizes) == VARYING_CALLS

    @property
    def exact(self) -> bool:
        """Whether no floats of few digits are among the arguments."""
        return all(t not in (torch.bfloat16, torch.float16) for t in self.dtypes)

    @classmethod
    def drawn(cls, seed: int, varying: bool | None = None, wide: bool = False,
              rare: bool = False) -> Traits:  # fmt: skip
        """varying: whether sizes differ between the calls; drawn too if None."""
        dice = random.Random(seed * 7919 + 1)
        a = dice.choice((*FLOATS, torch.complex64))
        c = a if a.is_floating_point and dice.random() < 0.8 else torch.float32
        dtypes = (a, a if dice.random() < 0.7 else dice.choice(OTHERS), c, c)
        layouts = tuple(dice.choice(DRAWN) for _ in dtypes)
        alias = dice.choice(list(ALIASES)) if dice.random() < 0.15 else ""
        trained = dice.choice([(), (), (0,), (0, 1), (2, 3), (0, 1, 2, 3), (1, 3)])
        differ = dice.random() < 0.5
        sizes = _varying(dice) if (differ if varying is None else varying) else _fixed(dice)
        return cls(dtypes, layouts, alias, trained, dice.random() < 0.3, sizes,
                   dice.random() < 0.15, dice.random() < 0.3, wide,
                   wide and dice.random() < 0.15, rare)  # fmt: skip


def _fixed(dice: random.Random) -> tuple[dict[str, int], ...]:
    own = {k: dice.choice(v) for k, v in FEW.items()}
    if dice.random() < 0.06:
        own[dice.choice("rqn")] = 0
    return (own,) * FIXED_CALLS


def _varying(dice: random.Random) -> tuple[dict[str, int], ...]:
    own = {k: dice.choice(v) for k, v in MANY.items()}
    calls = [dict(own) for _ in range(VARYING_CALLS)]
    for k in dice.choice(["r", "r", "q", "rq", "n", "h", "hw", "nhw", "rqnhw", "rnw"]):
        for call, n in zip(calls, dice.sample(MANY[k], VARYING_CALLS), strict=True):
            call[k] = n
        if dice.random() < 0.25:
            dice.choice(calls)[k] = 1 if k in "rqn" and dice.random() < 0.7 else MANY[k][0]
    if dice.random() < 0.1:
        dice.choice(calls)[dice.choice("rn")] = 0
    return tuple(calls)


def _values(dtype: torch.dtype, own: torch.Generator, trained: list[Tensor] | None) -> Make:
    """What makes the memory of an argument. trained: where its leaf is kept."""

    def make(shape: list[int]) -> Tensor:
        if dtype is torch.bool:
            return torch.rand(shape, generator=own) > 0.5
        if not (dtype.is_floating_point or dtype.is_complex):
            least = 0 if dtype is torch.uint8 else -3
            return torch.randint(least, 6, shape, generator=own).to(dtype)
        kind = torch.complex64 if dtype.is_complex else torch.float32
        made = torch.randn(shape, generator=own, dtype=kind).to(dtype)
        if trained is None:
            return made
        trained.append(made.requires_grad_())
        return made

    return make


def arguments(seed: int, call: int, traits: Traits) -> tuple[list[Any], list[Tensor]]:
    """Fresh arguments of a call, and the leaves whose gradients are asked for."""
    dice = random.Random(seed * 31 + call)
    own = torch.Generator().manual_seed(seed * 31 + call)
    z = traits.sizes[call]
    shapes = [[z["r"], z["q"]], [z["r"], z["q"]], [z["n"], z["m"], z["h"], z["w"]], [z["q"]]]
    made: list[Any] = []
    leaves: list[Tensor] = []
    for at, shape in enumerate(shapes):
        layout = dice.choice(DRAWN) if traits.changing else traits.layouts[at]
        kept: list[Tensor] | None = [] if at in traits.trained else None
        values = _values(traits.dtypes[at], own, kept)
        made.append(_argument(shape, layout, values, traits.leaves))
        leaves += kept or []
    alias = traits.alias
    if traits.changing and alias:
        alias = dice.choice(["", *ALIASES])
    if alias and made[0].numel():
        made[1] = ALIASES[alias](made[0])
    rows = torch.randint(0, max(z["r"], 1), (z["r"],), generator=own)
    numbers = random.Random(seed * 31 + (call if traits.numbers else 0))
    return [*made, rows, numbers.randrange(1, 5), numbers.choice([0.5, 1.5, -0.25])], leaves


def _argument(shape: list[int], layout: str, values: Make, leaves: bool) -> Tensor:
    if leaves and layout == "plain":
        return values(shape)

    def copied(wanted: list[int]) -> Tensor:
        leaf = values(wanted)
        return leaf.clone() if leaf.requires_grad else leaf  # it may be written to

    return LAYOUTS[layout](shape, copied)
