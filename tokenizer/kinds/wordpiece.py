"""WordPiece, the kind of BERT's vocabularies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tokenizer.kinds.kind import Kind, changed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenizer.splitting.splitter import Splitter
    from tokenizer.training.counting import PretokenCounts
    from tokenizer.training.train import Options
    from tokenizer.vocabulary import Vocabulary
    from tokenizer.wordpiece_vocabulary import WordPieceVocabulary


class WordPiece(Kind):
    """WordPiece."""

    name, title = "wordpiece", "WordPiece"
    merges = merges_characters = True
    kernels = "word pieces"
    patterns = default_pattern, exact_pattern = "bert-uncased", "bert-cased"
    needed_splitter = "words: bert-uncased or bert-cased"
    options = ("min_frequency", "limit_alphabet", "alphabet_order", "merge_by")

    def splitter_of(self, spelling: str) -> Splitter | None:
        from tokenizer.splitting.bert_splitter import words_of

        return words_of(spelling)

    def accepts(self, splitter: Splitter) -> bool:
        from tokenizer.splitting.bert_splitter import BertWords

        return isinstance(splitter, BertWords)

    def least_entries(self, options: Options) -> tuple[str, int]:
        return "a character", 1

    def train(self, counts: PretokenCounts, options: Options) -> WordPieceVocabulary:
        from tokenizer.training.merging import check_memory
        from tokenizer.training.wordpiece_training import alphabet_of, learn_pieces
        from tokenizer.wordpiece_vocabulary import CONTINUATION, UNKNOWN, WordPieceVocabulary

        check_memory(counts, options.memory, characters=True)
        words: Any = counts.pattern
        special_tokens = tuple(dict.fromkeys([*options.special_tokens, UNKNOWN]))
        for spelling in special_tokens:
            if spelling.startswith(CONTINUATION) or [*words.pretokens(spelling.encode())] == [spelling.encode()]:
                raise ValueError(
                    f"the special token {spelling!r} can be a word of the text: choose another, such as '[NAME]'"
                )
        alphabet, later = alphabet_of(counts, options.limit_alphabet, options.alphabet_order)
        tokens = [*special_tokens, *alphabet, *(CONTINUATION + character for character in later)]
        known = {token: i for i, token in enumerate(tokens)}
        if len(tokens) > options.vocab_size:
            raise ValueError(
                f"vocab_size must be at least {len(tokens)}: the words have {len(alphabet)} characters, {len(later)} "
                "of them within words; or keep only the most frequent with `limit_alphabet`"
            )
        wanted = options.vocab_size - len(tokens)
        least = None if options.merge_by == "likelihood" and options.min_frequency is None else options.min_count
        how = options.merge_by, least, options.memory, options.progress
        learned = learn_pieces(counts, known, alphabet, later, wanted, *how)
        ids = {token: i for i, token in enumerate([*tokens, *learned.tokens])}
        return WordPieceVocabulary(
            ids=ids,
            special_tokens={spelling: ids[spelling] for spelling in special_tokens},
            pattern=words,
            learned_merges=learned.merges,
        )

    def required_ids(self, vocabulary: WordPieceVocabulary) -> set[int]:
        """Return the ids of single characters, at the start of words and within, and of unknown words."""
        prefix, ids = vocabulary.prefix, vocabulary.ids
        single = {i for token, i in ids.items() if len(token.removeprefix(prefix)) == 1}
        return single | {ids[vocabulary.unknown]}

    def with_ids(self, vocabulary: WordPieceVocabulary, ids: Mapping[int, int], **changes: Any) -> WordPieceVocabulary:
        kept = {token: ids[old] for token, old in vocabulary.ids.items() if old in ids}
        trimmed: WordPieceVocabulary = changed(vocabulary, ids=kept, learned_merges=(), **changes)
        return trimmed

    def shortage(self, vocabulary: Vocabulary, options: Options) -> str:
        return f"the corpus ran out of pairs that occur at least {options.min_count} times"

    def reads(self, content: Any) -> bool:
        model = content.get("model") if isinstance(content, dict) else None
        return isinstance(model, dict) and model.get("type") == "WordPiece"

    def read(self, content: Any) -> WordPieceVocabulary:
        from tokenizer.formats.wordpiece_files import parse_wordpiece_json

        return parse_wordpiece_json(content)

    def json(self, vocabulary: WordPieceVocabulary) -> Iterator[str]:
        from tokenizer.formats.wordpiece_files import wordpiece_json

        return wordpiece_json(vocabulary)

    def with_special_tokens(self, vocabulary: WordPieceVocabulary, spellings: Sequence[str]) -> Vocabulary:
        extended = super().with_special_tokens(vocabulary, spellings)
        extended.ids = {**vocabulary.ids, **extended.special_tokens}  # as in tokenizer.json
        return extended


KIND = WordPiece()
