"""Writing vocabularies, such as those of tokenizer.json, as SentencePiece models."""

from __future__ import annotations

from tokenizer.encoding.special_spellings import FLAGS
from tokenizer.formats.sentencepiece_files import (
    BPE,
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
from tokenizer.splitting.metaspace_splitter import ALWAYS, NEVER, MetaspaceWords
from tokenizer.splitting.normalizers import MARK, SPACES_TO_MARKS, Precompiled, Prepend, Replace, Strip
from tokenizer.splitting.precompiled_map import CharacterMap
from tokenizer.text import WHITE_SPACE
from tokenizer.unigram_vocabulary import UnigramVocabulary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from tokenizer.character_bpe_vocabulary import CharacterPairVocabulary

# Fields of trainer_spec that sentencepiece does not need, but other programs read.
_VOCAB_SIZE, _UNKNOWN_ID, _UNKNOWN_PIECE = 4, 40, 45
_OTHER_IDS = {41: "<s>", 42: "</s>", 43: "<pad>"}
_NO_ID = -1
# The last normalizers of XLM-R and mBART. These drop extra spaces, as WhitespaceSplit does in other files.
_SQUEEZING = (Strip(False, True), Replace(" {2,}", True, MARK))


def as_sentencepiece(vocabulary: UnigramVocabulary | CharacterPairVocabulary) -> Model:
    """Return a vocabulary with the same pieces and ids that encodes as sentencepiece does.

    Special tokens become control pieces. Raises ValueError for features that a model cannot express. Its message has no
    subject, such as "has two character maps"; the caller adds it.
    """
    if isinstance(vocabulary, UnigramVocabulary):
        return _unigram_as_sentencepiece(vocabulary)
    return _pairs_as_sentencepiece(vocabulary)


def _unigram_as_sentencepiece(vocabulary: UnigramVocabulary) -> Model:
    """Return the vocabulary of a Unigram model. Scores are rounded to float32."""
    pieces = _all_pieces(vocabulary)
    scores = [*vocabulary.scores, *[0.0] * (len(pieces) - len(vocabulary.scores))]
    types = _types(vocabulary, pieces)
    entries = list(zip(pieces, scores, types, strict=True))
    return _model(UNIGRAM, vocabulary, entries, _normalizer_of(vocabulary.pattern))


def _pairs_as_sentencepiece(vocabulary: CharacterPairVocabulary) -> Model:
    """Return the vocabulary of a BPE model. The scores are the negative ranks of the merges that make the tokens."""
    from tokenizer.encoding.character_tables import sufficient_merges

    words: Any = vocabulary.pattern
    expect(isinstance(words, MetaspaceWords), f"splits texts by {quote(str(words))}, not into words with marks")
    expect(vocabulary.unknown is not None, "has no unknown token")
    expect(not (vocabulary.prefix or vocabulary.suffix), "marks characters within or at the end of words")
    expect(not vocabulary.whole_first, "does not merge pretokens that are tokens (ignore_merges)")
    merges = sufficient_merges(vocabulary)
    expect(merges is not None, "has merges whose order sentencepiece would not keep")
    assert merges is not None
    pieces, lowest = _all_pieces(vocabulary), -float(len(merges))
    scores = dict(zip(merges[:, 2].tolist(), map(float, range(0, -len(merges), -1)), strict=True))
    types = [UNUSED if piece == "" else NORMAL for piece in pieces]
    for i in (vocabulary.byte_ids or {}).values():
        types[i] = BYTE
    for i in vocabulary.special_tokens.values():
        types[i] = CONTROL
    types[vocabulary.unknown_id or 0] = UNKNOWN
    for i, (piece, kind) in enumerate(zip(pieces, types, strict=True)):
        expect(kind != UNUSED, f"has no token with the id {i}")
        made = kind != NORMAL or len(piece) == 1 or i in scores
        expect(made, f"has the token {quote(piece)}, which no merge makes")
        crosses = words.cuts and kind == NORMAL and MARK in piece[1:]
        expect(not crosses, f"has the token {quote(piece)}, which no word contains, but sentencepiece has no words")
    entries = [
        (piece, scores.get(i, lowest - i if types[i] == NORMAL else 0.0), types[i]) for i, piece in enumerate(pieces)
    ]
    return _model(BPE, vocabulary, entries, _normalizer_of(words))


def _normalizer_of(words: MetaspaceWords) -> list[tuple[int, int | bytes]]:
    """Return the fields of normalizer_spec."""
    numbers = {name: number for name, (number, _, _) in NORMALIZER_FIELDS.items()}
    steps = words.normalizers[:-1] if words.normalizers[-1:] == (SPACES_TO_MARKS,) else words.normalizers
    if steps in ((), (Prepend(MARK),)) and not words.whitespace_split and words.prepend == NEVER:
        return [(numbers["add_dummy_prefix"], len(steps)), (numbers["remove_extra_whitespaces"], 0)]
    characters = _character_map(words)
    return [(numbers["precompiled_charsmap"], characters.compiled)] if characters else []


def _model(
    kind: int,
    vocabulary: UnigramVocabulary | CharacterPairVocabulary,
    entries: list[tuple[str, float, int]],
    normalizer: Sequence[tuple[int, int | bytes]],
) -> Model:
    """Return the vocabulary of a model with these pieces, scores and types."""
    ids = {piece: i for i, (piece, _, _) in enumerate(entries)}
    unknown = vocabulary.unknown_id or 0
    trainer = message(
        (TRAINER_FIELDS["model_type"][0], kind),
        (_VOCAB_SIZE, len(entries)),
        (TRAINER_FIELDS["byte_fallback"][0], int(vocabulary.byte_fallback)),
        (_UNKNOWN_ID, unknown),
        *((field, ids.get(spelling, _NO_ID)) for field, spelling in _OTHER_IDS.items()),
        (_UNKNOWN_PIECE, entries[unknown][0].encode()),
    )
    parts = [*((PIECE, _piece(*entry)) for entry in entries), (TRAINER, trainer), (NORMALIZER, message(*normalizer))]
    return parse_model(message(*parts))


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


def _all_pieces(vocabulary: UnigramVocabulary | CharacterPairVocabulary) -> list[str]:
    """Return the pieces by id, the special tokens that are not in `ids` too."""
    special = vocabulary.special_tokens
    pieces = [""] * vocabulary.size
    for piece, i in [*vocabulary.ids.items(), *special.items()]:
        pieces[i] = piece
    for spelling, flags in vocabulary.added_flags.items():
        for flag in FLAGS:
            expect(not flags.get(flag), f"has the added token {quote(spelling)} with {flag}")
    return pieces


def _types(vocabulary: UnigramVocabulary, pieces: list[str]) -> list[int]:
    """Return the type of each piece. A piece with a mark where words are cut is unused: no word contains it."""
    cuts = vocabulary.pattern.cuts  # RUNS: only before the first mark of a run
    inner = [piece[1:] if cuts is True else piece.lstrip(MARK) if cuts else "" for piece in pieces]
    types = [UNUSED if MARK in rest else NORMAL for rest in inner]
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
    expect(words.cuts is True, "does not cut words before marks")
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
