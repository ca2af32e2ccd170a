"""BPE over characters, the kind of Llama 2's, Mistral's and Gemma's vocabularies and of SentencePiece's BPE models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tokenizer.kinds.kind import changed
from tokenizer.kinds.sentencepiece import UNKNOWN_PIECE, SentencePieceKind, refuse_model
from tokenizer.splitting.metaspace_splitter import METASPACE_NAMES, RUNS, SPACED
from tokenizer.splitting.normalizers import MARK, decoder_of_marks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenizer.character_bpe_vocabulary import CharacterPairVocabulary
    from tokenizer.splitting.splitter import Splitter
    from tokenizer.training.counting import PretokenCounts
    from tokenizer.training.train import Options
    from tokenizer.vocabulary import Vocabulary


class CharacterPairs(SentencePieceKind):
    """BPE over characters."""

    name, title, entries = "character-bpe", "BPE over characters", "tokens"
    merges = merges_characters = True
    kernels = "word pieces"
    no_growth = ""
    patterns, default_pattern, exact_pattern = (SPACED, *METASPACE_NAMES), SPACED, SPACED
    needed_splitter = f"words: {', '.join((SPACED, *METASPACE_NAMES))}"
    options = ("min_frequency", "limit_alphabet")

    def accepts(self, splitter: Splitter) -> bool:
        return super().accepts(splitter) and getattr(splitter, "cuts", None) != RUNS

    def check(self, options: Options) -> None:
        for spelling in options.special_tokens:
            if len(spelling) == 1:
                raise ValueError(
                    f"the special token {spelling!r} can be a character of a text: choose a longer spelling, such as "
                    "'<|name|>'"
                )

    def least_entries(self, options: Options) -> tuple[str, int]:
        return "a character, <unk>, the 256 bytes", 258 - (UNKNOWN_PIECE in options.special_tokens)

    def train(self, counts: PretokenCounts, options: Options) -> CharacterPairVocabulary:
        """Return the vocabulary: <unk>, the 256 bytes, characters, merged tokens, special tokens."""
        from tokenizer.character_bpe_vocabulary import CharacterPairVocabulary
        from tokenizer.training.merging import check_memory
        from tokenizer.training.wordpiece_training import alphabet_of, learn_pieces

        check_memory(counts, options.memory, characters=True)
        words: Any = counts.pattern
        alphabet, _ = alphabet_of(counts, options.limit_alphabet, None)
        alphabet = " " + alphabet.replace(" ", "")
        first = [UNKNOWN_PIECE, *(f"<0x{byte:02X}>" for byte in range(256))]
        later = [spelling for spelling in options.special_tokens if spelling != UNKNOWN_PIECE]
        wanted = options.vocab_size - len(first) - len(alphabet) - len(later)
        if wanted < 0:
            raise ValueError(
                f"vocab_size must be at least {options.vocab_size - wanted}: the words have {len(alphabet)} "
                "characters; or keep only the most frequent with `limit_alphabet`"
            )
        how = "frequency", options.min_count, options.memory, options.progress
        learned = learn_pieces(counts, {}, alphabet, "", wanted, *how, continuation="")
        merged = [token.replace(" ", MARK) for token in learned.tokens]
        if both := {*first, *later} & {*merged, *alphabet}:
            raise ValueError(
                f"the corpus makes the token {min(both)!r}, which is a special token or spells a byte: choose another "
                "spelling of the special token, or leave out the documents with this text"
            )
        tokens = [*first, *alphabet.replace(" ", MARK), *merged]
        ids = {token: i for i, token in enumerate([*tokens, *later])}
        return CharacterPairVocabulary(
            ids=ids,
            pairs=[(left.replace(" ", MARK), right.replace(" ", MARK)) for left, right in learned.merges],
            unknown=UNKNOWN_PIECE,
            fuse_unknown=True,
            byte_fallback=True,
            decoder=decoder_of_marks(words.begins_with_mark),
            special_tokens={spelling: ids[spelling] for spelling in (UNKNOWN_PIECE, *later)},
            pattern=words,
        )

    def required_ids(self, vocabulary: CharacterPairVocabulary) -> set[int]:
        """Return the ids of single characters, with and without prefix and suffix, of bytes and of unknown text."""
        refuse_model(vocabulary)
        prefix, suffix = vocabulary.prefix, vocabulary.suffix
        ids, unknown = vocabulary.ids, vocabulary.unknown
        kept = {i for token, i in ids.items() if len(token.removeprefix(prefix).removesuffix(suffix)) == 1}
        kept |= {*(vocabulary.byte_ids or {}).values()}
        return kept if unknown is None else kept | {ids[unknown]}

    def with_ids(
        self, vocabulary: CharacterPairVocabulary, ids: Mapping[int, int], **changes: Any
    ) -> CharacterPairVocabulary:
        merges = zip(vocabulary.pairs, vocabulary.merges.tolist(), strict=True)
        trimmed: CharacterPairVocabulary = changed(
            vocabulary,
            ids={token: ids[old] for token, old in vocabulary.ids.items() if old in ids},
            pairs=[pair for pair, merge in merges if ids.keys() >= {*merge}],
            **changes,
        )
        return trimmed

    def shortage(self, vocabulary: Vocabulary, options: Options) -> str:
        return f"the corpus ran out of pairs that occur at least {options.min_count} times"

    def reads(self, content: Any) -> bool:
        from tokenizer.formats.hugging_face import is_bpe, is_byte_level

        return is_bpe(content) and not is_byte_level(content)

    def read(self, content: Any) -> CharacterPairVocabulary:
        from tokenizer.formats.character_bpe_files import parse_character_bpe_json

        return parse_character_bpe_json(content)

    def json(self, vocabulary: CharacterPairVocabulary) -> Iterator[str]:
        from tokenizer.formats.character_bpe_files import character_bpe_json

        return character_bpe_json(vocabulary)


KIND = CharacterPairs()
