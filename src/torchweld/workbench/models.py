"""The models of the zoo: random weights from a config, nothing is downloaded.

Each factory takes a size: "small" (2 layers, for tests) or "full" (the published shape).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import transformers as tr

from torchweld.workbench.work import Work


def _text(size: str, tokens: int, vocab: int) -> torch.Tensor:
    return torch.randint(0, vocab, (1 if size == "full" else 2, tokens))


def _image(size: str, side: int) -> torch.Tensor:
    return torch.randn(1 if size == "full" else 2, 3, side, side)


def _work(model: Any, **inputs: Any) -> Work:
    return Work(model.eval(), (), inputs)


def _encoder(size: str, **full: Any) -> dict[str, Any]:
    """Config fields of a BERT-like encoder."""
    if size == "full":
        return full
    return {
        "vocab_size": 503,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": 64,
    }


def bert(size: str = "small") -> Work:
    """BERT base encoder: 12 layers of 768, 128 tokens."""
    config = tr.BertConfig(**_encoder(size))
    ids = _text(size, 128 if size == "full" else 16, config.vocab_size)
    return _work(tr.BertModel(config), input_ids=ids, attention_mask=torch.ones_like(ids))


def distilbert(size: str = "small") -> Work:
    """DistilBERT: 6 layers of 768, 128 tokens."""
    small = {"vocab_size": 503, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}
    config = tr.DistilBertConfig(**({} if size == "full" else small))
    ids = _text(size, 128 if size == "full" else 16, config.vocab_size)
    return _work(tr.DistilBertModel(config), input_ids=ids, attention_mask=torch.ones_like(ids))


def gpt2(size: str = "small", *, use_cache: bool = False) -> Work:
    """GPT-2: 12 layers of 768, language model head, 128 tokens."""
    small = {"vocab_size": 503, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
    config = tr.GPT2Config(**({} if size == "full" else small))
    ids = _text(size, 128 if size == "full" else 16, config.vocab_size)
    return _work(tr.GPT2LMHeadModel(config), input_ids=ids, use_cache=use_cache)


def llama(size: str = "small", *, use_cache: bool = False) -> Work:
    """A Llama-shaped decoder: 4 layers of 1024, grouped key-value heads, 128 tokens."""
    shape = {
        "small": (503, 64, 128, 2, 4, 2),
        "full": (32000, 1024, 2816, 4, 16, 8),
    }[size]
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
             "num_attention_heads", "num_key_value_heads")  # fmt: skip
    config = tr.LlamaConfig(**dict(zip(names, shape, strict=True)))
    ids = _text(size, 128 if size == "full" else 16, config.vocab_size)
    return _work(tr.LlamaForCausalLM(config), input_ids=ids, use_cache=use_cache)


def t5(size: str = "small") -> Work:
    """T5: encoder and decoder, relative position bias."""
    shape = {
        "small": {"vocab_size": 503, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2,
                  "num_heads": 4},
        "full": {},
    }[size]  # fmt: skip
    config = tr.T5Config(**shape)
    ids = _text(size, 128 if size == "full" else 16, config.vocab_size)
    start = ids[:, :8].contiguous()
    model = tr.T5ForConditionalGeneration(config)
    return _work(model, input_ids=ids, decoder_input_ids=start, use_cache=False)


def vit(size: str = "small") -> Work:
    """ViT base, patches of 16, 224 x 224."""
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
             "intermediate_size": 128, "image_size": 32, "patch_size": 8}  # fmt: skip
    config = tr.ViTConfig(**({} if size == "full" else small))
    return _work(tr.ViTModel(config), pixel_values=_image(size, config.image_size))


def resnet(size: str = "small") -> Work:
    """ResNet-50, 224 x 224."""
    small = {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 1]}
    config = tr.ResNetConfig(**({} if size == "full" else small))
    side = 224 if size == "full" else 32
    return _work(tr.ResNetForImageClassification(config), pixel_values=_image(size, side))


def convnext(size: str = "small") -> Work:
    """ConvNeXt tiny, 224 x 224."""
    small = {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2}
    config = tr.ConvNextConfig(**({} if size == "full" else small))
    side = 224 if size == "full" else 32
    return _work(tr.ConvNextForImageClassification(config), pixel_values=_image(size, side))


def clip(size: str = "small") -> Work:
    """CLIP: a text tower, an image tower and their similarity."""
    if size == "full":
        config = tr.CLIPConfig()
    else:
        tower = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                 "num_attention_heads": 4, "projection_dim": 32}  # fmt: skip
        text = {**tower, "vocab_size": 503, "max_position_embeddings": 32,
                "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
        image = {**tower, "image_size": 32, "patch_size": 8}
        config = tr.CLIPConfig(text_config=text, vision_config=image, projection_dim=32)
    vocab, side = config.text_config.vocab_size, config.vision_config.image_size
    ids = _text(size, 16, vocab)
    return _work(tr.CLIPModel(config), input_ids=ids, pixel_values=_image(size, side),
                 attention_mask=torch.ones_like(ids))  # fmt: skip


def whisper(size: str = "small") -> Work:
    """Whisper tiny: audio encoder, text decoder."""
    small = {"vocab_size": 503, "num_mel_bins": 16, "d_model": 64, "encoder_layers": 2,
             "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
             "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_source_positions": 32,
             "max_target_positions": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
             "decoder_start_token_id": 1, "suppress_tokens": None,
             "begin_suppress_tokens": None}  # fmt: skip
    config = tr.WhisperConfig(**({} if size == "full" else small))
    batch = 1 if size == "full" else 2
    audio = torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions)
    ids = torch.randint(0, config.vocab_size, (batch, 8))
    model = tr.WhisperForConditionalGeneration(config)
    return _work(model, input_features=audio, decoder_input_ids=ids, use_cache=False)


ZOO: dict[str, Callable[[str], Work]] = {
    "bert": bert,
    "distilbert": distilbert,
    "gpt2": gpt2,
    "llama": llama,
    "t5": t5,
    "vit": vit,
    "resnet": resnet,
    "convnext": convnext,
    "clip": clip,
    "whisper": whisper,
}


# ---------------------------------------------------------------- as they are served on a GPU

LLAMA = {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632,
         "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4}  # fmt: skip


def served(name: str, layers: int = 0) -> Work:
    """A published model with several sequences or images at a time. layers: of GPT-2, if not 12."""
    if name in ("resnet", "vit"):
        build = ZOO[name]("full")
        return Work(build.fn, (), {"pixel_values": torch.randn(8, 3, 224, 224)})
    if name == "bert":
        ids = torch.randint(0, 30522, (8, 128))
        model = tr.BertModel(tr.BertConfig())
        return _work(model, input_ids=ids, attention_mask=torch.ones_like(ids))
    if name == "llama":
        model = tr.LlamaForCausalLM(tr.LlamaConfig(**LLAMA))
        return _work(model, input_ids=torch.randint(0, 32000, (1, 512)), use_cache=False)
    model = tr.GPT2LMHeadModel(tr.GPT2Config(n_layer=layers or 12))
    shape = (1, 128) if layers else (4, 256)
    return _work(model, input_ids=torch.randint(0, 50257, shape), use_cache=False)


class Decode(torch.nn.Module):
    """One token of a decoder whose keys and values are in a static cache, always at one place."""

    def __init__(self, model: Any, cache: Any) -> None:
        super().__init__()
        self.model = model
        self.cache = cache
        self.takes_position = "cache_position" in inspect.signature(model.model.forward).parameters

    def forward(self, ids: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        for layer in self.cache.layers:
            if hasattr(layer, "cumulative_length"):  # transformers 5.20 and later
                layer.cumulative_length.copy_(position[0])
        more = {"cache_position": position} if self.takes_position else {}
        out = self.model(input_ids=ids, position_ids=position[None], use_cache=True,
                         past_key_values=self.cache, **more)  # fmt: skip
        return out.logits  # type: ignore[no-any-return]


def decode(length: int = 1024) -> Work:
    """The Llama-shaped model in bf16, one token at position 500 of a static cache."""
    model = tr.LlamaForCausalLM(tr.LlamaConfig(**LLAMA)).to(torch.bfloat16).eval()
    cache = tr.StaticCache(config=model.config, max_cache_len=length)
    work = Decode(model, cache).eval()
    ids, position = torch.randint(0, 32000, (1, 1)), torch.tensor([500])
    with torch.no_grad():
        work(ids, position)  # the cache makes its tensors at its first use
    return Work(work, (ids, position))
