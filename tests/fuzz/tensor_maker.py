"""Random programs over tensors of all kinds, one statement at a time: `make_program(seed)`.

Each statement is run by eager while the program is made, on the arguments of all calls; one that
eager refuses, or after which a number is not finite, is thrown away. So templates are not typed.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint  # what programs call
from tests.fuzz import tensor_lines as lines
from tests.fuzz import tensor_more as more
from tests.fuzz import tensor_rare as rare
from tests.fuzz.tensor_inputs import NAMES, Traits, arguments
from torch import Tensor

GLOBALS = {"torch": torch, "F": F}
HALVES = (torch.bfloat16, torch.float16)
# how many of 100 statements are of a kind
KINDS = {"pointwise": 24, "reduction": 12, "view": 18, "picked": 10, "product": 6, "image": 8,
         "random": 2, "write": 12, "store": 7, "out": 4, "form": 4}  # fmt: skip
TABLES = {"pointwise": "POINTWISE", "reduction": "REDUCTIONS", "view": "VIEWS", "picked": "PICKED",
          "product": "PRODUCTS", "image": "IMAGES", "random": "RANDOM", "store": "STORES",
          "out": "OUTS", "form": "FORMS", "exact": "EXACT", "write": "WRITES"}  # fmt: skip
STATEMENTS = ("store", "out", "form")
SIZES = ("2", "3", "k", "a.shape[0]", "d.shape[0]", "a.shape[0] + 1", "c.shape[2]",
         "c.shape[0] * 2")  # fmt: skip
SCALARS = ("s", "0.5", "2.0", "k", "1", "s * 2", "-1.5", "0")
DTYPES = ("torch.float32", "torch.float64", "torch.int64", "torch.float32")
CONTEXTS = ("with torch.autocast('cpu', dtype=torch.bfloat16):", "with torch.no_grad():",
            "with torch.enable_grad():", "if k > 0:", "with torch.no_grad():",
            "for _ in range(2):")  # fmt: skip
BLOCKS = frozenset((*CONTEXTS, *more.CONTEXTS, *rare.CONTEXTS))
# numbers of a tensor that the program gives back
FACTS = ("{x}.shape", "{x}.stride()", "{x}.is_contiguous()", "{x}.storage_offset()", "{x}.dtype",
         "{x}.requires_grad", "{x} is a", "{x}.numel() + k", "{x}.dim()", "{x}.shape[0] * 2 - 1",
         "{x}.is_contiguous(memory_format=torch.channels_last)", "{x}.is_leaf")  # fmt: skip
LARGEST = 1e4
PRODUCT_INTO = re.compile(r"torch\.(?:mm|matmul)\((.*), out=(\w+)\)")
TRIES = 40


@dataclass
class Maker:
    """A program that grows. envs: the variables after it, of each call. block: its context."""

    seed: int
    traits: Traits
    dice: Random
    text: list[str] = field(default_factory=list)
    envs: list[dict[str, Any]] = field(default_factory=list)
    block: str = ""
    count: int = 0
    exact: bool = True
    bound: list[str] = field(default_factory=lambda: ["a", "b", "c", "d"])

    # ------------------------------------------------------------ text
    def name(self, kind: str = "") -> str:
        """A tensor: of images, or any, later ones more often."""
        if kind == "image":
            found = [v for v in self.bound if self.envs[0][v].dim() == 4]
            return self.dice.choice(found or ["c"])
        late = self.bound[-3:] if self.dice.random() < 0.4 else self.bound
        return self.dice.choice(late)

    def expression(self, depth: int = 1, kind: str = "") -> str:
        kind = kind or self.dice.choices(list(KINDS)[:7], list(KINDS.values())[:7])[0]
        exact = kind == "pointwise" and self.exact and self.dice.random() < 0.4
        return self.filled(self.line("exact" if exact else kind), depth, kind)

    def line(self, kind: str) -> str:
        """A template; in wide programs more often one of the further ones, or of the rare ones."""
        table = more if self.traits.wide and self.dice.random() < 0.6 else lines
        if self.traits.rare and self.dice.random() < 0.6:
            table = rare
        found: str = self.dice.choice(getattr(table, TABLES[kind]))
        return found

    def context(self) -> str:
        wide = self.traits.wide and self.dice.random() < 0.5
        further = rare.CONTEXTS if self.traits.rare else more.CONTEXTS
        return self.dice.choice(further if wide else CONTEXTS)

    def filled(self, template: str, depth: int = 1, kind: str = "") -> str:
        """The template with all its places filled; a place that occurs twice gets the same."""
        chosen: dict[str, str] = {}

        def place(found: re.Match[str]) -> str:
            key = found[1]
            if key not in chosen or key in "ms":
                chosen[key] = self.choice(key, depth, kind)
            return chosen[key]

        return re.sub(r"\{([xyzvonemstE])\}", place, template)

    def choice(self, key: str, depth: int, kind: str) -> str:
        dice = self.dice
        if key in "xyz":
            if depth and dice.random() < 0.2:
                return f"({self.expression(depth - 1)})"
            return self.name(kind if key == "x" else "")
        plain = {"v": self.name, "n": lambda: str(dice.randrange(1, 4)),
                 "e": lambda: dice.choice(["-1", "-1", "0", "0", "1"]),
                 "m": lambda: dice.choice(SIZES), "s": lambda: dice.choice(SCALARS),
                 "t": lambda: dice.choice(DTYPES), "o": lambda: f"t{self.count}",
                 "E": lambda: self.expression(depth)}  # fmt: skip
        return plain[key]()

    def candidate(self) -> str:
        kind = self.dice.choices(list(KINDS), list(KINDS.values()))[0]
        if kind == "write":
            place = self.dice.choice(lines.PLACES)
            return self.filled(place + self.line("write"))
        if kind in STATEMENTS:
            return self.filled(self.line(kind))
        return f"t{self.count} = {self.expression(kind=kind)}"

    # ------------------------------------------------------------ running
    def restart(self) -> None:
        """Run what there is on fresh arguments."""
        self.envs = []
        for call in range(len(self.traits.sizes)):
            args, _ = arguments(self.seed, call, self.traits)
            self.envs.append(dict(zip(NAMES, args, strict=True)))
        for text in self.text:
            self.fits(text)

    def fits(self, text: str) -> bool:
        """Whether eager runs a statement in all calls, and its numbers stay finite."""
        code = compile(text, "<statement>", "exec")
        product = PRODUCT_INTO.search(text)
        for env in self.envs:
            if product and reads_what_it_writes(product, env):
                return False
            try:
                exec(code, GLOBALS, env)
            except Exception:
                return False
            if not all(map(is_tame, env.values())):
                return False
        return True

    def grow(self) -> None:
        """One more statement, if one is found."""
        self.count += 1
        for _ in range(TRIES):
            text = self.candidate()
            if self.dice.random() < 0.15:
                self.block = self.context() if not self.block else ""
            body = text.replace("\n", "\n    ")
            text = f"{self.block}\n    {body}" if self.block else text
            if "autocast" in text and not self.traits.dtypes[0].is_floating_point:
                continue
            if self.fits(text):
                self.text.append(text)
                break
            self.restart()
        env = self.envs[0]
        self.bound = [k for k, v in env.items() if isinstance(v, Tensor) and k != "i"
                      and all(isinstance(e.get(k), Tensor) for e in self.envs)]  # fmt: skip
        made = [v for k, v in env.items() if isinstance(v, Tensor)]
        self.exact = self.exact and not any(v.dtype in HALVES for v in made)

    def returned(self) -> str:
        own = [v for v in self.bound if v[0] == "t"] or self.bound
        names = self.dice.sample(own, min(len(own), self.dice.randrange(1, 5)))
        if self.dice.random() < 0.3:
            names.append(self.name())
        names += [self.filled(self.dice.choice(FACTS), 0) for _ in range(self.dice.randrange(2))]
        return ", ".join(names)


def reads_what_it_writes(product: re.Match[str], env: dict[str, Any]) -> bool:
    """Whether a product is written to memory that it reads: eager's result depends on its order."""
    read = [env[name] for name in re.findall(r"\w+", product[1]) if name in env]
    into = env.get(product[2])
    return isinstance(into, Tensor) and any(
        isinstance(x, Tensor) and x.untyped_storage()._cdata == into.untyped_storage()._cdata
        for x in read)  # fmt: skip


def is_tame(x: Any) -> bool:
    """Whether the numbers of a value are finite and small."""
    if not isinstance(x, Tensor) or not (x.is_floating_point() or x.is_complex()) or not x.numel():
        return not isinstance(x, Tensor) or x.numel() < 1 << 16
    return x.numel() < 1 << 16 and bool(x.detach().abs().max() < LARGEST)


def make_program(seed: int, traits: Traits) -> str:
    """The source of a seed's program."""
    m = Maker(seed, traits, Random(seed), exact=traits.exact)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        m.restart()
        for _ in range(m.dice.randrange(2, 9)):
            m.grow()
    body: list[str] = []
    block = ""
    for text in m.text:
        head, _, rest = text.partition("\n")
        if head in BLOCKS and head == block:
            text = rest
        block = head if head in BLOCKS else ""
        body += text.split("\n")
    body.append(f"return {m.returned()}")
    return f"def f({', '.join(NAMES)}):\n" + "".join(f"    {line}\n" for line in body)
