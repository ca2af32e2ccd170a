"""The tokenizer as its users see it: byte-level BPE with exact training and exact ids."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from operator import index

from tokenizer.encoding.special_spellings import SpecialTokens
from tokenizer.encoding.text_encoder import TextEncoder, offset_by
from tokenizer.special import DEFAULT_SPECIAL_TOKENS
from tokenizer.splitting.patterns import Pattern
from tokenizer.text import text_bytes
from tokenizer.vocabulary import Vocabulary

# A program that encodes a short text needs none of these, and they take longer to import than its work does.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    import numpy as np

    from tokenizer.encoding.decoding import Decoder
    from tokenizer.encoding.special_spellings import SpecialSet
    from tokenizer.training.counting import PretokenCounts

    Text = str | bytes


MANY_IDS = 50_000  # an array of so many is worth the loading of a kernel


class Tokenizer:
    """Text to ids and back.

    Ids are exact with respect to tiktoken, Hugging Face's tokenizers and transformers (the same vocabulary
    gives the same ids), and merges with respect to tokenizers (byte order gpt2) and rustbpe (raw). What differs:

    - Bytes input is encoded too; bytes that are not UTF-8 are a pretoken each, and decode back exactly.
    - A lone surrogate in a str is a ValueError (tiktoken replaces it silently).
    - Special tokens in the text follow tiktoken's rule (Hugging Face always cuts them out).
    - Text that a regex of one's own leaves unmatched is a pretoken, as in Hugging Face (tiktoken drops it).
    - No special token is added around a text (Hugging Face's add_special_tokens=False).
    - A byte for which the vocabulary has no token is a ValueError (Hugging Face drops it or makes it unknown).

    Where a file asks for NFC, text is brought into Unicode's composed form first, as in Hugging Face, and decoding
    gives that form back. In bytes input this holds for the stretches that are UTF-8.

    Make one with `train`, `train_from_counts` or `load`. Threads may share it. The first few short texts are encoded in
    plain Python; what encodes longer or more ones fast is loaded when it is needed.
    """

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._special = SpecialTokens(vocabulary.special_tokens, vocabulary.added_flags, vocabulary.normalizer)
        self._texts = TextEncoder(vocabulary)

    def __reduce__(self):
        return Tokenizer, (self._vocabulary,)

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocab_size} entries, pattern {self._vocabulary.pattern})"

    # Making one

    @classmethod
    def train(
        cls,
        corpus,
        vocab_size: int = 32768,
        pattern: str | Pattern = "cl100k",
        special_tokens: Sequence[str] = DEFAULT_SPECIAL_TOKENS,
        min_frequency: int = 2,
        max_token_length: int | None = None,
        byte_order: Literal["gpt2", "raw"] = "gpt2",
        threads: int | None = None,
        progress: Callable[[str, int, int | None], None] | None = None,
        memory: int | None = None,
    ) -> Tokenizer:
        """Train a vocabulary on a corpus: the path of a text file, or an iterable of documents.

        In an iterable, such as a list, str and bytes are texts, `Path` objects are files, and Arrow arrays or record
        batches hold many texts. A list of str that all name existing files is a ValueError: pass `Path` objects.
        vocab_size: special tokens, the 256 bytes and merges together. pattern: a name (gpt2, cl100k,
        o200k, llama3, qwen2) or a regex.
        special_tokens come first in the vocabulary; their spelling in the text is text. min_frequency: pairs that
        occur less often are not merged. max_token_length: the most bytes a merged token may have (Hugging Face's
        option of that name allows one less). byte_order: the ids of
        the single bytes, and with them how ties fall: gpt2 as Hugging Face, raw as rustbpe.
        progress: called as (phase, done, total) with the phases "count" (bytes) and "merge" (merges), and between them,
        where counts were spilled, "combine" (pretokens). memory: bytes that the work may take, beside the interpreter's
        own and the text being read (None: as many as it takes). Counts that do not fit are spilled to disk, as in
        `count_pretokens`; merging needs the distinct pretokens in memory, and where they do not fit says so before.

        The result does not depend on threads, the order of the documents or how they are batched. A corpus
        that runs out of pairs gives a smaller vocabulary, and a warning. Raises ValueError for what cannot be.
        """
        from tokenizer.training.counting import count_pretokens
        from tokenizer.training.forecast import MergeForecast
        from tokenizer.training.train import check_options, train_vocabulary
        from tokenizer.workers import thread_count

        special_tokens = check_options(vocab_size, special_tokens, min_frequency, max_token_length, byte_order)
        thread_count(threads)
        forecast = MergeForecast(memory) if memory is not None else None
        counts = count_pretokens(corpus, pattern, threads=threads, progress=progress, memory=memory, forecast=forecast)
        vocabulary = train_vocabulary(
            counts,
            vocab_size,
            special_tokens=special_tokens,
            min_frequency=min_frequency,
            max_token_length=max_token_length,
            byte_order=byte_order,
            progress=progress,
            memory=memory,
        )
        return cls(vocabulary)

    @classmethod
    def train_from_counts(
        cls,
        counts: PretokenCounts,
        vocab_size: int = 32768,
        special_tokens: Sequence[str] = DEFAULT_SPECIAL_TOKENS,
        min_frequency: int = 2,
        max_token_length: int | None = None,
        byte_order: Literal["gpt2", "raw"] = "gpt2",
        progress: Callable[[str, int, int | None], None] | None = None,
        memory: int | None = None,
    ) -> Tokenizer:
        """Train on pretokens counted before; the same as `train` on the corpus that they were counted in.

        memory: bytes that merging may take; ValueError beforehand, with what would help, where it needs more.
        """
        from tokenizer.training.train import check_options, train_vocabulary

        special_tokens = check_options(vocab_size, special_tokens, min_frequency, max_token_length, byte_order)
        vocabulary = train_vocabulary(
            counts,
            vocab_size,
            special_tokens=special_tokens,
            min_frequency=min_frequency,
            max_token_length=max_token_length,
            byte_order=byte_order,
            progress=progress,
            memory=memory,
        )
        return cls(vocabulary)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike,
        *,
        pattern: str | Pattern | None = None,
        special_tokens: dict[str, int] | None = None,
        normalizer: Literal["NFC"] | None = None,
    ) -> Tokenizer:
        """Read a tokenizer from a folder or file.

        - tokenizer.json (or a folder with one) says everything itself.
        - tiktoken's ranks (`.tiktoken`, or of another name, as Llama 3's tokenizer.model) need `pattern`, unless they
          are published ones: these are known by content or by name (cl100k_base, say), with their special tokens.
        - `vocab.bpe` beside `encoder.json`, `merges.txt` beside `vocab.json`: `pattern` is by default that of the
          tokenizer_class in a tokenizer_config.json beside them (which for Qwen 2 also means NFC), else gpt2.

        The last two take `special_tokens` with their ids; of merges they are by default what the files of transformers
        beside them say. `normalizer`: "NFC" where the vocabulary's makers normalise text, as Qwen's do.

        Added tokens that are not special follow the same rule in `encode`; lstrip, rstrip, single_word and normalized
        mean what they do in tokenizers. A post-processor that puts special tokens around a text is kept for `save`.
        Raises FileNotFoundError, or ValueError that names the file and the field that is damaged or not supported.
        """
        from tokenizer.formats.vocabulary_files import load_vocabulary

        return cls(load_vocabulary(path, pattern, special_tokens, normalizer))

    def save(self, folder: str | os.PathLike) -> None:
        """Write folder/tokenizer.json, which tokenizers and transformers open too. It appears whole or not at all.

        Ranks become merges. ValueError for a special token that is spelled like an ordinary one.
        """
        from tokenizer.formats.vocabulary_files import save_tokenizer_json

        save_tokenizer_json(self._vocabulary, folder)

    def cuts(self, text: memoryview | bytes, piece_bytes: int) -> list[int]:
        """Byte offsets at which a long UTF-8 text can be cut into pieces of about `piece_bytes` without changing its
        ids; none for a pattern without a name, and fewer where the text offers no place."""
        from tokenizer.encoding.cutting import safe_cuts

        return safe_cuts(text, self._vocabulary.pattern, piece_bytes)

    # What it is

    @property
    def vocab_size(self) -> int:
        """The largest id + 1: special tokens, the 256 bytes, merges, and unused ids where a file has them."""
        return self._vocabulary.size

    @property
    def special_tokens(self) -> dict[str, int]:
        """Special tokens and their ids."""
        return dict(self._vocabulary.special_tokens)

    @property
    def pattern(self) -> str:
        """The split pattern's name, or its regex where it has none."""
        return str(self._vocabulary.pattern)

    @property
    def normalizer(self) -> str | None:
        """The form that text is brought into before it is encoded: "NFC", or None."""
        return self._vocabulary.normalizer

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of all that decides ids; the same whatever file format it was read from."""
        return self._vocabulary.fingerprint

    @cached_property
    def merges(self) -> list[tuple[bytes, bytes]]:
        """The merges in order, as pairs of bytes. Of ranks, those that give the same ids."""
        tokens = self._vocabulary.tokens
        return [(tokens[left], tokens[right]) for left, right, _ in self._vocabulary.merges.tolist()]

    @property
    def token_byte_lengths(self) -> np.ndarray:
        """int32 (vocab_size,): bytes of each token, 0 for special tokens and unused ids. Read-only."""
        return self._vocabulary.byte_lengths

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token; of a special token its spelling. ValueError for an id that is no token."""
        try:
            token = index(token)
        except TypeError:
            raise ValueError(f"an id must be a whole number, not {token!r}") from None
        found = self._by_id[token] if 0 <= token < self.vocab_size else None
        if found is None:
            raise ValueError(f"{token} is no id of this tokenizer, which has {self.vocab_size} entries")
        return found

    @cached_property
    def _by_id(self) -> list[bytes | None]:
        """What each id stands for, and as many None again, which negative indices find."""
        by_id = self._vocabulary.tokens + [None] * self.vocab_size
        for spelling, i in self._vocabulary.special_tokens.items():
            by_id[i] = spelling.encode()
        return by_id

    # Text to ids

    def encode_ordinary(self, text: Text) -> list[int]:
        """The ids of a text in which the spelling of special tokens is text like any other."""
        return self._texts.to_list(text_bytes(text))

    def encode(
        self,
        text: Text,
        allowed_special: SpecialSet = frozenset(),
        disallowed_special: SpecialSet = "all",
    ) -> list[int]:
        """The ids of a text, with tiktoken's rule for special tokens.

        The spelling of a token in `allowed_special` (a set, or "all") becomes its id, and the text is encoded as if
        cut there. The spelling of one in `disallowed_special` ("all": every one not allowed) raises ValueError;
        with disallowed_special=() it is encoded as text. Of spellings that start at the same place, the longest counts.
        """
        data = text_bytes(text)
        allowed = self._special.allowed_in(data, allowed_special, disallowed_special)
        if not allowed:
            return self._texts.to_list(data)
        ids: list[int] = []
        for start, part in self._special.parts(data, allowed):
            with offset_by(start):
                ids += self._texts.to_list(part) if isinstance(part, bytes) else [part]
        return ids

    def encode_to_numpy(
        self,
        text: Text,
        threads: int | None = None,
        *,
        allowed_special: SpecialSet = frozenset(),
        disallowed_special: SpecialSet = "all",
    ) -> np.ndarray:
        """As `encode`, but a uint32 array; a long text is shared out over `threads` (default: one per core)."""
        import numpy as np

        from tokenizer.documents import single_block

        def encode(part: bytes | int, start: int = 0) -> np.ndarray:
            if isinstance(part, int):
                return np.array([part], dtype=np.uint32)
            with offset_by(start):
                return self._texts.to_arrays(single_block(part), threads)[0]

        data = text_bytes(text)
        allowed = self._special.allowed_in(data, allowed_special, disallowed_special)
        if not allowed:
            return encode(data)
        return np.concatenate([encode(part, start) for start, part in self._special.parts(data, allowed)])

    def encode_in_parts(self, text: Text | memoryview) -> Iterator[np.ndarray]:
        """Yield the ids of one text, as `encode_ordinary` gives them, in uint32 arrays that are never all in memory.

        For a very long text without a place to cut it, such as a long run. Each array is overwritten by the next.
        """
        from tokenizer.documents import single_block

        return self._texts.to_parts(single_block(text if isinstance(text, memoryview) else text_bytes(text)))

    def encode_file(self, path: str | os.PathLike, threads: int | None = None) -> np.ndarray:
        """The ids of a whole file as one text: uint32, on `threads` (default: one per core).

        The file is memory-mapped, its bytes are encoded as they are (line ends too, and what is not UTF-8), and special
        spellings in it are text.
        """
        from tokenizer.documents import file_block

        return self._texts.to_arrays(file_block(path), threads)[0]

    def encode_batch(
        self,
        texts: Iterable[Text],
        threads: int | None = None,
        *,
        allowed_special: SpecialSet = frozenset(),
        disallowed_special: SpecialSet = "all",
    ) -> list[list[int]]:
        """As `encode` for each of several texts, on several threads. An error names the text by its index."""
        if isinstance(texts, (str, bytes, bytearray, memoryview)) or not isinstance(texts, Iterable):
            raise ValueError(f"texts must be a list of texts, not a {type(texts).__name__}; encode takes a single text")
        self._special.allowed_in(b"", allowed_special, disallowed_special)
        documents, allowed = [], False
        for number, text in enumerate(texts):
            try:
                document = text_bytes(text)
                allowed = bool(self._special.allowed_in(document, allowed_special, disallowed_special)) or allowed
            except ValueError as error:
                raise ValueError(f"texts[{number}]: {error}") from None
            documents.append(document)
        if allowed:
            special = {"allowed_special": allowed_special, "disallowed_special": disallowed_special}
            encoded = []
            for number, document in enumerate(documents):
                with offset_by(0, f"texts[{number}]: "):
                    encoded.append(self.encode_to_numpy(document, threads, **special).tolist())
            return encoded
        from tokenizer.documents import block_of

        ids, id_offsets = self._texts.to_arrays(block_of(documents), threads)
        ids, ends = ids.tolist(), id_offsets.tolist()
        return [ids[start:end] for start, end in pairwise(ends)]

    def encode_arrow(self, array, threads: int | None = None):
        """Encode an Arrow array of documents (string or binary, large or not, chunked or not): one list of ids each.

        Returns a pyarrow LargeListArray of uint32 of the same length. Special spellings are text. No Python object is
        made per document. ValueError for nulls.
        """
        import pyarrow as pa

        from tokenizer.documents import arrow_block

        if isinstance(array, pa.ChunkedArray):
            encoded = [self.encode_arrow(chunk, threads) for chunk in array.chunks]
            return pa.concat_arrays(encoded or [pa.array([], pa.large_list(pa.uint32()))])
        if not isinstance(array, pa.Array):
            raise ValueError(f"encode_arrow takes a pyarrow array of documents, not {type(array).__name__}")
        ids, id_offsets = self._texts.to_arrays(arrow_block(array), threads)
        return pa.LargeListArray.from_arrays(pa.array(id_offsets), pa.array(ids))

    def warm_up(self, threads: int | None = None) -> None:
        """Load the kernels and build the tables that long texts need, for which the first of them would wait."""
        self._texts.warm_up(threads)

    # Ids to text

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes that ids stand for; special tokens give their spelling. ValueError for an id that is no token."""
        if isinstance(ids, (str, bytes)) or getattr(ids, "ndim", 1) != 1 or not hasattr(ids, "__iter__"):
            raise ValueError(f"ids must be a list of ids, not {repr(ids)[:80]}; a single id goes in a list")
        if hasattr(ids, "tolist"):  # numpy's and Arrow's arrays
            if len(ids) >= MANY_IDS and (decoded := self._decoder.decode(ids)) is not None:
                return decoded
            ids = ids.tolist()
        elif not isinstance(ids, list):
            ids = list(ids)
        try:
            return b"".join(map(self._by_id.__getitem__, ids))
        except (IndexError, TypeError):
            for i in ids:
                if not hasattr(i, "__index__"):
                    raise ValueError(f"ids must be whole numbers, not {i!r}") from None
                self.token_bytes(i)
            raise

    @cached_property
    def _decoder(self) -> Decoder:
        from tokenizer.encoding.decoding import Decoder

        return Decoder(self._by_id[: self.vocab_size])

    def decode(self, ids: Iterable[int], errors: str = "replace") -> str:
        """The text that ids stand for. errors: what to do with bytes that are not UTF-8, as in bytes.decode."""
        return self.decode_bytes(ids).decode("utf-8", errors=errors)
