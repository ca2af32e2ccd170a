"""The command that does one step of `bytelm train` alone."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelines.recipes.recipe import load_recipe
from pipelines.run.manifest import flat


def command(verb: str, *words: str | Path, **options: Any) -> str:
    """Return a command line that a shell reads back. Options that are None are left out."""
    return shlex.join(["bytelm", verb, *map(str, words), *_words(options)])


def pretrain_command(name: str, recipe: Any, **options: Any) -> str:
    """Return the command that trains `recipe`, a variant of the recipe `name`."""
    base, changed = flat(asdict(load_recipe(name))), flat(asdict(recipe))
    changes = {field: value for field, value in changed.items() if value != base[field]}
    return command("pretrain", name, **options, **changes)


def _words(options: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is False:
            option = f"--{name.rpartition('.')[0]}{'.' * ('.' in name)}no-{name.rpartition('.')[2]}".replace("_", "-")
        if value is not None:
            words.append(option)
        if isinstance(value, Sequence) and not isinstance(value, str):
            words += map(str, value)
        elif value is not None and not isinstance(value, bool):
            words.append(str(value))
    return words
