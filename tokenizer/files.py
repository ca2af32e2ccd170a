"""Reading and writing vocabularies: tokenizer.json, .tiktoken, and GPT-2's vocab.bpe with encoder.json.

A file is read strictly: what we do not do is refused by name, and a damaged file is a ValueError that says
which file and which field.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from pathlib import Path

import numpy as np

from tokenizer.hugging_face import parse_tokenizer_json, tokenizer_json
from tokenizer.patterns import Pattern, resolve_pattern
from tokenizer.special import check_special_tokens
from tokenizer.vocabulary import BY_MERGES, BY_RANKS, Vocabulary

LARGEST_ID = 2**24


def load_vocabulary(
    path: str | os.PathLike, pattern: str | Pattern | None, special_tokens: dict[str, int] | None
) -> Vocabulary:
    """Read a vocabulary from a file or folder, whose format its name tells."""
    path = Path(path)
    if path.is_dir():
        candidates = [path / "tokenizer.json", path / "vocab.bpe"]
        ranks = sorted(path.glob("*.tiktoken"))
        found = [candidate for candidate in candidates if candidate.is_file()] or ranks[:1]
        if not found:
            raise FileNotFoundError(f"the folder {path} has no tokenizer.json, vocab.bpe or .tiktoken file")
        path = found[0]
    if not path.is_file():
        raise FileNotFoundError(f"no such tokenizer: {path}")
    try:
        if path.suffix == ".tiktoken":
            return _load_tiktoken(path, pattern, special_tokens)
        if path.name == "vocab.bpe":
            return _load_gpt2(path, pattern, special_tokens)
        if path.suffix == ".json":
            if pattern is not None or special_tokens is not None:
                raise ValueError("says its own pattern and special tokens; load it without")
            return parse_tokenizer_json(_read_json(path))
        raise ValueError("is neither a .json nor a .tiktoken file nor a vocab.bpe")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def save_tokenizer_json(vocabulary: Vocabulary, folder: str | os.PathLike) -> None:
    """Write folder/tokenizer.json through a temporary file in the same folder."""
    folder = Path(folder)
    content = json.dumps(tokenizer_json(vocabulary), ensure_ascii=False, indent=2) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".tokenizer.json.{os.getpid()}.partial"
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(folder / "tokenizer.json")
    except OSError as error:
        # A full disk does not say which file did not fit.
        raise OSError(error.errno, error.strerror, str(folder / "tokenizer.json")) from None
    finally:
        partial.unlink(missing_ok=True)


def _read_json(path: Path):
    try:
        return json.loads(path.read_bytes().decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON ({error.msg} at line {error.lineno}); the file may be truncated") from None
    except RecursionError:
        raise ValueError("is nested too deeply for a tokenizer") from None


def _given_special_tokens(special_tokens: dict[str, int] | None, tokens: list[bytes | None]) -> dict[str, int]:
    """Make room in `tokens` for the special tokens and return them."""
    special_tokens = dict(special_tokens or {})
    check_special_tokens(tuple(special_tokens))
    for spelling, i in special_tokens.items():
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < LARGEST_ID:
            raise ValueError(f"the id of the special token {spelling!r} must be below {LARGEST_ID}, not {i!r}")
        tokens.extend([None] * (i + 1 - len(tokens)))
    return special_tokens


def _load_tiktoken(path: Path, pattern, special_tokens) -> Vocabulary:
    """Lines of a token in base64 and its rank, which is its id."""
    from tokenizer.encoding import merges_from_ranks

    if pattern is None:
        raise ValueError("a .tiktoken file does not say its split pattern; pass pattern=, for example 'cl100k'")
    tokens: list[bytes | None] = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line:
            continue
        try:
            encoded, rank_text = line.split()
            token, rank = base64.b64decode(encoded, validate=True), int(rank_text)
        except (ValueError, binascii.Error):
            raise ValueError(f"line {number} is not a token in base64 and its rank") from None
        if not token or not 0 <= rank < LARGEST_ID:
            raise ValueError(f"line {number} has an empty token or a rank out of range")
        if rank >= len(tokens):
            tokens.extend([None] * (rank + 1 - len(tokens)))
        if tokens[rank] is not None:
            raise ValueError(f"line {number} repeats the rank {rank}")
        tokens[rank] = token
    special_tokens = _given_special_tokens(special_tokens, tokens)
    vocabulary = Vocabulary(
        tokens=tokens,
        merges=np.empty((0, 3), dtype=np.int32),
        special_tokens=special_tokens,
        pattern=resolve_pattern(pattern),
        semantics=BY_RANKS,
    )
    merges = merges_from_ranks(tokens, vocabulary.byte_ids)
    if merges is None:
        return vocabulary
    return Vocabulary(
        tokens=tokens,
        merges=merges,
        special_tokens=special_tokens,
        pattern=vocabulary.pattern,
        semantics=BY_MERGES,
    )


def _load_gpt2(path: Path, pattern, special_tokens) -> Vocabulary:
    """vocab.bpe lists the merges; encoder.json beside it gives every token its id."""
    from tokenizer.hugging_face import build_vocabulary

    encoder_path = path.with_name("encoder.json")
    if not encoder_path.is_file():
        raise ValueError("needs encoder.json beside it")
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 at byte {error.start}") from None
    if lines[0].startswith("#version"):
        lines = lines[1:]
    if lines and not lines[-1]:
        lines.pop()
    try:
        vocab = _read_json(encoder_path)
    except ValueError as error:
        raise ValueError(f"{encoder_path.name} {error}") from None
    given = special_tokens
    if given is None and isinstance(vocab, dict) and "<|endoftext|>" in vocab:
        given = {"<|endoftext|>": vocab["<|endoftext|>"]}
    return build_vocabulary(
        vocab, lines, given or {}, resolve_pattern(pattern or "gpt2"), False, vocab_field="encoder.json"
    )
