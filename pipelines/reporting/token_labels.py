"""Labels and kinds of the tokens of a vocabulary, for plots and tables."""

from collections.abc import Iterable
from unicodedata import bidirectional, category

import numpy as np

from pipelines.cli.escapes import visible, whole_characters
from tokenizer import Tokenizer

KINDS = ("word, after a space", "letters", "digits", "punctuation", "white space", "part of a character", "special")
LONGEST_EXAMPLE = 1000  # bytes of a token in a summary


class TokenLabels:
    """The used tokens of a tokenizer, in the order of their ids; the place of a token is its index there.

    Ids of a tokenizer can be unused, and a model's embedding can have more rows than its tokenizer has ids.
    """

    def __init__(self, tok: Tokenizer) -> None:
        self._tokenizer = tok
        special = {token: spelling.encode() for spelling, token in tok.special_tokens.items()}
        ordinary = tok.ordinary.tolist()
        self.ids = [token for token in range(tok.vocab_size) if ordinary[token] or token in special]
        self.pieces = [special.get(token) or tok.token_bytes(token) for token in self.ids]
        self._added = [special.get(token) or tok.added_bytes(token) for token in self.ids]  # to the decoded text
        self.special = [token in special for token in self.ids]

    def at(self, places: Iterable[int]) -> list[str]:
        """Return labels of tokens, on one line, with visible white space."""
        return [visible(self.pieces[place]) for place in places]

    def text(self, ids: np.ndarray) -> str:
        """Return the text of used ids (T,)."""
        return whole_characters(self._tokenizer.decode_bytes(ids.tolist()))

    def of_ids(self, ids: np.ndarray) -> list[str]:
        """Return the labels of the used ids (T,) of a text.

        In a text with right-to-left letters, the labels run right to left too. They begin with their positions, because
        axes run from left to right.
        """
        places = {token: place for place, token in enumerate(self.ids)}
        labels = self.at(places[token] for token in ids.tolist())
        leftward = any(bidirectional(character) in ("R", "AL") for label in labels for character in label)
        if not leftward:
            return labels
        # Marks set the direction of a label, and of the bytes of an incomplete character in it.
        labels = [label.replace("\\x", "\u200e\\x") for label in labels]
        return [f"\u200f{number} {label}" for number, label in enumerate(labels, 1)]

    def words(self, counts: np.ndarray, most: int) -> list[int]:
        """Return the places of at most `most` whole words of three letters or more, the most frequent first.

        `counts` are by id. Words of equal count are in the order of their ids, which is roughly by frequency.
        """
        found = (place for place, piece in enumerate(self._added) if _is_word(piece))
        return sorted(found, key=lambda place: -counts[self.ids[place]])[:most]

    def kinds(self) -> list[int]:
        """Return the kind of each token, as an index into KINDS."""
        return [6 if special else _kind(piece) for piece, special in zip(self._added, self.special, strict=True)]


def _is_word(piece: bytes) -> bool:
    """Return whether a token is a space and at least three letters, which can have marks such as accents."""
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return False
    return text[:1] == " " and len(text) > 3 and all(category(character)[0] in "LM" for character in text[1:])


def _kind(piece: bytes) -> int:
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return 5
    bare = text.strip()
    if not bare:
        return 4
    if any(character.isdigit() for character in bare):
        return 2
    if any(character.isalpha() for character in bare):
        return 0 if text[0] == " " else 1
    return 3


def shorten(spelled: str) -> str:
    """Return `spelled`, cut to 16 characters for a table."""
    return spelled if len(spelled) <= 16 else spelled[:15] + "…"
