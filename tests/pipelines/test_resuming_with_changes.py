"""A run resumes with another batch size, other settings, or more tokens."""

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lm.optim.schedules import batch_size, multiplier, weight_decay_multiplier
from pipelines.recipes.config import TrainConfig
from pipelines.recipes.recipe import Recipe, save_config
from pipelines.run.folder import Run
from pipelines.training.loop import Trainer
from pipelines.verbs.pretrain import pretrain
from tests.pipelines.training_cases import (
    assert_same_run,
    in_order,
    metrics_of,
    start,
    stop_after,
    watch_batches,
    weights_of,
    with_train,
)


@pytest.fixture
def read(monkeypatch):
    """Return a list of the blocks (rows of token ids) that training reads, in order."""
    read = []
    watch_batches(monkeypatch, lambda rows, training: read.extend(rows if training else []))
    return read


def test_a_run_resumes_with_another_batch_size_without_repeating_or_skipping_a_block(
    tmp_path, small_recipe, dataset_folder, read, printed
):
    out = tmp_path / "gpt"
    with pytest.MonkeyPatch.context() as patch:
        stop_after(23, patch)
        with pytest.raises(KeyboardInterrupt):
            pretrain(small_recipe, data=dataset_folder, out=out)
    larger = with_train(small_recipe, batch_tokens=640, micro_batch=5, log_every_steps=1)
    pretrain(larger, data=dataset_folder, out=out)
    said = " ".join(printed.readouterr().out.split())
    assert "gpt resumes with train.batch_tokens 640 (was 256), train.micro_batch 5 (was 8), train.log_every" in said
    assert read == in_order(dataset_folder, len(read))
    assert len(read) * 32 == metrics_of(out)[-1]["tokens"] == 23 * 256 + 11 * 640
    assert Run(out).recipe.train == larger.train


def test_schedules_and_intervals_count_tokens_at_any_batch_size(tmp_path, small_recipe, dataset_folder, monkeypatch):
    out = tmp_path / "gpt"
    with monkeypatch.context() as patch:
        stop_after(23, patch)
        with pytest.raises(KeyboardInterrupt):
            pretrain(small_recipe, data=dataset_folder, out=out)
    pretrain(with_train(small_recipe, batch_tokens=640), data=dataset_folder, out=out)
    lines, train = metrics_of(out), small_recipe.train
    for line in (line for line in lines if line["split"] == "train"):
        size = 256 if line["step"] <= 23 else 640
        options = {"warmup": train.warmup_tokens, "total": train.tokens, "stride": size, "final": train.min_lr_ratio}
        assert line["lr"] == train.lr * multiplier("cosine", line["tokens"] - size, **options)
    validated = [line["tokens"] for line in lines if line["split"] == "validation"]
    # every 2,560 tokens, at the first step at or after them
    assert validated == [0, 2560, 5120, 23 * 256 + 3 * 640, 23 * 256 + 7 * 640, 23 * 256 + 11 * 640]


def test_a_growing_batch_and_a_falling_decay_are_logged_and_resumed_exactly(
    tmp_path, small_recipe, dataset_folder, read, monkeypatch
):
    growing = {"batch_tokens_start": 64, "batch_warmup_tokens": 4000}
    recipe = with_train(small_recipe, **growing, weight_decay_schedule="cosine", weight_decay_ratio=0.25)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    pretrain(recipe, data=dataset_folder, out=whole)
    assert read == in_order(dataset_folder, len(read))
    lines = [line for line in metrics_of(whole) if line["split"] == "train"]
    assert lines[0]["batch_tokens"] < lines[3]["batch_tokens"] < lines[-1]["batch_tokens"] == 256
    assert lines[-1]["weight_decay"] < 0.3 * recipe.train.weight_decay
    for line in lines:
        before = line["tokens"] - line["batch_tokens"]
        size = batch_size(before, start=64, full=256, warmup=4000)
        assert line["batch_tokens"] == 32 * round(size / 32)
        decay = weight_decay_multiplier("cosine", before, total=recipe.train.tokens, final=0.25)
        assert line["weight_decay"] == recipe.train.weight_decay * decay
    with monkeypatch.context() as patch:
        stop_after(17, patch)
        with pytest.raises(KeyboardInterrupt):
            pretrain(recipe, data=dataset_folder, out=stopped)
    pretrain(recipe, data=dataset_folder, out=stopped)
    assert_same_run(stopped, whole)


@pytest.mark.slow
def test_weight_decay_follows_its_schedule(tmp_path, small_recipe, dataset_folder, trained_gpt):
    """The decay is strong. Weights end larger if it falls to zero than if it stays constant."""

    def norm(**changes):
        out = tmp_path / changes["weight_decay_schedule"]
        pretrain(with_train(small_recipe, weight_decay=30.0, **changes), data=dataset_folder, out=out)
        return float(weights_of(out)["embedding.weight"].norm())

    assert norm(weight_decay_schedule="linear") > 1.05 * norm(weight_decay_schedule="constant")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": 6_400}, "train.tokens is 12800, not 6400"),
        ({"seed": 3}, "train.seed is 0, not 3"),
        ({"warmup_tokens": 2048}, "train.warmup_tokens is 1024, not 2048"),
        ({"average": 0.5}, "train.average is 0.0, not 0.5"),
        ({"sampling": "crops"}, "train.sampling is 'permutation', not 'crops'"),
        ({"batch_tokens": 512, "weight_decay_schedule": "linear"}, "train.weight_decay_schedule is 'constant'"),
    ],
)
def test_a_change_of_the_objective_or_the_data_order_is_refused_by_field(
    tmp_path, small_recipe, dataset_folder, trained_gpt, change, message
):
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    before = (out / "config.toml").read_bytes()
    with pytest.raises(ValueError, match="holds another run: its ") as error:
        pretrain(with_train(small_recipe, **change), data=dataset_folder, out=out)
    assert message in str(error.value)
    assert (out / "config.toml").read_bytes() == before


def test_a_finished_run_is_extended_and_prints_its_new_schedule(
    tmp_path, small_recipe, dataset_folder, trained_gpt, in_process
):
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    done = in_process("pretrain", "--out", out, "--train.tokens", "25.6k")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "gpt resumes with train.tokens 25600 (was 12800)" in said
    assert "extended from 12.8 ktok to 25.6 ktok: the cosine schedule spans all 25.6 ktok" in said
    train = small_recipe.train
    rate = train.lr * multiplier("cosine", 12_800, warmup=1024, total=25_600, stride=256, final=train.min_lr_ratio)
    assert f"the learning rate at 12.8 ktok is {rate:.3g} instead of {train.lr * train.min_lr_ratio:.3g}" in said
    lines = [line for line in metrics_of(out) if line["split"] == "train"]
    assert [line["tokens"] for line in lines] == [1280 * (i + 1) for i in range(20)]
    assert lines[-1]["lr"] == pytest.approx(train.lr * train.min_lr_ratio, rel=0.05)
    assert lines[-1]["lr"] < lines[10]["lr"] < train.lr
    assert Run(out).recipe == with_train(Run(trained_gpt).recipe, tokens=25_600)


def test_a_stopped_run_resumes_by_its_folder_alone_and_ends_with_the_same_weights(
    tmp_path, small_recipe, dataset_folder, trained_gpt, monkeypatch, in_process
):
    out = tmp_path / "gpt"
    with monkeypatch.context() as patch:
        stop_after(23, patch)
        with pytest.raises(KeyboardInterrupt):
            pretrain(small_recipe, data=dataset_folder, out=out)
    done = in_process("pretrain", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "float32 as before" in " ".join(done.stdout.split())
    assert_same_run(out, trained_gpt)


def test_a_refused_resume_names_the_command_that_resumes(tmp_path, trained_gpt, dataset_folder, in_process):
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    for options in ((), ("--model.context-length", "32")):
        refused = in_process("pretrain", "gpt-tiny", "--data", dataset_folder, "--out", out, *options)
        assert refused.returncode == 1
        assert f"bytelm pretrain --out {out}" in refused.stderr
    nowhere = in_process("pretrain", "--out", tmp_path / "nowhere")
    assert nowhere.returncode == 2
    assert "name a recipe first" in nowhere.stderr


def test_an_automatic_dtype_is_not_reported_as_requested(tmp_path, small_recipe, dataset_folder, printed):
    automatic = with_train(small_recipe, dtype="auto", tokens=2560)
    for _ in range(2):
        pretrain(automatic, data=dataset_folder, out=tmp_path / "gpt")
        said = " ".join(printed.readouterr().out.split())
        assert "as asked" not in said
    assert f"{Run(tmp_path / 'gpt').recipe.train.dtype} as before" in said


def test_a_run_resumes_in_another_dtype_on_request(tmp_path, small_recipe, dataset_folder, monkeypatch):
    out = tmp_path / "gpt"
    with monkeypatch.context() as patch:
        stop_after(30, patch)
        with pytest.raises(KeyboardInterrupt):
            pretrain(small_recipe, data=dataset_folder, out=out)
    for dtype in ("bfloat16", "auto"):  # "auto" is resolved once
        pretrain(with_train(small_recipe, dtype=dtype), data=dataset_folder, out=out)
        assert Run(out).recipe.train.dtype == "bfloat16"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_run_from_a_gpu_resumes_on_a_cpu(tmp_path, small_recipe, dataset_folder, trained_gpt, printed):
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    run = Run(out)
    save_config(out / "config.toml", with_train(run.recipe, device="cuda", dtype="float16"), run.facts)
    shutil.rmtree(out / "checkpoints" / "step-0000050")
    pretrain(with_train(small_recipe, device="auto"), data=dataset_folder, out=out)
    assert "resumes with train.device 'cpu' (was 'cuda'), train.dtype 'float32'" in " ".join(
        printed.readouterr().out.split()
    )
    assert_same_run(out, trained_gpt)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_tokens": 100, "batch_tokens_start": 200, "batch_warmup_tokens": 10}, "must not be above"),
        ({"batch_tokens_start": 200}, "a batch that grows needs both"),
        ({"batch_warmup_tokens": 200}, "a batch that grows needs both"),
        ({"weight_decay_ratio": -1.0}, "train.weight_decay_ratio is -1.0, but must not be negative"),
        ({"max_rollbacks": 0}, "train.max_rollbacks is 0, but must be above 0"),
        ({"deterministic": True, "micro_batch": 0}, "train.micro_batch is 0, and what fits may be another number"),
    ],
)
def test_impossible_schedules_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**change)


def test_deterministic_kernels_are_used_only_while_a_deterministic_run_trains(
    tmp_path, small_recipe, dataset_folder, monkeypatch, printed
):
    seen, step = set(), Trainer.step
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(
        Trainer, "step", lambda self: seen.add(torch.are_deterministic_algorithms_enabled()) or step(self)
    )
    recipe = with_train(small_recipe, tokens=512, deterministic=True)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "gpt")
    assert (seen, torch.are_deterministic_algorithms_enabled()) == ({True}, False)
    assert torch.utils.deterministic.fill_uninitialized_memory
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert "; kernels that add up in a fixed order" in " ".join(printed.readouterr().out.split())


def test_an_operation_without_a_deterministic_kernel_is_refused_by_name(
    tmp_path, small_recipe, dataset_folder, monkeypatch
):
    def step(trainer):
        torch.empty(3).put_(
            torch.tensor([0]), torch.ones(1)
        )  # this operation has no deterministic kernel, on a CPU either

    monkeypatch.setattr(Trainer, "step", step)
    with pytest.raises(
        ValueError, match=r"but put_ has no kernel that adds up in a fixed order: give `model\.attention="
    ):
        pretrain(with_train(small_recipe, deterministic=True), data=dataset_folder, out=tmp_path / "gpt")


def test_float32_products_have_the_configured_precision_only_while_training(
    tmp_path, small_recipe, dataset_folder, monkeypatch, printed
):
    seen, step = set(), Trainer.step
    monkeypatch.setattr(Trainer, "step", lambda self: seen.add(torch.get_float32_matmul_precision()) or step(self))
    recipe = with_train(small_recipe, tokens=512, matmul_precision="high")
    pretrain(recipe, data=dataset_folder, out=tmp_path / "gpt")
    assert (seen, torch.get_float32_matmul_precision()) == ({"high"}, "highest")
    said = " ".join(printed.readouterr().out.split())
    assert "CPU, 1 of" in said
    assert "cores, float32 as asked; attention sdpa, the fastest measured in this dtype at 32 positions" in said
    assert "matmul precision high (float32 products in TF32 or three of bfloat16)" in said


@pytest.mark.slow
def test_memory_does_not_grow(tmp_path, small_recipe, dataset_folder):
    """A separate process trains 4,000 steps with validations, checkpoints and several epochs. Memory means anonymous
    memory, because the system keeps or drops pages of the mapped dataset."""
    train = {"tokens": 256 * 4000, "validate_every_tokens": 25_600, "checkpoint_every_tokens": 25_600}
    recipe: Recipe = with_train(small_recipe, **train)
    recipe = replace(recipe, model=replace(recipe.model, layers=2, width=64))
    out, samples = tmp_path / "gpt", []
    process = start(recipe, dataset_folder, out, tmp_path)
    while process.poll() is None:
        status, log = Path(f"/proc/{process.pid}/status"), out / "metrics.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        try:
            anonymous = next(line for line in status.read_text().splitlines() if line.startswith("RssAnon"))
            samples.append((json.loads(lines[-1])["step"], int(anonymous.split()[1])))
        except (OSError, IndexError, StopIteration, ValueError):
            pass  # it has only begun, is writing a line, or has ended
        time.sleep(0.05)
    assert process.returncode == 0, process.stdout.read()
    early = [kilobytes for step, kilobytes in samples if 500 <= step < 1000]
    late = [kilobytes for step, kilobytes in samples if step >= 3000]
    assert len(early) > 5 and len(late) > 5
    assert np.median(late) - np.median(early) < 4_000, (np.median(early), np.median(late))


@pytest.mark.slow
def test_memory_does_not_grow_if_each_batch_has_another_number_of_targets(tmp_path, small_recipe, dataset_folder):
    train = {"tokens": 1024 * 200, "batch_tokens": 1024, "micro_batch": 32, "log_every_steps": 10}
    recipe = with_train(small_recipe, **train)
    shape = {"architecture": "encoder", "context_length": 34, "layers": 2, "width": 128}
    recipe = replace(recipe, objective="masked-token", model=replace(recipe.model, **shape))
    process = start(recipe, dataset_folder, tmp_path / "bert", tmp_path)
    assert process.wait() == 0, process.stdout.read()
    lines = [json.loads(line) for line in (tmp_path / "bert" / "metrics.jsonl").read_text().splitlines()]
    memory = [line["memory_bytes"] for line in lines if "memory_bytes" in line]
    assert len(memory) == 20
    assert memory[-1] < 1.1 * memory[0], memory


@pytest.mark.parametrize("settings", [{"batch_tokens": 1024}, {"batch_tokens_start": 256, "batch_warmup_tokens": 4096}])
def test_inverse_sqrt_without_a_warm_up_falls_from_the_first_step_whatever_the_size_of_later_ones(settings):
    config = TrainConfig(schedule="inverse_sqrt", warmup_tokens=0, **settings)
    first = config.batch_tokens_start or config.batch_tokens
    assert config.lr_multiplier(0, first) == config.lr_multiplier(first, 2 * first) == 1.0
    assert [config.lr_multiplier(16 * first, tokens) for tokens in (first // 2, first, 20 * first)] == [0.25] * 3
