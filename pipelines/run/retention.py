"""Which checkpoints a run has, and which of them it keeps. Imports no torch."""

from collections.abc import Iterable, Sequence
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
    losses = criteria(folders)
    if config.keeps_best and losses:
        keep.add(min(losses, key=losses.__getitem__))
    reached = 0
    for folder in folders:
        tokens = readable_state(folder).get("tokens", 0)
        if config.keep_every_tokens and tokens // config.keep_every_tokens > reached:
            reached = tokens // config.keep_every_tokens
            keep.add(folder)
    return keep.union(checkpoints_by_words(folders, config).values())


def checkpoints_by_words(folders: Iterable[Path], config: TrainConfig) -> dict[int, Path]:
    """Return the first checkpoint past each number of words of `config.keep_words`; `folders`: oldest first."""
    found: dict[int, Path] = {}
    for folder in folders:
        if mark := config.word_mark(readable_state(folder).get("tokens", 0)):
            found.setdefault(mark, folder)
    return found


def named_by_words(run: Path, config: TrainConfig) -> dict[str, str]:
    """Return the numbers of the steps of a run's checkpoints by words, by BabyLM's names: chck_1M, chck_2M and so on.

    Raises ValueError if there is none.
    """
    found = checkpoints_by_words(checkpoint_folders(run), config)
    if not found:
        raise ValueError(f"{run} has no checkpoint by words: train with `train.words` and `train.keep_words`")
    return {f"chck_{_short(words)}": str(int(folder.name[5:])) for words, folder in found.items()}


def _short(words: int) -> str:
    return next(
        (f"{words // size}{unit}" for size, unit in ((10**6, "M"), (10**3, "k")) if words % size == 0), str(words)
    )


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


def find_checkpoint(run: Path, which: str = "auto") -> Path:
    """Return the checkpoint `which`: "auto", "newest", "best" (see `criteria`), or the number of a step.

    "auto" is the best of a run that stops without improvement, and the newest of any other (see `prefers_best`). Raises
    ValueError if there is none.
    """
    if which == "auto":
        return best_checkpoint(run) if prefers_best(checkpoint_folders(run)) else latest_checkpoint(run)
    if which == "newest":
        return latest_checkpoint(run)
    if which == "best":
        return best_checkpoint(run)
    if not which.isdecimal():
        raise ValueError(f"`checkpoint` is {which!r}: give auto, newest, best, or the number of a step")
    folders = {int(folder.name[5:]): folder for folder in checkpoint_folders(run)}
    if int(which) not in folders:
        steps = ", ".join(f"{step:,}" for step in folders) or "none"
        raise ValueError(f"{run} has no checkpoint of step {int(which):,}: its checkpoints are of {steps}")
    return folders[int(which)]


def best_checkpoint(run: Path) -> Path:
    """Return the best checkpoint of a run; ValueError if none was validated."""
    losses = criteria(checkpoint_folders(run))
    if not losses:
        raise ValueError(f"no checkpoint of {run} has a validation loss: train with `train.keep_best`")
    return min(losses, key=losses.__getitem__)


def prefers_best(folders: Sequence[Path]) -> bool:
    """Return whether "auto" means the best checkpoint: the run has patience, and a checkpoint has a validation loss.

    `folders`: oldest first.
    """
    return bool(folders and readable_state(folders[-1]).get("patience") and criteria(folders))


def criteria(folders: Iterable[Path]) -> dict[Path, float]:
    """Return the number that judges each checkpoint that was validated at its own step, oldest first; low is good.

    It is the validation loss, or a score of the task that a run stops by.

    If `validation_tokens` or the score changed during the run, only numbers of the newest kind are comparable; others
    are left out.
    """
    states = {folder: readable_state(folder) for folder in folders}
    measured = {f: s for f, s in states.items() if s.get("criterion") is not None}
    kinds = {f: (s.get("validated_tokens"), s.get("judged_by", "")) for f, s in measured.items()}
    newest = next(reversed(kinds.values()), None)
    validated = {f: s for f, s in measured.items() if s.get("validated_step") == s.get("step")}
    return {f: s["criterion"] for f, s in validated.items() if kinds[f] == newest}


def readable_state(folder: Path) -> dict[str, Any]:
    """Return the content of state.json, or an empty dict if it is missing or damaged."""
    try:
        state = read_json(folder / STATE, "")
    except (OSError, ValueError):
        return {}
    state.setdefault("criterion", state.get("validation_loss"))  # as in version 0.1, which has no scores
    counts = all(type(state.get(name, 0)) is int for name in ("step", "tokens", "validated_step", "validated_tokens"))
    numbers = all(
        isinstance(state.get(name), float | int | None) for name in ("validation_loss", "criterion", "seconds")
    )
    return state if counts and numbers else {}
