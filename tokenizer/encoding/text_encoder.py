"""Encoding of texts by the faster of two ways: plain Python for few short texts, then the kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise

from tokenizer.encoding.python_encoder import FIRST_BYTES, ShortEncoder

# A program that encodes a short text needs none of these imports, which take longer than the encoding.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from random import Random

    import numpy as np

    from tokenizer.document_blocks import Block
    from tokenizer.encoding.kernel_encoder import EncoderPool
    from tokenizer.encoding.python_encoder import DropoutEncoder
    from tokenizer.encoding.segmentations import Segmentations
    from tokenizer.vocabulary import EncodeWithSpans, Vocabulary


STREAMED_BYTES = 1 << 18  # bytes of a stream that are encoded at once
COUNTED_BYTES = 1 << 16  # the ids of texts up to this size are counted as a list
_NOT_ASCII = bytes(range(128, 256))


class MissingByteError(ValueError):
    """Raised for a byte of the text for which the vocabulary has no token. document: the number of the text."""

    def __init__(self, byte: int, offset: int, where: str = "", document: int = 0):
        self.byte, self.offset, self.document = byte, offset, document
        super().__init__(
            f"{where}the text has the byte 0x{byte:02x} at byte offset {offset}, for which the vocabulary has no "
            "token; remove it, or use a tokenizer with all 256 bytes"
        )


@contextmanager
def offset_by(start: int) -> Iterator[None]:
    """Add `start` to the offset of a `MissingByteError`, because only the text from `start` on is encoded."""
    try:
        yield
    except MissingByteError as error:
        raise MissingByteError(error.byte, error.offset + start) from None


class TextEncoder:
    """Encoder that treats special tokens as ordinary text. Thread-safe.

    short: the encoder in plain Python, None once the kernels encode.
    """

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._normalizer = vocabulary.normalizer
        self._source: TextEncoder | None = None  # whose kernels this one uses
        self.short: ShortEncoder | None = ShortEncoder(vocabulary.pattern, vocabulary.pretoken_encoder())
        self._cold: bool | None = None  # whether the kernels are not compiled yet; None until checked

    @cached_property
    def after_normalization(self) -> TextEncoder:
        """The encoder of text that is normalized already, with the same kernels."""
        if self._normalizer is None:
            return self
        encoder = TextEncoder(self._vocabulary)
        encoder._normalizer, encoder._source = None, self
        return encoder

    def to_list(self, data: bytes) -> list[int]:
        """Return the ids of one text."""
        if self._normalizer is not None:
            data = self._normalizer.apply(data)
        short = self.short
        if short is not None and (short.takes(len(data)) or self._before_kernels(short, len(data))):
            ids = short.encode(data)
        else:
            ids = self._pool.encode_to_list(data)
        if self._vocabulary.missing_bytes and ids and max(ids) >= self._vocabulary.size:
            raise MissingByteError(*self._first_missing(data, ids))
        return ids

    def to_arrays(self, block: Block, threads: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all documents, uint32, and the offset of each document's ids, int64 (documents + 1,)."""
        from tokenizer.workers import thread_count

        threads = thread_count(threads)
        if self._normalizer is not None:
            from tokenizer.document_blocks import normalized_block

            block = normalized_block(block, self._normalizer)
        short = self.short
        if short is not None and self._before_kernels(short, block.size):
            ids, id_offsets = _encode_shortly(short, block)
        else:
            ids, id_offsets = self._pool.encode(block, threads)
        if self._vocabulary.missing_bytes and ids.max(initial=0) >= self._vocabulary.size:
            first = int((ids >= self._vocabulary.size).argmax())
            document = int(id_offsets.searchsorted(first, side="right")) - 1
            text = block.data[block.offsets[document] : block.offsets[document + 1]].tobytes()
            where = f"texts[{document}]: " if len(block.offsets) > 2 else ""
            missing = self._first_missing(text, ids[id_offsets[document] : first + 1].tolist())
            raise MissingByteError(*missing, where, document)
        return ids, id_offsets

    def to_parts(self, block: Block) -> Iterator[np.ndarray]:
        """Yield the ids of one document in parts, uint32. Each part is overwritten by the next."""
        if self._normalizer is not None:
            from tokenizer.document_blocks import normalized_block

            block = normalized_block(block, self._normalizer)
        for ids in self._pool.parts(block):
            if self._vocabulary.missing_bytes and ids.max(initial=0) >= self._vocabulary.size:
                self.to_arrays(block, 1)  # raises the error, which needs the ids of the whole text
            yield ids

    def to_stream(self, pieces: Iterable[bytes], size: int = STREAMED_BYTES) -> Iterator[int]:
        """Yield the ids of the joined pieces. Holds about `size` bytes and the longest pretoken."""
        from tokenizer.splitting.pretokenize import decided_bytes

        encoder, held, offset, wanted = self.after_normalization, bytearray(), 0, size
        for piece in self._normalize(_slice(pieces, size)):
            held += piece
            if len(held) < wanted:
                continue
            cut = decided_bytes(bytes(held), self._vocabulary.pattern)
            with offset_by(offset):
                yield from encoder.to_list(bytes(held[:cut]))
            del held[:cut]
            offset += cut
            wanted = max(size, 2 * len(held))
        with offset_by(offset):
            yield from encoder.to_list(bytes(held))

    def _normalize(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the normalized text, cut before ASCII characters if these compose with nothing before them."""
        if self._normalizer is None:
            yield from pieces
            return
        apply = self._normalizer.apply
        if not self._normalizer.cuts_at_ascii:
            yield apply(b"".join(pieces))
            return
        held = bytearray()
        for piece in pieces:
            last_ascii = len(piece.rstrip(_NOT_ASCII)) - 1
            if last_ascii >= 0:
                yield apply(bytes(held + piece[:last_ascii]))
                held.clear()
            held += piece[max(0, last_ascii) :]
        yield apply(bytes(held))

    def count(self, data: bytes) -> int:
        """Return the number of ids of one text."""
        if len(data) <= (COUNTED_BYTES if self.short is None else FIRST_BYTES):
            return len(self.to_list(data))
        from tokenizer.document_blocks import single_block

        return sum(map(len, self.to_parts(single_block(data))))

    def with_spans(self, data: bytes) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of one text, and the bytes of the text that each stands for."""
        return self._span_encoder(data)

    @cached_property
    def _span_encoder(self) -> EncodeWithSpans:
        return self._vocabulary.span_encoder(self.to_list)

    def with_dropout(self, data: bytes, dropout: float, random: Random) -> list[int]:
        """Return random ids of one text, as `DropoutEncoder` draws them."""
        encoder = self._dropout
        if not dropout:
            return self.to_list(data)
        if self._normalizer is not None:
            data = self._normalizer.apply(data)
        ids = encoder.encode(data, dropout, random)
        if self._vocabulary.missing_bytes and ids and max(ids) >= self._vocabulary.size:
            raise MissingByteError(*self._first_missing(data, ids))
        return ids

    @cached_property
    def _dropout(self) -> DropoutEncoder:
        return self._vocabulary.dropout_encoder(lambda: self._pool.tables)

    @cached_property
    def segmentations(self) -> Segmentations:
        """The segmentations of texts into Unigram pieces. Raises ValueError for other kinds of vocabularies."""
        return self._vocabulary.segmentations(lambda: self._pool.tables)

    def _first_missing(self, text: bytes, ids: list[int]) -> tuple[int, int]:
        """Return the first byte of a text without a token, and its offset. ids: the text's ids up to this byte."""
        size, tokens = self._vocabulary.size, self._vocabulary.tokens
        place = next(place for place, i in enumerate(ids) if i >= size)
        byte = self._vocabulary.missing_bytes[ids[place] - size]
        # Pre-tokenizers may add spaces, but keep the order of the bytes.
        offset = -1
        for _ in range(1 + b"".join(tokens[i] or b"" for i in ids[:place]).count(byte)):
            offset = max(offset, text.find(byte, offset + 1))
        return byte, max(0, offset)

    def _before_kernels(self, short: ShortEncoder, size: int) -> bool:
        """Return whether plain Python encodes `size` bytes sooner than the kernels can be compiled."""
        if size > FIRST_BYTES:
            return False
        if self._cold is None:
            from tokenizer.first_use import is_compiled
            from tokenizer.kernels.encode import encode

            self._cold = not is_compiled(encode)
            if self._cold:
                short.extend(FIRST_BYTES)
        return self._cold and short.takes(size)

    def warm_up(self, threads: int | None) -> None:
        """Prepare what `to_arrays` needs."""
        from tokenizer.workers import thread_count

        self._pool.warm_up(thread_count(threads))

    @cached_property
    def _pool(self) -> EncoderPool:
        from tokenizer.encoding.kernel_encoder import EncoderPool

        self.short = None
        if self._source is not None:
            return self._source._pool
        return EncoderPool(self._vocabulary.kernel_tables)


def _slice(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the pieces, long ones in slices of `size` bytes."""
    for piece in pieces:
        for start in range(0, len(piece), size):
            yield piece[start : start + size]


def _encode_shortly(short: ShortEncoder, block: Block) -> tuple[np.ndarray, np.ndarray]:
    """As `TextEncoder.to_arrays`, in plain Python."""
    import numpy as np

    ids: list[int] = []
    id_offsets = [0]
    for start, end in pairwise(block.offsets.tolist()):
        ids += short.encode(block.data[start:end].tobytes())
        id_offsets.append(len(ids))
    return np.array(ids, dtype=np.uint32), np.array(id_offsets, dtype=np.int64)
