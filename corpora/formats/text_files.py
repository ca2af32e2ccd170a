"""Read text files as UTF-8: from any encoding, without a byte-order mark, up to a size limit."""

import codecs
from collections.abc import Iterable, Iterator
from itertools import chain

import pyarrow as pa

from corpora.document_error import DocumentError
from corpora.documents import Chunk, single_document, too_long, unread
from corpora.formats.compression import SUFFIXES, read_whole, stream_pieces
from corpora.formats.encodings import SAMPLE_BYTES, OtherEncoding, guess_encoding, unicode_encoding
from corpora.object_store import AnyPath
from corpora.read_options import ReadOptions


def read_text(path: AnyPath, split: str | None, options: ReadOptions) -> Chunk:
    """Return a text file, or its first bytes, as one document.

    It is unchanged, but without a leading byte-order mark unless `options.invalid` is "bytes".
    """
    try:
        document = single_document(_beginning(_content(path, options), options.first_bytes))
    except DocumentError as bad:
        return unread(bad, path, split)
    return Chunk(documents=document, origin=str(path), split=split)


def _beginning(text: pa.Buffer, size: int | None) -> pa.Buffer:
    """Return the whole characters in the first `size` bytes."""
    if size is None or text.size <= size:
        return text
    data, end = memoryview(text), size
    while end > max(size - 3, 0) and data[end] & 0xC0 == 0x80:
        end -= 1
    return text.slice(0, end)


def _content(path: AnyPath, options: ReadOptions) -> pa.Buffer:
    """Return the content of a text file, or a beginning of it with more than `options.first_bytes` bytes."""
    if path.suffix.lower() not in SUFFIXES and not options.encoding:
        size = path.stat().st_size
        if size > options.max_document:
            raise too_long(path, f"has {size:,} bytes", options)
        buffer = read_whole(path, size)
        return buffer if options.invalid == "bytes" else buffer.slice(_start(buffer[:SAMPLE_BYTES].to_pybytes()))
    sink, size = pa.BufferOutputStream(), 0
    for piece in stream_pieces(path) if options.invalid == "bytes" else text_pieces(path, options):
        size += len(piece)
        if size > options.max_document:
            raise too_long(path, "is longer when decompressed or decoded", options)
        sink.write(piece)
        if options.first_bytes is not None and size > options.first_bytes:
            break
    return sink.getvalue()


def text_pieces(path: AnyPath, options: ReadOptions, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """Yield a text file as UTF-8 in pieces, without a byte-order mark.

    `start`, `stop`: offsets in an uncompressed UTF-8 file. Raises OtherEncoding before the first piece if this piece is
    not UTF-8, unless `options` name an encoding or `options.invalid` is "bytes". Raises DocumentError if the file is
    damaged, or not in the encoding of `options`.
    """
    pieces = stream_pieces(path, start, stop)
    first = next(pieces, b"")
    if options.encoding:
        _check_unicode(first[:SAMPLE_BYTES], path, options.encoding)
        yield from _decode(chain([first], pieces), path, options.encoding, options.invalid)
        return
    if start:
        yield first
    elif options.invalid == "bytes":
        yield first.removeprefix(codecs.BOM_UTF8)
    else:
        begin = _start(first[:SAMPLE_BYTES])
        _check_utf8(first)
        yield first[begin:]
    yield from pieces


def found_encoding(path: AnyPath) -> str | None:
    """Return the encoding of a text file if it is not UTF-8."""
    try:
        next(text_pieces(path, ReadOptions()), None)
    except OtherEncoding as other:
        return other.encoding
    return None


def _check_utf8(piece: bytes) -> None:
    """Raise OtherEncoding if the first piece of a text shows an encoding other than UTF-8."""
    try:
        codecs.utf_8_decode(piece, "strict", False)
    except UnicodeDecodeError as error:
        encoding, sure = guess_encoding(piece, error.start)
        if encoding and sure:
            raise OtherEncoding(encoding) from None


def _check_unicode(sample: bytes, path: AnyPath, encoding: str) -> None:
    """Raise DocumentError for UTF-16 and UTF-32 that `encoding` would read as other characters."""
    found = unicode_encoding(sample)
    if found and _beginning_in(encoding, sample) != _beginning_in(found, sample):
        raise DocumentError("invalid", f"{path} is not {encoding}, but looks like {found}: leave `encoding` out")


def _beginning_in(encoding: str, sample: bytes) -> str | None:
    """Return the first characters of a text without a byte-order mark; None if its bytes are not in `encoding`."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(sample).removeprefix("\ufeff")
    except UnicodeError:
        return None


def whole_lines(pieces: Iterable[bytes], limit: int, too_long: ValueError) -> Iterator[bytes]:
    """Yield the lines of a text in pieces, without line feeds. Raises `too_long` for a line above the limit."""
    rest: list[bytes] = []
    size = 0
    for piece in pieces:
        *lines, last = piece.split(b"\n")
        for line in lines:
            yield b"".join([*rest, line])
            rest, size = [], 0
        rest.append(last)
        size += len(last)
        if size > limit:
            raise too_long
    if size:
        yield b"".join(rest)


def _start(sample: bytes) -> int:
    """Return the offset at which the text of a file begins, after a byte-order mark. `sample`: the first bytes.

    Raises OtherEncoding for UTF-16 and UTF-32.
    """
    if encoding := unicode_encoding(sample):
        raise OtherEncoding(encoding)
    return len(codecs.BOM_UTF8) if sample.startswith(codecs.BOM_UTF8) else 0


def _decode(pieces: Iterator[bytes], path: AnyPath, encoding: str, invalid: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("replace" if invalid == "replace" else "strict")
    done, at_start = 0, True
    for piece in _with_end(pieces):
        try:
            text = decoder.decode(piece or b"", final=piece is None)
            encoded = text.encode()
        except UnicodeError as error:
            raise DocumentError(
                "invalid",
                f"{path} is not {encoding} after byte {done:,} ({getattr(error, 'reason', error)}): name "
                "another `encoding`, or choose what to do with such documents (`invalid='replace'` or skip)",
            ) from error
        done += len(piece or b"")
        if at_start and encoded:
            encoded, at_start = encoded.removeprefix(codecs.BOM_UTF8), False
        yield encoded


def _with_end(pieces: Iterator[bytes]) -> Iterator[bytes | None]:
    yield from pieces
    yield None
