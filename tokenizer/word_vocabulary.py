"""Vocabularies of whole words and of characters: each pretoken is one token, or else unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenizer.encoding.decoder_steps import JOIN
from tokenizer.vocabulary import Vocabulary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Unpack

    from tokenizer.encoding.piece_tables import PieceTables
    from tokenizer.encoding.text_decoding import StepDecoding
    from tokenizer.vocabulary import Common, Encode, EncodeWithSpans, Part


class WordVocabulary(Vocabulary):
    """An immutable vocabulary of words, the WordLevel of `tokenizers`.

    ids: maps words to ids. It may contain special tokens; a word spelled like one gets its id, as in tokenizers.
    unknown: the token of all other words.
    decoder: the steps of decoding, in the form of tokenizer.json; by default words are joined by spaces.

    The caller must check that ids are distinct whole numbers and that `unknown` is a token.
    """

    kind = "words"
    units = "words"
    starts_words = True
    pattern: Any
    continuation = None
    """Words are never cut, so no token continues one."""
    longest_word = 2**31 - 1
    default_decoder = JOIN

    def __init__(
        self,
        *,
        ids: Mapping[str, int],
        unknown: str,
        decoder: Sequence[dict[str, Any]] | None = None,
        **common: Unpack[Common],
    ):
        super().__init__(largest=max(ids.values()), **common)
        self.ids = ids
        self.unknown = unknown
        self.decoder = [{"type": self.default_decoder}] if decoder is None else decoder

    def pretoken_encoder(self) -> Encode:
        ids, unknown = self.ids, self.unknown_id
        return lambda pretoken: [ids.get(pretoken.decode(), unknown)]

    def kernel_tables(self) -> PieceTables:
        from tokenizer.encoding.piece_tables import PieceTables

        return PieceTables(self)

    def decoding(self) -> StepDecoding:
        from tokenizer.encoding.text_decoding import StepDecoding

        return StepDecoding(self)

    def span_encoder(self, encode: Encode) -> EncodeWithSpans:
        from tokenizer.encoding.spans import WordSpans

        return WordSpans(self, encode)

    @property
    def unknown_id(self) -> int:
        return self.ids[self.unknown]

    @property
    def fingerprint_parts(self) -> list[Part]:
        listed = sorted(self.ids.items(), key=lambda item: item[1])
        return [("tokens", [f"{i} {token}" for token, i in listed]), ("rules", [self.unknown])]


class CharacterVocabulary(WordVocabulary):
    """An immutable vocabulary whose tokens are single characters: BPE without merges. Tokens are joined as they are."""

    kind = "characters"
    units = "characters"
    starts_words = False
    default_decoder = "Fuse"
