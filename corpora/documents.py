"""Documents, from the chunks of a reader to clean Arrow batches.

A reader yields `Chunk`s of raw documents. `clean` drops empty documents and handles documents that are not UTF-8.
`batch_documents` packs the rest into record batches, whose limits depend only on the documents, not on the chunks.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpora.document_error import DocumentError
from corpora.formats.encodings import decode_as_utf8, guess_encoding, invalid_utf8_offset
from corpora.read_options import ReadOptions

TEXT_COLUMN = "text"
BATCH_BYTES = 8 << 20

# Limits a batch of very short documents, so that its offsets take no more memory than its text.
BATCH_DOCUMENTS = 1 << 17

# Most documents left out to name; a corpus may leave out millions.
MOST_REASONS = 10

# Chunks of small files are joined up to these limits, because each call of an Arrow function takes microseconds.
JOINED_BYTES = 1 << 20
JOINED_CHUNKS = 256

# Marks of duplicates, which are left out of a corpus. The mark of other documents is 0.
EXACT_DUPLICATE, NEAR_DUPLICATE = 1, 2


def too_long(origin: object, what: str, options: ReadOptions) -> DocumentError:
    """Return the error for a document above the limit. `what` says how long the document is: "has 3 bytes"."""
    return DocumentError(
        "long",
        f"{origin} {what}, above the limit of {options.max_document:,} bytes a document: raise it with "
        "`max_document`, or leave such documents out with `invalid='skip'`",
    )


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Some consecutive raw documents of one file or one hub split."""

    documents: pa.Array
    """string, large_string, binary or large_binary; nulls stand for empty documents"""

    origin: str
    """the file, or the hub name and split, for error messages"""

    split: str | None = None
    """their split, if the corpus has own splits"""

    rows: Sequence[int] | None = None
    """row number (line number for JSONL), from 1, of each document; None if the file is one document"""

    skip_invalid: bool = False
    """leave out documents that are not UTF-8, whatever the caller's policy"""

    bad: DocumentError | None = None
    """error of an unreadable document or rest of a file, which is missing from `documents`"""

    encoding: str | None = None
    """the encoding that was found in the file, if it is not UTF-8"""

    joined: Sequence["Chunk"] = ()
    """the chunks that this one was made of, for error messages"""

    def place(self, number: int) -> str:
        """Return where document `number` of the chunk is, for a message: "a.txt", or "row 3 of a.csv"."""
        for part in self.joined:
            if number < len(part.documents):
                return part.place(number)
            number -= len(part.documents)
        return self.origin if self.rows is None else f"row {self.rows[number]} of {self.origin}"


def join(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Yield the same documents in fewer chunks: consecutive small chunks are joined."""
    small: list[Chunk] = []
    size = 0
    for chunk in chunks:
        fits = chunk.bad is None and size + chunk.documents.nbytes <= JOINED_BYTES and len(small) < JOINED_CHUNKS
        if small and not (fits and _kind(chunk) == _kind(small[0])):
            yield _join(small)
            small, size = [], 0
        if chunk.bad is not None or chunk.documents.nbytes > JOINED_BYTES:
            yield chunk
        else:
            small.append(chunk)
            size += chunk.documents.nbytes
    if small:
        yield _join(small)


def _kind(chunk: Chunk) -> tuple[str | None, bool, bool]:
    """Return what chunks to join have in common."""
    return chunk.split, chunk.skip_invalid, chunk.rows is None


def _join(chunks: Sequence[Chunk]) -> Chunk:
    if len(chunks) == 1:
        return chunks[0]
    documents = pa.concat_arrays([chunk.documents.cast(pa.large_binary()) for chunk in chunks])
    return replace(chunks[0], documents=documents, joined=chunks)


def unread(bad: DocumentError, origin: object, split: str | None) -> Chunk:
    """Return a chunk without documents for a document, or for the rest of a file, that could not be read."""
    return Chunk(documents=pa.array([], pa.large_binary()), origin=str(origin), split=split, bad=bad)


@dataclass(kw_only=True)
class Dropped:
    """Numbers of documents that a pass over a corpus left out."""

    empty_documents: int = 0
    """of 0 bytes, or null"""

    invalid_documents: int = 0
    """left out because they are not UTF-8 or their line is invalid (`invalid="skip"`, or `Chunk.skip_invalid`)"""

    long_documents: int = 0
    """left out because they are longer than `max_document` (`invalid="skip"`)"""

    damaged_parts: list[str] = field(default_factory=list)
    """errors of the files and Parquet row groups whose rest is left out (`invalid="skip"`)"""

    exact_duplicates: int = 0
    """with the same bytes as a document that is kept (`Corpus.without`)"""

    near_duplicates: int = 0
    """similar to a document that is kept (`Corpus.without`)"""

    reasons: list[str] = field(default_factory=list, compare=False)
    """the first `MOST_REASONS` documents left out, each with its reason"""

    encodings: dict[str, str] = field(default_factory=dict)
    """files that are not left out but decoded, with the encoding that was found in them"""

    def reset(self) -> None:
        vars(self).update(vars(Dropped()))

    def add(self, other: "Dropped") -> None:
        """Add the counts of another pass, and warn about its damaged files."""
        for name, count in asdict(other).items():
            before = getattr(self, name)
            setattr(self, name, before | count if isinstance(count, dict) else before + count)
        del self.reasons[MOST_REASONS:]
        for message in other.damaged_parts:
            _warn_about_damage(message)

    def add_reason(self, reason: str) -> None:
        """Add the place of a document that is left out, and the reason."""
        if len(self.reasons) < MOST_REASONS:
            self.reasons.append(reason)

    def add_unread(self, bad: DocumentError) -> None:
        """Count an unreadable document, or warn about a damaged file."""
        self.long_documents += bad.kind == "long"
        self.invalid_documents += bad.kind == "invalid"
        if bad.kind == "damaged":
            self.damaged_parts.append(str(bad))
            _warn_about_damage(str(bad))
        else:
            text = str(bad)
            self.add_reason(text.rpartition(": ")[0] or text)  # without the remedy

    def counts(self) -> dict[str, int]:
        """Return the counts by name. Counts of 0 are left out, except for empty and invalid documents."""
        numbers = {name: count for name, count in vars(self).items() if isinstance(count, int)}
        numbers["damaged_parts"] = len(self.damaged_parts)
        always = ("empty_documents", "invalid_documents")
        return {name: count for name, count in numbers.items() if count or name in always}


def _warn_about_damage(message: str) -> None:
    # Python deduplicates warnings by line: with stacklevel=1 each message is shown once, also from threads.
    warnings.warn(f"left out unreadable documents: {message}", stacklevel=1)


def single_document(buffer: pa.Buffer) -> pa.Array:
    """Return `buffer` as an array of one large_binary document, without copying it."""
    offsets = pa.py_buffer(np.array([0, buffer.size], dtype=np.int64))
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, buffer])


def text_buffer(documents: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets, int64 (n + 1,), and the data, uint8, of a large_binary array, without copying."""
    _, offsets, data = documents.buffers()
    view = np.frombuffer(offsets, dtype=np.int64)[documents.offset : documents.offset + len(documents) + 1]
    return view, np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)


def clean(chunk: Chunk, options: ReadOptions, dropped: Dropped) -> pa.Array:
    """Return the documents of a chunk, as a large_binary array without nulls; count the ones left out in `dropped`.

    Unless `options.invalid` is "bytes", the documents returned are UTF-8. With "error", the first document that is not
    UTF-8 raises ValueError. A document above the limit raises ValueError unless the policy is "skip".
    """
    if chunk.bad is not None:
        if options.invalid != "skip":
            raise chunk.bad
        dropped.add_unread(chunk.bad)
    documents = chunk.documents.cast(pa.large_binary())
    if chunk.joined and not _is_clean(documents, options):
        return pa.concat_arrays([clean(part, options, dropped) for part in chunk.joined])
    for part in chunk.joined or [chunk]:
        if part.encoding:
            dropped.encodings[part.origin] = part.encoding
    lengths = pc.binary_length(documents)
    bounds = pc.min_max(lengths).as_py()
    rows = None
    # A number as an argument of pyarrow would import pandas, so the usual chunk needs none.
    if documents.null_count or not bounds["min"] or bounds["max"] > options.max_document:
        documents, rows = _without_empty_and_long(chunk, documents, lengths, options, dropped)
    if (options.invalid == "bytes" and not chunk.skip_invalid) or not len(documents):
        return documents
    try:
        documents.cast(pa.large_string())
    except pa.ArrowInvalid:
        return _without_invalid(chunk, documents, rows, options, dropped)
    return documents


def _without_empty_and_long(
    chunk: Chunk, documents: pa.Array, lengths: pa.Array, options: ReadOptions, dropped: Dropped
) -> tuple[pa.Array, np.ndarray | None]:
    """Return the other documents, and their numbers in the chunk; None if all are left.

    lengths: the bytes of the documents, null for a null.
    """
    lengths = pc.fill_null(lengths, 0)
    kept = pc.greater(lengths, 0)
    if empty := len(documents) - pc.sum(kept, min_count=0).as_py():
        dropped.empty_documents += empty
        for number in np.flatnonzero(~kept.to_numpy(zero_copy_only=False))[:MOST_REASONS]:
            dropped.add_reason(f"{chunk.place(int(number))}: empty")
    if (pc.max(lengths).as_py() or 0) > options.max_document:
        kept = pc.and_(kept, _short_enough(chunk, lengths, options, dropped))
    if pc.all(kept).as_py():
        return documents, None
    return documents.filter(kept), np.flatnonzero(kept.to_numpy(zero_copy_only=False))


def _is_clean(documents: pa.Array, options: ReadOptions) -> bool:
    """Return whether all documents are UTF-8 and within the limit, so that no error has to name one."""
    if (pc.max(pc.binary_length(documents)).as_py() or 0) > options.max_document:
        return False
    try:
        documents.cast(pa.large_string())
    except pa.ArrowInvalid:
        return options.invalid == "bytes"
    return True


def clean_all(
    chunks: Iterable[Chunk], options: ReadOptions, dropped: Dropped, duplicates: bytes | None = None
) -> Iterator[tuple[str | None, pa.Array]]:
    """Yield the split and the clean documents of each chunk, and count the documents left out in `dropped`.

    duplicates: one mark for each clean document: 0 to keep it, EXACT_DUPLICATE or NEAR_DUPLICATE to leave it out.
    Raises ValueError if there are more or fewer documents than marks.
    """
    number = 0
    for chunk in join(chunks):
        documents = clean(chunk, options, dropped)
        number += len(documents)
        if duplicates is not None:
            marks = np.frombuffer(duplicates, np.uint8)[number - len(documents) : number]
            if len(marks) < len(documents):
                break
            dropped.exact_duplicates += int(np.count_nonzero(marks == EXACT_DUPLICATE))
            dropped.near_duplicates += int(np.count_nonzero(marks == NEAR_DUPLICATE))
            documents = documents.filter(pa.array(marks == 0))
        yield chunk.split, documents
    if duplicates is not None and number != len(duplicates):
        raise ValueError("the corpus changed while it was read: run the command again when nothing writes to it")


def _short_enough(chunk: Chunk, lengths: pa.Array, options: ReadOptions, dropped: Dropped) -> pa.Array:
    """Return which documents are within the limit. Raises ValueError for a longer one, unless the policy is "skip"."""
    long = pc.greater(lengths, options.max_document)
    if options.invalid != "skip":
        first = pc.index(long, True).as_py()
        size = lengths[first].as_py()
        raise too_long(chunk.place(first), f"has {size:,} bytes of text", options)
    dropped.long_documents += pc.sum(long).as_py()
    for number in np.flatnonzero(long.to_numpy(zero_copy_only=False))[:MOST_REASONS]:
        dropped.add_reason(f"{chunk.place(int(number))}: {lengths[int(number)].as_py():,} bytes long")
    return pc.invert(long)


def _without_invalid(
    chunk: Chunk, documents: pa.Array, rows: np.ndarray | None, options: ReadOptions, dropped: Dropped
) -> pa.Array:
    """Return documents as UTF-8. Any other document is decoded, mended, left out or a ValueError, as `options` say.

    `rows` are the places of `documents` in the chunk, None if they are all of it.
    """
    policy = "skip" if chunk.skip_invalid else options.invalid
    kept = []
    for i in range(len(documents)):
        document = documents[i : i + 1]
        data = memoryview(documents[i].as_buffer()).cast("B")
        offset = invalid_utf8_offset(data)
        if offset is None:
            kept.append(document)
            continue
        whole_file = chunk.rows is None and not chunk.skip_invalid and options.encoding is None
        encoding, sure = guess_encoding(data, offset) if whole_file else (None, False)
        text = decode_as_utf8(data, encoding, whole=options.first_bytes is None) if encoding and sure else None
        if encoding and text is not None:
            kept.append(pa.array([text], pa.large_binary()))
            dropped.encodings[chunk.origin] = encoding
            continue
        place = chunk.place(i if rows is None else int(rows[i]))
        where = f"byte {offset}{'' if chunk.rows is None else ' of its text'} (0x{data[offset]:02x})"
        if policy == "skip":
            dropped.invalid_documents += 1
            dropped.add_reason(f"{place}: not UTF-8 at {where}")
        elif policy == "replace":
            kept.append(pa.array([bytes(data).decode(errors="replace").encode()], pa.large_binary()))
        else:
            remedy = "name its `encoding`" if chunk.rows is None else "convert it, or name the file's `encoding`"
            looks = "looks like a PDF" if bytes(data[:5]) == b"%PDF-" else encoding and f"may be {encoding}"
            guess = f" (it {looks})" if looks else ""
            raise ValueError(
                f"{place} is not UTF-8 at {where}: {remedy}{guess}, or choose what to do with such documents "
                "(`invalid='replace'`, skip or bytes, which `pairs` does not take)"
            )
    return pa.concat_arrays(kept) if kept else pa.array([], pa.large_binary())


class Batcher:
    """Packs documents in order into record batches of at most `BATCH_BYTES` of text. A longer document is a batch."""

    def __init__(self, column_type: pa.DataType):
        self.schema = pa.schema([(TEXT_COLUMN, column_type)])
        self._waiting: list[pa.Array] = []
        self._bytes = self._documents = 0

    def add(self, documents: pa.Array) -> Iterator[pa.RecordBatch]:
        """Yield the batches that `documents` (large_binary, no nulls) complete."""
        offsets, _ = text_buffer(documents)
        first = 0
        while first < len(documents):
            room = offsets[first] + BATCH_BYTES - self._bytes
            last = min(
                int(np.searchsorted(offsets, room, side="right")) - 1,
                first + BATCH_DOCUMENTS - self._documents,
            )
            if last <= first:
                if self._waiting:
                    yield self._take()
                    continue
                last = first + 1
            last = min(last, len(documents))
            self._waiting.append(documents[first:last])
            self._bytes += int(offsets[last] - offsets[first])
            self._documents += last - first
            first = last

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the last batch, if any documents are left."""
        if self._waiting:
            yield self._take()

    def _take(self) -> pa.RecordBatch:
        waiting = self._waiting
        documents = waiting[0] if len(waiting) == 1 else pa.concat_arrays(waiting)
        self._waiting, self._bytes, self._documents = [], 0, 0
        return pa.RecordBatch.from_arrays([documents.view(self.schema.field(0).type)], schema=self.schema)


def batch_documents(
    routed: Iterable[tuple[str, pa.Array]], column_type: pa.DataType
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Pack (split, large_binary array) into (split, record batch), in order within each split."""
    batchers: dict[str, Batcher] = {}
    for split, documents in routed:
        batcher = batchers.setdefault(split, Batcher(column_type))
        for batch in batcher.add(documents):
            yield split, batch
    for split, batcher in batchers.items():
        for batch in batcher.finish():
            yield split, batch
