"""Measurement: list the runs in a folder with their progress and results.

Examples:
    bytelm runs
    bytelm runs experiments --json
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from pipelines.cli.verbs import verb
from pipelines.files import locked_file
from pipelines.run.folder import Run, is_classifier
from pipelines.run.retention import checkpoint_folders, readable_state

DEPTH = 4  # levels of folders to search


@verb
def runs(
    folders: Annotated[Sequence[Path], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")] = (Path(),),
    *,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> list[dict[str, Any]]:
    """List the runs in folders and below: state, objective, progress and loss.

    `state` is training, finished, stopped (bytelm pretrain --out RUN resumes it), imported, or damaged (`why` gives the
    reason). Tokens and losses are as of the newest checkpoint, or as of now if the run is training. Losses are in nats
    per target. Classifiers of bytelm finetune are not listed.

    Args:
        folders: Folders to search; default: the working folder.
        as_json: Whether to print JSON instead of a table.
    """
    found = [describe(folder) for root in folders for folder in run_folders(root)]
    found.sort(key=lambda run: -run["changed"])
    from pipelines.cli.display import answer, write

    if as_json:
        write(json.dumps(found))
    elif found:
        _show(found)
    else:
        answer(f"no runs in {', '.join(map(str, folders))}: bytelm pretrain makes one")
    return found


def describe(folder: Path) -> dict[str, Any]:
    """Return the facts about one run that `bytelm runs` lists."""
    facts: dict[str, Any] = {"run": str(folder), "changed": (folder / "config.toml").stat().st_mtime}
    try:
        run = Run(folder)
        metrics = run.metrics()
    except ValueError as error:
        return facts | {"state": "damaged", "why": str(error)}
    lock = folder / ".lock"
    training = lock.exists() and _is_locked(lock)
    tokens = max((line["tokens"] for line in metrics), default=0)
    if not training:  # progress after the newest checkpoint is lost
        tokens = _saved_tokens(run)
    last = {line["split"]: line for line in metrics if line["tokens"] <= tokens}
    log = folder / "metrics.jsonl"
    return facts | {
        "state": "training" if training else _state(run),
        "objective": run.recipe.objective,
        "tokens": tokens,
        "of": run.recipe.train.tokens,
        "loss": last.get("train", {}).get("loss"),
        "validation_loss": last.get("validation", {}).get("loss"),
        "tokens_per_s": last.get("train", {}).get("tokens_per_s"),
        "changed": log.stat().st_mtime if log.exists() else facts["changed"],
    }


def _state(run: Run) -> str:
    """Return the state of a run that no process trains."""
    if "imported_from" in run.facts:
        return "imported"
    return "finished" if _saved_tokens(run) >= run.recipe.train.tokens else "stopped"


def _saved_tokens(run: Run) -> int:
    """Return the training tokens of the newest checkpoint; 0 without one."""
    return max((readable_state(folder).get("tokens", 0) for folder in checkpoint_folders(run.folder)), default=0)


def run_folders(root: Path) -> list[Path]:
    """Return the folders of runs, sorted: `root` and folders up to DEPTH levels below it."""
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder: name a folder that contains runs")
    patterns = ["/".join(["*"] * depth + ["config.toml"]) for depth in range(DEPTH + 1)]
    folders = {path.parent for pattern in patterns for path in root.glob(pattern)}
    return sorted(f for f in folders if (f / "tokenizer.json").exists() and not is_classifier(f))


def _is_locked(lock: Path) -> bool:
    """Return whether a process holds the lock; a file that may not be opened for writing counts as held."""
    try:
        with locked_file(lock, "held"):
            return False
    except (ValueError, PermissionError):
        return True


def _show(found: Sequence[dict[str, Any]]) -> None:
    from pipelines.cli.display import answer, duration, quantity, table

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    rows = []
    for run in found:
        if run["state"] == "damaged":
            rows.append((run["run"], run["state"], "-", "-", "-", "-"))
            continue
        trained = f"{quantity(run['tokens'], 'tok')}, {min(1.0, run['tokens'] / run['of']):.0%}"
        ago = duration(max(0.0, time.time() - run["changed"]))
        rows.append((run["run"], run["state"], trained, number(run["loss"]), number(run["validation_loss"]), ago))
    table(("run", "state", "trained", "loss", "validation", "ago"), rows)
    for run in found:
        if run["state"] == "damaged":
            answer(run["why"])
