"""Checkpoints: folders that appear whole or not at all, are verified, and are read without unpickling.

`checkpoints/step-NNNNNNN/` holds model.safetensors, optimizer.safetensors (state by parameter name), rng.safetensors,
average.safetensors (if the run averages its weights), state.json (step, blocks consumed, seconds, ...) and
manifest.json (see `pipelines.run.manifest`). Rank 0 writes and reads whole tensors, so the files do not depend on the
world size.
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
from torch import Tensor

from lm.optim.averaging import WeightAverage
from lm.optim.optimizers import Optimizers
from pipelines.files import naming, parse_json
from pipelines.run.manifest import MANIFEST, DamagedCheckpointError, check_run, manifest_json, read_manifest, verified
from pipelines.run.retention import STATE, checkpoint_folders, retained, validation_losses
from pipelines.training.config import TrainConfig
from pipelines.training.parallel import ONE_PROCESS, Files, OneProcess

MODEL, OPTIMIZER, RNG, AVERAGE = (
    "model.safetensors",
    "optimizer.safetensors",
    "rng.safetensors",
    "average.safetensors",
)
Snapshot = Mapping[str, Mapping[str, Tensor]]
"""Tensors by file name and key, on the CPU."""


def take_snapshot(
    model: torch.nn.Module,
    optimizers: Optimizers | None = None,
    average: WeightAverage | None = None,
    parallel: OneProcess = ONE_PROCESS,
) -> Snapshot:
    """Return the tensors of each file, copied to the CPU, so that training can continue while they are written.

    Without `optimizers` the optimizer state is empty. All ranks must call it; only rank 0 gets the tensors.
    """
    files: dict[str, Mapping[str, Tensor]] = {
        MODEL: model.state_dict(),
        OPTIMIZER: _optimizer_state(model, optimizers),
        RNG: _rng_state(parallel),
    }
    if average is not None:
        files[AVERAGE] = average.weights
    snapshot: dict[str, dict[str, Tensor]] = {name: {} for name in files}
    for name, tensors in files.items():
        for key, value in tensors.items():
            full = parallel.full_tensor(value.detach())
            if parallel.is_main:
                snapshot[name][key] = full.clone() if full.device.type == "cpu" else full.cpu()
    return snapshot


def write_checkpoint(
    run: Path,
    snapshot: Snapshot,
    state: Mapping[str, Any],
    config: TrainConfig,
    settings: Mapping[str, Any],
) -> Path:
    """Write the checkpoint of `state["step"]`, then remove the checkpoints that `config` does not keep.

    `settings` are the run's `fixed_settings`, which the manifest records. An error while writing, such as a full disk,
    leaves the earlier checkpoints unchanged and no partial one.
    """
    folder = run / "checkpoints" / f"step-{state['step']:07d}"
    partial = folder.with_name(f"partial-{state['step']:07d}")
    for leftover in folder.parent.glob("partial-*"):  # from a process that was killed while saving
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
    keep = retained(run, folder, config)
    for old in checkpoint_folders(run):
        if old not in keep:
            shutil.rmtree(old)
    return folder


class CheckpointWriter:
    """Writes checkpoints one at a time in a background thread, while training continues."""

    def __init__(self, run: Path | None, config: TrainConfig, settings: Mapping[str, Any]) -> None:
        """Without a run, as on ranks other than 0, nothing is written."""
        self.run, self.config, self.settings = run, config, settings
        self._thread: threading.Thread | None = None
        self._written = threading.Event()
        self._error: BaseException | None = None

    def write(self, snapshot: Snapshot, state: Mapping[str, Any]) -> None:
        """Start to write a checkpoint, after waiting for the one before; raises that one's error."""
        self.wait()
        if self.run is None:
            return
        self._written.clear()
        self._thread = threading.Thread(target=self._write, args=(self.run, snapshot, state), name="checkpoint")
        self._thread.start()

    def check(self) -> None:
        """Raise the error of the background thread, if any, without waiting."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Wait until the checkpoint is on disk; raise its error."""
        self.join()
        self.check()

    def join(self) -> None:
        """Wait for the background thread without raising its error."""
        if self._thread is not None:
            self._written.wait()  # before Python 3.13, a join that a signal interrupts marks the thread as ended
            self._thread.join()
            self._thread = None

    def _write(self, run: Path, snapshot: Snapshot, state: Mapping[str, Any]) -> None:
        try:
            write_checkpoint(run, snapshot, state, self.config, self.settings)
        except BaseException as error:  # the training thread raises it in `check`
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


def newest_whole_checkpoint(run: Path, settings: Mapping[str, Any], *names: str) -> tuple[Path, dict[str, bytes]]:
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
                if folder.exists():  # else a running training has removed it since
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
        return newest_whole_checkpoint(run, settings, *names)
    folders = {int(folder.name[5:]): folder for folder in checkpoint_folders(run)}
    if which == "best":
        losses = validation_losses(folders.values())
        if not losses:
            raise ValueError(f"no checkpoint of {run} has a validation loss: train with --train.keep-best")
        folder = min(losses, key=losses.__getitem__)
    elif not which.isdecimal():
        raise ValueError(f"--checkpoint is {which!r}: give newest, best, or the number of a step")
    elif int(which) not in folders:
        steps = ", ".join(f"{step:,}" for step in folders) or "none"
        raise ValueError(f"{run} has no checkpoint of step {int(which):,}: its checkpoints are of {steps}")
    else:
        folder = folders[int(which)]
    return folder, read_checkpoint(folder, settings, *names)


def load_weights(run: Path, settings: Mapping[str, Any], which: str = "newest") -> tuple[Path, dict[str, Tensor]]:
    """Return the folder and weights of the checkpoint `which` (see `whole_checkpoint`); averages replace weights."""
    folder, contents = whole_checkpoint(run, settings, which, MODEL, AVERAGE)
    weights = load(contents[MODEL])
    return folder, weights | (load(contents[AVERAGE]) if AVERAGE in contents else {})


def set_weights(
    folder: Path, model: torch.nn.Module, weights: Mapping[str, Tensor], parallel: OneProcess = ONE_PROCESS
) -> None:
    """Load `weights` of the checkpoint `folder` into `model` on all ranks; ValueError if names or shapes do not fit.

    Only rank 0 needs `weights`; the other ranks receive them.
    """
    if parallel.is_main:
        _check_weights(folder, model, weights)
    _fill(model.state_dict(), parallel.broadcast_shapes({MODEL: weights})[MODEL], parallel)


def resume(
    run: Path | None,
    model: torch.nn.Module,
    optimizers: Optimizers,
    settings: Mapping[str, Any],
    average: WeightAverage | None = None,
    parallel: OneProcess = ONE_PROCESS,
) -> dict[str, Any]:
    """Restore model, optimizers, average and random generators from a run's newest whole checkpoint.

    Returns the content of its state.json. Raises ValueError if the checkpoint's manifest has other `settings` (the
    run's `fixed_settings`). Only rank 0 needs `run` and `settings`.
    """
    state: dict[str, Any] = {}
    files: Files = {}
    if parallel.is_main:
        assert run is not None
        folder, contents = newest_whole_checkpoint(run, settings, MODEL, OPTIMIZER, RNG, AVERAGE, STATE)
        state = parse_json(contents.pop(STATE), str(folder / STATE), f"remove {folder}")
        files = {name: load(contents.pop(name)) for name in list(contents)}
        _check_weights(folder, model, files[MODEL])
        _check_old_identity(folder, state.get("run", {}), settings)
    state, files = parallel.broadcast(state), parallel.broadcast_shapes(files)
    _fill(model.state_dict(), files[MODEL], parallel)
    _set_optimizer_state(model, optimizers, files[OPTIMIZER], parallel)
    if average is not None and AVERAGE in files:
        _fill(average.weights, files[AVERAGE], parallel)
        average.steps = state["averaged_steps"]
    _set_rng_state(files[RNG], parallel)
    return state


def _fill(targets: Mapping[str, Tensor], values: Mapping[str, Tensor], parallel: OneProcess = ONE_PROCESS) -> None:
    for name, target in targets.items():
        target.detach().copy_(parallel.distribute(values[name], target))


def _check_weights(folder: Path, model: torch.nn.Module, weights: Mapping[str, Tensor]) -> None:
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


def _set_optimizer_state(
    model: torch.nn.Module, optimizers: Optimizers, saved: Mapping[str, Tensor], parallel: OneProcess
) -> None:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for parameter, state in optimizers.state():
        prefix = f"{names[id(parameter)]}/"
        mine = {key.removeprefix(prefix): value for key, value in saved.items() if key.startswith(prefix)}
        state.clear()
        state |= {key: parallel.distribute(value, parameter) for key, value in mine.items()}


def _optimizer_state(model: torch.nn.Module, optimizers: Optimizers | None) -> dict[str, Tensor]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"{names[id(parameter)]}/{key}": torch.as_tensor(value)
        for parameter, state in (optimizers.state() if optimizers else ())
        for key, value in state.items()
    }


def _rng_state(parallel: OneProcess) -> dict[str, Tensor]:
    """Return the generators' states of all ranks: `cpu`, and `cuda` or `mps` of a GPU; rank n > 0 appends `.n`."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    gathered = {name: parallel.all_gather(local) for name, local in state.items()}
    return {f"{name}.{n}" if n else name: each for name, states in gathered.items() for n, each in enumerate(states)}


def _set_rng_state(saved: Mapping[str, Tensor], parallel: OneProcess) -> None:
    """Restore this rank's generators; a rank that the checkpoint lacks keeps its own."""
    like = torch.get_rng_state()  # on the CPU, as are the states of a GPU's generators
    states = {name: parallel.distribute(state, like) for name, state in saved.items()}
    suffix = f".{parallel.rank}" if parallel.rank else ""
    if f"cpu{suffix}" in states:
        torch.set_rng_state(states[f"cpu{suffix}"])
    if f"cuda{suffix}" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states[f"cuda{suffix}"])
    if f"mps{suffix}" in states and torch.backends.mps.is_available():
        torch.mps.set_rng_state(states[f"mps{suffix}"])


def _write(path: Path, contents: bytes) -> str:
    """Write a file through to the disk; return its SHA-256."""
    with path.open("wb") as file:
        file.write(contents)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(contents).hexdigest()


def _sync(folder: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):
        return  # Windows opens no folders
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
