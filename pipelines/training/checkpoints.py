"""Checkpoints: folders that appear whole or not at all, carry checksums, and are read without unpickling anything.

`checkpoints/step-NNNNNNN/` holds model.safetensors, optimizer.safetensors (moments by parameter name),
rng.safetensors, state.json (step, blocks consumed, seconds) and checksums.json (SHA-256 of each of these).
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file

from pipelines.files import naming

CHECKSUMS = "checksums.json"
FILES = ("model.safetensors", "optimizer.safetensors", "rng.safetensors", "state.json")


def checkpoint_folders(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    folders = [path for path in (run / "checkpoints").glob("step-*") if path.name[5:].isdigit()]
    return sorted(folders, key=lambda path: int(path.name[5:]))


def latest_checkpoint(run: Path) -> Path:
    """The newest checkpoint of a run; ValueError when it has none."""
    folders = checkpoint_folders(run)
    if not folders:
        raise ValueError(f"{run} has no checkpoint: bytelm pretrain makes one")
    return folders[-1]


def save_checkpoint(
    run: Path,
    step: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    keep: int,
) -> Path:
    """Write the checkpoint of `step`, then remove all but the newest `keep`.

    An error while writing (a full disk, say) leaves the earlier checkpoints as they were and nothing half-written.
    """
    folder = run / "checkpoints" / f"step-{step:07d}"
    partial = folder.with_name(f"partial-{step:07d}")
    for leftover in folder.parent.glob("partial-*"):  # of a process that was killed while saving
        shutil.rmtree(leftover)
    try:
        partial.mkdir(parents=True)
        save_file(model.state_dict(), partial / "model.safetensors")
        save_file(_moments(model, optimizer), partial / "optimizer.safetensors")
        save_file(_rng_state(), partial / "rng.safetensors")
        (partial / "state.json").write_text(json.dumps({"step": step, **state}) + "\n", encoding="utf-8")
        checksums = {name: _sha256((partial / name).read_bytes()) for name in FILES}
        (partial / CHECKSUMS).write_text(json.dumps(checksums, indent=2) + "\n", encoding="utf-8")
        for path in (*partial.iterdir(), partial):
            _sync(path)
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
        _sync(folder.parent)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, SafetensorError):
            raise OSError(f"the checkpoint of step {step} could not be written to {folder}: {error}") from None
        if isinstance(error, OSError):
            raise naming(error, folder) from None
        raise
    for old in checkpoint_folders(run)[:-keep]:
        shutil.rmtree(old)
    return folder


def read_checkpoint(folder: Path, *names: str) -> dict[str, bytes]:
    """The named files of a checkpoint, verified against its checksums.

    Raises ValueError that names the file when one is missing, truncated or altered.
    """
    remedy = f"remove {folder} to go on from the checkpoint before it"
    try:
        checksums = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        expected = {name: checksums[name] for name in names}
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{folder / CHECKSUMS} is missing or damaged: {remedy}") from None
    contents = {}
    for name in names:
        try:
            contents[name] = (folder / name).read_bytes()
        except FileNotFoundError:
            raise ValueError(f"{folder / name} is missing: {remedy}") from None
        if _sha256(contents[name]) != expected[name]:
            raise ValueError(f"{folder / name} is truncated or altered (its SHA-256 is another): {remedy}")
    return contents


def load_model(folder: Path, model: torch.nn.Module) -> None:
    """Put the weights of a checkpoint into `model`; ValueError when they are of another model."""
    contents = read_checkpoint(folder, "model.safetensors")
    _put_weights(folder, model, contents["model.safetensors"])


def resume(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put model, optimizer and random generators into the state of a checkpoint; return its state.json."""
    contents = read_checkpoint(folder, *FILES)
    _put_weights(folder, model, contents["model.safetensors"])
    moments = load(contents["optimizer.safetensors"])
    for name, parameter in model.named_parameters():
        prefix = f"{name}/"
        mine = {key.removeprefix(prefix): value for key, value in moments.items() if key.startswith(prefix)}
        optimizer.state[parameter] = {
            # AdamW counts its steps on the CPU unless fused on a GPU; the moments live where the weights do.
            key: value if value.dim() == 0 and parameter.device.type == "cpu" else value.to(parameter.device)
            for key, value in mine.items()
        }
    generators = load(contents["rng.safetensors"])
    torch.set_rng_state(generators["cpu"])
    if "cuda" in generators and torch.cuda.is_available():
        torch.cuda.set_rng_state(generators["cuda"])
    return json.loads(contents["state.json"])


def _put_weights(folder: Path, model: torch.nn.Module, contents: bytes) -> None:
    weights = load(contents)
    expected = model.state_dict()
    wrong = [name for name in expected if name not in weights or weights[name].shape != expected[name].shape]
    if wrong or len(weights) != len(expected):
        raise ValueError(
            f"{folder} holds the weights of another model ({wrong[0] if wrong else 'more tensors'} does not fit): "
            "the run's config.toml was changed"
        )
    model.load_state_dict(weights)


def _moments(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {
        f"{name}/{key}": torch.as_tensor(value)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _rng_state() -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _sha256(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
