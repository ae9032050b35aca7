"""Forty architectures of transformers with random weights and two layers: what capture must take.

A row names the model class and its config; nothing is downloaded. What can be asked of a model
(labels, masks, caches, generate) follows from its kind of input and from `decodes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import transformers as tr

Fields = Mapping[str, Any]
VOCAB = 120
TOKENS = 8


@dataclass(frozen=True, slots=True)
class Architecture:
    """One model class with a small config.

    inputs: what a batch of two is made of. labels: of a batch, or None if the class takes none.
    decodes: whether it makes one token after the other, with keys and values kept in between.
    whole_mask: whether what it adds to scores is as long as the mask it gets, not as the cache.
    """

    family: str
    model: str
    config: str
    inputs: Callable[[Any], dict[str, torch.Tensor]]
    fields: Fields = field(default_factory=dict)
    labels: Callable[[Any], Any] | None = None
    decodes: bool = False
    whole_mask: bool = False

    def build(self) -> Any:
        """The model, in eval mode; weights come from torch's generator."""
        config = getattr(tr, self.config)(**self.fields)
        return getattr(tr, self.model)(config).eval()


# ---------------------------------------------------------------- inputs and labels
def text(config: Any) -> dict[str, torch.Tensor]:
    # ids below 4 are special in most configs
    return {"input_ids": torch.randint(4, VOCAB, (2, TOKENS))}


def pair(config: Any) -> dict[str, torch.Tensor]:
    return {**text(config), "decoder_input_ids": torch.randint(4, VOCAB, (2, 5))}


def image(config: Any) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def waveform(config: Any) -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(2, 400)}


def spectrogram(config: Any) -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(2, 24, 16)}


def mel(config: Any) -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(2, 16, 64),
            "decoder_input_ids": torch.randint(4, VOCAB, (2, 5))}  # fmt: skip


def captioned(config: Any) -> dict[str, torch.Tensor]:
    return {**text(config), **image(config)}


def interleaved(config: Any) -> dict[str, torch.Tensor]:
    """Text in which four tokens stand for the four patches of an image."""
    ids = text(config)["input_ids"]
    ids[:, 1:5] = config.image_token_id
    return {"input_ids": ids, "pixel_values": torch.randn(2, 3, 16, 16)}


def tokens(config: Any) -> torch.Tensor:
    return torch.randint(4, VOCAB, (2, TOKENS))


def short_tokens(config: Any) -> torch.Tensor:
    return torch.randint(4, VOCAB, (2, 5))


def classes(config: Any) -> torch.Tensor:
    return torch.tensor([0, 1])


def pixels(config: Any) -> torch.Tensor:
    """A class for each pixel."""
    return torch.randint(0, 2, (2, 32, 32))


# ---------------------------------------------------------------- fields that many configs share
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ENCODER = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2,
           "num_attention_heads": 4, "intermediate_size": 48,
           "max_position_embeddings": 64}  # fmt: skip
DECODER = {**ENCODER, **SPECIAL}
GROUPED = {**DECODER, "num_key_value_heads": 2}
BART = {"vocab_size": VOCAB, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48, "max_position_embeddings": 64, "decoder_start_token_id": 2,
        "forced_eos_token_id": None, **SPECIAL}  # fmt: skip
VISION = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 48, "image_size": 32, "patch_size": 8}  # fmt: skip
SPEECH = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 48, "conv_dim": (16, 16), "conv_stride": (5, 4),
          "conv_kernel": (10, 4), "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8,
          "num_conv_pos_embedding_groups": 2}  # fmt: skip
EXPERTS = {**GROUPED, "moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2}
RESNET = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}
TOWERS = {"text_config": DECODER, "vision_config": VISION}
MAMBA = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8,
         **SPECIAL}  # fmt: skip
LLAVA = {"text_config": {"model_type": "llama", **GROUPED}, "image_token_id": 3,
         "vision_config": {"model_type": "clip_vision_model", **VISION, "image_size": 16},
         "vision_feature_layer": -1}  # fmt: skip
MAMBA2 = {**MAMBA, "head_dim": 16, "num_heads": 4, "expand": 2, "n_groups": 2, "chunk_size": 4}
GEMMA3 = {**GROUPED, "head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8,
          "layer_types": ["sliding_attention", "full_attention"]}  # fmt: skip
GRIFFIN = {**GROUPED, "lru_width": 32, "attention_window_size": 6, "conv1d_width": 4,
           "num_hidden_layers": 3}  # fmt: skip


def _encoder(model: str, config: str, **fields: Any) -> Architecture:
    return Architecture("encoder", model, config, text, {**ENCODER, **fields}, tokens)


def _decoder(model: str, config: str, fields: Fields, family: str = "decoder") -> Architecture:
    return Architecture(family, model, config, text, fields, tokens, decodes=True)


def _vision(model: str, config: str, fields: Fields, labels: Any = classes) -> Architecture:
    return Architecture("vision", model, config, image, fields, labels)


ARCHITECTURES: dict[str, Architecture] = {
    "albert": _encoder("AlbertForMaskedLM", "AlbertConfig", embedding_size=16),
    "bert": _encoder("BertForMaskedLM", "BertConfig"),
    "deberta-v2": _encoder("DebertaV2ForMaskedLM", "DebertaV2Config", relative_attention=True,
                           pos_att_type=["p2c", "c2p"], position_buckets=8),
    "electra": _encoder("ElectraForMaskedLM", "ElectraConfig", embedding_size=16),
    "modernbert": _encoder("ModernBertForMaskedLM", "ModernBertConfig", **SPECIAL,
                           cls_token_id=1, sep_token_id=2, local_attention=4,
                           global_attn_every_n_layers=2),
    "roberta": _encoder("RobertaForMaskedLM", "RobertaConfig"),
    "bloom": replace(_decoder("BloomForCausalLM", "BloomConfig",
                              {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4,
                               **SPECIAL}), whole_mask=True),
    "gemma3": _decoder("Gemma3ForCausalLM", "Gemma3TextConfig", GEMMA3),
    "gpt2": _decoder("GPT2LMHeadModel", "GPT2Config",
                     {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4,
                      "n_positions": 64, **SPECIAL}),
    "gpt-neox": _decoder("GPTNeoXForCausalLM", "GPTNeoXConfig", DECODER),
    "llama": _decoder("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "mistral": _decoder("MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": 6}),
    "opt": _decoder("OPTForCausalLM", "OPTConfig",
                    {**DECODER, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "phi3": _decoder("Phi3ForCausalLM", "Phi3Config", GROUPED),
    "qwen3": _decoder("Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 8}),
    "bart": Architecture("encoder-decoder", "BartForConditionalGeneration", "BartConfig", pair,
                         BART, short_tokens, decodes=True),
    "marian": Architecture("encoder-decoder", "MarianMTModel", "MarianConfig", pair,
                           BART, short_tokens, decodes=True),
    "pegasus": Architecture("encoder-decoder", "PegasusForConditionalGeneration", "PegasusConfig",
                            pair, BART, short_tokens, decodes=True),
    "t5": Architecture("encoder-decoder", "T5ForConditionalGeneration", "T5Config", pair,
                       {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2,
                        "num_heads": 4, "decoder_start_token_id": 0, **SPECIAL}, short_tokens,
                       decodes=True),
    "convnext": _vision("ConvNextForImageClassification", "ConvNextConfig",
                        {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2}),
    "detr": _vision("DetrForObjectDetection", "DetrConfig",
                    {**BART, "num_queries": 6, "use_timm_backbone": False,
                     "use_pretrained_backbone": False, "backbone": None,
                     "backbone_config": {"model_type": "resnet", **RESNET,
                                         "out_features": ["stage2"]}}, None),  # a loss needs scipy
    "dinov2": _vision("Dinov2ForImageClassification", "Dinov2Config", VISION),
    "resnet": _vision("ResNetForImageClassification", "ResNetConfig", RESNET),
    "segformer": _vision("SegformerForSemanticSegmentation", "SegformerConfig",
                         {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1],
                          "hidden_sizes": [16, 32], "patch_sizes": [7, 3], "strides": [4, 2],
                          "num_attention_heads": [1, 2], "mlp_ratios": [2, 2],
                          "decoder_hidden_size": 32}, pixels),
    "swin": _vision("SwinForImageClassification", "SwinConfig",
                    {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2],
                     "num_heads": [2, 4], "window_size": 4}),
    "vit": _vision("ViTForImageClassification", "ViTConfig", VISION),
    "ast": Architecture("audio", "ASTForAudioClassification", "ASTConfig", spectrogram,
                        {**VISION, "max_length": 24, "num_mel_bins": 16, "frequency_stride": 8,
                         "time_stride": 8}, classes),
    "hubert": Architecture("audio", "HubertForSequenceClassification", "HubertConfig", waveform,
                           {**SPEECH, "classifier_proj_size": 16}, classes),
    "wav2vec2": Architecture("audio", "Wav2Vec2ForCTC", "Wav2Vec2Config", waveform, SPEECH,
                             short_tokens),
    "whisper": Architecture("audio", "WhisperForConditionalGeneration", "WhisperConfig", mel,
                            {**BART, "num_mel_bins": 16, "max_source_positions": 32,
                             "max_target_positions": 64, "suppress_tokens": None,
                             "begin_suppress_tokens": None}, short_tokens, decodes=True),
    "blip": Architecture("multimodal", "BlipForConditionalGeneration", "BlipConfig", captioned,
                         TOWERS, tokens),
    "clip": Architecture("multimodal", "CLIPModel", "CLIPConfig", captioned,
                         {**TOWERS, "projection_dim": 16}),
    "llava": Architecture("multimodal", "LlavaForConditionalGeneration", "LlavaConfig",
                          interleaved, LLAVA, tokens, decodes=True),
    "siglip": Architecture("multimodal", "SiglipModel", "SiglipConfig", captioned, TOWERS),
    "mixtral": _decoder("MixtralForCausalLM", "MixtralConfig",
                        {**GROUPED, "num_local_experts": 4}, "mixture of experts"),
    "olmoe": _decoder("OlmoeForCausalLM", "OlmoeConfig", EXPERTS, "mixture of experts"),
    "qwen3-moe": _decoder("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**EXPERTS, "head_dim": 8},
                          "mixture of experts"),
    "mamba": _decoder("MambaForCausalLM", "MambaConfig", MAMBA, "state space"),
    "mamba2": _decoder("Mamba2ForCausalLM", "Mamba2Config", MAMBA2, "state space"),
    "recurrent-gemma": _decoder("RecurrentGemmaForCausalLM", "RecurrentGemmaConfig", GRIFFIN,
                                "state space"),
}  # fmt: skip
