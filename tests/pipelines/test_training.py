"""Training: a run's losses, log and checkpoints, and the effect of every setting."""

import gc
import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from lm.model import LanguageModel
from lm.optim.optimizers import Optimizers
from pipelines.dataset.reader import TokenDataset
from pipelines.machine import tabulated_flops
from pipelines.run.checkpoint_reader import whole_checkpoint
from pipelines.run.folder import Run, opened
from pipelines.run.loaded_run import load_run
from pipelines.run.retention import checkpoint_folders, latest_checkpoint
from pipelines.training.data import open_training_data
from pipelines.training.loop import Trainer
from pipelines.training.mixture import Mixture, fit_to_data
from pipelines.training.parallel import OneProcess
from pipelines.verbs.pretrain import pretrain
from tests.pipelines.training_cases import (
    after_each_step,
    assert_same_run,
    metrics_of,
    read_later,
    rewrite_state,
    stop_after,
    watch_batches,
    weights_of,
    with_train,
)
from tokenizer import Tokenizer


def test_the_loss_falls_in_metrics_jsonl(trained_gpt, small_recipe):
    lines = metrics_of(trained_gpt)
    train = [line for line in lines if line["split"] == "train"]
    validation = [line for line in lines if line["split"] == "validation"]
    assert [line["step"] for line in train] == list(range(5, 51, 5))
    assert [line["step"] for line in validation] == [0, 10, 20, 30, 40, 50]
    assert validation[0]["loss"] == pytest.approx(math.log(512), abs=0.1)
    assert validation[-1]["loss"] < validation[0]["loss"] - 0.3
    assert all(line["tokens"] == 256 * line["step"] for line in lines)
    assert train[-1]["lr"] < train[2]["lr"] <= small_recipe.train.lr
    assert [folder.name for folder in checkpoint_folders(trained_gpt)] == ["step-0000040", "step-0000050"]


def test_the_logged_validation_loss_matches_the_checkpoint(trained_gpt, dataset_folder):
    """Recomputed in plain PyTorch, without dropout, over the first 640 tokens of the split."""
    from pipelines.run.loaded_run import load_trained

    model = load_trained(Run(trained_gpt)).model
    stream = TokenDataset(dataset_folder).split("validation")
    ids = torch.from_numpy(stream.read(0, 641).astype(np.int64))
    with torch.no_grad():
        logits = torch.cat([model.logits(model(ids[None, s : s + 32])[0]) for s in range(0, 640, 32)])
    loss = torch.nn.functional.cross_entropy(logits.double(), ids[1:])
    assert metrics_of(trained_gpt)[-1]["loss"] == pytest.approx(float(loss), rel=1e-5)


def test_seed_clipping_decay_rates_and_batches_have_their_effect(tmp_path, small_recipe, dataset_folder, trained_gpt):
    def ends(name, **changes):
        recipe = replace(small_recipe, train=replace(small_recipe.train, **changes))
        pretrain(recipe, data=dataset_folder, out=tmp_path / name)
        return metrics_of(tmp_path / name)

    normal = metrics_of(trained_gpt)
    assert ends("seed", seed=1)[-1]["loss"] != normal[-1]["loss"]
    # AdamW ignores the scale of gradients, unless eps is as large as they are.
    assert ends("clip", grad_clip=1e-9)[-1]["loss"] > normal[-1]["loss"] + 0.1
    assert ends("decay", weight_decay=100.0)[-1]["loss"] > normal[-1]["loss"] + 0.1
    flat = [line["lr"] for line in ends("flat", min_lr_ratio=1.0) if line["split"] == "train"]
    assert flat[1:] == [small_recipe.train.lr] * 9
    steep = [line["lr"] for line in ends("steep", min_lr_ratio=0.0) if line["split"] == "train"]
    assert steep[-1] < 0.01 * small_recipe.train.lr
    halved = [line for line in ends("batch", batch_tokens=128) if line["split"] == "train"]
    assert halved[-1]["step"] == 100
    assert halved[-1]["tokens"] == normal[-1]["tokens"]


@pytest.fixture
def nothing_frozen():
    """Let the garbage collector see all objects, even the ones that tests/conftest.py has frozen."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.slow
def test_the_garbage_collector_skips_objects_from_start_up_until_the_run_ends(
    tmp_path, small_recipe, dataset_folder, nothing_frozen, monkeypatch
):
    frozen = []

    def note(step):
        frozen.append(gc.get_freeze_count() > 0)
        return step

    step = Trainer.step
    monkeypatch.setattr(Trainer, "step", lambda trainer: note(step(trainer)))
    pretrain(small_recipe, data=dataset_folder, out=tmp_path / "gpt")
    assert frozen == [False] + 49 * [True]
    assert gc.get_freeze_count() == 0


def test_objects_that_the_caller_has_frozen_stay_frozen(tmp_path, small_recipe, dataset_folder, nothing_frozen):
    gc.freeze()
    before = gc.get_freeze_count()
    pretrain(small_recipe, data=dataset_folder, out=tmp_path / "gpt")
    assert 0.9 * before < gc.get_freeze_count() <= before  # some are deleted


def test_a_step_does_not_count_frozen_objects(tmp_path, small_recipe, dataset_folder, monkeypatch):
    counts, count = [], gc.get_freeze_count
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counts.append(count()) or counts[-1])
    pretrain(small_recipe, data=dataset_folder, out=tmp_path / "gpt")
    assert len(counts) == 1  # once a run


def test_a_finished_run_is_not_changed(tmp_path, small_recipe, dataset_folder, trained_gpt):
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    pretrain(small_recipe, data=dataset_folder, out=out)
    assert (out / "metrics.jsonl").read_bytes() == (trained_gpt / "metrics.jsonl").read_bytes()


def test_accumulated_micro_batches_equal_one_large_batch(tmp_path, small_recipe, dataset_folder):
    ends = []
    for size in (8, 3):
        model = replace(small_recipe.model, dropout=0.0)
        train = replace(small_recipe.train, micro_batch=size, tokens=2560)
        out = tmp_path / f"of-{size}"
        pretrain(replace(small_recipe, model=model, train=train), data=dataset_folder, out=out)
        ends.append([line["loss"] for line in metrics_of(out)])
    assert ends[0] == pytest.approx(ends[1], rel=1e-4)


def test_bfloat16_trains_like_float32(tmp_path, small_recipe, dataset_folder, trained_gpt):
    recipe = replace(small_recipe, train=replace(small_recipe.train, dtype="bfloat16"))
    pretrain(recipe, data=dataset_folder, out=tmp_path / "bf16")
    ends = [metrics_of(run)[-1]["loss"] for run in (tmp_path / "bf16", trained_gpt)]
    assert ends[0] == pytest.approx(ends[1], abs=0.05)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoints(tmp_path, small_recipe, dataset_folder):
    recipe = replace(
        small_recipe,
        train=replace(small_recipe.train, lr=1e25, grad_clip=0.0, warmup_tokens=0, checkpoint_every_tokens=256),
    )
    with pytest.raises(FloatingPointError, match=r"of step \d+ is not finite.*try a lower `train.lr`"):
        pretrain(recipe, data=dataset_folder, out=tmp_path / "run")
    saved = weights_of(tmp_path / "run")
    assert all(torch.isfinite(value).all() for value in saved.values())


def test_steps_that_are_not_finite_are_skipped_if_the_recipe_allows_it(
    tmp_path, small_recipe, dataset_folder, monkeypatch, printed
):
    steps = []
    after_each_step(monkeypatch, lambda trainer: steps.append(trainer.at.step))
    watch_batches(monkeypatch, lambda rows, training: training and len(steps) in (3, 4, 20))
    recipe = replace(small_recipe, train=replace(small_recipe.train, nonfinite="skip"))
    pretrain(recipe, data=dataset_folder, out=tmp_path / "run")
    said = printed.readouterr().out
    assert all(f"the loss of step {step} is not finite: skipped" in said for step in (4, 5, 21))
    assert all(weight.isfinite().all() for weight in weights_of(tmp_path / "run").values())
    assert all(math.isfinite(line["loss"]) for line in metrics_of(tmp_path / "run"))
    steps.clear()
    with pytest.raises(FloatingPointError, match="of step 4 is not finite, at a learning rate"):
        pretrain(small_recipe, data=dataset_folder, out=tmp_path / "stopped")


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_run_that_reads_its_losses_steps_later_is_the_same_run(
    tmp_path, small_recipe, dataset_folder, monkeypatch, ahead
):
    """On a GPU the host reads the loss of a step while the next one is queued."""
    recipe = with_train(small_recipe, log_every_steps=4, validate_every_tokens=2048, checkpoint_every_tokens=3072)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "at-once")
    behind = []
    read_later(monkeypatch, ahead)
    after_each_step(monkeypatch, lambda trainer: behind.append(trainer.at.step - trainer.at.watch.steps))
    pretrain(recipe, data=dataset_folder, out=tmp_path / "later")
    assert max(behind) == ahead
    assert_same_run(tmp_path / "at-once", tmp_path / "later")


def test_a_loss_that_is_not_finite_is_found_before_the_next_checkpoint(
    tmp_path, small_recipe, dataset_folder, monkeypatch
):
    steps = []
    read_later(monkeypatch, 1)
    after_each_step(monkeypatch, lambda trainer: steps.append(trainer.at.step))
    watch_batches(monkeypatch, lambda rows, training: training and len(steps) == 3)
    with pytest.raises(FloatingPointError, match="of step 4 is not finite, at a learning rate"):
        pretrain(small_recipe, data=dataset_folder, out=tmp_path / "run")
    assert steps[-1] == 4  # the next step was queued already


@pytest.mark.parametrize(("nonfinite", "order"), [("stop", ["update", "loss"]), ("skip", ["loss", "update"])])
def test_weights_are_updated_before_waiting_for_the_loss_unless_the_step_may_be_skipped(
    small_recipe, dataset_folder, monkeypatch, nonfinite, order
):
    happened = []
    monkeypatch.setattr(OneProcess, "sum", lambda self, value: happened.append("loss") or value)
    monkeypatch.setattr(Optimizers, "step", lambda self: happened.append("update"))
    recipe = with_train(fit_to_data(small_recipe, TokenDataset(dataset_folder)), nonfinite=nonfinite)
    data = open_training_data(recipe, Mixture([TokenDataset(dataset_folder)]), Tokenizer.load(dataset_folder))
    Trainer(None, LanguageModel(recipe.model, 0), data, recipe.train).step()
    assert happened[-2:] == order


def test_a_run_that_skips_forever_stops(tmp_path, small_recipe, dataset_folder, monkeypatch):
    watch_batches(monkeypatch, lambda rows, training: training)
    recipe = replace(small_recipe, train=replace(small_recipe.train, nonfinite="skip"))
    with pytest.raises(FloatingPointError, match=r"step 11 is not finite \(nor were those of the 10 steps before\)"):
        pretrain(recipe, data=dataset_folder, out=tmp_path / "run")


def test_an_open_micro_batch_is_16_on_a_cpu(tmp_path, small_recipe, dataset_folder):
    runs = []
    for size in (0, 16):
        runs.append(tmp_path / str(size))
        train = replace(small_recipe.train, micro_batch=size, batch_tokens=1024, tokens=2048)
        pretrain(replace(small_recipe, train=train), data=dataset_folder, out=runs[-1])
    assert_same_run(*runs)


@pytest.mark.parametrize(("validate", "checkpoint"), [(768, 5120), (2560, 1024)])
def test_the_best_checkpoint_and_milestones_are_kept(
    tmp_path, small_recipe, dataset_folder, in_process, validate, checkpoint
):
    """The learning rate grows until the loss rises again. Checkpoints are less or more frequent than validations."""
    every = {"validate_every_tokens": validate, "checkpoint_every_tokens": checkpoint, "keep_every_tokens": 6000}
    train = replace(small_recipe.train, lr=1.0, warmup_tokens=12_800, keep_checkpoints=1, keep_best=True, **every)
    out = tmp_path / "gpt"
    pretrain(replace(small_recipe, train=train), data=dataset_folder, out=out)
    tokens = {json.loads((folder / "state.json").read_text())["tokens"] for folder in checkpoint_folders(out)}
    losses = {line["tokens"]: line["loss"] for line in metrics_of(out) if line["split"] == "validation"}
    best = min((count for count in losses if count), key=losses.__getitem__)
    assert best < 12800 and tokens >= {best, 12800} and len(tokens) <= 4
    assert any(6000 <= count < 6000 + checkpoint for count in tokens)
    done = in_process("evaluate", out, "--checkpoint", "best", "--stride", "32")
    assert done.returncode == 0, done.stderr
    assert json.loads((out / "evaluation.json").read_text())["checkpoint"] == f"step-{best // 256:07d}"
    step = str(best // 256)
    written = [in_process("generate", out, "--checkpoint", which, "--tokens", "5").stdout for which in ("best", step)]
    assert written[0] == written[1] != ""


def test_a_run_with_patience_that_stopped_before_it_was_validated_loads_its_newest_checkpoint(
    tmp_path, small_recipe, dataset_folder, monkeypatch
):
    stop_after(3, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        pretrain(with_train(small_recipe, patience=2), data=dataset_folder, out=tmp_path / "gpt")
    assert load_run(tmp_path / "gpt").loaded.checkpoint.name == "step-0000003"
    assert opened(tmp_path / "gpt").name == "gpt"


def test_a_run_that_its_patience_ended_goes_on_with_more_patience_only(tmp_path, small_recipe, dataset_folder, printed):
    every_step = {"validate_every_tokens": 256, "log_every_steps": 1}
    out, recipe = tmp_path / "gpt", with_train(small_recipe, tokens=2560, lr=1e-12, **every_step)
    ended = pretrain(with_train(recipe, patience=1), data=dataset_folder, out=out).metrics()["step"].max()
    assert ended < 10
    again = pretrain(with_train(recipe, patience=1, tokens=5120), data=dataset_folder, out=out)
    assert again.metrics()["step"].max() == ended
    assert "training ended after 1 validations without improvement: give more patience" in printed.readouterr().out
    again = pretrain(with_train(recipe, patience=0, tokens=5120), data=dataset_folder, out=out)
    assert again.metrics()["step"].max() == 20


def test_the_best_checkpoint_was_validated_on_the_newest_number_of_tokens(
    tmp_path, small_recipe, dataset_folder, monkeypatch
):
    every = {"validate_every_tokens": 2560, "checkpoint_every_tokens": 12_800, "keep_checkpoints": 1, "keep_best": True}
    train = replace(small_recipe.train, lr=1e-4, validation_tokens=1024, **every)
    out = tmp_path / "gpt"
    with monkeypatch.context() as patch:
        stop_after(20, patch)
        with pytest.raises(KeyboardInterrupt):
            pretrain(replace(small_recipe, train=train), data=dataset_folder, out=out)
    # As if this part of the text were easier than the rest.
    rewrite_state(latest_checkpoint(out), validation_loss=0.1, criterion=0.1, lowest_criterion=0.1)
    pretrain(replace(small_recipe, train=replace(train, validation_tokens=64)), data=dataset_folder, out=out)
    folder = whole_checkpoint(out, Run(out).settings, "best").folder
    assert folder.name == "step-0000050"
    assert folder in checkpoint_folders(out)


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("3", "has no checkpoint of step 3: its checkpoints are of 40, 50"),
        ("last", "--checkpoint is 'last': give auto, newest, best, or the number of a step"),
    ],
)
def test_a_missing_checkpoint_is_refused(in_process, trained_gpt, which, message):
    done = in_process("generate", trained_gpt, "--checkpoint", which)
    assert (done.returncode, message in " ".join(done.stderr.split())) == (1, True), done.stderr


@pytest.mark.parametrize(
    ("name", "flops"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L40", 181e12),
        ("NVIDIA L4", 121e12),
        ("Tesla T4", 65e12),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA T400", None),
        ("Tesla V100-PCIE-32GB", 112e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA H200 MIG 1g.18gb", None),
        ("", None),
    ],
)
def test_the_tabulated_peak_is_that_of_the_exact_device(name, flops):
    assert tabulated_flops(name) == flops


def test_the_model_is_a_function_of_recipe_and_seed(small_recipe):
    config = replace(small_recipe.model, vocab_size=300)
    one, same, other = (LanguageModel(config, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


@pytest.mark.gpu
def test_a_gpu_reaches_the_same_loss(tmp_path, small_recipe, dataset_folder, trained_gpt):
    recipe = replace(small_recipe, train=replace(small_recipe.train, device="cuda"))
    pretrain(recipe, data=dataset_folder, out=tmp_path / "gpu")
    ends = [metrics_of(run)[-1]["loss"] for run in (tmp_path / "gpu", trained_gpt)]
    assert ends[0] == pytest.approx(ends[1], abs=0.05)


@pytest.mark.gpu
def test_a_deterministic_run_resumed_on_a_gpu_ends_with_the_same_weights(
    tmp_path, small_recipe, dataset_folder, monkeypatch
):
    recipe = with_train(small_recipe, device="cuda", dtype="auto", deterministic=True)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_after(17, patch)
        with pytest.raises(KeyboardInterrupt):
            pretrain(recipe, data=dataset_folder, out=tmp_path / "stopped")
    pretrain(recipe, data=dataset_folder, out=tmp_path / "stopped")
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")
