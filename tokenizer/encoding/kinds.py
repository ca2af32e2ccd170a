"""The kinds of vocabularies, with the encoder and decoder of each. A new kind needs an entry here.

Short texts need neither numpy nor numba, so modules that need them are imported inside the functions. The modules of
Unigram are, too: other kinds do not need them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tokenizer.vocabulary import Vocabulary
from tokenizer.wordpiece import WordPieceVocabulary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tokenizer.encoding.bulk import KernelTables
    from tokenizer.encoding.ids_to_text import ByteDecoding
    from tokenizer.unigram import UnigramVocabulary

    AnyVocabulary = Vocabulary | WordPieceVocabulary | UnigramVocabulary


def pretoken_encoder(vocabulary: AnyVocabulary) -> Callable[[bytes], list[int]]:
    """Return a function that maps a pretoken to its ids, in plain Python."""
    from tokenizer.encoding.short import MergingEncoder, PieceEncoder

    if isinstance(vocabulary, Vocabulary):
        return MergingEncoder(vocabulary).encode
    if isinstance(vocabulary, WordPieceVocabulary):
        return PieceEncoder(vocabulary).encode
    from tokenizer.encoding.lattice import Lattices

    return Lattices(vocabulary).encode


def after_special_tokens(vocabulary: AnyVocabulary) -> AnyVocabulary:
    """Return the vocabulary for text after a special token; for most vocabularies, the same one."""
    return vocabulary if isinstance(vocabulary, Vocabulary | WordPieceVocabulary) else vocabulary.inside


def kernel_tables(vocabulary: AnyVocabulary) -> KernelTables:
    """Return the tables that the encoding kernel reads."""
    if isinstance(vocabulary, Vocabulary):
        from tokenizer.encoding.bulk import EncodingTables

        return EncodingTables(vocabulary)
    from tokenizer.encoding.piece_tables import PieceTables, UnigramTables

    return PieceTables(vocabulary) if isinstance(vocabulary, WordPieceVocabulary) else UnigramTables(vocabulary)


def decoding(vocabulary: AnyVocabulary) -> ByteDecoding:
    """Return the decoder of ids."""
    from tokenizer.encoding.ids_to_text import ByteDecoding, PieceDecoding

    if isinstance(vocabulary, Vocabulary):
        return ByteDecoding(vocabulary)
    if isinstance(vocabulary, WordPieceVocabulary):
        return PieceDecoding(vocabulary)
    from tokenizer.encoding.metaspace_decoding import MetaspaceDecoding
    from tokenizer.encoding.sentencepiece_decoding import SentencePieceDecoding
    from tokenizer.sentencepiece import SentencePieceVocabulary

    if isinstance(vocabulary, SentencePieceVocabulary):
        return SentencePieceDecoding(vocabulary)
    return MetaspaceDecoding(vocabulary)


def span_encoder(
    vocabulary: AnyVocabulary, encode: Callable[[bytes], list[int]]
) -> Callable[[bytes], tuple[list[int], list[tuple[int, int]]]]:
    """Return a function from a text to its ids and the bytes that each stands for. encode: from a text to its ids."""
    from tokenizer.encoding.spans import PieceSpans, merged_spans

    if isinstance(vocabulary, Vocabulary):
        return partial(merged_spans, vocabulary, encode)
    if isinstance(vocabulary, WordPieceVocabulary):
        return PieceSpans(vocabulary, pretoken_encoder(vocabulary))
    raise ValueError("offsets of Unigram pieces are not supported; encode gives the ids alone")
