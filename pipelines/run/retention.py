"""Which checkpoints a run has, and which of them stay. Imports no torch."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.files import read_json

STATE = "state.json"


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Which checkpoints stay: the newest `last`; with `best` the one of the lowest validation loss; and the first one
    past each multiple of `every_tokens`, where that is not 0."""

    last: int = 1
    best: bool = False
    every_tokens: int = 0

    def kept(self, run: Path, newest: Path) -> set[Path]:
        """The folders that stay after `newest` was written. One whose state.json cannot be read counts as neither best
        nor a multiple. Those of later steps go: the run went on from before them, since they are damaged."""
        folders = checkpoint_folders(run)
        folders = folders[: folders.index(newest) + 1]
        kept = set(folders[-self.last :])
        losses = validation_losses(folders)
        if self.best and losses:
            kept.add(min(losses, key=losses.__getitem__))
        reached = 0
        for folder in folders:
            state = readable_state(folder)
            if self.every_tokens and state.get("tokens", 0) // self.every_tokens > reached:
                reached = state["tokens"] // self.every_tokens
                kept.add(folder)
        return kept


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


def validation_losses(folders: Iterable[Path]) -> dict[Path, float]:
    """Those of the checkpoints, oldest first, whose own weights were measured: others only know that of weights before.
    Where it was measured on more or fewer tokens later, only those since."""
    states = {folder: readable_state(folder) for folder in folders}
    measured = {f: s for f, s in states.items() if s.get("validation_loss") is not None}
    tokens = next((s.get("validated_tokens") for s in reversed(measured.values())), None)
    own = {f: s for f, s in measured.items() if s.get("validated_step") == s.get("step")}
    return {f: s["validation_loss"] for f, s in own.items() if s.get("validated_tokens") == tokens}


def readable_state(folder: Path) -> dict[str, Any]:
    """Return the content of state.json, or an empty dict where it is missing or damaged."""
    try:
        state = read_json(folder / STATE, "")
    except (OSError, ValueError):
        return {}
    counts = all(type(state.get(name, 0)) is int for name in ("step", "tokens", "validated_step", "validated_tokens"))
    return state if counts and isinstance(state.get("validation_loss"), float | int | None) else {}
