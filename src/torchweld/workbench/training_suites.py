"""Training steps: forward and backward of a loss, and whole steps with AdamW.

Without dropout, so that every compiler's gradients can be compared with eager's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchweld.workbench.suites import Case
from torchweld.workbench.work import Step, WholeStep


class Loss(nn.Module):
    """Cross entropy of a model's logits."""

    def __init__(self, model: nn.Module, **fixed: Any) -> None:
        super().__init__()
        self.model = model
        self.fixed = fixed

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        logits = self.model(x, **self.fixed).logits
        return nn.functional.cross_entropy(logits.flatten(0, -2), target)


def _transformers() -> Any:
    return importlib.import_module("transformers")


def _text(model: nn.Module, vocab: int, batch: int, tokens: int, **fixed: Any) -> Step:
    ids = torch.randint(0, vocab, (batch, tokens))
    target = torch.randint(0, vocab, (batch * tokens,))
    return Step(Loss(model, **fixed).train(), (ids, target))


def _bert() -> Step:
    tr = _transformers()
    config = tr.BertConfig(hidden_size=512, num_hidden_layers=4, num_attention_heads=8,
                           intermediate_size=2048, hidden_dropout_prob=0.0,
                           attention_probs_dropout_prob=0.0)  # fmt: skip
    return _text(tr.BertForMaskedLM(config), config.vocab_size, 4, 128)


def _gpt2() -> Step:
    tr = _transformers()
    config = tr.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return _text(tr.GPT2LMHeadModel(config), config.vocab_size, 1, 128, use_cache=False)


def _resnet() -> Step:
    tr = _transformers()
    config = tr.ResNetConfig(hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2],
                             layer_type="basic", num_labels=1000)  # fmt: skip
    model = tr.ResNetForImageClassification(config)
    images, target = torch.randn(4, 3, 224, 224), torch.randint(0, 1000, (4,))
    return Step(Loss(model).train(), (images, target))


# ---------------------------------------------------------------- on a GPU
BF16 = torch.bfloat16
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _gpu_bert() -> Step:
    tr = _transformers()
    config = tr.BertConfig(**_NO_DROPOUT)
    return _text(tr.BertForMaskedLM(config).to(BF16), config.vocab_size, 8, 128)


def _gpu_gpt2() -> Step:
    tr = _transformers()
    config = tr.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = tr.GPT2LMHeadModel(config).to(BF16)
    return _text(model, config.vocab_size, 4, 256, use_cache=False)


def _gpu_llama() -> Step:
    tr = _transformers()
    shape = importlib.import_module("torchweld.workbench.models").LLAMA
    model = tr.LlamaForCausalLM(tr.LlamaConfig(**shape)).to(BF16)
    return _text(model, shape["vocab_size"], 1, 512, use_cache=False)


def _gpu_resnet() -> Step:
    tr = _transformers()
    model = tr.ResNetForImageClassification(tr.ResNetConfig(num_labels=1000)).to(BF16)
    images, target = torch.randn(8, 3, 224, 224, dtype=BF16), torch.randint(0, 1000, (8,))
    return Step(Loss(model).train(), (images, target))


def _whole(build: Callable[[], Step]) -> WholeStep:
    step = build()
    return WholeStep(step.fn, step.args, step.kwargs)


TRAINING_CASES: tuple[Case, ...] = (
    Case("train_bert", "BERT small (4 layers of 512) 4x128, training step", "training", _bert),
    Case("train_gpt2", "GPT-2 1x128, training step", "training", _gpt2),
    Case("train_resnet18", "ResNet-18 4x224x224, training step", "training", _resnet),
    Case("train_gpt2_adamw", "GPT-2 1x128, whole step with AdamW", "whole step",
         partial(_whole, _gpt2)),
)  # fmt: skip

GPU_TRAINING_CASES: tuple[Case, ...] = (
    Case("gpu_train_resnet50", "ResNet-50 8x224x224, training step", "training", _gpu_resnet,
         device="cuda"),
    Case("gpu_train_bert", "BERT base 8x128, training step", "training", _gpu_bert, device="cuda"),
    Case("gpu_train_gpt2", "GPT-2 4x256, training step", "training", _gpu_gpt2, device="cuda"),
    Case("gpu_train_llama", "Llama-shaped, 8 layers of 2048, 1x512, training step", "training",
         _gpu_llama, device="cuda"),
    Case("gpu_train_gpt2_adamw", "GPT-2 4x256, whole step with AdamW", "whole step",
         partial(_whole, _gpu_gpt2), device="cuda"),
)  # fmt: skip
