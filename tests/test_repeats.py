"""Deep models: a few of their equal layers are compiled, the Program is that of all of them.

Everything runs under verify, which also compiles the whole graph and compares the two Programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

import torchweld
from torchweld.base import config
from torchweld.base.errors import InternalError
from torchweld.base.events import recent
from torchweld.ir import lengthen
from torchweld.pipeline import STATISTICS


@pytest.fixture(autouse=True)
def verified() -> Iterator[None]:
    torchweld.reset()
    torch.manual_seed(1)
    with config.override(verify=True, mode="strict"):
        yield
    torchweld.reset()


class Block(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)
        self.scale = scale

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x)))) * self.scale * mask


class Stack(nn.Module):
    """hidden: which layers' results are returned as well. skip: all layers read the first."""

    def __init__(self, depth: int = 10, hidden: tuple[int, ...] = (), skip: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(16, 4)
        self.hidden = hidden
        self.skip = skip

    def forward(self, x: Tensor) -> Any:
        mask = (x.sum(-1, keepdim=True) > 0).to(x.dtype)
        kept, first = [], None
        for i, block in enumerate(self.blocks):
            x = block(x, mask)
            if self.skip:
                first = x if first is None else first
                x = x + first
            if i in self.hidden:
                kept.append(x)
        return (self.head(x), *kept) if kept else self.head(x)


def outcome(model: nn.Module, *args: Any, **options: Any) -> str:
    """What became of the repeats of a model, which gives eager's results."""
    model.eval()
    seen = len(recent())
    with torch.no_grad():
        expected = model(*args, **options)
        got = torchweld.compile(model, fullgraph=True)(*args, **options)
    for a, b in zip(_tensors(expected), _tensors(got), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
    assert STATISTICS.internal_errors == 0 and STATISTICS.aten_graphs == 0
    found = [str(e.fields["outcome"]) for e in recent()[seen:] if e.name == "repeats"]
    return found[-1] if found else "no repeats"


def _tensors(x: Any) -> list[Tensor]:
    if isinstance(x, Tensor):
        return [x]
    values = x.values() if isinstance(x, dict) else x if isinstance(x, (tuple, list)) else ()
    return [t for v in values for t in _tensors(v)]


IDS = torch.arange(16).reshape(2, 8) % 50
SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 8, "num_attention_heads": 2,
                         "intermediate_size": 64, "vocab_size": 50}  # fmt: skip


@pytest.mark.parametrize("depth", [10, 11, 30])
def test_of_many_equal_layers_a_few_are_compiled(depth: int) -> None:
    assert few(outcome(Stack(depth), torch.randn(3, 16)))


def few(said: str) -> bool:
    return re.fullmatch("compiled [56] of [0-9]+ equal stretches", said) is not None


@pytest.mark.parametrize("make, args", [
    (lambda: transformers.BertModel(transformers.BertConfig(**SMALL)), (IDS,)),
    (lambda: transformers.LlamaModel(transformers.LlamaConfig(
        **SMALL, num_key_value_heads=1, use_cache=False)), (IDS,)),
    (lambda: transformers.T5EncoderModel(transformers.T5Config(
        vocab_size=50, d_model=32, d_kv=16, d_ff=64, num_layers=9, num_heads=2)), (IDS,)),
    (lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=9, n_embd=32, n_head=2, vocab_size=50, n_positions=16, bos_token_id=1,
        eos_token_id=1, use_cache=False)), (IDS,)),
    (lambda: transformers.ViTModel(transformers.ViTConfig(
        image_size=32, patch_size=8, **{k: v for k, v in SMALL.items() if k != "vocab_size"})),
     (torch.randn(2, 3, 32, 32),)),
    (lambda: transformers.Gemma2Model(transformers.Gemma2Config(
        **{**SMALL, "num_hidden_layers": 16}, num_key_value_heads=1, head_dim=16,
        use_cache=False)), (IDS,)),
], ids=["bert", "llama", "t5", "gpt2", "vit", "gemma2"])  # fmt: skip
def test_transformers(make: Any, args: tuple[Any, ...]) -> None:
    assert few(outcome(make(), *args))


def test_another_seed_of_parameters_gives_other_results() -> None:
    """That layers do not read one another's parameters."""
    model = Stack().eval()
    x = torch.randn(3, 16)
    with torch.no_grad():
        compiled = torchweld.compile(model)
        compiled(x)
        for block in model.blocks:
            before = model(x)
            block.down.weight.mul_(3.0)
            assert not torch.equal(model(x), before)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def changed(change: Any, **options: Any) -> Stack:
    model = Stack(**options)
    change(model)
    return model


def _scale(m: Stack) -> None:
    m.blocks[4].scale = 0.5


def _sign(m: Stack) -> None:
    for b in m.blocks:
        b.scale = 0.0
    m.blocks[5].scale = -0.0


def _tie(m: Stack) -> None:
    m.blocks[6].up.weight = m.blocks[3].up.weight


def _tie_all(m: Stack) -> None:
    for b in m.blocks:
        b.up.weight = m.blocks[0].up.weight


def _dtype(m: Stack) -> None:
    m.blocks[4].norm = nn.Identity()


@pytest.mark.parametrize("model, expected", [
    (changed(_scale), "no repeats"),
    (changed(_sign), "no repeats"),
    (changed(_tie), "no repeats"),
    (changed(_dtype), "no repeats"),
    (changed(_tie_all), "few"),
    (Stack(hidden=(4,)), "no repeats"),
    (Stack(hidden=(0, 3, 6)), "no repeats"),
    (Stack(skip=True, depth=11), "few"),
    (Stack(depth=6), "no repeats"),
], ids=[
    "constant", "sign", "tied", "missing", "all-tied", "middle", "some", "skip", "few",
])  # fmt: skip
def test_layers_that_are_not_quite_equal(model: Stack, expected: str) -> None:
    said = outcome(model, torch.randn(3, 16))
    assert few(said) if expected == "few" else said == expected


def test_every_layer_draws_its_own_numbers() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(9))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = F.dropout(layer(x).relu(), 0.4, training=True) + x * 0.5
            return x

    model, x = Noisy(), torch.randn(5, 16)
    with torch.no_grad():
        torch.manual_seed(3)
        expected, after = model(x), torch.rand(2)
        torch.manual_seed(3)
        got = torchweld.compile(model)(x)
        assert torch.equal(torch.rand(2), after)
    torch.testing.assert_close(got, expected)


def test_buffers_that_layers_write_are_written() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.BatchNorm1d(16) for _ in range(9))

        def forward(self, x: Tensor) -> Tensor:
            for norm in self.norms:
                x = norm(x).sin() + x
            return x

    torch.manual_seed(0)
    model, twin = Counting(), Counting()
    x = torch.randn(8, 16)
    with torch.no_grad():
        compiled = torchweld.compile(model)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), twin(x), rtol=1e-4, atol=1e-5)
    for a, b in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_verify_notices_a_program_that_does_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    good = lengthen._Writer.program

    def forgets_a_stretch(self: Any) -> Any:
        made = good(self)
        return replace(made, steps=made.steps[:-4] + made.steps[-3:])

    monkeypatch.setattr(lengthen._Writer, "program", forgets_a_stretch)
    with pytest.raises(InternalError, match="lengthened"), torch.no_grad():
        torchweld.compile(Stack().eval())(torch.randn(3, 16))


# ---------------------------------------------------------------- sizes that vary
@pytest.mark.parametrize("weights", [False, True])
def test_layers_of_a_graph_whose_sizes_vary_are_compiled_once(weights: bool) -> None:
    model = Stack().eval()
    seen = len(recent())
    compiled = torchweld.compile(model, fullgraph=True, dynamic=True)
    for n in (5, 9, 30):
        x = torch.randn(2, n, 16, requires_grad=weights)
        with torch.set_grad_enabled(weights):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    found = [str(e.fields["outcome"]) for e in recent()[seen:] if e.name == "repeats"]
    assert found[0].startswith("compiled 5 of ")
    assert STATISTICS.captures == 1 and STATISTICS.aten_graphs == 0


def test_layers_that_read_sizes_of_their_own_are_compiled_whole() -> None:
    def fn(x: Tensor, steps: list[Tensor]) -> Tensor:
        for step in steps:
            x = torch.tanh(x * 2 + step.sum(0)) - x.mean(0)
        return x

    compiled = torchweld.compile(fn, fullgraph=True, dynamic=True)
    for lengths in ((3, 4, 5, 6, 7, 8, 9, 10), (5, 5, 6, 3, 9, 2, 4, 7)):
        args = torch.randn(4, 8), [torch.randn(n, 8) for n in lengths]
        torch.testing.assert_close(compiled(*args), fn(*args))
    assert STATISTICS.captures == 1 and STATISTICS.aten_graphs == 0
