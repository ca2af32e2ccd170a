"""sweep.json: the settings that all runs of a sweep have in common."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelines.files import read_json, write_json
from pipelines.sweep.plan import Budget
from pipelines.sweep.vocabularies import fingerprint

SETTINGS = "sweep.json"


def read_settings(folder: Path) -> dict[str, Any] | None:
    """Return the settings of the sweep in `folder`, as `settings_of` made them; None for a new sweep."""
    path = folder / SETTINGS
    if not path.exists():
        return None
    settings: dict[str, Any] = read_json(path, "choose another `out`")
    train = settings.get("recipe", {}).get("train", {}) if isinstance(settings.get("recipe"), dict) else {}
    numbers = isinstance(settings.get("flops"), (int, float))
    if settings.get("format") != 1 or not numbers or not {"device", "dtype"} <= train.keys():
        raise ValueError(f"{path} is damaged, or from another version of bytelm: choose another `out`")
    return settings


def settings_of(budget: Budget, split_rule: str, held_out: list[bytes]) -> dict[str, Any]:
    """Return the settings that all runs of a sweep have in common, in the types of JSON."""
    facts = {
        "format": 1,
        "flops": budget.flops,
        "split_rule": split_rule,
        "held_out_bytes": sum(map(len, held_out)),
        "held_out_sha256": fingerprint(held_out),
        "recipe": asdict(budget.recipe),
    }
    settings: dict[str, Any] = json.loads(json.dumps(facts))
    return settings


def check_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Raise ValueError if `folder` holds a sweep with other settings, or something else."""
    earlier = read_settings(folder)
    if earlier is None:
        if any(path.name != ".lock" for path in folder.iterdir()):
            raise ValueError(f"{folder} is not empty and holds no sweep: choose another `out`")
        return
    remedies = {
        "flops": f"give `flops={earlier['flops']:g}`",
        "recipe": "give the same `recipe`",
        "split_rule": "give the same `split`",
        "held_out_sha256": "give the same corpus and reading options",
    }
    for name, remedy in remedies.items():
        if earlier.get(name) != settings[name]:
            raise ValueError(f"{folder} holds a sweep with another {name}: {remedy}, or choose another `out`")


def record_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write the settings of a sweep."""
    write_json(folder / SETTINGS, settings)
