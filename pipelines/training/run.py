"""A run's folder: its configuration, tokenizer, metrics and checkpoints, used by one process at a time."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pipelines.recipe import Recipe, load_recipe, read_toml, save_config
from tokenizer import Tokenizer


class Run:
    """A run folder that exists.

    Raises ValueError when `folder` holds no run.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / "config.toml").is_file():
            raise ValueError(f"{folder} is not a run: it has no config.toml (bytelm pretrain makes one)")
        self.recipe: Recipe = load_recipe(self.folder / "config.toml")
        self.facts: dict[str, Any] = read_toml(self.folder / "config.toml").get("run", {})

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
        """The lines of metrics.jsonl; a last line that a killed process left half-written is not one."""
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def evaluation(self) -> dict[str, Any] | None:
        """evaluation.json, or None before bytelm evaluate."""
        path = self.folder / "evaluation.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The run folder for this process alone (it is made if need be); ValueError while another process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder} is in use by another process: wait for it, or choose another --out") from None
        yield


def open_or_create(folder: Path, recipe: Recipe, facts: dict[str, Any], tokenizer: Tokenizer) -> Run:
    """The run of `recipe` in `folder`: a new one, or the one that is there if it is the same.

    "auto" in `recipe` agrees with whatever the run that is there resolved it to. Raises ValueError, naming the first
    field that differs, when the folder holds another run.
    """
    if (folder / "config.toml").exists():
        run = Run(folder)
        asked = _flat({**asdict(recipe), "dataset": facts["dataset_fingerprint"]})
        there = _flat({**asdict(run.recipe), "dataset": run.facts.get("dataset_fingerprint")})
        for name, value in asked.items():
            if value not in ("auto", there[name]):
                raise ValueError(
                    f"{folder} holds another run: its {name} is {there[name]!r}, not {value!r}; "
                    "choose another --out, or remove it"
                )
        return run
    tokenizer.save(folder)
    partial = folder / "config.toml.partial"
    save_config(partial, recipe, facts)
    partial.rename(folder / "config.toml")
    return Run(folder)


def with_machine(recipe: Recipe, device: str, dtype: str) -> Recipe:
    """`recipe` with "auto" resolved."""
    return replace(recipe, train=replace(recipe.train, device=device, dtype=dtype))


class MetricsLog:
    """metrics.jsonl, one object a line, cut back to `step` first: what came later is measured again."""

    def __init__(self, folder: Path, step: int) -> None:
        path = folder / "metrics.jsonl"
        kept = []
        if path.exists():
            for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
        partial = folder / "metrics.jsonl.partial"
        partial.write_text("".join(kept), encoding="utf-8")
        partial.rename(path)
        self._file = path.open("a", encoding="utf-8")

    def write(self, **record: Any) -> None:
        self._file.write(json.dumps(record) + "\n")
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
