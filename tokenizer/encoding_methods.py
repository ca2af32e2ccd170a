"""The methods of `Tokenizer` that turn text into ids."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice, pairwise

from tokenizer.argument_checks import file_path, random_of, whole_number
from tokenizer.encoding.special_spellings import NormalizedText, SpecialTokens, runs_of_text
from tokenizer.encoding.text_encoder import MissingByteError, TextEncoder, offset_by
from tokenizer.text import text_bytes
from tokenizer.vocabulary_methods import VocabularyMethods

# Importing these takes longer than encoding a short text, which needs none of them.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from tokenizer.encoding.special_spellings import SpecialSet
    from tokenizer.vocabulary import Vocabulary

    Text = str | bytes


# With max_tokens, the text is encoded in parts of BYTES_PER_TOKEN for each id still needed, but at least LEAST_BYTES.
LEAST_BYTES = 1 << 12
BYTES_PER_TOKEN = 8
SHARED_INTEGERS = 1 << 16  # ids of a batch


class EncodingMethods(VocabularyMethods):
    """Text to ids."""

    def __init__(self, vocabulary: Vocabulary):
        super().__init__(vocabulary)
        self._special = SpecialTokens(vocabulary.special_tokens, vocabulary.added_flags, vocabulary.normalizer)
        self._texts = TextEncoder(vocabulary)
        later = vocabulary.inside
        self._later_texts = self._texts if later is vocabulary else TextEncoder(later)

    def _texts_at(self, start: int, part: bytes = b"") -> TextEncoder:
        """Return the encoder for a part at this offset: unless the offset is 0, the part follows a special token."""
        texts = self._later_texts if start else self._texts
        return texts.after_normalization if isinstance(part, NormalizedText) else texts

    def encode_ordinary(self, text: Text) -> list[int]:
        """Return the ids of a text. The spelling of a special token is ordinary text."""
        return self._texts.to_list(text_bytes(text))

    def encode(
        self,
        text: Text,
        allowed_special: SpecialSet = frozenset(),
        disallowed_special: SpecialSet = "all",
        *,
        max_tokens: int | None = None,
        add_prefix_space: bool = False,
    ) -> list[int]:
        """Return the ids of a text, with tiktoken's rule for special tokens.

        allowed_special: a set, or "all". The spelling of one of these tokens becomes its id and splits the text.
        disallowed_special: a set, or "all" for every token that is not allowed. Their spelling raises ValueError.
        Any other spelling is ordinary text. If several spellings start at one position, the longest counts.
        max_tokens: return only the first ids, up to this number. The rest of the text is checked for disallowed
            special tokens but not encoded, unless the pattern is a custom regex.
        add_prefix_space: whether to put a space before the text, unless it is empty or begins with one. Its first word
            then has the ids of a word within a text.
        """
        data = text_bytes(text)
        allowed = self._special.allowed_in(data, allowed_special, disallowed_special)
        if add_prefix_space and data and not data.startswith(b" "):
            with offset_by(-1):
                return self.encode(b" " + data, allowed_special, disallowed_special, max_tokens=max_tokens)
        if max_tokens is not None:
            return self._first_ids(data, allowed, max_tokens)
        if not allowed:
            return self._texts.to_list(data)
        ids: list[int] = []
        for start, part in self._special.parts(data, allowed):
            with offset_by(start):
                ids += self._texts_at(start, part).to_list(part) if isinstance(part, bytes) else [part]
        return ids

    def _first_ids(self, data: bytes, allowed: frozenset[str], max_tokens: int) -> list[int]:
        """Return the first ids of a text, up to `max_tokens`."""
        max_tokens = whole_number("max_tokens", max_tokens, 0)
        ids: list[int] = []
        for start, part in self._special.parts(data, allowed) if allowed else [(0, data)]:
            wanted = max_tokens - len(ids)
            if not wanted:
                break
            if isinstance(part, int):
                ids.append(part)
                continue
            with offset_by(start):
                ids += islice(
                    self._texts_at(start, part).to_stream([part], max(LEAST_BYTES, BYTES_PER_TOKEN * wanted)), wanted
                )
        return ids

    def encode_iterable(
        self,
        pieces: Iterable[Text],
        allowed_special: SpecialSet = frozenset(),
        disallowed_special: SpecialSet = "all",
    ) -> Iterator[int]:
        """Yield the ids that `encode` gives for the joined pieces, such as the lines or chunks of a file.

        Pieces may end anywhere: within a word, a special token or, if they are bytes, a character. The ValueError for
        a disallowed special token comes after the ids of the text before it. Memory holds only about the last 256 KiB,
        or the current pretoken if it is longer. Exceptions: a custom regex needs the whole text between two special
        tokens, and so does a Unigram file that does not cut at spaces. An added token that is matched in NFC needs the
        whole text. NFC needs the text since the last ASCII character. Normalizers such as Prepend, Strip and Replace
        need the whole text between two special tokens.
        """
        if isinstance(pieces, (str, bytes, bytearray, memoryview)) or not isinstance(pieces, Iterable):
            raise ValueError(f"pieces must be an iterable of texts, not a {type(pieces).__name__}; encode takes a text")
        return self._stream(map(text_bytes, pieces), *self._special.sets(allowed_special, disallowed_special))

    def _stream(self, pieces: Iterable[bytes], allowed: frozenset[str], disallowed: frozenset[str]) -> Iterator[int]:
        parts = self._special.stream(pieces, allowed, disallowed)
        if self._special.read_normalized(allowed | disallowed):  # the whole text is read at once
            for start, part in parts:
                yield from [part] if isinstance(part, int) else self._texts_at(start, part).to_list(part)
            return
        for start, run in runs_of_text(parts):
            with offset_by(start):
                yield from [run] if isinstance(run, int) else self._texts_at(start).to_stream(run)

    def count(
        self,
        text: Text,
        allowed_special: SpecialSet = frozenset(),
        disallowed_special: SpecialSet = "all",
    ) -> int:
        """Return `len(encode(...))`. The ids of a long text are never in memory all at once."""
        data = text_bytes(text)
        allowed = self._special.allowed_in(data, allowed_special, disallowed_special)
        number = 0
        for start, part in self._special.parts(data, allowed) if allowed else [(0, data)]:
            with offset_by(start):
                number += self._texts_at(start, part).count(part) if isinstance(part, bytes) else 1
        return number

    def encode_with_dropout(
        self,
        text: Text,
        dropout: float,
        seed: int,
        allowed_special: SpecialSet = frozenset(),
        disallowed_special: SpecialSet = "all",
    ) -> list[int]:
        """Return random ids of a text by BPE dropout (Provilkov et al., 2020). They decode to the same text.

        In each step of merging a pretoken, every possible merge is dropped with probability `dropout`, independently.
        The best one that remains is applied; merging ends when none remains. 0 gives the ids of `encode`, 1 the single
        bytes, and 0.1 is the paper's choice. Special tokens follow the rule of `encode`. Tokens that no merges make,
        such as some of Llama 3's, appear only with dropout 0.

        seed: the same seed gives the same ids, on any machine; use another one for each text and epoch. Raises
        ValueError for WordPiece and Unigram, which have no merges.
        """
        if not isinstance(dropout, (int, float)) or not 0 <= dropout <= 1:
            raise ValueError(f"dropout must be a probability from 0 to 1, not {dropout!r}")
        random = random_of(seed)
        data = text_bytes(text)
        allowed = self._special.allowed_in(data, allowed_special, disallowed_special)
        ids: list[int] = []
        for start, part in self._special.parts(data, allowed) if allowed else [(0, data)]:
            with offset_by(start):
                texts = self._texts_at(start, b"" if isinstance(part, int) else part)
                ids += [part] if isinstance(part, int) else texts.with_dropout(part, dropout, random)
        return ids

    def encode_nbest(self, text: Text, n: int) -> list[tuple[list[int], float]]:
        """Return the n best segmentations of a text as ids, with their scores in nats, best first.

        Unigram only; ValueError for other kinds. There may be fewer than n. The search is exact, in float64 and plain
        Python. `encode` sums the scores of a SentencePiece model in float32, so its ids may differ from the best
        segmentation if two sums are almost equal. The spelling of a special token is ordinary text.
        """
        return self._texts.segmentations.best(text_bytes(text), whole_number("n", n, 1))

    def encode_sampled(
        self,
        text: Text,
        alpha: float,
        seed: int,
        allowed_special: SpecialSet = frozenset(),
        disallowed_special: SpecialSet = "all",
    ) -> list[int]:
        """Return the ids of a random segmentation (subword regularization, Kudo 2018, section 3.3).

        The probability of a segmentation is proportional to exp(alpha * score). With alpha 0 all are equally likely; a
        large alpha gives the best one. Special tokens follow the rule of `encode`. seed: the same seed gives the same
        ids; use another one for each text and epoch. Unigram only; ValueError for other kinds, and for an alpha too
        large for float64.
        """
        if not isinstance(alpha, (int, float)) or not 0 <= alpha < float("inf"):
            raise ValueError(f"alpha must be a number of at least 0, not {alpha!r}")
        random = random_of(seed)
        data = text_bytes(text)
        allowed = self._special.allowed_in(data, allowed_special, disallowed_special)
        ids: list[int] = []
        for start, part in self._special.parts(data, allowed) if allowed else [(0, data)]:
            texts = self._texts_at(start)
            ids += [part] if isinstance(part, int) else texts.segmentations.sample(part, alpha, random)
        return ids

    def log_likelihood(self, text: Text) -> float:
        """Return the log-probability of a text in nats, summed over all its segmentations.

        Unigram only; ValueError for other kinds. The score of the best segmentation is `encode_nbest(text, 1)[0][1]`.
        """
        return self._texts.segmentations.likelihood(text_bytes(text))

    def encode_with_offsets(
        self,
        text: Text,
        allowed_special: SpecialSet = frozenset(),
        disallowed_special: SpecialSet = "all",
        *,
        trim_offsets: bool = False,
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text as `encode` does, and the (start, end) of each id in the text.

        Offsets count characters if the text is a str, and bytes if it is bytes. They refer to the text before
        normalization. Tokens that are parts of one character all have the offsets of the character. The offsets of a
        BPE token include its white space. Plain Python finds the offsets, at about a megabyte a second (Unigram:
        0.2). Raises ValueError for a vocabulary whose offsets are not supported, such as a SentencePiece model of
        Unigram; `as_tokenizers` converts such a model.

        trim_offsets: BPE only: whether spans leave out the spaces at the ends of each token, as with RoBERTa's
            post-processor. A token of spaces alone then has an empty span.
        """
        from tokenizer.encoding.spans import in_characters, without_spaces

        data = text_bytes(text)
        allowed = self._special.allowed_in(data, allowed_special, disallowed_special)
        self._special.check_normalized(data, allowed)
        parts = list(self._special.parts(data, allowed)) if allowed else [(0, data)]
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        for (start, part), (end, _) in pairwise([*parts, (len(data), b"")]):
            with offset_by(start):
                found, inside = (
                    ([part], [(0, end - start)])
                    if isinstance(part, int)
                    else self._texts_at(start, part).with_spans(part)
                )
            ids += found
            spans += [(start + first, start + last) for first, last in inside]
        if trim_offsets and self.vocabulary.kind == "bpe":
            spans = without_spaces(data, spans)
        return ids, in_characters(data, spans) if isinstance(text, str) else spans

    def encode_to_numpy(
        self,
        text: Text,
        threads: int | None = None,
        *,
        allowed_special: SpecialSet = frozenset(),
        disallowed_special: SpecialSet = "all",
    ) -> npt.NDArray[np.uint32]:
        """Return the ids as `encode` does, as a uint32 array. `threads` (default: one per core) share a long text."""
        from tokenizer.document_blocks import single_block

        data = text_bytes(text)
        allowed = self._special.allowed_in(data, allowed_special, disallowed_special)
        if not allowed:
            return self._texts.to_arrays(single_block(data), threads)[0]
        return self._encode_parts([(0, *part) for part in self._special.parts(data, allowed)], threads, "")[0]

    def encode_in_parts(self, text: Text | memoryview) -> Iterator[npt.NDArray[np.uint32]]:
        """Yield the ids of `encode_ordinary` in uint32 arrays, so that they are never in memory all at once.

        Use it for a very long text that cannot be cut, such as a long run. Each array overwrites the one before.
        """
        from tokenizer.document_blocks import single_block

        return self._texts.to_parts(single_block(text if isinstance(text, memoryview) else text_bytes(text)))

    def encode_file(self, path: str | os.PathLike[str], threads: int | None = None) -> npt.NDArray[np.uint32]:
        """Return the ids of a file as one text: a uint32 array, computed on `threads` (default: one per core).

        The file is memory-mapped. Its bytes are not changed: line endings and invalid UTF-8 stay. The spelling of a
        special token is ordinary text.
        """
        from tokenizer.document_blocks import file_block

        return self._texts.to_arrays(file_block(file_path("path", path)), threads)[0]

    def encode_batch(
        self,
        texts: Iterable[Text],
        threads: int | None = None,
        *,
        allowed_special: SpecialSet = frozenset(),
        disallowed_special: SpecialSet = "all",
    ) -> list[list[int]]:
        """Return the ids of each text, as `encode` does, computed on `threads`. Errors give the index of the text."""
        if isinstance(texts, (str, bytes, bytearray, memoryview)) or not isinstance(texts, Iterable):
            raise ValueError(f"texts must be a list of texts, not a {type(texts).__name__}; encode takes a single text")
        spellings = self._special.sets(allowed_special, disallowed_special)
        parts: list[tuple[int, int, bytes | int]] = []
        for number, text in enumerate(texts):
            try:
                document = text_bytes(text)
                allowed = self._special.found_in(document, *spellings)
            except ValueError as error:
                raise ValueError(f"texts[{number}]: {error}") from None
            found = self._special.parts(document, allowed) if allowed else [(0, document)]
            parts += [(number, start, part) for start, part in found]
        if not parts:
            return []
        ids, ends = self._encode_parts(parts, threads, "texts[{}]: ")
        last = {number: end for (number, _, _), end in zip(parts, ends.tolist(), strict=True)}
        numbers = self._integers[ids] if len(ids) > SHARED_INTEGERS else ids
        return [numbers[start:end].tolist() for start, end in pairwise([0, *last.values()])]

    @cached_property
    def _integers(self) -> np.ndarray:
        """All ids as Python integers, object (vocab_size,). Sharing them takes half the time of making new ones."""
        import numpy as np

        return np.array(range(self.vocabulary.size), dtype=object)

    def _encode_parts(
        self, parts: list[tuple[int, int, bytes | int]], threads: int | None, where: str
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """Return the joined ids of parts of texts, and where the ids of each part end, int64 (parts,).

        parts: the number of the text, the offset of the part, and its bytes or the id of a special token. All bytes
        are encoded in one call, because a call costs far more than encoding a short part.
        where: the start of error messages, a format of the number of the text.
        """
        import numpy as np

        from tokenizer.document_blocks import block_of

        encoders: dict[TextEncoder | None, int] = {None: 0}  # None for tokens
        used = [None if isinstance(part, int) else self._texts_at(start, part) for _, start, part in parts]
        kinds = np.array([encoders.setdefault(encoder, len(encoders)) for encoder in used])
        counts = np.ones(len(parts), dtype=np.int64)
        found = {0: np.array([part for _, _, part in parts if isinstance(part, int)], dtype=np.uint32)}
        for texts, kind in encoders.items():
            places = np.flatnonzero(kinds == kind).tolist()
            if places and texts is not None:
                documents: list[Any] = [parts[place][2] for place in places]
                try:
                    found[kind], id_offsets = texts.to_arrays(block_of(documents), threads)
                except MissingByteError as error:
                    number, start, _ = parts[places[error.document]]
                    raise MissingByteError(error.byte, error.offset + start, where.format(number)) from None
                counts[places] = np.diff(id_offsets)
        if kinds.all() and len(found) == 2:  # no tokens, and one encoder
            return found[1], counts.cumsum()
        ids = np.empty(counts.sum(), dtype=np.uint32)
        for kind, some in found.items():
            ids[np.repeat(kinds == kind, counts)] = some
        return ids, counts.cumsum()

    def encode_arrow(self, array: pa.Array | pa.ChunkedArray, threads: int | None = None) -> pa.LargeListArray:
        """Return the ids of an Arrow array of documents: a LargeListArray of uint32 with one list per document.

        array: string or binary, large or not, chunked or not. The spelling of a special token is ordinary text. No
        Python object is created per document. Raises ValueError for nulls.
        """
        import pyarrow as pa

        from tokenizer.document_blocks import arrow_block, arrow_lists

        if isinstance(array, pa.ChunkedArray):
            encoded = [self.encode_arrow(chunk, threads) for chunk in array.chunks]
            return pa.concat_arrays(encoded or [pa.array([], pa.large_list(pa.uint32()))])
        if not isinstance(array, pa.Array):
            raise ValueError(f"encode_arrow takes a pyarrow array of documents, not {type(array).__name__}")
        return arrow_lists(*self._texts.to_arrays(arrow_block(array), threads))

    def warm_up(self, threads: int | None = None) -> None:
        """Load the kernels and build their tables now, so that the first long text does not wait for them."""
        self._texts.warm_up(threads)

    def cuts(self, text: memoryview | bytes, piece_bytes: int) -> list[int]:
        """Return byte offsets that cut a long UTF-8 text into pieces of about `piece_bytes` without changing its ids.

        It is shorter if few spaces follow ASCII letters or digits, and empty if the pattern or normalizer forbids cuts.
        """
        import numpy as np

        from tokenizer.document_blocks import safe_places

        can_cut = self.vocabulary.splits_at_spaces
        return list(safe_places(np.frombuffer(text, np.uint8), piece_bytes)) if can_cut else []
