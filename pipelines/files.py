"""Atomic writes of files and folders, and strict reads."""

import hashlib
import json
import os
import shutil
import tomllib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizer.formats import strict_json

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


def write_whole(path: Path, text: str) -> None:
    """Replace the content of `path` by `text`; after an error, such as a full disk, the file is unchanged."""
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise naming(error, path) from None


@contextmanager
def whole_file(path: Path, folder: Path | None = None) -> Iterator[Path]:
    """Yield the path of a new file that replaces `path` at the end of the block; after an error it is removed.

    Processes that write the same file at the same time do not disturb each other: the last one stays. The new file is
    in `folder`, by default beside `path`.
    """
    partial = (folder or path.parent) / f"{path.name}.{uuid.uuid4().hex}.partial"
    try:
        yield partial
        with partial.open("rb+") as file:  # Windows syncs no file opened for reading
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise naming(error, path) from None
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


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


def checksummed_json(content: Mapping[str, Any]) -> str:
    """Return `content` as JSON whose last field `checksum` is the SHA-256 of the other fields as canonical JSON.

    A file with this text is unaltered if the JSON value in it gives the same text again.
    """
    rest = {name: value for name, value in content.items() if name != "checksum"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    checksum = hashlib.sha256(canonical.encode()).hexdigest()
    return json.dumps({**rest, "checksum": checksum}, indent=2, allow_nan=False) + "\n"


def refuse_special(path: "AnyPath") -> None:
    """Raise ValueError for a pipe or device, which is then not opened: reading one may never end."""
    try:
        if isinstance(path, Path):
            strict_json.regular_size(path)
    except ValueError as error:
        raise ValueError(f"{path} {error}: remove it, or save its content as a file") from None


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


def naming(error: OSError, path: Path) -> OSError:
    """Return `error` with the name `path`, unless the system named a file."""
    if error.filename is None and error.errno is not None:
        return OSError(error.errno, error.strerror or os.strerror(error.errno), str(path))
    return error


@contextmanager
def whole_folder(out: Path, replaceable: Callable[[Path], bool]) -> Iterator[Path]:
    """Yield an empty folder that replaces `out` at the end of the block; after an error it is removed.

    Leftovers of a killed process are removed. Raises ValueError if another process builds the same folder, or if `out`
    exists and is not `replaceable`.
    """
    partial, old = out.with_name(out.name + ".partial"), out.with_name(out.name + ".old")
    out.parent.mkdir(parents=True, exist_ok=True)
    with locked_file(out.with_name(out.name + ".lock"), f"{out} is being built by another process"):
        if old.exists() and not out.exists():
            # Killed between the two renames below: the previous folder is the only whole one.
            old.rename(out)
        elif old.exists():
            shutil.rmtree(old)  # killed during the removal below; an error here comes before the work
        if out.exists() and not replaceable(out):
            raise ValueError(f"{out} exists already: choose another --out")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir()
            yield partial
            for path in partial.rglob("*"):
                if path.is_file():
                    with path.open("rb+") as file:  # Windows syncs no file opened for reading
                        os.fsync(file.fileno())
            if out.exists():
                out.rename(old)
            try:
                partial.rename(out)
            except OSError:
                if old.exists():
                    old.rename(out)
                raise
            shutil.rmtree(old, ignore_errors=True)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise naming(error, out) from None
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


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
