"""The WordPiece vocabulary: words are cut into the longest tokens from left to right.

Source: Devlin et al., "BERT" (2019), after Schuster and Nakajima (2012).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenizer.splitting.bert_splitter import BertWords
from tokenizer.vocabulary import Vocabulary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Unpack

    from tokenizer.encoding.piece_tables import PieceTables
    from tokenizer.encoding.spans import PieceSpans
    from tokenizer.encoding.text_decoding import StepDecoding
    from tokenizer.splitting.chains import Chain
    from tokenizer.vocabulary import Common, Encode, Part

UNKNOWN = "[UNK]"
CONTINUATION = "##"
LONGEST_WORD = 100  # characters


class WordPieceVocabulary(Vocabulary):
    """An immutable WordPiece vocabulary.

    ids: maps tokens to ids. It may contain special tokens; a word spelled like one gets its id, as in tokenizers. Other
    special tokens have the ids that follow, from the number of entries on, as tokenizers gives them.
    unknown: the token of a word that no tokens spell. continuation: the start of tokens that continue a word.
    longest_word: longer words, in code points, are unknown.
    decoder: the steps of decoding, in the form of tokenizer.json; by default those of BERT.
    learned_merges: the merges of training in order, as pairs of tokens. Encoding does not use them, and files do not
    keep them.

    The caller must check that ids are distinct whole numbers and that `unknown` is a token.
    """

    kind = "wordpiece"
    merges_characters = True
    units = "WordPiece tokens"
    starts_words = True
    pattern: BertWords | Chain

    def __init__(
        self,
        *,
        ids: Mapping[str, int],
        unknown: str = UNKNOWN,
        continuation: str = CONTINUATION,
        longest_word: int = LONGEST_WORD,
        decoder: Sequence[dict[str, Any]] | None = None,
        learned_merges: Sequence[tuple[str, str]] = (),
        **common: Unpack[Common],
    ):
        super().__init__(largest=max(ids.values()), **common)
        self.ids = ids
        self.unknown = unknown
        self.continuation = continuation
        self.longest_word = longest_word
        self.decoder = decoder_of_bert(continuation) if decoder is None else decoder
        self.learned_merges = learned_merges

    @property
    def prefix(self) -> str:  # type: ignore[override]  # depends on the file
        """The prefix of tokens that continue a word."""
        return self.continuation

    def pretoken_encoder(self) -> Encode:
        from tokenizer.encoding.python_encoder import PieceEncoder

        return PieceEncoder(self).encode

    def kernel_tables(self) -> PieceTables:
        from tokenizer.encoding.piece_tables import PieceTables

        return PieceTables(self)

    def decoding(self) -> StepDecoding:
        from tokenizer.encoding.text_decoding import StepDecoding

        return StepDecoding(self)

    def span_encoder(self, encode: Encode) -> PieceSpans:
        from tokenizer.encoding.spans import PieceSpans

        if not isinstance(self.pattern, BertWords):
            raise ValueError("offsets are only supported for WordPiece with BERT's words: use encode")
        return PieceSpans(self, self.pretoken_encoder())

    @property
    def unknown_id(self) -> int:
        return self.ids[self.unknown]

    @property
    def learned_pairs(self) -> list[tuple[bytes, bytes]]:
        return [(left.encode(), right.encode()) for left, right in self.learned_merges]

    @property
    def fingerprint_parts(self) -> list[Part]:
        listed = sorted(self.ids.items(), key=lambda item: item[1])
        return [
            ("tokens", [f"{i} {token}" for token, i in listed]),
            ("rules", [self.unknown, self.prefix, str(self.longest_word)]),
        ]


def decoder_of_bert(prefix: str, *, cleanup: bool = True) -> list[dict[str, Any]]:
    """Return the step of decoding of BERT: words with spaces between them. cleanup: join punctuation to words."""
    return [{"type": "WordPiece", "prefix": prefix, "cleanup": cleanup}]
