"""Attention maps, circuits and path decomposition."""

import math
from dataclasses import replace

import pytest
import torch

from lm.introspection.activations import observed
from lm.introspection.attention_maps import attention_maps, head_scores, record
from lm.introspection.attribution import attribute
from lm.introspection.circuits import (
    copying_scores,
    decompose_logits,
    ov_circuit,
    qk_circuit,
    token_ov_circuit,
    token_qk_circuit,
)
from lm.model import LanguageModel
from tests.lm.introspection_cases import (
    ONE_LAYER,
    OPTIONS,
    PEERS,
    TINY,
    in_transformers,
    induction_model,
    randomised,
    some_ids,
)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_paths_of_a_one_layer_model_add_up_to_its_logits(options):
    config = replace(ONE_LAYER, **options)
    model, ids = randomised(config), some_ids(config)
    paths = decompose_logits(model, ids)
    assert paths.heads.shape == (4, 2, 11, 23)
    torch.testing.assert_close(paths.total(), model.logits(model(ids)), rtol=1e-10, atol=1e-10)
    assert all(head.abs().max() > 1e-3 for head in paths.heads)


def test_without_biases_the_constant_is_zero_and_a_zeroed_head_adds_nothing():
    config = replace(ONE_LAYER, bias=False)
    model = randomised(config)
    with torch.no_grad():
        model.decoder.blocks[0].attention.output.weight[:, 4:8] = 0.0  # head 1 writes nothing
    paths = decompose_logits(model, some_ids(config))
    assert not paths.constant.any()
    assert not paths.heads[1].any()


@pytest.mark.parametrize(
    ("positions", "norm_position"), [("none", "pre"), ("rotary", "pre"), ("learned", "pre"), ("rotary", "post")]
)
def test_a_heads_term_is_its_attention_times_its_ov_circuit(positions, norm_position):
    """Path expansion of Elhage et al. 2021: head h adds A^h times W_U W_O W_V W_E, up to the scales of norms."""
    config = replace(ONE_LAYER, bias=False, norm="rmsnorm", positions=positions, norm_position=norm_position)
    model, ids = randomised(config), some_ids(config)
    if positions == "learned":
        with torch.no_grad():
            model.decoder.positional.learned.weight.zero_()  # so that only the token counts
    weights = attention_maps(model, ids).own[0]  # (B, H, T, T)
    embedded, block = model.embedding.weight[ids], model.decoder.blocks[0]
    read = block.attention_norm(embedded) if norm_position == "pre" else embedded
    read_scale = (embedded.square().mean(-1, keepdim=True) + config.norm_eps).sqrt() if norm_position == "pre" else 1.0
    stream = embedded + block.attention(read, *_rotary_and_attend(model, ids))
    write_scale = (stream.square().mean(-1, keepdim=True) + config.norm_eps).sqrt()
    for head in range(4):
        full = token_ov_circuit(model, 0, head, torch.arange(23), torch.arange(23))
        expected = weights[:, head] @ (full[ids] / read_scale) / write_scale
        torch.testing.assert_close(decompose_logits(model, ids).heads[head], expected, rtol=1e-10, atol=1e-10)


def _rotary_and_attend(model, ids):
    stack = model.decoder
    rotary = None if stack.rotary is None else stack.rotary(slice(0, ids.shape[1]), torch.float64)
    mask = model.mask(stack)
    return rotary, stack.blocks[0].mixer.parallel_form(mask)


@pytest.mark.parametrize(
    "options",
    [
        {"positions": "none"},
        {},
        {"rotary_width": 2},
        {"kv_heads": 2},
        {"norm": "layernorm"},
        {"norm": "rmsnorm"},
        {"norm_position": "post"},
    ],
    ids=str,
)
def test_the_qk_circuit_gives_the_attention_scores(options):
    config = replace(ONE_LAYER, bias=False, architecture="encoder", **options)
    model, ids = randomised(config), some_ids(config, (1, 7))
    seen = []
    block = model.encoder.blocks[0]
    block.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    weights = attention_maps(model, ids).own[0, 0]
    stream = seen[0][0]
    if block.places.before:
        centred = stream - stream.mean(-1, keepdim=True) if config.norm == "layernorm" else stream
        stream = stream / (centred.square().mean(-1, keepdim=True) + config.norm_eps).sqrt()
    for head in range(4):
        circuits = {distance: qk_circuit(model, 0, head, distance) for distance in range(-6, 7)}
        scores = torch.tensor(
            [[stream[t] @ circuits[t - s] @ stream[s] for s in range(7)] for t in range(7)], dtype=torch.float64
        )
        # Rotary tables are float32: rotations by t and s equal one by t - s to that precision.
        tolerance = 1e-6 if config.positions == "rotary" else 1e-12
        torch.testing.assert_close(scores.softmax(dim=-1), weights[head], rtol=tolerance, atol=tolerance)


def test_token_circuits_are_circuits_between_rows_of_the_embedding():
    model = randomised(replace(TINY, norm="rmsnorm"))
    embedding, ids = model.embedding.weight, torch.tensor([3, 5])
    between = token_qk_circuit(model, 1, 2, ids, torch.arange(23))
    torch.testing.assert_close(between, embedding[ids] @ qk_circuit(model, 1, 2) @ embedding.T)
    closing = model.decoder.final_norm.weight
    written = embedding[ids] @ ov_circuit(model, 1, 2).T * closing
    torch.testing.assert_close(token_ov_circuit(model, 1, 2, ids, torch.arange(23)), written @ embedding.T)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_a_heads_effect_on_the_logits_passes_every_later_norm(norm, norm_position):
    """At the first position a head of the first layer reads the embedding alone."""
    model = randomised(replace(TINY, norm=norm, norm_position=norm_position, bias=False))
    ids, everything = some_ids(TINY, (5,)), torch.arange(23)
    effects = [attribute(model, ids, target, position=0).terms for target in range(23)]
    for head in range(4):
        circuit = token_ov_circuit(model, 0, head, ids[:1], everything)[0]
        found = torch.tensor([terms[f"head 0.{head}"] for terms in effects], dtype=torch.float64)
        torch.testing.assert_close(circuit / circuit.norm(), found / found.norm())


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_tokens_pass_the_norms_before_a_head_reads_them(norm_position):
    """Sub-layers that write nothing leave the scores of the second layer to the embedding and the norms."""
    config = replace(TINY, architecture="encoder", embedding_norm=True, norm_position=norm_position, bias=False)
    model, ids = randomised(replace(config, positions="none")), some_ids(TINY, (1, 7))
    with torch.no_grad():
        for block in model.encoder.blocks:
            block.attention.output.weight.zero_()
            block.mlp.down.weight.zero_()
        of_norms = ["embed_ln", *(["blocks.0.ln1", "blocks.0.ln2"] if norm_position == "post" else ["blocks.1.ln1"])]
        with observed(model, [*(f"{n}.hook_scale" for n in of_norms), "blocks.1.attn.hook_attn_scores"]) as seen:
            model(ids)
    scale = math.prod(seen[f"{name}.hook_scale"][0] for name in of_norms)
    for head, scores in enumerate(seen["blocks.1.attn.hook_attn_scores"][0]):
        torch.testing.assert_close(token_qk_circuit(model, 1, head, ids[0], ids[0]) / scale / scale.T, scores)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_the_copying_score_equals_that_of_the_full_token_circuit(norm_position):
    model = randomised(replace(TINY, kv_heads=2, norm_position=norm_position))
    everything = torch.arange(23)
    for layer, scores in enumerate(copying_scores(model)):
        for head, score in enumerate(scores):
            eigenvalues = torch.linalg.eigvals(token_ov_circuit(model, layer, head, everything, everything))
            expected = eigenvalues.real.sum() / eigenvalues.abs().sum()
            assert score.item() == pytest.approx(expected.item(), abs=1e-9)


def test_a_head_that_writes_its_input_scores_one_and_its_negative_minus_one():
    config = replace(ONE_LAYER, vocab_size=8, width=16, heads=2, norm="rmsnorm", bias=False, positions="none")
    model = LanguageModel(config, seed=0)
    attention = model.decoder.blocks[0].attention
    with torch.no_grad():
        model.embedding.weight.copy_(torch.eye(8, 16))
        attention.value.weight.copy_(torch.eye(8, 16).repeat(2, 1))
        attention.output.weight.copy_(torch.cat((torch.eye(16, 8), -torch.eye(16, 8)), dim=1))
    assert copying_scores(model)[0].tolist() == pytest.approx([1.0, -1.0])


def test_an_induction_head_is_found():
    scores = head_scores(induction_model(), torch.Generator().manual_seed(0), length=16, sequences=4)
    assert scores.previous[0, 0] > 0.99
    # The first position has no predecessor and records itself, so its repetition attends half to it.
    assert scores.induction[1, 0].item() == pytest.approx(1 - 0.5 / 16, abs=1e-3)
    assert scores.duplicate[0, 1].item() == pytest.approx(0.5, abs=1e-3)  # the other half on itself
    assert scores.induction[0].max() < 0.1
    assert scores.previous[1].max() < 0.2


def test_a_uniform_head_scores_one_over_the_visible_positions():
    scores = head_scores(induction_model(), torch.Generator().manual_seed(0), length=16, sequences=1)
    seen = [1 / (t + 1) for t in range(32)]
    assert scores.previous[1, 1].item() == pytest.approx(sum(seen[1:]) / 31)
    assert scores.duplicate[1, 1].item() == pytest.approx(sum(seen[16:]) / 16)
    assert scores.induction[1, 1].item() == pytest.approx(sum(seen[16:]) / 16)


def test_scores_depend_on_the_generator_alone_and_use_the_given_tokens_only():
    model = randomised(TINY)
    read = []
    model.embedding.register_forward_pre_hook(lambda _, arguments: read.append(arguments[0]))
    first, second = (
        head_scores(model, torch.Generator().manual_seed(3), length=12, ids=torch.tensor([2, 3, 5, 7, 11]))
        for _ in range(2)
    )
    assert torch.equal(first.induction, second.induction)
    assert set(read[0].unique().tolist()) == {2, 3, 5, 7, 11}
    assert torch.equal(read[0][:, :12], read[0][:, 12:])
    with pytest.raises(ValueError, match="context_length"):
        head_scores(model, torch.Generator(), length=13)


@pytest.mark.parametrize("options", [*OPTIONS.values(), {"architecture": "encoder"}], ids=str)
def test_maps_are_distributions_over_visible_positions(options):
    config = replace(TINY, **options)
    maps = attention_maps(randomised(config), some_ids(config)).own
    assert maps.shape == (2, 2, 4, 11, 11)
    torch.testing.assert_close(maps.sum(dim=-1), torch.ones_like(maps[..., 0]))
    future = maps.triu(diagonal=1)
    assert bool(future.any()) == (config.architecture == "encoder")


@pytest.mark.parametrize("options", [*OPTIONS.values(), {"architecture": "encoder"}], ids=str)
def test_recording_gives_the_hidden_states_of_the_model(options):
    config = replace(TINY, **options)
    model, ids = randomised(config), some_ids(config)
    with torch.no_grad():
        torch.testing.assert_close(record(model, model.stack, ids)[0], model(ids))


def test_inspection_does_not_change_the_model():
    model = LanguageModel(replace(ONE_LAYER, dropout=0.5), seed=0).train()
    ids = some_ids(ONE_LAYER)
    torch.manual_seed(0)
    before = model(ids)
    once, again = attention_maps(model, ids).own, attention_maps(model, ids).own
    assert torch.equal(once, again)  # without dropout
    decompose_logits(model, ids)
    torch.manual_seed(0)
    assert torch.equal(model(ids), before)
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("options", PEERS.values(), ids=PEERS)
def test_maps_equal_those_of_transformers(options):
    config = replace(TINY, **options)
    model, ids = randomised(config), some_ids(config)
    peer = in_transformers(model)
    with torch.no_grad():
        if config.architecture == "encoder-decoder":
            source = some_ids(config, (2, 7))
            maps = attention_maps(model, ids, source)
            theirs = peer(input_ids=source, decoder_input_ids=ids, output_attentions=True)
            pairs = (
                (maps.own, theirs.decoder_attentions),
                (maps.encoder, theirs.encoder_attentions),
                (maps.cross, theirs.cross_attentions),
            )
        else:
            pairs = ((attention_maps(model, ids).own, peer(ids, output_attentions=True).attentions),)
    for ours, attentions in pairs:
        torch.testing.assert_close(ours, torch.stack(attentions), rtol=1e-5, atol=1e-6)


def test_an_encoder_decoder_has_three_kinds_of_maps():
    config = replace(TINY, architecture="encoder-decoder", layers=1, decoder_layers=2)
    model, ids, source = randomised(config), some_ids(config, (2, 5)), some_ids(config, (2, 7))
    maps = attention_maps(model, ids, source)
    assert maps.own.shape == (2, 2, 4, 5, 5)
    assert maps.encoder.shape == (1, 2, 4, 7, 7)
    assert maps.cross.shape == (2, 2, 4, 5, 7)
    torch.testing.assert_close(maps.cross.sum(dim=-1), torch.ones(2, 2, 4, 5, dtype=torch.float64))


def test_models_without_circuits_are_refused_by_name():
    model = LanguageModel(TINY, seed=0)
    with pytest.raises(ValueError, match=r"model\.layers is 2"):
        decompose_logits(model, some_ids(TINY))
    with pytest.raises(ValueError, match="from 0 to 1 and a head from 0 to 3"):
        qk_circuit(model, 2, 0)
    with pytest.raises(ValueError, match="distance is 24"):
        qk_circuit(model, 0, 0, distance=24)
    with pytest.raises(ValueError, match="qk_norm"):
        qk_circuit(LanguageModel(replace(TINY, qk_norm=True), seed=0), 0, 0)
    with pytest.raises(ValueError, match="head is not linear"):
        copying_scores(LanguageModel(replace(TINY, architecture="encoder"), seed=0))
    with pytest.raises(ValueError, match="a source was given"):
        attention_maps(model, some_ids(TINY), some_ids(TINY))
    with pytest.raises(ValueError, match="a source was not given"):
        head_scores(LanguageModel(replace(TINY, architecture="encoder-decoder"), seed=0), torch.Generator(), length=4)
    capped = LanguageModel(replace(ONE_LAYER, soft_cap=math.e), seed=0)
    with pytest.raises(ValueError, match="soft_cap"):
        decompose_logits(capped, some_ids(TINY))
