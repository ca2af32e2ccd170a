"""Measurement: list the runs in a folder with their progress and results.

Examples:
    bytelm runs
    bytelm runs experiments --json
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from pipelines.cli.verbs import verb
from pipelines.files import locked_file
from pipelines.run.folder import TOKENIZER_FILES, Run

DEPTH = 4  # levels of folders to search


State = Literal["training", "finished", "stopped", "imported", "damaged"]


@dataclass(frozen=True, kw_only=True, repr=False)
class ListedRun:
    """A run that `bytelm runs` lists. A damaged run has only `run`, `state` and `why`."""

    run: str
    """Folder"""
    date: str = ""
    """When the newest checkpoint was saved, in ISO 8601; empty if that is unknown"""
    state: State
    why: str = ""
    """Why the run is damaged"""
    objective: str = ""
    tokens: int = 0
    """Tokens trained on"""
    of: int = 0
    """Tokens that the run trains on in all"""
    loss: float | None = None
    """Training loss, the mean of the last logged steps, in nats per target"""
    validation_loss: float | None = None
    """In nats per target"""
    tokens_per_s: float | None = None
    """Speed of the last logged steps"""

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the run in the output of `json`: the fields that apply to its state."""
        damaged = self.state == "damaged"
        only_damaged, only_sound = {"why"}, {"objective", "tokens", "of", "loss", "validation_loss", "tokens_per_s"}
        left_out = only_sound if damaged else only_damaged
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    def __repr__(self) -> str:
        if self.state == "damaged":
            return f"{self.run}: damaged ({self.why})"
        loss = "" if self.validation_loss is None else f", validation loss {self.validation_loss:.3f} nats"
        return f"{self.run}: {self.state}, {self.tokens:,} of {self.of:,} tokens{loss}"


@verb
def runs(
    folders: Annotated[Sequence[Path], tyro.conf.Positional, tyro.conf.arg(metavar="[FOLDER ...]")] = (Path(),),
    *,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> list[ListedRun]:
    """List the runs in folders and below: state, objective, progress and loss.

    A run is training, finished, stopped (the command that began it resumes it), imported, or damaged (a line gives the
    reason). Tokens and losses are as of the newest checkpoint, or as of now if the run is training. Losses are in nats
    per target, the training loss as the mean of the last logged steps. The date is when the newest checkpoint was
    saved.

    Args:
        folders: Folders to search.
        as_json: Print JSON instead of a table.
    """
    found = [describe(folder) for root in folders for folder in run_folders(root)]
    found.sort(key=lambda run: run.date, reverse=True)
    from pipelines.cli.display import answer, write

    if as_json:
        write(json.dumps([run.to_json() for run in found]))
    elif found:
        _show(found)
    else:
        answer(f"no runs in {', '.join(map(str, folders))}: bytelm pretrain makes one")
    return found


def describe(folder: Path) -> ListedRun:
    """Return the facts about one run that `bytelm runs` lists."""
    try:
        run = Run(folder)
        metrics = run.metrics()
    except ValueError as error:
        return ListedRun(run=str(folder), state="damaged", why=str(error))
    lock = folder / ".lock"
    training = lock.exists() and _is_locked(lock)
    saved = run.saved_state()
    tokens, seconds = max(((line["tokens"], line["time_s"]) for line in metrics), default=(0, 0.0))
    if not training:  # progress after the newest checkpoint is lost
        tokens, seconds = saved.get("tokens", 0), saved.get("seconds", 0.0)
    last = {line["split"]: line for line in metrics if line["tokens"] <= tokens}
    return ListedRun(
        run=str(folder),
        date=_date(saved.get("date")) or _date(run.facts.get("date")),
        state="training" if training else _state(run),
        objective=run.recipe.trained_for,
        tokens=tokens,
        of=round(run.recipe.train.expected_tokens(tokens, seconds)),
        loss=last.get("train", {}).get("loss"),
        validation_loss=last.get("validation", {}).get("loss"),
        tokens_per_s=last.get("train", {}).get("tokens_per_s"),
    )


def _date(value: Any) -> str:
    """Return an ISO 8601 date and time unchanged, and "" for anything else."""
    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return ""
    return str(value)


def _state(run: Run) -> State:
    """Return the state of a run that no process trains."""
    if "imported_from" in run.facts:
        return "imported"
    saved, train = run.saved_state(), run.recipe.train
    early = 0 < train.patience <= saved.get("unimproved", 0)
    position = train.position(saved.get("tokens", 0), saved.get("seconds", 0.0))
    return "finished" if early or position >= train.tokens else "stopped"


def run_folders(root: Path) -> list[Path]:
    """Return the folders of runs, sorted: `root` and folders up to DEPTH levels below it."""
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder: name a folder that contains runs")
    patterns = ["/".join(["*"] * depth + ["config.toml"]) for depth in range(DEPTH + 1)]
    folders = {path.parent for pattern in patterns for path in root.glob(pattern)}
    return sorted(f for f in folders if any((f / name).exists() for name in TOKENIZER_FILES))


def _is_locked(lock: Path) -> bool:
    """Return whether a process holds the lock; a file that may not be opened for writing counts as held."""
    try:
        with locked_file(lock, "held"):
            return False
    except (ValueError, PermissionError):
        return True


def _show(found: Sequence[ListedRun]) -> None:
    from pipelines.cli.display import answer, quantity, table

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    rows: list[tuple[str, ...]] = []
    for run in found:
        if run.state == "damaged":
            rows.append((run.run, run.state, "-", "-", "-", "-"))
            continue
        trained = f"{quantity(run.tokens, 'tok')}, {min(1.0, run.tokens / run.of):.0%}"
        date = datetime.fromisoformat(run.date).astimezone().strftime("%Y-%m-%d %H:%M") if run.date else "-"
        rows.append((run.run, run.state, trained, number(run.loss), number(run.validation_loss), date))
    table(("run", "state", "trained", "loss (nats)", "validation", "saved"), rows)
    for run in found:
        if run.state == "damaged":
            answer(run.why)
