"""Adapters change nothing at first, train alone, and fold into the weights, in every architecture and mixer."""

from dataclasses import replace
from typing import get_args

import pytest
import torch

from lm.config import MixerKind, ModelConfig
from lm.costs import count_parameters, flops_per_token
from lm.decoding.packed import prepare
from lm.head_config import HeadConfig
from lm.introspection.activations import activation_names, observed
from lm.introspection.attribution import attribute
from lm.introspection.circuits import copying_scores, decompose_logits, qk_circuit
from lm.introspection.memories import values_in_vocabulary
from lm.layers import Linear
from lm.lora import LoraLinear, add_lora, merge_lora
from lm.lora_config import LoraConfig
from lm.optim.muon import Muon
from lm.optim.optimizer_settings import OptimizerSettings
from lm.optim.optimizers import build_optimizers
from lm.task_model import build_model

SMALL = ModelConfig(layers=2, width=32, heads=2, context_length=16, vocab_size=61)
MODELS = {
    **{f"decoder of {mixer}": replace(SMALL, mixer=mixer) for mixer in get_args(MixerKind)},
    "hybrid decoder": replace(SMALL, mixers=("mamba2", "attention")),
    "gated decoder": replace(SMALL, activation="swiglu", norm="rmsnorm", kv_heads=1, bias=False),
    "decoder with relative keys": replace(SMALL, positions="relative-keys", relative_distance=4),
    "encoder": replace(SMALL, architecture="encoder", norm_position="post"),
    "encoder-decoder": replace(SMALL, architecture="encoder-decoder", positions="relative"),
}
EVERYWHERE = LoraConfig(rank=3, alpha=6.0, targets=("all",))


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def config(request):
    return request.param


def read(model, dtype=torch.float32):
    """Return the logits of a few ids."""
    ids = torch.arange(24).reshape(2, 12) % model.config.vocab_size
    source = ids.flip(0) if model.config.architecture == "encoder-decoder" else None
    model.compute_dtype = dtype
    with torch.no_grad():
        outputs = model(ids, source)
        return model.logits(outputs) if hasattr(model, "logits") else outputs


def randomise(model, seed=5):
    """Give all adapters random values, as training does."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, LoraLinear):
            module.lora_a.data.normal_(0, 0.3, generator=generator)
            module.lora_b.data.normal_(0, 0.3, generator=generator)


def adapted_and_merged(config):
    """Return a model with random adapters on all layers, and the plain model that computes the same."""
    model, plain = build_model(config, None, seed=1).eval(), build_model(config, None, seed=None).eval()
    add_lora(model, EVERYWHERE)
    randomise(model)
    plain.load_state_dict(merge_lora(model.state_dict(), EVERYWHERE.scale))
    return model, plain


def textbook(model, base):
    """Return the logits of a plain model whose weights are W + alpha / r B A, computed layer by layer."""
    plain = build_model(base.config, None, seed=None)
    weights = dict(base.state_dict())
    for name, module in model.named_modules():
        if isinstance(module, LoraLinear):
            change = torch.einsum("or,ri->oi", module.lora_b, module.lora_a) * (EVERYWHERE.alpha / EVERYWHERE.rank)
            weights[f"{name}.weight"] = base.state_dict()[f"{name}.weight"] + change.detach()
    plain.load_state_dict(weights)
    return read(plain.eval())


def test_a_fresh_adapter_gives_the_logits_of_the_base_exactly(config):
    model = build_model(config, None, seed=1).eval()
    before = read(model)
    add_lora(model, EVERYWHERE)
    assert any(isinstance(module, LoraLinear) for module in model.modules())
    if config.mixer in ("gru", "lstm"):  # steps with adapters instead of PyTorch's layer
        torch.testing.assert_close(read(model), before, rtol=1e-6, atol=1e-6)
    else:
        assert torch.equal(read(model), before)


def test_a_trained_adapter_adds_its_low_rank_product_to_every_linear_layer_of_the_blocks(config):
    base, model = build_model(config, None, seed=1).eval(), build_model(config, None, seed=1).eval()
    add_lora(model, EVERYWHERE)
    assert all(isinstance(m, LoraLinear) for n, m in model.named_modules() if ".blocks." in n and isinstance(m, Linear))
    randomise(model)
    assert not torch.allclose(read(model), read(base), atol=1e-3)
    torch.testing.assert_close(read(model), textbook(model, base), rtol=1e-5, atol=1e-5)


def test_merged_weights_are_those_of_a_plain_model_that_computes_the_same(config):
    model, plain = adapted_and_merged(config)
    torch.testing.assert_close(read(plain), read(model), rtol=1e-5, atol=1e-5)


def test_a_model_for_generation_computes_what_its_adapters_do(config):
    model = build_model(config, None, seed=1).eval()
    add_lora(model, EVERYWHERE)
    randomise(model)
    expected = read(model)
    torch.testing.assert_close(read(prepare(model).model), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(read(model), expected)


def test_an_edit_of_activations_to_themselves_keeps_what_adapters_do():
    model, _ = adapted_and_merged(SMALL)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        expected = model(ids)
        for name in activation_names(model):
            with observed(model, edits={name: lambda x: x}):
                torch.testing.assert_close(model(ids), expected, rtol=1e-4, atol=1e-4)


def test_the_logit_of_an_adapted_model_is_the_sum_of_its_parts():
    found = attribute(adapted_and_merged(SMALL)[0], torch.arange(12), target=7)
    assert sum(found.terms.values()) == pytest.approx(found.logit, abs=1e-4)
    model, ids = adapted_and_merged(replace(SMALL, layers=1, mlp=False))[0], torch.arange(12)[None]
    with torch.no_grad():
        torch.testing.assert_close(decompose_logits(model, ids).total(), model.logits(model(ids)), rtol=1e-4, atol=1e-4)


def test_circuits_and_memories_of_an_adapted_model_are_those_of_its_merged_weights():
    model, plain = adapted_and_merged(SMALL)
    for measure in (
        copying_scores,
        lambda one: qk_circuit(one, 1, 0),
        lambda one: values_in_vocabulary(one, 0, torch.arange(4)),
    ):
        torch.testing.assert_close(measure(model), measure(plain), rtol=1e-4, atol=1e-4)


def test_only_adapters_and_the_head_of_a_task_have_gradients_and_optimizer_state(config):
    model = build_model(config, HeadConfig(kind="sequence", outputs=3), seed=1)
    add_lora(model, LoraConfig(rank=2, targets=("all",)))
    randomise(model)
    ids = torch.arange(24).reshape(2, 12)
    source = ids.flip(0) if config.architecture == "encoder-decoder" else None
    optimizers = build_optimizers(model, OptimizerSettings(kind="muon"))
    model.loss(model(ids, source).flatten(0, -2), torch.tensor([0, 2])).backward()
    optimizers.step()
    named = dict(model.named_parameters())
    trained = {name for name in named if name.startswith("head.") or ".lora_" in name}
    assert {name for name, parameter in named.items() if parameter.grad is not None} == trained
    assert {id(parameter) for parameter, state in optimizers.state() if state} == {id(named[name]) for name in trained}
    assert not any(isinstance(part, Muon) for part in optimizers.parts)


def test_the_first_matrix_is_drawn_as_in_peft_and_the_second_is_zero():
    model = build_model(replace(SMALL, width=64), None, seed=1)
    add_lora(model, LoraConfig(rank=8, targets=("down",)), seed=3)
    layers = [module for module in model.modules() if isinstance(module, LoraLinear)]
    values = torch.cat([layer.lora_a.flatten() for layer in layers])
    limit = 256**-0.5  # Kaiming uniform with a = sqrt(5)
    assert 0.98 * limit < float(values.abs().max()) <= limit
    assert float(values.std()) == pytest.approx(limit / 3**0.5, rel=0.03)
    assert not any(layer.lora_b.any() for layer in layers)
    again, other = (build_model(replace(SMALL, width=64), None, seed=1) for _ in range(2))
    for built, seed in ((again, 3), (other, 4)):
        add_lora(built, LoraConfig(rank=8, targets=("down",)), seed=seed)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_costs_count_what_adapters_train():
    """A frozen matrix costs 4 operations a weight and token, an adapter 6."""
    config = replace(SMALL, tied_head=False)
    base, model = (build_model(config, None, seed=1) for _ in range(2))
    add_lora(model, LoraConfig(rank=4, targets=("query", "down")))
    added = 2 * (4 * (32 + 32) + 4 * (32 + 128))
    assert count_parameters(model) == count_parameters(base) + added
    assert sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad) == added
    matrices = 2 * (4 * 32 * 32 + 2 * 32 * 128) + 61 * 32
    assert flops_per_token(model) == flops_per_token(base) - 2 * matrices + 6 * added


def test_adapters_compute_in_bfloat16_as_the_layers_do():
    model = build_model(SMALL, None, seed=1).eval()
    add_lora(model, EVERYWHERE)
    randomise(model)
    exact, rounded = read(model), read(model, torch.bfloat16)
    assert rounded.dtype == torch.bfloat16
    assert float((rounded.float() - exact).abs().max()) < 0.05 * float(exact.abs().max())


def test_dropout_of_adapters_drops_their_input_in_training_only():
    model = build_model(replace(SMALL, dropout=0.0), None, seed=1)
    add_lora(model, replace(EVERYWHERE, dropout=0.5))
    randomise(model)
    assert not torch.equal(read(model.train()), read(model))
    assert torch.equal(read(model.eval()), read(model))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"targets": ("query", "q_proj")}, "`lora.targets` names 'q_proj', but the linear layers .* are query, key"),
        ({"targets": ()}, "`lora.targets` is empty"),
        ({"rank": -1}, "`lora.rank` is -1"),
        ({"alpha": 0.0}, "`lora.alpha` is 0"),
        ({"dropout": 1.0}, "`lora.dropout` is 1"),
        ({"rank": 2.5}, "lora.rank is 2.5, but must be a whole number"),
    ],
)
def test_wrong_options_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        add_lora(build_model(SMALL, None), LoraConfig(**{"rank": 2, **options}))
