"""Reading and writing WordPiece vocabularies: tokenizer.json as `tokenizers` writes it for BERT, and vocab.txt."""

from __future__ import annotations

import json

from tokenizer.encoding.special_spellings import WHITE_SPACE
from tokenizer.formats.added_tokens import added_tokens_field, parse_added_tokens_field
from tokenizer.formats.hugging_face import parse_post_processor
from tokenizer.formats.length_settings import length_fields, parse_length_settings
from tokenizer.formats.spelled_vocabulary import LARGEST_ID, check_ids, expect, is_unicode, quote
from tokenizer.formats.step_fields import type_of
from tokenizer.splitting.bert_splitter import BertWords
from tokenizer.wordpiece_vocabulary import CONTINUATION, LONGEST_WORD, UNKNOWN, WordPieceVocabulary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

LONGEST_TOKEN = 4096  # bytes
_ONLY = "with WordPiece only BERT's is"
# The fields of BertNormalizer that are the options of `BertWords`.
_OPTIONS = {"lowercase": "lowercase", "clean_text": "clean_text", "chinese": "handle_chinese_chars"}
# The special tokens of BERT, which vocab.txt does not mark.
BERT_SPECIAL_TOKENS = ("[PAD]", UNKNOWN, "[CLS]", "[SEP]", "[MASK]")


def wordpiece_json(vocabulary: WordPieceVocabulary) -> Iterator[str]:
    """Yield the text of tokenizer.json in one part."""
    words = vocabulary.pattern
    listed = sorted(vocabulary.ids.items(), key=lambda item: item[1])
    content = {
        "version": "1.0",
        **length_fields(vocabulary.length_settings),
        "added_tokens": added_tokens_field(vocabulary.special_tokens, vocabulary.added_flags),
        "normalizer": {"type": "BertNormalizer", "strip_accents": words.strip_accents}
        | {field: getattr(words, option) for option, field in _OPTIONS.items()},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": vocabulary.post_processor,
        "decoder": {"type": "WordPiece", "prefix": vocabulary.prefix, "cleanup": vocabulary.cleanup},
        "model": {
            "type": "WordPiece",
            "unk_token": vocabulary.unknown,
            "continuing_subword_prefix": vocabulary.prefix,
            "max_input_chars_per_word": vocabulary.longest_word,
            "vocab": dict(listed),
        },
    }
    yield json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def parse_wordpiece_json(content: dict[str, Any]) -> WordPieceVocabulary:
    """Return the vocabulary in the content of a tokenizer.json whose model is WordPiece.

    Raises ValueError that names a missing, damaged or unsupported field.
    """
    model = content["model"]
    pattern = _parse_normalizer(content.get("normalizer"))
    pre_tokenizer = type_of(content.get("pre_tokenizer"))
    expect(pre_tokenizer == "BertPreTokenizer", f"has the pre_tokenizer {pre_tokenizer}, not supported ({_ONLY})")
    prefix = model.get("continuing_subword_prefix", CONTINUATION)
    expect(isinstance(prefix, str) and is_unicode(prefix), f"has model.continuing_subword_prefix = {quote(prefix)}")
    longest = model.get("max_input_chars_per_word", LONGEST_WORD)
    expect(type(longest) is int and 0 <= longest < 2**31, f"has model.max_input_chars_per_word = {quote(longest)}")
    cleanup = _parse_decoder(content.get("decoder"), prefix)
    special, flags = parse_added_tokens_field(content, model.get("vocab"))
    unknown = model.get("unk_token", UNKNOWN)
    expect(isinstance(unknown, str), f"has model.unk_token = {quote(unknown)}")
    return build_wordpiece(
        model.get("vocab"),
        special,
        pattern,
        unknown=unknown,
        prefix=prefix,
        longest_word=longest,
        cleanup=cleanup,
        added_flags=flags,
        post_processor=parse_post_processor(content.get("post_processor"), special),
        length_settings=parse_length_settings(content),
    )


def build_wordpiece(
    ids: Any, special: dict[str, int], pattern: BertWords, *, field: str = "model.vocab", **rules: Any
) -> WordPieceVocabulary:
    """Return a checked vocabulary. ids: the value of `field`, which should map tokens to ids.

    A token may be empty: `tokenizers` makes such a token from a line of white space in vocab.txt. It spells no word.
    """
    expect(isinstance(ids, dict), f"has no {field}, or it is not an object")
    check_ids(ids, special, field)
    for token in ids:
        expect(is_unicode(token), f"has {quote(token)} in {field}, a token with a lone surrogate")
        expect(len(token) <= LONGEST_TOKEN, f"has a token of {len(token):,} characters in {field}: {quote(token)}")
    for spelling, given in rules.get("added_flags", {}).items():
        expect(
            not given.get("normalized"),
            f"has the added token {quote(spelling)} with normalized, which is not supported",
        )
    unknown = rules.get("unknown", UNKNOWN)
    expect(
        unknown in ids,
        f"has no {quote(unknown)} in {field}, the token of words that cannot be spelled: is it a WordPiece vocabulary?",
    )
    return WordPieceVocabulary(ids=ids, special_tokens=special, pattern=pattern, **rules)


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
    return _words(
        {
            "lowercase": config["do_lower_case"],
            "strip_accents": config.get("strip_accents"),
            "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
        },
        "tokenizer_config.json",
    )


def _parse_normalizer(normalizer: Any) -> BertWords:
    kind = type_of(normalizer)
    expect(kind == "BertNormalizer", f"has a normalizer of type {kind}, which is not supported ({_ONLY})")
    return _words(normalizer, "a normalizer")


def _words(given: dict[str, Any], where: str) -> BertWords:
    """Return the words for the fields of BertNormalizer. strip_accents defaults to lowercase."""
    options = {option: given.get(field, True) for option, field in _OPTIONS.items()}
    strip = given.get("strip_accents")
    options["strip_accents"] = options["lowercase"] if strip is None else strip
    for option, value in options.items():
        expect(isinstance(value, bool), f"has {where} with {_OPTIONS.get(option, option)} = {quote(value)}")
    return BertWords(**options)


def _parse_decoder(decoder: Any, prefix: str) -> bool:
    """Return whether decoding cleans up. The decoder must have the model's prefix."""
    kind = type_of(decoder)
    expect(decoder is None or kind == "WordPiece", f"has a decoder of type {kind}, which is not supported ({_ONLY})")
    found, cleanup = (decoder or {}).get("prefix", prefix), (decoder or {}).get("cleanup", True)
    expect(
        found == prefix,
        f"has a decoder with the prefix {quote(found)}, but model.continuing_subword_prefix {quote(prefix)}",
    )
    expect(isinstance(cleanup, bool), f"has a decoder with cleanup = {quote(cleanup)}")
    return bool(cleanup)
