"""ModelConfig refuses impossible shapes, and names the field, the value and the remedy."""

import subprocess
import sys

import pytest

from lm.config import ModelConfig


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"width": 100, "heads": 3}, ["model.width", "100", "model.heads=3", "102"]),
        ({"width": 12, "heads": 4}, ["model.width=12", "model.heads=4", "3 components", "model.width=16"]),
        ({"width": 33, "heads": 3, "positions": "sinusoidal"}, ["model.width", "33", "model.width=36"]),
        ({"layers": 0}, ["model.layers", "0", "at least 1"]),
        ({"context_length": -1}, ["model.context_length", "-1"]),
        ({"vocab_size": -5}, ["model.vocab_size", "-5", "tokenizer"]),
        ({"dropout": 1.0}, ["model.dropout", "1.0", "probability"]),
        ({"norm_eps": 0.0}, ["model.norm_eps", "0.0", "positive"]),
        ({"rotary_base": 1.0}, ["model.rotary_base", "1.0"]),
        ({"architecture": "rnn"}, ["model.architecture", "'rnn'", "decoder", "encoder"]),
        ({"head_width": 7}, ["model.head_width is 7", "rotate pairs", "model.head_width=8"]),
        ({"head_width": -1}, ["model.head_width", "-1", "width / heads"]),
        ({"heads": 4, "kv_heads": 3}, ["model.kv_heads", "3", "model.heads=4"]),
        ({"soft_cap": -1.0}, ["model.soft_cap", "-1.0", "positive"]),
        ({"stochastic_depth": 1.0}, ["model.stochastic_depth", "1.0", "probability"]),
        ({"window": -1}, ["model.window", "-1", "all positions"]),
        ({"rotary_factor": 0.5}, ["model.rotary_factor", "0.5"]),
        ({"rotary_scaling": "yarn", "rotary_factor": 4.0}, ["'yarn'", "model.rotary_original_length"]),
        ({"rotary_factor": 4.0}, ["model.rotary_factor", "4.0", "'none'", "at 1", "model.rotary_scaling=yarn"]),
        ({"rotary_scaling": "linear"}, ["model.rotary_scaling", "'linear'", "model.rotary_factor=4", "at 'none'"]),
        (
            {"rotary_scaling": "yarn", "rotary_original_length": 64},
            ["model.rotary_scaling", "'yarn'", "model.rotary_factor is 1"],
        ),
        ({"rotary_original_length": 64}, ["model.rotary_original_length", "64", "'none'", "at 0"]),
        (
            {"rotary_scaling": "linear", "rotary_factor": 2.0, "rotary_original_length": 64},
            ["model.rotary_original_length", "64", "'linear'", "model.rotary_scaling=yarn or llama3"],
        ),
        (
            {"positions": "learned", "rotary_scaling": "linear", "rotary_factor": 2.0},
            ["model.rotary_scaling", "'linear'", "'learned'", "at 'none'", "model.positions=rotary"],
        ),
        ({"positions": "none", "rotary_factor": 2.0}, ["model.rotary_factor", "2.0", "at 1.0"]),
        ({"positions": "relative", "rotary_base": 5e5}, ["model.rotary_base", "500000.0", "at 10000.0"]),
        ({"relative_buckets": 8}, ["model.relative_buckets", "8", "'rotary'", "at 32", "model.positions=relative"]),
        ({"positions": "learned", "relative_distance": 20}, ["model.relative_distance", "20", "at 128"]),
        ({"positions": "relative", "relative_buckets": 6}, ["model.relative_buckets", "6", "multiple of 4"]),
        ({"positions": "relative", "relative_distance": 16}, ["model.relative_distance", "16", "32"]),
        ({"decoder_layers": 2}, ["model.decoder_layers", "'decoder'", "model.layers"]),
        ({"layers": 4, "value_embeddings": 3}, ["model.value_embeddings", "3", "at most 2"]),
        (
            {"rotary_width": 6, "head_width": 4},
            ["model.rotary_width is 6", "4 components of a head", "model.rotary_width=4"],
        ),
        ({"rotary_width": 3}, ["model.rotary_width is 3", "rotate pairs", "model.rotary_width=2"]),
        ({"rotary_width": -2}, ["model.rotary_width is -2", "0 for all of them"]),
        ({"positions": "learned", "rotary_width": 4}, ["model.rotary_width", "4", "'learned'", "at 0"]),
        ({"residual": "both"}, ["model.residual", "'both'", "'sequential', 'parallel'"]),
        ({"residual": "parallel", "norm_position": "post"}, ["'parallel'", "model.norm_position='post'", "=pre"]),
        ({"residual": "parallel", "mlp": False}, ["'parallel'", "model.mlp=False", "model.residual=sequential"]),
        (
            {"residual": "parallel", "architecture": "encoder-decoder"},
            ["'parallel'", "model.architecture='encoder-decoder'", "model.residual=sequential"],
        ),
        ({"embedding_norm": True}, ["model.embedding_norm", "'decoder'", "model.architecture=encoder"]),
        ({"dropout": 0.1, "attention": "flex"}, ["model.dropout", "0.1", "'flex'", "dropout=0", "attention=auto"]),
        ({"dropout": 0.1, "attention": "closed_form"}, ["model.dropout", "'closed_form'", "attention=auto"]),
        ({"attention": "magic"}, ["model.attention", "'magic'", "sdpa"]),
        ({"vocab_size": 10**20}, ["model.vocab_size", str(10**20), "at most 100,000,000"]),
        ({"layers": 10**9}, ["model.layers", "at most 10,000"]),
        ({"rotary_factor": float("inf")}, ["model.rotary_factor", "inf", "finite"]),
    ],
)
def test_impossible_shape_is_refused_by_field_value_and_remedy(fields, words):
    with pytest.raises(ValueError) as refusal:
        ModelConfig(**fields)
    for word in words:
        assert word in str(refusal.value)


def test_default_mlp_widths_are_those_of_gpt2_and_llama():
    assert ModelConfig(width=768, heads=12).hidden_width == 3072
    assert ModelConfig(width=4096, heads=32, activation="swiglu").hidden_width == 10944  # 8/3 x 4096 to 64s
    assert ModelConfig(width=4096, heads=32, activation="swiglu", mlp_width=11008).hidden_width == 11008


def test_configuration_is_read_without_importing_torch():
    modules = "lm.config, lm.objectives, lm.metrics.baselines, lm.optim.schedules"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
