"""The part of the original text that each token stands for, in bytes and in characters, in plain Python."""

from __future__ import annotations

import codecs
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import accumulate, pairwise

from tokenizer.text import character_starts, nfc, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenizer.bpe_vocabulary import BytePairVocabulary
    from tokenizer.word_vocabulary import WordVocabulary
    from tokenizer.wordpiece_vocabulary import WordPieceVocabulary

Spans = list[tuple[int, int]]
CACHED_WORDS = 1 << 16


def merged_spans(
    vocabulary: BytePairVocabulary, encode: Callable[[bytes], list[int]], data: bytes
) -> tuple[list[int], Spans]:
    """Return the ids of a text and the bytes that each stands for, for byte-level BPE."""
    ids = encode(data)
    tokens = vocabulary.tokens
    ends = list(accumulate((len(tokens[i] or b"") for i in ids), initial=0))
    spans = list(pairwise(ends))
    if vocabulary.normalizer is not None and not vocabulary.normalizer.is_nfc:
        raise ValueError("offsets are not supported for this vocabulary, whose normalizer is not NFC: use encode")
    if vocabulary.pattern.drops:
        raise ValueError("offsets are not supported for this vocabulary, whose pre-tokenizer drops text: use encode")
    if vocabulary.normalizer is None and not vocabulary.pattern.rewrites:
        return ids, spans
    of_bytes = _spans_of_bytes(vocabulary, data)
    assert len(of_bytes) == ends[-1], "tokens have as many bytes as the rewritten text"
    return ids, [(of_bytes[start][0], of_bytes[end - 1][1]) for start, end in spans]


def _spans_of_bytes(vocabulary: BytePairVocabulary, data: bytes) -> Spans:
    """Return the bytes of the text that each byte of its rewritten form stands for.

    A character composed by NFC stands for all its parts. A space that the pre-tokenizer inserts before a word stands
    for the word's first byte.
    """
    spans: Spans = []
    forms: list[bytes] = []
    at = 0
    normalizes = vocabulary.normalizer is not None
    for group in _compose(data) if normalizes else [data]:
        forms.append(nfc(group) if normalizes else group)
        if forms[-1] == group:
            spans += [(start, start + 1) for start in range(at, at + len(group))]
        else:
            spans += [(at, at + len(group))] * len(forms[-1])
        at += len(group)
    if not vocabulary.pattern.rewrites:
        return spans
    normalized = b"".join(forms)
    with_spaces: Spans = []
    at = 0
    for pretoken in vocabulary.pattern.pretokens(normalized):
        length = len(pretoken)
        if pretoken[:1] == b" " and normalized[at : at + 1] != b" ":
            with_spaces.append(spans[at])
            length -= 1
        with_spaces += spans[at : at + length]
        at += length
    return with_spaces


def _compose(data: bytes) -> Iterator[bytes]:
    """Yield a text in the smallest parts that NFC changes separately."""
    group = ""
    for character in data.decode(errors="surrogateescape"):
        if group and not _composes(group, character):
            yield group.encode(errors="surrogateescape")
            group = ""
        group += character
    yield group.encode(errors="surrogateescape")


def _composes(group: str, character: str) -> bool:
    """Return whether NFC can change a group of characters together with the next one."""
    if character.isascii():
        return False
    both = (group + character).encode(errors="surrogateescape")
    return unicodedata.combining(character) > 0 or nfc(both) != (
        nfc(group.encode(errors="surrogateescape")) + nfc(character.encode(errors="surrogateescape"))
    )


class PieceSpans:
    """Maps a text to its WordPiece ids and the bytes that each stands for."""

    def __init__(self, vocabulary: WordPieceVocabulary, encode: Callable[[bytes], list[int]]):
        """encode: from a word to its ids."""
        self._vocabulary = vocabulary
        self._encode = lru_cache(maxsize=CACHED_WORDS)(encode)
        self._lengths = {i: len(token) for token, i in vocabulary.ids.items()}
        self._unknown = [vocabulary.ids[vocabulary.unknown]]

    def __call__(self, data: bytes) -> tuple[list[int], Spans]:
        characters, starts = data.decode(errors="surrogateescape"), character_starts(data)
        ids: list[int] = []
        spans: Spans = []
        words: Any = self._vocabulary.pattern  # BERT's
        for word, places in words.aligned_words(characters):
            found = self._encode(word.encode())
            first = 0
            for i in found:
                end = len(word) if found == self._unknown else first + self._length(i, first > 0)
                from_places = places[first:end]  # not ascending if combining marks were sorted
                spans.append((starts[min(from_places)], starts[max(from_places) + 1]))
                first = end
            ids += found
        return ids, spans

    def _length(self, token: int, continues: bool) -> int:
        """Return the number of characters of a word that a token stands for."""
        return self._lengths[token] - (len(self._vocabulary.prefix) if continues else 0)


class WordSpans:
    """Maps a text to its ids and the bytes that each stands for, if each pretoken is a token and a part of the text."""

    def __init__(self, vocabulary: WordVocabulary, encode: Callable[[bytes], list[int]]):
        """encode: from a text to its ids."""
        if vocabulary.normalizer is not None or vocabulary.pattern.spelling not in ("whitespace", "characters"):
            raise ValueError(
                f"offsets of {vocabulary.units} need the pre-tokenizer of training and no normalizer: use encode"
            )
        self._pattern, self._encode = vocabulary.pattern, encode

    def __call__(self, data: bytes) -> tuple[list[int], Spans]:
        text, starts = read_text(data), character_starts(data)
        spans: Spans = []
        end = 0
        for pretoken in self._pattern.pretokens(data):
            word = pretoken.decode()
            start = text.index(word, end)  # only white space is before it, and words have none
            end = start + len(word)
            spans.append((starts[start], starts[end]))
        return self._encode(data), spans


def without_spaces(data: bytes, spans: Spans) -> Spans:
    """Return spans without the spaces at their ends; a span of spaces becomes the empty one at its end."""
    trimmed = []
    for start, end in spans:
        part = data[start:end]
        first = end - len(part.lstrip(b" "))
        trimmed.append((first, max(first, start + len(part.rstrip(b" ")))))
    return trimmed


_MARKED = "bytelm.invalid-utf8"
_MARK = 0xD800  # plus the number of invalid bytes that become one U+FFFD; valid UTF-8 has no surrogates


def _mark(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return chr(_MARK + error.end - error.start), error.end


codecs.register_error(_MARKED, _mark)


def decoded_with_starts(data: bytes, errors: str = "strict") -> tuple[str, list[int] | range]:
    """Return the text of UTF-8, and the byte offset of each character and of the text's end.

    errors: "replace" writes U+FFFD for invalid UTF-8, as `bytes.decode` does; "strict" raises ValueError.
    """
    if errors not in ("replace", "strict"):
        raise ValueError(f"errors must be 'replace' or 'strict', not {errors!r}")
    text = data.decode("utf-8", _MARKED if errors == "replace" else errors)
    if len(text) == len(data) and text.isascii():
        return text, range(len(text) + 1)
    return text.translate(_REPLACED), list(accumulate(map(_byte_length, text), initial=0))


_REPLACED = {_MARK + length: "\ufffd" for length in range(1, 5)}


def _byte_length(character: str) -> int:
    code_point = ord(character)
    if _MARK <= code_point < 0xE000:
        return code_point - _MARK
    return 1 if code_point < 0x80 else 2 if code_point < 0x800 else 3 if code_point < 0x10000 else 4


def offsets_of(byte_offsets: Iterable[int], starts: list[int] | range) -> list[int]:
    """Return the index of the character that each byte offset is in. starts: as from `decoded_with_starts`."""
    if isinstance(starts, range):
        return list(byte_offsets)
    return [bisect_right(starts, offset) - 1 for offset in byte_offsets]


def in_characters(data: bytes, spans: Spans) -> Spans:
    """Return spans in the characters of a text for spans in its bytes."""
    _, starts = decoded_with_starts(data)
    firsts = offsets_of([first for first, _ in spans], starts)
    lasts = offsets_of([last - 1 for _, last in spans], starts)
    return [(first, last + 1) for first, last in zip(firsts, lasts, strict=True)]
