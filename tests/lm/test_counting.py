"""Counts of parameters, FLOPs and bytes equal published numbers, built models and hand counts."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lm.config import ModelConfig
from lm.config_costs import (
    activation_bytes,
    cache_bytes,
    matrix_parameters,
    non_embedding_parameters,
    training_bytes,
)
from lm.costs import count_parameters, flops_per_token, meta_model, parameter_table
from lm.decoding.cache import storage_dtype
from lm.decoding.generation import encode_source
from lm.decoding.packed import prepare
from lm.decoding.state import DecodeState
from lm.mixers.attention import Attention
from lm.model import LanguageModel
from lm.presets import PRESETS, preset

SMALL = ModelConfig(vocab_size=99, context_length=64, layers=3, width=48, heads=4)
BOTH = replace(SMALL, architecture="encoder-decoder", layers=2, decoder_layers=3)
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bert-base": 109_514_298,  # with the masked head, without the pooler
    "bert-large": 335_174_458,
    "roberta-base": 124_697_433,
    "distilbert-base": 66_985_530,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "gpt3-175b": 174_604_259_328,
    "llama": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama3-8b": 8_030_261_248,
    "pythia-70m": 70_426_624,
    "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    "gpt-neox-20b": 20_554_567_680,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_number_of_parameters(name):
    assert parameter_table(meta_model(preset(name)))["total"] == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "layers", "width", "heads", "head_width"),
    [
        ("gpt2", 12, 768, 12, 64),
        ("gpt2-medium", 24, 1024, 16, 64),
        ("gpt2-large", 36, 1280, 20, 64),
        ("gpt2-xl", 48, 1600, 25, 64),
        ("gpt3-small", 12, 768, 12, 64),
        ("gpt3-medium", 24, 1024, 16, 64),
        ("gpt3-large", 24, 1536, 16, 96),
        ("gpt3-xl", 24, 2048, 16, 128),
        ("gpt3-2.7b", 32, 2560, 32, 80),
        ("gpt3-6.7b", 32, 4096, 32, 128),
        ("gpt3-13b", 40, 5120, 40, 128),
        ("gpt3-175b", 96, 12288, 96, 128),
        ("llama-13b", 40, 5120, 40, 128),
        ("llama3-8b", 32, 4096, 32, 128),
        ("pythia-70m", 6, 512, 8, 64),
        ("pythia-160m", 12, 768, 12, 64),
        ("pythia-410m", 24, 1024, 16, 64),
        ("pythia-1b", 16, 2048, 8, 256),
        ("pythia-1.4b", 24, 2048, 16, 128),
        ("pythia-2.8b", 32, 2560, 32, 80),
        ("pythia-6.9b", 32, 4096, 32, 128),
        ("pythia-12b", 36, 5120, 40, 128),
        ("gpt-neox-20b", 44, 6144, 64, 96),
        ("bert-large", 24, 1024, 16, 64),
        ("distilbert-base", 6, 768, 12, 64),
        ("t5-base", 12, 768, 12, 64),
        ("transformer-base", 6, 512, 8, 64),
    ],
)
def test_presets_have_the_published_shapes(name, layers, width, heads, head_width):
    """The number of heads does not change the number of parameters, so it is checked here."""
    found = preset(name)
    assert (found.layers, found.width, found.heads, found.head_features) == (layers, width, heads, head_width)


def test_settings_that_do_not_show_in_the_parameters_are_as_published():
    llama3, original = preset("llama3-8b"), preset("transformer-base")
    assert (llama3.rotary_base, llama3.norm_eps, llama3.kv_heads) == (500_000.0, 1e-5, 8)
    assert (original.norm_position, original.positions, original.activation) == ("post", "sinusoidal", "relu")
    assert (original.initialization, original.dropout) == ("xavier", 0.1)
    assert all(preset(name).norm_eps == 1e-12 for name in ("bert-base", "bert-large"))
    for neox in (preset(name) for name in PUBLISHED if name.startswith(("pythia", "gpt-neox"))):
        assert (neox.residual, neox.rotary_width / neox.head_features) == ("parallel", 0.25)


def test_gpt3_weight_matrices_follow_the_published_formula():
    """The formula is V d + L d + 12 N d^2."""
    assert matrix_parameters(preset("gpt3-175b")) == 174_588_899_328


@pytest.mark.parametrize(
    ("name", "config", "model"),
    [
        ("gpt2", "GPT2Config", "GPT2LMHeadModel"),
        ("bert-base", "BertConfig", "BertForMaskedLM"),
        ("t5-small", "T5Config", "T5ForConditionalGeneration"),
        ("llama", "LlamaConfig", "LlamaForCausalLM"),
        ("gpt-neox-20b", "GPTNeoXConfig", "GPTNeoXForCausalLM"),
    ],
)
def test_presets_are_as_large_as_the_default_models_of_transformers(name, config, model):
    """The default configurations of transformers are these models."""
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        peer = getattr(transformers, model)(getattr(transformers, config)())
    assert count_parameters(meta_model(preset(name))) == count_parameters(peer)


def test_gpt2_by_component():
    table = parameter_table(meta_model(preset("gpt2")))
    assert table == {
        "embedding": 50257 * 768,
        "positions": 1024 * 768,
        "attention": 12 * 4 * (768 * 768 + 768),
        "mlp": 12 * (2 * 768 * 3072 + 3072 + 768),
        "norms": 25 * 2 * 768,
        "head": 0,  # tied
        "total": 124_439_808,
    }
    assert non_embedding_parameters(preset("gpt2")) == 124_439_808 - (50257 + 1024) * 768


def test_bert_by_component():
    table = parameter_table(meta_model(preset("bert-base")))
    assert table["embedding"] == (30522 + 2) * 768  # token types too
    assert table["head"] == 768 * 768 + 768 + 2 * 768 + 30522


def test_t5_by_component():
    """Cross-attention counts as attention. Each stack has one relative bias, which counts as positions."""
    table = parameter_table(meta_model(preset("t5-small")))
    assert table["embedding"] == 32128 * 512
    assert table["positions"] == 2 * 32 * 8
    assert table["attention"] == (6 + 2 * 6) * 4 * 512 * 512
    assert table["norms"] == (6 * 2 + 6 * 3 + 2) * 512


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tied_head": False},
        {"mlp": False, "kv_heads": 2, "qk_norm": True},
        {"norm": "rmsnorm", "activation": "swiglu", "bias": False},
        {"architecture": "encoder", "token_types": 3, "norm_position": "post"},
        {"architecture": "encoder-decoder", "decoder_layers": 2, "positions": "relative"},
        {"value_embeddings": 2, "embedding_skips": True},
        {"head_width": 20, "kv_heads": 2, "value_embeddings": 1},
        *({"positions": positions} for positions in ("learned", "sinusoidal", "none")),
    ],
    ids=str,
)
def test_the_table_adds_up_to_the_built_model(options):
    config = replace(SMALL, **options)
    table = parameter_table(meta_model(config))
    built = sum(parameter.numel() for parameter in LanguageModel(config, seed=0).parameters())
    assert table.pop("total") == sum(table.values()) == built


@pytest.mark.parametrize("name", ["gpt2", "llama3-8b", "bert-base", "t5-small", "transformer-base"])
def test_untying_adds_only_an_output_matrix(name):
    config = preset(name)
    tied, untied = (parameter_table(meta_model(replace(config, tied_head=choice))) for choice in (True, False))
    matrix = config.vocab_size * config.width
    assert untied == {**tied, "head": tied["head"] + matrix, "total": tied["total"] + matrix}


def test_heads_of_a_chosen_width_in_closed_form():
    """Queries and the output matrix have 12 heads of 128 next to a width of 768, keys and values 4 of them."""
    config = replace(preset("gpt2"), bias=False, head_width=128, kv_heads=4)
    model = meta_model(config)
    attention = 2 * 768 * (12 * 128) + 2 * 768 * (4 * 128)
    assert parameter_table(model)["attention"] == 12 * attention
    matrices = 12 * (attention + 2 * 768 * 3072) + 50257 * 768
    assert flops_per_token(model) == 6 * matrices + 12 * 12 * (12 * 128) * 1024
    assert flops_per_token(meta_model(replace(config, heads=6, head_width=0, kv_heads=0))) == flops_per_token(
        meta_model(replace(config, heads=6, head_width=128, kv_heads=0))
    )


def test_flops_per_token_follow_the_definition():
    matrices = 12 * (4 * 768 * 768 + 2 * 768 * 3072) + 50257 * 768
    assert flops_per_token(meta_model(preset("gpt2"))) == 6 * matrices + 12 * 12 * 768 * 1024
    stack, head = 12 * (4 * 768 * 768 + 2 * 768 * 3072), 768 * 768 + 30522 * 768
    everywhere, after_attention = stack - (768 * 768 + 2 * 768 * 3072), 768 * 768 + 2 * 768 * 3072
    expected = 6 * (everywhere + 0.15 * (after_attention + head)) + 12 * 12 * 768 * 128
    assert flops_per_token(meta_model(preset("bert-base")), length=128) == pytest.approx(expected)


def test_flops_count_the_window_and_the_smaller_matrices_of_grouped_heads():
    whole = flops_per_token(meta_model(SMALL))
    windowed = flops_per_token(meta_model(replace(SMALL, window=16)))
    assert whole - windowed == 12 * 3 * 48 * (64 - 16)
    grouped = flops_per_token(meta_model(replace(SMALL, kv_heads=1)))
    assert whole - grouped == 6 * 3 * 2 * 48 * (48 - 12)
    encoder = replace(SMALL, architecture="encoder")
    both_ways = flops_per_token(meta_model(replace(encoder, window=16)))
    assert flops_per_token(meta_model(encoder)) - both_ways == pytest.approx(12 * 3 * 48 * (64 - 31))


@given(target=st.integers(1, 64), source=st.integers(1, 64))
def test_flops_of_an_encoder_decoder_are_the_mean_over_both_texts(target, source):
    model = meta_model(BOTH)
    mlp, projection = 2 * 48 * 192, 48 * 48
    encoder = source * 2 * (6 * (4 * projection + mlp) + 12 * 48 * source)
    decoder = target * 3 * (6 * (4 * projection + mlp) + 12 * 48 * target)
    cross = 3 * (6 * projection * (2 * target + 2 * source) + 12 * 48 * source * target)
    head = target * 6 * 99 * 48
    counted = flops_per_token(model, length=target, source_length=source)
    assert counted == pytest.approx((encoder + decoder + cross + head) / (source + target))


@pytest.mark.parametrize("options", [{}, {"architecture": "encoder"}, {"kv_heads": 2, "activation": "swiglu"}], ids=str)
def test_forward_flops_equal_those_that_torch_counts(options):
    """The forward pass is a third of the total. Attention is the reference; an encoder selects 16 tokens."""
    from torch.utils.flop_counter import FlopCounterMode

    config = replace(SMALL, attention="reference", **options)
    model = meta_model(config).eval()
    rows = torch.arange(16, device="meta") if config.architecture == "encoder" else None
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.logits(model(torch.zeros(1, 64, dtype=torch.int64, device="meta"), rows=rows))
    assert counter.get_total_flops() == pytest.approx(flops_per_token(model, selected=0.25) * 64 / 3)


def test_training_takes_sixteen_bytes_per_weight_with_adamw():
    bytes_of = training_bytes(preset("gpt2"))
    assert bytes_of == {"weights": 497_759_232, "gradients": 497_759_232, "moments": 995_518_464}


def test_muon_has_one_moment_for_the_matrices_in_blocks():
    model = meta_model(SMALL)
    in_blocks = sum(p.numel() for p in model.stack.blocks.parameters() if p.ndim == 2)
    assert training_bytes(SMALL, "muon")["moments"] == training_bytes(SMALL)["moments"] - 4 * in_blocks


def test_a_cache_holds_keys_and_values_of_every_layer():
    gpt2 = preset("gpt2")
    assert cache_bytes(gpt2, "float32", 1) == 2 * 12 * 768 * 4
    assert cache_bytes(gpt2, "bfloat16", 1024) == 2 * 12 * 768 * 2 * 1024
    assert cache_bytes(preset("llama3-8b"), "bfloat16", 1) == 2 * 32 * 8 * 128 * 2
    windowed = replace(SMALL, window=16)
    assert cache_bytes(windowed, "float32", 64) == cache_bytes(windowed, "float32", 16)
    assert cache_bytes(preset("bert-base"), "float32", 512) == 0
    assert cache_bytes(BOTH, "float32", 10, source_length=20) == 2 * 3 * 48 * 4 * (10 + 20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"window": 16, "kv_heads": 2}, {"window": 100}], ids=str)
@pytest.mark.parametrize("config", [SMALL, BOTH], ids=lambda config: config.architecture)
def test_cache_bytes_equal_the_allocation_of_generation(config, options, dtype):
    """A context of 64 tokens and a source of 9, on the CPU, which caches bfloat16 as float32."""
    model = LanguageModel(replace(config, **options), seed=0)
    model.compute_dtype = dtype
    ready, both = prepare(model), config.architecture == "encoder-decoder"
    cross_cache = encode_source(ready, torch.ones(1, 9, dtype=torch.int64) if both else None)
    state = DecodeState(ready, torch.ones(1, 60, dtype=torch.int64), room=100, cross_cache=cross_cache)
    tensors = [*state.cache.keys, *state.cache.values]
    tensors += [tensor for pair in cross_cache.keys_values for tensor in pair] if both else []
    kept = storage_dtype(dtype, torch.device("cpu"))
    assert {tensor.dtype for tensor in tensors} == {kept}
    allocated = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
    name = str(dtype).removeprefix("torch.")
    assert cache_bytes(model.config, name, 64, source_length=9, on_cpu=True) == allocated


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "rmsnorm", "activation": "swiglu", "bias": False, "kv_heads": 2},
        {"architecture": "encoder", "positions": "learned"},
        {"norm_position": "post"},
        {"rotary_width": 4, "residual": "parallel"},
        {"architecture": "encoder-decoder"},
    ],
    ids=str,
)
def test_activation_bytes_equal_what_autograd_saves_with_fused_attention(options):
    config = replace(SMALL, attention="sdpa", **options)
    model = LanguageModel(config, seed=0)
    for module in model.modules():
        if isinstance(module, Attention):
            module.one_product = True  # as on a GPU
    kept = [_kept_for_backward(model, batch) for batch in (1, 2)]
    assert activation_bytes(config, "float32") == pytest.approx(kept[1] - kept[0], rel=0.03)


def _kept_for_backward(model, batch):
    """Return the bytes of distinct saved tensors without weights; an encoder predicts 10 of 64 tokens a sequence."""
    ids = torch.zeros(batch, 64, dtype=torch.int64)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        kind = model.config.architecture
        rows = torch.arange(10 * batch) if kind == "encoder" else None
        hidden = model(ids, ids if kind == "encoder-decoder" else None, rows=rows).flatten(0, -2)
        loss = model.loss(hidden, ids.flatten()[: len(hidden)])
    assert loss.requires_grad
    return sum(size for size, _ in kept.values())


def test_every_preset_can_be_counted():
    for name, config in PRESETS.items():
        model = meta_model(config)
        assert non_embedding_parameters(config) < parameter_table(model)["total"], name
        assert flops_per_token(model) > 0
