"""Helpers for tests of training: start, stop, inspect and compare runs."""

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import torch

from lm.model import LanguageModel
from pipelines.dataset.reader import TokenDataset
from pipelines.recipes.recipe import save_config
from pipelines.run.checkpoint_reader import MODEL, read_checkpoint
from pipelines.run.folder import Run
from pipelines.run.manifest import MANIFEST, manifest_json, read_manifest
from pipelines.run.retention import checkpoint_folders, latest_checkpoint
from pipelines.training.batch_objectives import NextToken
from pipelines.training.data import BlockLoader
from pipelines.training.loop import Trainer

OF_TIME = ("tokens_per_s", "time_s", "mfu", "mfu_measured", "data_wait_s", "memory_bytes")


def weights_of(run):
    return read_checkpoint(latest_checkpoint(run), Run(run).settings, MODEL).tensors(MODEL)


def metrics_of(run):
    """Return the lines of metrics.jsonl without entries that depend on time."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().split("\n")[:-1]]
    return [{k: v for k, v in line.items() if k not in OF_TIME} for line in lines]


def assert_same_run(one, other):
    first, second = weights_of(one), weights_of(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert metrics_of(one) == metrics_of(other)


def start(recipe, data, out, tmp_path):
    """Start the training in another process."""
    save_config(tmp_path / "recipe.toml", recipe, {})
    command = ["pretrain", str(tmp_path / "recipe.toml"), "--data", str(data), "--out", str(out)]
    code = f"import sys; from pipelines.cli.dispatch import main; sys.exit(main({command!r}))"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_step(run, step, process):
    def logged():
        path = run / "metrics.jsonl"
        return path.exists() and any(f'"step": {s},' in path.read_text() for s in range(step, step + 10))

    _wait(logged, process)


def wait_for_checkpoint(run, process):
    """Wait for a complete checkpoint. It is written in the background, on a slow disk many steps later."""
    _wait(lambda: checkpoint_folders(run), process)


def _wait(until, process):
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if until():
            return
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.005)
    raise AssertionError("the run did not get that far")


def in_order(dataset_folder, blocks, seed=0):
    stream = TokenDataset(dataset_folder).split("train")
    return BlockLoader(stream, NextToken(32), "permutation", seed).batch(np.arange(blocks)).inputs.tolist()


def stop_after(step, monkeypatch):
    """Send SIGTERM to the run after `step`, as a scheduler would."""

    def stop(trainer):
        if trainer.at.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    after_each_step(monkeypatch, stop)


def after_each_step(monkeypatch, action):
    """Call `action(trainer)` after each optimizer step."""
    step = Trainer.step

    def stepping(self):
        done = step(self)
        action(self)
        return done

    monkeypatch.setattr(Trainer, "step", stepping)


def read_later(monkeypatch, steps):
    """Let trainers read the numbers of a step after they have queued `steps` more, as they do on a GPU."""
    build = Trainer.__init__

    def building(self, *arguments, **named):
        build(self, *arguments, **named)
        self.steps_ahead = steps

    monkeypatch.setattr(Trainer, "__init__", building)


def watch_batches(monkeypatch, is_bad):
    """Call `is_bad(rows, training)` with the ids that a model reads; if it returns True, the loss is nan."""
    forward = LanguageModel.forward

    def watched(self, ids, **more):
        hidden = forward(self, ids, **more)
        return hidden * math.nan if is_bad(ids.tolist(), self.training) else hidden

    monkeypatch.setattr(LanguageModel, "forward", watched)


def rewrite(folder, **contents):
    """Replace files of a checkpoint (bytes by name without suffix) and update its manifest."""
    manifest = read_manifest(folder)
    for stem, content in contents.items():
        path = next(path for path in folder.iterdir() if path.stem == stem)
        path.write_bytes(content)
        manifest.files[path.name] = hashlib.sha256(content).hexdigest()
    (folder / MANIFEST).write_text(manifest_json(manifest.files, manifest.settings))


def rewrite_state(folder, **changes):
    """Change entries of a checkpoint's state.json and update its manifest."""
    state = json.loads((folder / "state.json").read_text()) | changes
    rewrite(folder, state=json.dumps(state).encode())


def accept_config(run):
    """Write the settings in config.toml into the manifests of a run, as if it had been trained with them."""
    for folder in checkpoint_folders(run):
        (folder / MANIFEST).write_text(manifest_json(read_manifest(folder).files, Run(run).settings))


def with_train(recipe, **changes):
    return replace(recipe, train=replace(recipe.train, **changes))
