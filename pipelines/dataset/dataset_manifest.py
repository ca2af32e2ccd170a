"""The manifest of a dataset: the size and the SHA-256 of each of its files, in manifest.json."""

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from corpora.object_store import AnyPath, ObjectPath
from pipelines.dataset.reader import REMEDY, data_files
from pipelines.files import checksummed_json, file_sha256, parse_json, write_whole

MANIFEST = "manifest.json"


class File(NamedTuple):
    """An entry of a manifest."""

    bytes: int
    sha256: str


def write_manifest(folder: Path, info: dict[str, Any]) -> None:
    """Write the manifest of a new dataset; all other files must exist already.

    The checksums of Arrow files are taken from `info`, the content of dataset.json.
    """
    known = {
        f"{split}/{file.name}": file.sha256 for split, entry in info["splits"].items() for file in data_files(entry)
    }
    files = {
        name: {"bytes": path.stat().st_size, "sha256": known.get(name) or file_sha256(path)}
        for name, path in files_in(folder).items()
    }
    write_whole(folder / MANIFEST, checksummed_json({"files": files}))


def files_in_manifest(content: bytes, name: str) -> dict[str, File]:
    """Return the files that `content`, the manifest `name`, lists; ValueError if it is altered or damaged."""
    manifest = parse_json(content, name, REMEDY)
    if checksummed_json(manifest).encode() != content:
        raise ValueError(f"{name} is altered (its checksum does not match): {REMEDY}")
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(map(_is_entry, files.values())):
        raise ValueError(
            f"{name} is damaged (the field files does not give the bytes and sha256 of each file): {REMEDY}"
        )
    for file in files:
        path = PurePosixPath(file)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{name} names a file outside the dataset, {file}: {REMEDY}")
    return {file: File(**entry) for file, entry in files.items()}


def _is_entry(value: Any) -> bool:
    """Return whether a JSON value has the fields of a File."""
    return (
        isinstance(value, dict)
        and value.keys() == {"bytes", "sha256"}
        and type(value["bytes"]) is int
        and isinstance(value["sha256"], str)
    )


def is_sound(path: AnyPath, file: File) -> bool:
    """Return whether a file exists and has the size and the SHA-256 of the manifest."""
    return path.is_file() and path.stat().st_size == file.bytes and file_sha256(path) == file.sha256


def problems(folder: AnyPath, progress: Callable[[int], None] = lambda done: None) -> dict[str, str]:
    """Return what is wrong with each file of a dataset, by name; empty if every file is as it was written.

    `progress` is called with the bytes read so far. Raises ValueError if the manifest is missing or altered, because
    then the other files cannot be checked.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise ValueError(f"{path} is missing: {REMEDY}")
    there = files_in(folder)
    files = files_in_manifest(path.read_bytes(), str(path))
    wrong = dict.fromkeys(there.keys() - files.keys(), "extra: the manifest does not list it")
    done = 0
    for name, expected in files.items():
        if name not in there:
            wrong[name] = "missing"
        elif (size := there[name].stat().st_size) != expected.bytes:
            wrong[name] = f"altered: it has {size:,} bytes instead of {expected.bytes:,}"
        elif file_sha256(there[name]) != expected.sha256:
            wrong[name] = "altered: its SHA-256 does not match"
        done += expected.bytes
        progress(done)
    return dict(sorted(wrong.items()))


def files_in(folder: AnyPath) -> dict[str, AnyPath]:
    """Return the files below `folder` except its manifest, by relative name. Broken links are left out."""
    files: dict[str, AnyPath] = {}
    if isinstance(folder, ObjectPath):
        files.update((path.relative_to(folder).as_posix(), path) for path in folder.files_below())
    else:
        found = (path for path in folder.rglob("*") if path.exists() and not path.is_dir())
        files.update((path.relative_to(folder).as_posix(), path) for path in found)
    return {name: files[name] for name in sorted(files, key=PurePosixPath) if name != MANIFEST}
