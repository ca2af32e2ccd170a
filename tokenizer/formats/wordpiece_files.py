"""Reading and writing WordPiece vocabularies: vocab.txt, and tokenizer.json, parts of which also serve other kinds."""

from __future__ import annotations

import json

from tokenizer.formats.added_tokens import parse_added_tokens_field
from tokenizer.formats.hugging_face import parse_post_processor
from tokenizer.formats.length_settings import parse_length_settings
from tokenizer.formats.spelled_vocabulary import LARGEST_ID, check_ids, expect, is_unicode, quote
from tokenizer.formats.step_fields import (
    decoder_field,
    file_fields,
    normalizer_field,
    parse_bert_normalizer,
    parse_chain,
    parse_decoder,
    parse_normalization,
    pre_tokenizer_field,
    steps_of,
    type_of,
)
from tokenizer.splitting.bert_splitter import BertWords
from tokenizer.splitting.chains import Chain
from tokenizer.splitting.normalizers import BertText, Normalization
from tokenizer.text import WHITE_SPACE
from tokenizer.vocabulary import LONGEST_TOKEN
from tokenizer.wordpiece_vocabulary import CONTINUATION, LONGEST_WORD, UNKNOWN, WordPieceVocabulary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypeVar

    from tokenizer.word_vocabulary import WordVocabulary

    Made = TypeVar("Made", bound=WordPieceVocabulary | WordVocabulary)

# The special tokens of BERT, which vocab.txt does not mark.
BERT_SPECIAL_TOKENS = ("[PAD]", UNKNOWN, "[CLS]", "[SEP]", "[MASK]")


def wordpiece_json(vocabulary: WordPieceVocabulary) -> Iterator[str]:
    """Yield the text of tokenizer.json in one part."""
    model = {
        "type": "WordPiece",
        "unk_token": vocabulary.unknown,
        "continuing_subword_prefix": vocabulary.continuation,
        "max_input_chars_per_word": vocabulary.longest_word,
    }
    yield words_fields(vocabulary, model)


def words_fields(vocabulary: WordPieceVocabulary | WordVocabulary, model: dict[str, Any]) -> str:
    """Return the text of the tokenizer.json of a vocabulary. model: the field model without its tokens."""
    words, normalizer = vocabulary.pattern, normalizer_field(vocabulary.normalizer)
    if isinstance(words, BertWords):
        normalizer = _normalizer_of(words).field
    content = file_fields(
        vocabulary,
        normalizer=normalizer,
        pre_tokenizer={"type": "BertPreTokenizer"} if isinstance(words, BertWords) else pre_tokenizer_field(words),
        decoder=decoder_field(vocabulary.decoder),
        model=model | {"vocab": dict(sorted(vocabulary.ids.items(), key=lambda item: item[1]))},
    )
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def parse_wordpiece_json(content: dict[str, Any]) -> WordPieceVocabulary:
    """Return the vocabulary in the content of a tokenizer.json whose model is WordPiece.

    Raises ValueError that names a missing, damaged or unsupported field.
    """
    model = content["model"]
    prefix = model.get("continuing_subword_prefix", CONTINUATION)
    expect(isinstance(prefix, str) and is_unicode(prefix), f"has model.continuing_subword_prefix = {quote(prefix)}")
    longest = model.get("max_input_chars_per_word", LONGEST_WORD)
    expect(type(longest) is int and 0 <= longest < 2**31, f"has model.max_input_chars_per_word = {quote(longest)}")
    expect(len(prefix) <= LONGEST_TOKEN, f"has model.continuing_subword_prefix {quote(prefix)}")
    rules = {"continuation": prefix, "longest_word": longest}
    return parse_words(content, WordPieceVocabulary, parse_words_splitter(content), **rules)


def parse_words(
    content: dict[str, Any],
    make: type[Made],
    splitter: tuple[Normalization | None, Any],
    unknown: str = UNKNOWN,
    **rules: Any,
) -> Made:
    """Return the checked vocabulary of the class `make` in the content of a tokenizer.json.

    unknown: the unknown token of files that do not name it. rules: further arguments of `make`.
    """
    model, (normalizer, pattern) = content["model"], splitter
    special, flags = parse_added_tokens_field(content, model.get("vocab"))
    unknown = model.get("unk_token", unknown)
    expect(isinstance(unknown, str), f"has model.unk_token = {quote(unknown)}")
    return build_words(
        make,
        model.get("vocab"),
        special,
        pattern,
        unknown=unknown,
        decoder=parse_decoder(content.get("decoder")),
        added_flags=flags,
        post_processor=parse_post_processor(content.get("post_processor"), special),
        length_settings=parse_length_settings(content),
        normalizer=normalizer,
        **rules,
    )


def parse_words_splitter(content: dict[str, Any]) -> tuple[Normalization | None, BertWords | Chain]:
    """Return the normalizer and the splitter: BERT's words, which also normalize, or else a chain."""
    normalizer = parse_normalization(content.get("normalizer"))
    listed = steps_of(content.get("pre_tokenizer"), "pre_tokenizer", "pretokenizers")
    if [*map(type_of, listed)] == ["BertPreTokenizer"] and normalizer is not None:
        match normalizer.steps:
            case [BertText() as bert]:
                return None, _words_of(bert)
    return normalizer, parse_chain(content.get("pre_tokenizer"), as_bytes=False)


def build_wordpiece(
    ids: Any, special: dict[str, int], pattern: BertWords | Chain, *, field: str = "model.vocab", **rules: Any
) -> WordPieceVocabulary:
    """Return a checked WordPiece vocabulary, as `build_words` does."""
    return build_words(WordPieceVocabulary, ids, special, pattern, field=field, **rules)


def build_words(
    make: type[Made], ids: Any, special: dict[str, int], pattern: Any, *, field: str = "model.vocab", **rules: Any
) -> Made:
    """Return a checked vocabulary of the class `make`. ids: the value of `field`, which should map tokens to ids.

    A token may be empty: `tokenizers` makes such a token from a line of white space in vocab.txt. It spells no word.
    """
    expect(isinstance(ids, dict), f"has no {field}, or it is not an object")
    check_ids(ids, special, field)
    for token in ids:
        expect(is_unicode(token), f"has {quote(token)} in {field}, a token with a lone surrogate")
        expect(len(token) <= LONGEST_TOKEN, f"has a token of {len(token):,} characters in {field}: {quote(token)}")
    if isinstance(pattern, BertWords) and any(
        given.get("normalized") for given in rules.get("added_flags", {}).values()
    ):
        # Such tokens are found after normalization, which is a part of these words.
        rules["normalizer"] = Normalization((_normalizer_of(pattern),))
        pattern = Chain([{"type": "BertPreTokenizer"}], as_bytes=False)
    unknown = rules.get("unknown", UNKNOWN)
    expect(
        unknown in ids,
        f"has no {quote(unknown)} in {field}, the token of words that cannot be spelled: is it a WordPiece vocabulary?",
    )
    return make(ids=ids, special_tokens=special, pattern=pattern, **rules)


def parse_vocab_txt(text: str) -> dict[str, int]:
    """Return the ids of a vocab.txt, which has one token per line; the id is the line number, from 0.

    Lines end at LF or CR LF. White space at the end of a token is cut, as in `tokenizers`, but a token of white space
    alone stays, such as the U+2028 of bert-base-chinese. Raises ValueError for empty and repeated lines.
    """
    ids: dict[str, int] = {}
    lines = text.removesuffix("\n").split("\n", LARGEST_ID)
    for number, line in enumerate(lines):
        line = line.removesuffix("\r")
        token = line.rstrip(WHITE_SPACE) or line
        expect(token != "", f"has an empty line, number {number + 1}: every line is a token")
        expect(
            token not in ids, f"has the token {quote(token)} twice, in lines {ids.get(token, 0) + 1} and {number + 1}"
        )
        ids[token] = number
    return ids


def words_of_config(config: dict[str, Any]) -> BertWords | None:
    """Return the words for the settings in a tokenizer_config.json of BERT, or None if it lacks them."""
    if "do_lower_case" not in config:
        return None
    fields = {
        "lowercase": config["do_lower_case"],
        "strip_accents": config.get("strip_accents"),
        "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
    }
    return _words_of(parse_bert_normalizer(fields, "tokenizer_config.json"))


def _words_of(bert: BertText) -> BertWords:
    """Return the words that BertPreTokenizer makes after a BertNormalizer."""
    strips = bert.lowercase if bert.strip_accents is None else bert.strip_accents
    return BertWords(lowercase=bert.lowercase, strip_accents=strips, clean_text=bert.clean_text, chinese=bert.chinese)


def _normalizer_of(words: BertWords) -> BertText:
    """Return the BertNormalizer of BERT's words."""
    return BertText(words.clean_text, words.chinese, words.strip_accents, words.lowercase)
