"""Byte-level BPE, the kind of GPT-2's and Llama 3's vocabularies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tokenizer.byte_level import BY_MERGES, BY_RANKS
from tokenizer.kinds.kind import Kind, changed
from tokenizer.splitting.patterns import NAMES, Pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenizer.bpe_vocabulary import BytePairVocabulary
    from tokenizer.splitting.splitter import Splitter
    from tokenizer.training.counting import PretokenCounts
    from tokenizer.training.train import Options
    from tokenizer.vocabulary import Vocabulary


class BytePairs(Kind):
    """Byte-level BPE."""

    name, title, entries = "bpe", "Byte-level BPE", "tokens"
    is_lossless = merges = takes_regex = True
    no_growth = pretokens = ""
    patterns, default_pattern, exact_pattern = NAMES, "cl100k", "cl100k"
    needed_splitter = "a pattern such as cl100k"
    options = ("max_token_length", "tie_break", "min_frequency")
    fixed_entries, kernels = 256, "merging"

    def splitter_of(self, spelling: str) -> Splitter | None:
        if ":" not in spelling:
            return None
        from tokenizer.splitting.normalized_splitter import normalized_splitter

        return normalized_splitter(spelling)

    def accepts(self, splitter: Splitter) -> bool:
        return isinstance(splitter, Pattern) or isinstance(getattr(splitter, "splitter", None), Pattern)

    def check(self, options: Options) -> None:
        from tokenizer.byte_level import BYTE_TO_CHARACTER

        for spelling in options.special_tokens:
            if spelling in BYTE_TO_CHARACTER.values():
                raise ValueError(
                    f"the special token {spelling!r} is also the spelling of a single byte, which already has an id: "
                    "choose another spelling, such as '<|name|>'"
                )

    def least_entries(self, options: Options) -> tuple[str, int]:
        return "the 256 bytes", 256

    def train(self, counts: PretokenCounts, options: Options) -> BytePairVocabulary:
        from tokenizer.bpe_vocabulary import trained_vocabulary
        from tokenizer.byte_level import BYTE_ORDERS
        from tokenizer.splitting.regex_differences import refuse_misread_by_tokenizers
        from tokenizer.training.merging import check_memory, learn_merges

        check_memory(counts, options.memory)
        given: Any = counts.pattern
        pattern, normalization = (given, None) if isinstance(given, Pattern) else (given.splitter, given.normalization)
        refuse_misread_by_tokenizers(pattern)  # tokenizer.json could not express it
        order = BYTE_ORDERS[options.byte_order]
        special_tokens = tuple(options.special_tokens)
        merges = learn_merges(
            counts,
            options.vocab_size - 256 - len(special_tokens),
            byte_order=order,
            tie_break=options.tie_break,
            min_count=options.min_count,
            max_token_length=options.max_token_length,
            memory=options.memory,
            progress=options.progress,
        )
        return trained_vocabulary(merges, order, special_tokens, pattern, normalization)

    def with_special_tokens(self, vocabulary: BytePairVocabulary, spellings: Sequence[str]) -> BytePairVocabulary:
        """Return the vocabulary with more special tokens, as in `Kind`.

        A special token that no merge makes leaves `ids`, as it does when tokenizer.json is loaded.
        """
        extended: Any = super().with_special_tokens(vocabulary, spellings)
        while unmade := _unmade_special_ids(extended):
            ids = {token: i for token, i in extended.ids.items() if i not in unmade}
            pairs = [pair for pair in extended.pairs if all(part in ids for part in pair)]
            extended = changed(extended, ids=ids, pairs=pairs, first_merged=None)
        reachable: BytePairVocabulary = extended
        return reachable

    def required_ids(self, vocabulary: BytePairVocabulary) -> set[int]:
        return {i for i in vocabulary.byte_ids.tolist() if i < vocabulary.size}

    def with_ids(self, vocabulary: BytePairVocabulary, ids: Mapping[int, int], **changes: Any) -> BytePairVocabulary:
        tokens: Any = [token if token is None else vocabulary.written(token) for token in vocabulary.tokens]
        merges = [merge for merge in vocabulary.merges.tolist() if ids.keys() >= {*merge}]
        trimmed: BytePairVocabulary = changed(
            vocabulary,
            ids={tokens[old]: new for old, new in ids.items() if tokens[old] is not None},
            pairs=[(tokens[left], tokens[right]) for left, right, _ in merges],
            rule=vocabulary.semantics if vocabulary.rule == BY_RANKS else vocabulary.rule,
            first_merged=None,
            unreachable=None,
            **changes,
        )
        return trimmed

    def shortage(self, vocabulary: Vocabulary, options: Options) -> str:
        return f"the corpus ran out of pairs that occur at least {options.min_count} times"

    def describe_entries(self, entries: int, merges: int) -> str:
        return f"256 bytes, {merges:,} merges"

    def reads(self, content: Any) -> bool:
        from tokenizer.formats.hugging_face import is_bpe, is_byte_level

        return is_bpe(content) and is_byte_level(content)

    def read(self, content: Any) -> BytePairVocabulary:
        from tokenizer.formats.hugging_face import parse_tokenizer_json

        return parse_tokenizer_json(content)

    def json(self, vocabulary: BytePairVocabulary) -> Iterator[str]:
        from tokenizer.formats.hugging_face import tokenizer_json

        return tokenizer_json(vocabulary)


def _unmade_special_ids(vocabulary: BytePairVocabulary) -> set[int]:
    """Return the ids of special tokens in `ids` that are neither bytes nor merged, so that no text becomes them."""
    if vocabulary.rule != BY_MERGES:
        return set()
    special = {*vocabulary.special_tokens.values()} & {*vocabulary.ids.values()}
    return special and special - {*vocabulary.byte_ids.tolist(), *vocabulary.merges[:, 2].tolist()}


KIND = BytePairs()
