"""Outputs of tasks: files, each with a marker that holds its checksum and the key of its task.

An output is named by its key, so outputs of different plans never collide. A task whose output is complete returns at
once, so the same command resumes from the finished outputs.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.dataset.arrow import file_sha256
from pipelines.files import whole_file
from pipelines.run.code_fingerprint import code_fingerprint


@dataclass(frozen=True)
class Output:
    """A whole file and what its task reported."""

    path: Path
    key: str
    facts: dict[str, Any]
    """JSON values from the task that made the file"""
    restarts: int = field(default=0, compare=False)
    """attempts that ended in the middle, such as by a lost node"""


def key_of(*parts: Any) -> str:
    """Return the key of a task: the SHA-256 of the code and of `parts`, which are JSON values."""
    return hashlib.sha256(json.dumps([code_fingerprint(), *parts]).encode()).hexdigest()


def whole_output(folder: Path, key: str, make: Callable[[Path], dict[str, Any]]) -> Output:
    """Return the output of the task `key` in `folder`. Make it if it is missing, damaged or of another task.

    `make` writes the file at the path that it gets, and returns facts as JSON values.
    """
    path, marker = folder / key[:32], folder / f"{key[:32]}.json"
    if (facts := _facts(path, marker, key)) is not None:
        return Output(path, key, facts)
    cut_short = list(folder.glob(f"{path.name}.*.partial"))
    for rest in folder.glob(f"*{path.name}.*.partial*"):
        rest.unlink(missing_ok=True)
    with whole_file(path) as partial:
        partial.touch()  # shows a later attempt that this one began
        facts = make(partial)
        digest = file_sha256(partial)
    with whole_file(marker) as partial:
        partial.write_text(json.dumps({"key": key, "sha256": digest, "facts": facts}), encoding="utf-8")
    return Output(path, key, facts, len(cut_short))


def _facts(path: Path, marker: Path, key: str) -> dict[str, Any] | None:
    """Return the facts in a marker if the output is whole, otherwise None."""
    try:
        content = json.loads(marker.read_bytes())
        whole = content["key"] == key and content["sha256"] == file_sha256(path)
        return dict(content["facts"]) if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
