"""Reading and writing BPE over characters as tokenizer.json, as in Llama 2, Mistral and Gemma."""

from __future__ import annotations

import json
from itertools import chain

from tokenizer.character_bpe_vocabulary import CharacterPairVocabulary
from tokenizer.formats.added_tokens import parse_added_tokens_field
from tokenizer.formats.hugging_face import BPE_MODEL, NO_ENTRIES, parse_post_processor
from tokenizer.formats.length_settings import parse_length_settings
from tokenizer.formats.spelled_vocabulary import check_ids, expect, is_unicode, most_merges, quote
from tokenizer.formats.step_fields import (
    decoder_field,
    file_fields,
    in_sequence,
    normalizer_field,
    parse_chain,
    parse_decoder,
    parse_metaspace,
    parse_normalization,
    pre_tokenizer_field,
    steps_of,
    type_of,
)
from tokenizer.formats.unigram_files import words_field
from tokenizer.splitting.chains import Chain
from tokenizer.splitting.metaspace_splitter import FIRST, NEVER, MetaspaceWords
from tokenizer.splitting.normalizers import MARK, SPACES_TO_MARKS, Normalization
from tokenizer.vocabulary import LONGEST_TOKEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


def character_bpe_json(vocabulary: CharacterPairVocabulary) -> Iterator[str]:
    """Yield the text of tokenizer.json in parts."""
    words: Any = vocabulary.pattern
    normalizer, pre_tokenizer = normalizer_field(vocabulary.normalizer), None
    if isinstance(words, Chain):
        pre_tokenizer = pre_tokenizer_field(words)
    else:
        normalizer = in_sequence("normalizers", [step.field for step in words.normalizers])
        pre_tokenizer = None if is_whole_text(words) else words_field(words)
    model = {
        "unk_token": vocabulary.unknown,
        "continuing_subword_prefix": vocabulary.prefix or None,
        "end_of_word_suffix": vocabulary.suffix or None,
        "fuse_unk": vocabulary.fuse_unknown,
        "byte_fallback": vocabulary.byte_fallback,
        "ignore_merges": vocabulary.whole_first,
    }
    content = file_fields(
        vocabulary,
        normalizer=normalizer,
        pre_tokenizer=pre_tokenizer,
        decoder=decoder_field(vocabulary.decoder),
        model=BPE_MODEL | model,
    )
    encode = json.JSONEncoder(ensure_ascii=False).encode
    before, after = json.dumps(content, ensure_ascii=False, indent=2).rsplit(NO_ENTRIES, 1)
    tokens = sorted(vocabulary.ids.items(), key=lambda item: item[1])
    yield before + '"vocab": {\n      '
    yield ",\n      ".join(f"{encode(token)}: {i}" for token, i in tokens)
    yield '\n    },\n    "merges": ['
    yield ",".join(f"\n      [\n        {encode(a)},\n        {encode(b)}\n      ]" for a, b in vocabulary.pairs)
    yield f"\n    ]{after}\n" if vocabulary.pairs else f"]{after}\n"


def is_whole_text(words: MetaspaceWords) -> bool:
    """Return whether the words are the normalized text, in which marks stand for all spaces."""
    return words.normalizers[-1:] == (SPACES_TO_MARKS,) and words[1:] == (False, NEVER, False)


def parse_character_bpe_json(content: dict[str, Any]) -> CharacterPairVocabulary:
    """Return the vocabulary in the content of a tokenizer.json whose model is BPE without a ByteLevel step.

    Raises ValueError that names a missing, damaged or unsupported field.
    """
    model, vocab = content["model"], content["model"].get("vocab")
    expect(isinstance(vocab, dict), "has no model.vocab, or it is not an object")
    expect(vocab != {}, "has an empty model.vocab")
    expect(not model.get("dropout"), f"has model.dropout = {quote(model.get('dropout'))}, which is not supported")
    flags = {name: model.get(name, False) for name in ("fuse_unk", "byte_fallback", "ignore_merges")}
    for name, value in flags.items():
        expect(isinstance(value, bool), f"has model.{name} = {quote(value)}")
    affixes = {name: model.get(name) or "" for name in ("continuing_subword_prefix", "end_of_word_suffix")}
    for name, affix in affixes.items():
        expect(isinstance(affix, str) and is_unicode(affix), f"has model.{name} = {quote(affix)}")
    prefix, suffix = affixes.values()
    special, added_flags = parse_added_tokens_field(content, vocab)
    reads_normalized = any(given.get("normalized") for given in added_flags.values())
    normalizer, pattern = _parse_splitter(content, reads_normalized)
    check_ids(vocab, special, "model.vocab")
    for token in vocab:
        expect(token != "", "has an empty token in model.vocab")
        expect(is_unicode(token), f"has {quote(token)} in model.vocab, a token with a lone surrogate")
        expect(len(token) <= LONGEST_TOKEN, f"has a token of {len(token):,} characters in model.vocab")
    unknown = model.get("unk_token")
    expect(unknown is None or unknown in vocab, f"has model.unk_token = {quote(unknown)}, which model.vocab lacks")
    pairs = _parse_merges(model.get("merges"), vocab, prefix)
    _check_symbols(vocab, pairs, unknown, flags["byte_fallback"], prefix + suffix)
    vocabulary = CharacterPairVocabulary(
        ids=vocab,
        pairs=pairs,
        unknown=unknown,
        fuse_unknown=flags["fuse_unk"],
        byte_fallback=flags["byte_fallback"],
        prefix=prefix,
        suffix=suffix,
        whole_first=flags["ignore_merges"],
        decoder=parse_decoder(content.get("decoder")),
        special_tokens=special,
        pattern=pattern,
        normalizer=normalizer,
        added_flags=added_flags,
        post_processor=parse_post_processor(content.get("post_processor"), special),
        length_settings=parse_length_settings(content),
    )
    if vocabulary.whole_first:
        expect(not (prefix or suffix), "has ignore_merges with a prefix or suffix, which is not supported")
        expect(unknown is None or unknown in special, "has ignore_merges and an unk_token that is no added token")
        known = {i for i, _ in vocabulary.forms()} | {*special.values(), *(vocabulary.byte_ids or {}).values()}
        strange = next((token for token, i in vocab.items() if i not in known), None)
        expect(strange is None, f"has ignore_merges and {quote(strange)}, whose characters are no tokens")
    return vocabulary


def _parse_merges(merges: Any, ids: dict[str, int], prefix: str) -> list[list[str]]:
    """Return the merges as pairs of tokens."""
    expect(isinstance(merges, list), "has no merges, or they are not a list")
    expect(len(merges) <= most_merges(ids), f"has {len(merges):,} merges, more than its tokens can be cut in two")
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    for number, pair in enumerate(pairs):
        expect(
            isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair),
            f"has merge {number}, which is not a pair: {quote(merges[number])}",
        )
        left, right = pair
        if left not in ids or right not in ids or left + right[len(prefix) :] not in ids:
            wrong = next(part for part in (left, right, left + right[len(prefix) :]) if part not in ids)
            raise ValueError(
                f"has merge {number} ({quote(left)}, {quote(right)}) with {quote(wrong)}, which the vocabulary lacks"
            )
    if len(set(map(tuple, pairs))) < len(pairs):
        seen: set[tuple[str, ...]] = set()
        for number, pair in enumerate(map(tuple, pairs)):
            expect(pair not in seen, f"has merge {number} {quote(pair)} twice")
            seen.add(pair)
    return pairs


def _check_symbols(
    ids: dict[str, int], pairs: list[list[str]], unknown: str | None, byte_fallback: bool, affixes: str
) -> None:
    """Raise ValueError if a condition of `CharacterPairVocabulary` does not hold."""
    bytes_of = [f"<0x{byte:02X}>" for byte in range(256)] if byte_fallback else []
    for byte, spelling in enumerate(bytes_of):
        known = spelling in ids or (byte < 128 and chr(byte) in ids)
        expect(known, f"has model.byte_fallback, but no token {spelling}")
    expect(not (byte_fallback and affixes), "has model.byte_fallback with a prefix or suffix, which is not supported")
    merged = set(chain.from_iterable(pairs))
    for token in (*bytes_of, unknown):
        expect(token not in merged, f"has a merge with {quote(token)}, which is not supported")


def _parse_splitter(
    content: dict[str, Any], reads_normalized: bool
) -> tuple[Normalization | None, MetaspaceWords | Chain]:
    """Return the normalizer and the splitter: words of Metaspace, which also normalize, or else a chain.

    reads_normalized: whether added tokens are found in normalized text.
    """
    normalizer = parse_normalization(content.get("normalizer"))
    steps = normalizer.steps if normalizer is not None else ()
    listed = steps_of(content.get("pre_tokenizer"), "pre_tokenizer", "pretokenizers")
    marked = steps[-1:] == (SPACES_TO_MARKS,)
    # Gemma's file also splits at spaces, but its normalizer leaves no spaces.
    kept = [step for step in listed if not (marked and _is_split_at_spaces(step))]
    kinds = [type_of(step) for step in kept]
    if not (reads_normalized and steps):
        if kinds == [] and marked:
            return None, MetaspaceWords(steps, False, NEVER, False)
        if kinds in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]):
            replacement, prepend, cuts = parse_metaspace(kept[-1], "pre_tokenizer").values()
            if replacement == MARK and (prepend != FIRST or len(kept) == 1):
                return None, MetaspaceWords(steps, len(kept) == 2, prepend, cuts)
    return normalizer, parse_chain(content.get("pre_tokenizer"), as_bytes=False)


def _is_split_at_spaces(step: Any) -> bool:
    return type_of(step) == "Split" and step.get("pattern") == {"String": " "} and step.get("behavior") != "Removed"
