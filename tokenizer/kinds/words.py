"""Words, the kind of vocabularies in which each word is a token: the WordLevel of `tokenizers`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import nsmallest

from tokenizer.kinds.kind import Kind, changed
from tokenizer.vocabulary import LONGEST_TOKEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenizer.splitting.splitter import Splitter
    from tokenizer.training.counting import PretokenCounts
    from tokenizer.training.train import Options
    from tokenizer.vocabulary import Vocabulary
    from tokenizer.word_vocabulary import WordVocabulary

UNKNOWN = "[UNK]"


class Words(Kind):
    """Words."""

    name, title, entries = "words", "Words", "words"
    patterns, default_pattern, exact_pattern = ("whitespace",), "whitespace", "whitespace"
    needed_splitter = "the pattern whitespace"
    options = ("min_frequency",)
    no_growth = "there are no merges to continue from"
    phase = None
    pretokens, one = "words", "a word"

    def vocabulary_class(self) -> type[WordVocabulary]:
        """Return the class of the vocabularies."""
        from tokenizer.word_vocabulary import WordVocabulary

        return WordVocabulary

    def splitter_of(self, spelling: str) -> Splitter | None:
        from tokenizer.splitting.chains import WHITESPACE, Chain

        return Chain(WHITESPACE, as_bytes=False) if spelling == self.default_pattern else None

    def accepts(self, splitter: Splitter) -> bool:
        return splitter.spelling == self.default_pattern

    def least_entries(self, options: Options) -> tuple[str, int]:
        return f"{self.one}, {UNKNOWN}", 1 + (UNKNOWN not in options.special_tokens)

    def train(self, counts: PretokenCounts, options: Options) -> WordVocabulary:
        """Return the vocabulary: special tokens with [UNK], then the most frequent pretokens, ties in ascending order.

        These are the ids of `tokenizers.trainers.WordLevelTrainer`, except that words above `LONGEST_TOKEN` are left
        out.
        """
        special_tokens = tuple(dict.fromkeys([*options.special_tokens, UNKNOWN]))
        for spelling in special_tokens:
            if [*counts.pattern.pretokens(spelling.encode())] == [spelling.encode()]:
                raise ValueError(
                    f"the special token {spelling!r} can be {self.one} of the text: choose another, such as '[NAME]'"
                )
        least = options.min_frequency or 1
        frequent = ((-count, pretoken.decode()) for pretoken, count in counts.items() if count >= least)
        fitting = (word for word in frequent if len(word[1]) <= LONGEST_TOKEN)
        learned = nsmallest(options.vocab_size - len(special_tokens), fitting)
        tokens = [*special_tokens, *(word for _, word in learned)]
        ids = {token: i for i, token in enumerate(tokens)}
        return self.vocabulary_class()(
            ids=ids,
            unknown=UNKNOWN,
            special_tokens={spelling: ids[spelling] for spelling in special_tokens},
            pattern=counts.pattern,
        )

    def required_ids(self, vocabulary: WordVocabulary) -> set[int]:
        """Return the id of the unknown token, which stands for all text without other tokens."""
        return {vocabulary.unknown_id}

    def with_ids(self, vocabulary: WordVocabulary, ids: Mapping[int, int], **changes: Any) -> WordVocabulary:
        kept = {token: ids[old] for token, old in vocabulary.ids.items() if old in ids}
        trimmed: WordVocabulary = changed(vocabulary, ids=kept, **changes)
        return trimmed

    def shortage(self, vocabulary: Vocabulary, options: Options) -> str:
        least = options.min_frequency or 1
        return f"the corpus ran out of {self.entries}" + (f" that occur at least {least} times" if least > 1 else "")

    def reads(self, content: Any) -> bool:
        model = content.get("model") if isinstance(content, dict) else None
        return isinstance(model, dict) and model.get("type") == "WordLevel"

    def read(self, content: Any) -> WordVocabulary:
        from tokenizer.formats.word_files import parse_words_json

        return parse_words_json(content)

    def json(self, vocabulary: WordVocabulary) -> Iterator[str]:
        from tokenizer.formats.word_files import words_json

        return words_json(vocabulary)

    def with_special_tokens(self, vocabulary: WordVocabulary, spellings: Sequence[str]) -> Vocabulary:
        extended = super().with_special_tokens(vocabulary, spellings)
        extended.ids = {**vocabulary.ids, **extended.special_tokens}  # as in tokenizer.json
        return extended


KIND = Words()
