"""What tests of training share: runs started, stopped, looked at and compared."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import torch
from safetensors.torch import load_file

from pipelines.dataset.reader import TokenDataset
from pipelines.run.manifest import MANIFEST, manifest_json, read_manifest
from pipelines.run.recipe import save_config
from pipelines.run.retention import checkpoint_folders, latest_checkpoint
from pipelines.training.loader import Loader, NextToken
from pipelines.training.loop import Trainer

OF_TIME = ("tokens_per_s", "time_s", "mfu", "mfu_measured", "data_wait_s", "memory_bytes")


def weights_of(run):
    return load_file(latest_checkpoint(run) / "model.safetensors")


def metrics_of(run):
    """metrics.jsonl without what is a matter of time."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().split("\n")[:-1]]
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
    code = f"import sys; from pipelines.cli.dispatch import main; sys.exit(main({command!r}))"
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_step(run, step, process):
    def logged():
        path = run / "metrics.jsonl"
        return path.exists() and any(f'"step": {s},' in path.read_text() for s in range(step, step + 10))

    _wait(logged, process)


def wait_for_checkpoint(run, process):
    """Until a checkpoint is whole: it is written in the background, and on a slow disk many steps after its own."""
    _wait(lambda: checkpoint_folders(run), process)


def _wait(until, process):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if until():
            return
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.005)
    raise AssertionError("the run did not get that far")


def in_order(dataset_folder, blocks, seed=0):
    stream = TokenDataset(dataset_folder).split("train")
    return Loader(stream, NextToken(32), "permutation", seed).batch(0, blocks).inputs.tolist()


def stop_after(step, monkeypatch):
    """Have the run ask itself to stop after that step, as a scheduler would."""
    watch = Trainer._watch

    def stopping(self, loss):
        watch(self, loss)
        if self.at.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "_watch", stopping)


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


def make_old(run):
    """Convert the checkpoints of a run to the format of version 0.1, which has no manifest."""
    for folder in checkpoint_folders(run):
        files = [path for path in folder.iterdir() if path.name != MANIFEST]
        sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
        (folder / "checksums.json").write_text(json.dumps(sums, indent=2) + "\n")
        (folder / MANIFEST).unlink()


def with_train(recipe, **changes):
    return replace(recipe, train=replace(recipe.train, **changes))
