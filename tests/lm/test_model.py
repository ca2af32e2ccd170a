"""Promises of a built model, checked for every option."""

import math

import pytest
import torch

from lm.config import ModelConfig
from lm.model import LanguageModel

OPTIONS = {
    "gpt2": {"positions": "learned", "activation": "gelu_tanh"},
    "llama": {"norm": "rmsnorm", "activation": "swiglu", "bias": False, "tied_head": False},
    "gpt-neox": {"rotary_width": 4, "residual": "parallel", "tied_head": False},
    "transformer": {"positions": "sinusoidal", "norm_position": "post"},
    "bert": {"architecture": "encoder", "positions": "learned", "norm_position": "post", "embedding_norm": True},
    "modernbert": {"architecture": "encoder", "activation": "geglu", "embedding_norm": True, "bias": False},
    "t5": {
        "architecture": "encoder-decoder",
        "positions": "relative",
        "norm": "rmsnorm",
        "activation": "relu",
        "bias": False,
        "scaled_attention": False,
        "scaled_head": True,
        "decoder_layers": 3,
    },
    "translator": {
        "architecture": "encoder-decoder",
        "positions": "sinusoidal",
        "norm_position": "post",
        "activation": "relu",
        "initialization": "xavier",
    },
    "grouped": {"kv_heads": 2, "qk_norm": True, "activation": "geglu", "soft_cap": 5.0, "window": 7},
    "modern": {
        "norm": "rmsnorm",
        "qk_norm": True,
        "activation": "relu2",
        "bias": False,
        "tied_head": False,
        "value_embeddings": 1,
        "embedding_skips": True,
        "soft_cap": 15.0,
    },
    "modern-bert": {"architecture": "encoder", "activation": "swiglu", "bias": False, "tied_head": False},
}


def tiny(name, **changes):
    shape = {"vocab_size": 61, "context_length": 24, "layers": 2, "width": 32, "heads": 4}
    return ModelConfig(**{**shape, **OPTIONS[name], **changes})


@pytest.fixture(params=sorted(OPTIONS))
def config(request):
    return tiny(request.param)


def read(model, ids, seed=3, **options):
    """Return the hidden states of `ids`. An encoder-decoder also reads a source of 17 tokens."""
    if model.config.architecture != "encoder-decoder":
        return model(ids, **options)
    return model(ids, some_ids(len(ids), 17, seed), **options)


def some_ids(batch=3, length=24, seed=1):
    return torch.randint(0, 61, (batch, length), generator=torch.Generator().manual_seed(seed))


def test_hidden_states_logits_and_loss_have_their_shapes_and_dtypes(config):
    model = LanguageModel(config, seed=0)
    for dtype in (torch.float32, torch.bfloat16):
        model.compute_dtype = dtype
        hidden = read(model, some_ids())
        assert hidden.shape == (3, 24, 32)
        assert hidden.dtype == dtype
        assert model.logits(hidden).shape == (3, 24, 61)
        loss = model.loss(hidden.flatten(0, 1), some_ids().flatten())
        assert loss.shape == ()
        assert loss.dtype == torch.float32


def test_every_parameter_learns_in_float32_whatever_the_compute_dtype(config):
    model = LanguageModel(config, seed=0)
    model.compute_dtype = torch.bfloat16
    model.loss(read(model, some_ids()).flatten(0, 1), some_ids(seed=2).flatten()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32, name
        assert parameter.grad.dtype == torch.float32, name
        assert parameter.grad.isfinite().all(), name
        if not name.endswith("key.bias"):  # it shifts all scores of a query by the same amount, which softmax ignores
            assert parameter.grad.abs().max() > 0, name


def test_bfloat16_stays_close_to_float32(config):
    model = LanguageModel(config, seed=0)
    targets = some_ids(seed=2).flatten()
    losses = []
    for dtype in (torch.float32, torch.bfloat16):
        model.compute_dtype = dtype
        losses.append(model.loss(read(model, some_ids()).flatten(0, 1), targets).item() / targets.numel())
    assert losses[1] == pytest.approx(losses[0], abs=0.02)
    assert losses[1] != losses[0]


def test_loss_is_the_cross_entropy_of_the_logits(config):
    model = LanguageModel(config, seed=0).double()
    model.compute_dtype = torch.float64
    rows = read(model, some_ids()).flatten(0, 1)
    targets, weights = some_ids(seed=2).flatten(), torch.rand(72, dtype=torch.float64)
    each = torch.nn.functional.cross_entropy(model.logits(rows), targets, reduction="none")
    torch.testing.assert_close(model.loss(rows, targets, weights), (weights * each).sum())
    torch.testing.assert_close(model.loss(rows, targets), each.sum())


def test_a_fresh_model_predicts_nearly_uniformly(config):
    model = LanguageModel(config, seed=0)
    loss = model.loss(read(model, some_ids()).flatten(0, 1), some_ids(seed=2).flatten()).item() / 72
    # xavier's tied embedding gives logits of unit variance, which cost half a nat on average
    assert loss == pytest.approx(math.log(61), abs=0.35 if config.initialization == "gpt2" else 1.0)


@pytest.mark.parametrize("name", sorted(OPTIONS))
@pytest.mark.parametrize("attention", ["reference", "blocked", "sdpa"])
def test_a_decoder_sees_no_future_and_an_encoder_sees_everything(name, attention):
    model = LanguageModel(tiny(name, attention=attention), seed=0)
    embedded = []
    model.embedding.register_forward_hook(lambda _module, _inputs, output: embedded.append(output))
    hidden = read(model, some_ids(batch=1, length=6))[0]
    for t in range(6):
        influence = torch.autograd.grad(hidden[t].square().sum(), embedded[-1], retain_graph=True)[0][0]
        seen = influence.abs().sum(dim=-1) > 0
        expected = [s <= t or not model.config.causal for s in range(6)]
        assert seen.tolist() == expected


def sharpened(config):
    """Return a model with sharp attention; a fresh model attends nearly uniformly."""
    model = LanguageModel(config, seed=0)
    with torch.no_grad():
        for block in model.stack.blocks:
            block.attention.query.weight *= 30
            block.attention.key.weight *= 30
    return model


def test_without_positions_an_encoder_is_permutation_equivariant():
    model = sharpened(tiny("bert"))
    with torch.no_grad():
        model.stack.positional.learned.weight.zero_()
    ids, order = some_ids(), torch.randperm(24)
    torch.testing.assert_close(model(ids)[:, order], model(ids[:, order]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
def test_positions_make_order_matter(positions):
    model = sharpened(tiny("bert", positions=positions))
    ids = some_ids(batch=1)
    assert (model(ids).flip(1) - model(ids.flip(1))).abs().max() > 0.01


def test_sinusoidal_embeddings_are_scaled_by_the_root_of_the_width():
    model = LanguageModel(tiny("transformer"), seed=0)
    embedded = model.embedding(some_ids())
    added = model.stack.positional(embedded, slice(0, 24)) - math.sqrt(32) * embedded
    torch.testing.assert_close(added, model.stack.positional.table.expand(3, -1, -1), atol=1e-5, rtol=0)


def test_the_same_seed_builds_the_same_weights_and_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    first, second, other = (LanguageModel(tiny("llama"), seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, second.get_parameter(name)), name
    assert not torch.equal(first.embedding.weight, other.embedding.weight)


def test_dropout_acts_in_training_only():
    model = LanguageModel(tiny("gpt2", dropout=0.5), seed=0)
    assert not torch.equal(read(model, some_ids()), read(model, some_ids()))
    model.eval()
    torch.testing.assert_close(read(model, some_ids()), read(model, some_ids()), atol=0, rtol=0)
    still = LanguageModel(tiny("gpt2"), seed=0)
    torch.testing.assert_close(read(model, some_ids()), read(still, some_ids()), atol=0, rtol=0)


def test_state_dict_holds_a_tied_matrix_once_and_restores_the_model(config):
    model = LanguageModel(config, seed=0)
    state = model.state_dict()
    assert sum(tensor.numel() for tensor in state.values()) == sum(p.numel() for p in model.parameters())
    other = LanguageModel(config, seed=1)
    other.load_state_dict(state)
    assert torch.equal(read(other, some_ids()), read(model, some_ids()))


def test_more_positions_than_the_context_are_refused(config):
    model = LanguageModel(config, seed=0)
    if config.positions == "relative":  # it has no last position
        assert read(model, some_ids(length=25)).shape == (3, 25, 32)
        return
    with pytest.raises(ValueError, match=r"25 positions .* model\.context_length=24"):
        read(model, some_ids(length=25))


def test_only_encoder_decoders_accept_a_source():
    with pytest.raises(ValueError, match="'encoder-decoder' was called without a source"):
        LanguageModel(tiny("t5"), seed=0)(some_ids())
    with pytest.raises(ValueError, match="'decoder' was called with a source"):
        LanguageModel(tiny("gpt2"), seed=0)(some_ids(), some_ids())


@pytest.mark.parametrize("name", ["t5", "translator"])
def test_every_target_position_reads_the_whole_source_but_no_padding(name):
    model = LanguageModel(tiny(name), seed=0)
    embedded = []
    model.embedding.register_forward_hook(lambda _module, _inputs, output: embedded.append(output))
    present = torch.arange(17) < 11
    hidden = model(some_ids(1, 6), some_ids(1, 17, seed=3), source_present=present.unsqueeze(0))[0]
    for t in range(6):
        influence = torch.autograd.grad(hidden[t].square().sum(), embedded[0], retain_graph=True)[0][0]
        assert torch.equal(influence.abs().sum(dim=-1) > 0, present)


@pytest.mark.parametrize("name", ["gpt2", "t5", "bert", "grouped"])
def test_padding_does_not_change_the_hidden_states_of_other_tokens(name):
    model = LanguageModel(tiny(name), seed=0)
    ids, source = some_ids(2, 9), some_ids(2, 7, seed=3)
    padded = torch.cat((ids, some_ids(2, 4, seed=5)), dim=1)
    present = (torch.arange(13) < 9).expand(2, -1)
    if name == "t5":
        longer = torch.cat((source, some_ids(2, 5, seed=6)), dim=1)
        there = (torch.arange(12) < 7).expand(2, -1)
        got, expected = model(padded, longer, present=present, source_present=there), model(ids, source)
    else:
        got, expected = model(padded, present=present), model(ids)
    torch.testing.assert_close(got[:, :9], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("number", [0, 1, 10, 72])
def test_hidden_states_and_gradients_of_selected_rows_equal_those_of_the_full_pass(config, number):
    model = LanguageModel(config, seed=0)
    rows = torch.randperm(3 * 24, generator=torch.Generator().manual_seed(2))[:number]
    found = []
    for hidden in (read(model, some_ids()).flatten(0, 1)[rows], read(model, some_ids(), rows=rows)):
        model.loss(hidden, torch.arange(number) % 61).backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        found.append((hidden, {name: gradient for name, gradient in gradients.items() if gradient is not None}))
        model.zero_grad()
    torch.testing.assert_close(found[1], found[0], atol=2e-5, rtol=1e-4)


def test_selected_rows_of_a_sequence_skip_a_layer_together():
    """A skipped layer returns its input. Either all rows of a sequence skip it or none."""
    model = LanguageModel(tiny("llama", stochastic_depth=0.5), seed=0).train()
    rows = torch.arange(3 * 24)
    torch.manual_seed(4)
    whole = model(some_ids()).flatten(0, 1)
    torch.manual_seed(4)
    torch.testing.assert_close(model(some_ids(), rows=rows), whole)


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_each_segment_of_a_block_is_read_as_if_alone(name):
    """This holds for rotary and relative positions, which depend on offsets only."""
    options = {"architecture": "decoder", "decoder_layers": 0} if name == "t5" else {}
    model = LanguageModel(tiny(name, **options), seed=0)
    first, second = some_ids(2, 9), some_ids(2, 12, seed=4)
    segments = (torch.arange(21) >= 9).long().expand(2, -1)
    together = model(torch.cat((first, second), dim=1), segments=segments)
    torch.testing.assert_close(together[:, :9], model(first), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(together[:, 9:], model(second), atol=1e-5, rtol=1e-5)


def test_a_window_hides_tokens_farther_back():
    model = LanguageModel(tiny("llama", window=3, layers=1), seed=0)
    embedded = []
    model.embedding.register_forward_hook(lambda _module, _inputs, output: embedded.append(output))
    hidden = model(some_ids(1, 10))[0]
    for t in range(10):
        influence = torch.autograd.grad(hidden[t].square().sum(), embedded[0], retain_graph=True)[0][0]
        assert (influence.abs().sum(dim=-1) > 0).tolist() == [t - 3 < s <= t for s in range(10)]


def test_token_types_default_to_zero_and_change_the_output():
    model = LanguageModel(tiny("bert", token_types=2), seed=0)
    zeros, ones = torch.zeros(3, 24, dtype=torch.int64), torch.ones(3, 24, dtype=torch.int64)
    torch.testing.assert_close(model(some_ids()), model(some_ids(), types=zeros), atol=0, rtol=0)
    assert not torch.equal(model(some_ids()), model(some_ids(), types=ones))


def test_soft_cap_bounds_the_logits():
    model = LanguageModel(tiny("gpt2", soft_cap=2.0), seed=0)
    with torch.no_grad():
        model.embedding.weight *= 1000
    logits = model.logits(model(some_ids()))
    assert logits.abs().max() <= 2.0
    assert logits.abs().max() > 1.99


def test_a_model_without_a_vocabulary_is_refused():
    with pytest.raises(ValueError, match=r"model\.vocab_size is 0"):
        LanguageModel(ModelConfig())


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5", "modern", "grouped"])
def test_model_and_loss_trace_into_one_graph(name):
    """torch.compile finds no reason to break the graph, and the traced graph gives the same numbers."""
    model = LanguageModel(tiny(name), seed=0)
    source = some_ids(seed=3) if name == "t5" else None

    def loss(ids, targets):
        return model.loss(model(ids, source).flatten(0, 1), targets.flatten())

    torch._dynamo.reset()
    traced = torch.compile(loss, fullgraph=True, backend="eager")
    ids, targets = some_ids(), some_ids(seed=2)
    torch.testing.assert_close(traced(ids, targets), loss(ids, targets), atol=0, rtol=0)


def test_a_small_model_memorises_a_fixed_sequence():
    model = LanguageModel(tiny("gpt2"), seed=0)
    ids = some_ids(batch=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        loss = model.loss(model(ids[:, :-1])[0], ids[0, 1:]) / 23
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
