"""The files of a corpus: from a file, a folder, a glob, an object store, or this Python's standard library."""

import errno
import glob
import os
import re
import stat
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path, PurePath

from corpora.formats.compression import SUFFIXES
from corpora.object_store import AnyPath, ObjectPath, Stat, as_path
from corpora.warn import warn

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
    ".npy": ".npy",
}
# Binary tables have their own compression, so .gz, .xz or .zst after these suffixes is not read.
_TABLES = (".parquet", ".arrow", ".npy")

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}

_SHOWN_LINKS = 5

_TEST_FOLDERS = {"test", "tests", "idle_test"}
_FOREIGN_FOLDERS = {"site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True)
class InputFile:
    """One file of a corpus."""

    path: AnyPath
    split: str | None
    """the split in its name or folder, if any"""

    format: str
    """as in `file_format`"""

    size: int
    """in bytes, when it was found"""


@dataclass(frozen=True)
class Found:
    """The files of a path, folder or glob, and the number of skipped files there, by suffix."""

    files: list[InputFile]
    skipped: Counter[str]


def file_format(path: AnyPath, wanted: Sequence[str] = ()) -> str | None:
    """Return how a file is read: ".txt" (as one text), ".jsonl", ".csv", ".json", ".parquet", ".arrow" or
    ".npy".

    None for a file whose suffix is neither one of `FORMATS` nor `wanted`.
    """
    return _format_of(own_suffix(path), path, wanted)


def _format_of(suffix: str, path: AnyPath, wanted: Sequence[str]) -> str | None:
    """Return the format of a file with `suffix`, as `file_format`."""
    if suffix not in FORMATS and suffix not in wanted:
        return None
    if suffix in _TABLES and path.suffix.lower() in SUFFIXES:
        return None
    return _READERS.get(suffix, ".txt")


def own_suffix(path: AnyPath) -> str:
    """Return the suffix without that of a compression: ".md" for both a.md and a.md.gz."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if suffixes and suffixes[-1] in SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def regular_size(path: AnyPath) -> int:
    """Return the size of a file without opening it. ValueError for a pipe or device: reading one may never end."""
    facts = path.stat()
    _check_kind(path, facts)
    return facts.st_size


def _check_kind(path: AnyPath, facts: os.stat_result | Stat) -> None:
    if not stat.S_ISREG(facts.st_mode):
        kinds = {stat.S_ISFIFO: "a named pipe", stat.S_ISSOCK: "a socket", stat.S_ISDIR: "a folder"}
        kind = next((words for test, words in kinds.items() if test(facts.st_mode)), "a device")
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


def divided(files: Sequence[InputFile]) -> list[InputFile]:
    """Return the files, with their splits read below their common folder if the folder's own name hid them.

    Example: `data/test/train/a.txt` and `data/test/dev/a.txt` are train and validation, not both test. Files keep their
    split unless all of them have one below the common folder, and train is among at least two such splits.
    """
    if len({file.split for file in files}) == 1 and files[0].split:
        folders = {file.path.parts[:-1] for file in files}
        levels = zip(min(folders), max(folders), strict=False)
        common = sum(1 for _ in takewhile(lambda names: names[0] == names[1], levels))
        splits = [split_of(PurePath(*file.path.parts[common:])) for file in files]
        if "train" in splits and None not in splits and len(set(splits)) > 1:
            return [replace(file, split=split) for file, split in zip(files, splits, strict=True)]
    return list(files)


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
        found = _to_read(_without_caches(_paths_below(path)), path, wanted, path.resolve().name)
        if not found.files:
            raise ValueError(f"the folder {spec} holds no {_formats(wanted)} file{_instead(found.skipped)}")
        return found
    if isinstance(path, Path) and not path.exists():
        if path.is_symlink():
            raise ValueError(f"{_arrow(path)} is a broken or circular link: repair it, or name another file")
        raise FileNotFoundError(f"{spec} does not exist")
    size = regular_size(path)
    form = file_format(path, wanted)
    if form is None:
        suffix = own_suffix(path)
        remedy = f"if it is text, add `suffix='{suffix}'`" if suffix else "rename it, or convert it to one of these"
        raise ValueError(f"{spec} is not a {_formats(wanted)} file: {remedy}")
    return Found([InputFile(path, split_of(Path(*path.parts[-2:])), form, size)], Counter())


def _glob_files(pattern: str, wanted: Sequence[str]) -> Found:
    path = as_path(pattern)
    fixed, paths = _matching(pattern) if isinstance(path, Path) else _matching_objects(path)
    if not paths:
        raise FileNotFoundError(f"nothing matches {pattern}")
    found = _to_read(paths if path.name.startswith("cache-") else _without_caches(paths), fixed, wanted, fixed.name)
    if not found.files:
        raise ValueError(f"nothing that matches {pattern} is a {_formats(wanted)} file{_instead(found.skipped)}")
    return found


def _matching(pattern: str) -> tuple[Path, list[AnyPath]]:
    """Return the folder before the first wildcard of a glob, and the files that match or are in a matching folder."""
    paths: list[AnyPath] = []
    # `glob` goes around circular links dozens of times, so it gets only the parts before "**".
    parts = Path(pattern).parts
    stars = parts.index("**") if "**" in parts else len(parts)
    for match in map(Path, glob.glob(str(Path(*parts[:stars])))):  # noqa: PTH207
        if stars < len(parts):
            for path in _paths_below(match, everything=any(part.startswith(".") for part in parts[stars:])):
                if _is_matched(path.parts[len(match.parts) :], parts[stars:]):
                    paths.append(path)
        elif match.is_dir():
            paths += _paths_below(match)
        else:
            paths.append(match)
    return Path(re.split(r"[*?\[]", pattern, maxsplit=1)[0] + "x").parent, paths


def _matching_objects(pattern: ObjectPath) -> tuple[ObjectPath, list[AnyPath]]:
    """Return what `_matching` returns, for a glob in an object store."""
    fixed = pattern
    wildcards: list[str] = []
    while any(character in fixed.key.as_posix() for character in "*?["):
        wildcards.insert(0, fixed.name)
        fixed = fixed.parent
    return fixed, [path for path in fixed.files_below() if _is_matched(path.relative_to(fixed).parts, wildcards)]


def _is_matched(parts: Sequence[str], wildcards: Sequence[str]) -> bool:
    """Return whether the parts of a glob match a file, or a folder above it in which the file is not hidden."""
    return any(
        _matches(parts[:end], wildcards) and not any(part.startswith(".") for part in parts[end:])
        for end in range(1, len(parts) + 1)
    )


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


def _to_read(paths: Iterable[AnyPath], root: AnyPath, wanted: Sequence[str], name: str) -> Found:
    """Return the files to read, in order of their path relative to `root`. Warns about broken and circular links.

    `name`: that of `root`, which may name the split of its files.
    """
    files: dict[str, InputFile] = {}
    skipped: dict[AnyPath, str] = {}
    broken: set[Path] = set()
    for path in paths:
        suffix = own_suffix(path)
        form = _format_of(suffix, path, wanted) if suffix in (wanted or FORMATS) else None
        facts = _facts(path)
        if facts is None or stat.S_ISDIR(facts.st_mode):
            if isinstance(path, Path) and path.is_symlink():  # otherwise removed since it was listed
                broken.add(path)
        elif form is None:
            skipped[path] = suffix
        else:
            _check_kind(path, facts)
            relative = path.relative_to(root)  # type: ignore[arg-type]  # both are paths, or both objects
            split = split_of(PurePath(name, *relative.parts))
            files[relative.as_posix()] = InputFile(path, split, form, facts.st_size)
    if broken:
        _warn_about_links(sorted(broken))
    return Found([file for _, file in sorted(files.items())], Counter(skipped.values()))


def _facts(path: AnyPath) -> os.stat_result | Stat | None:
    """Return the facts about a file; None if it does not exist, such as the target of a broken or circular link."""
    try:
        return path.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return None
        raise


def _warn_about_links(links: Sequence[Path]) -> None:
    shown = [
        *map(_arrow, links[:_SHOWN_LINKS]),
        *([f"{len(links) - _SHOWN_LINKS:,} more"] * (len(links) > _SHOWN_LINKS)),
    ]
    what = "1 broken or circular link" if len(links) == 1 else f"{len(links):,} broken or circular links"
    warn(f"left out {what}: {', '.join(shown)}")


def _arrow(link: Path) -> str:
    return f"{link} -> {link.readlink()}"


def _paths_below(root: AnyPath, everything: bool = False) -> Iterator[AnyPath]:
    """Yield the paths of all files under `root`. Hidden files are left out, unless `everything`.

    Links to a folder that contains them are yielded too, and not followed. Raises OSError for a folder that cannot be
    listed.
    """
    if isinstance(root, ObjectPath):
        yield from _objects_below(root)
        return
    seen = set()
    for folder, folders, names in os.walk(root, onerror=_raise_unless_removed, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:  # a link that leads back into the tree
            folders.clear()
            parent = os.path.realpath(Path(folder).parent)
            if os.path.commonpath([parent, real]) == real:
                yield Path(folder)
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if everything or not name.startswith("."))
        for name in names:
            if everything or not name.startswith("."):
                yield Path(folder) / name


def _raise_unless_removed(error: OSError) -> None:
    """Raise the error of a folder that cannot be listed, unless the folder was removed since it was found.

    Only root can list the folder lost+found of a disk, which holds no text.
    """
    if error.errno != errno.ENOENT and Path(error.filename).name != "lost+found":
        raise error


def _objects_below(root: ObjectPath) -> Iterator[ObjectPath]:
    """Yield what `_paths_below` yields, for a folder in an object store."""
    for path in root.files_below():
        if not any(part.startswith(".") for part in path.relative_to(root).parts):
            yield path


def _without_caches(paths: Iterable[AnyPath]) -> Iterator[AnyPath]:
    """Yield the paths without the files cache-* that `datasets` writes into the folder of a saved dataset."""
    saved: dict[AnyPath, bool] = {}
    for path in paths:
        if path.name.startswith("cache-"):
            folder = path.parent
            if folder not in saved:
                saved[folder] = (folder / "state.json").exists()
            if saved[folder]:
                continue
        yield path


def _formats(wanted: Sequence[str]) -> str:
    *most, last = wanted or FORMATS
    return f"{', '.join(most)} or {last}" if most else last


def _instead(skipped: Counter[str]) -> str:
    """Return the end of an error message: the files found instead, and the remedy."""
    if not skipped:
        return ""
    suffix = next((suffix for suffix, _ in skipped.most_common() if suffix), None)
    remedy = f"; if they are text, add `suffix`, such as `suffix='{suffix}'`" if suffix else ""
    return f", but {describe_skipped(skipped)}{remedy}"


def describe_skipped(skipped: Mapping[str, int]) -> str:
    """Return file counts by suffix as text, most frequent first: "12 .png, 3 .pdf"."""
    counts = sorted(skipped.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} {suffix or 'without a suffix'}" for suffix, count in counts)


def without_repeats(files: Sequence[InputFile]) -> list[InputFile]:
    """Return each file once, at its first place, so that overlapping specs read no document twice."""
    unique: dict[str, InputFile] = {}
    folders: dict[Path, str] = {}  # resolving a path looks at each folder in it
    for file in files:
        path = file.path
        if isinstance(path, ObjectPath) or path.is_symlink():
            real = str(path.resolve())
        else:
            folder = path.parent
            if folder not in folders:
                folders[folder] = os.path.realpath(folder)
            real = f"{folders[folder]}{os.sep}{path.name}"
        unique.setdefault(real, file)
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
    sources = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _TEST_FOLDERS | _FOREIGN_FOLDERS]
        sources += [(Path(folder) / name).relative_to(root) for name in names if name.endswith(".py")]
    return (root / relative for relative in sorted(sources, key=Path.as_posix))
