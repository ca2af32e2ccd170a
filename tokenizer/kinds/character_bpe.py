"""BPE over characters, the kind of Llama 2's, Mistral's and Gemma's vocabularies and of SentencePiece's BPE models."""

from __future__ import annotations

from collections.abc import Iterator

from tokenizer.kinds.kind import Kind
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


KIND = CharacterPairs()
