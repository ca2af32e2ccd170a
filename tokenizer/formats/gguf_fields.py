"""Vocabularies in GGUF files: the keys that llama.cpp's tokenizers read.

llama.cpp has a fixed list of named pre-tokenizers. A vocabulary is written if one of them splits every text as the
vocabulary's pattern does. The key `tokenizer.huggingface.json` holds the vocabulary as tokenizer.json. The GGUF
specification defines this key, and llama.cpp ignores it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tokenizer.bpe_vocabulary import BytePairVocabulary
from tokenizer.byte_level import WHOLE_FIRST, spell
from tokenizer.character_bpe_vocabulary import CharacterPairVocabulary
from tokenizer.formats.number_text import read_number
from tokenizer.formats.spelled_vocabulary import expect, quote
from tokenizer.formats.strict_json import parse_json_text
from tokenizer.kinds.registry import kind_named, kind_of
from tokenizer.splitting.bert_splitter import BertWords
from tokenizer.splitting.chains import Chain
from tokenizer.splitting.metaspace_splitter import ALWAYS, SPACED, MetaspaceWords
from tokenizer.splitting.normalizers import MARK, Precompiled
from tokenizer.splitting.patterns import SUPERWORD_REGEXES, resolve_pattern
from tokenizer.unigram_vocabulary import UnigramVocabulary
from tokenizer.vocabulary import Vocabulary
from tokenizer.wordpiece_vocabulary import CONTINUATION, WordPieceVocabulary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of tokens
PREFIX, HF_JSON = "tokenizer.ggml.", "tokenizer.huggingface.json"
PRE_TOKENIZERS = {"gpt2": "gpt-2", "llama3": "dbrx", "qwen2": "qwen2", "cl100k": "dbrx", "o200k": "gpt-4o"}
"""Names of llama.cpp, by our pattern. llama-bpe has the regex of dbrx, but also adds a start token by default."""
WHOLE_WORDS = {"llama3": "llama-bpe"}
"""The same for vocabularies in which a pretoken that equals a token is never merged"""
APPROXIMATE = {"o200k": "llama.cpp splits accents and capital letters beyond ASCII differently"}
NOTES = {"cl100k": "llama.cpp splits white space at the end of a text differently if it contains a line end"}
WORDPIECE_NOTE = (
    "llama.cpp spells words above 100 characters, and splits at the control characters U+000B, U+000C and U+0085, "
    "unlike BERT's tokenizer"
)
ACCENTS_NOTE = "llama.cpp strips the accents of Hangul and Indic scripts differently, so such text becomes other ids"
UNIGRAM_NOTE = "llama.cpp normalizes combining marks with Unigram differently"
NO_MERGES = [""]
"""Merges of a vocabulary without merges: GGUF has no empty arrays"""
READ_PRE = {
    "gpt2": "gpt-2 phi-2 modern-bert mellum exaone4 olmo mpt jais trillion granite-docling roberta-bpe",
    "llama3": "llama-bpe llama3 llama-v3 falcon3 pixtral lfm2 dbrx smaug-bpe",
    "qwen2": "qwen2 stablelm2 hunyuan megrez grok-2 solar-open",
}
"""Names of llama.cpp's pre-tokenizers with the same regex, by our pattern"""
IGNORES_MERGES = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2")
"""Pre-tokenizers with which a pretoken that equals a token is never merged"""
INDIC_AND_HANGUL = "\u0900\u0dff\u1100\u11ff\u3130\u318f\uac00\ud7a3"  # first and last characters of blocks


@dataclass(frozen=True)
class GgufTokenizer:
    """The keys of a GGUF file for a vocabulary."""

    keys: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    """Sentences about texts that llama.cpp encodes differently"""


def gguf_tokenizer(vocabulary: Vocabulary, rows: int, approximate: bool = False) -> GgufTokenizer:
    """Return the keys of a vocabulary for a model with `rows` entries; those beyond the vocabulary are unused.

    `approximate` also accepts a vocabulary with which llama.cpp encodes some texts differently. Raises ValueError for a
    vocabulary that llama.cpp cannot express.
    """
    if isinstance(vocabulary, BytePairVocabulary):
        made = _byte_pairs(vocabulary, approximate)
    elif isinstance(vocabulary, WordPieceVocabulary):
        made = _word_pieces(vocabulary, approximate)
    elif isinstance(vocabulary, UnigramVocabulary):
        made = _unigram(vocabulary, approximate)
    elif isinstance(vocabulary, CharacterPairVocabulary):
        made = _character_pairs(vocabulary)
    else:
        raise ValueError(
            f"a vocabulary of the kind {vocabulary.kind} cannot be exported to GGUF: train one of the kind bpe"
        )
    special = {i: spelling for spelling, i in vocabulary.special_tokens.items()}
    # No token has a space, so unused ids cannot be spelled like one.
    tokens, types = [f"[PAD {i}]" for i in range(rows)], [UNUSED] * rows
    for i, token in enumerate(made.keys.pop("tokens")):
        if i in special:
            ordinary = vocabulary.added_flags.get(special[i], {}).get("special") is False
            tokens[i], types[i] = special[i], USER_DEFINED if ordinary else CONTROL
        elif token is not None:
            tokens[i], types[i] = token, NORMAL
    for i in made.keys.pop("bytes", ()):
        types[i] = BYTE
    if vocabulary.unknown_id is not None:
        types[vocabulary.unknown_id] = UNKNOWN
        made.keys["unknown_token_id"] = vocabulary.unknown_id
    (most, count), *_ = Counter(tokens).most_common(1)
    if count > 1:
        raise ValueError(f"two tokens would be spelled {most!r} in GGUF, which needs distinct ones")
    if "scores" in made.keys:
        made.keys["scores"] += [0.0] * (rows - len(made.keys["scores"]))
    keys = {f"{PREFIX}{name}": value for name, value in (made.keys | {"tokens": tokens, "token_type": types}).items()}
    keys[HF_JSON] = "".join(kind_named(vocabulary.kind).json(vocabulary))
    return GgufTokenizer(keys, made.notes)


def _byte_pairs(vocabulary: BytePairVocabulary, approximate: bool) -> GgufTokenizer:
    if vocabulary.normalizer is not None:
        raise ValueError(
            f"the vocabulary has the normalizer {vocabulary.normalizer}, which llama.cpp ignores with BPE: train a "
            "vocabulary without one to export it"
        )
    if vocabulary.missing_bytes:
        raise ValueError(f"the vocabulary lacks the byte 0x{vocabulary.missing_bytes[0]:02x}, which llama.cpp needs")
    tokens: Any = vocabulary.tokens
    merges = [f"{spell(tokens[left])} {spell(tokens[right])}" for left, right, _ in vocabulary.merges.tolist()]
    name = getattr(vocabulary.pattern, "name", None)
    notes = [note for note in (NOTES.get(name or ""), APPROXIMATE.get(name or "")) if note]
    return GgufTokenizer(
        {
            "model": "gpt2",
            "pre": _pre_tokenizer(vocabulary, approximate),
            "tokens": [None if token is None else spell(token) for token in tokens],
            "merges": merges or NO_MERGES,
        },
        notes,
    )


def _pre_tokenizer(vocabulary: BytePairVocabulary, approximate: bool) -> str:
    """Return the name of llama.cpp's pre-tokenizer that splits as the vocabulary's pattern."""
    pattern, whole = vocabulary.pattern, vocabulary.semantics == WHOLE_FIRST
    if isinstance(pattern, Chain):
        if _is_superwords(pattern) and not whole:
            return "superbpe"
        raise ValueError(f"llama.cpp has no pre-tokenizer that splits texts as this vocabulary does ({_choices()})")
    names = WHOLE_WORDS if whole else PRE_TOKENIZERS
    if pattern.name in APPROXIMATE and not approximate:
        raise ValueError(
            f"llama.cpp has no pre-tokenizer that splits exactly as {pattern.name}: {APPROXIMATE[pattern.name]}; add "
            "`approximate` to write the nearest"
        )
    if pattern.name not in names:
        what = "with `ignore_merges` " if whole else ""
        raise ValueError(
            f"llama.cpp has no pre-tokenizer that splits {what}as the pattern {str(pattern)[:80]!r} ({_choices()})"
        )
    return names[pattern.name]


def _choices() -> str:
    exact = [name for name in PRE_TOKENIZERS if name not in APPROXIMATE]
    return f"patterns that can be exported: {', '.join(exact)}"


def _is_superwords(chain: Chain) -> bool:
    regexes = [step.get("pattern", {}).get("Regex") for step in chain.steps[:-1]]
    plain = all(step.get("behavior") == "Isolated" and not step.get("invert") for step in chain.steps[:-1])
    last = chain.steps[-1]
    bare = last["type"] == "ByteLevel" and not last.get("add_prefix_space") and not last.get("use_regex")
    return tuple(regexes) == SUPERWORD_REGEXES and plain and bare


def _word_pieces(vocabulary: WordPieceVocabulary, approximate: bool) -> GgufTokenizer:
    words, notes = vocabulary.pattern, [WORDPIECE_NOTE]
    if (
        not isinstance(words, BertWords)
        or not (words.clean_text and words.chinese)
        or vocabulary.prefix != CONTINUATION
    ):
        raise ValueError("llama.cpp expresses WordPiece with the prefix '##' and the words of BERT only")
    if words.strip_accents and _has_composed_letters(vocabulary):
        if not approximate:
            raise ValueError(f"{ACCENTS_NOTE}: add `approximate` to write the vocabulary anyway")
        notes.append(ACCENTS_NOTE)
    tokens: list[str | None] = [None] * vocabulary.size
    for token, i in vocabulary.ids.items():
        tokens[i] = token.removeprefix(CONTINUATION) if token.startswith(CONTINUATION) else MARK + token
    keys = {
        "model": "bert",
        "pre": "default",
        "tokens": tokens,
        "normalizer.lowercase": words.lowercase,
        "normalizer.strip_accents": words.strip_accents,
    }
    return GgufTokenizer(keys, notes)


def _has_composed_letters(vocabulary: WordPieceVocabulary) -> bool:
    blocks = list(zip(INDIC_AND_HANGUL[::2], INDIC_AND_HANGUL[1::2], strict=True))
    return any(first <= letter <= last for token in vocabulary.ids for letter in token for first, last in blocks)


def _unigram(vocabulary: UnigramVocabulary, approximate: bool) -> GgufTokenizer:
    words = vocabulary.pattern
    if not isinstance(words, MetaspaceWords):
        raise ValueError("llama.cpp cannot express a SentencePiece model of this kind: train a Unigram vocabulary")
    if vocabulary.byte_fallback:
        raise ValueError("llama.cpp has no byte fallback for Unigram: train without `byte_fallback`")
    maps = [step.characters.compiled for step in words.normalizers if isinstance(step, Precompiled)]
    whole = words.whitespace_split and words.prepend == ALWAYS and words.cuts
    spaces = all(words.normalize(space) == " " for space in "\t\n\r\u3000")
    if not (len(maps) == len(words.normalizers) == 1 and whole and spaces):
        raise ValueError(
            f"llama.cpp needs a Unigram vocabulary whose normalizer turns white space into spaces, and this one has "
            f"{words}: train one with the pattern nmt_nfkc"
        )
    if not approximate:
        raise ValueError(f"{UNIGRAM_NOTE}: add `approximate` to write the vocabulary anyway")
    return GgufTokenizer(
        {
            "model": "t5",
            "pre": "default",
            "tokens": list(vocabulary.pieces) + [None] * (vocabulary.size - len(vocabulary.pieces)),
            "scores": list(vocabulary.scores),
            "precompiled_charsmap": maps[0],
            "add_space_prefix": True,
            "remove_extra_whitespaces": True,
        },
        [UNIGRAM_NOTE],
    )


def _character_pairs(vocabulary: CharacterPairVocabulary) -> GgufTokenizer:
    """Return the keys of BPE by scores, as in SentencePiece, which llama.cpp calls "llama"."""
    if vocabulary.source is not None:
        raise ValueError("llama.cpp cannot express a SentencePiece model of this kind: train a vocabulary instead")
    model: Any = kind_named(vocabulary.kind).as_sentencepiece(vocabulary)
    if not model.pattern.keeps_characters or vocabulary.byte_ids is None:
        raise ValueError(
            "llama.cpp needs BPE over characters that changes no character but spaces, and has tokens for all bytes: "
            f"train one with the pattern {SPACED}"
        )
    others = {*vocabulary.special_tokens, *(model.pieces[i] for i in vocabulary.byte_ids.values())}
    for piece in others:
        if any(piece[:cut] in vocabulary.ids and piece[cut:] in vocabulary.ids for cut in range(1, len(piece))):
            raise ValueError(f"llama.cpp would read the text {piece!r} as the token of this name: choose another")
    return GgufTokenizer(
        {
            "model": "llama",
            "pre": "default",
            "tokens": list(model.pieces),
            "scores": list(model.scores),
            "bytes": list(vocabulary.byte_ids.values()),
            "add_space_prefix": model.pattern.add_dummy_prefix,
        }
    )


# Reading


def gguf_vocabulary(keys: Mapping[str, Any]) -> Vocabulary:
    """Return the vocabulary in the keys of a GGUF file: its tokenizer.json, or else the keys of llama.cpp.

    Raises ValueError, which completes a sentence about the file, for keys that are missing, damaged or not supported.
    """
    tokens = _list_of(keys, "tokens", str)
    if HF_JSON in keys:
        expect(isinstance(keys[HF_JSON], str), f"has a {HF_JSON} that is not a text")
        try:
            content = parse_json_text(keys[HF_JSON], parse_float=read_number)
        except ValueError as error:
            raise ValueError(f"has a {HF_JSON} that {error}") from None
        expect(isinstance(content, dict), f"has a {HF_JSON} that is not a JSON object")
    else:
        content = _as_tokenizer_json(keys, tokens)
    vocabulary = kind_of(content).read(content)
    expect(vocabulary.size <= len(tokens), f"has {len(tokens)} {PREFIX}tokens, but {HF_JSON} has {vocabulary.size}")
    return vocabulary


def _as_tokenizer_json(keys: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    """Return the content of the tokenizer.json that means the same as the keys of llama.cpp."""
    types = _list_of(keys, "token_type", int)
    expect(len(types) == len(tokens), f"has {len(types)} items in {PREFIX}token_type for {len(tokens)} tokens")
    used = [i for i, kind in enumerate(types) if kind != UNUSED]
    expect(len({tokens[i] for i in used}) == len(used), f"has the same token twice in {PREFIX}tokens")
    added = [
        {"id": i, "content": tokens[i], "special": types[i] != USER_DEFINED}
        for i in used
        if types[i] in (UNKNOWN, CONTROL, USER_DEFINED)
    ]
    model = keys.get(f"{PREFIX}model")
    if model == "gpt2":
        return {"added_tokens": added, **_byte_pair_fields(keys, {tokens[i]: i for i in used})}
    expect(
        model == "bert",
        f"has {PREFIX}model = {quote(model)}, and no {HF_JSON}: only byte-level BPE ('gpt2') and WordPiece ('bert') "
        "are read without it",
    )
    marked = {i: tokens[i][1:] if tokens[i].startswith(MARK) else CONTINUATION + tokens[i] for i in used}
    pieces = {marked[i] if types[i] == NORMAL else tokens[i]: i for i in used}
    unknown = keys.get(f"{PREFIX}unknown_token_id", 100)
    expect(type(unknown) is int and 0 <= unknown < len(tokens), f"has {PREFIX}unknown_token_id = {quote(unknown)}")
    options = {name: keys.get(f"{PREFIX}normalizer.{name}", True) for name in ("lowercase", "strip_accents")}
    return {
        "added_tokens": added,
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, **options},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {"type": "WordPiece", "unk_token": tokens[unknown], "vocab": pieces},
    }


def _byte_pair_fields(keys: Mapping[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    """Return the fields of a tokenizer.json that byte-level BPE needs."""
    pre = keys.get(f"{PREFIX}pre")
    name = next((ours for ours, names in READ_PRE.items() if pre in names.split()), None)
    expect(
        name is not None or pre == "superbpe",
        f"has {PREFIX}pre = {quote(pre)}, which is not supported: known are superbpe {' '.join(READ_PRE.values())}",
    )
    regexes = SUPERWORD_REGEXES if name is None else (resolve_pattern(name).regex,)
    merges = []
    listed = _list_of(keys, "merges", str)
    for merge in () if listed == NO_MERGES else listed:
        cut = merge.find(" ", 1)
        expect(cut > 0, f"has the merge {quote(merge)} without a space in {PREFIX}merges")
        merges.append([merge[:cut], merge[cut + 1 :]])
    steps = [{"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated"} for regex in regexes]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    return {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, byte_level]},
        "model": {"type": "BPE", "vocab": ids, "merges": merges, "ignore_merges": pre in IGNORES_MERGES},
    }


def _list_of(keys: Mapping[str, Any], name: str, kind: type) -> Sequence[Any]:
    """Return the array of a key, whose items must be of one type."""
    found = keys.get(f"{PREFIX}{name}")
    if not isinstance(found, list) or not all(isinstance(item, kind) for item in found):
        raise ValueError(f"has no {PREFIX}{name}, or it is no array of {kind.__name__}: take a complete file")
    return found
