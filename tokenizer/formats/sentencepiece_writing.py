"""Writing Unigram vocabularies, such as those of tokenizer.json, as SentencePiece models."""

from __future__ import annotations

from tokenizer.encoding.special_spellings import FLAGS, WHITE_SPACE
from tokenizer.formats.sentencepiece_files import (
    COMMON_WHITE_SPACE,
    NORMALIZER,
    NORMALIZER_FIELDS,
    PIECE,
    PIECE_FIELDS,
    TRAINER,
    TRAINER_FIELDS,
    UNIGRAM,
    Model,
    parse_model,
)
from tokenizer.formats.spelled_vocabulary import expect, quote
from tokenizer.formats.wire_format import message
from tokenizer.sentencepiece_vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED
from tokenizer.splitting.metaspace_splitter import ALWAYS, MetaspaceWords
from tokenizer.splitting.normalizers import MARK, Precompiled, Replace, Strip
from tokenizer.splitting.precompiled_map import CharacterMap
from tokenizer.unigram_vocabulary import UnigramVocabulary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Fields of trainer_spec that sentencepiece does not need, but other programs read.
_VOCAB_SIZE, _UNKNOWN_ID, _UNKNOWN_PIECE = 4, 40, 45
_OTHER_IDS = {41: "<s>", 42: "</s>", 43: "<pad>"}
_NO_ID = -1
# The last normalizers of XLM-R and mBART. These drop extra spaces, as WhitespaceSplit does in other files.
_SQUEEZING = (Strip(False, True), Replace(" {2,}", True, MARK))


def as_sentencepiece(vocabulary: UnigramVocabulary) -> Model:
    """Return a vocabulary with the same pieces and ids that encodes as sentencepiece does.

    Scores are rounded to float32. Special tokens become control pieces. Raises ValueError for features that a model
    cannot express. Its message has no subject, such as "has two character maps"; the caller adds it.
    """
    pieces = _all_pieces(vocabulary)
    ids = {piece: i for i, piece in enumerate(pieces)}
    scores = [*vocabulary.scores, *[0.0] * (len(pieces) - len(vocabulary.scores))]
    characters = _character_map(vocabulary.pattern)
    types = _types(vocabulary, pieces)
    trainer = message(
        (TRAINER_FIELDS["model_type"][0], UNIGRAM),
        (_VOCAB_SIZE, len(pieces)),
        (TRAINER_FIELDS["byte_fallback"][0], int(vocabulary.byte_fallback)),
        (_UNKNOWN_ID, vocabulary.unknown),
        *((field, ids.get(spelling, _NO_ID)) for field, spelling in _OTHER_IDS.items()),
        (_UNKNOWN_PIECE, pieces[vocabulary.unknown].encode()),
    )
    compiled = [(NORMALIZER_FIELDS["precompiled_charsmap"][0], characters.compiled)] if characters else []
    return parse_model(
        message(
            *((PIECE, _piece(*entry)) for entry in zip(pieces, scores, types, strict=True)),
            (TRAINER, trainer),
            (NORMALIZER, message(*compiled)),
        )
    )


def with_control_pieces(vocabulary: Model, spellings: Sequence[str]) -> Model:
    """Return the vocabulary of the same model with more control pieces, which are its special tokens."""
    for spelling in spellings:
        if spelling in vocabulary.ids:
            raise ValueError(
                f"{spelling!r} is an ordinary piece of the SentencePiece model: choose another spelling, or add it to "
                "as_tokenizers(), in which pieces can become special"
            )
    assert vocabulary.source is not None
    added = [(PIECE, _piece(spelling, 0.0, CONTROL)) for spelling in spellings]
    return parse_model(vocabulary.source + message(*added))


def _all_pieces(vocabulary: UnigramVocabulary) -> list[str]:
    """Return the pieces, and after them the special tokens that are not pieces."""
    special = vocabulary.special_tokens
    later = sorted(special.keys() - vocabulary.ids.keys(), key=special.__getitem__)
    pieces = [*vocabulary.pieces, *later]
    assert all(pieces[i] == spelling for spelling, i in special.items()), "special ids follow those of the pieces"
    for spelling, flags in vocabulary.added_flags.items():
        for flag in FLAGS:
            expect(not flags.get(flag), f"has the added token {quote(spelling)} with {flag}")
    return pieces


def _types(vocabulary: UnigramVocabulary, pieces: list[str]) -> list[int]:
    """Return the type of each piece. A piece with a mark after its start is unused: no word contains it."""
    types = [UNUSED if MARK in piece[1:] else NORMAL for piece in pieces]
    for byte in vocabulary.byte_ids or ():
        if byte >= 0:
            types[byte] = BYTE
    for i in vocabulary.special_tokens.values():
        types[i] = CONTROL
    types[vocabulary.unknown] = UNKNOWN
    return types


def _piece(piece: str, score: float, kind: int) -> bytes:
    numbers = {name: number for name, (number, _, _) in PIECE_FIELDS.items()}
    try:
        return message((numbers["piece"], piece.encode()), (numbers["score"], score), (numbers["type"], kind))
    except OverflowError:
        raise ValueError(f"has the score {score} of {quote(piece)}, which float32 cannot store") from None


def _character_map(words: MetaspaceWords) -> CharacterMap | None:
    """Return the character map of the normalizers. If needed, it also replaces white space by spaces."""
    expect(words.prepend == ALWAYS, f"has prepend_scheme = {words.prepend}, not {ALWAYS}")
    expect(words.cuts, "does not cut words before marks")
    steps = words.normalizers
    if not words.whitespace_split:
        expect(steps[-2:] == _SQUEEZING, "keeps extra spaces, because it has no WhitespaceSplit")
        steps = steps[:-2]
    maps = [step.characters for step in steps if isinstance(step, Precompiled)]
    for step in steps:
        expect(isinstance(step, Precompiled), f"has the normalizer {quote(step.field)}")
    expect(len(maps) < 2, "has two character maps")
    characters = maps[0] if maps else None
    kept = [c for c in COMMON_WHITE_SPACE if words.normalize(f"a{c}a") not in ("a a", "aa")]
    return _with_spaces(characters) if kept and words.whitespace_split else characters


def _with_spaces(characters: CharacterMap | None) -> CharacterMap:
    """Return a map that also replaces white space by a space, because a model cuts words at spaces only."""
    from tokenizer.splitting.double_array import compile_map
    from tokenizer.splitting.nfkc import named_map, nfkc_replacements

    replacements: dict[str, str] = {}
    if characters is not None:
        expect(characters == named_map("nfkc"), "cuts words at white space that its character map keeps")
        replacements = nfkc_replacements()
    replacements |= dict.fromkeys(WHITE_SPACE.replace(" ", ""), " ")
    return CharacterMap(compile_map({key.encode(): text.encode() for key, text in replacements.items()}))
