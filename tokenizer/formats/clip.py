"""Reading the merges of CLIP, from bpe_simple_vocab_16e6.txt.gz or merges.txt, as transformers converts them."""

from __future__ import annotations

import gzip
from io import BytesIO

from tokenizer.byte_level import BYTE_TO_CHARACTER
from tokenizer.formats.character_bpe_files import parse_character_bpe_json
from tokenizer.formats.spelled_vocabulary import expect
from tokenizer.splitting.patterns import CLIP_REGEX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tokenizer.character_bpe_vocabulary import CharacterPairVocabulary

_MERGES = 49_152 - 256 - 2
_SUFFIX = "</w>"
_SPECIAL = ("<|startoftext|>", "<|endoftext|>")
_LARGEST = 1 << 24  # bytes of the unpacked file


def parse_clip(packed: bytes) -> CharacterPairVocabulary:
    """Return the vocabulary of CLIP's file of merges. Only its first 48,894 merges count, as in CLIP."""
    try:
        with gzip.open(BytesIO(packed)) as file:
            text = file.read(_LARGEST).decode()
    except (OSError, EOFError, UnicodeDecodeError):
        raise ValueError("is not a gzip file of text: is it CLIP's file of merges?") from None
    lines = text.split("\n")[1 : _MERGES + 1]
    merges = [line.split() for line in lines]
    expect(
        len(merges) == _MERGES and all(len(pair) == 2 for pair in merges),
        f"does not have {_MERGES:,} merges after its first line: is it CLIP's file of merges?",
    )
    return _vocabulary(merges)


def clip_of(ids: dict[str, int], lines: list[str]) -> CharacterPairVocabulary | None:
    """Return the vocabulary of CLIP's vocab.json and the lines of its merges.txt; None if they are not CLIP's."""
    merges = [line.split(" ") for line in lines]
    if len(merges) != _MERGES or any(len(pair) != 2 for pair in merges):
        return None
    return _vocabulary(merges) if ids == {token: i for i, token in enumerate(_tokens(merges))} else None


def _tokens(merges: list[list[str]]) -> list[str]:
    alphabet = list(BYTE_TO_CHARACTER.values())
    return [*alphabet, *(character + _SUFFIX for character in alphabet), *map("".join, merges), *_SPECIAL]


def _vocabulary(merges: list[list[str]]) -> CharacterPairVocabulary:
    tokens = _tokens(merges)
    first, last = len(tokens) - 2, len(tokens) - 1
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    edges = {"sep": [_SPECIAL[1], last], "cls": [_SPECIAL[0], first]}
    return parse_character_bpe_json(
        {
            "added_tokens": [
                {"id": first, "content": _SPECIAL[0], "special": True, **flags},
                {"id": last, "content": _SPECIAL[1], "special": True, **flags},
            ],
            "normalizer": {
                "type": "Sequence",
                "normalizers": [
                    {"type": "NFC"},
                    {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
                    {"type": "Lowercase"},
                ],
            },
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": CLIP_REGEX}, "behavior": "Removed", "invert": True},
                    {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
                ],
            },
            "post_processor": {"type": "RobertaProcessing", **edges, "trim_offsets": False, "add_prefix_space": False},
            "decoder": {
                "type": "Sequence",
                "decoders": [
                    {"type": "ByteLevel"},
                    {"type": "Replace", "pattern": {"String": _SUFFIX}, "content": " "},
                    {"type": "Strip", "content": " ", "start": 0, "stop": 1},
                ],
            },
            "model": {
                "type": "BPE",
                "unk_token": _SPECIAL[1],
                "end_of_word_suffix": _SUFFIX,
                "vocab": {token: i for i, token in enumerate(tokens)},
                "merges": merges,
            },
        }
    )
