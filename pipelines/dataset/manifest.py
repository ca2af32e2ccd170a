"""The manifest of a dataset: the size and the SHA-256 of each of its files, in manifest.json."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelines.dataset.arrow import file_sha256
from pipelines.dataset.reader import REMEDY, data_files
from pipelines.files import checksummed_json, read_json, write_whole

MANIFEST = "manifest.json"


def write_manifest(folder: Path, info: dict[str, Any]) -> None:
    """Write the manifest of a new dataset; all other files must exist already.

    The checksums of Arrow files are taken from `info`, the content of dataset.json.
    """
    known = {
        f"{split}/{file.name}": file.sha256 for split, entry in info["splits"].items() for file in data_files(entry)
    }
    files = {
        name: {"bytes": path.stat().st_size, "sha256": known.get(name) or file_sha256(path)}
        for name, path in _files_in(folder).items()
    }
    write_whole(folder / MANIFEST, checksummed_json({"files": files}))


def problems(folder: Path, progress: Callable[[int], None] = lambda done: None) -> dict[str, str]:
    """Return what is wrong with each file of a dataset, by name; empty if every file is as it was written.

    `progress` is called with the bytes read so far. Raises ValueError if the manifest is missing or altered, because
    then the other files cannot be checked.
    """
    path = folder / MANIFEST
    manifest = read_json(path, REMEDY)
    if checksummed_json(manifest).encode() != path.read_bytes():
        raise ValueError(f"{path} is altered (its checksum does not match): {REMEDY}")
    there = _files_in(folder)
    found = dict.fromkeys(there.keys() - manifest["files"].keys(), "extra: the manifest does not list it")
    done = 0
    for name, expected in manifest["files"].items():
        if name not in there:
            found[name] = "missing"
        elif (size := there[name].stat().st_size) != expected["bytes"]:
            found[name] = f"altered: it has {size:,} bytes instead of {expected['bytes']:,}"
        elif file_sha256(there[name]) != expected["sha256"]:
            found[name] = "altered: its SHA-256 does not match"
        done += expected["bytes"]
        progress(done)
    return dict(sorted(found.items()))


def _files_in(folder: Path) -> dict[str, Path]:
    """Return the files below `folder` except its manifest, by relative name."""
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if not path.is_dir()}
    return {name: path for name, path in paths.items() if name != MANIFEST}
