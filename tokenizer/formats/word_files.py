"""Reading and writing vocabularies of words and of characters as tokenizer.json: WordLevel, and BPE without merges."""

from __future__ import annotations

import json

from tokenizer.formats.hugging_face import BPE_MODEL, is_bpe, is_byte_level
from tokenizer.formats.spelled_vocabulary import expect
from tokenizer.formats.step_fields import decoder_field, file_fields, normalizer_field, parse_normalization
from tokenizer.formats.wordpiece_files import parse_words, parse_words_splitter, words_fields
from tokenizer.splitting.single_characters import SINGLE_CHARACTERS
from tokenizer.word_vocabulary import CharacterVocabulary, WordVocabulary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

UNKNOWN_WORD = "<unk>"  # of files that leave it out
_WITH_MERGES = ("fuse_unk", "byte_fallback", "ignore_merges", "continuing_subword_prefix", "end_of_word_suffix")


def words_json(vocabulary: WordVocabulary) -> Iterator[str]:
    """Yield the text of the tokenizer.json of WordLevel in one part."""
    yield words_fields(vocabulary, {"type": "WordLevel", "unk_token": vocabulary.unknown})


def parse_words_json(content: dict[str, Any]) -> WordVocabulary:
    """Return the vocabulary in the content of a tokenizer.json whose model is WordLevel.

    Raises ValueError that names a missing, damaged or unsupported field.
    """
    return parse_words(content, WordVocabulary, parse_words_splitter(content), UNKNOWN_WORD)


def characters_json(vocabulary: WordVocabulary) -> Iterator[str]:
    """Yield the text of the tokenizer.json of BPE without merges in one part."""
    vocab = dict(sorted(vocabulary.ids.items(), key=lambda item: item[1]))
    content = file_fields(
        vocabulary,
        normalizer=normalizer_field(vocabulary.normalizer),
        pre_tokenizer=None,
        decoder=decoder_field(vocabulary.decoder),
        model=BPE_MODEL | {"unk_token": vocabulary.unknown, "vocab": vocab},
    )
    yield json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def is_characters(content: Any) -> bool:
    """Return whether the value of a tokenizer.json is BPE that makes one token of each character of the text."""
    if not is_bpe(content) or content.get("pre_tokenizer") is not None or is_byte_level(content):
        return False
    model = content["model"]
    plain = not any(map(model.get, (*_WITH_MERGES, "dropout")))
    return plain and model.get("merges") == [] and isinstance(model.get("unk_token"), str)


def parse_characters_json(content: dict[str, Any]) -> CharacterVocabulary:
    """Return the vocabulary in the content of a tokenizer.json for which `is_characters` is true.

    Raises ValueError that names a missing, damaged or unsupported field.
    """
    splitter = parse_normalization(content.get("normalizer")), SINGLE_CHARACTERS
    vocabulary = parse_words(content, CharacterVocabulary, splitter)
    expect("" not in vocabulary.ids, "has an empty token in model.vocab")
    return vocabulary
