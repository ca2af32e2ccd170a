"""Unigram, the kind of T5's vocabularies and of SentencePiece models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tokenizer.kinds.kind import changed
from tokenizer.kinds.sentencepiece import UNKNOWN_PIECE, SentencePieceKind, refuse_model
from tokenizer.splitting.metaspace_splitter import KEPT, METASPACE_NAMES, RUNS, SPACED
from tokenizer.splitting.normalizers import MARK, Prepend, decoder_of_marks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenizer.training.counting import PretokenCounts
    from tokenizer.training.train import Options
    from tokenizer.unigram_vocabulary import UnigramVocabulary


class Unigram(SentencePieceKind):
    """Unigram."""

    name = kernels = "unigram"
    title = "Unigram"
    patterns = (*METASPACE_NAMES, KEPT, SPACED)
    default_pattern = exact_pattern = "metaspace"
    needed_splitter = f"words: {', '.join(patterns)}, or the pattern of a Unigram vocabulary"
    options = ("pieces",)
    phase = "prune"

    def least_entries(self, options: Options) -> tuple[str, int]:
        own = 2 - (UNKNOWN_PIECE in options.special_tokens)
        if options.pieces is not None and options.pieces.byte_fallback:
            return "a character, <unk>, the 256 bytes", own + 256
        return "a character, <unk>", own

    def train(self, counts: PretokenCounts, options: Options) -> UnigramVocabulary:
        """Return the vocabulary: <unk>, the bytes of byte_fallback, pieces by score, special tokens.

        Special tokens are not pieces, so text that spells one stays text.
        """
        from tokenizer.formats.number_text import read_number
        from tokenizer.training.count_table import Counted
        from tokenizer.training.piece_rules import PieceRules
        from tokenizer.training.unigram_training import check_memory, learn_pieces
        from tokenizer.unigram_vocabulary import UnigramVocabulary

        rules = options.pieces or PieceRules()
        words: Any = counts.pattern
        check_memory(counts, options.memory)
        first = [UNKNOWN_PIECE, *(f"<0x{byte:02X}>" for byte in range(256) if rules.byte_fallback)]
        later = [spelling for spelling in options.special_tokens if spelling != UNKNOWN_PIECE]
        wanted = options.vocab_size - len(first) - len(later)
        counted = Counted(counts.data, counts.offsets, counts.counts)
        learned = learn_pieces(counted, wanted, rules, options.threads, options.progress, words.cuts == RUNS)
        # As tokenizers reads them. <unk> and the bytes score below the sum of their characters, so no text becomes one.
        scores = [read_number(f"{score:.10f}") for _, score in learned]
        lowest = [read_number(f"{scores[-1] * len(piece) - 1:.10f}") for piece in first]
        if both := {*first} & {piece for piece, _ in learned}:
            raise ValueError(
                f"training learned the piece {min(both)!r}, which stands for unknown text or for a byte: remove it "
                "from the text, or leave `pieces.split_by_unicode_script` at true"
            )
        pieces = [*first, *(piece for piece, _ in learned)]
        if both := {*later} & {*pieces}:
            raise ValueError(
                f"the special token {min(both)!r} is also a learned piece: choose another spelling, such as '<|name|>'"
            )
        special = {UNKNOWN_PIECE: 0} | {spelling: len(pieces) + k for k, spelling in enumerate(later)}
        return UnigramVocabulary(
            pieces=pieces,
            scores=[*lowest, *scores],
            unknown=0,
            special_tokens=special,
            pattern=words,
            byte_fallback=rules.byte_fallback,
            decoder=decoder_of_marks(True)
            if Prepend(MARK) in words.normalizers
            else [*([{"type": "ByteFallback"}] if rules.byte_fallback else []), words.field],
        )

    def required_ids(self, vocabulary: UnigramVocabulary) -> set[int]:
        """Return the ids of characters, of bytes, of unknown text, and of the lowest score, which decides its score."""
        refuse_model(vocabulary)
        kept = {i for i, piece in enumerate(vocabulary.pieces) if len(piece) == 1}
        kept |= {*(vocabulary.byte_ids or ())} - {-1}
        return kept | {vocabulary.unknown, vocabulary.scores.index(min(vocabulary.scores))}

    def with_ids(self, vocabulary: UnigramVocabulary, ids: Mapping[int, int], **changes: Any) -> UnigramVocabulary:
        pieces = [old for old in ids if old < len(vocabulary.pieces)]
        trimmed: UnigramVocabulary = changed(
            vocabulary,
            pieces=[vocabulary.pieces[old] for old in pieces],
            scores=[vocabulary.scores[old] for old in pieces],
            unknown=ids[vocabulary.unknown],
            **changes,
        )
        return trimmed

    def shortage(self, vocabulary: Any, options: Options) -> str:
        from tokenizer.training.piece_rules import PieceRules

        rules = options.pieces or PieceRules()
        learned = vocabulary.pieces[257 if rules.byte_fallback else 1 :]  # after <unk> and the bytes
        if sum(len(piece) > 1 for piece in learned) >= rules.seed_size:
            return f"training starts from only {rules.seed_size:,} substrings (`pieces.seed_size`)"
        return "the corpus ran out of substrings that occur at least twice"

    def exact_options(self) -> dict[str, Any]:
        from tokenizer.training.piece_rules import PieceRules

        return {"pieces": PieceRules(byte_fallback=True)}

    def reads(self, content: Any) -> bool:
        """Return whether the field model is Unigram's. Old files leave its type out."""
        model = content.get("model") if isinstance(content, dict) else None
        return isinstance(model, dict) and (
            model["type"] == "Unigram" if "type" in model else isinstance(model.get("vocab"), list)
        )

    def read(self, content: Any) -> UnigramVocabulary:
        from tokenizer.formats.unigram_files import parse_unigram_json

        return parse_unigram_json(content)

    def json(self, vocabulary: UnigramVocabulary) -> Iterator[str]:
        from tokenizer.formats.unigram_files import unigram_json

        return unigram_json(vocabulary)


KIND = Unigram()
