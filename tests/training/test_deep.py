"""Deep models: a few of their equal layers go through the stages, forward and backward.

Everything runs under verify, which also compiles the whole graphs and compares the Programs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from training_twin import assert_generated, check_module

import torchweld
from torchweld import programs
from torchweld.base import config
from torchweld.base.events import clear, recent
from torchweld.pipeline import STATISTICS


@pytest.fixture(autouse=True)
def verified() -> Iterator[None]:
    torchweld.reset()
    torch.manual_seed(1)
    clear()
    with config.override(verify=True, mode="strict"):
        yield
    torchweld.reset()


def outcomes() -> list[str]:
    return [str(e.fields["outcome"]) for e in recent("graph") if e.name == "repeats"]


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x))))) * mask


class Stack(nn.Module):
    """frozen: the layer whose weights need no gradient. hidden: its result is returned as well.
    shared: all layers use one more parameter."""

    def __init__(self, depth: int = 9, dropout: float = 0.0, frozen: int | None = None,
                 hidden: int | None = None, shared: bool = False) -> None:  # fmt: skip
        super().__init__()
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(depth))
        self.scale = nn.Parameter(torch.ones(16)) if shared else None
        self.head = nn.Linear(16, 4)
        self.hidden = hidden
        if frozen is not None:
            self.blocks[frozen].requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        mask = (x.sum(-1, keepdim=True) > 0).to(x.dtype)
        kept = []
        for i, block in enumerate(self.blocks):
            x = block(x, mask) * self.scale if self.scale is not None else block(x, mask)
            if i == self.hidden:
                kept.append(x)
        return (self.head(x), x, *kept)


X = torch.randn(3, 5, 16)


def assert_lengthened(count: int | None = None) -> None:
    forward, backward = outcomes()
    assert forward.endswith("equal stretches, to be differentiated")
    assert count is None or f" of {count} " in forward
    assert backward == "backward lengthened"


@pytest.mark.parametrize("depth", [9, 10])
def test_equal_layers(depth):
    assert_generated(check_module(Stack(depth), X))
    assert_lengthened()


def test_parameter_that_all_layers_share():
    assert_generated(check_module(Stack(shared=True), X))
    assert "differentiated" in outcomes()[0]


def test_dropout_in_every_layer():
    assert_generated(check_module(Stack(dropout=0.3), X))
    assert_lengthened()


def test_gradient_of_the_input():
    made = check_module(Stack(), X.clone().requires_grad_())
    assert_generated(made)
    assert_lengthened()


def test_backward_of_one_result_only():
    made = check_module(Stack(), X, loss=lambda outs: outs[1].square().sum())
    assert_generated(made)
    assert_lengthened()


def test_memory_budget():
    with config.override(memory_budget=0.0):
        assert_generated(check_module(Stack(), X))


@pytest.mark.parametrize("special", [{"frozen": 4}, {"hidden": 4}])
def test_layer_in_the_middle_that_is_not_equal(special):
    assert_generated(check_module(Stack(**special), X))
    assert not any("differentiated" in s for s in outcomes())


def test_second_derivative_runs_the_whole_graph():
    x = X.clone().requires_grad_()
    model = Stack()
    found = []
    for run in (torchweld.compile(model), model):
        (g,) = torch.autograd.grad(run(x)[0].sum(), x, create_graph=True)
        found.append(torch.autograd.grad(g.square().sum(), model.blocks[5].up.weight)[0])
    torch.testing.assert_close(*found)


def test_backward_that_cannot_be_lengthened_is_compiled_whole(monkeypatch):
    real, calls = programs.lengthen, []

    def once(program, inputs):
        calls.append(1)
        return real(program, inputs) if len(calls) == 1 else "for the test"

    monkeypatch.setattr(programs, "lengthen", once)
    assert_generated(check_module(Stack(), X))
    assert outcomes()[1] == "backward compiled whole: for the test"


class Loss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.model(ids).logits.flatten(0, -2), target)


SMALL = {"vocab_size": 101, "num_hidden_layers": 9, "hidden_size": 32, "num_attention_heads": 4}
MODELS = {
    "bert": lambda: transformers.BertForMaskedLM(
        transformers.BertConfig(**SMALL, intermediate_size=48)),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **SMALL, num_key_value_heads=2, intermediate_size=48, use_cache=False)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=101, n_layer=9, n_embd=32, n_head=4, n_positions=32, bos_token_id=1,
        eos_token_id=1, use_cache=False)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_transformer(name):
    module = Loss(MODELS[name]()).train()
    ids, target = torch.randint(0, 101, (2, 8)), torch.randint(0, 101, (16,))
    assert_generated(check_module(module, ids, target, rtol=1e-3, atol=1e-4))
    assert outcomes()[0].startswith("compiled 5 of 9")
    # a kernel of Llama's backward computes small values of all layers
    assert outcomes()[1:] == ["backward lengthened"] or name == "llama"
    assert STATISTICS.breaks == 0


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_forward_and_backward_of_sizes_that_vary_are_lengthened(name):
    model = MODELS[name]().eval()
    compiled = torchweld.compile(model, dynamic=True)
    for n in (5, 8, 11):
        ids = torch.randint(0, 100, (2, n))
        gradients = []
        for fn in (compiled, model):
            model.zero_grad()
            fn(ids)[0].square().mean().backward()
            gradients.append([p.grad for p in model.parameters()])
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)
    assert outcomes()[-1] == "backward lengthened"
    assert (STATISTICS.captures, STATISTICS.aten_graphs) == (1, 0)
