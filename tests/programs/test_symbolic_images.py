"""Vision models at many image sizes: one compilation for the first, one for all others."""

import pytest
import torch
import transformers

import torchweld

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 64, "image_size": 32, "patch_size": 8}  # fmt: skip


def vit():
    config = transformers.ViTConfig(**SMALL)
    return transformers.ViTModel(config, add_pooling_layer=False), {
        "interpolate_pos_encoding": True}  # fmt: skip


def resnet():
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
                                       layer_type="basic")  # fmt: skip
    return transformers.ResNetModel(config), {}


def convnext():
    config = transformers.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)
    return transformers.ConvNextModel(config), {}


@pytest.mark.parametrize("make", [vit, resnet, convnext])
@torch.no_grad()
def test_ten_image_sizes_are_two_compilations(make):
    torch.manual_seed(0)
    model, options = make()
    torchweld.reset()
    compiled = torchweld.compile(model.eval())
    for n in (32, 40, 48, 56, 64, 72, 80, 96, 104, 112):
        x = torch.randn(2, 3, n, n + 8)
        torch.testing.assert_close(compiled(x, **options)[0], model(x, **options)[0],
                                   rtol=1e-3, atol=1e-4)  # fmt: skip
    counts = torchweld.statistics()
    assert (counts["captures"], counts["breaks"], counts["aten_graphs"]) == (2, 0, 0)


def swin():
    return transformers.SwinModel(transformers.SwinConfig(
        image_size=32, patch_size=2, embed_dim=8, depths=[1, 2], num_heads=[1, 2], window_size=4,
    )), {}  # fmt: skip


def deep_resnet():
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12, 16, 20],
                                       depths=[1, 1, 1, 1], layer_type="basic")  # fmt: skip
    return transformers.ResNetModel(config), {}


@pytest.mark.parametrize(("make", "sides"), [
    (swin, (32, 36, 44, 52)),  # windows that need padding
    (swin, (32, 64, 96, 128)),  # and that need none
    (deep_resnet, (192, 160, 224, 256, 96)),  # on both sides of where ATen changes its kernel
])  # fmt: skip
@torch.no_grad()
def test_sizes_of_one_class_are_one_compilation_behind_the_first(make, sides):
    torch.manual_seed(0)
    model, options = make()
    torchweld.reset()
    compiled = torchweld.compile(model.eval())
    for n in sides:
        x = torch.randn(1, 3, n, n)
        torch.testing.assert_close(compiled(x, **options)[0], model(x, **options)[0],
                                   rtol=1e-3, atol=1e-4)  # fmt: skip
    counts = torchweld.statistics()
    assert (counts["captures"], counts["breaks"], counts["aten_graphs"]) == (2, 0, 0)
