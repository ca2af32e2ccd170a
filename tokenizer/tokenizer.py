"""The public tokenizer API: byte-level BPE and WordPiece with exact training and exact ids."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise

from tokenizer.encoding.kinds import decoding
from tokenizer.encoding.special_spellings import SpecialTokens
from tokenizer.encoding.text_encoder import TextEncoder, offset_by
from tokenizer.special import DEFAULT_SPECIAL_TOKENS
from tokenizer.splitting.patterns import Pattern
from tokenizer.text import text_bytes

# Importing these takes longer than encoding a short text, which needs none of them.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from tokenizer.encoding.kinds import AnyVocabulary
    from tokenizer.encoding.special_spellings import SpecialSet
    from tokenizer.splitting.bert import BertWords
    from tokenizer.training.counting import PretokenCounts, Progress

    Text = str | bytes


class Tokenizer:
    """A byte-level BPE or WordPiece tokenizer: text to ids and back. Create one with `train` or `load`.

    The same vocabulary gives the same ids as in tiktoken, tokenizers and transformers. Training gives the same merges
    as tokenizers (byte_order="gpt2") and rustbpe ("raw"). The differences:

    - Bytes are accepted, too. Each byte of invalid UTF-8 is a pretoken and decodes exactly.
    - A lone surrogate in a str raises ValueError; tiktoken replaces it silently.
    - Special tokens in the text follow tiktoken's rule; Hugging Face always splits them off.
    - Text that a custom regex does not match is a pretoken, as in Hugging Face; tiktoken drops it.
    - No special tokens are added around a text, as with Hugging Face's add_special_tokens=False.
    - A byte without a token raises ValueError; Hugging Face drops it or makes it an unknown token.

    If a file asks for NFC, text is normalized before encoding, as in Hugging Face, and decodes to its normalized form.
    In bytes, only the valid UTF-8 is normalized.

    WordPiece tokenizers give the same ids and decoded text as BERT's in `tokenizers`, such as lower-case words with
    single spaces. `is_lossless` is therefore false, and tokens have no fixed number of bytes. Each byte of invalid
    UTF-8 is read as U+FFFD, which BERT's normalizer deletes.

    Threads may share a tokenizer. Plain Python encodes the first short texts; the kernels are loaded on demand.
    """

    def __init__(self, vocabulary: AnyVocabulary):
        self.vocabulary = vocabulary  # tokens, ids and merges, independent of file formats
        self._special = SpecialTokens(vocabulary.special_tokens, vocabulary.added_flags, vocabulary.normalizer)
        self._texts = TextEncoder(vocabulary)
        self._decoding = decoding(vocabulary)

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[AnyVocabulary]]:
        return Tokenizer, (self.vocabulary,)

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocab_size} entries, pattern {self.vocabulary.pattern})"

    # Training, loading and saving

    @classmethod
    def train(
        cls,
        corpus: object,
        vocab_size: int = 32768,
        pattern: str | Pattern | BertWords | None = None,
        special_tokens: Sequence[str] = DEFAULT_SPECIAL_TOKENS,
        min_frequency: int = 2,
        max_token_length: int | None = None,
        byte_order: Literal["gpt2", "raw"] = "gpt2",
        threads: int | None = None,
        progress: Progress | None = None,
        memory: int | None = None,
        *,
        model: Literal["bpe", "wordpiece"] = "bpe",
        limit_alphabet: int | None = None,
        alphabet_order: str | None = None,
    ) -> Tokenizer:
        """Return a tokenizer trained on a corpus. The result is independent of threads, document order and batching.

        corpus: the path of a text file, or an iterable of documents: str and bytes are texts, `Path` objects are files,
            and Arrow arrays or record batches hold many texts.
        vocab_size: number of special tokens, the 256 bytes (WordPiece: the characters) and merges together.
        pattern: a name (gpt2, cl100k, o200k, llama3, qwen2) or a regex, by default cl100k; for WordPiece bert-uncased
            (the default) or bert-cased.
        special_tokens: the first entries of the vocabulary. Their spelling in the corpus is ordinary text. WordPiece
            appends [UNK] if it is not among them.
        min_frequency: pairs that occur less often are not merged.
        max_token_length: largest length of a merged token in bytes. Hugging Face's option allows one less.
        byte_order: order of the single bytes' ids, which breaks ties: "gpt2" as in Hugging Face, "raw" as in rustbpe.
        progress: called as (phase, done, total). The phases are "count" (bytes), "combine" (pretokens; only if counts
            were spilled) and "merge" (merges).
        memory: limit in bytes, without the interpreter and the text being read; None for no limit. Counts that do not
            fit are spilled to disk, as in `count_pretokens`. Merging needs all distinct pretokens in memory.
        limit_alphabet: WordPiece only: number of characters to keep, the most frequent. Others are left out of words.
        alphabet_order: WordPiece only: the order of the ids of characters within words, which breaks ties; by default
            the order of code points. With the order of a vocabulary from tokenizers, training gives that vocabulary.

        Warns if the corpus runs out of pairs; the vocabulary is then smaller. Raises ValueError for an invalid
        argument, and before merging if the distinct pretokens do not fit in `memory`.
        """
        from tokenizer.training.counting import count_pretokens
        from tokenizer.training.forecast import MergeForecast
        from tokenizer.training.train import Options, train_vocabulary
        from tokenizer.workers import thread_count

        alphabet = (limit_alphabet, alphabet_order)
        options = Options(model, vocab_size, special_tokens, min_frequency, max_token_length, byte_order, *alphabet)
        thread_count(threads)
        forecast = MergeForecast(memory) if memory is not None else None
        splitter = options.splitter(pattern)
        counts = count_pretokens(corpus, splitter, threads=threads, progress=progress, memory=memory, forecast=forecast)
        return cls(train_vocabulary(counts, options, progress, memory))

    @classmethod
    def train_from_counts(
        cls,
        counts: PretokenCounts,
        vocab_size: int = 32768,
        special_tokens: Sequence[str] = DEFAULT_SPECIAL_TOKENS,
        min_frequency: int = 2,
        max_token_length: int | None = None,
        byte_order: Literal["gpt2", "raw"] = "gpt2",
        progress: Progress | None = None,
        memory: int | None = None,
        *,
        model: Literal["bpe", "wordpiece"] = "bpe",
        limit_alphabet: int | None = None,
        alphabet_order: str | None = None,
    ) -> Tokenizer:
        """Return a tokenizer trained on pretoken counts: the same one as `train` on the counted corpus.

        memory: limit for merging in bytes. If merging needs more, ValueError says so beforehand, with the remedies.
        """
        from tokenizer.training.train import Options, train_vocabulary

        alphabet = (limit_alphabet, alphabet_order)
        options = Options(model, vocab_size, special_tokens, min_frequency, max_token_length, byte_order, *alphabet)
        return cls(train_vocabulary(counts, options, progress, memory))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        pattern: str | Pattern | None = None,
        special_tokens: dict[str, int] | None = None,
        normalizer: Literal["NFC"] | None = None,
    ) -> Tokenizer:
        """Return the tokenizer in a folder or file.

        - tokenizer.json, or a folder with one. It needs no arguments.
        - tiktoken ranks: `.tiktoken`, or another name such as Llama 3's tokenizer.model. They need `pattern`. Published
          files are recognised by content or name, such as cl100k_base: pattern and special tokens are then known.
        - BERT's `vocab.txt`. It needs pattern="bert-uncased" or "bert-cased", or tokenizer_config.json beside it.
        - `vocab.bpe` with `encoder.json`, or `merges.txt` with `vocab.json`. `pattern` defaults to the one of the
          tokenizer_class in tokenizer_config.json, otherwise gpt2. Qwen 2's class also implies NFC.

        special_tokens: spellings and ids, for the last three formats. With merges, they default to those in the other
        files that transformers writes. normalizer: "NFC" for a vocabulary on normalized text, such as Qwen's.

        In `encode`, added tokens that are not special follow the rule of special tokens; lstrip, rstrip, single_word
        and normalized mean what they mean in tokenizers. `save` writes the post-processor again; it changes no ids.
        Raises FileNotFoundError, and ValueError with the file and the field that is damaged or not supported.
        """
        from tokenizer.formats.vocabulary_files import load_vocabulary

        return cls(load_vocabulary(path, pattern, special_tokens, normalizer))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write folder/tokenizer.json atomically, in the format of tokenizers and transformers. Ranks become merges.

        Raises ValueError if a special token has the spelling of an ordinary token.
        """
        from tokenizer.formats.vocabulary_files import save_tokenizer_json

        save_tokenizer_json(self.vocabulary, folder)

    def cuts(self, text: memoryview | bytes, piece_bytes: int) -> list[int]:
        """Return byte offsets that cut a long UTF-8 text into pieces of about `piece_bytes` without changing its ids.

        The list is shorter if the text has no safe place to cut, and empty for a custom pattern.
        """
        from tokenizer.encoding.cutting import safe_cuts

        return safe_cuts(text, self.vocabulary.pattern, piece_bytes)

    # Properties

    @property
    def vocab_size(self) -> int:
        """The largest id + 1: special tokens, the 256 bytes, merges, and a file's unused ids."""
        return self.vocabulary.size

    @property
    def special_tokens(self) -> dict[str, int]:
        """The id of each special token, by spelling."""
        return dict(self.vocabulary.special_tokens)

    @property
    def kind(self) -> str:
        """The kind of vocabulary: "bpe" or "wordpiece"."""
        return self.vocabulary.kind

    @property
    def is_lossless(self) -> bool:
        """Whether ids decode exactly to the normalized text. WordPiece loses case, accents or white space."""
        return self.vocabulary.is_lossless

    @property
    def pattern(self) -> str:
        """The name of the split pattern or of BERT's words, or the regex of a custom one."""
        return str(self.vocabulary.pattern)

    @property
    def normalizer(self) -> str | None:
        """The Unicode normalization before encoding: "NFC" or None."""
        return self.vocabulary.normalizer

    @property
    def fingerprint(self) -> str:
        """The hexadecimal SHA-256 of everything that decides ids. It does not depend on the file format."""
        return self.vocabulary.fingerprint

    @cached_property
    def merges(self) -> list[tuple[bytes, bytes]]:
        """The merges in order, as pairs of bytes; none for WordPiece. For ranks, merges that give the same ids."""
        tokens = self.vocabulary.tokens
        return [(tokens[left], tokens[right]) for left, right, _ in self.vocabulary.merges.tolist()]

    @property
    def token_byte_lengths(self) -> npt.NDArray[np.int32]:
        """The bytes of each token, int32 (vocab_size,), 0 for special and unused ids. ValueError for WordPiece."""
        return self.vocabulary.byte_lengths

    @property
    def ordinary(self) -> npt.NDArray[np.bool_]:
        """Whether each id stands for text, bool (vocab_size,): False for special tokens and unused ids."""
        return self._decoding.ordinary

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; for special and WordPiece tokens, the spelling. ValueError for an unknown id."""
        return self._decoding.token_bytes(token)

    def added_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to a preceding text; in WordPiece, a word adds a space before it."""
        return self._decoding.added_bytes(token)

    # Text to ids

    def encode_ordinary(self, text: Text) -> list[int]:
        """Return the ids of a text. The spelling of a special token is ordinary text."""
        return self._texts.to_list(text_bytes(text))

    def encode(
        self,
        text: Text,
        allowed_special: SpecialSet = frozenset(),
        disallowed_special: SpecialSet = "all",
    ) -> list[int]:
        """Return the ids of a text, with tiktoken's rule for special tokens.

        allowed_special: a set, or "all". The spelling of one of these tokens becomes its id and splits the text.
        disallowed_special: a set, or "all" for every token that is not allowed. Their spelling raises ValueError.
        Any other spelling is ordinary text. If several spellings start at one position, the longest counts.
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
    ) -> npt.NDArray[np.uint32]:
        """Return the ids as `encode` does, as a uint32 array. `threads` (default: one per core) share a long text."""
        import numpy as np

        from tokenizer.documents import single_block

        def encode(part: bytes | int, start: int = 0) -> npt.NDArray[np.uint32]:
            if isinstance(part, int):
                return np.array([part], dtype=np.uint32)
            with offset_by(start):
                return self._texts.to_arrays(single_block(part), threads)[0]

        data = text_bytes(text)
        allowed = self._special.allowed_in(data, allowed_special, disallowed_special)
        if not allowed:
            return encode(data)
        return np.concatenate([encode(part, start) for start, part in self._special.parts(data, allowed)])

    def encode_in_parts(self, text: Text | memoryview) -> Iterator[npt.NDArray[np.uint32]]:
        """Yield the ids of `encode_ordinary` in uint32 arrays, so that they are never in memory all at once.

        Use it for a very long text that cannot be cut, such as a long run. The next array overwrites the array.
        """
        from tokenizer.documents import single_block

        return self._texts.to_parts(single_block(text if isinstance(text, memoryview) else text_bytes(text)))

    def encode_file(self, path: str | os.PathLike[str], threads: int | None = None) -> npt.NDArray[np.uint32]:
        """Return the ids of a file as one text: a uint32 array, computed on `threads` (default: one per core).

        The file is memory-mapped. Its bytes are not changed: line ends and invalid UTF-8 stay. The spelling of a
        special token is ordinary text.
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
        """Return the ids of each text, as `encode` does, computed on `threads`. Errors give the index of the text."""
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
            encoded = []
            for number, document in enumerate(documents):
                with offset_by(0, f"texts[{number}]: "):
                    ids = self.encode_to_numpy(
                        document, threads, allowed_special=allowed_special, disallowed_special=disallowed_special
                    )
                encoded.append(ids.tolist())
            return encoded
        from tokenizer.documents import block_of

        ids, id_offsets = self._texts.to_arrays(block_of(documents), threads)
        listed, ends = ids.tolist(), id_offsets.tolist()
        return [listed[start:end] for start, end in pairwise(ends)]

    def encode_arrow(self, array: pa.Array | pa.ChunkedArray, threads: int | None = None) -> pa.LargeListArray:
        """Return the ids of an Arrow array of documents: a LargeListArray of uint32 with one list per document.

        array: string or binary, large or not, chunked or not. The spelling of a special token is ordinary text. No
        Python object is created per document. Raises ValueError for nulls.
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
        """Load the kernels and build their tables now, so that the first long text does not wait for them."""
        self._texts.warm_up(threads)

    # Ids to text

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of the ids. Special tokens give their spelling. Raises ValueError for an unknown id."""
        return self._decoding.decode(ids)

    def decode(self, ids: Iterable[int], errors: str = "replace") -> str:
        """Return the text of the ids. errors: how to handle invalid UTF-8, as in `bytes.decode`."""
        return self.decode_bytes(ids).decode("utf-8", errors=errors)
