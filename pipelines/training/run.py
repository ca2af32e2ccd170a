"""A run's folder: its configuration, tokenizer, metrics and checkpoints, used by one process at a time."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pipelines.files import locked_file, read_json, write_whole
from pipelines.recipe import Recipe, load_recipe, read_toml, save_config
from tokenizer import Tokenizer


class Run:
    """A run folder that exists.

    Raises ValueError when `folder` holds no run.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        path = self.folder / "config.toml"
        if not path.is_file():
            raise ValueError(f"{folder} is not a run: it has no config.toml (bytelm pretrain makes one)")
        if is_classifier(self.folder):
            raise ValueError(
                f"{folder} is a classifier, not a run: bytelm classify asks it, bytelm finetune makes another"
            )
        self.recipe: Recipe = load_recipe(path)
        self.facts: dict[str, Any] = read_toml(path).get("run", {})
        for name in ("data", "dataset_fingerprint", "tokenizer_fingerprint"):
            if not (isinstance(self.facts, dict) and isinstance(self.facts.get(name), str)):
                raise ValueError(f"{path}: run.{name} is missing or damaged: restore the file from a copy of the run")

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def data(self) -> Path:
        """The dataset that the run was trained on."""
        return Path(self.facts["data"])

    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.folder)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; ValueError names the first damaged one."""
        return [record for _, record in read_metrics(self.folder / "metrics.jsonl")]

    def evaluation(self) -> dict[str, Any] | None:
        """evaluation.json, or None before bytelm evaluate."""
        path = self.folder / "evaluation.json"
        if not path.exists():
            return None
        evaluation = read_json(path, f"run bytelm evaluate {self.folder} again")
        if not isinstance(evaluation.get("splits"), dict):
            raise ValueError(f"{path} is damaged: run bytelm evaluate {self.folder} again")
        return evaluation


def is_classifier(folder: Path) -> bool:
    """Whether the folder is one that bytelm finetune wrote, which has a config.toml too."""
    return (folder / "labels.json").is_file()


def read_metrics(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """The lines of a metrics.jsonl and what they say. A last line that a killed process left half-written is none."""
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], 1):
        try:
            record = json.loads(line)
            record["step"] + record["tokens"] + record["loss"] + record["time_s"], record["split"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path} is damaged in line {number}: remove that line") from None
        records.append((line + "\n", record))
    return records


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The run folder for this process alone (it is made if need be); ValueError while another process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked_file(
            folder / ".lock", f"{folder} is in use by another process: wait for it, or choose another --out"
        ):
            yield
    finally:
        # A start that was refused leaves nothing behind.
        if not any(folder.iterdir()):
            folder.rmdir()


def open_or_create(folder: Path, recipe: Recipe, facts: dict[str, Any], tokenizer: Tokenizer) -> Run:
    """The run of `recipe` in `folder`: a new one, or the one that is there if it is the same.

    Raises ValueError, naming the first field that differs, when the folder holds another run, and when it holds
    something else.
    """
    if (folder / "config.toml").exists():
        run = Run(folder)
        if "imported_from" in run.facts:
            raise ValueError(f"{folder} was imported, and training does not go on from it: choose another --out")
        asked = _flat({**asdict(recipe), "dataset": facts["dataset_fingerprint"]})
        there = _flat({**asdict(run.recipe), "dataset": run.facts.get("dataset_fingerprint")})
        for name, value in asked.items():
            if value != there[name]:
                raise ValueError(
                    f"{folder} holds another run: its {name} is {there[name]!r}, not {value!r}; "
                    "choose another --out, or remove it"
                )
        if run.facts["data"] != facts["data"]:
            # The dataset moved: the run remembers where it is now.
            save_config(folder / "config.toml", run.recipe, {**run.facts, "data": facts["data"]})
        return run
    strangers = [path.name for path in folder.iterdir() if path.name != ".lock" and path.suffix != ".partial"]
    if strangers and not (strangers == ["tokenizer.json"] and _holds(folder, tokenizer)):
        raise ValueError(
            f"{folder} is not empty and holds no run (it has {strangers[0]}): choose another --out, or empty it"
        )
    tokenizer.save(folder)
    save_config(folder / "config.toml", recipe, facts)
    return Run(folder)


def _holds(folder: Path, tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer.json of `folder` is `tokenizer`: all that a start killed at a bad moment leaves."""
    try:
        return Tokenizer.load(folder).fingerprint == tokenizer.fingerprint
    except ValueError:
        return False


def with_machine(recipe: Recipe, device: str, dtype: str) -> Recipe:
    """`recipe` with "auto" resolved."""
    return replace(recipe, train=replace(recipe.train, device=device, dtype=dtype))


class MetricsLog:
    """metrics.jsonl, one object a line, cut back to `step` first: what came later is measured again. A run without a
    checkpoint starts an empty one (`step` -1)."""

    def __init__(self, folder: Path, step: int) -> None:
        path = folder / "metrics.jsonl"
        write_whole(path, "".join(line for line, record in read_metrics(path) if record["step"] <= step))
        self._file = path.open("a", encoding="utf-8")

    def write(self, **record: Any) -> None:
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Make sure that what was written is on disk: a checkpoint must not outlive its metrics."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
