"""Language models at many lengths: one compilation for the first, one for all others."""

import pytest
import torch
import transformers

import torchweld
from torchweld.ir.program import Call
from torchweld.pipeline import STATISTICS

SMALL = {"vocab_size": 100}
CONFIGS = {
    "bert": lambda: transformers.BertConfig(
        num_hidden_layers=2, num_attention_heads=2, hidden_size=32, intermediate_size=64,
        max_position_embeddings=64, **SMALL),
    "gpt2": lambda: transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, n_positions=64, bos_token_id=0, eos_token_id=0, **SMALL),
    "llama": lambda: transformers.LlamaConfig(
        num_hidden_layers=2, num_attention_heads=2, hidden_size=32, intermediate_size=64,
        max_position_embeddings=64, **SMALL),
}  # fmt: skip
MODELS = {"bert": "BertModel", "gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM"}


def model(name):
    torch.manual_seed(0)
    return getattr(transformers, MODELS[name])(CONFIGS[name]()).eval()


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_ten_lengths_are_two_compilations(name):
    net = model(name)
    torchweld.reset()
    compiled = torchweld.compile(net)
    for n in (5, 7, 8, 11, 13, 16, 23, 31, 40, 2):
        ids = torch.randint(0, 100, (2, n))
        torch.testing.assert_close(compiled(ids)[0], net(ids)[0], rtol=1e-4, atol=1e-4)
    counts = torchweld.statistics()
    assert (counts["captures"], counts["breaks"], counts["internal_errors"]) == (2, 0, 0)


@torch.no_grad()
def test_a_mask_that_varies_with_the_text_is_part_of_the_second_compilation():
    net = model("bert")
    torchweld.reset()
    compiled = torchweld.compile(net)
    for n in (5, 7, 8, 11):
        ids, mask = torch.randint(0, 100, (2, n)), torch.ones(2, n, dtype=torch.long)
        mask[0, 3:] = 0
        got, want = compiled(ids, attention_mask=mask)[0], net(ids, attention_mask=mask)[0]
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    counts = torchweld.statistics()
    assert (counts["graphs"], counts["breaks"], counts["aten_graphs"]) == (2, 0, 0)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@torch.no_grad()
def test_generation_with_a_growing_cache_is_three_graphs(name):
    net = model(name)
    ids = torch.randint(1, 100, (1, 6))
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": -1, "pad_token_id": 0}
    expected = net.generate(ids, **options)
    torchweld.reset()
    net.forward = torchweld.compile(net.forward)
    assert torch.equal(net.generate(ids, **options), expected)
    counts = torchweld.statistics()
    assert (counts["graphs"], counts["breaks"], counts["internal_errors"]) == (3, 0, 0)


@torch.no_grad()
def test_products_of_many_lengths_go_to_the_library_that_one_length_goes_to():
    linear = torch.nn.Linear(768, 768)
    torchweld.reset()
    compiled = torchweld.compile(lambda x: torch.relu(linear(x)))
    for n in (64, 100, 33, 2):
        x = torch.randn(n, 768)
        torch.testing.assert_close(compiled(x), torch.relu(linear(x)), rtol=1e-4, atol=1e-4)
    one, many = ([s.op for s in c.executable.program.steps if isinstance(s, Call)]
                 for c in STATISTICS.compiled)  # fmt: skip
    assert one == many == ["mkldnn._linear_pointwise.default"]
