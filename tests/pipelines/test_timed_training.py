"""A run with `train.minutes` ends on time, at the end of its schedules, however fast the machine is."""

import itertools
import re
import shutil

import pytest
import torch

from lm.optim.schedules import multiplier
from pipelines.recipes.recipe import save_config
from pipelines.run.folder import Run
from pipelines.run.retention import checkpoint_folders, readable_state
from pipelines.training import timing
from pipelines.training.pretraining import print_plan
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.runs import describe
from tests.pipelines.training_cases import stop_after, with_train

MINUTES = 0.02
SECONDS = 60 * MINUTES
ROUNDING = 1e-3  # seconds: `time_s` has three decimals


def timed(recipe, tokens=None, **train):
    """Return `recipe` for `MINUTES` minutes, planned as `tokens` tokens, with a line for every step."""
    tokens = tokens or recipe.train.tokens
    every = {"validate_every_tokens": tokens // 5, "checkpoint_every_tokens": tokens // 5}
    return with_train(
        recipe, minutes=MINUTES, tokens=tokens, warmup_tokens=tokens // 10, log_every_steps=1, **every, **train
    )


def steps_of(run):
    return [line for line in Run(run).metrics() if line["split"] == "train"]


@pytest.mark.parametrize("tokens", [2_560, 2_560_000], ids=["planned too slow", "planned too fast"])
def test_a_timed_run_ends_on_time_with_its_whole_schedule(tmp_path, small_recipe, dataset_folder, tokens):
    recipe = timed(small_recipe, tokens, batch_tokens_start=64, batch_warmup_tokens=tokens // 2)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "gpt")
    *_, before, last = steps = steps_of(tmp_path / "gpt")
    assert before["time_s"] - ROUNDING < SECONDS <= last["time_s"] + ROUNDING  # one step beyond the time at most
    train = recipe.train
    for earlier, step in itertools.pairwise(steps):
        share = earlier["time_s"] / SECONDS
        options = {
            "warmup": train.warmup_tokens,
            "total": tokens,
            "stride": step["batch_tokens"],
            "final": train.min_lr_ratio,
        }
        expected = train.lr * multiplier("cosine", share * tokens, **options)
        rounding = train.lr * ROUNDING / (0.1 * SECONDS)  # at the slope of the warm-up
        assert step["lr"] == pytest.approx(expected, abs=2 * rounding)
    assert max(step["lr"] for step in steps) > 0.5 * train.lr > 2 * last["lr"]
    assert (steps[0]["batch_tokens"], last["batch_tokens"]) == (64, 256)
    assert Run(tmp_path / "gpt").metrics()[-1]["split"] == "validation"


def test_an_interrupted_timed_run_resumes_at_its_place_in_the_schedule(tmp_path, small_recipe, dataset_folder):
    out, recipe = tmp_path / "gpt", timed(small_recipe)
    with pytest.MonkeyPatch.context() as patch:
        stop_after(5, patch)
        with pytest.raises(KeyboardInterrupt):
            pretrain(recipe, data=dataset_folder, out=out)
    listed = describe(out)
    assert listed.state == "stopped" and listed.of > listed.tokens == 5 * 256
    pretrain(recipe, data=dataset_folder, out=out)
    steps = steps_of(out)
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    times = [step["time_s"] for step in steps]
    assert times == sorted(times) and times[-2] - ROUNDING < SECONDS <= times[-1] + ROUNDING
    finished = describe(out)
    assert finished.state == "finished" and finished.tokens == steps[-1]["tokens"]
    assert finished.of == finished.tokens


def test_minutes_extend_a_timed_run_and_tokens_do_not(tmp_path, small_recipe, dataset_folder, printed):
    out, recipe = tmp_path / "gpt", timed(small_recipe)
    pretrain(recipe, data=dataset_folder, out=out)
    with pytest.raises(ValueError, match=r"ends after 0.02 minutes, so `train.tokens` does not .*more `train.minutes`"):
        pretrain(with_train(recipe, tokens=50_000), data=dataset_folder, out=out)
    with pytest.raises(ValueError, match=r"its train.minutes is 0.02, not 0.01"):
        pretrain(with_train(recipe, minutes=0.01), data=dataset_folder, out=out)
    pretrain(with_train(recipe, minutes=2 * MINUTES), data=dataset_folder, out=out)
    assert steps_of(out)[-1]["time_s"] + ROUNDING >= 2 * SECONDS
    assert Run(out).recipe.train.minutes == 2 * MINUTES
    assert "extended from 0:01 to 0:02: the cosine schedule spans all 0:02" in printed.readouterr().out


def test_a_timed_run_that_tokens_extend_has_no_learning_rate_at_its_nominal_tokens(
    tmp_path, small_recipe, dataset_folder, printed
):
    recipe = timed(small_recipe, tokens=512)
    read = steps_of(pretrain(recipe, data=dataset_folder, out=tmp_path / "gpt").path)[-1]["tokens"]
    pretrain(with_train(recipe, minutes=0.0, tokens=read + 512), data=dataset_folder, out=tmp_path / "gpt")
    said = printed.readouterr().out
    assert "extended from 0:01 to " in said and "and the learning rate at" not in said


def test_tokens_that_a_timed_run_has_passed_do_not_end_it(tmp_path, trained_gpt, dataset_folder):
    run = Run(shutil.copytree(trained_gpt, tmp_path / "timed"))
    save_config(run.folder / "config.toml", with_train(run.recipe, minutes=10.0), run.facts)
    config = (run.folder / "config.toml").read_bytes()
    with pytest.raises(ValueError, match=r"has trained on .* tokens, which `train.tokens=.*` does not exceed: give mo"):
        pretrain(run.recipe, data=dataset_folder, out=run.folder)
    assert (run.folder / "config.toml").read_bytes() == config


def test_a_plan_is_measured_with_the_threads_of_the_training(tmp_path, small_recipe, dataset_folder, monkeypatch):
    measured, seen = timing.measured_speed, []
    monkeypatch.setattr(
        timing, "measured_speed", lambda *given: seen.append(torch.get_num_threads()) or measured(*given)
    )
    for threads in (1, 2):
        print_plan(with_train(small_recipe, threads=threads), {dataset_folder: 1}, tmp_path / "gpt")
    assert seen == [1, 2]


def test_minutes_may_not_be_negative(small_recipe):
    with pytest.raises(ValueError, match=r"train.minutes is -1.0, but must not be negative"):
        with_train(small_recipe, minutes=-1.0)


def test_tokens_of_a_run_that_ends_by_time_are_refused(tmp_path, trained_gpt, dataset_folder, in_process):
    timed = shutil.copytree(trained_gpt, tmp_path / "timed")
    run = Run(timed)
    save_config(timed / "config.toml", with_train(run.recipe, minutes=10.0), run.facts)
    words = ["pretrain", "--init-from", timed, "--data", dataset_folder, "--out", "new", "--train.tokens", "2k"]
    refused = in_process(*words)
    assert refused.returncode == 1
    assert "train.tokens is 2000, and train.minutes is 10: give one of them (train.minutes=0 for" in refused.stderr
    with pytest.raises(ValueError, match=r"train\.tokens is 2000, and train\.minutes is 10: give one of them"):
        pretrain(Run(timed).recipe, data=dataset_folder, out=tmp_path / "new", train={"tokens": 2000})
    planned = in_process(*words, "--train.minutes", "0", "--dry-run")
    assert planned.returncode == 0 and "on 2 ktok of" in planned.stdout
    resumed = in_process("pretrain", "--out", timed, "--train.tokens", "50k")
    assert "ends after 10 minutes, so --train.tokens does not extend it: give more --train.minutes" in resumed.stderr


def test_a_timed_run_logs_at_its_intervals_until_its_end(tmp_path, small_recipe, dataset_folder):
    """Also a run that is planned as two steps."""
    recipe = with_train(timed(small_recipe, tokens=512), log_every_steps=4)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "gpt")
    steps = [line["step"] for line in steps_of(tmp_path / "gpt")]
    assert max(later - earlier for earlier, later in itertools.pairwise(steps)) < 16 < steps[-1]


def test_the_plan_of_a_timed_run_follows_from_its_speed(tmp_path, small_recipe, dataset_folder, printed):
    recipe = timed(small_recipe, tokens=10**15, patience=3)
    sources = {dataset_folder: 1, shutil.copytree(dataset_folder, tmp_path / "copy"): 3}
    print_plan(recipe, sources, tmp_path / "gpt")
    said = " ".join(printed.readouterr().out.split())
    assert re.search(r"would train .* on about [\d.]+ [kM]?tok of ", said)
    assert "copy: 75 % of the tokens, " in said and "Ptok" not in said and "Ttok" not in said
    assert "with 3 checkpoints of" in said  # the newest two and the best
    pretrain(recipe, data=sources, out=tmp_path / "gpt")
    said = " ".join(printed.readouterr().out.split())
    assert "copy: 75 % of the tokens" in said and "of the tokens," not in said and "epochs" not in said


def test_the_seconds_of_a_run_are_those_of_the_checkpoint_that_it_resumes_from(trained_gpt, tmp_path):
    """Also if metrics.jsonl has lines of later steps, as after a kill."""
    run = Run(shutil.copytree(trained_gpt, tmp_path / "run"))
    older, newest = checkpoint_folders(run.folder)[-2:]
    assert run.seconds() == pytest.approx(run.metrics()[-1]["time_s"], abs=ROUNDING)
    shutil.rmtree(newest)
    assert run.seconds() == readable_state(older)["seconds"] < run.metrics()[-1]["time_s"]
