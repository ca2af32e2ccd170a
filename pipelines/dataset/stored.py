"""Datasets in object stores: uploaded once they are built, and read from local copies.

An upload writes manifest.json last, so a dataset with a manifest is complete. Until then manifest.partial.json lists
its files. A repeated upload skips files that are already there.

A local copy is in the cache folder, under the SHA-256 of manifest.json, so a dataset that changes in the store gets a
new copy. Every process checks each file against the manifest, and fetches damaged files again.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import TypeVar

from corpora.object_store import AnyPath, ObjectPath
from pipelines.cli.display import Bar
from pipelines.cli.waiting import doing
from pipelines.dataset.dataset_manifest import MANIFEST, File, files_in_manifest, is_sound
from pipelines.dataset.reader import REMEDY
from pipelines.files import unfinished_folder, whole_folder, with_a_name
from tokenizer.formats.records import folder_of_records
from tokenizer.formats.whole_files import whole_file

T = TypeVar("T")
INCOMPLETE = "manifest.partial.json"
_AT_ONCE = 8  # files
_PIECE_BYTES = 8 << 20
_Identity = tuple[int, int, int]


@dataclass(frozen=True)
class Upload:
    """A local file to write to an object store."""

    file: Path
    to: ObjectPath
    bytes: int


Send = Callable[[str, Sequence[Upload]], None]
"""Uploads files; the string is the label of the progress bar"""


def local_copy(dataset: ObjectPath) -> Path:
    """Return the folder of a verified copy of a dataset in an object store. Fetches missing and damaged files.

    Raises ValueError if the dataset is incomplete or a file in the store differs from its manifest.
    """
    from filelock import FileLock  # takes 20 ms

    if not (dataset / MANIFEST).exists():
        if (dataset / INCOMPLETE).exists():
            raise ValueError(
                f"{dataset} is incomplete: its upload was interrupted; run the same bytelm build-dataset again"
            )
        raise ValueError(
            f"{dataset} is not a dataset: it has no {MANIFEST}; check the names of bucket and folder, or build it with "
            f"bytelm build-dataset --out {dataset}"
        )
    content = (dataset / MANIFEST).read_bytes()
    files = files_in_manifest(content, str(dataset / MANIFEST))
    folder = cache_folder(dataset) / "datasets" / hashlib.sha256(content).hexdigest()[:32]
    folder.mkdir(parents=True, exist_ok=True)
    # Processes that find the same file damaged fetch it once: the first replaces it, and the others check it again.
    while unsound := _unsound(folder, files):
        doing(f"waiting for another process to fetch {dataset}")
        with FileLock(folder.with_name(folder.name + ".lock"), thread_local=False):
            for leftover in folder.rglob("*.partial"):
                leftover.unlink()
            unchanged = [name for name, identity in unsound.items() if _identity(folder / name) == identity]
            _fetch(dataset, folder, {name: files[name] for name in unchanged})
    return folder


def _unsound(folder: Path, files: Mapping[str, File]) -> dict[str, _Identity | None]:
    """Return the names of missing and damaged files, each with the identity of the file that was checked."""
    identities = {}
    for name, file in files.items():
        identity = _identity(folder / name)
        if not is_sound(folder / name, file):
            identities[name] = identity
    return identities


def cache_folder(dataset: ObjectPath) -> Path:
    """Return the user's cache folder; ValueError if BYTELM_CACHE turns it off."""
    folder = folder_of_records()
    if folder is None:
        raise ValueError(f"{dataset} needs a local copy, but BYTELM_CACHE is empty: set it to a folder, or unset it")
    return folder


def _staging_folder(out: ObjectPath) -> Path:
    """Return the local folder in which a dataset is built before its upload to `out`."""
    return cache_folder(out) / "builds" / hashlib.sha256(str(out).encode()).hexdigest()[:32]


def new_dataset(out: AnyPath, overwrite: bool, send_all: Send | None = None) -> AbstractContextManager[Path]:
    """Return a context with an empty folder, which becomes the dataset `out` at the end of the block.

    `send_all` uploads files to an object store, by default from this machine. Raises ValueError if `out` exists, unless
    it is a dataset and `overwrite` is true.
    """
    if isinstance(out, Path):
        return whole_folder(out, lambda folder: overwrite and (folder / "dataset.json").is_file())
    return _uploaded_folder(out, overwrite, send_all or _send_from_here)


def work_folder(out: AnyPath) -> Path:
    """Return the local folder for the unfinished work on the dataset `out`."""
    folder = with_a_name(out) if isinstance(out, Path) else _staging_folder(out)
    return folder.with_name(folder.name + ".ranges")


def refuse_existing(out: AnyPath, overwrite: bool) -> None:
    """Raise ValueError if `out` exists, unless it is a dataset and `overwrite` is true, or an interrupted upload."""
    names = {MANIFEST} if isinstance(out, Path) and out.exists() else set()
    if isinstance(out, ObjectPath):
        names = {path.relative_to(out).as_posix() for path in out.files_below()}
        if not names and not out.root.exists():
            raise ValueError(f"{out}: there is no such bucket: check its name, or create it")
    if MANIFEST in names and not (overwrite and (out / "dataset.json").is_file()):
        raise ValueError(f"{out} exists already: choose another `out` (or replace a dataset with `overwrite`)")
    if names and not names & {MANIFEST, INCOMPLETE}:
        raise ValueError(f"{out} holds other objects, such as {min(names)}: choose another `out`, or remove them")


@contextmanager
def _uploaded_folder(out: ObjectPath, overwrite: bool, send_all: Send) -> Iterator[Path]:
    """Yield an empty local folder for a dataset, which is uploaded to `out` at the end of the block, and removed."""
    refuse_existing(out, overwrite)
    with unfinished_folder(_staging_folder(out), str(out)) as folder:
        yield folder
        upload(folder, out, send_all)


def upload(folder: Path, out: ObjectPath, send_all: Send) -> None:
    """Upload the dataset in `folder` to `out` with `send_all`. An existing dataset is replaced."""
    content = (folder / MANIFEST).read_bytes()
    files = files_in_manifest(content, str(folder / MANIFEST))
    sizes = {path.relative_to(out).as_posix(): path.stat().st_size for path in out.files_below()}
    whole = MANIFEST in sizes
    before = _list(out / (MANIFEST if whole else INCOMPLETE))
    if whole:  # until the end, `out` counts as an interrupted upload
        (out / INCOMPLETE).write_bytes((out / MANIFEST).read_bytes())
        (out / MANIFEST).unlink()
    # Every file of a complete dataset is replaced, because --overwrite also repairs damaged files.
    kept = {name for name, file in before.items() if not whole and file == files.get(name)}
    for name in before.keys() & sizes.keys() - kept:
        (out / name).unlink()
    (out / INCOMPLETE).write_bytes(content)
    uploaded = {name for name in kept if sizes.get(name) == files[name].bytes}
    here = folder.absolute()
    left = [Upload(here / name, out / name, file.bytes) for name, file in files.items() if name not in uploaded]
    send_all(f"uploading {out}", left)
    (out / MANIFEST).write_bytes(content)
    (out / INCOMPLETE).unlink()


def send(one: Upload, advance: Callable[[int], None] = lambda size: None) -> int:
    """Write a file to an object store in one request or multipart upload, and return its size."""
    with one.file.open("rb") as file:
        one.to.write(_pieces(file.read, advance))
    return one.bytes


def _send_from_here(label: str, uploads: Sequence[Upload]) -> None:
    """Upload files from this machine, several at a time."""
    _in_parallel(label, send, {each: each.bytes for each in uploads})


def _list(manifest: ObjectPath) -> dict[str, File]:
    """Return the files in a manifest; none if it is missing or altered."""
    try:
        return files_in_manifest(manifest.read_bytes(), str(manifest)) if manifest.is_file() else {}
    except ValueError:
        return {}


def _fetch(dataset: ObjectPath, folder: Path, files: Mapping[str, File]) -> None:
    """Fetch files of a dataset into its local copy; ValueError if one differs from the manifest."""

    def fetch(name: str, advance: Callable[[int], None]) -> None:
        path, digest = folder / name, hashlib.sha256()
        with whole_file(path) as partial:
            with (dataset / name).open() as source, partial.open("wb") as file:
                for piece in _pieces(source.read, advance):
                    digest.update(piece)
                    file.write(piece)
            if (partial.stat().st_size, digest.hexdigest()) != files[name]:
                raise ValueError(
                    f"{dataset / name} is altered: its size or SHA-256 is not that in {MANIFEST}; {REMEDY}"
                )

    _in_parallel(f"fetching {dataset}", fetch, {name: file.bytes for name, file in files.items()})


def _pieces(read: Callable[[int], bytes], advance: Callable[[int], None]) -> Iterator[bytes]:
    while piece := read(_PIECE_BYTES):
        yield piece
        advance(len(piece))


def _in_parallel(label: str, transfer: Callable[[T, Callable[[int], None]], object], files: Mapping[T, int]) -> None:
    """Call transfer(file, advance) for each file, several at a time. Each advance(n) reports n more bytes.

    `files`: the size of each file in bytes.
    """
    if not files:
        return
    stopped, lock, done = Event(), Lock(), 0
    with Bar(label, sum(files.values()), "B") as bar, ThreadPoolExecutor(_AT_ONCE) as pool:

        def advance(size: int) -> None:
            nonlocal done
            if stopped.is_set():
                raise InterruptedError("another transfer has failed")
            with lock:
                done += size
                bar.update(done)

        try:
            for _ in pool.map(lambda file: transfer(file, advance), files):
                pass
        except BaseException:
            stopped.set()
            raise


def _identity(path: Path) -> _Identity | None:
    """Return the inode, size and modification time of a file, None if there is none. A replaced file differs."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        return None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns
