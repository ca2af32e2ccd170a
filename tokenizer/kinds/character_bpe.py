"""BPE over characters, the kind of Llama 2's, Mistral's and Gemma's vocabularies and of SentencePiece's BPE models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizer.kinds.kind import Kind, new_spellings
from tokenizer.splitting.metaspace_splitter import METASPACE_NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenizer.character_bpe_vocabulary import CharacterPairVocabulary
    from tokenizer.splitting.splitter import Splitter
    from tokenizer.training.counting import PretokenCounts
    from tokenizer.training.train import Options
    from tokenizer.vocabulary import Vocabulary


class CharacterPairs(Kind):
    """BPE over characters."""

    name, title, entries = "character-bpe", "BPE over characters", "tokens"
    merges, kernels = True, "merging"
    patterns, default_pattern, exact_pattern = METASPACE_NAMES, "metaspace", "metaspace"
    needed_splitter = f"words: {', '.join(METASPACE_NAMES)}"
    options = ("min_frequency",)

    def splitter_of(self, spelling: str) -> Splitter | None:
        return None  # those of Unigram

    def accepts(self, splitter: Splitter) -> bool:
        from tokenizer.splitting.metaspace_splitter import MetaspaceWords

        return isinstance(splitter, MetaspaceWords)

    def train(self, counts: PretokenCounts, options: Options) -> Vocabulary:
        raise ValueError("training is not supported yet")

    def shortage(self, vocabulary: Vocabulary, options: Options) -> str:
        return f"the corpus ran out of pairs that occur at least {options.min_count} times"

    def reads(self, content: Any) -> bool:
        from tokenizer.formats.hugging_face import is_bpe, is_byte_level

        return is_bpe(content) and not is_byte_level(content)

    def read(self, content: Any) -> CharacterPairVocabulary:
        from tokenizer.formats.character_bpe_files import parse_character_bpe_json

        return parse_character_bpe_json(content)

    def json(self, vocabulary: CharacterPairVocabulary) -> Iterator[str]:
        from tokenizer.formats.character_bpe_files import character_bpe_json

        return character_bpe_json(vocabulary)

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


KIND = CharacterPairs()
