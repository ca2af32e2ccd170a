"""Layers of one group have the same weights, once in memory and in files, and are layers of their own otherwise."""

import copy
from dataclasses import replace

import pytest
import torch

from lm.config import ModelConfig
from lm.config_costs import cache_bytes, flops_per_token, parameter_table
from lm.decoding.generation import generate
from lm.decoding.packed import prepare
from lm.exchange import from_hugging_face, to_hugging_face
from lm.exchange.gguf import from_gguf, to_gguf
from lm.head_config import HeadConfig
from lm.introspection.activations import observed
from lm.introspection.deletion import deletions
from lm.introspection.diagnosis import diagnose
from lm.layer_order import freeze, layers, rate_factors, reinitialize
from lm.lora import add_lora, merge_lora
from lm.lora_config import LoraConfig
from lm.model import LanguageModel
from lm.task_model import TaskModel
from tests.lm.introspection_cases import in_transformers

SMALL = ModelConfig(vocab_size=37, context_length=12, layers=4, width=16, heads=2, layer_groups=2)
BERT = {"architecture": "encoder", "positions": "learned", "norm_position": "post", "embedding_norm": True}
MODELS = {
    "decoder": SMALL,
    "one group": replace(SMALL, layer_groups=1, activation="swiglu", norm="rmsnorm", kv_heads=1, bias=False),
    "embedding skips": replace(SMALL, embedding_skips=True, qk_norm=True),
    "encoder": replace(SMALL, **BERT),
    "encoder-decoder": replace(SMALL, architecture="encoder-decoder", decoder_layers=2, positions="relative"),
    "hybrid": replace(SMALL, mixers=("mamba2", "mamba2", "attention", "attention")),
    "rezero": replace(SMALL, norm_position="rezero"),
}
each_model = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
GPT2 = replace(SMALL, positions="learned", activation="gelu_tanh")


def random_model(config, seed=0):
    """Return a float64 model in which every parameter matters."""
    model = LanguageModel(config, seed).double().eval()
    model.compute_dtype = torch.float64
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def untied(model):
    """Return the model without groups whose layers have copies of the weights, made by the names alone."""
    config = model.config
    other = LanguageModel(replace(config, layer_groups=0)).double().eval()
    other.compute_dtype = torch.float64
    weights = model.state_dict()
    named = {}
    for name in other.state_dict():
        parts = name.split(".")
        if parts[1] == "blocks":
            count = len(getattr(other, parts[0]).blocks)
            group = int(parts[2]) * config.layer_groups // count
            parts[2] = str(group * count // config.layer_groups)
        named[name] = weights[".".join(parts)]
    other.load_state_dict(named)
    return other


def some_ids(shape=(2, 9), seed=1):
    return torch.randint(SMALL.vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def read(model, ids):
    source = some_ids(seed=2)[: len(ids)] if model.config.architecture == "encoder-decoder" else None
    return model.logits(model(ids, source))


@each_model
def test_a_model_equals_one_whose_layers_have_copies_and_its_gradients_are_their_sums(config):
    shared = random_model(config)
    copies = untied(shared)
    ids = some_ids()
    for model in (shared, copies):
        read(model, ids).square().sum().backward()
    torch.testing.assert_close(read(shared, ids), read(copies, ids), rtol=1e-13, atol=1e-13)
    sums = {name: torch.zeros_like(parameter) for name, parameter in shared.named_parameters()}
    for name, parameter in copies.named_parameters():
        parts = name.split(".")
        if parts[1] == "blocks":
            count = len(getattr(copies, parts[0]).blocks)
            parts[2] = str(int(parts[2]) - int(parts[2]) % (count // config.layer_groups))
        sums[".".join(parts)] += parameter.grad
    for name, parameter in shared.named_parameters():
        torch.testing.assert_close(parameter.grad, sums[name], rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("groups", [1, 2])
def test_the_hidden_states_are_those_of_albert(groups):
    transformers = pytest.importorskip("transformers")
    settings = transformers.AlbertConfig(
        vocab_size=37,
        embedding_size=16,
        hidden_size=16,
        num_hidden_layers=4,
        num_hidden_groups=groups,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=12,
        layer_norm_eps=1e-5,
    )
    peer = transformers.AlbertModel(settings, add_pooling_layer=False).double().eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.normal_(0.1, 0.3, generator=generator)
        # ALBERT's embedding is narrower than its layers. Here both have one width, and the projection does nothing.
        peer.encoder.embedding_hidden_mapping_in.weight.copy_(torch.eye(16))
        peer.encoder.embedding_hidden_mapping_in.bias.zero_()
    config = replace(SMALL, **BERT, activation="gelu_tanh", token_types=2, layer_groups=groups)
    model = LanguageModel(config).double().eval()
    model.compute_dtype = torch.float64
    theirs = peer.state_dict()
    names = {
        "attention.query": "attention.query",
        "attention.key": "attention.key",
        "attention.value": "attention.value",
        "attention.output": "attention.dense",
        "attention_norm": "attention.LayerNorm",
        "mlp.up": "ffn",
        "mlp.down": "ffn_output",
        "mlp_norm": "full_layer_layer_norm",
    }
    weights = {
        "embedding.weight": theirs["embeddings.word_embeddings.weight"],
        "token_types.weight": theirs["embeddings.token_type_embeddings.weight"],
        "encoder.positional.learned.weight": theirs["embeddings.position_embeddings.weight"],
    }
    for part in ("weight", "bias"):
        weights[f"encoder.embedding_norm.{part}"] = theirs[f"embeddings.LayerNorm.{part}"]
        for group in range(groups):
            layer = f"encoder.albert_layer_groups.{group}.albert_layers.0"
            for ours, name in names.items():
                weights[f"encoder.blocks.{4 * group // groups}.{ours}.{part}"] = theirs[f"{layer}.{name}.{part}"]
    head = {name: tensor for name, tensor in model.state_dict().items() if name.startswith("head.")}
    model.load_state_dict(weights | head)
    ids, types = some_ids(), some_ids() % 2
    with torch.no_grad():
        expected = peer(input_ids=ids, token_type_ids=types).last_hidden_state
        torch.testing.assert_close(model(ids, types=types), expected, rtol=1e-12, atol=1e-12)


@each_model
def test_every_weight_is_saved_and_initialised_once(config):
    model = LanguageModel(config, seed=3)
    saved = model.state_dict()
    assert list(saved) == [name for name, _ in model.named_parameters()]
    assert len({tensor.data_ptr() for tensor in saved.values()}) == len(saved)
    other = LanguageModel(config, seed=4)
    other.load_state_dict(saved)
    for loaded in (other, copy.deepcopy(other)):
        assert torch.equal(read(loaded.eval(), some_ids()), read(model.eval(), some_ids()))
        assert len(list(loaded.parameters())) == len(saved)
    with pytest.raises(RuntimeError, match=r"Missing key.*blocks\.0\.mlp"):
        other.load_state_dict({name: tensor for name, tensor in saved.items() if "blocks.0.mlp." not in name})


def test_a_saved_performer_keeps_the_random_features_of_every_layer():
    model = random_model(replace(SMALL, mixer="performer"))
    saved = model.state_dict()
    features = [tensor for name, tensor in saved.items() if name.endswith(".directions")]
    assert len(features) == 4 and not torch.equal(features[0], features[1])
    other = random_model(model.config, seed=4)
    other.load_state_dict(saved)
    assert torch.equal(read(other, some_ids()), read(model, some_ids()))


def test_as_many_groups_as_layers_is_a_model_without_groups():
    one, other = (LanguageModel(replace(SMALL, layer_groups=groups), seed=5) for groups in (0, 4))
    assert list(one.state_dict()) == list(other.state_dict())
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def test_parameters_count_once_and_flops_and_caches_by_layer():
    plain = replace(SMALL, layer_groups=0)
    in_blocks = {name: parameter_table(plain)[name] for name in ("attention", "mlp")}
    assert all(parameter_table(SMALL)[name] == number / 2 for name, number in in_blocks.items())
    assert flops_per_token(SMALL) == flops_per_token(plain)
    assert cache_bytes(SMALL, "float32", 8) == cache_bytes(plain, "float32", 8)


def test_stochastic_depth_grows_with_the_layer_also_within_a_group():
    model = LanguageModel(replace(SMALL, layer_groups=1, stochastic_depth=0.4))
    assert [block.skip for block in model.stack.blocks] == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_residual_writes_and_deepnorm_count_layers():
    """The matrices of the first layer are drawn first, so models that draw alike have the same ones."""
    deep = replace(SMALL, norm_position="deepnorm", initialization="xavier")
    for config in (SMALL, deep):
        shared, plain = (LanguageModel(replace(config, layer_groups=groups)) for groups in (1, 0))
        for name in ("attention.output", "mlp.down"):
            one, other = (model.stack.blocks[0].get_submodule(name).weight for model in (shared, plain))
            assert torch.equal(one, other)
        assert {block.stream_scale for block in shared.stack.blocks} == {plain.stack.blocks[0].stream_scale}


@pytest.mark.parametrize("name", ["decoder", "one group", "embedding skips", "hybrid"])
def test_generation_with_a_cache_equals_reading_the_whole_text(name):
    model = random_model(MODELS[name]).float()
    model.compute_dtype = torch.float32
    prompts = some_ids((3, 4))
    for each in (model, prepare(model, 1), prepare(model, 3)):
        cached = generate(each, prompts, max_new_tokens=12, temperature=0.0)
        assert torch.equal(cached, generate(model, prompts, max_new_tokens=12, temperature=0.0, use_cache=False))


def test_instruments_see_and_delete_every_layer_by_itself():
    model = random_model(SMALL)
    copies, ids = untied(model), some_ids()
    names = [f"blocks.{layer}.{part}" for layer in range(4) for part in ("hook_resid_post", "attn.hook_pattern")]
    found = []
    for each in (model, copies):
        with observed(each, names, deletions(each, ["layers.2", "heads.1.0"], None)) as seen:
            each(ids)
        found.append(seen)
    for name in names:
        torch.testing.assert_close(found[0][name], found[1][name], rtol=1e-12, atol=1e-12)
    assert torch.equal(found[0]["blocks.2.hook_resid_post"], found[0]["blocks.1.hook_resid_post"])


def test_the_health_of_training_has_one_gradient_for_a_group():
    model = random_model(SMALL)
    ids = some_ids()
    reading = ({"ids": ids[:, :-1]}, ids[:, 1:].flatten(), torch.ones(16))
    norms = [layer.gradient_norm for layer in diagnose(model, [reading]).layers]
    assert norms[0] == norms[1] > 0 and norms[2] == norms[3] > 0 and norms[0] != norms[2]


def test_a_group_is_one_layer_of_fine_tuning():
    model = TaskModel(replace(SMALL, **BERT), HeadConfig(kind="sequence", outputs=3), seed=1)
    assert len(layers(model)) == 2 + 2
    factors = {name: rate_factors(model, 0.5)[parameter] for name, parameter in model.named_parameters()}
    assert {factors[name] for name in factors if ".blocks.0." in name} == {0.5}
    assert {factors[name] for name in factors if ".blocks.2." in name} == {1.0}
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    reinitialize(model, 1, seed=7)
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed and all(".blocks.2." in name for name in changed)
    freeze(model, 1)
    assert all(p.requires_grad == (".blocks.0." not in n) for n, p in model.named_parameters() if ".blocks." in n)


def test_adapters_are_shared_too_and_merge_into_the_shared_weights():
    model = random_model(SMALL)
    adapted = copy.deepcopy(model)
    lora = LoraConfig(rank=2, alpha=4.0, targets=("all",))
    add_lora(adapted, lora)
    adapted.double()
    weights = adapted.state_dict()
    assert any(name.startswith("decoder.blocks.2.") and name.endswith(".lora_a") for name in weights)
    assert not any(name.startswith(("decoder.blocks.1.", "decoder.blocks.3.")) for name in weights)
    generator = torch.Generator().manual_seed(2)
    for name, parameter in adapted.named_parameters():
        if "lora" in name:
            parameter.data.normal_(0, 0.3, generator=generator)
    merged = random_model(SMALL)
    merged.load_state_dict(merge_lora(adapted.state_dict(), lora.scale))
    ids = some_ids()
    assert not torch.allclose(read(adapted, ids), read(model, ids), atol=0.01)
    for other in (merged, prepare(adapted).model):
        torch.testing.assert_close(read(other, ids), read(adapted, ids), rtol=1e-12, atol=1e-12)


def test_exports_write_the_weights_of_every_layer():
    model = random_model(GPT2)
    ids, expected = some_ids(), read(random_model(GPT2), some_ids())
    torch.testing.assert_close(in_transformers(model)(ids).logits, expected, rtol=1e-10, atol=1e-10)
    _, keys, tensors = to_gguf(GPT2, model.state_dict())
    gguf = from_gguf({"general.architecture": "gpt2", **keys}, tensors, "model.gguf")
    for back in (from_hugging_face(*to_hugging_face(GPT2, model.state_dict())), gguf):
        again = LanguageModel(back.config).eval()
        again.load_state_dict(back.weights)
        assert back.config.layer_groups == 0
        torch.testing.assert_close(read(again, ids), expected.float(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"layer_groups": 3}, ["model.layer_groups is 3", "model.layers=4", "model.layer_groups=2"]),
        ({"layer_groups": -1}, ["model.layer_groups", "-1", "no sharing"]),
        ({"layer_groups": 9}, ["model.layer_groups is 9", "model.layers=4", "model.layer_groups=4"]),
        (
            {"architecture": "encoder-decoder", "decoder_layers": 3},
            ["model.layer_groups is 2", "model.decoder_layers=3", "model.layer_groups=1"],
        ),
        ({"mixers": ("mamba2", "attention")}, ["layers 0 and 1", "'mamba2' and 'attention'"]),
        (
            {"architecture": "encoder-decoder", "layers": 2, "decoder_layers": 4, "mixers": ("linear", "performer")},
            ["model.decoder_layers=4", "layers 0 and 1", "'linear' and 'performer'"],
        ),
        ({"value_embeddings": 1}, ["model.layer_groups is 2", "model.value_embeddings=1"]),
        ({"architecture": "encoder", "embedding_norm": True}, ["model.layer_groups is 2", "model.embedding_norm=True"]),
    ],
)
def test_groups_that_cannot_share_are_refused_by_name(fields, words):
    with pytest.raises(ValueError) as refusal:
        replace(SMALL, **fields)
    for word in words:
        assert word in str(refusal.value)
