"""The tokenizer: byte-level BPE with exact training and exact ids."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np

from tokenizer.counting import PretokenCounts, count_pretokens
from tokenizer.documents import Block, arrow_block, single_block, text_bytes
from tokenizer.patterns import Pattern
from tokenizer.special import DEFAULT_SPECIAL_TOKENS, check_special_tokens
from tokenizer.vocabulary import Vocabulary, trained_vocabulary
from tokenizer.workers import thread_count

Text = str | bytes
SpecialSet = Literal["all"] | Collection[str]


class Tokenizer:
    """Text to ids and back.

    Ids are exact with respect to tiktoken, Hugging Face's tokenizers and transformers (the same vocabulary
    gives the same ids), and merges with respect to tokenizers (byte order gpt2) and rustbpe (raw). What differs:

    - Bytes input is encoded too; bytes that are not UTF-8 are a pretoken each, and decode back exactly.
    - A lone surrogate in a str is a ValueError (tiktoken replaces it silently).
    - Special tokens in the text follow tiktoken's rule (Hugging Face always cuts them out).
    - Text that a regex of one's own leaves unmatched is a pretoken, as in Hugging Face (tiktoken drops it).

    Make one with `train`, `train_from_counts` or `load`. Threads may share it.
    """

    def __init__(self, vocabulary: Vocabulary):
        from tokenizer.encoding import EncoderPool

        self._vocabulary = vocabulary
        self._pool = EncoderPool(vocabulary)
        self._spelled = {i: spelling.encode() for spelling, i in vocabulary.special_tokens.items()}

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
    ) -> Tokenizer:
        """Train a vocabulary on a corpus: a path, several, or an iterable of str, bytes or Arrow batches.

        vocab_size: special tokens, the 256 bytes and merges together. pattern: a name (gpt2, cl100k) or a regex.
        special_tokens come first in the vocabulary; their spelling in the text is text. min_frequency: pairs that
        occur less often are not merged. max_token_length: the most bytes a merged token may have (Hugging Face's
        option of that name allows one less). byte_order: the ids of
        the single bytes, and with them how ties fall: gpt2 as Hugging Face, raw as rustbpe.
        progress: called as (phase, done, total) with the phases "count" (bytes) and "merge" (merges).

        The result does not depend on threads, the order of the documents or how they are batched. A corpus
        that runs out of pairs gives a smaller vocabulary, and a warning. Raises ValueError for what cannot be.
        """
        _check_training(vocab_size, special_tokens, min_frequency, max_token_length, byte_order)
        thread_count(threads)
        counts = count_pretokens(corpus, pattern, threads=threads, progress=progress)
        return cls.train_from_counts(
            counts,
            vocab_size,
            special_tokens=special_tokens,
            min_frequency=min_frequency,
            max_token_length=max_token_length,
            byte_order=byte_order,
            progress=progress,
        )

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
    ) -> Tokenizer:
        """Train on pretokens counted before; the same as `train` on the corpus that they were counted in."""
        special_tokens = _check_training(vocab_size, special_tokens, min_frequency, max_token_length, byte_order)
        from tokenizer.merging import BYTE_ORDERS, learn_merges

        wanted = vocab_size - 256 - len(special_tokens)
        order = BYTE_ORDERS[byte_order]
        merges = learn_merges(
            counts,
            wanted,
            byte_order=order,
            min_frequency=min_frequency,
            max_token_length=max_token_length,
            progress=progress,
        )
        if len(merges) < wanted:
            warnings.warn(
                f"the corpus ran out of pairs that occur at least {max(1, min_frequency)} times: "
                f"the vocabulary has {vocab_size - wanted + len(merges)} entries, not {vocab_size}",
                stacklevel=2,
            )
        return cls(trained_vocabulary(merges, order, special_tokens, counts.pattern))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike,
        *,
        pattern: str | Pattern | None = None,
        special_tokens: dict[str, int] | None = None,
    ) -> Tokenizer:
        """Read a tokenizer from a folder or file.

        A tokenizer.json (or a folder with one) says everything itself. A `.tiktoken` file needs `pattern`, and
        takes `special_tokens` with their ids; so may `vocab.bpe` beside `encoder.json` (pattern gpt2 by default).
        Raises FileNotFoundError, or ValueError that names the file and the field that is damaged or not supported.
        """
        from tokenizer.files import load_vocabulary

        return cls(load_vocabulary(path, pattern, special_tokens))

    def save(self, folder: str | os.PathLike) -> None:
        """Write folder/tokenizer.json, which tokenizers and transformers open too. It appears whole or not at all.

        Raises ValueError for a vocabulary by ranks that the format cannot express.
        """
        from tokenizer.files import save_tokenizer_json

        save_tokenizer_json(self._vocabulary, folder)

    def cuts(self, text: memoryview | bytes, piece_bytes: int) -> list[int]:
        """Byte offsets at which a long UTF-8 text can be cut into pieces of about `piece_bytes` without changing its
        ids; none for a pattern without a name, and fewer where the text offers no place."""
        from tokenizer.cutting import safe_cuts

        return safe_cuts(text, self._vocabulary.pattern, piece_bytes)

    # What it is

    @property
    def vocab_size(self) -> int:
        """The largest id + 1: special tokens, the 256 bytes, merges, and unused ids where a file has them."""
        return len(self._vocabulary.tokens)

    @property
    def special_tokens(self) -> dict[str, int]:
        """Special tokens and their ids."""
        return dict(self._vocabulary.special_tokens)

    @property
    def pattern(self) -> str:
        """The split pattern's name, or its regex where it has none."""
        return str(self._vocabulary.pattern)

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of all that decides ids; the same whatever file format it was read from."""
        return self._vocabulary.fingerprint

    @cached_property
    def merges(self) -> list[tuple[bytes, bytes]]:
        """The merges in order, as pairs of bytes; empty for a vocabulary that is given by ranks alone."""
        tokens = self._vocabulary.tokens
        return [(tokens[left], tokens[right]) for left, right, _ in self._vocabulary.merges.tolist()]

    @property
    def token_byte_lengths(self) -> np.ndarray:
        """int32 (vocab_size,): bytes of each token, 0 for special tokens and unused ids. Read-only."""
        return self._vocabulary.byte_lengths

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token; of a special token its spelling. ValueError for an id that is no token."""
        token = int(token)
        found = self._by_id[token] if 0 <= token < len(self._by_id) else None
        if found is None:
            raise ValueError(f"{token} is no id of this tokenizer, which has {self.vocab_size} entries")
        return found

    @cached_property
    def _by_id(self) -> list[bytes | None]:
        return [self._spelled.get(i, token) for i, token in enumerate(self._vocabulary.tokens)]

    # Text to ids

    def encode_ordinary(self, text: Text) -> list[int]:
        """The ids of a text in which the spelling of special tokens is text like any other."""
        return self._encode(single_block(text_bytes(text)), 1)[0].tolist()

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
        return self.encode_to_numpy(
            text, allowed_special=allowed_special, disallowed_special=disallowed_special, threads=1
        ).tolist()

    def encode_to_numpy(
        self,
        text: Text,
        threads: int | None = None,
        *,
        allowed_special: SpecialSet = frozenset(),
        disallowed_special: SpecialSet = "all",
    ) -> np.ndarray:
        """As `encode`, but a uint32 array; a long text is shared out over `threads` (default: one per core)."""
        threads = thread_count(threads)
        data = text_bytes(text)
        allowed = self._check_special(data, allowed_special, disallowed_special)
        if not allowed:
            return self._encode(single_block(data), threads)[0]
        parts, start = [], 0
        for match in _spellings(allowed).finditer(data):
            parts.append(self._encode(single_block(data[start : match.start()]), threads)[0])
            special = self._vocabulary.special_tokens[match.group().decode()]
            parts.append(np.array([special], dtype=np.uint32))
            start = match.end()
        parts.append(self._encode(single_block(data[start:]), threads)[0])
        return np.concatenate(parts)

    def encode_batch(
        self,
        texts: Iterable[Text],
        threads: int | None = None,
        *,
        allowed_special: SpecialSet = frozenset(),
        disallowed_special: SpecialSet = "all",
    ) -> list[list[int]]:
        """As `encode` for each of several texts, on several threads."""
        threads = thread_count(threads)
        documents = [text_bytes(text) for text in texts]
        allowed = [self._check_special(document, allowed_special, disallowed_special) for document in documents]
        if any(allowed):
            special = {"allowed_special": allowed_special, "disallowed_special": disallowed_special}
            return [self.encode_to_numpy(document, threads, **special).tolist() for document in documents]
        offsets = np.zeros(len(documents) + 1, dtype=np.int64)
        np.cumsum([len(document) for document in documents], out=offsets[1:])
        data = np.frombuffer(b"".join(documents), dtype=np.uint8)
        ids, id_offsets = self._encode(Block(data, offsets), threads)
        ids, ends = ids.tolist(), id_offsets.tolist()
        return [ids[start:end] for start, end in pairwise(ends)]

    def encode_arrow(self, array, threads: int | None = None):
        """Encode an Arrow array of documents (string or binary, large or not, chunked or not): one list of ids each.

        Returns a pyarrow LargeListArray of uint32 of the same length. Special spellings are text. No Python object is
        made per document. ValueError for nulls.
        """
        import pyarrow as pa

        threads = thread_count(threads)
        if isinstance(array, pa.ChunkedArray):
            encoded = [self.encode_arrow(chunk, threads) for chunk in array.chunks]
            return pa.concat_arrays(encoded or [pa.array([], pa.large_list(pa.uint32()))])
        if not isinstance(array, pa.Array):
            raise ValueError(f"encode_arrow takes a pyarrow array of documents, not {type(array).__name__}")
        ids, id_offsets = self._encode(arrow_block(array), threads)
        return pa.LargeListArray.from_arrays(pa.array(id_offsets), pa.array(ids))

    def _encode(self, block: Block, threads: int) -> tuple[np.ndarray, np.ndarray]:
        return self._pool.encode(block, threads)

    def _check_special(self, data: bytes, allowed: SpecialSet, disallowed: SpecialSet) -> frozenset[str]:
        """Raise for a disallowed spelling; return the allowed ones that occur in the text."""
        special = self._vocabulary.special_tokens.keys()
        allowed = special if isinstance(allowed, str) and allowed == "all" else _as_set("allowed_special", allowed)
        if isinstance(disallowed, str) and disallowed == "all":
            disallowed = special - allowed
        else:
            disallowed = _as_set("disallowed_special", disallowed)
        if disallowed and (match := _spellings(disallowed).search(data)):
            spelling = match.group().decode()
            raise ValueError(
                f"the text has the special token {spelling!r} at byte {match.start()}: to encode it as the "
                f"special token pass allowed_special={{{spelling!r}}}, to encode it as text disallowed_special=()"
            )
        return frozenset(spelling for spelling in allowed & special if spelling.encode() in data)

    # Ids to text

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes that ids stand for; special tokens give their spelling. ValueError for an id that is no token."""
        if isinstance(ids, np.ndarray) or hasattr(ids, "to_pylist"):
            ids = ids.tolist()
        ids = list(ids)
        table = self._by_id
        try:
            if ids and min(ids) < 0:
                raise IndexError
            return b"".join([table[i] for i in ids])
        except (IndexError, TypeError):
            for i in ids:
                if not isinstance(i, (int, np.integer)):
                    raise ValueError(f"ids must be whole numbers, not {i!r}") from None
                self.token_bytes(i)
            raise

    def decode(self, ids: Iterable[int], errors: str = "replace") -> str:
        """The text that ids stand for. errors: what to do with bytes that are not UTF-8, as in bytes.decode."""
        return self.decode_bytes(ids).decode("utf-8", errors=errors)


def _spellings(special_tokens: Collection[str]) -> re.Pattern[bytes]:
    longest_first = sorted(special_tokens, key=lambda spelling: (-len(spelling), spelling))
    return re.compile(b"|".join(re.escape(spelling.encode()) for spelling in longest_first))


def _as_set(name: str, value: Collection[str]) -> frozenset[str]:
    if isinstance(value, str):
        raise ValueError(f'{name} must be "all" or a collection of special tokens, not the string {value!r}')
    return frozenset(value)


def _check_training(vocab_size, special_tokens, min_frequency, max_token_length, byte_order) -> tuple[str, ...]:
    special_tokens = check_special_tokens(special_tokens)
    for name, value, least in (("min_frequency", min_frequency, 0), ("max_token_length", max_token_length, 1)):
        if value is None and name == "max_token_length":
            continue
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
    if byte_order not in ("gpt2", "raw"):
        raise ValueError(f"byte_order must be gpt2 or raw, not {byte_order!r}")
    least = 256 + len(special_tokens)
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, (int, np.integer)) or vocab_size < least:
        raise ValueError(
            f"vocab_size must be at least {least} (the 256 bytes and {len(special_tokens)} special tokens), "
            f"not {vocab_size!r}"
        )
    if vocab_size > 2**24:
        raise ValueError(f"vocab_size must be at most {2**24}, not {vocab_size}")
    return special_tokens
