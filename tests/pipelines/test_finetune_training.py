"""The training of fine-tuning: killed and resumed, in several processes, in bfloat16, and its options."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import bytelm as package
from pipelines.recipes.finetune_config import FinetuneConfig
from pipelines.run.folder import Run
from pipelines.run.retention import checkpoint_folders, latest_checkpoint
from pipelines.tasks.classes import Classes
from pipelines.tasks.data import ExampleFiles, encode_task
from pipelines.training.finetuning import train_in_memory
from pipelines.training.init_from import Source
from pipelines.verbs.finetune import finetune
from tests.conftest import BYTELM
from tests.pipelines.test_parallel import LAUNCH, finish
from tests.pipelines.training_cases import (
    after_each_step,
    assert_same_run,
    metrics_of,
    wait_for_checkpoint,
    weights_of,
)

TRAIN = {"epochs": 2, "batch_size": 7, "micro_batch": 2, "lr": 3e-3, "device": "cpu", "dtype": "float32"}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Return 60 texts of one of three words, whose label is that word for most."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    words = ("import", "return", "class")
    rows = [
        {"text": f"{word} {i} = {i * i} {word}", "label": words[(n + (i % 5 == 0)) % 3]}
        for i in range(20)
        for n, word in enumerate(words)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def train(trained_bert, rows, tmp_path):
    """Return train(name, **settings), which fine-tunes in this process and returns the folder of the run."""

    def run(name, lora=None, **settings):
        more = {"train": {**TRAIN, **settings}, "lora": lora or {}, "held_out": 0.3, "compare_scratch": False}
        finetune(trained_bert, data=rows, out=tmp_path / name, **more)
        return tmp_path / name

    return run


def words_of(base, rows, out, **settings):
    """Return the words of the same call as `train` on the command line."""
    options = [[f"--{name.replace('_', '-')}", str(value)] for name, value in {**TRAIN, **settings}.items()]
    fixed = ["finetune", base, "--data", rows, "--out", out, "--held-out", 0.3, "--no-compare-scratch"]
    return [*map(str, fixed), *(word for option in options for word in option)]


def validations(run):
    return [line for line in metrics_of(run) if line["split"] == "validation"]


@pytest.mark.slow
def test_a_killed_run_resumes_and_ends_with_the_same_weights_bit_for_bit(train, trained_bert, rows, tmp_path):
    settings = {"epochs": 40, "layer_decay": 0.8, "dropout": 0.2}
    out = tmp_path / "killed"
    process = subprocess.Popen(
        [BYTELM, *words_of(trained_bert, rows, out, **settings)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for_checkpoint(out, process)
    deadline = time.monotonic() + 300
    while latest_checkpoint(out).name < "step-0000010" and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL and not (out / "evaluation.json").exists()
    train("killed", **settings)
    train("whole", **settings)
    assert_same_run(tmp_path / "whole", out)


ADAPTED = {"lora.rank": 2, "lora.targets": "all"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{"layer_decay": 0.5, "patience": 3}, pytest.param(ADAPTED, marks=pytest.mark.slow)]
)
def test_two_processes_train_like_one(train, trained_bert, rows, tmp_path, options):
    out, here = tmp_path / "two", Path(sys.executable).parent
    words = [here / word if word in ("torchrun", "bytelm") else word for word in LAUNCH]
    words[words.index("--nproc-per-node") + 1] = 2
    words += [*words_of(trained_bert, rows, out, dropout=0.0, **options), "--parallel", "ddp"]
    finish(subprocess.Popen([*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    lora = {name[5:]: value for name, value in options.items() if name.startswith("lora.")}
    lora |= {"targets": (lora["targets"],)} if lora else {}
    own = {name: value for name, value in options.items() if not name.startswith("lora.")}
    one = train("one", lora, dropout=0.0, **own)
    first, second = weights_of(one), weights_of(out)
    assert first.keys() == second.keys()
    for name, weight in first.items():
        torch.testing.assert_close(second[name], weight, rtol=1e-5, atol=1e-5)
    for a, b in zip(validations(one), validations(out), strict=True):
        numbers = {name: pytest.approx(value, rel=1e-5) for name, value in a.items() if isinstance(value, float)}
        assert b == a | numbers
    evaluations = [package.load_run(run).evaluate().splits["validation"] for run in (one, out)]
    assert evaluations[0].label_nats == pytest.approx(evaluations[1].label_nats, rel=1e-5)


def test_bfloat16_trains_float32_weights(train):
    rounded, exact = train("bfloat16", dtype="bfloat16", dropout=0.0), train("float32", dropout=0.0)
    assert all(weight.dtype == torch.float32 for weight in weights_of(rounded).values())
    losses = [validations(run)[-1]["loss"] for run in (rounded, exact)]
    assert losses[0] != losses[1] and losses[0] == pytest.approx(losses[1], abs=0.05)


def test_a_dry_run_writes_nothing(in_process, trained_bert, rows, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    done = in_process(*words_of(trained_bert, rows, "out", freeze="all", patience=2), "--lora.rank", "0", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "would make a run in out" in done.stdout
    assert sorted(tmp_path.rglob("*")) == before


def test_training_stops_when_the_first_number_of_the_task_stops_improving(train, tmp_path):
    """Weights that do not move have one accuracy: the first epoch has it first, and two more are in vain."""
    out = train("still", lr=1e-12, epochs=20, patience=2)
    lines = validations(out)
    assert len(lines) == 4  # before the first step, and three epochs
    assert "accuracy" not in lines[0] and len({line["accuracy"] for line in lines[1:]}) == 1
    assert Run(out).recipe.train.tokens > lines[-1]["tokens"]
    first = f"step-{lines[1]['step']:07d}"
    assert {folder.name for folder in checkpoint_folders(out)} >= {first, f"step-{lines[-1]['step']:07d}"}
    evaluation = package.load_run(out).evaluate().splits["validation"]
    assert evaluation.measured.checkpoint == first
    assert evaluation.accuracy == lines[1]["accuracy"]
    [facts] = package.runs(tmp_path)
    assert facts.state == "finished"
    train("still", lr=1e-12, epochs=20, patience=2)
    assert validations(out) == lines


def test_patience_judges_tags_without_entities_by_their_accuracy(trained_bert, tmp_path):
    rows = [{"tokens": ["def", f"f{i}", "("], "tags": ["keyword", "name", "sign"]} for i in range(30)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    settings = {"data": data, "held_out": 0.3, "out": tmp_path / "tags", "compare_scratch": False}
    finetune(trained_bert, task="tokens", **settings, train={**TRAIN, "epochs": 3, "patience": 1, "lr": 1e-2})
    lines = validations(tmp_path / "tags")
    assert len(lines) > 2 and all(line["accuracy of tags"] > 0 for line in lines[1:])


def test_the_best_epoch_is_used_and_training_in_memory_gives_the_same_model(train, trained_bert, rows):
    settings = {"epochs": 12, "patience": 3, "lr": 2e-2, "layer_decay": 0.9}
    out = train("run", **settings)
    best = max(line["accuracy"] for line in validations(out)[1:])
    run = package.load_run(out)
    assert run.evaluate().splits["validation"].accuracy == best
    files = ExampleFiles(data=(rows,), held_out=0.3)
    lora = Run(out).recipe.lora
    work = encode_task(Run(trained_bert), files, Classes(), FinetuneConfig(**{**TRAIN, **settings}), lora)
    again = train_in_memory(work, out, 0, Source.open(trained_bert).weights)
    for name, weight in run.loaded.model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name


def test_frozen_blocks_stay_and_fresh_blocks_start_anew(train, trained_bert):
    base = weights_of(trained_bert)
    probe = weights_of(train("probe", freeze="all"))
    assert all(torch.equal(probe[f"body.{name}"], base[name]) for name in base if not name.startswith("head."))
    extended = weights_of(train("probe", freeze="all", epochs=2 * TRAIN["epochs"]))  # a resumed run freezes them too
    assert all(torch.equal(extended[f"body.{name}"], base[name]) for name in base if not name.startswith("head."))
    assert not torch.equal(extended["head.output.weight"], probe["head.output.weight"])
    fresh = train("fresh", reinit=1, lr=1e-12)
    start = weights_of(fresh)
    names = [name for name in base if ".blocks.0." in name and base[name].ndim == 2]
    assert names and not any(torch.allclose(start[f"body.{name}"], base[name], atol=1e-3) for name in names)
    assert torch.allclose(start["body.embedding.weight"], base["embedding.weight"])


def test_a_lower_layer_learns_at_a_lower_rate(train, trained_bert):
    """With a decay of almost 0 only what stands above the blocks, and the highest block, moves."""
    base, weights = weights_of(trained_bert), weights_of(train("slow", layer_decay=1e-9, weight_decay=0.0))
    body = {name.removeprefix("body."): weight for name, weight in weights.items() if name.startswith("body.")}
    moved = {name for name, weight in body.items() if not torch.allclose(weight, base[name], rtol=0, atol=1e-8)}
    assert moved
    assert all(".blocks.0." in name or ".final_norm." in name for name in moved)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"freeze": 2}, "`freeze` is 2, but the model of .* has 1 blocks"),
        ({"reinit": 3}, "`reinit` is 3, but the model of .* has 1 blocks"),
        (
            {"freeze": 1, "reinit": 1},
            "`freeze` is 1 and `reinit` is 1, but the model has 1 blocks",
        ),
        ({"freeze": -1}, "`freeze` is -1, but must not be negative"),
        ({"freeze": "some"}, "freeze is 'some', but must be"),
        ({"patience": -1}, "`patience` is -1, but must not be negative"),
        ({"layer_decay": 0.0}, "`layer_decay` is 0.0, but must be above 0 and at most 1"),
        ({"layer_decay": math.nan}, "`layer_decay` is nan"),
        ({"lora": {"rank": 2}, "freeze": 1}, "`lora.rank` freezes all blocks: leave `freeze` and `reinit` out"),
    ],
)
def test_options_that_do_not_fit_are_named(train, tmp_path, settings, words):
    with pytest.raises(ValueError, match=words):
        train("out", **settings)
    assert not (tmp_path / "out").exists()


def test_seeds_show_the_mean_and_the_spread_of_the_same_training(in_process, trained_bert, rows, train, tmp_path):
    out, settings = tmp_path / "seeds", {"epochs": 3, "lr": 1e-2}
    done = in_process(*words_of(trained_bert, rows, out, **settings), "--seeds", 3)
    assert done.returncode == 0, done.stderr
    found = package.load_run(out)
    seeds = json.loads((out / "evaluation.json").read_text())["splits"]["validation"]["seeds"]
    assert seeds["seeds"] == [0, 1, 2]
    own = [package.load_run(train(f"seed {n}", seed=n, **settings)).evaluate().splits["validation"] for n in (0, 1, 2)]
    assert seeds["numbers_of"]["accuracy"] == [one.accuracy for one in own]
    assert seeds["numbers_of"]["macro F1"] == [one.macro_f1 for one in own]
    values = np.array(seeds["numbers_of"]["macro F1"])
    row = next(line for line in done.stdout.splitlines() if re.match(r"macro F1 +3 ", line))
    numbers = [values.mean(), values.std(ddof=1), values.min(), values.max()]
    assert row.split()[3:] == [f"{number:.4f}" for number in numbers]
    assert found.evaluate().splits["validation"].seeds.seeds == (0, 1, 2)  # a later evaluation keeps them


def test_a_signal_ends_the_training_of_other_seeds_without_a_result(trained_bert, rows, tmp_path, monkeypatch):
    """The same call then measures the finished run and trains the other seeds."""
    call = {"data": rows, "out": tmp_path / "seeds", "held_out": 0.3, "compare_scratch": False, "seeds": 2}
    train = {**TRAIN, "epochs": 1}
    with monkeypatch.context() as patch:
        after_each_step(patch, lambda trainer: trainer.run is None and os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
            finetune(trained_bert, **call, train=train)
    assert not (tmp_path / "seeds" / "evaluation.json").exists()
    made = finetune(trained_bert, **call, train=train)
    assert made.evaluate().splits["validation"].seeds.seeds == (0, 1)
