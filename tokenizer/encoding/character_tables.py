"""The tables that the encoding kernel needs for BPE over characters.

The kernel merges bytes. `kernels.character_symbols` writes each symbol as UTF-8 or as a code of several bytes. The
first merges join these bytes to one symbol. The merges of the vocabulary follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tokenizer.document_blocks import Block, as_readonly
from tokenizer.encoding.kernel_encoder import NO_CUTS, MergeTables
from tokenizer.encoding.merge_tables import merges_from_ranks
from tokenizer.encoding.piece_tables import trie_of
from tokenizer.kernels import character_symbols as kernel
from tokenizer.splitting.metaspace_splitter import NEVER, MetaspaceWords
from tokenizer.splitting.normalizers import MARK, SPACES_TO_MARKS, Prepend
from tokenizer.splitting.pretokenize import WORDS_CHUNK, pretokenize

if TYPE_CHECKING:
    from tokenizer.character_bpe_vocabulary import CharacterPairVocabulary


class CharacterTables(MergeTables):
    """Read-only tables of BPE over characters that all threads share."""

    def __init__(self, vocabulary: CharacterPairVocabulary):
        codes = _Codes(vocabulary)
        size = vocabulary.size
        token_bytes = codes.of_ids()
        whole = np.arange(len(token_bytes)) < size
        if vocabulary.whole_first:
            whole[[*vocabulary.special_tokens.values()]] = False
        of_symbols = codes.merges
        listed, ranks = vocabulary.merges, vocabulary.ranks
        enough = _sufficient(of_symbols, listed, ranks, token_bytes, codes.byte_ids)
        if enough is not None and not vocabulary.whole_first:
            listed, ranks = enough, np.arange(len(enough))
        super().__init__(
            vocabulary.pattern,
            token_bytes,
            codes.byte_ids,
            np.concatenate([of_symbols, listed]),
            np.concatenate([np.arange(len(of_symbols)), len(of_symbols) + ranks]),
            by_merges=not vocabulary.whole_first,
            whole=whole,
        )
        self.automaton = None  # the kernel encodes symbols, which `pretokenize` writes
        if vocabulary.prefix or vocabulary.suffix:
            self.cuts = NO_CUTS  # the codes of a token depend on its place in a word
            self.made_by = None
        self._takes_text, prepends, completes = _whole_text_rules(vocabulary)
        self._symbols = _symbols_of(vocabulary, prepends, completes)
        known_space = bool(self._symbols.known[kernel.SPACE] & 1) or not vocabulary.marks_spaces
        # Invalid UTF-8 is longer as U+FFFD.
        grows = not known_space or bool(vocabulary.frozen) or self._takes_text or not vocabulary.pattern.rewrites
        self._growth = 6 if grows else 2  # the most bytes that one byte becomes

    def pretokenize(self, block: Block) -> tuple[Block, Iterator[np.ndarray]]:
        if self._takes_text:
            ends = block.offsets[1:]
        else:
            block, chunks = pretokenize(block, self.pattern)
            ends = np.concatenate([np.zeros(0, dtype=np.int64), *(chunk.copy() for chunk in chunks)])
        room = self._growth * (block.size + len(ends)) + kernel.ROOM
        out = np.empty(room, dtype=np.uint8)  # untouched pages take no memory
        offsets, out_ends = np.zeros(len(block.offsets), dtype=np.int64), np.empty(len(ends), dtype=np.int64)
        data = as_readonly(block.data)
        written = kernel.write_symbols(data, block.offsets, ends, *self._symbols, out, offsets, out_ends)
        out_ends = out_ends[:written]
        chunks = (out_ends[first : first + WORDS_CHUNK] for first in range(0, written, WORDS_CHUNK))
        return Block(as_readonly(out[: offsets[-1]]), offsets), chunks


def sufficient_merges(vocabulary: CharacterPairVocabulary) -> np.ndarray | None:
    """Return one merge for each token that merges make, int32 (n, 3), in order, if they give the ids of all merges."""
    codes = _Codes(vocabulary)
    return _sufficient(codes.merges, vocabulary.merges, vocabulary.ranks, codes.of_ids(), codes.byte_ids)


def _sufficient(
    of_symbols: np.ndarray, listed: np.ndarray, ranks: np.ndarray, token_bytes: list[bytes], byte_ids: np.ndarray
) -> np.ndarray | None:
    """Return one merge for each token, int32 (n, 3), that give the same ids as all merges; None if there are none.

    Files list every two tokens that make a token, in the order of the tokens. Before a token is merged, its characters
    have always become the same two parts, so only the merge of these parts applies (see `merges_from_ranks`).
    """
    order = np.argsort(ranks, kind="stable")
    listed, ranks = listed[order], ranks[order]
    starts = np.flatnonzero(np.diff(listed[:, 2], prepend=-1))
    made = listed[starts, 2]
    ends_of_ranks = np.flatnonzero(np.diff(ranks, prepend=-1))
    if len(set(made.tolist())) < len(made) or not np.isin(starts, ends_of_ranks).all():
        return None  # the merges of a token are not together, or tokens have the same rank
    ids = np.concatenate([byte_ids, of_symbols[:, 2], made])
    tokens = [*(bytes([byte]) for byte in range(256)), *(token_bytes[i] for i in ids[256:].tolist())]
    found = merges_from_ranks(tokens, np.arange(256, dtype=np.int32))
    if found is None:
        return None
    needed = ids[found[found[:, 2] >= 256 + len(of_symbols)]]
    return needed if set(map(tuple, needed.tolist())) <= set(map(tuple, listed.tolist())) else None


def _whole_text_rules(vocabulary: CharacterPairVocabulary) -> tuple[bool, bool, bool]:
    """Return whether symbols can be made of whole texts, which have the ids of their words, and the rules of spaces.

    The rules are whether a space goes before every text, or only before a text without one at its start.
    """
    words = vocabulary.pattern
    if not isinstance(words, MetaspaceWords) or words.whitespace_split or vocabulary.prefix or vocabulary.suffix:
        return False, False, False
    prepends = words.normalizers[:1] == (Prepend(MARK),)
    is_plain = words.normalizers[prepends:] in ((), (SPACES_TO_MARKS,))
    if words.cuts:  # nothing may cross a cut
        within = (MARK in token[1:] for token, i in vocabulary.ids.items() if i not in vocabulary.special_ids)
        is_plain = is_plain and MARK in vocabulary.ids and not (any(within) or vocabulary.whole_first)
    return is_plain, is_plain and prepends, is_plain and not prepends and words.prepend != NEVER


def _symbols_of(vocabulary: CharacterPairVocabulary, prepends: bool, completes: bool) -> kernel.Symbols:
    known = np.zeros(0x110000, dtype=np.uint8)
    for kind, characters in enumerate(vocabulary.characters):
        places = [ord(vocabulary.in_pretokens(character)) for character in characters]
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
        prepends,
        completes,
    ]
    return kernel.Symbols(as_readonly(known), as_readonly(trie), as_readonly(np.array(options, dtype=np.bool_)))


class _Codes:
    """The bytes of symbols and tokens, as `kernels.character_symbols` writes them.

    byte_ids: int32 (256,). merges: int32 (n, 3), the merges that make symbols of their bytes. parts: the codes of
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
        merges = [(known[code[:-1]], known[code[-1:]], known[code]) for code in longer]
        self.merges = np.array(merges, dtype=np.int32).reshape(-1, 3)

    def _part(self, code: bytes) -> int:
        return self.parts.setdefault(code, self._vocabulary.size + len(self.parts))

    def _of_symbols(self) -> Iterator[tuple[bytes, int]]:
        vocabulary = self._vocabulary
        for kind, characters in enumerate(vocabulary.characters):
            for character, i in characters.items():
                if character in vocabulary.frozen:
                    continue
                code = vocabulary.in_pretokens(character).encode()
                yield code + bytes([kernel.MARKER + kind] * bool(kind)), i
        for byte, i in (vocabulary.byte_ids or {}).items():
            yield _of_byte(byte), i
        if vocabulary.unknown_id is not None:
            yield bytes([kernel.UNKNOWN]), vocabulary.unknown_id
        for i in vocabulary.frozen.values():
            yield _of_frozen(i), i

    def of_ids(self) -> list[bytes]:
        """Return the bytes of each token and part by id; empty for tokens that no merges make."""
        vocabulary = self._vocabulary
        codes = [*[b""] * vocabulary.size, *self.parts]
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
            return vocabulary.in_pretokens(token).encode()
        for place, character in enumerate(token):
            kind = int(bool(vocabulary.prefix) and place > 0) | int(bool(vocabulary.suffix) and place == last) << 1
            code += vocabulary.in_pretokens(character).encode() + bytes([kernel.MARKER + kind] * bool(kind))
        return code


def _of_byte(byte: int) -> bytes:
    return bytes([kernel.LEAD | byte >> 6, 0x80 | byte & 63])


def _of_frozen(i: int) -> bytes:
    return bytes([kernel.FROZEN, *(0x80 | i >> 6 * k & 63 for k in range(4))])
