"""Which checkpoints a run has, and which of them it keeps. Imports no torch."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipelines.files import read_json
from pipelines.recipes.config import TrainConfig

STATE = "state.json"


def checkpoints_to_keep(run: Path, newest: Path, config: TrainConfig) -> set[Path]:
    """Return the checkpoints that a run keeps after it wrote `newest`.

    A checkpoint with an unreadable state.json is neither best nor past a multiple of tokens. Checkpoints of later steps
    are not kept: they are damaged, and the run resumed before them.
    """
    folders = checkpoint_folders(run)
    folders = folders[: folders.index(newest) + 1]
    keep = set(folders[-config.keep_checkpoints :])
    losses = validation_losses(folders)
    if config.keep_best and losses:
        keep.add(min(losses, key=losses.__getitem__))
    reached = 0
    for folder in folders:
        tokens = readable_state(folder).get("tokens", 0)
        if config.keep_every_tokens and tokens // config.keep_every_tokens > reached:
            reached = tokens // config.keep_every_tokens
            keep.add(folder)
    return keep


def checkpoint_folders(run: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    folders = [path for path in (run / "checkpoints").glob("step-*") if path.name[5:].isdigit()]
    return sorted(folders, key=lambda path: int(path.name[5:]))


def latest_checkpoint(run: Path) -> Path:
    """Return the newest checkpoint of a run; ValueError if there is none."""
    folders = checkpoint_folders(run)
    if not folders:
        raise ValueError(f"{run} has no checkpoint: bytelm pretrain makes one")
    return folders[-1]


def find_checkpoint(run: Path, which: str = "newest") -> Path:
    """Return the checkpoint `which`: "newest", "best" (the lowest validation loss), or the number of a step.

    Raises ValueError if there is none.
    """
    if which == "newest":
        return latest_checkpoint(run)
    if which == "best":
        return best_checkpoint(run)
    if not which.isdecimal():
        raise ValueError(f"`checkpoint` is {which!r}: give newest, best, or the number of a step")
    folders = {int(folder.name[5:]): folder for folder in checkpoint_folders(run)}
    if int(which) not in folders:
        steps = ", ".join(f"{step:,}" for step in folders) or "none"
        raise ValueError(f"{run} has no checkpoint of step {int(which):,}: its checkpoints are of {steps}")
    return folders[int(which)]


def best_checkpoint(run: Path) -> Path:
    """Return the checkpoint of a run with the lowest validation loss; ValueError if none has one."""
    losses = validation_losses(checkpoint_folders(run))
    if not losses:
        raise ValueError(f"no checkpoint of {run} has a validation loss: train with `train.keep_best`")
    return min(losses, key=losses.__getitem__)


def validation_losses(folders: Iterable[Path]) -> dict[Path, float]:
    """Return the loss of each checkpoint that was validated at its own step, oldest first.

    If `validation_tokens` changed during the run, only losses on the newest number of tokens are comparable; others are
    left out.
    """
    states = {folder: readable_state(folder) for folder in folders}
    measured = {f: s for f, s in states.items() if s.get("validation_loss") is not None}
    tokens = next((s.get("validated_tokens") for s in reversed(measured.values())), None)
    validated = {f: s for f, s in measured.items() if s.get("validated_step") == s.get("step")}
    return {f: s["validation_loss"] for f, s in validated.items() if s.get("validated_tokens") == tokens}


def readable_state(folder: Path) -> dict[str, Any]:
    """Return the content of state.json, or an empty dict if it is missing or damaged."""
    try:
        state = read_json(folder / STATE, "")
    except (OSError, ValueError):
        return {}
    counts = all(type(state.get(name, 0)) is int for name in ("step", "tokens", "validated_step", "validated_tokens"))
    return state if counts and isinstance(state.get("validation_loss"), float | int | None) else {}
