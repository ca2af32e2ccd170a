"""Loading vocabularies: tokenizer.json, tiktoken ranks, SentencePiece models, merges with a file of ids.

Files are read strictly. An unsupported feature or damaged file raises ValueError with the file and the field.
"""

from __future__ import annotations

import gc
import os
import re
from binascii import a2b_base64
from io import BytesIO
from operator import lt
from pathlib import Path

from tokenizer.formats.added_tokens import read_added_tokens, read_object
from tokenizer.formats.in_memory import checked_special_tokens, normalization_named, vocabulary_of_ranks
from tokenizer.formats.number_text import read_number
from tokenizer.formats.other_kinds import refuse_marked_words
from tokenizer.formats.published import PatternNeededError, recognise
from tokenizer.formats.records import Record
from tokenizer.formats.spelled_vocabulary import LARGEST_ID, build_vocabulary, most_merges
from tokenizer.formats.strict_json import decode, parse_json_text, read_bytes, read_text
from tokenizer.formats.tekken import is_tekken, parse_tekken
from tokenizer.kinds.registry import kind_of
from tokenizer.special import END_OF_TEXT
from tokenizer.splitting.patterns import NAMES, Pattern, resolve_pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenizer.bpe_vocabulary import BytePairVocabulary
    from tokenizer.character_bpe_vocabulary import CharacterPairVocabulary
    from tokenizer.vocabulary import Vocabulary
    from tokenizer.wordpiece_vocabulary import WordPieceVocabulary

# Name of a merges file -> name of the file with the ids of all tokens.
_IDS_BESIDE = {"vocab.bpe": "encoder.json", "merges.txt": "vocab.json"}
# The files that a folder is searched for, in this order.
_IN_FOLDER = ("tokenizer.json", "vocab.bpe", "merges.txt", "vocab.txt", "*.tiktoken", "tokenizer.model", "spiece.model")
_LAST_IN_FOLDER = ("tekken.json", "*.model.v*", "bpe_simple_vocab_16e6.txt.gz")
# Pattern and normalizer for a tokenizer_class in tokenizer_config.json, because merges.txt contains neither.
_CLASSES = {"GPT2Tokenizer": ("gpt2", None), "RobertaTokenizer": ("gpt2", None), "Qwen2Tokenizer": ("qwen2", "NFC")}
_CLIP_TOKEN = "<|startoftext|>"
# The special tokens of RoBERTa, which its merges.txt and vocab.json do not mark.
_ROBERTA_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")

_MODEL_NAME = re.compile(r"\.(spm|model(\.v\w+)?)$")  # of a SentencePiece model
_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+[\r\n]")
_NOT_SPACE = bytes(byte for byte in range(256) if byte not in b" \t\n\r\x0b\x0c")


def load_vocabulary(
    path: str | os.PathLike[str],
    pattern: str | Pattern | None = None,
    special_tokens: dict[str, int] | None = None,
    normalizer: str | None = None,
) -> Vocabulary:
    """Return the vocabulary in a file or folder. The name or the first line decides the format.

    A `.model` or `.spm` file is a SentencePiece model, unless its first line is a token and rank as in tiktoken (Llama
    3).
    """
    path = Path(path)
    is_folder = path.is_dir()
    if is_folder:
        path = _in_folder(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {path}: name a tokenizer")
    if special_tokens is not None:
        special_tokens = checked_special_tokens(special_tokens)
    normalization_named(normalizer)  # raises for a wrong name
    # Loading creates many objects and no garbage, so garbage collection would only take time.
    collects = gc.isenabled()
    gc.disable()
    try:
        for merges, ids in _IDS_BESIDE.items():
            # Both names may have a common prefix, as in my-vocab.json and my-merges.txt.
            for name in (merges, ids):
                if path.name.endswith(name):
                    prefix = path.name.removesuffix(name)
                    files = path.with_name(prefix + merges), path.with_name(prefix + ids)
                    return _load_merges(*files, pattern, special_tokens, normalizer)
        if path.suffix == ".json":
            whole = _load_tokenizer_json(path)  # first, because its errors matter more
            _refuse_arguments(pattern, special_tokens, normalizer)
            return whole
        if path.name.endswith(".txt.gz"):
            from tokenizer.formats.clip import parse_clip

            _refuse_arguments(pattern, special_tokens, normalizer)
            return parse_clip(read_bytes(path))
        if path.name.endswith("vocab.txt"):
            return _load_vocab_txt(path, pattern, special_tokens, normalizer)
        if _MODEL_NAME.search(path.name) and not _RANK_LINE.match(read_bytes(path), 0, 8192):  # Llama 3: ranks
            model = _load_model(path, is_folder)
            _refuse_arguments(pattern, special_tokens, normalizer)
            return model
        return _load_ranks(path, pattern, special_tokens, normalizer)
    except RecursionError:
        raise ValueError(f"{path}: is nested too deeply for a tokenizer") from None
    except PatternNeededError as error:
        raise PatternNeededError(f"{path}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    finally:
        if collects:
            gc.enable()


def _refuse_arguments(*arguments: object) -> None:
    if any(argument is not None for argument in arguments):
        raise ValueError("contains its own pattern, special tokens and normalizer; load it without these")


def _in_folder(folder: Path) -> Path:
    for name in (*_IN_FOLDER, *_LAST_IN_FOLDER):
        found = sorted(path for path in folder.glob(name) if not path.is_dir())
        if len(found) > 1:
            raise ValueError(f"the folder {folder} has {len(found)} {name} files; load one of them by its name")
        if found:
            return found[0]
    *others, last = _IN_FOLDER
    missing = f"the folder {folder} has no {', '.join(others)} or {last}"
    if models := sorted(path.name for path in folder.iterdir() if _MODEL_NAME.search(path.name)):
        missing += (
            f"; load {' or '.join(models[:4])} by its name for the ids of sentencepiece; transformers may give other "
            "ids"
        )
    raise FileNotFoundError(missing)


def _load_tokenizer_json(path: Path) -> Vocabulary:
    content: Any = read_bytes(path)
    record = Record(content)
    vocabulary: Vocabulary | None = record.read()
    if vocabulary is None:
        # One variable for bytes, text and value frees each early. They take hundreds of MB if a token takes tens.
        content = decode(content)
        content = parse_json_text(content, read_number)
        vocabulary = parse_tekken(content) if is_tekken(content) else kind_of(content).read(content)
        record.write(vocabulary)
    return vocabulary


def _load_model(path: Path, is_folder: bool) -> Vocabulary:
    """Return the vocabulary of a SentencePiece model; that of T5 if the configuration in its folder names T5."""
    from tokenizer.formats.sentencepiece_files import as_of_folder, load_model

    vocabulary = load_model(path)
    beside = (path.with_name(name) for name in ("tokenizer_config.json", "config.json"))
    return as_of_folder(vocabulary, *(read_object(file, {}) for file in beside)) if is_folder else vocabulary


def _load_vocab_txt(
    path: Path, pattern: str | Pattern | None, special_tokens: dict[str, int] | None, normalizer: str | None
) -> WordPieceVocabulary:
    """Return the vocabulary of BERT's format. tokenizer_config.json beside it says how text becomes words.

    special_tokens default to those in tokenizer_config.json, and BERT's that are in the file.
    """
    from tokenizer.formats.wordpiece_files import BERT_SPECIAL_TOKENS, build_wordpiece, parse_vocab_txt, words_of_config
    from tokenizer.splitting.bert_splitter import NAMED_WORDS, words_of

    if normalizer is not None:
        raise ValueError("normalizer is for byte-level vocabularies: pattern says how BERT normalizes text")
    ids = parse_vocab_txt(read_text(path))
    config = read_object(path.with_name("tokenizer_config.json"), {})
    words = words_of(pattern) if isinstance(pattern, str) else words_of_config(config) if pattern is None else None
    if words is None:
        if pattern is not None:
            raise ValueError(f"is WordPiece, so pattern must be one of {', '.join(NAMED_WORDS)}, not {pattern}")
        raise PatternNeededError(f"does not say how text becomes words; pass pattern= with {' or '.join(NAMED_WORDS)}")
    flags: dict[str, dict[str, bool]] = {}
    if special_tokens is None:
        special_tokens, flags = read_added_tokens(path, config, ids)
        for spelling in BERT_SPECIAL_TOKENS:
            if spelling in ids:
                special_tokens.setdefault(spelling, ids[spelling])
    else:  # `tokenizers` would give these tokens other ids unless they are in its vocabulary
        ids = special_tokens | ids
    around = _edges("BertProcessing", "[CLS]", "[SEP]", special_tokens)
    return build_wordpiece(ids, dict(special_tokens), words, field="it", added_flags=flags, post_processor=around)


def _edges(kind: str, first: str, last: str, special_tokens: dict[str, int], **options: bool) -> dict[str, Any] | None:
    """Return the post_processor that puts these tokens around a text; None if one of them is missing."""
    if first not in special_tokens or last not in special_tokens:
        return None
    return {"type": kind, "sep": [last, special_tokens[last]], "cls": [first, special_tokens[first]], **options}


def _load_ranks(
    path: Path, pattern: str | Pattern | None, special_tokens: dict[str, int] | None, normalizer: str | None
) -> BytePairVocabulary:
    """Return the vocabulary of a file in tiktoken's format: one token in base64 and its rank (the id) per line."""
    content = read_bytes(path)
    if path.suffix != ".tiktoken" and not _RANK_LINE.match(content, 0, 8192):
        raise ValueError(
            "is neither a tokenizer.json, nor vocab.bpe, merges.txt or vocab.txt, nor a SentencePiece model (.model or "
            ".spm), nor tiktoken's ranks in base64"
        )
    ranks = _parse_ranks(content)
    empty = {"": ranks.pop(b"")} if b"" in ranks else {}  # Whisper has one
    if pattern is None:
        known = recognise(content, len(ranks) + len(empty), path.stem)
        if known is None:
            raise PatternNeededError(f"does not say how text is split; pass pattern= with one of {', '.join(NAMES)}")
        pattern = known[0]
        special_tokens = known[1] if special_tokens is None else special_tokens
    return vocabulary_of_ranks(ranks, pattern, special_tokens, normalizer, empty)


def _parse_ranks(content: bytes) -> dict[bytes, int]:
    """Return the rank of each token. Lines that the bulk parser cannot verify are parsed one by one."""
    lines = content.count(b"\n") + (not content.endswith(b"\n"))
    if content.translate(None, _NOT_SPACE).removesuffix(b"\n") + b"\n" != b" \n" * lines:
        return _parse_rank_lines(content)
    fields = content.split()
    try:
        ranks = list(map(int, fields[1::2]))
        found = dict(zip([a2b_base64(token, strict_mode=True) for token in fields[::2]], ranks, strict=True))
    except ValueError:
        return _parse_rank_lines(content)
    # `int` also accepts signs and underscores.
    only_digits = b"-" not in content and b"_" not in content and b" +" not in content
    ascending = all(map(lt, ranks, ranks[1:]))
    if only_digits and ascending and len(found) == lines and b"" not in found and ranks[-1] < LARGEST_ID:
        return found
    return _parse_rank_lines(content)


def _parse_rank_lines(content: bytes) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    taken: set[int] = set()
    for number, line in enumerate(BytesIO(content.rstrip()), start=1):
        try:
            encoded, rank_text = line.split(None, 2)
            token, rank = b"" if encoded == b"=" else a2b_base64(encoded, strict_mode=True), int(rank_text)
        except ValueError:
            raise ValueError(f"line {number} is not a token in base64 and its rank") from None
        if (not token and encoded != b"=") or not rank_text.isdigit() or rank >= LARGEST_ID:
            raise ValueError(f"line {number} has an empty token or a rank out of range")
        if rank in taken:
            raise ValueError(f"line {number} repeats the rank {rank}")
        if token in found:
            raise ValueError(f"two tokens have the bytes {token[:80]!r}; the second is in line {number}")
        found[token] = rank
        taken.add(rank)
    return found


def _load_merges(
    path: Path,
    ids_path: Path,
    pattern: str | Pattern | None,
    special_tokens: dict[str, int] | None,
    normalizer: str | None,
) -> BytePairVocabulary | CharacterPairVocabulary:
    """Return the vocabulary of GPT-2's, Qwen 2's and CLIP's format: one merge per line, a JSON object with all ids.

    special_tokens default to those in the other files that transformers writes, and <|endoftext|> if it has an id.
    """
    if not path.is_file() or not ids_path.is_file():
        missing = ids_path if path.is_file() else path
        raise ValueError(f"needs {missing.name} beside it")
    ids = read_object(ids_path)
    # One line for the version, and one to detect that there are too many merges.
    merges = read_text(path).replace("\r\n", "\n").removesuffix("\n").split("\n", most_merges(ids) + 2)
    if merges[0].startswith("#version") or merges == [""]:
        del merges[0]
    if _CLIP_TOKEN in ids:
        from tokenizer.formats.clip import clip_of

        if (clip := clip_of(ids, merges)) is not None:
            _refuse_arguments(pattern, special_tokens, normalizer)
            return clip
    config = read_object(path.with_name("tokenizer_config.json"), {})
    flags: dict[str, dict[str, bool]] = {}
    if special_tokens is None:
        special_tokens, flags = read_added_tokens(path, config, ids)
        if END_OF_TEXT in ids:
            special_tokens.setdefault(END_OF_TEXT, ids[END_OF_TEXT])
    around = None
    if str(config.get("tokenizer_class")).removesuffix("Fast") == "RobertaTokenizer":
        for spelling in _ROBERTA_TOKENS:
            if spelling in ids:
                special_tokens.setdefault(spelling, ids[spelling])
        flags = {"<mask>": {"lstrip": True}} | flags if "<mask>" in special_tokens else flags
        around = _edges("RobertaProcessing", "<s>", "</s>", special_tokens, trim_offsets=True, add_prefix_space=False)
    refuse_marked_words(ids, merges, special_tokens)
    if pattern is None:
        pattern, normalizer = _pattern_of_class(config, normalizer)
    return build_vocabulary(
        ids,
        merges,
        special_tokens,
        resolve_pattern(pattern),
        vocab_field=ids_path.name,
        normalizer=normalization_named(normalizer),
        added_flags=flags,
        post_processor=around,
    )


def _pattern_of_class(config: dict[str, Any], normalizer: str | None) -> tuple[str, str | None]:
    """Return the split pattern and normalizer for the tokenizer_class in tokenizer_config.json (default: GPT-2)."""
    if config.get("add_prefix_space"):
        raise ValueError("tokenizer_config.json has add_prefix_space, which is not supported")
    name = config.get("tokenizer_class", "GPT2Tokenizer")
    known = _CLASSES.get(name.removesuffix("Fast")) if isinstance(name, str) else None
    if known is None:
        raise PatternNeededError(
            f"tokenizer_config.json names the tokenizer_class {str(name)[:80]!r}, which does not say how text is "
            f"split; save a tokenizer.json beside it, or pass pattern= with one of {', '.join(NAMES)}"
        )
    return known[0], normalizer or known[1]
