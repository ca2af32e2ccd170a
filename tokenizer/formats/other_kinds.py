"""Kinds of vocabularies that are not read. Each is recognised in all its forms, so that the error names the kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizer.formats.spelled_vocabulary import expect, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ONLY = "only byte-level BPE such as GPT-2's and Llama 3's, BERT's WordPiece and T5's Unigram are"
SENTENCEPIECE_BPE = f"which is not supported (it is SentencePiece's BPE, as in Llama 2, Mistral 7B and Gemma; {ONLY})"
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
