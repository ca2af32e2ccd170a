"""The tables that the encoding kernel needs for BPE over characters.

The kernel merges bytes. So `kernels.character_symbols` writes each character as bytes that UTF-8 or its own codes use,
and the first merges, before those of the vocabulary, make one symbol of these bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tokenizer.document_blocks import Block, as_readonly
from tokenizer.encoding.kernel_encoder import MergeTables
from tokenizer.encoding.piece_tables import trie_of
from tokenizer.kernels import character_symbols as kernel
from tokenizer.splitting.normalizers import MARK
from tokenizer.splitting.pretokenize import WORDS_CHUNK, pretokenize

if TYPE_CHECKING:
    from tokenizer.character_bpe_vocabulary import CharacterPairVocabulary


class CharacterTables(MergeTables):
    """Read-only tables of BPE over characters that all threads share."""

    def __init__(self, vocabulary: CharacterPairVocabulary):
        codes = _Codes(vocabulary)
        size = vocabulary.size
        token_bytes = codes.of_tokens() + [b""] * len(codes.parts)
        for code, i in codes.parts.items():
            token_bytes[i] = code
        whole = np.arange(len(token_bytes)) < size
        if vocabulary.whole_first:
            whole[[*vocabulary.special_tokens.values()]] = False
        first = len(codes.merges)
        super().__init__(
            vocabulary.pattern,
            token_bytes,
            codes.byte_ids,
            np.concatenate([np.array(codes.merges, dtype=np.int32).reshape(-1, 3), vocabulary.merges]),
            np.concatenate([np.arange(first), first + vocabulary.ranks]),
            by_merges=not vocabulary.whole_first,
            whole=whole,
        )
        self.automaton = None  # the kernel encodes symbols, which `pretokenize` writes
        if vocabulary.prefix or vocabulary.suffix:
            self.merges.joined.fill(True)  # the codes of a token depend on its place in a word
            self.made_by = None
        self._symbols = _symbols_of(vocabulary)
        known_space = bool(self._symbols.known[kernel.SPACE] & 1) or not vocabulary.marks_spaces
        grows = not known_space or bool(vocabulary.frozen) or not vocabulary.pattern.rewrites
        self._growth = 6 if grows else 2  # the most bytes that one byte becomes

    def pretokenize(self, block: Block) -> tuple[Block, Iterator[np.ndarray]]:
        block, chunks = pretokenize(block, self.pattern)
        ends = np.concatenate([np.zeros(0, dtype=np.int64), *(chunk.copy() for chunk in chunks)])
        out = np.empty(self._growth * block.size + kernel.ROOM, dtype=np.uint8)  # untouched pages take no memory
        offsets, out_ends = np.zeros(len(block.offsets), dtype=np.int64), np.empty(len(ends), dtype=np.int64)
        data = as_readonly(block.data)
        written = kernel.write_symbols(data, block.offsets, ends, *self._symbols, out, offsets, out_ends)
        out_ends = out_ends[:written]
        chunks = (out_ends[first : first + WORDS_CHUNK] for first in range(0, written, WORDS_CHUNK))
        return Block(as_readonly(out[: offsets[-1]]), offsets), chunks


def _symbols_of(vocabulary: CharacterPairVocabulary) -> kernel.Symbols:
    known = np.zeros(0x110000, dtype=np.uint8)
    for kind, characters in enumerate(vocabulary.characters):
        places = [ord(_space_of(character, vocabulary)) for character in characters]
        known[[place for place in places if place >= 0]] |= 1 << kind
    known[list(vocabulary.byte_ids or ())] |= kernel.HAS_BYTE
    frozen = vocabulary.frozen
    trie = trie_of((piece.encode(), i) for piece, i in frozen.items()) if frozen else np.zeros(0, dtype=np.uint64)
    plain = (known[kernel.SPACE : 0x7F] & 1).all() and not vocabulary.prefix and not vocabulary.suffix
    options = [
        vocabulary.marks_spaces,
        vocabulary.byte_fallback,
        vocabulary.unknown is not None,
        vocabulary.fuse_unknown,
        vocabulary.prefix != "",
        vocabulary.suffix != "",
        plain and not frozen,
        vocabulary.whole_first and vocabulary.byte_fallback,
    ]
    return kernel.Symbols(as_readonly(known), as_readonly(trie), as_readonly(np.array(options, dtype=np.bool_)))


class _Codes:
    """The bytes of symbols and tokens, as `kernels.character_symbols` writes them.

    byte_ids: int32 (256,). merges: (left, right, merged), those that make symbols of their bytes. parts: the codes of
    the ids from the vocabulary's size on, which are parts of symbols.
    """

    def __init__(self, vocabulary: CharacterPairVocabulary):
        self._vocabulary = vocabulary
        self.parts: dict[bytes, int] = {}
        ids = dict(self._of_symbols())
        known: dict[bytes, int] = {}
        for code in sorted(ids):
            for length in range(1, len(code) + 1):
                start = code[:length]
                if start not in known:
                    known[start] = ids[start] if start in ids else self._part(start)
        for byte in range(256):
            if (one := bytes([byte])) not in known:
                known[one] = self._part(one)
        self.byte_ids = np.array([known[bytes([byte])] for byte in range(256)], dtype=np.int32)
        longer = sorted((code for code in known if len(code) > 1), key=len)
        self.merges = [(known[code[:-1]], known[code[-1:]], known[code]) for code in longer]

    def _part(self, code: bytes) -> int:
        return self.parts.setdefault(code, self._vocabulary.size + len(self.parts))

    def _of_symbols(self) -> Iterator[tuple[bytes, int]]:
        vocabulary = self._vocabulary
        for kind, characters in enumerate(vocabulary.characters):
            for character, i in characters.items():
                code = _space_of(character, vocabulary).encode()
                yield code + bytes([kernel.MARKER + kind] * bool(kind)), i
        for byte, i in (vocabulary.byte_ids or {}).items():
            yield _of_byte(byte), i
        if vocabulary.unknown_id is not None:
            yield bytes([kernel.UNKNOWN]), vocabulary.unknown_id
        for i in vocabulary.frozen.values():
            yield _of_frozen(i), i

    def of_tokens(self) -> list[bytes]:
        """Return the bytes of each token by id; empty for tokens that no merges make."""
        vocabulary = self._vocabulary
        codes = [b""] * vocabulary.size
        for i, token in vocabulary.forms():
            codes[i] = self._of_word(token)
        for byte, i in (vocabulary.byte_ids or {}).items():
            codes[i] = _of_byte(byte)
        if vocabulary.unknown_id is not None:
            codes[vocabulary.unknown_id] = bytes([kernel.UNKNOWN])
        for i in vocabulary.frozen.values():
            codes[i] = _of_frozen(i)
        return codes

    def _of_word(self, token: str) -> bytes:
        """Return the code of a pretoken whose characters are known."""
        vocabulary, code, last = self._vocabulary, b"", len(token) - 1
        if not vocabulary.prefix and not vocabulary.suffix:
            return _space_of(token, vocabulary).encode()
        for place, character in enumerate(token):
            kind = int(bool(vocabulary.prefix) and place > 0) | int(bool(vocabulary.suffix) and place == last) << 1
            code += _space_of(character, vocabulary).encode() + bytes([kernel.MARKER + kind] * bool(kind))
        return code


def _space_of(text: str, vocabulary: CharacterPairVocabulary) -> str:
    """Return a text with spaces for marks if these stand for spaces."""
    return text.replace(MARK, " ") if vocabulary.marks_spaces else text


def _of_byte(byte: int) -> bytes:
    return bytes([kernel.LEAD | byte >> 6, 0x80 | byte & 63])


def _of_frozen(i: int) -> bytes:
    return bytes([kernel.FROZEN, *(0x80 | i >> 6 * k & 63 for k in range(4))])
