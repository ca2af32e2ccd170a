"""Where norms stand, and what they stand in for: against published models, and the start of training."""

from dataclasses import replace

import pytest
import torch
import transformers

from lm.blocks import MLP
from lm.config import ModelConfig
from lm.initialization import deepnorm_scales
from lm.introspection.circuits import copying_scores, decompose_logits, has_circuits
from lm.model import LanguageModel
from lm.norm_places import NORM_PLACES

SMALL = ModelConfig(vocab_size=97, context_length=40, layers=3, width=48, heads=4)
SHAPE = {
    "vocab_size": 97,
    "max_position_embeddings": 40,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "intermediate_size": 100,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
LLAMA = {
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.output",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
}


@torch.no_grad()
def assert_same_logits(peer, ours, names, one_more=0.0):
    """Compare logits after copying weights. The peer's norms multiply by their weight plus `one_more`."""
    torch.manual_seed(5)
    for parameter in peer.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.1)
    theirs, weights = peer.eval().state_dict(), {}
    for layer in range(3):
        for source, target in names.items():
            weight = theirs[f"model.layers.{layer}.{source}.weight"]
            weights[f"decoder.blocks.{layer}.{target}.weight"] = weight + one_more * (weight.ndim == 1)
    weights["decoder.final_norm.weight"] = theirs["model.norm.weight"] + one_more
    weights["embedding.weight"] = theirs["model.embed_tokens.weight"]
    if "head.weight" in ours.state_dict():
        weights["head.weight"] = theirs["lm_head.weight"]
    ours.load_state_dict(weights)
    ids = torch.randint(97, (2, 40), generator=torch.Generator().manual_seed(0))
    expected, got = peer(ids).logits, ours.eval().logits(ours(ids))
    assert expected.std() > 0.3
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_branch_norms_give_the_logits_of_olmo_2():
    """With one head, OLMo 2's norms of queries and keys cover a head, as ours do."""
    peer = transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**SHAPE, num_attention_heads=1))
    config = replace(SMALL, heads=1, norm="rmsnorm", norm_position="branch", qk_norm=True, bias=False)
    ours = LanguageModel(replace(config, mlp_width=100, activation="swiglu", tied_head=False))
    names = {
        "post_attention_layernorm": "attention_norm",
        "post_feedforward_layernorm": "mlp_norm",
        "self_attn.q_norm": "attention.query_norm",
        "self_attn.k_norm": "attention.key_norm",
    }
    assert_same_logits(peer, ours, {**LLAMA, **names})


def test_sandwich_norms_and_a_scaled_embedding_give_the_logits_of_gemma_2():
    shape = {**SHAPE, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "query_pre_attn_scalar": 12}
    options = {"attn_logit_softcapping": None, "final_logit_softcapping": 30.0, "sliding_window": 64}
    peer = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**shape, **options, attn_implementation="eager"))
    config = replace(SMALL, kv_heads=2, norm="rmsnorm", norm_position="sandwich", bias=False, soft_cap=30.0)
    ours = LanguageModel(replace(config, mlp_width=100, activation="geglu_tanh", scaled_embedding=True))
    names = {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "attention_branch_norm",
        "pre_feedforward_layernorm": "mlp_norm",
        "post_feedforward_layernorm": "mlp_branch_norm",
    }
    assert_same_logits(peer, ours, {**LLAMA, **names}, one_more=1.0)


def test_deepnorm_scales_are_those_of_the_paper():
    deep = replace(SMALL, norm_position="deepnorm", initialization="xavier")
    both = replace(deep, architecture="encoder-decoder", layers=6, decoder_layers=12)
    assert deepnorm_scales(replace(deep, layers=8), cross=False) == (2.0, 64**-0.25)
    assert deepnorm_scales(replace(both, decoder_layers=27), cross=True) == pytest.approx((3.0, 324**-0.25))
    assert deepnorm_scales(both, cross=False) == pytest.approx((0.81 * 15552 ** (1 / 16), 0.87 * 15552 ** (-1 / 16)))
    assert deepnorm_scales(SMALL, cross=False) == (1.0, 1.0)


def test_deepnorm_starts_with_smaller_values_outputs_and_mlps():
    deep = replace(SMALL, norm_position="deepnorm", initialization="xavier", activation="swiglu")
    plain, gained = (LanguageModel(replace(deep, norm_position=position)) for position in ("post", "deepnorm"))
    for (name, one), (_, other) in zip(plain.named_parameters(), gained.named_parameters(), strict=True):
        smaller = name.endswith("weight") and any(part in name for part in ("value", "output", "mlp.")) * one.ndim == 2
        torch.testing.assert_close(other, one * (24**-0.25 if smaller else 1.0), msg=name)


def test_rezero_starts_as_the_identity_and_learns_its_scales_first():
    model = LanguageModel(replace(SMALL, norm_position="rezero"))
    ids = torch.arange(12)[None]
    assert torch.equal(model(ids), model.embed(ids))
    model.loss(model(ids)[0, :-1], ids[0, 1:]).backward()
    moved = {name for name, parameter in model.named_parameters() if parameter.grad.any()}
    scales = {f"decoder.blocks.{i}.{name}_scale" for i in range(3) for name in ("attention", "mlp")}
    assert moved == scales | {"embedding.weight"}


def test_without_residual_connections_a_block_forgets_its_input():
    """A sub-layer that writes zeros then leaves nothing of the stream."""
    for residual in ("sequential", "none"):
        model = LanguageModel(replace(SMALL, residual=residual, zero_projections=True))
        assert bool(model(torch.arange(12)[None]).any()) is (residual == "sequential")


@pytest.mark.parametrize("norm_position", NORM_PLACES)
def test_a_model_with_any_norm_position_learns(norm_position):
    xavier = {"initialization": "xavier"} if norm_position == "deepnorm" else {}
    model = LanguageModel(replace(SMALL, norm_position=norm_position, layers=2, **xavier))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids, losses = torch.arange(33)[None] % 7, []
    for _ in range(100):
        loss = model.loss(model(ids[:, :-1])[0], ids[0, 1:]) / 32
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 1.0 < 4 < losses[0]  # the frequencies alone give ln 7 = 1.95


def test_hidden_dropout_drops_hidden_units_in_training_only():
    config = ModelConfig(width=8, heads=1, mlp_width=8, bias=False, activation="relu", hidden_dropout=0.25)
    mlp, x = MLP(config), torch.ones(2000, 8)
    with torch.no_grad():
        for layer in (mlp.up, mlp.down):
            layer.weight.copy_(torch.eye(8))
    seen = mlp(x)
    torch.testing.assert_close(seen.unique(), torch.tensor([0.0, 1 / 0.75]))
    assert (seen == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)
    assert torch.equal(mlp.eval()(x), x)


@pytest.mark.parametrize("options", [{"norm_position": "branch"}, {"residual": "none"}], ids=str)
def test_circuits_are_refused_where_heads_do_not_add_to_the_stream(options):
    model = LanguageModel(replace(SMALL, layers=1, mlp=False, **options))
    [(field, value)] = options.items()
    assert not has_circuits(model)
    for circuit in (lambda: copying_scores(model), lambda: decompose_logits(model, torch.arange(5)[None])):
        with pytest.raises(ValueError, match=f"model.{field} is '{value}'"):
            circuit()
