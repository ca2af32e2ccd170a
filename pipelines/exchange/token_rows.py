"""The rows of a model that belong to the tokens of another vocabulary."""

import re
from collections.abc import Callable, Sequence

from lm.new_entries import NEW
from tokenizer import Tokenizer
from tokenizer.vocabulary import Vocabulary

_BYTE = re.compile(rb"<0x([0-9A-F]{2})>")
_MARK = "▁".encode()
Reading = bytes | str
"""What a token stands for: bytes are text, a str is a name"""


def token_rows(old: Tokenizer, new: Tokenizer) -> tuple[list[int], list[list[int]]]:
    """Return the old id of each new id, NEW if there is none, and for each NEW one the old ids of its text.

    Special tokens have the row of the same name, other tokens that of the same text. A word of WordPiece is the text
    after a space, or else without it; `##ing` is the text "ing". A token such as `<0x41>` is the byte, unless its
    vocabulary also has the token `A`: no text needs `<0x41>` then, and with an equal row it would take half of the
    probability of `A`.
    """
    known: dict[Reading, int] = {}
    listed = _readings(old)
    for choice in (0, 1):  # the first reading of a token decides before the second one of another
        for i, readings in enumerate(listed):
            for reading in readings[choice : choice + 1]:
                known.setdefault(reading, i)
    pieces_of = _pieces(old, known)
    rows: list[int] = []
    pieces: list[list[int]] = []
    for readings in _readings(new):
        row = next((known[reading] for reading in readings if reading in known), NEW)
        rows.append(row)
        if row == NEW:
            text = next((reading for reading in readings if isinstance(reading, bytes)), b"")
            pieces.append(pieces_of(text))
    return rows, pieces


def _readings(tok: Tokenizer) -> list[Sequence[Reading]]:
    """Return the readings of each id, the closest one first; none for an unused id."""
    vocabulary = tok.vocabulary
    listed = [() if token is None else _readings_of(vocabulary, token) for token in vocabulary.tokens]
    for spelling, i in [*vocabulary.unreachable.items(), *tok.special_tokens.items()]:
        listed[i] = (spelling,)
    texts = {readings[0] for readings in listed if readings}
    return [readings[:1] if _is_byte(readings) and readings[1] in texts else readings for readings in listed]


def _is_byte(readings: Sequence[Reading]) -> bool:
    return len(readings) == 2 and isinstance(readings[0], str) and bool(_BYTE.fullmatch(readings[0].encode()))


def _readings_of(vocabulary: Vocabulary, token: bytes) -> Sequence[Reading]:
    prefix, suffix = vocabulary.prefix.encode(), getattr(vocabulary, "suffix", "").encode()
    if getattr(vocabulary, "byte_fallback", False) and (byte := _BYTE.fullmatch(token)):
        return token.decode(), bytes.fromhex(byte[1].decode())
    if prefix and token.startswith(prefix):
        return (token.removeprefix(prefix),)
    if prefix or vocabulary.starts_words:
        return b" " + token, token
    if suffix and token.endswith(suffix):
        return token.decode(), token.removesuffix(suffix)
    return (token.replace(_MARK, b" ") if vocabulary.pattern.marks_spaces else token,)


def _pieces(old: Tokenizer, known: dict[Reading, int]) -> Callable[[bytes], list[int]]:
    """Return the function from a text to its old ids, without a space that only the start of a text gets."""
    vocabulary, encode = old.vocabulary, old.vocabulary.pretoken_encoder()
    unknown = {vocabulary.unknown_id, *range(vocabulary.size, vocabulary.size + len(vocabulary.missing_bytes))}

    def pieces(text: bytes) -> list[int]:
        if vocabulary.kind != "bpe" and not _is_text(text):
            return [known[byte] for byte in (text[i : i + 1] for i in range(len(text))) if byte in known]
        normalized = text if vocabulary.normalizer is None else vocabulary.normalizer.apply(text)
        pretokens = [*vocabulary.pattern.pretokens(normalized)]
        if _leading_spaces(b"".join(pretokens)) > _leading_spaces(text):
            pretokens[0] = pretokens[0][1:]
        return [i for pretoken in pretokens if pretoken for i in encode(pretoken) if i not in unknown]

    return pieces


def _leading_spaces(text: bytes) -> int:
    return len(text) - len(text.lstrip(b" "))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
