"""Models of `transformers` give the same logits here, with the weights that they have there."""

from dataclasses import replace

import pytest
import torch

from lm.attention import BACKENDS
from lm.counting import count_parameters
from lm.exchange import from_hugging_face
from lm.model import LanguageModel

transformers = pytest.importorskip("transformers")

VOCAB = 97
LENGTH = 40
GPT2 = {"vocab_size": VOCAB, "n_positions": LENGTH, "n_embd": 48, "n_layer": 3, "n_head": 4}
SHAPE = {
    "vocab_size": VOCAB,
    "max_position_embeddings": LENGTH,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 100,
}
LLAMA = {**SHAPE, "num_key_value_heads": 2, "rms_norm_eps": 1e-5}
T5 = {"vocab_size": VOCAB, "d_model": 48, "d_kv": 12, "d_ff": 100, "num_layers": 2, "num_heads": 4}
NEOX = {**SHAPE, "rotary_pct": 1.0, "use_parallel_residual": False}
FOURFOLD = {"factor": 4.0, "original_max_position_embeddings": 10}


def random_peer(name, **shape):
    """A model of transformers with weights large enough that every path matters, biases and norms included."""
    torch.manual_seed(5)
    config = getattr(transformers, f"{name}Config")(**shape, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    classes = {"Bert": "BertForMaskedLM", "T5": "T5ForConditionalGeneration", "GPT2": "GPT2LMHeadModel"}
    peer = getattr(transformers, classes.get(name, f"{name}ForCausalLM"))(config)
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return peer.eval()


def imported(peer, **changes):
    """Ours with the shape and the weights of `peer`, and fields of the configuration changed."""
    config, weights = from_hugging_face(peer.config.to_dict(), peer.state_dict())
    model = LanguageModel(replace(config, **changes))
    model.load_state_dict(weights)
    return model.eval()


def random_ids(batch=2, length=LENGTH, seed=0):
    return torch.randint(0, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def assert_same_logits(ours, peer):
    ids = random_ids()
    expected, got = peer(ids).logits, ours.logits(ours(ids))
    assert expected.std() > 0.3
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    assert count_parameters(ours) == peer.num_parameters()


@pytest.mark.parametrize("attention", sorted(BACKENDS))
def test_logits_of_gpt2_with_every_attention_backend(attention):
    peer = random_peer("GPT2", **GPT2)
    assert_same_logits(imported(peer, attention=attention), peer)


@pytest.mark.parametrize(
    "options",
    [
        {"activation_function": "relu", "n_inner": 100},
        {"activation_function": "gelu"},
        {"activation_function": "relu2", "tie_word_embeddings": False, "layer_norm_epsilon": 1e-3},
    ],
)
def test_logits_of_other_gpt2s(options):
    peer = random_peer("GPT2", **GPT2, **options)
    assert_same_logits(imported(peer), peer)


@pytest.mark.parametrize("attention", sorted(BACKENDS))
def test_logits_of_bert_with_every_attention_backend(attention):
    peer = random_peer("Bert", **SHAPE)
    assert_same_logits(imported(peer, attention=attention), peer)


@torch.no_grad()
def test_logits_of_bert_with_segments_and_padding():
    peer = random_peer("Bert", **SHAPE, type_vocab_size=3)
    ours, ids = imported(peer), random_ids()
    types = torch.arange(LENGTH).expand(2, -1) // 15
    present = torch.arange(LENGTH).expand(2, -1) < torch.tensor([[LENGTH], [25]])
    expected = peer(ids, attention_mask=present.long(), token_type_ids=types).logits
    got = ours.logits(ours(ids, present=present, types=types))
    torch.testing.assert_close(got[present], expected[present], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4},
        {"rope_theta": 500.0, "num_key_value_heads": 1},
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {
            "rope_theta": 5e3,
            "rope_scaling": {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **FOURFOLD},
        },
        {"rope_scaling": {"rope_type": "yarn", **FOURFOLD}},
    ],
    ids=["grouped", "tied with biases", "base", "linear", "llama3", "yarn"],
)
def test_logits_of_llama(options):
    peer = random_peer("Llama", **{**LLAMA, **options})
    assert_same_logits(imported(peer), peer)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_of_gpt_neox(tied):
    peer = random_peer("GPTNeoX", **NEOX, tie_word_embeddings=tied)
    assert_same_logits(imported(peer), peer)


@pytest.mark.parametrize("attention", ["auto", "reference"])
@pytest.mark.parametrize(
    "options",
    [
        {"feed_forward_proj": "relu"},
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 1},
        {"feed_forward_proj": "gated-silu", "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20},
    ],
    ids=["1.0", "1.1", "few buckets"],
)
@torch.no_grad()
def test_logits_of_t5_over_a_padded_source(options, attention):
    peer = random_peer("T5", **{**T5, **options})
    ours = imported(peer, attention=attention)
    source, ids = random_ids(length=35), random_ids(length=20, seed=1)
    present = torch.arange(35).expand(2, -1) < torch.tensor([[35], [18]])
    expected = peer(input_ids=source, attention_mask=present.long(), decoder_input_ids=ids).logits
    got = ours.logits(ours(ids, source, source_present=present))
    assert expected.std() > 0.05
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    assert count_parameters(ours) == peer.num_parameters()
