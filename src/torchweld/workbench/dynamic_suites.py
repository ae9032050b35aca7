"""Models whose sizes vary from call to call: lengths of text, and sides of images.

A row calls every size once, in order; what is timed after that is the last one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchweld.workbench.suites import Case, First
from torchweld.workbench.work import Sizes

# short and long ones mixed, odd ones too; the last, which is timed, is none of the first two
LENGTHS = (64, 128, 17, 96, 40, 200, 77, 150, 33, 160)
SIDES = (224, 192, 256, 160, 128, 208)
GPU_LENGTHS = (128, 256, 77, 512, 200, 384)
BF16 = torch.bfloat16


class Prefill(nn.Module):
    """A decoder's first pass over a prompt: the last token's logits, and all keys and values."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> tuple[Tensor, ...]:
        out = self.model(input_ids=ids, use_cache=True, logits_to_keep=1)
        layers = out.past_key_values.layers
        return (out.logits, *(x for layer in layers for x in (layer.keys, layer.values)))


def _transformers() -> Any:
    return importlib.import_module("transformers")


def _over(model: nn.Module, inputs: Callable[[int], tuple[Tensor, ...]], sizes: Sequence[int],
          ) -> Sizes:  # fmt: skip
    *before, last = (inputs(n) for n in sizes)
    return Sizes(model.eval(), last, before=tuple(before))


def _ids(vocabulary: int, batch: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda n: (torch.randint(0, vocabulary, (batch, n)),)


def _masked_ids(vocabulary: int, batch: int) -> Callable[[int], tuple[Tensor, ...]]:
    def inputs(n: int) -> tuple[Tensor, ...]:
        ids = torch.randint(0, vocabulary, (batch, n))
        return ids, torch.ones_like(ids)

    return inputs


def bert(lengths: Sequence[int] = LENGTHS, *, batch: int = 1, dtype: torch.dtype = torch.float32,
         **config: Any) -> Sizes:  # fmt: skip
    """A BERT encoder with its mask."""
    tr = _transformers()
    made = tr.BertConfig(**config)
    model = First(tr.BertModel(made), ("input_ids", "attention_mask"), {})
    return _over(model.to(dtype), _masked_ids(made.vocab_size, batch), lengths)


def gpt2(lengths: Sequence[int] = LENGTHS, *, batch: int = 1, dtype: torch.dtype = torch.float32,
         **config: Any) -> Sizes:  # fmt: skip
    """GPT-2 with its language model head."""
    tr = _transformers()
    made = tr.GPT2Config(**config)
    model = First(tr.GPT2LMHeadModel(made), ("input_ids",), {"use_cache": False})
    return _over(model.to(dtype), _ids(made.vocab_size, batch), lengths)


def llama(lengths: Sequence[int] = LENGTHS, *, batch: int = 1, dtype: torch.dtype = torch.float32,
          **config: Any) -> Sizes:  # fmt: skip
    """The prefill of a Llama-shaped decoder."""
    tr = _transformers()
    made = tr.LlamaConfig(**config)
    model = Prefill(tr.LlamaForCausalLM(made)).to(dtype)
    return _over(model, _ids(made.vocab_size, batch), lengths)


def _images(batch: int, dtype: torch.dtype) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda n: (torch.randn(batch, 3, n, n, dtype=dtype),)


def resnet(sides: Sequence[int] = SIDES, *, batch: int = 1, dtype: torch.dtype = torch.float32,
           **config: Any) -> Sizes:  # fmt: skip
    """A ResNet on square images."""
    tr = _transformers()
    model = First(tr.ResNetForImageClassification(tr.ResNetConfig(**config)), ("pixel_values",), {})
    return _over(model.to(dtype), _images(batch, dtype), sides)


def vit(sides: Sequence[int] = SIDES, *, batch: int = 1, dtype: torch.dtype = torch.float32,
        **config: Any) -> Sizes:  # fmt: skip
    """A ViT on square images, with the positions of one size interpolated for the others."""
    tr = _transformers()
    fixed = {"interpolate_pos_encoding": True}
    model = First(tr.ViTModel(tr.ViTConfig(**config)), ("pixel_values",), fixed)
    return _over(model.to(dtype), _images(batch, dtype), sides)


def _bert_small() -> Sizes:
    return bert(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048)


def _llama_small() -> Sizes:
    return llama(vocab_size=32000, hidden_size=512, intermediate_size=1408, num_hidden_layers=4,
                 num_attention_heads=8, num_key_value_heads=4)  # fmt: skip


def _resnet18() -> Sizes:
    return resnet(hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic",
                  num_labels=1000)  # fmt: skip


def _gpu_llama() -> Sizes:
    shape = importlib.import_module("torchweld.workbench.models").LLAMA
    return llama(GPU_LENGTHS, dtype=BF16, **shape)


DYNAMIC_CASES: tuple[Case, ...] = (
    Case("dynamic_bert", "BERT small (4 layers of 512), 10 lengths", "dynamic", _bert_small),
    Case("dynamic_gpt2", "GPT-2 with 6 layers, 10 lengths", "dynamic", lambda: gpt2(n_layer=6)),
    Case("dynamic_llama", "Llama-shaped prefill, 4 layers of 512, 10 lengths", "dynamic",
         _llama_small),
    Case("dynamic_resnet18", "ResNet-18, 6 image sizes", "dynamic", _resnet18),
)  # fmt: skip

GPU_DYNAMIC_CASES: tuple[Case, ...] = (
    Case("gpu_dynamic_bert", "BERT base 8 x 6 lengths", "dynamic",
         lambda: bert(GPU_LENGTHS, batch=8, dtype=BF16), device="cuda"),
    Case("gpu_dynamic_gpt2", "GPT-2 4 x 6 lengths", "dynamic",
         lambda: gpt2(GPU_LENGTHS, batch=4, dtype=BF16), device="cuda"),
    Case("gpu_dynamic_llama", "Llama-shaped prefill, 8 layers of 2048, 6 lengths", "dynamic",
         _gpu_llama, device="cuda"),
    Case("gpu_dynamic_resnet50", "ResNet-50, 8 images of 6 sizes", "dynamic",
         lambda: resnet(batch=8, dtype=BF16), device="cuda"),
    Case("gpu_dynamic_vit", "ViT base, 8 images of 6 sizes, positions interpolated", "dynamic",
         lambda: vit(batch=8, dtype=BF16), device="cuda"),
)  # fmt: skip
