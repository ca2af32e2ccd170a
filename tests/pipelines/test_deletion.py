"""Runs without parts: `bytelm evaluate --without`, and the instrument that deletes each part."""

import copy
import shutil

import numpy as np
import pytest
import torch

import bytelm
from lm.introspection.activations import observed
from lm.introspection.deletion import deletions
from pipelines.evaluation.deletion import part_means
from pipelines.evaluation.planning import EvaluationOptions, objective_of, plan
from pipelines.run.folder import Run
from tests.loaded_runs import variant


@pytest.fixture
def gpt(trained_gpt, tmp_path):
    shutil.copytree(trained_gpt, tmp_path / "gpt")
    return bytelm.load_run(tmp_path / "gpt")


def test_a_run_without_a_part_is_the_run_with_zeros_in_its_matrix_and_is_not_saved(gpt):
    model = copy.deepcopy(gpt.model)
    with torch.no_grad():
        model.stack.blocks[0].mlp.down.weight.zero_()
    zeroed = bytelm.evaluate(variant(gpt, model=model)).validation
    saved = (gpt.path / "evaluation.json").read_bytes()
    without = gpt.evaluate(without=("mlp.0",), ablation="zero").splits["validation without mlp.0"]
    assert without.cross_entropy == pytest.approx(zeroed.cross_entropy, rel=1e-6)
    assert (gpt.path / "evaluation.json").read_bytes() == saved
    whole = gpt.evaluate().validation
    assert without.cross_entropy != pytest.approx(whole.cross_entropy, rel=1e-3)
    assert not gpt.model._forward_hooks


def test_means_are_those_of_the_training_split(gpt):
    planned = plan(Run(gpt.path), EvaluationOptions(measuring=None))
    means = part_means(gpt.model, ["mlp.0"], planned, zero=False)
    stream, window = planned.training.split("train"), planned.windows.window
    blocks = stream.gather(np.arange(0, stream.tokens // window * window, window), window)
    drawn = np.random.default_rng(0).choice(len(blocks), min(len(blocks), 32_768 // window), replace=False)
    with torch.no_grad(), observed(gpt.model, ["blocks.0.hook_mlp_out"]) as found:
        gpt.model(torch.from_numpy(blocks[drawn]))
    expected = found["blocks.0.hook_mlp_out"].mean(dim=(0, 1))
    torch.testing.assert_close(means["blocks.0.hook_mlp_out"], expected, rtol=1e-4, atol=1e-5)


def test_an_encoder_is_scored_with_the_means_of_masked_training_blocks(trained_bert, tmp_path):
    bert = bytelm.load_run(shutil.copytree(trained_bert, tmp_path / "bert"))
    planned = plan(Run(bert.path), EvaluationOptions(measuring=None))
    objective = objective_of(bert.run, planned.windows.window, bert.tokenizer)
    stream, length, found = planned.training.split("train"), objective.length, []
    count = stream.tokens // length
    for number in sorted(np.random.default_rng(0).choice(count, min(count, 32_768 // length), replace=False)):
        batch = objective.batch(stream, np.array([number * length]), np.array([[0, 0, number]]))
        found.append(_mlp_outputs(bert.model, batch.inputs))
    constant, mean = copy.deepcopy(bert.model), torch.stack(found).mean(dim=(0, 1))
    constant.stack.blocks[0].mlp.register_forward_hook(lambda _, inputs, output: mean.expand_as(output))
    expected = bytelm.evaluate(variant(bert, model=constant)).validation
    without = bert.evaluate(without=("mlp.0",)).splits["validation without mlp.0"]
    assert without.cross_entropy == pytest.approx(expected.cross_entropy, rel=1e-5)
    assert without.cross_entropy != pytest.approx(bert.evaluate().validation.cross_entropy, rel=1e-4)
    assert without.pseudo_perplexity is None


def _mlp_outputs(model, inputs):
    with torch.no_grad(), observed(model, ["blocks.0.hook_mlp_out"]) as found:
        model(torch.from_numpy(inputs))
    return found["blocks.0.hook_mlp_out"][0]


def test_an_encoder_decoder_is_refused(trained_t5):
    with pytest.raises(ValueError, match="`without` cannot name one of its stacks"):
        bytelm.evaluate(trained_t5, without=("mlp.0",))


def test_no_number_of_the_whole_model_stands_beside_those_without_a_part(gpt):
    found = gpt.evaluate(without=("mlp.0",), ablation="zero", context=128).splits["validation without mlp.0"]
    assert found.beyond_trained_length.parts() == ["No loss beyond the trained length: parts of the model are deleted."]
    with pytest.raises(ValueError, match="`without` cannot be combined with `sinks`"):
        gpt.evaluate(without=("mlp.0",), ablation="zero", context=128, sinks=4)


def test_the_instrument_finds_what_evaluate_without_each_part_finds(gpt):
    found = bytelm.inspect(gpt, instruments=("deletions",), deletion_tokens=10**6)["deletions"][0]
    parts = {one.part: one for one in found.deletions}
    assert list(parts) == ["layers.0", "attention.0", "heads.0.0", "heads.0.1", "mlp.0"]
    whole = gpt.evaluate().validation
    for name in ("layers.0", "heads.0.1"):
        split = gpt.evaluate(without=(name,)).splits[f"validation without {name}"]
        # `evaluate` scores the last, shorter window too.
        assert parts[name].lost == pytest.approx(split.bits_per_byte - whole.bits_per_byte, rel=0.02, abs=2e-3)
        assert parts[name].low <= parts[name].lost <= parts[name].high
    assert found.whole == pytest.approx(whole.bits_per_byte, rel=0.01)
    tables = found.parts()
    assert tables[0].rows[0][1][0] == f"{parts['layers.0'].lost:+.4f}" and "Effects do not add" in tables[-1]


def test_the_command_prints_the_run_without_parts(gpt, in_process):
    said = in_process("evaluate", gpt.path, "--without", "layers.0", "--ablation", "zero")
    assert "validation without layers.0: perplexity" in said.stdout and "not saved" in said.stdout + said.stderr
    for words, options in {
        "the model has no layers.7: it has layers.0 to layers.0": ("--without", "layers.7"),
        "'heads.0' is no part of a model": ("--without", "heads.0"),
        "--without cannot be combined with --memorisation": ("--without", "mlp.0", "--memorisation"),
    }.items():
        failed = in_process("evaluate", gpt.path, *options)
        assert failed.returncode == 1 and words in failed.stderr


def test_means_need_the_training_data_and_zeros_do_not(gpt, text_folder):
    corpus = [str(next(text_folder.iterdir()))]
    config = gpt.path / "config.toml"
    config.write_text(config.read_text().replace(str(gpt.run.facts["data"]), "/nowhere"))
    with pytest.raises(ValueError, match=r"means need them: give `ablation='zero'`"):
        bytelm.evaluate(gpt.path, corpus=corpus, without=("mlp.0",))
    assert bytelm.evaluate(gpt.path, corpus=corpus, without=("mlp.0",), ablation="zero").splits


def test_edits_reach_every_window(gpt):
    """The last block computes all positions when it is edited, whatever positions are scored."""
    edits = deletions(gpt.model, ["heads.0.0", "mlp.0"], None)
    text = "import os\nimport sys\n"
    with observed(gpt.model, edits=edits):
        scored, logits = gpt.score(text), gpt.logits(text)
    targets = torch.tensor(gpt.ids(text)[1:])
    expected = -torch.nn.functional.cross_entropy(logits[:-1].double(), targets, reduction="none")
    np.testing.assert_allclose(scored.predictions.log_probabilities, expected, rtol=1e-5)
