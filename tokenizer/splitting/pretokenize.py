"""Find the ends of pretokens in blocks of documents.

Patterns with an automaton use the scanner, the others `regex`, and BERT's words a kernel that rewrites the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tokenizer.documents import Block, as_readonly, block_of, single_block
from tokenizer.splitting.bert import BertWords
from tokenizer.splitting.bert_characters import REPLACED, WORD
from tokenizer.splitting.chains import Chain
from tokenizer.splitting.metaspace import MetaspaceWords
from tokenizer.splitting.patterns import NO_ASCII_RULES, Pattern
from tokenizer.splitting.scanner import pretokens_of
from tokenizer.splitting.sentencepiece import SentencePieceText
from tokenizer.splitting.unicode_classes import CODE_POINTS
from tokenizer.text import text_bytes

Splitter = Pattern | Chain | BertWords | MetaspaceWords | SentencePieceText

# Bytes per call of the kernel for BERT's words.
WORD_BYTES_PER_CALL = 4 << 20
# Pretokens per kernel call. Their ends stay in the L2 cache, and Python handles Ctrl-C between calls.
CHUNK = 16384
WORDS_CHUNK = 8 * CHUNK  # for words, whose ends exist before the first call; fewer calls take less time

Bytes = npt.NDArray[np.uint8]
# actions, byte_classes, code_point_classes, ascii_rules
AutomatonArrays = tuple[npt.NDArray[np.uint16], Bytes, Bytes, int]


def pretoken_ends(block: Block, pattern: Pattern | Chain) -> Iterator[np.ndarray]:
    """Yield the ends of all documents' pretokens in chunks: int64, absolute positions in block.data.

    The first pretoken starts at block.offsets[0], every other where the one before it ends. The next chunk overwrites
    the array. As in Hugging Face, text between two matches of a regex is a pretoken, and an empty match ends it.
    """
    tables = automaton_arrays(pattern)
    if tables is None:
        yield from _regex_ends(block, pattern)
        return
    from tokenizer.kernels.scan import scan

    ends = np.empty(CHUNK, dtype=np.int64)
    document, position = 0, int(block.offsets[0])
    while document < len(block.offsets) - 1:
        n, document, position = scan(block.data, block.offsets, document, position, ends, *tables)
        if n:
            yield ends[:n]


def pretokenized(block: Block, pattern: Splitter) -> tuple[Block, Iterator[np.ndarray]]:
    """Return a block and its `pretoken_ends`. The block is a new one if the pattern rewrites the text."""
    if isinstance(pattern, BertWords):
        return _words(block, pattern)
    if isinstance(pattern, MetaspaceWords):
        from tokenizer.splitting.metaspace_blocks import has_kernel, metaspace_block

        if has_kernel(pattern):
            return _in_chunks(*metaspace_block(block, pattern))
    elif isinstance(pattern, SentencePieceText):
        from tokenizer.splitting import sentencepiece_blocks

        if sentencepiece_blocks.has_kernel(pattern):
            return _in_chunks(*sentencepiece_blocks.normalized_block(block, pattern))
    elif isinstance(pattern, Pattern) or (isinstance(pattern, Chain) and not pattern.rewrites):
        return block, pretoken_ends(block, pattern)
    documents: list[bytes] = []
    lengths: list[int] = []
    for start, end in pairwise(block.offsets.tolist()):
        pretokens = list(pattern.pretokens(bytes(block.data[start:end])))
        documents.append(b"".join(pretokens))
        lengths += map(len, pretokens)
    return _in_chunks(block_of(documents), np.cumsum(lengths, dtype=np.int64))


def _in_chunks(block: Block, ends: np.ndarray) -> tuple[Block, Iterator[np.ndarray]]:
    return block, (ends[first : first + WORDS_CHUNK] for first in range(0, len(ends), WORDS_CHUNK))


@cache
def automaton_arrays(pattern: Splitter) -> AutomatonArrays | None:
    """Return the kernels' view of a pattern's automaton: its tables without a copy, and its rule set for ASCII.

    None if the pattern has no automaton.
    """
    if pattern.automaton is None:
        return None
    tables = pattern.automaton
    return (
        np.frombuffer(tables.actions, dtype=np.uint16),
        np.frombuffer(tables.byte_classes, dtype=np.uint8),
        np.frombuffer(tables.code_point_classes, dtype=np.uint8),
        pattern.ascii_rules,
    )


# For kernels that get the ends of pretokens and do not scan.
_EMPTY: Bytes = np.frombuffer(b"", dtype=np.uint8)
NO_AUTOMATON: AutomatonArrays = (np.frombuffer(b"", dtype=np.uint16), _EMPTY, _EMPTY, NO_ASCII_RULES)


def _regex_ends(block: Block, pattern: Pattern | Chain) -> Iterator[np.ndarray]:
    for start, end in zip(block.offsets, block.offsets[1:], strict=False):
        lengths = []
        for pretoken in pretokens_of(bytes(block.data[start:end]), pattern):
            lengths.append(len(pretoken))
            if len(lengths) == CHUNK:
                ends = start + np.cumsum(lengths, dtype=np.int64)
                start = ends[-1]
                lengths = []
                yield ends
        if lengths:
            yield start + np.cumsum(lengths, dtype=np.int64)


def _words(block: Block, words: BertWords) -> tuple[Block, Iterator[np.ndarray]]:
    from tokenizer.kernels import words as kernel

    table = _word_arrays(words)
    out = np.empty(3 * block.size + kernel.WINDOW, dtype=np.uint8)  # untouched pages take no memory
    ends = np.empty(block.size + kernel.WINDOW, dtype=np.int64)
    ends[0] = 0
    offsets = np.zeros(len(block.offsets), dtype=np.int64)
    copy = np.empty(kernel.WINDOW + 16, dtype=np.uint8)
    state = np.zeros(8, dtype=np.int64)
    state[kernel.POSITION] = block.offsets[0]
    data, fixed = as_readonly(block.data), (*table, copy, out, offsets, ends, state)
    while (outcome := kernel.split_words(data, block.offsets, WORD_BYTES_PER_CALL, *fixed)) != kernel.DONE:
        if outcome == kernel.SORT:
            marks = out[state[kernel.RUN_START] : state[kernel.AT]]
            ordered = words.in_order(marks.tobytes().decode())
            marks[:] = np.frombuffer(ordered.encode(), dtype=np.uint8)
            state[kernel.LAST_CLASS] = words.characters.combining_classes[ord(ordered[-1])]
            state[kernel.UNSORTED] = 0
    return _in_chunks(Block(as_readonly(out[: state[kernel.AT]]), offsets), ends[1 : state[kernel.WORDS] + 1])


@cache
def _word_arrays(words: BertWords) -> tuple[npt.NDArray[np.generic] | bool, ...]:
    """Return the fields of the `kernels.words.Table` for these options."""
    found = words.characters
    replacements, packed = [-1], np.zeros(CODE_POINTS, dtype=np.uint64)
    places = np.zeros(CODE_POINTS, dtype=np.int32)
    for code_point, text in found.replacements.items():
        places[code_point] = len(replacements)
        replacements += [*map(ord, text), -1]
        encoded = text.encode()
        if 0 < len(encoded) < 8 and all(found.classes[ord(part)] == WORD for part in text):
            packed[code_point] = int.from_bytes(encoded, "little") | len(encoded) << 56
    combining_classes = np.zeros(CODE_POINTS, dtype=np.uint8)
    combining_classes[list(found.combining_classes)] = list(found.combining_classes.values())
    classes = np.frombuffer(found.classes, dtype=np.uint8)
    lowercase = classes[ord("A")] == REPLACED
    return classes, places, np.array(replacements, dtype=np.int32), packed, combining_classes, bool(lowercase)


def split(text: str | bytes, pattern: Splitter) -> list[bytes]:
    """Return the pretokens of one text. The pretokens of a pattern join to the text again."""
    block, chunks = pretokenized(single_block(text_bytes(text)), pattern)
    pretokens, start = [], 0
    for ends in chunks:
        for end in ends.tolist():
            pretokens.append(block.data[start:end].tobytes())
            start = end
    return pretokens
