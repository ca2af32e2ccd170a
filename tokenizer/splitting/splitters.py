"""The splitters that training uses: patterns, BERT's words and SentencePiece's words."""

from __future__ import annotations

from tokenizer.splitting.bert import BertWords, words_of
from tokenizer.splitting.metaspace import MetaspaceWords, metaspace_of
from tokenizer.splitting.patterns import Pattern, resolve_pattern

TrainingSplitter = Pattern | BertWords | MetaspaceWords
KIND_OF: dict[type, str] = {Pattern: "bpe", BertWords: "wordpiece", MetaspaceWords: "unigram"}


def resolve_splitter(spelling: str | TrainingSplitter) -> TrainingSplitter:
    """Return the splitter with this `spelling`: words of either kind, or else the pattern from `resolve_pattern`."""
    if isinstance(spelling, BertWords | MetaspaceWords):
        return spelling
    words = (words_of(spelling) or metaspace_of(spelling)) if isinstance(spelling, str) else None
    return words or resolve_pattern(spelling)
