"""Files as streams of bytes, decompressed by their suffix."""

import gzip
import io
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from corpora.document_error import DocumentError
from corpora.object_store import AnyPath, ObjectStoreError

SUFFIXES = (".gz", ".xz", ".zst")

# A longer uncompressed file is mapped instead of read, so that a huge text takes no memory.
MAP_ABOVE_BYTES = 16 << 20

_PIECE_BYTES = 1 << 18
# Four bytes of .zst can expand to 128 KiB, so one step decompresses to at most 64 MiB.
_ZSTD_STEP = 1 << 11


class _Stream(io.RawIOBase):
    """A readable stream over a file, which it closes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class ZstdStream(_Stream):
    """Reads all frames of a .zst file. Unlike zstandard's reader it raises EOFError if the last frame is cut short."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        import zstandard

        # Files made with --long ask for windows of up to 2 GiB.
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._rest, self._ready = b"", memoryview(b"")

    def readinto(self, target: memoryview) -> int:  # type: ignore[override] # BufferedReader passes a memoryview
        while not self._ready:
            piece, self._rest = self._rest or self._file.read(_ZSTD_STEP), b""
            if not piece:
                if self._frame is not None:
                    raise EOFError("compressed file ended before the end-of-stream marker was reached")
                return 0
            self._ready = memoryview(self._decompress(piece))
        size = min(len(target), len(self._ready))
        target[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _decompress(self, piece: bytes) -> bytes:
        frame = self._frame or self._decompressor.decompressobj()
        text: bytes = frame.decompress(piece)
        if frame.eof:
            self._rest, self._frame = frame.unused_data, None
        else:
            self._frame = frame
        return text


class XzStream(_Stream):
    """Reads all streams of an .xz file and the padding between them.

    Unlike the standard library's reader it raises an error for other bytes after the last stream.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ)

    def readinto(self, target: memoryview) -> int:  # type: ignore[override] # BufferedReader passes a memoryview
        while True:
            if self._stream.eof:
                piece = self._after_padding(self._stream.unused_data)
                if not piece:
                    return 0
                self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ)
            else:
                piece = self._file.read(_PIECE_BYTES) if self._stream.needs_input else b""
                if self._stream.needs_input and not piece:
                    raise EOFError("compressed file ended before the end-of-stream marker was reached")
            text = self._stream.decompress(piece, len(target))
            if text:
                target[: len(text)] = text
                return len(text)

    def _after_padding(self, piece: bytes) -> bytes:
        """Return the first bytes that are not NUL, from `piece` or from the rest of the file; b"" at its end."""
        rest = piece.lstrip(b"\0")
        while not rest and (piece := self._file.read(_PIECE_BYTES)):
            rest = piece.lstrip(b"\0")
        return rest


def open_stream(path: AnyPath) -> io.BufferedIOBase:
    """Open a file at its beginning, decompressed by its suffix."""
    match path.suffix.lower():
        case ".gz":
            return gzip.open(path if isinstance(path, Path) else path.open(), "rb")
        case ".xz":
            return io.BufferedReader(XzStream(path.open("rb")), buffer_size=_PIECE_BYTES)
        case ".zst":
            return io.BufferedReader(ZstdStream(path.open("rb")), buffer_size=_PIECE_BYTES)
    return path.open("rb")


def decompression_errors() -> tuple[type[Exception], ...]:
    """Return the types of errors that reading a damaged or truncated file raises."""
    import zlib

    import zstandard

    return (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zstandard.ZstdError)


def stream_pieces(path: AnyPath, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """Yield the decompressed content in pieces, or bytes [start, stop) of an uncompressed file.

    Raises DocumentError for a damaged file, after the bytes before the damage.
    """
    try:
        with open_stream(path) as stream:
            if path.suffix.lower() in SUFFIXES:
                # Unlike `read`, `read1` does not lose the bytes before an error of decompression.
                while piece := stream.read1(_PIECE_BYTES):
                    yield piece
                return
            position = stream.seek(start) if start else 0
            most = _PIECE_BYTES
            while piece := stream.read(most if stop is None else min(most, stop - position)):
                position += len(piece)
                yield piece
    except OSError as error:
        if error.errno is not None or isinstance(error, ObjectStoreError):
            raise
        raise DocumentError("damaged", damage_message(path, error)) from error
    except decompression_errors() as error:
        raise DocumentError("damaged", damage_message(path, error)) from error


def damage_message(path: AnyPath, error: Exception) -> str:
    """Return the message for a compressed file that cannot be read to its end."""
    return f"{path} is damaged or cut short ({str(error).rstrip('.').lower()}): fetch or write it again"


def is_mapped(path: AnyPath, size: int) -> bool:
    """Return whether `read_whole` maps a file of `size` bytes into memory instead of reading it."""
    return size > MAP_ABOVE_BYTES and isinstance(path, Path) and path.suffix.lower() not in SUFFIXES


def read_whole(path: AnyPath, size: int) -> pa.Buffer:
    """Return the whole decompressed content of one file, which has `size` bytes on disk."""
    if is_mapped(path, size):
        with pa.memory_map(str(path)) as file:
            return file.read_buffer()
    if path.suffix.lower() not in SUFFIXES:
        return pa.py_buffer(path.read_bytes())
    sink = pa.BufferOutputStream()
    for piece in stream_pieces(path):
        sink.write(piece)
    return sink.getvalue()
