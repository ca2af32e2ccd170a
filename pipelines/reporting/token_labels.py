"""The tokens of a vocabulary as pictures and tables of a model's inside show them."""

from collections.abc import Iterable

import numpy as np

from pipelines.cli.escapes import visible
from tokenizer import Tokenizer

KINDS = ("word, after a space", "letters", "digits", "punctuation", "white space", "part of a character", "special")


class Vocabulary:
    """The tokens that are used, each by its place among them: its id, and how it is shown. (Ids of a tokenizer can be
    unused, and a model's embedding can have more rows than there are tokens.)"""

    def __init__(self, tok: Tokenizer) -> None:
        special = {token: spelling.encode() for spelling, token in tok.special_tokens.items()}
        lengths = tok.token_byte_lengths.tolist()
        self.ids = [token for token in range(tok.vocab_size) if lengths[token] or token in special]
        self.pieces = [special.get(token) or tok.token_bytes(token) for token in self.ids]
        self.special = [token in special for token in self.ids]

    def labels(self, places: Iterable[int]) -> list[str]:
        """Tokens on one line, white space visible."""
        return [visible(self.pieces[place]) for place in places]

    def labels_of(self, ids: np.ndarray) -> list[str]:
        """The labels of ids (T,) that stand for something."""
        places = {token: place for place, token in enumerate(self.ids)}
        return self.labels(places[token] for token in ids.tolist())

    def words(self, counts: np.ndarray, most: int) -> list[int]:
        """The places of at most so many whole words of three letters or more, by their `counts` (ids); where these say
        nothing, by the order of the merges, which is that of frequency too."""
        found = (
            place
            for place, piece in enumerate(self.pieces)
            if piece[:1] == b" " and len(piece) > 3 and piece[1:].isalpha()
        )
        return sorted(found, key=lambda place: -counts[self.ids[place]])[:most]

    def kinds(self) -> list[int]:
        """Which of KINDS each token is."""
        return [6 if special else _kind(piece) for piece, special in zip(self.pieces, self.special, strict=True)]


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
