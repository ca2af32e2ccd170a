"""Checkpoints: folders that appear whole or not at all, are verified, and are read without unpickling anything.

`checkpoints/step-NNNNNNN/` holds model.safetensors, optimizer.safetensors (state by parameter name), rng.safetensors,
average.safetensors (if the run averages its weights), state.json (step, blocks consumed, seconds, ...) and
manifest.json (see `pipelines.run.manifest`). The main process writes and reads whole tensors, so the files do not
depend on the world size.
"""

import hashlib
import json
import os
import shutil
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from lm.optim.averaging import WeightAverage
from lm.optim.optimizers import Optimizers
from pipelines.files import naming, parse_json
from pipelines.run.manifest import MANIFEST, DamagedCheckpointError, check_run, manifest_json, read_manifest, verified
from pipelines.run.retention import STATE, Keep, checkpoint_folders, validation_losses
from pipelines.training.parallel import ALONE, OneProcess

MODEL, OPTIMIZER, RNG, AVERAGE = (
    "model.safetensors",
    "optimizer.safetensors",
    "rng.safetensors",
    "average.safetensors",
)


def take_snapshot(
    model: torch.nn.Module,
    optimizers: Optimizers | None = None,
    average: WeightAverage | None = None,
    parallel: OneProcess = ALONE,
) -> dict[str, dict[str, torch.Tensor]]:
    """File name to tensors, copied to the CPU: training may go on while they are written. Without `optimizers` the
    state of ones that have not begun. All processes must call it; only the main one gets the tensors."""
    files = {MODEL: model.state_dict(), OPTIMIZER: _optimizer_state(model, optimizers), RNG: _rng_state(parallel)}
    if average is not None:
        files[AVERAGE] = average.weights
    snapshot = {name: {} for name in files}
    for name, tensors in files.items():
        for key, value in tensors.items():
            whole = parallel.whole(value.detach())
            if parallel.is_main:
                snapshot[name][key] = whole.clone() if whole.device.type == "cpu" else whole.cpu()
    return snapshot


def write_checkpoint(
    run: Path,
    snapshot: Mapping[str, Mapping[str, torch.Tensor]],
    state: Mapping[str, Any],
    keep: Keep,
    settings: Mapping[str, Any],
) -> Path:
    """Write the checkpoint of `state["step"]`, then remove the checkpoints that `keep` does not retain.

    `settings` are the run's `fixed_settings`, which the manifest records. An error while writing, such as a full disk,
    leaves the earlier checkpoints unchanged and no partial one.
    """
    folder = run / "checkpoints" / f"step-{state['step']:07d}"
    partial = folder.with_name(f"partial-{state['step']:07d}")
    for leftover in folder.parent.glob("partial-*"):  # of a process that was killed while saving
        shutil.rmtree(leftover)
    try:
        partial.mkdir(parents=True)
        files = {}
        for name, tensors in snapshot.items():
            files[name] = _write(partial / name, save(dict(tensors)))
        files[STATE] = _write(partial / STATE, (json.dumps(state, allow_nan=False) + "\n").encode())
        _write(partial / MANIFEST, manifest_json(files, settings).encode())
        _sync(partial)
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
        _sync(folder.parent)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError):
            raise naming(error, folder) from None
        raise
    kept = keep.kept(run, folder)
    for old in checkpoint_folders(run):
        if old not in kept:
            shutil.rmtree(old)
    return folder


class CheckpointWriter:
    """Writes checkpoints in a thread of its own, one at a time, while training goes on."""

    def __init__(self, run: Path | None, keep: Keep, settings: Mapping[str, Any]) -> None:
        """Without a run, as in processes other than the main one, there is nothing to write."""
        self.run, self.keep, self.settings = run, keep, settings
        self._thread: threading.Thread | None = None
        self._written = threading.Event()
        self._error: BaseException | None = None

    def write(self, snapshot: Mapping[str, Mapping[str, torch.Tensor]], state: Mapping[str, Any]) -> None:
        """Begin to write; first waits for the one before, and raises what went wrong there."""
        self.wait()
        if self.run is None:
            return
        self._written.clear()
        self._thread = threading.Thread(target=self._write, args=(snapshot, state), name="checkpoint")
        self._thread.start()

    def check(self) -> None:
        """Raise what went wrong in the background, if something did; does not wait."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Wait until what was begun is on disk; raise what went wrong."""
        self.join()
        self.check()

    def join(self) -> None:
        """Wait until nothing is being written."""
        if self._thread is not None:
            self._written.wait()  # before Python 3.13 a join that a signal interrupts takes the thread for ended
            self._thread.join()
            self._thread = None

    def _write(self, snapshot: Mapping[str, Mapping[str, torch.Tensor]], state: Mapping[str, Any]) -> None:
        try:
            write_checkpoint(self.run, snapshot, state, self.keep, self.settings)
        except BaseException as error:  # it belongs to the training thread, which asks with `check`
            self._error = error
        finally:
            self._written.set()


def read_checkpoint(folder: Path, settings: Mapping[str, Any], *names: str) -> dict[str, bytes]:
    """Return the named files of a checkpoint, verified against its manifest.

    Leaves out AVERAGE if the run does not average its weights. Raises DamagedCheckpointError, naming the file, if one
    is missing, truncated or altered. Raises ValueError, naming the field of config.toml, if `settings` (the run's
    `fixed_settings`) differ from those in the manifest.
    """
    manifest = read_manifest(folder)
    check_run(folder.parent.parent, manifest, settings)
    averages = AVERAGE in manifest.files or settings.get("train.average", 0) > 0
    return {name: verified(folder, manifest, name) for name in names if name != AVERAGE or averages}


def newest_whole(run: Path, settings: Mapping[str, Any], *names: str) -> tuple[Path, dict[str, bytes]]:
    """Return a run's newest checkpoint whose named files are whole, and the content of these files.

    Skips damaged checkpoints with a warning that names the file. Raises ValueError if no checkpoint is whole, or if
    `settings` differ (see `read_checkpoint`).
    """
    damaged = ""
    while True:
        folders = checkpoint_folders(run)
        for folder in reversed(folders):
            try:
                return folder, read_checkpoint(folder, settings, *names)
            except DamagedCheckpointError as error:
                if folder.exists():  # else a training that goes on has removed it since
                    damaged = str(error)
                    warnings.warn(f"{damaged}: {folder.name} is skipped", stacklevel=2)
        if checkpoint_folders(run) == folders:
            break
    if damaged:
        raise ValueError(f"{damaged}, and no other checkpoint of {run} is whole: restore one, or train in a new folder")
    raise ValueError(f"{run} has no checkpoint: bytelm pretrain makes one")


def whole_checkpoint(run: Path, settings: Mapping[str, Any], which: str, *names: str) -> tuple[Path, dict[str, bytes]]:
    """Return the folder of the checkpoint `which`, and the content of its named files.

    `which` is "newest" (the newest whole one), "best" (the lowest validation loss), or the number of a step. Raises
    ValueError if there is no such checkpoint, and the errors of `read_checkpoint`.
    """
    if which == "newest":
        return newest_whole(run, settings, *names)
    folders = {int(folder.name[5:]): folder for folder in checkpoint_folders(run)}
    if which == "best":
        losses = validation_losses(folders.values())
        if not losses:
            raise ValueError(f"no checkpoint of {run} knows its validation loss: --train.keep-best has one kept")
        folder = min(losses, key=losses.__getitem__)
    elif not which.isdecimal():
        raise ValueError(f"--checkpoint is {which!r}: give newest, best, or the number of a step")
    elif int(which) not in folders:
        there = ", ".join(f"{step:,}" for step in folders) or "none"
        raise ValueError(f"{run} has no checkpoint of step {int(which):,}: it has those of {there}")
    else:
        folder = folders[int(which)]
    return folder, read_checkpoint(folder, settings, *names)


def load_weights(run: Path, settings: Mapping[str, Any], which: str = "newest") -> tuple[Path, dict[str, torch.Tensor]]:
    """Return the folder and weights of the checkpoint `which` (see `whole_checkpoint`); averages replace weights."""
    folder, contents = whole_checkpoint(run, settings, which, MODEL, AVERAGE)
    weights = load(contents[MODEL])
    return folder, weights | (load(contents[AVERAGE]) if AVERAGE in contents else {})


def put_weights(folder: Path, model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Load the `weights` of the checkpoint `folder` into `model`; ValueError if their names or shapes do not fit."""
    _check_weights(folder, model, weights)
    model.load_state_dict(weights)


def resume(
    run: Path | None,
    model: torch.nn.Module,
    optimizers: Optimizers,
    settings: Mapping[str, Any],
    average: WeightAverage | None = None,
    parallel: OneProcess = ALONE,
) -> dict[str, Any]:
    """Restore model, optimizers, average and random generators from a run's newest whole checkpoint.

    Return the content of its state.json. Raises ValueError if the checkpoint's manifest has other `settings` (the run's
    `fixed_settings`). Only the main process needs `run` and `settings`.
    """
    state, files = {}, {}
    if parallel.is_main:
        folder, contents = newest_whole(run, settings, MODEL, OPTIMIZER, RNG, AVERAGE, STATE)
        state = parse_json(contents.pop(STATE), str(folder / STATE), f"remove {folder}")
        files = {name: load(contents.pop(name)) for name in list(contents)}
        _check_weights(folder, model, files[MODEL])
        _check_old_identity(folder, state.get("run", {}), settings)
    state, files = parallel.tell(state), parallel.outline(files)
    _fill(model.state_dict(), files[MODEL], parallel)
    _put_optimizer_state(model, optimizers, files[OPTIMIZER], parallel)
    if average is not None and AVERAGE in files:
        _fill(average.weights, files[AVERAGE], parallel)
        average.steps = state["averaged_steps"]
    _put_rng_state(files[RNG], parallel)
    return state


def _fill(
    targets: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor], parallel: OneProcess = ALONE
) -> None:
    for name, target in targets.items():
        target.detach().copy_(parallel.place(values[name], target))


def _check_weights(folder: Path, model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    expected = model.state_dict()
    wrong = [name for name in expected if name not in weights or weights[name].shape != expected[name].shape]
    if wrong or len(weights) != len(expected):
        raise ValueError(
            f"{folder} holds the weights of another model ({wrong[0] if wrong else 'more tensors'} does not fit): "
            "the run's config.toml was changed"
        )


def _check_old_identity(folder: Path, recorded: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Check the few settings that state.json of version 0.1 has instead of a manifest."""
    names = {
        "dataset": "run.dataset_fingerprint",
        "objective": "objective",
        "optimizer": "train.optimizer",
        "seed": "train.seed",
    }
    for name, value in recorded.items():
        if names.get(name) in settings and settings[names[name]] != value:
            raise ValueError(
                f"{folder} belongs to another run: its {name} is {value}, and this run's is {settings[names[name]]}; "
                "restore the run's own checkpoint"
            )


def _put_optimizer_state(
    model: torch.nn.Module, optimizers: Optimizers, saved: Mapping[str, torch.Tensor], parallel: OneProcess
) -> None:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for parameter, state in optimizers.state():
        prefix = f"{names[id(parameter)]}/"
        mine = {key.removeprefix(prefix): value for key, value in saved.items() if key.startswith(prefix)}
        state.clear()
        state |= {key: parallel.place(value, parameter) for key, value in mine.items()}


def _optimizer_state(model: torch.nn.Module, optimizers: Optimizers | None) -> dict[str, torch.Tensor]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"{names[id(parameter)]}/{key}": torch.as_tensor(value)
        for parameter, state in (optimizers.state() if optimizers else ())
        for key, value in state.items()
    }


def _rng_state(parallel: OneProcess) -> dict[str, torch.Tensor]:
    """Of every process, `cpu` and perhaps `cuda`; the n-th after the main one has .n behind its names."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    gathered = {name: parallel.gather(mine) for name, mine in state.items()}
    return {f"{name}.{n}" if n else name: each for name, states in gathered.items() for n, each in enumerate(states)}


def _put_rng_state(saved: Mapping[str, torch.Tensor], parallel: OneProcess) -> None:
    """A process that the checkpoint knows nothing of keeps the generators that it has."""
    here = torch.get_rng_state()  # on the CPU, where the states of a GPU's generators are kept too
    states = {name: parallel.place(state, here) for name, state in saved.items()}
    suffix = f".{parallel.rank}" if parallel.rank else ""
    if f"cpu{suffix}" in states:
        torch.set_rng_state(states[f"cpu{suffix}"])
    if f"cuda{suffix}" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states[f"cuda{suffix}"])


def _write(path: Path, contents: bytes) -> str:
    """Write a file through to the disk; its SHA-256."""
    with path.open("wb") as file:
        file.write(contents)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(contents).hexdigest()


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
