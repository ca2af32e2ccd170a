"""The base of the two kinds that SentencePiece models have: Unigram, and BPE over characters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizer.kinds.kind import Kind, new_spellings
from tokenizer.splitting.metaspace_splitter import MetaspaceWords, metaspace_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenizer.splitting.splitter import Splitter
    from tokenizer.vocabulary import Vocabulary

UNKNOWN_PIECE = "<unk>"


class SentencePieceKind(Kind):
    """A kind whose vocabularies with a `source` are SentencePiece models, which are saved as they were read."""

    def splitter_of(self, spelling: str) -> Splitter | None:
        return metaspace_of(spelling)

    def accepts(self, splitter: Splitter) -> bool:
        return isinstance(splitter, MetaspaceWords)

    def save(self, vocabulary: Any, folder: Path) -> None:
        """Write folder/tokenizer.json or, for a SentencePiece model, folder/tokenizer.model."""
        if vocabulary.source is None:
            return super().save(vocabulary, folder)
        from tokenizer.formats.sentencepiece_files import save_model

        return save_model(vocabulary, folder)

    def with_special_tokens(self, vocabulary: Any, spellings: Sequence[str]) -> Vocabulary:
        """Return the vocabulary with more special tokens. A SentencePiece model gets a control piece for each."""
        if vocabulary.source is None:
            return super().with_special_tokens(vocabulary, spellings)
        from tokenizer.formats.sentencepiece_writing import with_control_pieces

        return with_control_pieces(vocabulary, new_spellings(vocabulary, spellings))

    def as_tokenizers(self, vocabulary: Any) -> Vocabulary:
        if vocabulary.source is None:
            return super().as_tokenizers(vocabulary)
        from tokenizer.formats.sentencepiece_files import as_tokenizers

        try:
            return as_tokenizers(vocabulary)
        except ValueError as error:
            raise ValueError(f"tokenizers cannot express this SentencePiece model: it {error}") from None

    def as_sentencepiece(self, vocabulary: Any) -> Vocabulary:
        from tokenizer.formats.sentencepiece_writing import as_sentencepiece

        try:
            return vocabulary if vocabulary.source is not None else as_sentencepiece(vocabulary)
        except ValueError as error:
            raise ValueError(f"a SentencePiece model cannot express this vocabulary: it {error}") from None


def refuse_model(vocabulary: Any) -> None:
    """Raise ValueError for a SentencePiece model."""
    if vocabulary.source is not None:
        raise ValueError("a SentencePiece model cannot grow or be trimmed: convert it with as_tokenizers() first")
