"""Which files a person means: a file, a folder, a glob, or this Python's own standard library."""

import glob
import os
import re
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from corpora.compression import SUFFIXES

FORMATS = (".txt", ".jsonl", ".parquet", ".arrow")
_COMPRESSED_FORMATS = (".txt", ".jsonl")

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

    path: Path
    split: str | None
    """the own split that its name or folder says, if any"""


def file_format(path: Path) -> str | None:
    """ ".txt", ".jsonl", ".parquet" or ".arrow"; None for a file that is none of them."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if suffixes and suffixes[-1] in FORMATS:
        return suffixes[-1]
    if len(suffixes) == 2 and suffixes[1] in SUFFIXES and suffixes[0] in _COMPRESSED_FORMATS:
        return suffixes[0]
    return None


def split_of(relative: Path) -> str | None:
    """The split that a path says: by a folder named so, else by one word of the file's name.

    `train/a.txt`, `data/valid/b.jsonl`, `wiki.test.txt.xz`, `train-00000-of-00002.parquet`. A name that says two
    different splits says none.
    """
    for folder in relative.parts[:-1]:
        if folder.lower() in SPLIT_NAMES:
            return SPLIT_NAMES[folder.lower()]
    words = re.split(r"[^a-z0-9]+", relative.name.lower())
    said = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
    return said.pop() if len(said) == 1 else None


def is_glob(spec: str) -> bool:
    return any(character in spec for character in "*?[") and not Path(spec).exists()


def find_files(spec: str) -> list[InputFile]:
    """The files that `spec` (a file, a folder or a glob) names, in order of their relative path.

    Raises FileNotFoundError where nothing is there, ValueError where nothing there is of a known format.
    """
    path = Path(spec).expanduser()
    if is_glob(str(path)):
        return _glob_files(str(path))
    if path.is_dir():
        split = SPLIT_NAMES.get(path.resolve().name.lower())
        files = [InputFile(path / relative, split_of(relative) or split) for relative in _walk(path)]
        if not files:
            raise ValueError(f"the folder {spec} holds no {_formats()} file")
        return files
    if not path.exists():
        raise FileNotFoundError(f"{spec} does not exist")
    if file_format(path) is None:
        raise ValueError(f"{spec} is not a {_formats()} file: rename it, or convert it to one of these")
    return [InputFile(path, split_of(Path(*path.parts[-2:])))]


def _glob_files(pattern: str) -> list[InputFile]:
    matches = sorted(Path(match) for match in glob.glob(pattern, recursive=True))  # noqa: PTH207
    if not matches:
        raise FileNotFoundError(f"nothing matches {pattern}")
    fixed = Path(re.split(r"[*?\[]", pattern, maxsplit=1)[0] + "x").parent
    found = []
    for match in matches:
        inside = [match / relative for relative in _walk(match)] if match.is_dir() else [match]
        found += [path for path in inside if file_format(path)]
    if not found:
        raise ValueError(f"nothing that matches {pattern} is a {_formats()} file")
    relatives = {path.relative_to(fixed): path for path in found}
    return [InputFile(relatives[r], split_of(r)) for r in sorted(relatives, key=Path.as_posix)]


def _walk(root: Path) -> list[Path]:
    """Relative paths of the known files under `root`, by code point; hidden files and folders are left out."""
    found, seen = [], set()
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
            cache = saved and name.startswith("cache-")
            if not name.startswith(".") and not cache and file_format(Path(name)):
                found.append((Path(folder) / name).relative_to(root))
    return sorted(found, key=Path.as_posix)


def _formats() -> str:
    return f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"


def without_repeats(files: Sequence[InputFile]) -> list[InputFile]:
    """Each file once, where it first stands: overlapping specs do not read a document twice."""
    unique: dict[str, InputFile] = {}
    for file in files:
        unique.setdefault(os.path.realpath(file.path), file)
    return list(unique.values())


def standard_library_folder() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def standard_library_files() -> Iterator[Path]:
    """The .py files of the running interpreter's standard library, by code point of their relative POSIX path.

    Left out are folders named test, tests or idle_test, site-packages and dist-packages. Links to folders are
    not followed.
    """
    root = standard_library_folder()
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _TEST_FOLDERS | _FOREIGN_FOLDERS]
        found += [(Path(folder) / name).relative_to(root) for name in names if name.endswith(".py")]
    return (root / relative for relative in sorted(found, key=Path.as_posix))
