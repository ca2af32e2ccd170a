"""Characters, the kind of vocabularies in which each character is a token: BPE without merges."""

from __future__ import annotations

from collections.abc import Iterator

from tokenizer.kinds.words import Words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenizer.splitting.splitter import Splitter
    from tokenizer.word_vocabulary import CharacterVocabulary, WordVocabulary


class Characters(Words):
    """Characters. They are trained as words are, with single characters as pretokens."""

    name, title, entries = "characters", "Characters", "characters"
    patterns, default_pattern, exact_pattern = ("characters",), "characters", "characters"
    needed_splitter = "the pattern characters"
    pretokens, one = "", "a character"

    def vocabulary_class(self) -> type[CharacterVocabulary]:
        from tokenizer.word_vocabulary import CharacterVocabulary

        return CharacterVocabulary

    def splitter_of(self, spelling: str) -> Splitter | None:
        from tokenizer.splitting.single_characters import SINGLE_CHARACTERS

        return SINGLE_CHARACTERS if spelling == self.default_pattern else None

    def reads(self, content: Any) -> bool:
        """Return whether a file is BPE that has neither merges nor a pre-tokenizer, and whose characters are tokens."""
        from tokenizer.formats.word_files import is_characters

        return is_characters(content)

    def read(self, content: Any) -> CharacterVocabulary:
        from tokenizer.formats.word_files import parse_characters_json

        return parse_characters_json(content)

    def json(self, vocabulary: WordVocabulary) -> Iterator[str]:
        from tokenizer.formats.word_files import characters_json

        return characters_json(vocabulary)


KIND = Characters()
