"""The files of a corpus: from a file, a folder, a glob, an object store, or this Python's standard library."""

import glob
import os
import re
import stat
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

from corpora.formats.compression import SUFFIXES
from corpora.object_store import AnyPath, ObjectPath, as_path

# Suffixes that are read without `--suffix`.
FORMATS = (".txt", ".jsonl", ".parquet", ".arrow")
# Formats by suffix. A file with any other suffix is one text.
_READERS = {
    ".jsonl": ".jsonl",
    ".ndjson": ".jsonl",
    ".csv": ".csv",
    ".tsv": ".csv",
    ".json": ".json",
    ".parquet": ".parquet",
    ".arrow": ".arrow",
}
# Binary tables have their own compression, so .gz, .xz or .zst after these suffixes is not read.
_TABLES = (".parquet", ".arrow")

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}

_TEST_FOLDERS = {"test", "tests", "idle_test"}
_FOREIGN_FOLDERS = {"site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True)
class InputFile:
    """One file of a corpus."""

    path: AnyPath
    split: str | None
    """the split in its name or folder, if any"""


@dataclass(frozen=True)
class Found:
    """The files of a path, folder or glob, and the number of skipped files there, by suffix."""

    files: list[InputFile]
    skipped: Counter[str]


def file_format(path: AnyPath, wanted: Sequence[str] = ()) -> str | None:
    """Return how a file is read: ".txt" (as one text), ".jsonl", ".csv", ".json", ".parquet" or ".arrow".

    None for a file whose suffix is neither one of `FORMATS` nor `wanted`.
    """
    suffix = _own_suffix(path)
    compressed = path.suffix.lower() in SUFFIXES
    if suffix not in (*FORMATS, *wanted) or (compressed and suffix in _TABLES):
        return None
    return _READERS.get(suffix, ".txt")


def _own_suffix(path: AnyPath) -> str:
    """Return the suffix without that of a compression: ".md" for both a.md and a.md.gz."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if suffixes and suffixes[-1] in SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def check_regular(path: AnyPath) -> None:
    """Raise ValueError for anything but a regular file, without opening it: reading a pipe or device may never end."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kinds = {stat.S_ISFIFO: "a named pipe", stat.S_ISSOCK: "a socket", stat.S_ISDIR: "a folder"}
        kind = next((words for test, words in kinds.items() if test(mode)), "a device")
        raise ValueError(f"{path} is {kind}, not a regular file: remove it, or save its content as a file")


def split_of(relative: PurePath) -> str | None:
    """Return the split in a path: the name of a folder, else a word of the file name.

    Examples: `train/a.txt`, `data/valid/b.jsonl`, `wiki.test.txt.xz`, `train-00000-of-00002.parquet`. None for a file
    name with two different splits.
    """
    for folder in relative.parts[:-1]:
        if folder.lower() in SPLIT_NAMES:
            return SPLIT_NAMES[folder.lower()]
    words = re.split(r"[^a-z0-9]+", relative.name.lower())
    splits = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
    return splits.pop() if len(splits) == 1 else None


def is_glob(spec: str) -> bool:
    """Return whether `spec` has a wildcard and is not the path of an existing file or folder."""
    path = as_path(spec)
    name = spec if isinstance(path, Path) else path.key.as_posix()
    return any(character in name for character in "*?[") and not path.exists()


def find_files(spec: str, wanted: Sequence[str] = ()) -> Found:
    """Return the files that `spec` (a file, a folder or a glob, or a URI of one) names, in order of relative path.

    wanted: the suffixes to read in folders and globs, by default `FORMATS`. Raises FileNotFoundError if there is no
    file, and ValueError if no file has such a suffix or one is a pipe or device.
    """
    path = as_path(spec)
    if isinstance(path, Path):
        path = path.expanduser()
    if is_glob(str(path)):
        return _glob_files(str(path), wanted)
    if path.is_dir():
        split = SPLIT_NAMES.get(path.resolve().name.lower())
        found, skipped = _to_read(_paths_below(path), path, wanted)
        if not found:
            raise ValueError(f"the folder {spec} holds no {_formats(wanted)} file{_instead(skipped)}")
        return Found([InputFile(file, split_of(relative) or split) for relative, file in found], skipped)
    if isinstance(path, Path) and not path.exists():
        raise FileNotFoundError(f"{spec} does not exist")
    check_regular(path)
    if file_format(path, wanted) is None:
        suffix = _own_suffix(path)
        remedy = f"if it is text, add --suffix {suffix}" if suffix else "rename it, or convert it to one of these"
        raise ValueError(f"{spec} is not a {_formats(wanted)} file: {remedy}")
    return Found([InputFile(path, split_of(Path(*path.parts[-2:])))], Counter())


def _glob_files(pattern: str, wanted: Sequence[str]) -> Found:
    path = as_path(pattern)
    fixed, paths = _matching(pattern) if isinstance(path, Path) else _matching_objects(path)
    if not paths:
        raise FileNotFoundError(f"nothing matches {pattern}")
    found, skipped = _to_read(paths, fixed, wanted)
    if not found:
        raise ValueError(f"nothing that matches {pattern} is a {_formats(wanted)} file{_instead(skipped)}")
    return Found([InputFile(file, split_of(relative)) for relative, file in found], skipped)


def _matching(pattern: str) -> tuple[Path, list[AnyPath]]:
    """Return the folder before the first wildcard of a glob, and the files that match or are in a matching folder."""
    paths: list[AnyPath] = []
    for match in map(Path, glob.glob(pattern, recursive=True)):  # noqa: PTH207
        if not match.is_dir():
            paths.append(match)
        elif Path(pattern).name != "**":  # "**" also matches the files in the folder
            paths += _paths_below(match)
    return Path(re.split(r"[*?\[]", pattern, maxsplit=1)[0] + "x").parent, paths


def _matching_objects(pattern: ObjectPath) -> tuple[ObjectPath, list[AnyPath]]:
    """Return what `_matching` returns, for a glob in an object store."""
    fixed = pattern
    wildcards: list[str] = []
    while any(character in fixed.key.as_posix() for character in "*?["):
        wildcards.insert(0, fixed.name)
        fixed = fixed.parent
    paths: list[AnyPath] = []
    for path in fixed.files_below():
        parts = path.relative_to(fixed).parts
        for end in range(1, len(parts) + 1):
            if _matches(parts[:end], wildcards) and not any(part.startswith(".") for part in parts[end:]):
                paths.append(path)
                break
    return fixed, paths


def _matches(parts: Sequence[str], wildcards: Sequence[str]) -> bool:
    """Return whether the parts of a path match those of a glob, in which ** matches any number of parts."""
    if not wildcards:
        return not parts
    if wildcards[0] == "**":
        return _matches(parts, wildcards[1:]) or bool(
            parts and not parts[0].startswith(".") and _matches(parts[1:], wildcards)
        )
    if not parts or (parts[0].startswith(".") and not wildcards[0].startswith(".")):
        return False
    return fnmatchcase(parts[0], wildcards[0]) and _matches(parts[1:], wildcards[1:])


def _to_read(
    paths: Iterable[AnyPath], root: AnyPath, wanted: Sequence[str]
) -> tuple[list[tuple[PurePath, AnyPath]], Counter[str]]:
    """Return (relative path, path) of each file to read, in order, and the number of other files by suffix."""
    found: dict[PurePath, AnyPath] = {}
    skipped: dict[AnyPath, str] = {}
    for path in paths:
        suffix = _own_suffix(path)
        if file_format(path, wanted) and suffix in (wanted or FORMATS):
            check_regular(path)
            found[path.relative_to(root)] = path  # type: ignore[arg-type]  # both are paths, or both objects
        else:
            skipped[path] = suffix
    return sorted(found.items(), key=lambda item: item[0].as_posix()), Counter(skipped.values())


def _paths_below(root: AnyPath) -> Iterator[AnyPath]:
    """Yield the paths of all files under `root`; hidden files and folders are left out."""
    if isinstance(root, ObjectPath):
        yield from _objects_below(root)
        return
    seen = set()
    for folder, folders, names in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:  # a link that leads back into the tree
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        # `datasets` leaves its caches beside a saved dataset's own files.
        saved = "state.json" in names
        for name in names:
            if not name.startswith(".") and not (saved and name.startswith("cache-")):
                yield Path(folder) / name


def _objects_below(root: ObjectPath) -> Iterator[ObjectPath]:
    """Yield what `_paths_below` yields, for a folder in an object store."""
    found = list(root.files_below())
    saved = {path.parent for path in found if path.name == "state.json"}
    for path in found:
        hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
        if not hidden and not (path.parent in saved and path.name.startswith("cache-")):
            yield path


def _formats(wanted: Sequence[str]) -> str:
    *most, last = wanted or FORMATS
    return f"{', '.join(most)} or {last}" if most else last


def _instead(skipped: Counter[str]) -> str:
    """Return the end of an error message: the files found instead, and the remedy."""
    if not skipped:
        return ""
    suffix = next((suffix for suffix, _ in skipped.most_common() if suffix), None)
    remedy = f"; if they are text, add --suffix, such as --suffix {suffix}" if suffix else ""
    return f", but {describe_skipped(skipped)}{remedy}"


def describe_skipped(skipped: Mapping[str, int]) -> str:
    """Return file counts by suffix as text, most frequent first: "12 .png, 3 .pdf"."""
    counts = sorted(skipped.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} {suffix or 'without a suffix'}" for suffix, count in counts)


def without_repeats(files: Sequence[InputFile]) -> list[InputFile]:
    """Return each file once, at its first place, so that overlapping specs read no document twice."""
    unique: dict[str, InputFile] = {}
    for file in files:
        unique.setdefault(str(file.path.resolve()), file)
    return list(unique.values())


def standard_library_folder() -> Path:
    """Return the folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def standard_library_files() -> Iterator[Path]:
    """Yield the .py files of the running interpreter's standard library, sorted by their relative POSIX path.

    Folders named test, tests or idle_test, site-packages and dist-packages are left out. Links to folders are not
    followed.
    """
    root = standard_library_folder()
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _TEST_FOLDERS | _FOREIGN_FOLDERS]
        found += [(Path(folder) / name).relative_to(root) for name in names if name.endswith(".py")]
    return (root / relative for relative in sorted(found, key=Path.as_posix))
