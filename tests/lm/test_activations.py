"""Activations by name: recorded as they are, edited with effect, and hooks that leave no trace."""

from dataclasses import replace

import pytest
import torch

from lm.introspection.activations import activation_names, matching_names, observed
from lm.introspection.attention_maps import attention_maps
from lm.introspection.norms import bias_of
from lm.introspection.trace import Trace
from lm.model import LanguageModel
from tests.lm.introspection_cases import ONE_LAYER, OPTIONS, PEERS, TINY, in_transformers, randomised, some_ids
from tests.lm.mixer_cases import MIXERS, random_ids, random_model

KINDS = {
    **PEERS,
    "sinusoidal": {"positions": "sinusoidal"},
    "alibi": {"positions": "alibi"},
    "value embeddings": {"value_embeddings": 1},
    "branch": {"norm_position": "branch"},
    "sandwich": {"norm_position": "sandwich", "mlp_norm": False},
    "rezero": {"norm_position": "rezero"},
    "deepnorm": {"norm_position": "deepnorm", "initialization": "xavier", "norm": "rmsnorm", "bias": False},
    "token types": {"architecture": "encoder", "token_types": 2},
    "attention only": {"mlp": False},
    **OPTIONS,
}
kinds = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)


def model_and_inputs(options):
    config = replace(TINY, **options)
    source = (some_ids(config, (2, 7)),) if config.architecture == "encoder-decoder" else ()
    return randomised(config), (some_ids(config), *source)


def traced(options):
    model, inputs = model_and_inputs(options)
    return model, Trace(model, *inputs).record("*")


def close(x, y, tolerance=1e-9):
    torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


def stacks_of(model):
    both = model.config.architecture == "encoder-decoder"
    return [("encoder_" * both, model.encoder)] * (model.encoder is not None) + [("decoder_" * both, model.decoder)] * (
        model.decoder is not None
    )


@pytest.mark.parametrize("kind", PEERS)
def test_streams_and_patterns_are_those_of_transformers(kind):
    model, inputs = model_and_inputs(PEERS[kind])
    trace, peer = Trace(model, *inputs), in_transformers(model)
    given = {"input_ids": inputs[-1]} | ({"decoder_input_ids": inputs[0]} if len(inputs) > 1 else {})
    with torch.no_grad():
        theirs = peer(**given, output_hidden_states=True, output_attentions=True)
    for prefix, stack in stacks_of(model):
        hidden = theirs[f"{prefix}hidden_states" if prefix else "hidden_states"]
        patterns = theirs[f"{prefix}attentions" if prefix else "attentions"]
        for layer in range(len(stack.blocks)):
            close(trace[f"{prefix}blocks.{layer}.hook_resid_pre"], hidden[layer], 1e-5)
            close(trace[f"{prefix}blocks.{layer}.attn.hook_pattern"], patterns[layer], 1e-5)
    if len(inputs) > 1:
        for layer, cross in enumerate(theirs.cross_attentions):
            close(trace[f"decoder_blocks.{layer}.cross_attn.hook_pattern"], cross, 1e-5)


@kinds
def test_activations_fit_together(options):
    model, trace = traced(options)
    config = model.config
    for prefix, stack in stacks_of(model):
        stream = trace[f"{prefix}hook_embed"] + trace.get(f"{prefix}hook_pos_embed", 0.0) if prefix == "" else None
        if stream is not None and not config.embedding_norm and not config.embedding_skips:
            close(trace["blocks.0.hook_resid_pre"], stream)
        for layer, block in enumerate(stack.blocks):
            get = {name: trace[name] for name in trace if name.startswith(f"{prefix}blocks.{layer}.")}
            part = {name.removeprefix(f"{prefix}blocks.{layer}."): value for name, value in get.items()}
            _check_stream(config, part)
            for label, attention in (("attn", block.attention), ("cross_attn", block.cross_attention)):
                if attention is not None:
                    _check_attention(config, attention, label, part)


def _check_stream(config, part):
    if config.norm_position not in ("pre", "branch", "sandwich"):
        return
    names = [name for name in ("hook_attn_out", "hook_cross_attn_out", "hook_mlp_out") if name in part]
    total = part["hook_resid_pre"] + sum(part[name] for name in names)
    close(part["hook_resid_post"], total)
    if "hook_resid_mid" in part:
        close(part["hook_resid_mid"], part["hook_resid_pre"] + part["hook_attn_out"])


def _check_attention(config, attention, label, part):
    q, k, v, z = (part[f"{label}.hook_{short}"] for short in "qkvz")
    heads, kv_heads, width = config.heads, config.key_value_heads, config.head_features
    assert q.shape[-2:] == z.shape[-2:] == (heads, width) and k.shape[-2:] == v.shape[-2:] == (kv_heads, width)
    scores, pattern = part[f"{label}.hook_attn_scores"], part[f"{label}.hook_pattern"]
    close(pattern, scores.softmax(dim=-1))
    close(torch.einsum("bhts,bshd->bthd", pattern, v.repeat_interleave(heads // kv_heads, dim=2)), z)
    if "hook_attn_out" in part and label == "attn" and config.norm_position in ("pre", "post", "deepnorm", "rezero"):
        written = part["attn.hook_result"].sum(dim=-2)
        close(part["hook_attn_out"], written + bias_of(attention.output, written))


def varied(x):
    """Return x times numbers from 0.5 to 1.5: a norm would remove one factor."""
    return x * (1 + 0.5 * torch.arange(x.numel(), dtype=x.dtype).cos().view(x.shape))


@kinds
def test_recording_changes_nothing_and_every_edit_reaches_the_output(options):
    model, inputs = model_and_inputs(options)
    with torch.no_grad():
        plain = model(*inputs)
        for name in activation_names(model):
            with observed(model, [name]) as found:
                assert torch.allclose(model(*inputs), plain, rtol=0, atol=1e-12), name
            with observed(model, [name], {name: varied}) as edited:
                changed = model(*inputs)
            close(edited[name], varied(found[name]))
            assert not torch.allclose(changed, plain), name
        assert torch.equal(model(*inputs), plain)


def test_a_head_edited_to_zero_is_a_head_whose_output_matrix_is_zero():
    model, ids = randomised(TINY), some_ids(TINY)

    def without_head(z):
        return z * torch.tensor([1.0, 0.0, 1.0, 1.0])[:, None]

    with torch.no_grad():
        with observed(model, edits={"blocks.1.attn.hook_z": without_head}):
            edited = model(ids)
        model.stack.blocks[1].attention.output.weight[:, 4:8] = 0.0
        close(edited, model(ids))


def test_the_stream_of_another_text_gives_the_hidden_states_of_the_other_text():
    model, ids = randomised(TINY), some_ids(TINY)
    other = ids.flip(0)
    streams = Trace(model, other).record("blocks.*.hook_resid_mid", "blocks.*.hook_resid_post")
    with torch.no_grad():
        for name in ("blocks.0.hook_resid_mid", "blocks.1.hook_resid_post"):
            with observed(model, edits={name: streams[name]}):
                close(model(ids), model(other))


def test_only_what_is_asked_for_has_a_hook_and_none_is_left():
    model, ids = LanguageModel(TINY, seed=0).eval(), some_ids(TINY)

    def hooks():
        # The two hooks of the whole model only move the selection of rows.
        of_torch = [
            module._forward_hooks | module._forward_pre_hooks for module in model.modules() if module is not model
        ]
        replaced = [
            name for module in model.modules() for name in vars(module) if callable(getattr(type(module), name, 0))
        ]
        return sum(map(len, of_torch)) + len(replaced)

    for name in activation_names(model):
        with observed(model, [name]):
            assert hooks() == 1, name
        assert hooks() == 0 and not model._forward_hooks
    with pytest.raises(RuntimeError, match="stop"), observed(model, activation_names(model)):
        raise RuntimeError("stop")
    assert hooks() == 0
    trace = Trace(model, ids)
    assert trace._found == {}
    assert trace["blocks.0.hook_mlp_out"].shape == (2, 11, 16)
    assert [*trace._found] == ["blocks.0.hook_mlp_out"]
    assert len(trace) == len([*trace]) and "blocks.0.hook_mlp_out" in trace


def test_patterns_of_padded_sequences_leave_padding_out():
    model, ids = randomised(TINY), some_ids(TINY)
    present = torch.ones_like(ids, dtype=torch.bool)
    present[1, :4] = False
    with torch.no_grad(), observed(model, ["blocks.0.attn.hook_pattern"]) as found:
        model(ids, present=present)
    pattern = found["blocks.0.attn.hook_pattern"]
    assert not pattern[1, :, :, :4].any()
    assert not pattern[1, :, :4].any()  # fully masked


@pytest.mark.parametrize("mixer", MIXERS)
def test_other_mixers_have_streams_and_say_that_they_have_no_pattern(mixer):
    model, ids = random_model(mixer), random_ids(2, 9)
    trace = Trace(model, ids).record("*")
    total = trace["blocks.1.hook_resid_pre"] + trace["blocks.1.hook_attn_out"] + trace["blocks.1.hook_mlp_out"]
    close(trace["blocks.1.hook_resid_post"], total)
    with pytest.raises(KeyError, match=f"the layer's mixer is '{mixer}', which has no pattern: ask for hook_attn_out"):
        trace["blocks.0.attn.hook_pattern"]
    if mixer == "hopfield":
        assert trace["blocks.0.attn.hook_z"].shape == (2, 9, 3, 8)


@pytest.mark.parametrize(
    ("options", "name", "words"),
    [
        ({}, "blocks.0.hook_resid_mi", "did you mean blocks.0.hook_resid_mid"),
        ({}, "blocks.0.attn.hook_patern", "did you mean blocks.0.attn.hook_pattern"),
        ({}, "hook_pos_embed", "model.positions is 'rotary'"),
        ({"positions": "learned"}, "blocks.0.attn.hook_rot_q", "model.positions is 'learned'"),
        ({"mlp": False}, "blocks.0.hook_mlp_out", "model.mlp is false"),
        ({"residual": "parallel"}, "blocks.0.hook_resid_mid", "model.residual is 'parallel'"),
        ({}, "everything", "names are such as"),
    ],
)
def test_a_missing_activation_is_explained(options, name, words):
    model = LanguageModel(replace(TINY, **options), seed=0)
    for ask in (lambda: matching_names(model, [name]), lambda: observed(model, [name]).__enter__()):
        with pytest.raises(ValueError, match=words):
            ask()


def test_mistakes_are_refused():
    model, ids = LanguageModel(TINY, seed=0), some_ids(TINY)
    name, narrow = "blocks.0.hook_mlp_out", torch.zeros(3)
    with (
        pytest.raises(ValueError, match=rf"the edit of {name} is \(3,\), but the activation is \(2, 11, 16\)"),
        observed(model, edits={name: narrow}),
    ):
        model(ids)
    with pytest.raises(ValueError, match="is NoneType"), observed(model, edits={"hook_embed": lambda x: None}):
        model(ids)
    twice = observed(model, ["blocks.0.attn.hook_q"])
    with observed(model, ["blocks.0.attn.hook_q"]), pytest.raises(ValueError, match="leave that context first"), twice:
        pass


def test_rows_are_selected_after_all_positions_are_edited():
    model, ids, rows = randomised(TINY), some_ids(TINY), torch.tensor([3, 20])
    edits = {"blocks.1.hook_mlp_out": lambda x: x[:, :1]}  # the first position's for all
    with torch.no_grad(), observed(model, edits=edits):
        close(model(ids, rows=rows), model(ids).flatten(0, 1)[rows])


def test_patterns_are_the_attention_maps():
    model, ids = randomised(replace(ONE_LAYER, layers=2)), some_ids(ONE_LAYER)
    close(Trace(model, ids)["blocks.1.attn.hook_pattern"], attention_maps(model, ids).own[1])


@pytest.mark.parametrize("mixer", MIXERS)
def test_of_the_mixers_without_attention_only_hopfield_has_activations_of_heads(mixer):
    names = {name.partition("blocks.0.")[2] for name in activation_names(random_model(mixer))}
    of_attention = {f"attn.hook_{name}" for name in ("q", "k", "v", "rot_q", "rot_k", "z", "result")}
    assert {name for name in names if name.startswith("attn.")} == (of_attention if mixer == "hopfield" else set())
    assert {"hook_attn_out", "ln1.hook_scale", "mlp.hook_pre", "hook_resid_mid"} <= names
