"""What a built model promises, for every option."""

import math

import pytest
import torch

from lm.config import ModelConfig
from lm.model import LanguageModel, build_model

OPTIONS = {
    "gpt2": {"positions": "learned", "activation": "gelu_tanh"},
    "llama": {"norm": "rmsnorm", "activation": "swiglu", "bias": False, "tied_head": False},
    "transformer": {"positions": "sinusoidal", "norm_position": "post"},
    "bert": {"architecture": "encoder", "positions": "learned", "norm_position": "post"},
    "modern-bert": {"architecture": "encoder", "activation": "swiglu", "bias": False, "tied_head": False},
}


def tiny(name, **changes):
    shape = {"vocab_size": 61, "context_length": 24, "layers": 2, "width": 32, "heads": 4}
    return ModelConfig(**{**shape, **OPTIONS[name], **changes})


@pytest.fixture(params=sorted(OPTIONS))
def config(request):
    return tiny(request.param)


def some_ids(batch=3, length=24, seed=1):
    return torch.randint(0, 61, (batch, length), generator=torch.Generator().manual_seed(seed))


def test_hidden_states_logits_and_loss_have_their_shapes_and_dtypes(config):
    model = build_model(config, seed=0)
    for dtype in (torch.float32, torch.bfloat16):
        model.compute_dtype = dtype
        hidden = model(some_ids())
        assert hidden.shape == (3, 24, 32)
        assert hidden.dtype == dtype
        assert model.logits(hidden).shape == (3, 24, 61)
        loss = model.loss(hidden.flatten(0, 1), some_ids().flatten())
        assert loss.shape == ()
        assert loss.dtype == torch.float32


def test_every_parameter_learns_in_float32_whatever_the_compute_dtype(config):
    model = build_model(config, seed=0)
    model.compute_dtype = torch.bfloat16
    model.loss(model(some_ids()).flatten(0, 1), some_ids(seed=2).flatten()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32, name
        assert parameter.grad.dtype == torch.float32, name
        assert parameter.grad.isfinite().all(), name
        if not name.endswith("key.bias"):  # it shifts all scores of a query alike, and softmax ignores that
            assert parameter.grad.abs().max() > 0, name


def test_bfloat16_stays_close_to_float32(config):
    model = build_model(config, seed=0)
    targets = some_ids(seed=2).flatten()
    losses = []
    for dtype in (torch.float32, torch.bfloat16):
        model.compute_dtype = dtype
        losses.append(model.loss(model(some_ids()).flatten(0, 1), targets).item() / targets.numel())
    assert losses[1] == pytest.approx(losses[0], abs=0.02)
    assert losses[1] != losses[0]


def test_loss_is_the_cross_entropy_of_the_logits(config):
    model = build_model(config, seed=0).double()
    model.compute_dtype = torch.float64
    rows = model(some_ids()).flatten(0, 1)
    targets, weights = some_ids(seed=2).flatten(), torch.rand(72, dtype=torch.float64)
    each = torch.nn.functional.cross_entropy(model.logits(rows), targets, reduction="none")
    torch.testing.assert_close(model.loss(rows, targets, weights), (weights * each).sum())
    torch.testing.assert_close(model.loss(rows, targets), each.sum())


def test_a_fresh_model_predicts_nearly_uniformly(config):
    model = build_model(config, seed=0)
    loss = model.loss(model(some_ids()).flatten(0, 1), some_ids(seed=2).flatten()).item() / 72
    assert loss == pytest.approx(math.log(61), abs=0.35)


@pytest.mark.parametrize("name", sorted(OPTIONS))
@pytest.mark.parametrize("attention", ["reference", "blocked", "sdpa"])
def test_a_decoder_sees_no_future_and_an_encoder_sees_everything(name, attention):
    model = build_model(tiny(name, attention=attention), seed=0)
    embedded = []
    model.trunk.embedding.register_forward_hook(lambda _module, _inputs, output: embedded.append(output))
    hidden = model(some_ids(batch=1, length=6))[0]
    for t in range(6):
        influence = torch.autograd.grad(hidden[t].square().sum(), embedded[0], retain_graph=True)[0][0]
        seen = influence.abs().sum(dim=-1) > 0
        expected = [s <= t or not model.config.causal for s in range(6)]
        assert seen.tolist() == expected


def sharpened(config):
    """A model whose attention picks, where a fresh one takes nearly plain means."""
    model = build_model(config, seed=0)
    with torch.no_grad():
        for block in model.trunk.blocks:
            block.attention.query.weight *= 30
            block.attention.key.weight *= 30
    return model


def test_without_positions_an_encoder_is_permutation_equivariant():
    model = sharpened(tiny("bert"))
    with torch.no_grad():
        model.trunk.positional.learned.weight.zero_()
    ids, order = some_ids(), torch.randperm(24)
    torch.testing.assert_close(model(ids)[:, order], model(ids[:, order]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
def test_positions_make_order_matter(positions):
    model = sharpened(tiny("bert", positions=positions))
    ids = some_ids(batch=1)
    assert (model(ids).flip(1) - model(ids.flip(1))).abs().max() > 0.01


def test_sinusoidal_embeddings_are_scaled_by_the_root_of_the_width():
    model = build_model(tiny("transformer"), seed=0)
    embedded = model.trunk.embedding(some_ids())
    added = model.trunk.positional(embedded, slice(0, 24)) - math.sqrt(32) * embedded
    torch.testing.assert_close(added, model.trunk.positional.table.expand(3, -1, -1), atol=1e-5, rtol=0)


def test_the_same_seed_builds_the_same_weights_and_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    first, second, other = (build_model(tiny("llama"), seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, second.get_parameter(name)), name
    assert not torch.equal(first.trunk.embedding.weight, other.trunk.embedding.weight)


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_initialisation_follows_its_table(name):
    model = build_model(tiny(name, width=128, heads=4, vocab_size=600, context_length=128, layers=8), seed=0)
    for key, parameter in model.named_parameters():
        if key.endswith("bias"):
            assert parameter.count_nonzero() == 0, key
        elif key.endswith("norm.weight"):
            assert (parameter == 1).all(), key
        else:
            residual = "attention.output" in key or "mlp.down" in key
            expected = 0.02 / math.sqrt(2 * 8) if residual else 0.02
            # the standard error of the deviation of n normal numbers is std / sqrt(2n)
            slack = 5 * expected / math.sqrt(2 * parameter.numel())
            assert parameter.std().item() == pytest.approx(expected, abs=slack), key
            assert abs(parameter.mean().item()) < 5 * expected / math.sqrt(parameter.numel()), key


def test_dropout_acts_in_training_only():
    model = build_model(tiny("gpt2", dropout=0.5), seed=0)
    assert not torch.equal(model(some_ids()), model(some_ids()))
    model.eval()
    torch.testing.assert_close(model(some_ids()), model(some_ids()), atol=0, rtol=0)
    still = build_model(tiny("gpt2"), seed=0)
    torch.testing.assert_close(model(some_ids()), still(some_ids()), atol=0, rtol=0)


def test_state_dict_holds_a_tied_matrix_once_and_restores_the_model(config):
    model = build_model(config, seed=0)
    state = model.state_dict()
    assert sum(tensor.numel() for tensor in state.values()) == sum(p.numel() for p in model.parameters())
    other = build_model(config, seed=1)
    other.load_state_dict(state)
    assert torch.equal(other(some_ids()), model(some_ids()))


def test_more_positions_than_the_context_are_refused(config):
    with pytest.raises(ValueError, match=r"25 positions .* model\.context_length=24"):
        build_model(config, seed=0)(some_ids(length=25))


def test_a_model_without_a_vocabulary_is_refused():
    with pytest.raises(ValueError, match=r"model\.vocab_size is 0"):
        LanguageModel(ModelConfig())


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_model_and_loss_trace_into_one_graph(name):
    """torch.compile finds no reason to break the graph, and the traced graph gives the same numbers."""
    model = build_model(tiny(name), seed=0)

    def loss(ids, targets):
        return model.loss(model(ids).flatten(0, 1), targets.flatten())

    torch._dynamo.reset()
    traced = torch.compile(loss, fullgraph=True, backend="eager")
    ids, targets = some_ids(), some_ids(seed=2)
    torch.testing.assert_close(traced(ids, targets), loss(ids, targets), atol=0, rtol=0)


def test_a_small_model_learns_a_fixed_sequence_by_heart():
    model = build_model(tiny("gpt2"), seed=0)
    ids = some_ids(batch=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        loss = model.loss(model(ids[:, :-1])[0], ids[0, 1:]) / 23
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
