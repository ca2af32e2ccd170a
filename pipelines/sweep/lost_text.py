"""The cost in bits of the text that tokens lose, for a fair comparison of bits per byte with BPE.

If tokens lose some of the text, their model predicts less than the text. The lost text costs extra bits, of two kinds.
A gap is the white space and deleted characters between two words, unless tokens keep all characters. Gaps cost their
entropy given the general categories of the characters on both sides, and each distinct gap costs 8 bits per byte once.
Unknown words cost 8 bits per byte.
"""

import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import pyarrow as pa

from tokenizer import Tokenizer

FARTHEST = 256  # characters to search for the next word; a word that is not found has itself lost characters
BITS_PER_BYTE = 8


def lost_bits(documents: Sequence[bytes], tokenizer: Tokenizer) -> float:
    """Return an estimate of the bits that restore `documents` from their tokens; 0 if the tokenizer loses nothing."""
    if tokenizer.is_lossless:
        return 0.0
    keeps_gaps = tokenizer.vocabulary.pattern.keeps_characters
    gaps = 0.0 if keeps_gaps else _gap_bits(documents, tokenizer)
    return gaps + BITS_PER_BYTE * _unknown_bytes(documents, tokenizer)


def _gap_bits(documents: Sequence[bytes], tokenizer: Tokenizer) -> float:
    gaps: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for document in documents:
        for before, gap, after in _gaps(document, tokenizer):
            gaps[before, after][gap] += 1
    entropy = math.fsum(
        -count * math.log2(count / counts.total()) for counts in gaps.values() for count in counts.values()
    )
    different = {gap for counts in gaps.values() for gap in counts}
    return entropy + BITS_PER_BYTE * sum(len(gap.encode()) for gap in different)


def _gaps(document: bytes, tokenizer: Tokenizer) -> Iterator[tuple[str, str, str]]:
    """Yield the text between words, with the categories of the characters before and after it; "" at both ends."""
    text, end = document.decode(errors="replace"), 0
    for pretoken in tokenizer.vocabulary.pattern.pretokens(text.encode()):
        word = pretoken.decode().strip(" ")
        start = text.find(word, end, end + len(word) + FARTHEST) if word else -1
        if start >= 0:
            yield _category(text[max(0, end - 1) : end]), text[end:start], _category(word[0])
            end = start + len(word)
    yield _category(text[max(0, end - 1) : end]), text[end:], ""


def _category(character: str) -> str:
    return unicodedata.category(character) if character else ""


def _unknown_bytes(documents: Sequence[bytes], tokenizer: Tokenizer) -> int:
    """Return the bytes of the words that are unknown tokens."""
    words = Counter(word for document in documents for word in tokenizer.vocabulary.pattern.pretokens(document))
    ids = tokenizer.encode_arrow(pa.array(list(words), pa.large_binary())).to_pylist()
    unknown = tokenizer.vocabulary.unknown_id
    return sum(len(word) * words[word] for word, of_word in zip(words, ids, strict=True) if unknown in of_word)
