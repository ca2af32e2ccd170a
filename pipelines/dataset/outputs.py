"""Outputs of tasks: whole files, and a marker that holds their checksums and the key of their task.

An output has the files PREFIX.NAME, and the marker PREFIX.json, which is written last. The prefix is a folder and a
number. Unfinished files are in the folder PREFIX.partial. A task whose output is complete returns at once, so the same
command resumes from the finished outputs.
"""

import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm.values import check_fields
from pipelines.files import checksummed_json, file_sha256, read_json
from pipelines.run.code_fingerprint import code_fingerprint
from tokenizer.formats.whole_files import naming, publish

MARKER = "json"
NewFile = Callable[[str], Path]
"""Maps the name of a new file to the temporary path to write it at"""


@dataclass(frozen=True)
class Output:
    """Whole files, and what their task reported."""

    prefix: Path
    key: str
    files: dict[str, str]
    """SHA-256 of the files, by name"""
    facts: dict[str, Any]
    """JSON values from the task"""

    def __post_init__(self) -> None:
        check_fields(self, "")

    def file(self, name: str) -> Path:
        """Return the path of a file."""
        return output_file(self.prefix, name)

    @property
    def sound(self) -> bool:
        """Whether all files exist with their checksums."""
        return all(
            self.file(name).is_file() and file_sha256(self.file(name)) == digest for name, digest in self.files.items()
        )


def key_of(*parts: Any) -> str:
    """Return the key of a task: the SHA-256 of the code and of `parts`, which are JSON values."""
    return hashlib.sha256(json.dumps([code_fingerprint(), *parts]).encode()).hexdigest()


def output_prefix(folder: Path, number: int) -> Path:
    """Return the prefix of the output of a task."""
    return folder / f"{number:06}"


def whole_output(prefix: Path, key: str, make: Callable[[NewFile], dict[str, Any]]) -> Output:
    """Return the output of the task `key` at `prefix`. Make it if it is missing, damaged or of another task.

    `make` writes new files, and returns facts as JSON values. Each file appears whole or not at all.
    """
    existing = read_output(prefix)
    if existing is not None and existing.key == key and existing.sound:
        return existing
    with _attempt(prefix) as folder:
        facts = make(folder.joinpath)
        digests = {path.name: file_sha256(path) for path in sorted(folder.iterdir())}
        (folder / MARKER).write_text(checksummed_json({"key": key, "files": digests, "facts": facts}), encoding="utf-8")
        for name in (*digests, MARKER):
            publish(folder / name, output_file(prefix, name))
    return Output(prefix, key, digests, facts)


@contextmanager
def _attempt(prefix: Path) -> Iterator[Path]:
    """Yield a folder for the temporary files of a task. Remove those that earlier attempts left when they were killed.

    A cluster may consider an attempt lost that is still running. When that attempt ends, it removes only its own files.
    """
    attempts = output_file(prefix, "partial")
    shutil.rmtree(attempts, ignore_errors=True)
    folder = attempts / uuid.uuid4().hex
    folder.mkdir(parents=True)
    try:
        yield folder
    except OSError as error:
        raise naming(error, prefix) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            attempts.rmdir()


def read_output(prefix: Path) -> Output | None:
    """Return the output that the marker at `prefix` describes; None if there is no marker, or a damaged one."""
    marker = output_file(prefix, MARKER)
    try:
        content = read_json(marker, "")
        if checksummed_json(content).encode() != marker.read_bytes():
            return None
        return Output(prefix, content["key"], content["files"], content["facts"])
    except (OSError, ValueError, KeyError):
        return None


def remove_outputs(folder: Path) -> None:
    """Remove the outputs of tasks in `folder`, if it exists, and the folder too unless it holds anything else."""
    number = "[0-9]" * 6
    for path in (*folder.glob(f"{number}.*"), *folder.glob(f".{number}.*")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with suppress(OSError):
        folder.rmdir()


def output_file(prefix: Path, name: str) -> Path:
    """Return the path of a file of the output at `prefix`."""
    return prefix.with_name(f"{prefix.name}.{name}")
