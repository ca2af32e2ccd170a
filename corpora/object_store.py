"""Files of object stores (S3, GCS, Azure, HDFS) by URI, with the methods of `pathlib.Path` that readers use.

`pyarrow.fs` finds the endpoint, region and credentials. For S3 it reads the environment (AWS_ENDPOINT_URL, AWS_REGION,
AWS_ACCESS_KEY_ID, AWS_PROFILE) and ~/.aws. Parameters in the URI take precedence:
s3://bucket/folder?endpoint_override=http://localhost:9000.
"""

import io
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pyarrow as pa

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
_URI = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://(?P<authority>[^/?]*)(?P<key>.*?)(?P<query>\?[a-z_]+=.*)?", re.S
)

# Large enough that a request spends more time on the transfer than on the round trip.
_REQUEST_BYTES = 8 << 20

# Error codes of the AWS SDK for wrong, expired or insufficient credentials.
_REFUSED = re.compile("ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|EXPIRED_TOKEN|INVALID_CLIENT_TOKEN")


class ObjectStoreError(OSError):
    """An object is missing, or its store does not answer or refuses. The message names the URI and the remedy."""


class Stat(NamedTuple):
    """Facts about an object, as in `os.stat_result`."""

    st_size: int
    st_mtime_ns: int
    st_mode: int


class ObjectPath:
    """A file or folder of an object store. It pickles as its URI, with its size and modification time once known.

    Its methods raise ObjectStoreError for a missing object or bucket, refused credentials and a store that does not
    answer.
    """

    def __init__(self, uri: str) -> None:
        """Raises ValueError for a URI of another scheme, without a bucket, or with a password."""
        match = _URI.fullmatch(uri)
        scheme = match["scheme"].lower() if match else ""
        if match is None or scheme not in SCHEMES:
            raise ValueError(
                f"{uri} is not in a supported object store: use {', '.join(f'{s}://' for s in SCHEMES)}, or download "
                "the file first"
            )
        self._root, self._query = f"{scheme}://{match['authority']}", match["query"] or ""
        if ":" in match["authority"].rpartition("@")[0] or "secret" in self._query:
            raise ValueError(
                f"{scheme}://...@{match['authority'].rpartition('@')[2]} has a password in its URI, which would be "
                "written to logs: give it in the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)"
            )
        if not match["authority"] and scheme not in ("hdfs", "viewfs"):
            raise ValueError(f"{uri} names no bucket: write {scheme}://BUCKET/FOLDER")
        self._key = "/".join(part for part in match["key"].split("/") if part)
        self._facts: Stat | None = None

    def __str__(self) -> str:
        return f"{self._root}/{self._key}{self._query}" if self._key else f"{self._root}{self._query}"

    def __repr__(self) -> str:
        return f"ObjectPath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectPath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __truediv__(self, relative: str | PurePosixPath) -> "ObjectPath":
        return self._with_key(f"{self._key}/{relative}")

    def _with_key(self, key: str, facts: Stat | None = None) -> "ObjectPath":
        path = ObjectPath(f"{self._root}/")
        path._key, path._query, path._facts = key.strip("/"), self._query, facts
        return path

    @property
    def key(self) -> PurePosixPath:
        """The path within the bucket or file system."""
        return PurePosixPath(self._key)

    @property
    def name(self) -> str:
        return self.key.name or self._root.partition("://")[2]

    @property
    def suffix(self) -> str:
        return self.key.suffix

    @property
    def suffixes(self) -> list[str]:
        return self.key.suffixes

    @property
    def parts(self) -> tuple[str, ...]:
        return (self._root, *self.key.parts)

    @property
    def root(self) -> "ObjectPath":
        """The bucket or file system."""
        return self._with_key("")

    @property
    def parent(self) -> "ObjectPath":
        return self._with_key("/".join(self.key.parts[:-1]))

    def relative_to(self, folder: "ObjectPath") -> PurePosixPath:
        return self.key.relative_to(folder.key)

    def resolve(self) -> "ObjectPath":
        return self

    def absolute(self) -> "ObjectPath":
        return self

    def stat(self) -> Stat:
        """Return the size and modification time. Only the first call sends a request."""
        if self._facts is None:
            info = self._info()
            if info.type.name == "NotFound":
                raise self._missing()
            self._facts = _facts(info)
        return self._facts

    def exists(self) -> bool:
        return bool(self._info().type.name != "NotFound")

    def is_dir(self) -> bool:
        return bool(self._info().type.name == "Directory")

    def is_file(self) -> bool:
        return bool(self._info().type.name == "File")

    def _info(self) -> Any:
        with self._explain() as (store, path):
            return store.get_file_info(path)

    def files_below(self) -> Iterator["ObjectPath"]:
        """Yield all files in this folder and the folders below it, in no order; none if there is no such folder."""
        from pyarrow.fs import FileSelector

        with self._explain() as (store, path):
            found = store.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
        for info in found:
            if info.type.name == "File":
                yield self._with_key(f"{self._key}/{info.path[len(path) :].strip('/')}", _facts(info))

    def open(self, mode: str = "rb") -> io.BufferedReader:
        """Open the file for buffered, seekable reading, in requests of 8 MB."""
        assert mode == "rb", "objects are written whole"
        return io.BufferedReader(_ObjectReader(self), _REQUEST_BYTES)

    def open_raw(self) -> io.RawIOBase:
        """Open the file for reading, with one request for each call of `read`."""
        return _ObjectReader(self)

    def read_bytes(self) -> bytes:
        with self.open() as file:
            return file.read()

    def write(self, pieces: Iterable[bytes]) -> None:
        """Write the file, which appears whole or, after an error, not at all."""
        with self._explain() as (store, path):
            stream = store.open_output_stream(path)
            try:
                for piece in pieces:
                    stream.write(piece)
                stream.close()
            except BaseException:
                # pyarrow cannot abort an upload: closing the stream completes a truncated object. This is safe, because
                # the object is deleted at once. If that fails, its size differs from the size in the manifest, which is
                # uploaded last. A killed process completes no object.
                with suppress(OSError):
                    stream.close()
                    store.delete_file(path)
                raise

    def write_bytes(self, content: bytes) -> None:
        self.write([content])

    def unlink(self) -> None:
        with self._explain() as (store, path):
            store.delete_file(path)

    @contextmanager
    def _explain(self) -> Iterator[tuple[Any, str]]:
        """Yield the file system and the path in it. Its errors become one sentence with the URI and the remedy."""
        try:
            store, root = _file_system(self._root, self._query)
            yield store, f"{root}/{self._key}" if self._key else root or "/"
        except ObjectStoreError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> Exception:
        text = " ".join(str(error).split("\n")[0].split()).split(" (Request ID")[0].rstrip(".")
        if isinstance(error, FileNotFoundError):
            return self._missing()
        if "NO_SUCH_BUCKET" in text:
            return ObjectStoreError(f"{self}: there is no such bucket: check its name, or create it")
        if _REFUSED.search(text):
            return ObjectStoreError(
                f"{self}: access is denied ({_reason(text)}): check the credentials (for S3 AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE) and their permissions"
            )
        if "NETWORK_CONNECTION" in text or "curlCode" in text:
            return ObjectStoreError(
                f"{self}: the object store does not answer ({_reason(text)}): check the network and the endpoint (for "
                "S3 AWS_ENDPOINT_URL)"
            )
        return (ObjectStoreError if isinstance(error, OSError) else ValueError)(f"{self}: {_reason(text)}")

    def _missing(self) -> ObjectStoreError:
        return ObjectStoreError(f"{self} does not exist: check the names of bucket and file")


AnyPath = Path | ObjectPath


class _ObjectReader(io.RawIOBase):
    """The bytes of an object."""

    def __init__(self, path: ObjectPath) -> None:
        self._path = path
        with path._explain() as (store, key):
            self._file = store.open_input_file(key)
            size = self._file.size()
        if size != path.stat().st_size:
            raise ValueError(f"{path} changed while it was read: run the command again when nothing writes to it")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, target: Any) -> int:
        with self._path._explain():
            return int(self._file.readinto(target))

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def is_uri(name: str) -> bool:
    """Return whether `name` is a URI rather than a path."""
    return _URI.fullmatch(name) is not None


def as_path(name: str) -> AnyPath:
    """Return the file or folder that a path or a URI names."""
    return ObjectPath(name) if is_uri(name) else Path(name)


@lru_cache
def _file_system(root: str, query: str) -> tuple[Any, str]:
    """Return the file system of a URI, and the path of its root in it."""
    from pyarrow.fs import FileSystem

    store, path = FileSystem.from_uri(f"{root}/{query}")
    return store, path.rstrip("/")


def _facts(info: Any) -> Stat:
    if info.type.name == "Directory":
        return Stat(0, 0, stat.S_IFDIR)
    return Stat(info.size, info.mtime_ns or 0, stat.S_IFREG)


def _reason(text: str) -> str:
    """Return the reason that an error message of the AWS SDK gives, or else its error code in lower case."""
    code = re.search(r"AWS Error ([A-Z_]+) during (\w+) operation: ?(.*)", text)
    if code is None:
        return text[:300]
    detail = code[3] if code[3] and code[3] != "No response body" else code[1].lower().replace("_", " ")
    return detail.partition("; Details: ")[2] or detail
