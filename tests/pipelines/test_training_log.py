"""The log and the messages of training."""

import itertools
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from lm.costs import meta_model
from pipelines.cli import display
from pipelines.cli.display import Bar
from pipelines.dataset.reader import TokenDataset
from pipelines.recipes.recipe import save_config
from pipelines.run.loaded_run import load_run
from pipelines.run.retention import latest_checkpoint
from pipelines.training import training_run
from pipelines.training.data import open_training_data
from pipelines.training.mixture import Mixture, fit_to_data
from pipelines.training.progress import SMOOTHING, LossWatch, TrainingLog
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.runs import runs
from pipelines.verbs.train_tokenizer import train_tokenizer
from tests.pipelines.training_cases import metrics_of, stop_after, with_train
from tokenizer import Tokenizer


def training_lines(run):
    return [line for line in metrics_of(run) if line["split"] == "train"]


def test_the_log_has_the_utilisation_of_the_machine(tmp_path, small_recipe, dataset_folder, monkeypatch):
    """The machine is configured for a peak of one GFLOP/s and reaches two."""
    known = {"peak_flops": 1e9, "measured_flops": 2e9}
    monkeypatch.setattr(training_run, "with_peaks", lambda machine: replace(machine, **known))
    pretrain(small_recipe, data=dataset_folder, out=tmp_path / "gpt")
    recipe = fit_to_data(small_recipe, TokenDataset(dataset_folder))
    data = open_training_data(recipe, Mixture([TokenDataset(dataset_folder)]), Tokenizer.load(dataset_folder))
    flops = data.flops_per_token(meta_model(recipe.model))
    lines = [json.loads(line) for line in (tmp_path / "gpt" / "metrics.jsonl").read_text().splitlines()]
    for line in (line for line in lines if line["split"] == "train"):
        assert line["mfu"] == pytest.approx(line["tokens_per_s"] * flops / 1e9, rel=1e-3, abs=1e-4)
        assert line["mfu_measured"] == pytest.approx(line["mfu"] / 2, abs=1e-4)
        assert line["memory_bytes"] > 50e6


def test_the_smoothed_loss_is_an_exponential_mean_of_the_losses_of_all_steps(tmp_path, small_recipe, dataset_folder):
    pretrain(with_train(small_recipe, log_every_steps=1), data=dataset_folder, out=tmp_path / "gpt")
    lines = training_lines(tmp_path / "gpt")
    losses = np.array([line["loss"] for line in lines])
    for steps, line in enumerate(lines, 1):
        ages = SMOOTHING ** np.arange(steps)[::-1]
        assert line["smoothed_loss"] == pytest.approx(float(losses[:steps] @ ages / ages.sum()), rel=1e-9)


@pytest.mark.parametrize("steps", [3, 20, 21, 24, 25, 29])
def test_every_logged_loss_is_a_mean_of_at_least_half_an_interval(tmp_path, small_recipe, dataset_folder, steps):
    """A shorter interval, at the end of a run or of its extension, joins its neighbour; no step is lost."""
    train = {"batch_tokens": 64, "micro_batch": 2, "checkpoint_every_tokens": 64 * 7}
    for name, every in (("each", 1), ("tens", 10)):
        for goal in (steps, steps + 13):
            recipe = with_train(small_recipe, **train, tokens=64 * goal, log_every_steps=every)
            pretrain(recipe, data=dataset_folder, out=tmp_path / name)
            if goal == steps:
                assert runs([tmp_path / name])[0].loss == training_lines(tmp_path / name)[-1]["loss"]
    losses = [line["loss"] for line in training_lines(tmp_path / "each")]
    assert len(losses) == steps + 13
    before = 0
    for line in training_lines(tmp_path / "tens"):
        assert line["step"] - before >= min(5, steps)
        assert line["loss"] == pytest.approx(np.mean(losses[before : line["step"]]), rel=1e-12)
        before = line["step"]
    assert before == steps + 13


def test_steps_without_a_target_have_no_loss(tmp_path, small_recipe, tokenizer_folder, text_folder):
    """A step of 4 tokens often has no masked token, so nothing that its model could learn."""
    build_dataset([str(text_folder)], tokenizer=tokenizer_folder, context_length=4, out=tmp_path / "data")
    model = replace(small_recipe.model, architecture="encoder", context_length=6)
    train = {"tokens": 80, "batch_tokens": 4, "micro_batch": 1, "warmup_tokens": 0, "log_every_steps": 1}
    recipe = with_train(replace(small_recipe, objective="masked-token", model=model), **train)
    pretrain(recipe, data=tmp_path / "data", out=tmp_path / "bert")
    data = open_training_data(recipe, Mixture([TokenDataset(tmp_path / "data")]), Tokenizer.load(tmp_path / "data"))
    trained = {step for step in range(1, 21) if data.step(step - 1, 4 * (step - 1)).weights.any()}
    lines = training_lines(tmp_path / "bert")
    assert {line["step"] for line in lines} == trained and 0 < len(trained) < 20
    assert all(line["loss"] > 4 and line["smoothed_loss"] > 4 and line["grad_norm"] > 0 for line in lines)


def test_a_validation_without_a_target_is_left_out_with_a_warning(tmp_path, small_recipe, text_folder):
    """All words of the validation split are unknown, and special tokens are never masked."""
    texts = {"train": [path.read_text() for path in sorted(text_folder.iterdir())], "validation": ["\u2603"] * 20}
    (tmp_path / "my").mkdir()
    for split, documents in texts.items():
        lines = "".join(json.dumps({"text": text}) + "\n" for text in documents)
        (tmp_path / "my" / f"{split}.jsonl").write_text(lines)
    made = {"kind": "wordpiece", "pattern": "bert-cased", "vocab_size": 512, "out": tmp_path / "tok"}
    train_tokenizer([str(tmp_path / "my")], **made)
    build_dataset([str(tmp_path / "my")], tokenizer=tmp_path / "tok", context_length=8, out=tmp_path / "data")
    model = replace(small_recipe.model, architecture="encoder", context_length=10)
    recipe = replace(small_recipe, objective="masked-token", model=model)
    recipe = with_train(recipe, tokens=512, warmup_tokens=0, keep_best=True)
    with pytest.warns(UserWarning, match="no target in the first 640 tokens .* of data, .* raise `train.validation_t"):
        pretrain(recipe, data=tmp_path / "data", out=tmp_path / "bert")
    assert {line["split"] for line in metrics_of(tmp_path / "bert")} == {"train"}
    assert runs([tmp_path / "bert"])[0].validation_loss is None


def test_a_jump_of_the_loss_is_a_spike_and_noise_is_not():
    generator = np.random.default_rng(0)
    watch = LossWatch()
    assert not any(watch.update(step, 4.0 + 0.1 * generator.standard_normal()) for step in range(500))
    assert watch.smoothed_loss() == pytest.approx(4.0, abs=0.05)
    again = LossWatch(*watch.as_list())
    assert watch.update(500, 6.0) and again.update(500, 6.0)
    assert watch.spikes == [500]


def test_spikes_are_printed_and_logged_once(tmp_path, small_recipe, dataset_folder, monkeypatch, printed):
    watch = TrainingLog.watch

    def jumping(self, step, loss):
        watch(self, step, loss + 9 if step in (63, 71) else loss)

    monkeypatch.setattr(TrainingLog, "watch", jumping)
    recipe = with_train(small_recipe, tokens=256 * 80)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "gpt")
    spikes = {line["step"]: line["spikes"] for line in metrics_of(tmp_path / "gpt") if "spikes" in line}
    assert spikes == {65: [63], 75: [71]}
    columns = load_run(tmp_path / "gpt", device="cpu").metrics()
    counted = dict(zip(columns["step"].tolist(), columns["spikes"].tolist(), strict=True))
    assert counted == dict.fromkeys(range(5, 81, 5), 0) | {65: 1, 75: 1}
    said = " ".join(printed.readouterr().out.split())
    assert said.count("the loss jumped to") == 2
    assert "step 63: the loss jumped to 1" in said


def test_time_left_follows_from_the_speed_of_this_process(monkeypatch, printed):
    """This process began at step 40 of 100 and made 20 steps in 30 seconds. The other 40 take a minute."""
    clock = itertools.chain([0.0, 0.0, 30.0], itertools.repeat(31.0))
    monkeypatch.setattr(display.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(display, "PLAIN_INTERVAL", 10.0)
    with Bar("gpt", 100, "tok") as bar:
        bar.begin_at(40)
        bar.update(60, note="loss 3.210")
    assert "gpt: 60% 60 tok, 0.667 tok/s, 1:00 left, loss 3.210" in " ".join(printed.readouterr().out.split())


@pytest.mark.parametrize(("more", "plain"), [({}, True), ({"label_smoothing": 0.1}, False), ({"z_loss": 1e-4}, False)])
def test_the_progress_of_training_shows_the_perplexity_of_a_plain_cross_entropy(
    tmp_path, small_recipe, dataset_folder, printed, more, plain
):
    recipe = with_train(small_recipe, tokens=512, warmup_tokens=256, log_every_steps=1, **more)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "gpt")
    smoothed = training_lines(tmp_path / "gpt")[-1]["smoothed_loss"]
    perplexity = f" perplexity {math.exp(smoothed):,.4g}," if plain else ""
    said = " ".join(printed.readouterr().out.split())
    assert f"512 tok in 0:00, loss {smoothed:.3f},{perplexity} lr " in re.sub(r"in \d:\d\d", "in 0:00", said)


def test_the_validation_loss_is_printed_when_it_is_measured_and_at_the_end(
    tmp_path, small_recipe, dataset_folder, in_process
):
    save_config(tmp_path / "recipe.toml", small_recipe, {})
    done = in_process("pretrain", "recipe.toml", "--data", dataset_folder, "--out", "my run")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    losses = {line["step"]: line["loss"] for line in metrics_of(tmp_path / "my run") if line["split"] == "validation"}
    assert list(losses) == [0, 10, 20, 30, 40, 50]
    words = {step: f"validation loss {loss:.4f} nats, perplexity {math.exp(loss):.4g}" for step, loss in losses.items()}
    for step, line in words.items():
        assert f"step {step}: {line}" in said
    assert said.endswith(f"; {words[50]} next: bytelm evaluate 'my run'")


def test_a_diverging_run_warns_once_and_reports_it_at_its_end(
    tmp_path, small_recipe, dataset_folder, printed, monkeypatch
):
    train = {"lr": 3.0, "warmup_tokens": 256, "tokens": 256 * 130, "grad_clip": 0.0, "min_lr_ratio": 1.0}
    diverging = with_train(small_recipe, **train, checkpoint_every_tokens=256 * 50)
    with monkeypatch.context() as patch:
        stop_after(60, patch)
        with pytest.raises(KeyboardInterrupt):
            pretrain(diverging, data=dataset_folder, out=tmp_path / "gpt")
    assert "diverged" not in printed.readouterr().out
    pretrain(diverging, data=dataset_folder, out=tmp_path / "gpt")
    said = " ".join(printed.readouterr().out.split())
    assert (
        len(re.findall(r"step 1\d\d: training has diverged: the loss is \S+, and was 6\.\d+ at the first step", said))
        == 1
    )
    assert "training diverged: the loss is" in said.rpartition("130 steps")[2]


def test_a_run_that_learns_is_not_reported_as_diverged(trained_gpt):
    state = json.loads((latest_checkpoint(trained_gpt) / "state.json").read_text())
    watch = LossWatch(*state["watch"])
    assert (watch.diverged, watch.above) == (False, 0)
    assert watch.first == pytest.approx(6.2, abs=0.3)
