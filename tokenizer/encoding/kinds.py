"""The kinds of vocabularies, with the encoder and decoder of each. A new kind needs an entry here.

Short texts need neither numpy nor numba, so modules that need them are imported inside the functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tokenizer.sentencepiece import SentencePieceVocabulary
from tokenizer.unigram import UnigramVocabulary
from tokenizer.vocabulary import Vocabulary
from tokenizer.wordpiece import WordPieceVocabulary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tokenizer.encoding.bulk import KernelTables
    from tokenizer.encoding.ids_to_text import ByteDecoding

AnyVocabulary = Vocabulary | WordPieceVocabulary | UnigramVocabulary


def pretoken_encoder(vocabulary: AnyVocabulary) -> Callable[[bytes], list[int]]:
    """Return a function that maps a pretoken to its ids, in plain Python."""
    from tokenizer.encoding.short import MergingEncoder, PieceEncoder

    if isinstance(vocabulary, UnigramVocabulary):
        from tokenizer.encoding.lattice import Lattices

        return Lattices(vocabulary).encode
    encoder = MergingEncoder(vocabulary) if isinstance(vocabulary, Vocabulary) else PieceEncoder(vocabulary)
    return encoder.encode


def after_special_tokens(vocabulary: AnyVocabulary) -> AnyVocabulary:
    """Return the vocabulary for text that does not start at the beginning; most vocabularies treat it alike."""
    return vocabulary.inside if isinstance(vocabulary, UnigramVocabulary) else vocabulary


def kernel_tables(vocabulary: AnyVocabulary) -> KernelTables:
    """Return the tables that the encoding kernel reads."""
    if isinstance(vocabulary, Vocabulary):
        from tokenizer.encoding.bulk import EncodingTables

        return EncodingTables(vocabulary)
    from tokenizer.encoding.piece_tables import PieceTables, UnigramTables

    return UnigramTables(vocabulary) if isinstance(vocabulary, UnigramVocabulary) else PieceTables(vocabulary)


def decoding(vocabulary: AnyVocabulary) -> ByteDecoding:
    """Return the decoder of ids."""
    from tokenizer.encoding.ids_to_text import ByteDecoding, PieceDecoding

    if isinstance(vocabulary, SentencePieceVocabulary):
        from tokenizer.encoding.sentencepiece_decoding import SentencePieceDecoding

        return SentencePieceDecoding(vocabulary)
    if isinstance(vocabulary, UnigramVocabulary):
        from tokenizer.encoding.metaspace_decoding import MetaspaceDecoding

        return MetaspaceDecoding(vocabulary)
    return ByteDecoding(vocabulary) if isinstance(vocabulary, Vocabulary) else PieceDecoding(vocabulary)


def span_encoder(
    vocabulary: AnyVocabulary, encode: Callable[[bytes], list[int]]
) -> Callable[[bytes], tuple[list[int], list[tuple[int, int]]]]:
    """Return a function from a text to its ids and the bytes that each stands for. encode: from a text to its ids."""
    from tokenizer.encoding.spans import PieceSpans, merged_spans

    if isinstance(vocabulary, UnigramVocabulary):
        raise ValueError("offsets of Unigram pieces are not supported; encode gives the ids alone")
    if isinstance(vocabulary, Vocabulary):
        return partial(merged_spans, vocabulary, encode)
    return PieceSpans(vocabulary, pretoken_encoder(vocabulary))
