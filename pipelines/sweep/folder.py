"""The folder of a sweep: sweep.json holds what all of its runs have in common."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelines.files import read_json, write_json
from pipelines.sweep.plan import Budget
from pipelines.sweep.vocabularies import fingerprint

SETTINGS = "sweep.json"


def recorded(folder: Path) -> dict[str, Any] | None:
    """Return the settings of the sweep in `folder`, as `open_sweep` wrote them; None for a new sweep."""
    if not (folder / SETTINGS).exists():
        return None
    settings: dict[str, Any] = read_json(folder / SETTINGS, "choose another --out")
    if settings.get("format") != 1:
        raise ValueError(f"{folder / SETTINGS} is damaged, or of another version: choose another --out")
    return settings


def open_sweep(folder: Path, budget: Budget, split_rule: str, held_out: list[bytes]) -> None:
    """Record the settings of a new sweep in `folder`; ValueError if it holds a sweep with other settings."""
    facts = {
        "format": 1,
        "flops": budget.flops,
        "split_rule": split_rule,
        "held_out_bytes": sum(map(len, held_out)),
        "held_out_sha256": fingerprint(held_out),
        "recipe": asdict(budget.recipe),
    }
    settings = json.loads(json.dumps(facts))
    earlier = recorded(folder)
    if earlier is not None:
        _check(folder, earlier, settings)
        return
    if folder.exists() and any(path.name != ".lock" for path in folder.iterdir()):
        raise ValueError(f"{folder} is not empty and holds no sweep: choose another --out")
    write_json(folder / SETTINGS, settings)


def _check(folder: Path, was: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise ValueError for the first setting that differs."""
    remedies = {
        "flops": f"give --flops {was['flops']:g}",
        "recipe": "give the same --recipe",
        "split_rule": "give the same --split",
        "held_out_sha256": "give the same corpus and reading options",
    }
    for name, remedy in remedies.items():
        if was.get(name) != now[name]:
            raise ValueError(f"{folder} holds a sweep with another {name}: {remedy}, or choose another --out")
