"""Kinds of vocabularies that are not read. Each is recognised in all its forms, so that the error names the kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizer.formats.spelled_vocabulary import expect, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ONLY = (
    "only byte-level BPE such as GPT-2's and Llama 3's, BERT's WordPiece, and SentencePiece's Unigram and BPE such as "
    "T5's and Llama 2's are"
)
_MARKS_ENDS = f"marks the end of a word, as in CLIP and OpenAI's first GPT; such BPE is not supported ({ONLY})"
_MARKS_PARTS = f"marks tokens within words, as in WordPiece; such BPE is not supported ({ONLY})"


def refuse_marked_words(ids: Iterable[str], merges: Sequence[Any], special_tokens: Iterable[str]) -> None:
    """Raise ValueError for BPE whose tokens mark where words end or continue, such as CLIP's `the</w>`.

    merges: lines or pairs, not checked yet. In such BPE, a character with its mark is one symbol that no merge makes.
    In byte-level BPE, merges make every token of several characters.
    """
    lines = [" ".join(map(str, merge)) if isinstance(merge, (list, tuple)) else str(merge) for merge in merges]
    for has_mark, mark, meaning in (str.endswith, "</w>", _MARKS_ENDS), (str.startswith, "##", _MARKS_PARTS):
        parts = [part for line in lines if mark in line for part in line.split(" ")[:2]]
        marked = {token for token in [*ids, *parts] if len(token) == 1 + len(mark) and has_mark(token, mark)}
        made = {line.replace(" ", "") for line in lines if len(line) == 2 + len(mark)}
        unmade = marked.difference(made, special_tokens)
        expect(not unmade, f"has the token {quote(min(unmade, default=''))}, which no merge makes: {mark} {meaning}")


def refuse_other_bpe(model: dict[str, Any]) -> None:
    """Raise ValueError if the byte-level BPE of a tokenizer.json marks words or falls back to bytes."""
    for field, meaning in (("end_of_word_suffix", _MARKS_ENDS), ("continuing_subword_prefix", _MARKS_PARTS)):
        expect(not model.get(field), f"has model.{field} = {quote(model.get(field))}, which {meaning}")
    fallback = model.get("byte_fallback")
    expect(not fallback, f"has model.byte_fallback = {quote(fallback)} with ByteLevel, whose tokens spell all bytes")


def refuse_tekken(content: dict[str, Any]) -> None:
    """Raise ValueError for the content of a tekken.json."""
    expect(
        "model" in content or not (isinstance(content.get("config"), dict) and isinstance(content.get("vocab"), list)),
        "is Mistral's tekken.json, which is not supported: load the tokenizer.json of the same model",
    )
