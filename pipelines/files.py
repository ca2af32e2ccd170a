"""Atomic writes of files and folders (see `tokenizer.formats.whole_files`), and strict reads."""

import hashlib
import json
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizer.formats import strict_json
from tokenizer.formats.whole_files import flush_all, make_folder, naming, publish, whole_file

if TYPE_CHECKING:
    from torch import Tensor

    from corpora.object_store import AnyPath


def place(name: "str | AnyPath") -> "AnyPath":
    """Return the file or folder of a path, or of a URI such as s3://bucket/folder; ValueError for a bad URI."""
    if not isinstance(name, str):
        return name
    if "://" not in name:
        return Path(name)
    from corpora.object_store import as_path  # imports pyarrow

    return as_path(name)


def with_a_name(path: Path) -> Path:
    """Return the absolute path of the working folder ".", which has no name; other paths are returned unchanged."""
    return path if path.name else path.absolute()


def write_whole(path: Path, text: str) -> None:
    """Replace the content of `path` by `text`; after an error, such as a full disk, the file is unchanged."""
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Replace the content of `path` by `value` as JSON; ValueError for NaN and infinity, which JSON lacks."""
    write_whole(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def save_tensors(path: Path, tensors: Mapping[str, "Tensor"], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file with the permissions of a new file; OSError if it cannot be written."""
    # Imports torch.
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.touch()
    mode = path.stat().st_mode  # safetensors makes files that only their owner can read
    try:
        save_file(dict(tensors), path, metadata)
    except SafetensorError as error:
        raise OSError(f"{path} could not be written: {error}") from None
    path.chmod(mode)


def read_tensors(path: Path) -> dict[str, "Tensor"]:
    """Return the tensors of a safetensors file; ValueError if it is missing or damaged."""
    # Imports torch.
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        refuse_special(path)
        tensors: dict[str, Tensor] = load_file(path)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: fetch all files again") from None
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}): fetch it again") from None
    return tensors


def checksummed_json(content: Mapping[str, Any]) -> str:
    """Return `content` as JSON whose last field `checksum` is the SHA-256 of the other fields as canonical JSON.

    A file with this text is unaltered if the JSON value in it gives the same text again.
    """
    rest = {name: value for name, value in content.items() if name != "checksum"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    checksum = hashlib.sha256(canonical.encode()).hexdigest()
    return json.dumps({**rest, "checksum": checksum}, indent=2, allow_nan=False) + "\n"


def refuse_special(path: "AnyPath") -> None:
    """Raise ValueError for a pipe or device instead of opening it, because reading one may never end."""
    try:
        if isinstance(path, Path):
            strict_json.regular_size(path)
    except ValueError as error:
        raise ValueError(f"{path} {error}: remove it, or save its content as a file") from None


def file_sha256(path: "AnyPath") -> str:
    """Return the SHA-256 of a file, read in pieces; ValueError for a pipe or device."""
    refuse_special(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_bytes(path: Path) -> bytes:
    """Return the content of a file; ValueError for a pipe or device."""
    refuse_special(path)
    return path.read_bytes()


def read_json(path: Path, remedy: str, kind: type = dict) -> Any:
    """Return the JSON value in `path`, of type `kind`.

    Raises ValueError, with the remedy, if the file is missing, is not JSON, repeats a name, has a number that JSON
    lacks, or nests too deeply.
    """
    try:
        content = strict_json.read_bytes(path)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: {remedy}") from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged (it {error}): {remedy}") from None
    return parse_json(content, str(path), remedy, kind)


def parse_json(content: bytes, name: str, remedy: str, kind: type = dict) -> Any:
    """Return the JSON value in `content`, of type `kind`; ValueError as in `read_json`, for the file `name`."""
    try:
        value = strict_json.parse_json(content)
    except ValueError as error:
        raise ValueError(f"{name} is damaged (it {error}): {remedy}") from None
    if not isinstance(value, kind):
        expected = "object" if kind is dict else kind.__name__
        raise ValueError(f"{name} is damaged (it does not hold a JSON {expected}): {remedy}")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """Return the TOML document in `path`; ValueError if there is none."""
    try:
        return tomllib.loads(strict_json.read_text(path))
    except RecursionError:
        raise ValueError(f"{path}: not a TOML file: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{path}: not a TOML file: {error}") from None


@contextmanager
def whole_folder(out: Path, replaceable: Callable[[Path], bool]) -> Iterator[Path]:
    """Yield an empty folder that replaces `out` at the end of the block; after an error it is removed.

    Raises ValueError as `unfinished_folder` does, and if `out` exists and is not `replaceable`.
    """
    with unfinished_folder(out) as partial:
        old = out.with_name(out.name + ".old")
        if old.exists() and not out.exists():
            # Killed between the two renames below: the previous folder is the only whole one.
            old.rename(out)
        elif old.exists():
            shutil.rmtree(old)  # killed during the removal below; an error here comes before the work
        if out.exists() and not replaceable(out):
            raise ValueError(f"{out} exists already: choose another `out`")
        yield partial
        flush_all(partial)
        if out.exists():
            out.rename(old)
        try:
            publish(partial, out)
        except OSError:
            if old.exists() and not out.exists():
                old.rename(out)
            raise
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def unfinished_folder(out: Path, name: str = "") -> Iterator[Path]:
    """Yield an empty folder beside `out` for unfinished work on it, which is removed at the end of the block.

    The leftovers of a killed process are removed. Raises ValueError if another process works on the same `out`, which
    the error calls `name`, and for the working folder ".", which cannot be replaced.
    """
    if not out.name:
        raise ValueError(f"`out` is {out}, which cannot be replaced: choose another `out`")
    partial = out.with_name(out.name + ".partial")
    make_folder(out.parent)
    with locked_file(out.with_name(out.name + ".lock"), f"{name or out} is being built by another process"):
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir()
            yield partial
        except OSError as error:
            raise naming(error, out) from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def locked_file(path: Path, refusal: str) -> Iterator[None]:
    """Lock the file `path` for this process, and remove it at the end of the block.

    Raises ValueError(`refusal`) if another process has locked it.
    """
    from filelock import FileLock, Timeout  # takes 20 ms

    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ValueError(refusal) from None
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes no open file
            path.unlink()  # before the release, after which another process can lock the file
        lock.release()


def distinct_names(folders: "Sequence[AnyPath]") -> list[str]:
    """Return the names of `folders`, with as many parent folders as needed to make different folders differ."""
    paths = [folder.resolve() for folder in folders]
    depth = [1] * len(paths)
    while True:
        names = ["/".join(path.parts[-count:]) for path, count in zip(paths, depth, strict=True)]
        clashes = [
            any(name == other and path != there for other, there in zip(names, paths, strict=True))
            for name, path in zip(names, paths, strict=True)
        ]
        if not any(clashes):
            return names
        depth = [count + clash for count, clash in zip(depth, clashes, strict=True)]
