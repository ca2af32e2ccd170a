"""Files and folders that appear whole or not at all, and that survive a power loss once they have appeared.

The order matters: flush the files, then the folders with their names, then rename, then flush the folder of the new
name.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    HAS_LOCKS = False
else:
    HAS_LOCKS = True

# Errors of file systems that cannot flush a folder, and of a folder that may be written but not read.
_NO_FOLDER_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file that replaces `path` at the end of the block; after an error it is removed.

    Creates the folder of `path` if needed. The temporary file of a killed process is overwritten by the next one.
    Processes that write the same file at the same time take turns. An OSError names `path`, even if the disk is full.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        make_folder(path.parent)
        with _turn(partial):
            try:
                yield partial
                publish(partial, path)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise naming(error, path, instead_of=partial) from None


def publish(partial: Path, path: Path) -> None:
    """Give a finished file or folder its final name. It then survives a power loss."""
    flush_all(partial)
    partial.replace(path)
    flush(path.parent)


def flush_all(path: Path) -> None:
    """Flush a file, or the files in a folder and then the folders."""
    below = sorted(path.rglob("*"), reverse=True) if path.is_dir() else []  # the deepest first
    for part in (*sorted(below, key=Path.is_dir), path):
        flush(part)


def flush(path: Path) -> None:
    """Write the content of a file, or the names in a folder, through to the disk."""
    is_folder = path.is_dir()
    if is_folder and not hasattr(os, "O_DIRECTORY"):
        return  # Windows opens no folders
    try:
        handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)  # Windows syncs no file opened for reading
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if not (is_folder and error.errno in _NO_FOLDER_FLUSH):
            raise


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, so that they survive a power loss."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        flush(made.parent)


def naming(error: OSError, path: Path, instead_of: Path | None = None) -> OSError:
    """Return `error` with the name `path`, unless the system named a file other than `instead_of`."""
    if error.errno is not None and error.filename in (None, str(instead_of)):
        return OSError(error.errno, error.strerror or os.strerror(error.errno), str(path))
    return error


@contextmanager
def _turn(partial: Path) -> Iterator[None]:
    """Wait until no other process writes the temporary file `partial`, and then hold it."""
    if not HAS_LOCKS:
        yield  # Windows renames no open file
        return
    while True:
        with partial.open("ab") as file:
            with suppress(OSError):  # some file systems have no locks
                fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(partial, file.fileno()):
                yield
                return


def _is_at(path: Path, descriptor: int) -> bool:
    """Return whether a file still has the name `path`: the process before may have renamed or removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
