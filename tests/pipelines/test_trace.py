"""Activations of loaded runs, and those of TransformerLens."""

import pytest
import torch

import bytelm

TEXT = "import os\n\ndef path():"


@pytest.fixture(scope="module")
def gpt(trained_gpt):
    return bytelm.load_run(trained_gpt)


def test_a_trace_has_the_activations_of_the_text_that_the_model_reads(gpt):
    trace, tokens = gpt.trace(TEXT), len(gpt.ids(TEXT))
    model = gpt.config.model
    assert trace["blocks.0.attn.hook_pattern"].shape == (1, model.heads, tokens, tokens)
    normalized = trace["ln_final.hook_normalized"][0]
    hidden = normalized * gpt.model.stack.final_norm.weight
    bias = gpt.model.stack.final_norm.bias
    torch.testing.assert_close(gpt.model.logits(hidden if bias is None else hidden + bias), gpt.logits(TEXT))
    assert trace.ids[0].tolist() == gpt.ids(TEXT)
    together = gpt.trace(TEXT, names=("blocks.*.hook_resid_*", "hook_embed"))
    assert torch.equal(together["blocks.0.hook_resid_pre"], trace["blocks.0.hook_resid_pre"])


def test_an_edited_run_predicts_from_the_edited_activations_and_the_run_stays_as_it_is(gpt):
    before, nothing = gpt.logits(TEXT), torch.zeros(())
    with gpt.edit({"blocks.*.hook_mlp_out": nothing, "blocks.0.attn.hook_z": lambda z: 0 * z}) as edited:
        logits = edited.logits(TEXT)
        assert not edited.trace(TEXT)["blocks.0.hook_mlp_out"].any()
        assert torch.equal(gpt.logits(TEXT), before)
        surprisal = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(gpt.ids(TEXT)[1:]))
        assert edited.loss(TEXT) == pytest.approx(surprisal.item(), rel=1e-5)
        assert edited.loss(TEXT) == pytest.approx(-edited.score(TEXT).predictions.log_probabilities.mean())
    bias = gpt.model.stack.blocks[0].attention.output.bias
    stream = gpt.trace(TEXT)["hook_embed"] + (0 if bias is None else bias)
    with torch.no_grad():
        expected = gpt.model.logits(gpt.model.stack.final_norm(stream))[0]
    torch.testing.assert_close(logits, expected)
    assert not torch.allclose(logits, before)


def test_encoders_and_encoder_decoders_have_traces(trained_bert, trained_translator):
    bert, translator = bytelm.load_run(trained_bert), bytelm.load_run(trained_translator)
    pattern = bert.trace("import <|mask|> sys")["blocks.0.attn.hook_pattern"]
    torch.testing.assert_close(pattern.sum(dim=-1), torch.ones(pattern.shape[:-1]))
    trace = translator.trace("the number 3", "die Zahl 3")
    source, target = len(translator.ids("the number 3")), len(translator.target_ids("die Zahl 3"))
    cross = trace["decoder_blocks.0.cross_attn.hook_pattern"]
    assert cross.shape == (1, translator.config.model.heads, target, source)
    assert trace["encoder_blocks.0.hook_resid_pre"].shape[1] == source
    with translator.edit({"encoder_blocks.*.hook_resid_post": torch.zeros(())}) as edited:
        assert not torch.allclose(
            edited.logits("the number 3", "die Zahl 3"), translator.logits("the number 3", "die Zahl 3")
        )


def test_unknown_activations_are_explained(gpt):
    with pytest.raises(KeyError, match="did you mean"):
        gpt.trace(TEXT)["blocks.0.hook_mlp_ou"]
    with pytest.raises(ValueError, match="did you mean"), gpt.edit({"blocks.0.hook_mlp_ou": torch.zeros(())}):
        pass
    with pytest.raises(ValueError, match="only an encoder-decoder takes a target"):
        gpt.trace(TEXT, "a target")


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt_neox"])
def test_activations_are_those_of_transformer_lens(kind, peers):
    """TransformerLens is heavy, and no dependency of the tests: they run where it is installed."""
    bridges = pytest.importorskip("transformer_lens.model_bridge")
    folder, _, run = peers(kind)
    bridge = bridges.TransformerBridge.boot_transformers(str(folder), device="cpu")
    loaded = bytelm.load_run(run)
    ids = torch.tensor([loaded.ids(TEXT)])
    logits, cache = bridge.run_with_cache(ids)
    torch.testing.assert_close(logits[0], loaded.logits(TEXT), rtol=1e-5, atol=1e-5)
    trace = loaded.trace(TEXT).record("*")
    shared = [name for name in trace if name in cache]
    assert len(shared) >= 0.8 * len(trace), sorted(set(trace) - set(shared))
    for name in shared:
        ours, theirs = trace[name], cache[name]
        hidden = ours.isinf()
        torch.testing.assert_close(ours.masked_fill(hidden, 0), theirs.masked_fill(hidden, 0), rtol=1e-5, atol=1e-5)


def test_an_export_without_biases_opens_in_transformer_lens(gpt, tmp_path):
    bridges = pytest.importorskip("transformer_lens.model_bridge")
    assert not gpt.config.model.bias
    bytelm.export_hf(gpt, out=tmp_path / "hf")
    bridge = bridges.TransformerBridge.boot_transformers(str(tmp_path / "hf"), device="cpu")
    ids = torch.tensor([gpt.ids(TEXT)])
    logits, cache = bridge.run_with_cache(ids)
    torch.testing.assert_close(logits[0], gpt.logits(TEXT), rtol=1e-4, atol=1e-5)
    name = "blocks.0.attn.hook_pattern"
    torch.testing.assert_close(gpt.trace(TEXT)[name], cache[name], rtol=1e-4, atol=1e-5)
