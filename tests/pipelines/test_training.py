"""Training: the data order, exact resumption, and what happens when things go wrong."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lm.model import build_model
from pipelines.dataset import TokenDataset, TokenStream
from pipelines.pretrain import pretrain
from pipelines.recipe import save_config
from pipelines.training.checkpoints import checkpoint_folders, latest_checkpoint
from pipelines.training.loader import Loader, MaskedToken, NextToken, validation_batch
from pipelines.training.run import Run, locked
from tokenizer import Tokenizer

OF_TIME = ("tokens_per_s", "time_s", "mfu", "mfu_measured", "data_wait_s", "memory_bytes")


def weights_of(run):
    return load_file(latest_checkpoint(run) / "model.safetensors")


def metrics_of(run):
    """metrics.jsonl without what is a matter of time."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in OF_TIME} for line in lines]


def assert_same_run(one, other):
    first, second = weights_of(one), weights_of(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert metrics_of(one) == metrics_of(other)


def start(recipe, data, out, tmp_path):
    """The same training in a process of its own."""
    save_config(tmp_path / "recipe.toml", recipe, {})
    command = ["pretrain", str(tmp_path / "recipe.toml"), "--data", str(data), "--out", str(out)]
    code = f"import sys; from pipelines.cli import main; sys.exit(main({command!r}))"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_step(run, step, process):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        path = run / "metrics.jsonl"
        if path.exists() and any(f'"step": {s},' in path.read_text() for s in range(step, step + 10)):
            return
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.005)
    raise AssertionError("the run did not get that far")


def test_the_loss_falls_and_metrics_tell_it(trained_gpt, small_recipe):
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


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_stopped_run_resumes_and_ends_with_the_same_weights(how, tmp_path, small_recipe, dataset_folder, trained_gpt):
    out = tmp_path / "gpt"
    process = start(small_recipe, dataset_folder, out, tmp_path)
    wait_for_step(out, 15, process)
    process.send_signal(how)
    output, _ = process.communicate(timeout=60)
    if how != signal.SIGKILL:
        assert process.returncode == 128 + how, output
        assert "saved at step" in output
        assert "Traceback" not in output
    assert 10 <= int(latest_checkpoint(out).name[-7:]) < 50
    assert pretrain(small_recipe, data=dataset_folder, out=out) == 0
    assert_same_run(out, trained_gpt)


def test_a_masked_run_resumes_with_the_same_masks(tmp_path, small_recipe, dataset_folder, trained_bert):
    recipe = Run(trained_bert).recipe
    out = tmp_path / "bert"
    process = start(recipe, dataset_folder, out, tmp_path)
    wait_for_step(out, 20, process)
    process.kill()
    process.wait()
    assert int(latest_checkpoint(out).name[-7:]) < 50
    assert pretrain(recipe, data=dataset_folder, out=out) == 0
    assert_same_run(out, trained_bert)


def test_a_run_killed_before_its_first_checkpoint_starts_again_whole(
    tmp_path, small_recipe, dataset_folder, trained_gpt
):
    out = tmp_path / "gpt"
    process = start(small_recipe, dataset_folder, out, tmp_path)
    wait_for_step(out, 0, process)
    process.kill()
    process.wait()
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    assert pretrain(small_recipe, data=dataset_folder, out=out) == 0
    assert_same_run(out, trained_gpt)


def test_a_signal_before_the_first_step_saves_too(tmp_path, small_recipe, dataset_folder, trained_gpt, monkeypatch):
    from pipelines.training.loop import Trainer

    validate = Trainer._validate

    def interrupted(self):
        validate(self)
        if self.at.step == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_validate", interrupted)
        assert pretrain(small_recipe, data=dataset_folder, out=tmp_path / "gpt") == 128 + signal.SIGTERM
    assert latest_checkpoint(tmp_path / "gpt").name == "step-0000000"
    assert pretrain(small_recipe, data=dataset_folder, out=tmp_path / "gpt") == 0
    assert_same_run(tmp_path / "gpt", trained_gpt)


def test_the_logged_validation_loss_is_that_of_the_checkpoint(trained_gpt, dataset_folder):
    """Recomputed in plain PyTorch, without dropout, over the first 640 tokens of the split."""
    from pipelines.loading import load_trained

    model = load_trained(Run(trained_gpt)).model
    stream = TokenDataset(dataset_folder).split("validation")
    ids = torch.from_numpy(stream.read(0, 641).astype(np.int64))
    with torch.no_grad():
        logits = torch.cat([model.logits(model(ids[None, s : s + 32])[0]) for s in range(0, 640, 32)])
    loss = torch.nn.functional.cross_entropy(logits.double(), ids[1:])
    assert metrics_of(trained_gpt)[-1]["loss"] == pytest.approx(float(loss), rel=1e-5)


def test_every_training_setting_does_what_it_says(tmp_path, small_recipe, dataset_folder, trained_gpt):
    def ends(name, **changes):
        recipe = replace(small_recipe, train=replace(small_recipe.train, **changes))
        pretrain(recipe, data=dataset_folder, out=tmp_path / name)
        return metrics_of(tmp_path / name)

    normal = metrics_of(trained_gpt)
    assert ends("seed", seed=1)[-1]["loss"] != normal[-1]["loss"]
    # AdamW does not care about the scale of gradients, until eps is as large as they are.
    assert ends("clip", grad_clip=1e-9)[-1]["loss"] > normal[-1]["loss"] + 0.1
    assert ends("decay", weight_decay=100.0)[-1]["loss"] > normal[-1]["loss"] + 0.1
    flat = [line["lr"] for line in ends("flat", min_lr_ratio=1.0) if line["split"] == "train"]
    assert flat[1:] == [small_recipe.train.lr] * 9
    steep = [line["lr"] for line in ends("steep", min_lr_ratio=0.0) if line["split"] == "train"]
    assert steep[-1] < 0.01 * small_recipe.train.lr
    halved = [line for line in ends("batch", batch_tokens=128) if line["split"] == "train"]
    assert halved[-1]["step"] == 100
    assert halved[-1]["tokens"] == normal[-1]["tokens"]


def test_a_finished_run_is_left_as_it_is(tmp_path, small_recipe, dataset_folder, trained_gpt):
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    assert pretrain(small_recipe, data=dataset_folder, out=out) == 0
    assert (out / "metrics.jsonl").read_bytes() == (trained_gpt / "metrics.jsonl").read_bytes()


def test_accumulating_micro_batches_is_one_large_batch(tmp_path, small_recipe, dataset_folder):
    ends = []
    for size in (8, 3):
        model = replace(small_recipe.model, dropout=0.0)
        train = replace(small_recipe.train, micro_batch=size, tokens=2560)
        out = tmp_path / f"of-{size}"
        pretrain(replace(small_recipe, model=model, train=train), data=dataset_folder, out=out)
        ends.append([line["loss"] for line in metrics_of(out)])
    assert ends[0] == pytest.approx(ends[1], rel=1e-4)


def test_an_epoch_visits_every_block_once_in_an_order_of_its_own():
    stream = TokenStream([np.arange(30, dtype=np.uint16)], 3)
    loader = Loader(stream, NextToken(3), "permutation", seed=1)
    epochs = [[int(x) for x in loader.batch(start, 10).inputs[:, 0]] for start in (0, 10, 20)]
    assert all(sorted(epoch) == list(range(0, 30, 3)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_order_does_not_depend_on_how_it_is_cut_into_batches():
    stream = TokenStream([np.arange(300, dtype=np.uint16)], 3)
    loader = Loader(stream, NextToken(3), "permutation", seed=1)
    whole = loader.batch(0, 120).inputs
    assert np.array_equal(whole, np.concatenate([loader.batch(0, 33).inputs, loader.batch(33, 87).inputs]))


def test_every_token_but_the_first_is_a_target_exactly_once():
    stream = TokenStream([np.arange(12, dtype=np.uint16), np.arange(12, 30, dtype=np.uint16)], 3)
    batch = Loader(stream, NextToken(3), "permutation", seed=1).batch(0, 10)
    assert sorted(batch.targets[batch.weights > 0].tolist()) == list(range(1, 30))
    follows = batch.targets[batch.weights > 0] - batch.inputs[batch.weights > 0]
    assert (follows == 1).all()


def test_crops_lie_in_the_stream_and_reach_both_ends():
    stream = TokenStream([np.arange(40, dtype=np.uint16)], 3)
    batch = Loader(stream, NextToken(3), "crops", seed=1).batch(0, 500)
    assert (batch.weights == 1).all()
    assert (batch.targets == batch.inputs + 1).all()
    assert batch.inputs.min() == 0
    assert batch.targets.max() == 39
    assert len(np.unique(batch.inputs[:, 0])) == 37


def test_masks_change_with_the_epoch_but_not_in_validation(dataset_folder, tokenizer_folder):
    dataset = TokenDataset(dataset_folder)
    stream = dataset.split("validation")
    objective = MaskedToken(32, Tokenizer.load(tokenizer_folder))
    first, again = (validation_batch(stream, objective, 0, 8) for _ in range(2))
    assert np.array_equal(first.inputs, again.inputs)
    starts = np.arange(8) * 32
    later = objective.batch(stream, starts, [(0, 1, block) for block in range(8)])
    assert not np.array_equal(first.inputs, later.inputs)
    assert np.array_equal(first.targets, later.targets)


def test_masking_alone_hides_one_position(dataset_folder, tokenizer_folder):
    tok = Tokenizer.load(tokenizer_folder)
    batch = MaskedToken(4, tok).alone(np.array([[10, 11, 12, 13], [20, 21, 22, 23]]), np.array([0, 3]))
    cls, sep, mask = (tok.special_tokens[name] for name in ("<|cls|>", "<|sep|>", "<|mask|>"))
    assert batch.inputs.tolist() == [[cls, mask, 11, 12, 13, sep], [cls, 20, 21, 22, mask, sep]]
    assert batch.targets[batch.weights > 0].tolist() == [10, 23]


def test_bfloat16_trains_like_float32(tmp_path, small_recipe, dataset_folder, trained_gpt):
    recipe = replace(small_recipe, train=replace(small_recipe.train, dtype="bfloat16"))
    pretrain(recipe, data=dataset_folder, out=tmp_path / "bf16")
    ends = [metrics_of(run)[-1]["loss"] for run in (tmp_path / "bf16", trained_gpt)]
    assert ends[0] == pytest.approx(ends[1], abs=0.05)


@pytest.mark.slow
def test_compiling_changes_nothing_but_time(tmp_path, small_recipe, dataset_folder):
    losses = []
    for compiled in (False, True):
        model = replace(small_recipe.model, dropout=0.0)
        train = replace(small_recipe.train, compile=compiled, tokens=2560)
        out = tmp_path / f"compiled-{compiled}"
        pretrain(replace(small_recipe, model=model, train=train), data=dataset_folder, out=out)
        losses.append([line["loss"] for line in metrics_of(out)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoints(tmp_path, small_recipe, dataset_folder):
    recipe = replace(
        small_recipe,
        train=replace(small_recipe.train, lr=1e25, grad_clip=0.0, warmup_tokens=0, checkpoint_every_tokens=256),
    )
    with pytest.raises(FloatingPointError, match=r"of step \d+ is not finite.*try a lower --train.lr"):
        pretrain(recipe, data=dataset_folder, out=tmp_path / "run")
    saved = weights_of(tmp_path / "run")
    assert all(torch.isfinite(value).all() for value in saved.values())


def test_steps_that_are_not_finite_are_skipped_where_the_recipe_says_so(
    tmp_path, small_recipe, dataset_folder, monkeypatch, capsys
):
    from pipelines.training.loop import Trainer

    nats = Trainer._nats

    def poisoned(self, batch, **smoothing):
        bad = self.model.training and self.at.step in (3, 4, 20)
        return nats(self, batch, **smoothing) * (math.nan if bad else 1.0)

    monkeypatch.setattr(Trainer, "_nats", poisoned)
    recipe = replace(small_recipe, train=replace(small_recipe.train, nonfinite="skip"))
    assert pretrain(recipe, data=dataset_folder, out=tmp_path / "run") == 0
    said = capsys.readouterr().out
    assert all(f"the loss of step {step} is not finite: skipped" in said for step in (4, 5, 21))
    assert all(weight.isfinite().all() for weight in weights_of(tmp_path / "run").values())
    assert all(math.isfinite(line["loss"]) for line in metrics_of(tmp_path / "run"))
    with pytest.raises(FloatingPointError, match="of step 4 is not finite, at a learning rate"):
        pretrain(small_recipe, data=dataset_folder, out=tmp_path / "stopped")


def test_a_run_that_skips_forever_stops(tmp_path, small_recipe, dataset_folder, monkeypatch):
    from pipelines.training.loop import Trainer

    nats = Trainer._nats
    monkeypatch.setattr(
        Trainer, "_nats", lambda self, *a, **k: nats(self, *a, **k) * (math.nan if self.model.training else 1.0)
    )
    recipe = replace(small_recipe, train=replace(small_recipe.train, nonfinite="skip"))
    with pytest.raises(FloatingPointError, match=r"step 11 is not finite \(nor were those of the 10 steps before\)"):
        pretrain(recipe, data=dataset_folder, out=tmp_path / "run")


def test_the_log_tells_how_the_machine_is_used(trained_gpt):
    lines = [json.loads(line) for line in (trained_gpt / "metrics.jsonl").read_text().splitlines()]
    train = [line for line in lines if line["split"] == "train"]
    assert all(0 < line["mfu_measured"] < 1 for line in train)
    assert all(line["memory_bytes"] > 50e6 for line in train)
    assert all(line["data_wait_s"] <= line["time_s"] for line in train)
    assert train[-1]["smoothed_loss"] == pytest.approx(
        sum(0.98 ** (len(train) - 1 - i) * line["loss"] for i, line in enumerate(train))
        / sum(0.98 ** (len(train) - 1 - i) for i in range(len(train))),
        rel=0.02,
    )


def test_a_loss_that_jumps_is_a_spike_and_ordinary_noise_is_none():
    from pipelines.training.watch import LossWatch

    generator = np.random.default_rng(0)
    watch = LossWatch()
    assert not any(watch.update(step, 4.0 + 0.1 * generator.standard_normal()) for step in range(500))
    assert watch.smoothed() == pytest.approx(4.0, abs=0.05)
    again = LossWatch(*watch.as_list())
    assert watch.update(500, 6.0) and again.update(500, 6.0)
    assert watch.spikes == [500]


def test_batches_made_ahead_are_those_made_when_asked_for():
    from pipelines.training.prefetch import Prefetcher

    class Data:
        step_tokens = 1

        def step(self, consumed):
            return SimpleNamespace(inputs=range(1 + consumed % 3), number=consumed)

    batches, consumed = Prefetcher(Data()), 5
    for _ in range(20):
        batch = batches.step(consumed)
        assert batch.number == consumed
        consumed += len(batch.inputs)
    assert batches.step(2).number == 2  # somewhere else, as after resuming
    batches.close()


def test_a_run_in_use_is_refused(tmp_path, small_recipe, dataset_folder):
    with locked(tmp_path / "run"), pytest.raises(ValueError, match="in use by another process"):
        pretrain(small_recipe, data=dataset_folder, out=tmp_path / "run")


def test_another_recipe_in_the_same_folder_is_refused_by_field(tmp_path, small_recipe, dataset_folder, trained_gpt):
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    other = replace(small_recipe, train=replace(small_recipe.train, lr=0.5))
    with pytest.raises(ValueError, match=r"holds another run: its train.lr is 0\.002, not 0\.5"):
        pretrain(other, data=dataset_folder, out=out)


def test_another_dataset_in_the_same_folder_is_refused(tmp_path, small_recipe, dataset_folder, trained_gpt):
    out, data = shutil.copytree(trained_gpt, tmp_path / "gpt"), shutil.copytree(dataset_folder, tmp_path / "data")
    info = json.loads((data / "dataset.json").read_text())
    info["corpus"]["name"] = "another"
    (data / "dataset.json").write_text(json.dumps(info))
    with pytest.raises(ValueError, match="its dataset is"):
        pretrain(small_recipe, data=data, out=out)


def test_a_context_that_is_not_the_datasets_is_refused_with_both_remedies(tmp_path, small_recipe, dataset_folder):
    recipe = replace(small_recipe, model=replace(small_recipe.model, context_length=64))
    with pytest.raises(ValueError, match=r"--context-length 64, or give --model.context-length 32"):
        pretrain(recipe, data=dataset_folder, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_that_is_not_the_datasets_is_refused(tmp_path, small_recipe, dataset_folder):
    data = shutil.copytree(dataset_folder, tmp_path / "data")
    Tokenizer.train(["another text, another vocabulary"], vocab_size=270).save(data)
    with pytest.raises(ValueError, match=r"tokenizer\.json in it is not the one"):
        pretrain(small_recipe, data=data, out=tmp_path / "run")


def test_an_objective_without_its_special_token_is_refused_by_name(tmp_path, text_folder, small_recipe):
    from pipelines.build_dataset import build_dataset
    from pipelines.train_tokenizer import train_tokenizer

    train_tokenizer(
        [str(text_folder)], vocab_size=300, out=tmp_path / "tok", special_tokens=("<|endoftext|>", "<|cls|>", "<|sep|>")
    )
    build_dataset([str(text_folder)], tokenizer=tmp_path / "tok", context_length=32, out=tmp_path / "data")
    model = replace(small_recipe.model, architecture="encoder", context_length=34)
    with pytest.raises(ValueError, match=r"needs the special token <\|mask\|>"):
        pretrain(
            replace(small_recipe, objective="masked-token", model=model), data=tmp_path / "data", out=tmp_path / "run"
        )


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "rng.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["truncated", "altered", "missing"])
def test_a_damaged_checkpoint_is_skipped_by_name_and_the_run_ends_the_same(
    file, damage, tmp_path, small_recipe, dataset_folder, trained_gpt
):
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    hurt(latest_checkpoint(out) / file, damage)
    with pytest.warns(UserWarning, match=rf"step-0000050/{file} is .*: step-0000050 is skipped"):
        assert pretrain(small_recipe, data=dataset_folder, out=out) == 0
    assert_same_run(out, trained_gpt)


def hurt(path, damage):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(data[: len(data) - (damage == "truncated")])


def test_a_run_without_a_whole_checkpoint_is_refused_rather_than_begun_again(
    tmp_path, small_recipe, dataset_folder, trained_gpt
):
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    for folder in checkpoint_folders(out):
        hurt(folder / "model.safetensors", "altered")
    before = sorted(path.name for path in out.rglob("*"))
    with (
        pytest.warns(UserWarning, match="is skipped"),
        pytest.raises(ValueError, match=r"step-0000040/model.safetensors .* no other checkpoint .* is whole"),
    ):
        pretrain(small_recipe, data=dataset_folder, out=out)
    assert sorted(path.name for path in out.rglob("*")) == before


def test_the_best_checkpoint_and_milestones_are_kept(tmp_path, small_recipe, dataset_folder):
    """A rate that is too high at first and falls to nothing: the best is not the last one."""
    train = replace(
        small_recipe.train, keep_checkpoints=1, keep_best=True, keep_every_tokens=6000, checkpoint_every_tokens=2560
    )
    out = tmp_path / "gpt"
    assert pretrain(replace(small_recipe, train=train), data=dataset_folder, out=out) == 0
    tokens = {json.loads((folder / "state.json").read_text())["tokens"] for folder in checkpoint_folders(out)}
    losses = {line["tokens"]: line["loss"] for line in metrics_of(out) if line["split"] == "validation"}
    written = {count: loss for count, loss in losses.items() if count and count % 2560 == 0}
    assert tokens == {7680, 12800, min(written, key=written.get)}


def test_an_average_of_the_weights_is_validated_saved_loaded_and_resumed(tmp_path, small_recipe, dataset_folder):
    from pipelines.loading import load_trained

    recipe = replace(small_recipe, train=replace(small_recipe.train, average=0.9))
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert pretrain(recipe, data=dataset_folder, out=whole) == 0
    process = start(recipe, dataset_folder, stopped, tmp_path)
    wait_for_step(stopped, 15, process)
    process.kill()
    process.wait()
    assert pretrain(recipe, data=dataset_folder, out=stopped) == 0
    assert_same_run(stopped, whole)
    averages = [load_file(latest_checkpoint(out) / "average.safetensors") for out in (whole, stopped)]
    loaded = load_trained(Run(whole)).model.state_dict()
    for name, weights in averages[0].items():
        assert torch.equal(weights, averages[1][name]), name
        assert torch.equal(weights, loaded[name]), name
    assert any(not torch.equal(loaded[name], weights) for name, weights in weights_of(whole).items())


def test_muon_trains_and_resumes_exactly(tmp_path, small_recipe, dataset_folder):
    train = replace(small_recipe.train, optimizer="muon", schedule="trapezoid", muon_lr=0.004)
    recipe = replace(small_recipe, train=train)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert pretrain(recipe, data=dataset_folder, out=whole) == 0
    validation = [line["loss"] for line in metrics_of(whole) if line["split"] == "validation"]
    assert validation[-1] < validation[0] - 0.3
    process = start(recipe, dataset_folder, stopped, tmp_path)
    wait_for_step(stopped, 15, process)
    process.kill()
    process.wait()
    assert pretrain(recipe, data=dataset_folder, out=stopped) == 0
    assert_same_run(stopped, whole)


def test_a_full_disk_stops_the_run_with_a_sentence_and_keeps_the_checkpoint(
    tmp_path, small_recipe, dataset_folder, trained_gpt
):
    """A limit on file sizes makes writing fail as a full disk does: in the middle of a file."""
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    recipe = replace(small_recipe, train=replace(small_recipe.train, tokens=small_recipe.train.tokens * 2))
    run = Run(out)
    save_config(out / "config.toml", replace(run.recipe, train=recipe.train), run.facts)
    before = weights_of(out)
    save_config(tmp_path / "recipe.toml", recipe, {})
    command = ["pretrain", str(tmp_path / "recipe.toml"), "--data", str(dataset_folder), "--out", str(out)]
    code = (
        "import resource, sys; from pipelines.cli import main; import torch; "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000)); sys.exit(main({command!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("bytelm pretrain: ")
    assert "Traceback" not in done.stderr
    assert "step-0000060" in done.stderr
    after = weights_of(out)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert {path.name for path in (out / "checkpoints").iterdir()} == {"step-0000040", "step-0000050"}


def test_weights_of_another_shape_are_refused(tmp_path, small_recipe, dataset_folder, trained_gpt):
    from pipelines.loading import load_trained

    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    run = Run(out)
    save_config(out / "config.toml", replace(run.recipe, model=replace(run.recipe.model, width=64)), run.facts)
    with pytest.raises(ValueError, match="holds the weights of another model"):
        load_trained(Run(out))


def test_the_model_is_a_function_of_recipe_and_seed(small_recipe):
    config = replace(small_recipe.model, vocab_size=300)
    one, same, other = (build_model(config, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_reaches_the_same_loss(tmp_path, small_recipe, dataset_folder, trained_gpt):
    recipe = replace(small_recipe, train=replace(small_recipe.train, device="cuda"))
    pretrain(recipe, data=dataset_folder, out=tmp_path / "gpu")
    ends = [metrics_of(run)[-1]["loss"] for run in (tmp_path / "gpu", trained_gpt)]
    assert ends[0] == pytest.approx(ends[1], abs=0.05)


def test_a_folder_of_something_else_is_not_written_into(tmp_path, small_recipe, dataset_folder):
    Tokenizer.train(["another text"], vocab_size=262).save(tmp_path / "tok")
    for there in (shutil.copytree(dataset_folder, tmp_path / "data"), tmp_path / "tok"):
        before = {path: path.read_bytes() for path in there.rglob("*") if path.is_file()}
        with pytest.raises(ValueError, match="is not empty and holds no run"):
            pretrain(small_recipe, data=dataset_folder, out=there)
        assert {path: path.read_bytes() for path in there.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("config.toml", lambda text: text.partition("[run]")[0], r"config\.toml: run\.data is missing"),
        ("metrics.jsonl", lambda text: "garbage\n" + text, r"metrics\.jsonl is damaged in line 1"),
        ("metrics.jsonl", lambda text: text + "3\n", r"metrics\.jsonl is damaged in line \d+"),
    ],
)
def test_a_damaged_run_file_is_named(tmp_path, small_recipe, dataset_folder, trained_gpt, file, damage, message):
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    (out / file).write_text(damage((out / file).read_text()))
    with pytest.raises(ValueError, match=message):
        pretrain(small_recipe, data=dataset_folder, out=out)


def test_a_moved_dataset_is_remembered(tmp_path, small_recipe, dataset_folder, trained_gpt):
    from pipelines.evaluate import evaluate

    out, data = shutil.copytree(trained_gpt, tmp_path / "gpt"), shutil.copytree(dataset_folder, tmp_path / "data")
    text = (out / "config.toml").read_text().replace(str(dataset_folder), str(tmp_path / "gone"))
    (out / "config.toml").write_text(text)
    with pytest.raises(ValueError, match="is not there any more: say where one is with --data"):
        evaluate(out)
    assert pretrain(small_recipe, data=data, out=out) == 0
    assert evaluate(out)["data"] == str(data)


def test_no_gpu_is_a_clear_error(tmp_path, small_recipe, dataset_folder):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    recipe = replace(small_recipe, train=replace(small_recipe.train, device="cuda"))
    with pytest.raises(ValueError, match="PyTorch sees no GPU"):
        pretrain(recipe, data=dataset_folder, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_killed_dozens_of_times_ends_as_one_that_never_stopped(tmp_path, small_recipe, dataset_folder):
    """Killed after random times, often while a checkpoint is being written, since every second step writes one."""
    train = replace(
        small_recipe.train, tokens=256 * 600, checkpoint_every_tokens=512, optimizer="muon", average=0.9, keep_best=True
    )
    recipe = replace(small_recipe, train=train)
    assert pretrain(recipe, data=dataset_folder, out=tmp_path / "whole") == 0
    generator, kills, partial = np.random.default_rng(0), 0, 0
    out = tmp_path / "killed"
    while kills < 100:
        process = start(recipe, dataset_folder, out, tmp_path)
        before = len(checkpoint_folders(out)) and latest_checkpoint(out).name
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if len(checkpoint_folders(out)) and latest_checkpoint(out).name != before:
                break
            time.sleep(0.002)
        time.sleep(generator.uniform(0.0, 0.25))
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        kills += 1
        partial += any((out / "checkpoints").glob("partial-*"))
    assert process.returncode == 0, process.stdout.read()
    assert kills >= 24
    assert partial >= 1  # it was killed while writing
    assert_same_run(out, tmp_path / "whole")
