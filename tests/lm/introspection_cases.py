"""Small models to look inside: random ones, their peers in transformers, and a hand-written induction head."""

from dataclasses import replace

import pytest
import torch

from lm.config import ModelConfig
from lm.model import LanguageModel

TINY = ModelConfig(vocab_size=23, context_length=24, layers=2, width=16, heads=4)
ONE_LAYER = replace(TINY, layers=1, mlp=False)
OPTIONS = {
    "rotary": {},
    "partial rotary": {"rotary_width": 2},
    "learned": {"positions": "learned"},
    "none": {"positions": "none"},
    "relative": {"positions": "relative", "scaled_attention": False},
    "relative keys": {"positions": "relative-keys", "relative_distance": 3},
    "shared layers": {"layer_groups": 1},
    "rmsnorm without biases": {"norm": "rmsnorm", "bias": False},
    "post-norm": {"norm_position": "post", "positions": "learned"},
    "grouped heads": {"kv_heads": 2},
    "qk-norm": {"qk_norm": True},
    "window": {"window": 3},
    "untied": {"tied_head": False},
    "scaled head": {"scaled_head": True},
    "embedding skips": {"embedding_skips": True},
}


def randomised(config, seed=0):
    """Return a float64 model in which every parameter matters."""
    model = LanguageModel(config, seed).double().eval()
    model.compute_dtype = torch.float64
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def some_ids(config, shape=(2, 11)):
    return torch.randint(config.vocab_size, shape, generator=torch.Generator().manual_seed(1))


PEERS = {
    "gpt2": {"positions": "learned", "activation": "gelu_tanh"},
    "gpt-neox": {"rotary_width": 2, "residual": "parallel"},
    "llama": {"norm": "rmsnorm", "activation": "swiglu", "bias": False, "kv_heads": 2},
    "bert": {"architecture": "encoder", "positions": "learned", "norm_position": "post", "embedding_norm": True},
    "modernbert": {"architecture": "encoder", "activation": "geglu", "embedding_norm": True},
    "t5": {
        "architecture": "encoder-decoder",
        "decoder_layers": 3,
        "positions": "relative",
        "norm": "rmsnorm",
        "activation": "relu",
        "bias": False,
        "scaled_attention": False,
        "scaled_head": True,
    },
}


def in_transformers(model):
    """Return the same model in transformers, in float64, with attention that returns its weights."""
    transformers = pytest.importorskip("transformers")
    from lm.exchange import to_hugging_face

    settings, tensors = to_hugging_face(model.config, model.state_dict())
    auto = {"decoder": "CausalLM", "encoder": "MaskedLM", "encoder-decoder": "Seq2SeqLM"}[model.config.architecture]
    config = transformers.AutoConfig.for_model(**{"pad_token_id": 0, **settings})
    peer = getattr(transformers, f"AutoModelFor{auto}").from_config(config, attn_implementation="eager").double()
    peer.load_state_dict(tensors, strict=False)
    return peer.eval()


def induction_model(entries=20, length=40):
    """Return two hand-written attention-only layers whose stream holds token, position and previous token.

    Head 0.0 attends to the previous position and copies its token into the stream. Head 1.0 attends where that
    copy equals the current token: an induction head (Elhage et al. 2021). Head 0.1 attends to equal tokens,
    itself included. Head 1.1 attends to all positions equally.
    """
    width = 2 * entries + length
    config = ModelConfig(
        vocab_size=entries, context_length=length, layers=2, width=2 * width, heads=2, mlp=False, bias=False,
        positions="learned", norm="rmsnorm",
    )  # fmt: skip
    model = LanguageModel(config, seed=0)
    tokens, positions, noted = (
        slice(0, entries),
        slice(entries, entries + length),
        slice(entries + length, width),
    )
    sharp = 40.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith("norm.weight"):
                parameter.zero_()
        model.embedding.weight[:, tokens] = torch.eye(entries)
        model.decoder.positional.learned.weight[:, positions] = torch.eye(length)
        first, second = (block.attention for block in model.decoder.blocks)
        heads = slice(0, width), slice(width, 2 * width)
        part = torch.eye(width, 2 * width)
        first.key.weight[heads[0]] = part
        first.query.weight[heads[0]][positions, positions] = sharp * torch.eye(length).roll(-1, 0)
        first.value.weight[heads[0]] = part
        first.output.weight[noted, tokens] = torch.eye(entries)
        first.query.weight[heads[1]][tokens, tokens] = sharp * torch.eye(entries)
        first.key.weight[heads[1]] = part
        second.query.weight[heads[0]][noted, tokens] = sharp * torch.eye(entries)
        second.key.weight[heads[0]] = part
    return model


def copying_induction_model(entries=20):
    """Return `induction_model` whose head 1.0 also copies the token that it attends to: it predicts the repetition."""
    model = induction_model(entries)
    attention = model.stack.blocks[1].attention
    with torch.no_grad():
        attention.value.weight[:entries, :entries] = torch.eye(entries)
        attention.output.weight[:entries, :entries] = 4 * torch.eye(entries)
    return model
