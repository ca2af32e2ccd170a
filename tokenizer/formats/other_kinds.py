"""Kinds of vocabularies whose merges alone do not say how text is split. The error names the kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizer.formats.spelled_vocabulary import expect, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ONLY = "only BPE, WordPiece, WordLevel and Unigram are"
_MARKS_ENDS = "marks the end of a word, as in CLIP and OpenAI's first GPT; such BPE is read from tokenizer.json only"
_MARKS_PARTS = "marks tokens within words, as in WordPiece; such BPE is read from tokenizer.json only"


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
