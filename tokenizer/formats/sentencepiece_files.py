"""Reading and writing models of SentencePiece (`.model`, `spiece.model`): Unigram and BPE.

The field numbers are those of sentencepiece_model.proto. A saved file has the bytes of the file that was read.
`sentencepiece_writing.py` converts other vocabularies to models.
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path

from tokenizer.character_bpe_vocabulary import CharacterPairVocabulary
from tokenizer.formats.number_text import read_number
from tokenizer.formats.other_kinds import ONLY
from tokenizer.formats.spelled_vocabulary import LARGEST_ID, expect, quote
from tokenizer.formats.strict_json import read_bytes
from tokenizer.formats.whole_files import whole_file
from tokenizer.formats.wire_format import BYTES, FIXED_32, VARINT, Value, fields
from tokenizer.sentencepiece_vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    SentencePiecePairs,
    SentencePieceVocabulary,
)
from tokenizer.splitting.metaspace_splitter import ALWAYS, NEVER, MetaspaceWords
from tokenizer.splitting.normalizers import (
    MARK,
    SPACES_TO_MARKS,
    Normalizer,
    Precompiled,
    Prepend,
    Replace,
    Strip,
    decoder_of_marks,
)
from tokenizer.splitting.precompiled_map import CharacterMap
from tokenizer.splitting.whole_text import SentencePieceText
from tokenizer.unigram_vocabulary import UnigramVocabulary
from tokenizer.vocabulary import LONGEST_TOKEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenizer.vocabulary import Vocabulary

UNIGRAM, BPE = 1, 2
MODEL_TYPES = {UNIGRAM: "unigram", BPE: "bpe", 3: "word", 4: "char"}
# T5: the tokenizer_class or model_type, the token that ends texts, and the number of sentinels if no file has it.
_T5_NAMES = ("T5Tokenizer", "T5TokenizerFast", "MT5Tokenizer", "MT5TokenizerFast", "t5", "mt5")
_END, _T5_SENTINELS = "</s>", 100
MOST_SENTINELS = 10_000
COMMON_WHITE_SPACE = "\t\n\r\u00a0\u2003\u3000"
PIECE, TRAINER, NORMALIZER = 1, 2, 3  # fields of the model
# Number, wire type and default of the fields in use.
Fields = dict[str, tuple[int, int, Value]]
PIECE_FIELDS: Fields = {"piece": (1, BYTES, b""), "score": (2, FIXED_32, bytes(4)), "type": (3, VARINT, NORMAL)}
TRAINER_FIELDS: Fields = {
    "model_type": (3, VARINT, UNIGRAM),
    "treat_whitespace_as_suffix": (24, VARINT, 0),
    "byte_fallback": (35, VARINT, 0),
    "unk_surface": (44, BYTES, " \u2047 ".encode()),
}
NORMALIZER_FIELDS: Fields = {
    "precompiled_charsmap": (2, BYTES, b""),
    "add_dummy_prefix": (3, VARINT, 1),
    "remove_extra_whitespaces": (4, VARINT, 1),
    "escape_whitespaces": (5, VARINT, 1),
}


Model = SentencePieceVocabulary | SentencePiecePairs


def load_model(path: Path) -> Model:
    """Return the vocabulary of a SentencePiece model. Raises a ValueError that names the field."""
    return parse_model(read_bytes(path))


def parse_model(content: bytes) -> Model:
    """Return the vocabulary in the bytes of a model.

    The message of a ValueError has no subject, such as "has no pieces"; the caller adds it.
    """
    try:
        parsed, trainer, normalizer = _parts(content)
    except ValueError as error:
        raise ValueError(f"read as a SentencePiece model, it {error}") from None
    pieces, scores, types = map(list, zip(*parsed, strict=True))
    options = _parse(trainer, TRAINER_FIELDS, "trainer_spec") | _parse(normalizer, NORMALIZER_FIELDS, "normalizer_spec")
    model_type = options["model_type"]
    assert isinstance(model_type, int)
    name = MODEL_TYPES.get(model_type, str(model_type))
    expect(name in ("unigram", "bpe"), f"has trainer_spec.model_type {name}, which is not supported ({ONLY})")
    _check_pieces(pieces, types, bool(options["byte_fallback"]))
    fields: dict[str, Any] = {
        "pieces": pieces,
        "scores": scores,
        "types": types,
        "unknown": types.index(UNKNOWN),
        "special_tokens": {
            p: i for i, (p, kind) in enumerate(zip(pieces, types, strict=True)) if kind in (UNKNOWN, CONTROL)
        },
        "pattern": SentencePieceText(
            _parse_character_map(options["precompiled_charsmap"]),
            tuple(piece for piece, kind in zip(pieces, types, strict=True) if kind == USER_DEFINED),
            bool(options["add_dummy_prefix"]),
            bool(options["remove_extra_whitespaces"]),
            bool(options["escape_whitespaces"]),
            bool(options["treat_whitespace_as_suffix"]),
        ),
        "byte_fallback": bool(options["byte_fallback"]),
        "unknown_surface": _text(options["unk_surface"], "trainer_spec.unk_surface"),
        "source": content,
    }
    if name == "unigram":
        return SentencePieceVocabulary(**fields)
    known = {piece for piece, kind in zip(pieces, types, strict=True) if len(piece) == 1 and kind == NORMAL}
    for number, (piece, kind) in enumerate(zip(pieces, types, strict=True)):
        where = f"has pieces[{number}] = {quote(piece)}"
        expect(kind != UNUSED, f"{where}, an unused piece, which is not supported with BPE")
        expect(kind != NORMAL or known.issuperset(piece), f"{where} with a character that is no piece")
    return SentencePiecePairs(**fields)


def _parts(content: bytes) -> tuple[list[tuple[str, float, int]], bytes, bytes]:
    """Return the pieces of a model with their scores and types, its trainer_spec and its normalizer_spec."""
    pieces: list[tuple[str, float, int]] = []
    trainer = normalizer = b""
    for number, kind, value in fields(content):
        if number in (PIECE, TRAINER, NORMALIZER):
            expect(kind == BYTES and isinstance(value, bytes), f"has a field {number} of wire type {kind}")
            assert isinstance(value, bytes)
            if number == PIECE:
                pieces.append(_parse_piece(value, len(pieces)))
            elif number == TRAINER:
                trainer += value  # a repeated message continues the first
            else:
                normalizer += value
    expect(pieces != [], "has no pieces")
    return pieces, trainer, normalizer


def save_model(vocabulary: Model, folder: str | os.PathLike[str]) -> None:
    """Write folder/tokenizer.model atomically. Raises ValueError if the folder has a tokenizer.json."""
    folder = Path(folder)
    if (folder / "tokenizer.json").exists():
        raise ValueError(f"{folder} has a tokenizer.json, which would be read in place of tokenizer.model; remove it")
    with whole_file(folder / "tokenizer.model") as partial:
        assert vocabulary.source is not None
        partial.write_bytes(vocabulary.source)


def as_tokenizers(vocabulary: Model) -> UnigramVocabulary | CharacterPairVocabulary:
    """Return the vocabulary that encodes as `tokenizers` does.

    Raises ValueError, which completes a sentence about the model, for what `tokenizers` cannot express.
    """
    if isinstance(vocabulary, SentencePiecePairs):
        return _pairs_as_tokenizers(vocabulary)
    return _unigram_as_tokenizers(vocabulary)


def _unigram_as_tokenizers(vocabulary: SentencePieceVocabulary) -> UnigramVocabulary:
    """Return the vocabulary with the normalizer and pre-tokenizer of T5's file."""
    text = vocabulary.pattern
    expect(USER_DEFINED not in vocabulary.types, "has user-defined pieces, which tokenizers would normalize")
    expect(not text.suffix, "puts marks after words (treat_whitespace_as_suffix)")
    expect(text.escape_whitespaces, "does not write spaces as marks (escape_whitespaces)")
    expect(text.remove_extra_whitespaces, "keeps extra spaces (remove_extra_whitespaces)")
    normalizers = (Precompiled(text.characters),) if text.characters else ()
    words = MetaspaceWords(normalizers, True, ALWAYS if text.add_dummy_prefix else NEVER, True)
    for c in COMMON_WHITE_SPACE:  # T5's map keeps U+0085, and its published file cuts there
        expect(
            words.normalize(f"a{c}a") in ("a a", "aa"),
            f"keeps the white space U+{ord(c):04X}, at which tokenizers cuts words",
        )
    for piece, i in vocabulary.matches.items():
        expect(MARK not in piece[1:], f"has pieces[{i}] = {quote(piece)} with a mark after its start")
    expect(not vocabulary.byte_fallback or MARK in vocabulary.ids, f"has byte_fallback without a piece {MARK!r}")
    return UnigramVocabulary(
        pieces=vocabulary.pieces,
        scores=[read_number(repr(score)) for score in vocabulary.scores],  # as tokenizers reads them
        unknown=vocabulary.unknown,
        special_tokens=vocabulary.special_tokens,
        pattern=words,
        byte_fallback=vocabulary.byte_fallback,
        decoder=decoder_of_marks(text.add_dummy_prefix) if vocabulary.byte_fallback else [words.field],
        added_flags=vocabulary.added_flags,
    )


def _pairs_as_tokenizers(vocabulary: SentencePiecePairs) -> CharacterPairVocabulary:
    """Return the vocabulary in the form of Llama 2's file.

    User-defined pieces become added tokens that are not special.
    """
    text = vocabulary.pattern
    expect(not text.suffix, "puts marks after words (treat_whitespace_as_suffix)")
    expect(text.escape_whitespaces, "does not write spaces as marks (escape_whitespaces)")
    normalizers: list[Normalizer] = [Precompiled(text.characters)] if text.characters else []
    normalizers += [Strip(True, True), Replace(" {2,}", True, " ")] if text.remove_extra_whitespaces else []
    normalizers += [Prepend(MARK)] if text.add_dummy_prefix else []
    order = sorted(zip(vocabulary.ranks.tolist(), vocabulary.merges.tolist(), strict=True))
    own = {piece: i for piece, i in vocabulary.frozen.items() if piece not in vocabulary.special_tokens}
    return CharacterPairVocabulary(
        ids=vocabulary.ids,
        pairs=[(vocabulary.pieces[left], vocabulary.pieces[right]) for _, (left, right, _) in order],
        unknown=vocabulary.unknown,
        fuse_unknown=True,
        byte_fallback=vocabulary.byte_fallback,
        decoder=decoder_of_marks(text.add_dummy_prefix),
        special_tokens=vocabulary.special_tokens | own,
        pattern=MetaspaceWords((*normalizers, SPACES_TO_MARKS), False, NEVER, False),
        added_flags={**vocabulary.added_flags, **{piece: {"special": False} for piece in own}},
    )


def as_of_folder(vocabulary: Model, tokenizer_config: dict[str, Any], config: dict[str, Any]) -> Vocabulary:
    """Return T5's vocabulary if the other files of the folder say that the model is T5's, else `vocabulary`."""
    name = tokenizer_config.get("tokenizer_class", config.get("model_type"))
    if name not in _T5_NAMES or not isinstance(vocabulary, SentencePieceVocabulary):
        return vocabulary
    sentinels = tokenizer_config.get("extra_ids", _T5_SENTINELS)
    expect(
        type(sentinels) is int and 0 <= sentinels <= MOST_SENTINELS,
        f"has tokenizer_config.json beside it with extra_ids = {quote(sentinels)}, not from 0 to {MOST_SENTINELS:,}",
    )
    return _as_t5(vocabulary, sentinels)


def _as_t5(vocabulary: SentencePieceVocabulary, sentinels: int) -> UnigramVocabulary:
    """Return the vocabulary that transformers' T5Tokenizer makes of a model.

    It encodes as `tokenizers` does, ends texts with `</s>`, and has the sentinels <extra_id_0>, <extra_id_1> and so on
    as last ids, in descending order. Raises ValueError as `as_tokenizers` does.
    """
    try:
        plain = _unigram_as_tokenizers(vocabulary)
    except ValueError as error:
        raise ValueError(
            f"is a T5 model, which needs the ids of tokenizers, but it {error}: save a tokenizer.json beside it "
            "(transformers' T5Tokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER))"
        ) from None
    names = [f"<extra_id_{number}>" for number in reversed(range(sentinels))]
    later = [name for name in names if name not in plain.ids]
    pieces = [*plain.pieces, *later]
    special = plain.special_tokens | {name: i for i, name in enumerate(pieces) if name in names}
    expect(_END in special, f"has no control piece {_END!r}")
    end = {"SpecialToken": {"id": _END, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return UnigramVocabulary(
        pieces=pieces,
        scores=[*plain.scores, *[0.0] * len(later)],
        unknown=plain.unknown,
        special_tokens=special,
        pattern=plain.pattern,
        byte_fallback=plain.byte_fallback,
        decoder=plain.decoder,
        post_processor={
            "type": "TemplateProcessing",
            "single": [first, end],
            "pair": [first, end, second, end],
            "special_tokens": {_END: {"id": _END, "ids": [special[_END]], "tokens": [_END]}},
        },
    )


def _parse(message: bytes, wanted: Fields, name: str) -> dict[str, Value]:
    """Return the wanted fields of a message by name; the last value of each counts."""
    found: dict[str, Value] = {field: default for field, (_, _, default) in wanted.items()}
    names = {number: (field, kind) for field, (number, kind, _) in wanted.items()}
    for number, kind, value in fields(message):
        if number in names:
            field, expected = names[number]
            expect(kind == expected, f"has {name}.{field} with wire type {kind}, not {expected}")
            found[field] = value
    return found


def _parse_piece(message: bytes, number: int) -> tuple[str, float, int]:
    where = f"pieces[{number}]"
    expect(number < LARGEST_ID, f"has more than {LARGEST_ID:,} pieces")
    found = _parse(message, PIECE_FIELDS, where)
    piece = _text(found["piece"], f"{where}.piece")
    expect(piece != "", f"has {where} with an empty piece")
    expect(len(piece) <= LONGEST_TOKEN, f"has {where}, a piece of {len(piece):,} characters")
    assert isinstance(found["score"], bytes)
    (score,) = struct.unpack("<f", found["score"])
    expect(math.isfinite(score), f"has {where}.score = {score}")
    kind = found["type"]
    assert isinstance(kind, int)
    expect(NORMAL <= kind <= BYTE, f"has {where}.type = {kind}")
    return piece, score, kind


def _check_pieces(pieces: list[str], types: list[int], byte_fallback: bool) -> None:
    seen: dict[str, int] = {}
    for number, piece in enumerate(pieces):
        expect(
            piece not in seen, f"has the piece {quote(piece)} twice, as pieces[{seen.get(piece)}] and pieces[{number}]"
        )
        seen[piece] = number
    expect(types.count(UNKNOWN) == 1, f"has {types.count(UNKNOWN)} unknown pieces instead of one")
    expect(NORMAL in types, "has no normal pieces")
    for byte in range(256 if byte_fallback else 0):
        spelling = f"<0x{byte:02X}>"
        expect(
            types[seen.get(spelling, types.index(UNKNOWN))] == BYTE, f"has byte_fallback, but no byte piece {spelling}"
        )


def _parse_character_map(compiled: Value) -> CharacterMap | None:
    assert isinstance(compiled, bytes)
    if compiled == b"":
        return None
    try:
        return CharacterMap(compiled)
    except ValueError as error:
        raise ValueError(f"has a normalizer_spec.precompiled_charsmap that {error}") from None


def _text(value: Value, where: str) -> str:
    assert isinstance(value, bytes)
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ValueError(f"has {where} = {quote(value)}, which is not UTF-8") from None
