"""The same weights give the same logits as in `transformers`."""

import pytest
import torch

from lm.config import ModelConfig
from lm.counting import count_parameters
from lm.model import build_model

transformers = pytest.importorskip("transformers")

SHAPE = {"vocab_size": 97, "layers": 3, "width": 48, "heads": 4, "context_length": 40}


def randomise(model):
    """Weights large enough that every path matters, biases and norms included."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def copy_weights(model, names):
    """names: ours to a tensor of the peer's state. Every one of our parameters must be covered."""
    assert set(names) == {name for name, _ in model.named_parameters()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(names[name])
    return model.eval()


def linear(ours, weight, bias):
    return {f"{ours}.weight": weight, f"{ours}.bias": bias}


def from_gpt2(state, layers):
    names = {
        "trunk.embedding.weight": state["transformer.wte.weight"],
        "trunk.positional.learned.weight": state["transformer.wpe.weight"],
        **linear("trunk.final_norm", state["transformer.ln_f.weight"], state["transformer.ln_f.bias"]),
    }
    for i in range(layers):
        ours, theirs = f"trunk.blocks.{i}", f"transformer.h.{i}"
        weights = state[f"{theirs}.attn.c_attn.weight"].T.chunk(3)  # Conv1D keeps its matrix transposed
        biases = state[f"{theirs}.attn.c_attn.bias"].chunk(3)
        for part, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
            names |= linear(f"{ours}.attention.{part}", weight, bias)
        for mine, peer in (("attention_norm", "ln_1"), ("mlp_norm", "ln_2")):
            names |= linear(f"{ours}.{mine}", state[f"{theirs}.{peer}.weight"], state[f"{theirs}.{peer}.bias"])
        for mine, peer in (
            ("attention.output", "attn.c_proj"),
            ("mlp.up", "mlp.c_fc"),
            ("mlp.down", "mlp.c_proj"),
        ):
            weight, bias = state[f"{theirs}.{peer}.weight"].T, state[f"{theirs}.{peer}.bias"]
            names |= linear(f"{ours}.{mine}", weight, bias)
    return names


def from_bert(state, layers):
    def pair(ours, theirs):
        return linear(ours, state[f"{theirs}.weight"], state[f"{theirs}.bias"])

    positions = state["bert.embeddings.position_embeddings.weight"]
    first_segment = state["bert.embeddings.token_type_embeddings.weight"][0]  # one segment: added everywhere
    names = {
        "trunk.embedding.weight": state["bert.embeddings.word_embeddings.weight"],
        "trunk.positional.learned.weight": positions + first_segment,
        "head.bias": state["cls.predictions.bias"],
        **pair("trunk.embedding_norm", "bert.embeddings.LayerNorm"),
        **pair("head.dense", "cls.predictions.transform.dense"),
        **pair("head.norm", "cls.predictions.transform.LayerNorm"),
    }
    for i in range(layers):
        ours, theirs = f"trunk.blocks.{i}", f"bert.encoder.layer.{i}"
        for mine, peer in (
            ("attention.query", "attention.self.query"),
            ("attention.key", "attention.self.key"),
            ("attention.value", "attention.self.value"),
            ("attention.output", "attention.output.dense"),
            ("attention_norm", "attention.output.LayerNorm"),
            ("mlp.up", "intermediate.dense"),
            ("mlp.down", "output.dense"),
            ("mlp_norm", "output.LayerNorm"),
        ):
            names |= pair(f"{ours}.{mine}", f"{theirs}.{peer}")
    return names


def from_llama(state, layers):
    names = {
        "trunk.embedding.weight": state["model.embed_tokens.weight"],
        "trunk.final_norm.weight": state["model.norm.weight"],
        "head.weight": state["lm_head.weight"],
    }
    for i in range(layers):
        for mine, peer in (
            ("attention.query", "self_attn.q_proj"),
            ("attention.key", "self_attn.k_proj"),
            ("attention.value", "self_attn.v_proj"),
            ("attention.output", "self_attn.o_proj"),
            ("attention_norm", "input_layernorm"),
            ("mlp.gate", "mlp.gate_proj"),
            ("mlp.up", "mlp.up_proj"),
            ("mlp.down", "mlp.down_proj"),
            ("mlp_norm", "post_attention_layernorm"),
        ):
            names[f"trunk.blocks.{i}.{mine}.weight"] = state[f"model.layers.{i}.{peer}.weight"]
    return names


def compare(ours, theirs):
    ids = torch.randint(0, 97, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, got = theirs(ids).logits, ours.logits(ours(ids))
    assert expected.std() > 0.3
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("attention", ["auto", "reference", "blocked"])
def test_logits_equal_those_of_gpt2(attention):
    peer = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=97, n_positions=40, n_embd=48, n_layer=3, n_head=4)
    )
    config = ModelConfig(**SHAPE, positions="learned", activation="gelu_tanh", attention=attention)
    randomise(peer)
    ours = copy_weights(build_model(config, seed=0), from_gpt2(peer.state_dict(), 3))
    compare(ours, peer)
    assert count_parameters(ours) == peer.num_parameters()


@pytest.mark.parametrize("attention", ["auto", "reference", "blocked"])
def test_logits_equal_those_of_bert(attention):
    peer = transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=97,
            max_position_embeddings=40,
            hidden_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=192,
        )
    )
    config = ModelConfig(
        **SHAPE,
        architecture="encoder",
        positions="learned",
        norm_position="post",
        norm_eps=1e-12,
        attention=attention,
    )
    randomise(peer)
    ours = copy_weights(build_model(config, seed=0), from_bert(peer.state_dict(), 3))
    compare(ours, peer)
    assert count_parameters(ours) == peer.num_parameters() - 2 * 48  # BERT's two token types


def test_logits_equal_those_of_llama():
    peer = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=97,
            max_position_embeddings=40,
            hidden_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            intermediate_size=128,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
        )
    )
    config = ModelConfig(**SHAPE, norm="rmsnorm", activation="swiglu", bias=False, tied_head=False, mlp_width=128)
    randomise(peer)
    ours = copy_weights(build_model(config, seed=0), from_llama(peer.state_dict(), 3))
    compare(ours, peer)
    assert count_parameters(ours) == peer.num_parameters()
