"""Models of `transformers` give the same logits here with the same weights."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from lm.attention.backends import BACKENDS
from lm.config import ModelConfig
from lm.costs import count_parameters
from lm.decoding.generation import generate
from lm.exchange import from_hugging_face, to_hugging_face
from lm.model import LanguageModel
from lm.positions import sinusoidal_table

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
NEOX = {**SHAPE, "hidden_size": 64}
FOURFOLD = {"factor": 4.0, "original_max_position_embeddings": 10}


def random_peer(name, **shape):
    """Return a model of transformers with weights so large that every path matters, biases and norms included."""
    torch.manual_seed(5)
    config = getattr(transformers, f"{name}Config")(**shape, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    classes = {"Bert": "BertForMaskedLM", "T5": "T5ForConditionalGeneration", "GPT2": "GPT2LMHeadModel"}
    peer = getattr(transformers, classes.get(name, f"{name}ForCausalLM"))(config)
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return peer.eval()


def imported(peer, **changes):
    """Return our model with the shape and weights of `peer`, and changed configuration fields."""
    read = from_hugging_face(peer.config.to_dict(), peer.state_dict())
    model = LanguageModel(replace(read.config, **changes))
    model.load_state_dict(read.weights)
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
    assert_same_logits(imported(peer, attention=attention, dropout=0.0), peer)


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
    assert_same_logits(imported(peer, attention=attention, dropout=0.0), peer)


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


NEOX_OPTIONS = {
    "Pythia": {},
    "GPT-NeoX-20B": {"hidden_act": "gelu_fast"},
    "sequential": {"rotary_pct": 1.0, "use_parallel_residual": False, "tie_word_embeddings": True},
    "partial": {"rotary_pct": 0.4, "use_parallel_residual": False},
    "parallel": {"rotary_pct": 1.0, "attention_bias": True},
    "odd heads": {"hidden_size": 60, "rotary_pct": 0.3},
    "linear": {"rotary_pct": 0.75, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "yarn": {"rope_scaling": {"rope_type": "yarn", **FOURFOLD}},
}


@pytest.mark.parametrize("options", NEOX_OPTIONS.values(), ids=NEOX_OPTIONS)
def test_logits_of_gpt_neox(options):
    peer = random_peer("GPTNeoX", **{**NEOX, **options})
    assert_same_logits(imported(peer), peer)


@pytest.mark.parametrize("attention", sorted(BACKENDS))
def test_logits_of_pythia_with_every_attention_backend(attention):
    peer = random_peer("GPTNeoX", **NEOX)
    assert_same_logits(imported(peer, attention=attention), peer)


@pytest.mark.parametrize("options", NEOX_OPTIONS.values(), ids=NEOX_OPTIONS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-6)], ids=str)
def test_gradients_of_gpt_neox(options, dtype, tolerance):
    """Every parameter has the gradient that transformers computes. Both have float32 tables of sines."""
    peer = random_peer("GPTNeoX", **{**NEOX, **options}, rotary_emb_base=4096)
    ours, ids = imported(peer).to(dtype), random_ids()
    ours.compute_dtype = dtype
    peer.to(dtype)(ids, labels=ids).loss.backward()
    hidden = ours(ids)[:, :-1].flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(ours.logits(hidden), ids[:, 1:].flatten())
    loss.backward()
    gradients = to_hugging_face(ours.config, {name: p.grad for name, p in ours.named_parameters()})[1]
    # transformers 5 calls the head lm_head, but saves it as embed_out.
    expected = {name.replace("lm_head", "embed_out"): p.grad for name, p in peer.named_parameters()}
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        largest = gradient.abs().max().item()
        torch.testing.assert_close(gradients[name], gradient, rtol=0, atol=tolerance * largest, msg=name)


@pytest.mark.parametrize("options", NEOX_OPTIONS.values(), ids=NEOX_OPTIONS)
def test_gpt_neox_is_exported_as_it_was_imported(options, tmp_path):
    """All tensors come back bit for bit, and transformers reads the same architecture from config.json."""
    peer = random_peer("GPTNeoX", **{**NEOX, **options})
    peer.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    read = from_hugging_face(json.loads((tmp_path / "config.json").read_text()), saved)
    settings, tensors = to_hugging_face(read.config, read.weights)
    assert tensors.keys() == saved.keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in saved.items())
    again = transformers.AutoConfig.for_model(**settings)
    for field in ("use_parallel_residual", "hidden_size", "num_attention_heads", "attention_bias"):
        assert getattr(again, field) == getattr(peer.config, field)
    width = peer.config.hidden_size // peer.config.num_attention_heads
    rotated = {int(width * each.rope_parameters["partial_rotary_factor"]) for each in (again, peer.config)}
    assert len(rotated) == 1


@pytest.mark.parametrize("use_cache", [True, False])
def test_pythia_generates_the_text_of_transformers(use_cache):
    peer = random_peer("GPTNeoX", **NEOX)
    prompt = random_ids(batch=6, length=7)
    expected = peer.generate(prompt, max_new_tokens=30, do_sample=False, eos_token_id=None)[:, 7:]
    got = generate(imported(peer), prompt, 30, temperature=0.0, use_cache=use_cache)
    assert len(expected.unique()) > 3
    assert torch.equal(got, expected)


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
    ours = imported(peer, attention=attention, dropout=0.0)
    source, ids = random_ids(length=35), random_ids(length=20, seed=1)
    present = torch.arange(35).expand(2, -1) < torch.tensor([[35], [18]])
    expected = peer(input_ids=source, attention_mask=present.long(), decoder_input_ids=ids).logits
    got = ours.logits(ours(ids, source, source_present=present))
    assert expected.std() > 0.05
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    assert count_parameters(ours) == peer.num_parameters()


def reshaped(name, ours, theirs, **shape):
    """Return a Llama-like model of transformers, our model with its weights and other options, and unused tensors."""
    peer = random_peer(name, **shape)
    tensors = dict(peer.state_dict())
    extra = {key: tensors.pop(key) for key in list(tensors) if key.split(".")[-2] in theirs}
    llama = peer.config.to_dict() | {"model_type": "llama", "head_dim": 12, "sliding_window": None}
    read = from_hugging_face(llama, tensors)
    model, weights = LanguageModel(replace(read.config, **ours)), dict(read.weights)
    for key, weight in extra.items():
        layer, norm = key.split(".")[2], theirs[key.split(".")[-2]]
        weights[f"decoder.blocks.{layer}.attention.{norm}.weight"] = weight
    model.load_state_dict(weights)
    return model.eval(), peer


@pytest.mark.parametrize("attention", ["auto", "reference", "blocked"])
def test_logits_with_a_sliding_window_equal_those_of_mistral(attention):
    window = {"window": 7, "attention": attention}
    assert_same_logits(*reshaped("Mistral", window, {}, **LLAMA, head_dim=12, sliding_window=7))


def test_logits_with_norms_on_queries_and_keys_equal_those_of_qwen():
    norms = {"q_norm": "query_norm", "k_norm": "key_norm"}
    assert_same_logits(*reshaped("Qwen3", {"qk_norm": True}, norms, **LLAMA, head_dim=12))


@torch.no_grad()
def test_hidden_states_of_the_original_transformer_equal_those_of_torch():
    """Vaswani et al. 2017: post-norm, ReLU, sinusoids added to the embedding times the root of the width."""
    config = ModelConfig(
        architecture="encoder-decoder",
        vocab_size=VOCAB,
        context_length=LENGTH,
        layers=2,
        decoder_layers=3,
        width=48,
        heads=4,
        mlp_width=100,
        positions="sinusoidal",
        norm_position="post",
        activation="relu",
    )
    ours = LanguageModel(config).eval()
    generator = torch.Generator().manual_seed(3)
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.2, generator=generator)
    shape = {"d_model": 48, "nhead": 4, "dim_feedforward": 100, "dropout": 0.0, "batch_first": True}
    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(**shape), 2, enable_nested_tensor=False)
    decoder = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(**shape), 3)
    for stack, theirs in ((ours.encoder, encoder), (ours.decoder, decoder)):
        for block, layer in zip(stack.blocks, theirs.layers, strict=True):
            layer.load_state_dict(torch_names(block))
    source, ids = random_ids(length=15), random_ids(length=9, seed=1)
    table = sinusoidal_table(LENGTH, 48)
    embedded = [ours.embedding(each) * 48**0.5 + table[: each.shape[1]] for each in (source, ids)]
    future = torch.nn.Transformer.generate_square_subsequent_mask(9)
    expected = decoder.eval()(embedded[1], encoder.eval()(embedded[0]), tgt_mask=future, tgt_is_causal=True)
    assert expected.std() > 0.1
    torch.testing.assert_close(ours(ids, source), expected, atol=1e-4, rtol=1e-4)


def torch_names(block):
    """Return the parameters of one of our blocks under the names of torch's layers."""
    named = {"linear1": block.mlp.up, "linear2": block.mlp.down, "norm1": block.attention_norm}
    attentions = {"self_attn": block.attention}
    if block.cross_attention is None:
        named["norm2"] = block.mlp_norm
    else:
        named |= {"norm2": block.cross_norm, "norm3": block.mlp_norm}
        attentions["multihead_attn"] = block.cross_attention
    weights = {}
    for name, attention in attentions.items():
        named[f"{name}.out_proj"] = attention.output
        layers = (attention.query, attention.key, attention.value)
        weights[f"{name}.in_proj_weight"] = torch.cat([layer.weight for layer in layers])
        weights[f"{name}.in_proj_bias"] = torch.cat([layer.bias for layer in layers])
    for name, layer in named.items():
        weights |= {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}
    return weights
