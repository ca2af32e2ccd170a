"""Models of `transformers` in folders with the layout of the hub, for import tests."""

import shutil

import pytest
import torch

from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained

transformers = pytest.importorskip("transformers")

AUTO = {
    "gpt2": transformers.AutoModelForCausalLM,
    "llama": transformers.AutoModelForCausalLM,
    "gpt_neox": transformers.AutoModelForCausalLM,
    "bert": transformers.AutoModelForMaskedLM,
    "roberta": transformers.AutoModelForMaskedLM,
    "distilbert": transformers.AutoModelForMaskedLM,
    "modernbert": transformers.AutoModelForMaskedLM,
    "t5": transformers.AutoModelForSeq2SeqLM,
}
SHAPE = {
    "max_position_embeddings": 34,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
SHAPES = {
    "gpt2": {"n_positions": 34, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "llama": {**SHAPE, "num_key_value_heads": 2},
    "gpt_neox": SHAPE,  # parallel residuals and partial rotary positions, as in Pythia
    "bert": SHAPE,
    "roberta": {**SHAPE, "max_position_embeddings": 36, "type_vocab_size": 1},
    "distilbert": {"max_position_embeddings": 34, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "modernbert": {**SHAPE, "layer_types": ["full_attention"] * 2},
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
}
IDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1, "decoder_start_token_id": 0}


def save_peer(folder, kind, tokenizer_folder, entries=512, ids=IDS, **options):
    """Save a random model of `transformers` and a tokenizer in the layout of the hub, and return the model."""
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(kind, vocab_size=entries, **SHAPES[kind], **ids)
    peer = AUTO[kind].from_config(config).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    peer.save_pretrained(folder, **options)
    if tokenizer_folder != folder:
        shutil.copy(tokenizer_folder / "tokenizer.json", folder)
    return peer


def our_model(run):
    return load_trained(Run(run), device="cpu").model
