"""What `build_dataset` returns: the numbers of dataset.json, without the facts about its files."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class BuiltSplit:
    """A split of a new dataset. Numbers of pairs are 0 for blocks, and those of blocks for pairs."""

    documents: int = 0
    bytes: int = 0
    """Bytes of text"""
    encoded_tokens: int = 0
    """Tokens of all documents, with their separators"""
    tokens: int = 0
    """Tokens in blocks: without the tail that fills no block"""
    blocks: int = 0
    pairs: int = 0
    source_bytes: int = 0
    target_bytes: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    longest_source: int = 0
    """In tokens"""
    longest_target: int = 0
    """In tokens"""


@dataclass(frozen=True, kw_only=True)
class BuiltCorpus:
    """The corpus of a new dataset."""

    name: str
    split_rule: str
    fingerprint: str
    """Of the text of all splits"""
    dropped: dict[str, int]
    """Documents left out, by reason"""
    columns: tuple[str, str] | None = None
    """Columns of the source and the target of pairs"""
    synthetic: dict[str, Any] | None = None
    """The source of a synthetic corpus"""


@dataclass(frozen=True, kw_only=True)
class BuiltTokenizer:
    """The tokenizer of a new dataset."""

    fingerprint: str
    vocab_size: int


@dataclass(frozen=True, kw_only=True, repr=False)
class BuiltDataset:
    """A new dataset. dataset.json has the same numbers, and facts about its files."""

    fingerprint: str
    context_length: int = 0
    """Tokens of a block; 0 for pairs"""
    separator: int | None = None
    """Id of the token before every document, if there is one"""
    tokenizer: BuiltTokenizer
    corpus: BuiltCorpus
    splits: dict[str, BuiltSplit]

    def __repr__(self) -> str:
        counts = {
            name: f"{split.pairs:,} pairs" if split.pairs else f"{split.tokens:,} tokens in {split.blocks:,} blocks"
            for name, split in self.splits.items()
        }
        return f"{self.corpus.name}: {', '.join(f'{name} {count}' for name, count in counts.items())}"
