"""Compilation of the kernels in this process, part by part, by running them on tiny inputs.

A process that compiles one part does not import what the other parts need.
"""

from __future__ import annotations

import numpy as np

from tokenizer.splitting.patterns import resolve_pattern


def compile_part(part: str) -> None:
    """Compile a part of the kernels; see `first_use.PARTS`."""
    _RUN_PART[part]()


def compile_kernels() -> None:
    """Compile all kernels for training and encoding, so that later calls need not wait."""
    for part in _RUN_PART:
        compile_part(part)


def _count() -> None:
    from tokenizer.document_blocks import single_block
    from tokenizer.splitting.pretokenize import pretoken_ends
    from tokenizer.training.count_table import CountTable

    block, table = single_block(b"a"), CountTable()
    for ends in pretoken_ends(block, resolve_pattern("gpt2")):
        table.add(block.data, 0, ends)
    table.export()


def _words() -> None:
    from tokenizer.document_blocks import single_block
    from tokenizer.encoding.piece_tables import PieceTables
    from tokenizer.splitting.bert_splitter import NAMED_WORDS
    from tokenizer.splitting.pretokenize import pretokenize
    from tokenizer.wordpiece_vocabulary import WordPieceVocabulary

    words = NAMED_WORDS["bert-cased"]
    block, _ = pretokenize(single_block(b"a"), words)
    tables = PieceTables(WordPieceVocabulary(ids={"[UNK]": 0}, special_tokens={}, pattern=words))
    tables.encode_long(block.data, 0, 1, np.empty(1, dtype=np.uint32), 0, lambda: None)


def _metaspace() -> None:
    from tokenizer.document_blocks import single_block
    from tokenizer.splitting.metaspace_splitter import ALWAYS, MetaspaceWords
    from tokenizer.splitting.pretokenize import pretokenize

    pretokenize(single_block(b"a"), MetaspaceWords((), True, ALWAYS, True))


def _merge_pieces() -> None:
    from tokenizer.splitting.bert_splitter import NAMED_WORDS
    from tokenizer.training.counting import PretokenCounts
    from tokenizer.training.wordpiece_training import alphabet_of, compile_merging

    data, offsets, counts = np.full(3, 97, dtype=np.uint8), np.array([0, 3]), np.array([2])
    few = PretokenCounts(NAMED_WORDS["bert-cased"], data, offsets, counts)
    compile_merging(few, *alphabet_of(few, None, None))


def _merge() -> None:
    from tokenizer.kernels import merge_loop as merge_kernel
    from tokenizer.training.counting import PretokenCounts
    from tokenizer.training.merging import empty_training, learn_merges

    data, offsets, counts = np.full(3, 97, dtype=np.uint8), np.array([0, 3]), np.array([2])
    few = PretokenCounts(resolve_pattern("gpt2"), data, offsets, counts)
    # The merge loop comes first: the waiting process needs the other kernels earlier and compiles them itself.
    merge_kernel.merge(empty_training(few, 1), np.empty((1, 2), dtype=np.int32), 1, 2**62, 1)
    learn_merges(few, 1, byte_order=bytes(range(256)), min_count=1, max_token_length=None)


def _learn_unigram() -> None:
    from tokenizer.training.count_table import Counted
    from tokenizer.training.piece_rules import PieceRules
    from tokenizer.training.unigram_training import learn_pieces

    learn_pieces(Counted.of({b" aab": 2, b" ab": 1}), 4, PieceRules(), 1)


def _spill() -> None:
    from tokenizer.training.count_table import Counted
    from tokenizer.training.spilling import batches, in_order, merge

    data, offsets = np.frombuffer(b"ba", dtype=np.uint8), np.arange(3)
    counted = in_order(Counted(data, offsets, np.ones(2, dtype=np.int64)))
    list(merge([batches(counted), batches(counted)]))


def _fill_tables() -> None:
    from tokenizer.bpe_vocabulary import trained_vocabulary
    from tokenizer.byte_level import BYTE_ORDERS
    from tokenizer.encoding.kernel_encoder import EncodingTables

    no_merges = np.empty((0, 2), dtype=np.int32)
    EncodingTables(trained_vocabulary(no_merges, BYTE_ORDERS["gpt2"], (), resolve_pattern("gpt2")))


def _encode() -> None:
    from tokenizer.encoding.kernel_encoder import compile_encoding

    compile_encoding()


_RUN_PART = {
    "counting": _count,
    "words": _words,
    "metaspace": _metaspace,
    "word pieces": _merge_pieces,
    "merging": _merge,
    "unigram": _learn_unigram,
    "spilling": _spill,
    "tables": _fill_tables,
    "encoding": _encode,
}
