"""Reading and writing Unigram vocabularies as tokenizer.json, as `tokenizers` and transformers write them for T5."""

from __future__ import annotations

import json
import math

from tokenizer.formats.added_tokens import parse_added_tokens_field
from tokenizer.formats.hugging_face import parse_post_processor
from tokenizer.formats.length_settings import parse_length_settings
from tokenizer.formats.number_text import number_text, read_number
from tokenizer.formats.spelled_vocabulary import check_ids, expect, is_unicode, quote
from tokenizer.formats.step_fields import (
    decoder_field,
    file_fields,
    in_sequence,
    parse_decoder,
    parse_metaspace,
    parse_normalizer,
    steps_of,
    type_of,
)
from tokenizer.splitting.metaspace_splitter import FIRST, RUNS, RUNS_REGEX, MetaspaceWords
from tokenizer.splitting.normalizers import MARK
from tokenizer.unigram_vocabulary import UnigramVocabulary
from tokenizer.vocabulary import LONGEST_TOKEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_NO_PIECES = '"vocab": []'
_RUNS_FIELD = {"type": "Split", "pattern": {"Regex": RUNS_REGEX}, "behavior": "Isolated", "invert": False}


def unigram_json(vocabulary: UnigramVocabulary) -> Iterator[str]:
    """Yield the text of tokenizer.json in parts."""
    model = {
        "type": "Unigram",
        "unk_id": vocabulary.unknown,
        "vocab": [],
        "byte_fallback": vocabulary.byte_fallback,
    }
    content = file_fields(
        vocabulary,
        normalizer=_normalizer_field(vocabulary.pattern),
        pre_tokenizer=words_field(vocabulary.pattern),
        decoder=decoder_field(vocabulary.decoder),
        model=model,
    )
    before, after = json.dumps(content, ensure_ascii=False, indent=2).rsplit(_NO_PIECES, 1)
    entries = [
        f"\n      [\n        {json.dumps(piece, ensure_ascii=False)},\n        {number_text(score)}\n      ]"
        for piece, score in zip(vocabulary.pieces, vocabulary.scores, strict=True)
    ]
    yield f'{before}"vocab": [{",".join(entries)}\n    ]{after}\n'


def _normalizer_field(words: MetaspaceWords) -> Any:
    return in_sequence("normalizers", [step.field for step in words.normalizers])


def words_field(words: MetaspaceWords) -> Any:
    """Return the field pre_tokenizer of words."""
    before = [{"type": "WhitespaceSplit"}] * words.whitespace_split
    return in_sequence("pretokenizers", [*before, words.field, *[_RUNS_FIELD] * (words.cuts == RUNS)])


def parse_unigram_json(content: dict[str, Any]) -> UnigramVocabulary:
    """Return the vocabulary in the content of a tokenizer.json whose model is Unigram.

    Raises ValueError that names a missing, damaged or unsupported field.
    """
    model = content["model"]
    pattern = _parse_words(content)
    byte_fallback = model.get("byte_fallback", False)
    expect(isinstance(byte_fallback, bool), f"has model.byte_fallback = {quote(byte_fallback)}")
    for field in ("alpha", "nbest_size"):
        expect(model.get(field) is None, f"has model.{field} = {quote(model.get(field))}: sampling is not supported")
    pieces, scores = _parse_vocab(model.get("vocab"))
    ids = {piece: i for i, piece in enumerate(pieces)}
    special, flags = parse_added_tokens_field(content, ids)
    for spelling, given in flags.items():
        expect(
            not given.get("normalized"),
            f"has the added token {quote(spelling)} with normalized, which is not supported",
        )
    unknown = model.get("unk_id")
    expect(
        type(unknown) is int and 0 <= unknown < len(pieces),
        f"has model.unk_id = {quote(unknown)}, not the id of one of its {len(pieces):,} pieces",
    )
    check_ids(ids, special, "model.vocab")
    expect(content.get("decoder") is not None, "has no decoder; a Unigram vocabulary needs one, such as Metaspace")
    if byte_fallback:
        # Pretokens have a space, one byte, for the mark. The mark's own three bytes would not fit in its place.
        expect(MARK in pieces and MARK not in pieces[unknown], f"has model.byte_fallback without a piece {MARK!r}")
    return UnigramVocabulary(
        pieces=pieces,
        scores=scores,
        unknown=unknown,
        special_tokens=special,
        pattern=pattern,
        byte_fallback=byte_fallback,
        decoder=parse_decoder(content["decoder"]),
        added_flags=flags,
        post_processor=parse_post_processor(content.get("post_processor"), special),
        length_settings=parse_length_settings(content),
    )


def _parse_vocab(vocab: Any) -> tuple[list[str], list[float]]:
    """Return the pieces and scores of model.vocab, a list of [piece, score]."""
    expect(isinstance(vocab, list), "has no model.vocab, or it is not a list")
    expect(vocab != [], "has an empty model.vocab")
    scores: dict[str, float] = {}
    for i, entry in enumerate(vocab):
        match entry:
            case [str(piece), float(score)] if (
                0 < len(piece) <= LONGEST_TOKEN
                and piece not in scores
                and math.isfinite(score)
                and (piece.isascii() or is_unicode(piece))
            ):
                scores[piece] = score
            case _:
                _parse_unusual(i, entry, scores)
    return list(scores), list(scores.values())


def _parse_unusual(i: int, entry: Any, scores: dict[str, float]) -> None:
    """Add the entry model.vocab[i], whose score is a whole number; ValueError for any other entry."""
    expect(isinstance(entry, list) and len(entry) == 2, f"has model.vocab[{i}] = {quote(entry)}")
    piece, score = entry
    expect(isinstance(piece, str) and piece != "", f"has model.vocab[{i}] with the piece {quote(piece)}")
    expect(is_unicode(piece), f"has {quote(piece)} in model.vocab[{i}], a piece with a lone surrogate")
    expect(len(piece) <= LONGEST_TOKEN, f"has a piece of {len(piece):,} characters in model.vocab[{i}]")
    if type(score) is int:
        score = read_number(str(score))
    expect(type(score) is float and math.isfinite(score), f"has model.vocab[{i}] with the score {quote(score)}")
    expect(piece not in scores, f"has the piece {quote(piece)} twice in model.vocab; the second is number {i}")
    scores[piece] = score


def _parse_words(content: dict[str, Any]) -> MetaspaceWords:
    steps = steps_of(content.get("pre_tokenizer"), "pre_tokenizer", "pretokenizers")
    runs = len(steps) == 2 and steps[1] == _RUNS_FIELD
    steps = steps[:1] if runs else steps
    kinds = [type_of(step) for step in steps]
    expect(
        kinds in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]),
        f"has the pre_tokenizer {quote(' + '.join(kinds))}; with Unigram, Metaspace alone or after WhitespaceSplit is "
        "supported",
    )
    replacement, prepend, cuts = parse_metaspace(steps[-1], "pre_tokenizer").values()
    expect(replacement == MARK, f"has a pre_tokenizer Metaspace with replacement = {quote(replacement)}, not supported")
    expect(prepend != FIRST or len(steps) == 1, "has WhitespaceSplit before Metaspace with prepend_scheme first")
    normalizers = steps_of(content.get("normalizer"), "normalizer", "normalizers")
    how = RUNS if runs and not cuts else cuts  # after a cut before each mark, runs are cut already
    return MetaspaceWords(tuple(map(parse_normalizer, normalizers)), len(steps) == 2, prepend, how)
