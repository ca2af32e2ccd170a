"""A resumed run ends like an uninterrupted one, whatever stopped it and whichever checkpoint was damaged."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pipelines.recipes.config import TrainConfig
from pipelines.recipes.recipe import save_config
from pipelines.run.folder import Run
from pipelines.run.retention import checkpoint_folders, latest_checkpoint
from pipelines.training.parallel import OneProcess
from pipelines.verbs.pretrain import pretrain
from tests.pipelines.training_cases import (
    assert_same_run,
    metrics_of,
    start,
    stop_after,
    wait_for_checkpoint,
    wait_for_step,
    weights_of,
    with_train,
)


def train_half(recipe, data, out, monkeypatch):
    """Train until SIGTERM comes after step 23, which saves a checkpoint between two regular ones."""
    with monkeypatch.context() as patch:
        stop_after(23, patch)
        with pytest.raises(KeyboardInterrupt):
            pretrain(recipe, data=data, out=out)


@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL])
def test_a_stopped_run_resumes_and_ends_with_the_same_weights(how, tmp_path, small_recipe, dataset_folder, trained_gpt):
    out = tmp_path / "gpt"
    process = start(small_recipe, dataset_folder, out, tmp_path)
    wait_for_step(out, 15, process)
    wait_for_checkpoint(out, process)
    process.send_signal(how)
    output, _ = process.communicate(timeout=300)
    if how != signal.SIGKILL:
        assert process.returncode == 128 + how, output
        assert "saved at step" in output
        assert "Traceback" not in output
    assert 10 <= int(latest_checkpoint(out).name[-7:]) < 50
    pretrain(small_recipe, data=dataset_folder, out=out)
    assert_same_run(out, trained_gpt)


def test_a_masked_run_resumes_with_the_same_masks(tmp_path, dataset_folder, trained_bert, monkeypatch):
    recipe = Run(trained_bert).recipe
    out = tmp_path / "bert"
    train_half(recipe, dataset_folder, out, monkeypatch)
    pretrain(recipe, data=dataset_folder, out=out)
    assert_same_run(out, trained_bert)


def test_a_run_whose_layers_share_weights_resumes_with_the_same_weights(
    tmp_path, small_recipe, dataset_folder, monkeypatch
):
    recipe = replace(small_recipe, model=replace(small_recipe.model, layers=2, layer_groups=1))
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    pretrain(recipe, data=dataset_folder, out=whole)
    train_half(recipe, dataset_folder, halves, monkeypatch)
    pretrain(recipe, data=dataset_folder, out=halves)
    assert_same_run(halves, whole)
    names = load_file(latest_checkpoint(whole) / "model.safetensors").keys()
    assert {name.split(".")[2] for name in names if ".blocks." in name} == {"0"}


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path, small_recipe, dataset_folder, trained_gpt):
    out = tmp_path / "gpt"
    process = start(small_recipe, dataset_folder, out, tmp_path)
    wait_for_step(out, 0, process)
    process.kill()
    process.wait()
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    pretrain(small_recipe, data=dataset_folder, out=out)
    assert_same_run(out, trained_gpt)


def test_a_run_killed_while_writing_its_recipe_starts_again(tmp_path, small_recipe, dataset_folder, trained_gpt):
    out = tmp_path / "gpt"
    out.mkdir()
    shutil.copy(dataset_folder / "tokenizer.json", out)
    (out / "config.toml.partial").write_text("objective =")
    (out / ".lock").touch()
    pretrain(small_recipe, data=dataset_folder, out=out)
    assert_same_run(out, trained_gpt)


def test_training_continues_while_a_checkpoint_is_written(
    tmp_path, small_recipe, dataset_folder, trained_gpt, monkeypatch
):
    """Each write is delayed by two more steps. The checkpoint still has the state of the step that started it."""
    from pipelines.training import checkpoints
    from pipelines.training.loop import Trainer

    step, write, made, waited = Trainer.step, checkpoints.write_checkpoint, threading.Semaphore(0), []

    def counted(self):
        done = step(self)
        made.release()
        return done

    def late(run, snapshot, state, *more):
        while made.acquire(blocking=False):
            pass
        if state["step"] < 50:
            waited.append(made.acquire(timeout=300) and made.acquire(timeout=300))
        return write(run, snapshot, state, *more)

    monkeypatch.setattr(Trainer, "step", counted)
    monkeypatch.setattr(checkpoints, "write_checkpoint", late)
    pretrain(small_recipe, data=dataset_folder, out=tmp_path / "gpt")
    assert waited == [True] * 4
    assert_same_run(tmp_path / "gpt", trained_gpt)


def test_a_checkpoint_is_written_to_its_end_despite_repeated_interrupts(tmp_path, monkeypatch):
    from pipelines.training import checkpoints

    def slow(run, *_):
        time.sleep(0.5)
        (run / "whole").touch()

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "write_checkpoint", slow)
    writer = checkpoints.CheckpointWriter(tmp_path, TrainConfig(keep_checkpoints=1), {})
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        writer.write({}, {})
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            writer.wait()
        assert not (tmp_path / "whole").exists()
    finally:
        signal.signal(signal.SIGALRM, before)
        writer.join()
    assert (tmp_path / "whole").exists()


def test_a_run_resumes_without_unpickling_anything(tmp_path, small_recipe, dataset_folder, trained_gpt, monkeypatch):
    monkeypatch.setattr(torch, "load", None)
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, None)
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    shutil.rmtree(latest_checkpoint(out))
    pretrain(small_recipe, data=dataset_folder, out=out)
    assert_same_run(out, trained_gpt)


def test_a_signal_before_the_first_step_also_saves_a_checkpoint(
    tmp_path, small_recipe, dataset_folder, trained_gpt, monkeypatch
):
    from pipelines.training.loop import Trainer

    validate = Trainer.validate

    def interrupted(self):
        validate(self)
        if self.at.step == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "validate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pretrain(small_recipe, data=dataset_folder, out=tmp_path / "gpt")
    assert latest_checkpoint(tmp_path / "gpt").name == "step-0000000"
    pretrain(small_recipe, data=dataset_folder, out=tmp_path / "gpt")
    assert_same_run(tmp_path / "gpt", trained_gpt)


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "rng.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["truncated", "altered", "missing"])
def test_a_damaged_checkpoint_is_skipped_by_name_and_the_run_ends_the_same(
    file, damage, tmp_path, small_recipe, dataset_folder, trained_gpt
):
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    damage_file(latest_checkpoint(out) / file, damage)
    with pytest.warns(UserWarning, match=rf"step-0000050/{file} is .*: step-0000050 is skipped"):
        pretrain(small_recipe, data=dataset_folder, out=out)
    assert_same_run(out, trained_gpt)


def test_the_next_checkpoint_replaces_a_damaged_one(tmp_path, small_recipe, dataset_folder, trained_gpt):
    """The run resumed from an earlier checkpoint, so the next one has an earlier step. Only one is kept."""
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    damage_file(latest_checkpoint(out) / "model.safetensors", "altered")
    with pytest.warns(UserWarning, match="step-0000050 is skipped"), pytest.MonkeyPatch.context() as patch:
        stop_after(44, patch)
        with pytest.raises(KeyboardInterrupt):
            pretrain(with_train(small_recipe, keep_checkpoints=1), data=dataset_folder, out=out)
    assert [folder.name for folder in checkpoint_folders(out)] == ["step-0000044"]
    pretrain(small_recipe, data=dataset_folder, out=out)
    assert_same_run(out, trained_gpt)


def test_simultaneous_signals_are_one_request(tmp_path, small_recipe, dataset_folder, trained_gpt, monkeypatch):
    """A scheduler signals all processes of a job, and their parent passes the signal on. The first signal arrives
    while this rank exchanges stop requests with the others."""
    maximum, asked = OneProcess.max, []

    def interrupted(self, value):
        answer = maximum(self, value)
        asked.append(value)
        if len(asked) == 20:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(OneProcess, "max", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pretrain(small_recipe, data=dataset_folder, out=tmp_path / "gpt")
    assert int(latest_checkpoint(tmp_path / "gpt").name[-7:]) < 50
    pretrain(small_recipe, data=dataset_folder, out=tmp_path / "gpt")
    assert_same_run(tmp_path / "gpt", trained_gpt)


def test_a_signal_in_the_last_step_finds_the_run_finished(tmp_path, small_recipe, dataset_folder, trained_gpt, printed):
    with pytest.MonkeyPatch.context() as patch:
        stop_after(50, patch)
        pretrain(small_recipe, data=dataset_folder, out=tmp_path / "gpt")
    assert "resumes it" not in printed.readouterr().out
    assert_same_run(tmp_path / "gpt", trained_gpt)


def damage_file(path, damage):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(data[: len(data) - (damage == "truncated")])


def test_a_run_without_a_whole_checkpoint_is_refused_rather_than_restarted(
    tmp_path, small_recipe, dataset_folder, trained_gpt
):
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    for folder in checkpoint_folders(out):
        damage_file(folder / "model.safetensors", "altered")
    before = sorted(path.name for path in out.rglob("*"))
    with (
        pytest.warns(UserWarning, match="is skipped"),
        pytest.raises(ValueError, match=r"step-0000040/model.safetensors .* no other checkpoint .* is whole"),
    ):
        pretrain(small_recipe, data=dataset_folder, out=out)
    assert sorted(path.name for path in out.rglob("*")) == before


def test_an_average_of_the_weights_is_validated_saved_loaded_and_resumed(
    tmp_path, small_recipe, dataset_folder, monkeypatch
):
    from pipelines.run.loaded_run import load_trained

    recipe = replace(small_recipe, train=replace(small_recipe.train, average=0.9))
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    pretrain(recipe, data=dataset_folder, out=whole)
    train_half(recipe, dataset_folder, stopped, monkeypatch)
    pretrain(recipe, data=dataset_folder, out=stopped)
    assert_same_run(stopped, whole)
    averages = [load_file(latest_checkpoint(out) / "average.safetensors") for out in (whole, stopped)]
    loaded = load_trained(Run(whole)).model.state_dict()
    for name, weights in averages[0].items():
        assert torch.equal(weights, averages[1][name]), name
        assert torch.equal(weights, loaded[name]), name
    assert any(not torch.equal(loaded[name], weights) for name, weights in weights_of(whole).items())


def test_muon_trains_and_resumes_exactly(tmp_path, small_recipe, dataset_folder, monkeypatch):
    train = replace(small_recipe.train, optimizer="muon", schedule="trapezoid", muon_lr=0.004)
    recipe = replace(small_recipe, train=train)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    pretrain(recipe, data=dataset_folder, out=whole)
    validation = [line["loss"] for line in metrics_of(whole) if line["split"] == "validation"]
    assert validation[-1] < validation[0] - 0.3
    train_half(recipe, dataset_folder, stopped, monkeypatch)
    pretrain(recipe, data=dataset_folder, out=stopped)
    assert_same_run(stopped, whole)


@pytest.mark.parametrize("full", ["step-0000060", pytest.param("metrics.jsonl", marks=pytest.mark.slow)])
def test_a_full_disk_stops_the_run_with_a_one_line_error_and_keeps_the_checkpoint(
    tmp_path, small_recipe, dataset_folder, trained_gpt, full
):
    """A limit on file sizes makes writing fail in the middle of a file, as on a full disk."""
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    limit = 40_000 if full != "metrics.jsonl" else (out / full).stat().st_size + 50
    recipe = replace(small_recipe, train=replace(small_recipe.train, tokens=small_recipe.train.tokens * 2))
    run = Run(out)
    save_config(out / "config.toml", replace(run.recipe, train=recipe.train), run.facts)
    before = weights_of(out)
    save_config(tmp_path / "recipe.toml", recipe, {})
    command = ["pretrain", str(tmp_path / "recipe.toml"), "--data", str(dataset_folder), "--out", str(out)]
    code = (
        "import resource, sys; from pipelines.cli.dispatch import main; import torch; "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); sys.exit(main({command!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("bytelm pretrain: ")
    assert "Traceback" not in done.stderr
    assert full in done.stderr
    after = weights_of(out)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert {path.name for path in (out / "checkpoints").iterdir()} == {"step-0000040", "step-0000050"}


@pytest.mark.slow
def test_a_run_killed_dozens_of_times_ends_like_an_uninterrupted_run(tmp_path, small_recipe, dataset_folder):
    """Kills come at random times: a third after a start, some of them before the first checkpoint, the others soon
    after a new checkpoint. Every second step writes a checkpoint, so many kills interrupt a write. Times scale with
    the speed of the machine, because a fast one would end between two kills."""
    train = replace(
        small_recipe.train, tokens=256 * 600, checkpoint_every_tokens=512, optimizer="muon", average=0.9, keep_best=True
    )
    recipe = replace(small_recipe, train=train)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "whole")
    a_step = Run(tmp_path / "whole").metrics()[-1]["time_s"] / 600
    generator, kills, early, partial, until_a_checkpoint = np.random.default_rng(0), 0, 0, 0, 0.0
    out = tmp_path / "killed"
    while kills < 60:
        started = time.monotonic()
        process = start(recipe, dataset_folder, out, tmp_path)
        before = len(checkpoint_folders(out)) and latest_checkpoint(out).name
        if kills % 3 == 2:
            time.sleep(generator.uniform(0.0, 1.1 * until_a_checkpoint))
        else:
            while process.poll() is None and time.monotonic() < started + 300:
                if len(checkpoint_folders(out)) and latest_checkpoint(out).name != before:
                    break
                time.sleep(0.002)
            until_a_checkpoint = time.monotonic() - started
            time.sleep(generator.uniform(0.0, 20 * a_step))
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        kills += 1
        early += bool(len(checkpoint_folders(out)) and latest_checkpoint(out).name == before)
        partial += any((out / "checkpoints").glob("partial-*"))
    last = start(recipe, dataset_folder, out, tmp_path)
    output, _ = last.communicate(timeout=300)
    assert last.returncode == 0, output
    assert kills >= 24
    assert partial >= 1  # some kills came during a write
    assert early >= 1  # and some before the first write
    assert_same_run(out, tmp_path / "whole")
