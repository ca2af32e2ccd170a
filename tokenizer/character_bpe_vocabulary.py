"""The vocabulary of BPE over characters: SentencePiece's BPE, as in Llama 2, and BPE with `</w>`, as in CLIP."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from tokenizer.splitting.normalizers import MARK
from tokenizer.vocabulary import Vocabulary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Unpack

    import numpy as np
    import numpy.typing as npt

    from tokenizer.encoding.character_tables import CharacterTables
    from tokenizer.encoding.ids_to_text import ByteDecoding
    from tokenizer.encoding.kernel_encoder import KernelTables
    from tokenizer.encoding.python_encoder import DropoutEncoder
    from tokenizer.vocabulary import Common, Encode, EncodeWithSpans, Part


class CharacterPairVocabulary(Vocabulary):
    """An immutable vocabulary of BPE over characters, which encodes as `tokenizers` does.

    ids: from each token to its id. If `pattern.marks_spaces`, tokens spell a space as `▁`.
    pairs: the merges in order, as pairs of tokens. (a, b) makes a + b without the `prefix` of b.
    unknown: the token of characters that are no token; None leaves such characters out. fuse_unknown: whether a run of
    such characters within a pretoken becomes one token.
    byte_fallback: whether the tokens <0x00> to <0xFF> spell such characters instead.
    prefix: the start of tokens within a word. suffix: the end of tokens at the end of a word, such as </w>.
    whole_first: whether a pretoken that equals a token becomes it without merging (`ignore_merges`).
    decoder: the steps of decoding, in the form of tokenizer.json.

    The caller has checked that:
    - both parts and the merged token of every pair are tokens, and no pair has a byte's token or the unknown token;
    - `unknown` is a token;
    - byte_fallback comes with the tokens of all bytes, and without `prefix` and `suffix`;
    - with `whole_first`, every character of a token is a token.
    """

    kind = "character-bpe"
    merges_characters = True
    units = "tokens of characters"
    source: bytes | None = None
    """The file of a SentencePiece model."""

    def __init__(
        self,
        *,
        ids: Mapping[str, int],
        pairs: Sequence[Sequence[str]],
        unknown: str | None = None,
        fuse_unknown: bool = False,
        byte_fallback: bool = False,
        prefix: str = "",
        suffix: str = "",
        whole_first: bool = False,
        decoder: Sequence[dict[str, Any]],
        **common: Unpack[Common],
    ):
        super().__init__(largest=max(ids.values()), **common)
        self.ids = ids
        self.pairs = pairs
        self.unknown = unknown
        self.fuse_unknown = fuse_unknown
        self.byte_fallback = byte_fallback
        self.prefix = prefix
        self.suffix = suffix
        self.whole_first = whole_first
        self.decoder = decoder

    def pretoken_encoder(self) -> Encode:
        from tokenizer.encoding.character_merging import CharacterMerging

        return CharacterMerging(self).encode

    def kernel_tables(self) -> CharacterTables:
        from tokenizer.encoding.character_tables import CharacterTables

        return CharacterTables(self)

    def decoding(self) -> ByteDecoding:
        from tokenizer.encoding.text_decoding import StepDecoding

        return StepDecoding(self)

    def span_encoder(self, encode: Encode) -> EncodeWithSpans:
        from tokenizer.encoding.character_merging import CharacterSpans

        return CharacterSpans(self, encode)

    def dropout_encoder(self, tables: Callable[[], KernelTables]) -> DropoutEncoder:
        from tokenizer.encoding.character_merging import CharacterDropout

        return CharacterDropout(self, tables)

    @property
    def unknown_id(self) -> int | None:
        return None if self.unknown is None else self.ids[self.unknown]

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of special tokens."""
        return frozenset(self.special_tokens.values())

    @property
    def marks_spaces(self) -> bool:
        """Whether tokens spell a space as `▁`. Pretokens may spell it either way."""
        return self.pattern.marks_spaces

    @property
    def frozen(self) -> Mapping[str, int]:
        """The ids of tokens that are matched before merging, the longest first, and never merge."""
        return {}

    @cached_property
    def characters(self) -> tuple[dict[str, int], ...]:
        """The ids of single characters by class. Bit 0: after the first character of a word. Bit 1: at its end."""
        classes = []
        for kind in range(4):
            start, end = self.prefix * (kind & 1), self.suffix * (kind >> 1)
            used = bool(self.prefix or not kind & 1) and bool(self.suffix or not kind >> 1)
            size = len(start) + 1 + len(end)
            classes.append(
                {
                    token[len(start)]: i
                    for token, i in (self.ids.items() if used else ())
                    if len(token) == size and token.startswith(start) and token.endswith(end)
                    if token[len(start)] != " " or not self.marks_spaces
                }
            )
        return tuple(classes)

    @cached_property
    def byte_ids(self) -> dict[int, int] | None:
        """The ids of bytes; None without byte_fallback."""
        ids = {byte: self.ids.get(f"<0x{byte:02X}>") for byte in range(256 if self.byte_fallback else 0)}
        return {byte: i for byte, i in ids.items() if i is not None} or None

    def symbols(self, word: str) -> list[int]:
        """Return the ids of a pretoken before merging. Spaces are spelled as in tokens."""
        ids: list[int] = []
        after_unknown = False
        last = len(word) - 1
        frozen = self._frozen_ends(word)
        skipped = 0
        for place, character in enumerate(word):
            if place in frozen:
                piece, skipped = frozen[place]
                ids.append(piece)
                after_unknown = False
            if place < skipped:
                continue
            kind = int(bool(self.prefix) and place > 0) | int(bool(self.suffix) and place == last) << 1
            if (i := self.characters[kind].get(character)) is not None:
                ids.append(i)
            elif self.byte_ids is not None:
                ids += [self.byte_ids[byte] for byte in character.encode()]
            elif self.unknown_id is not None and not (after_unknown and self.fuse_unknown):
                ids.append(self.unknown_id)
            after_unknown = i is None
        return ids

    def _frozen_ends(self, word: str) -> dict[int, tuple[int, int]]:
        """Return the frozen tokens of a pretoken by their start: the id and the end."""
        found = self._frozen.finditer(word) if self.frozen else ()
        return {match.start(): (self.frozen[match[0]], match.end()) for match in found}

    @cached_property
    def _frozen(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, sorted(self.frozen, key=len, reverse=True))))

    def merged(self, pair: Sequence[str]) -> str:
        """Return the token that a merge makes."""
        return pair[0] + pair[1][len(self.prefix) :]

    def merge_of(self, left: int, right: int) -> tuple[int, int] | None:
        """Return the rank of the merge of two neighbours and the merged id, or None if they do not merge."""
        return self._ranked.get((left, right))

    @cached_property
    def _ranked(self) -> dict[tuple[int, int], tuple[int, int]]:
        ids = self.ids
        return {(ids[a], ids[b]): (rank, ids[self.merged((a, b))]) for rank, (a, b) in enumerate(self.pairs)}

    @cached_property
    def merges(self) -> npt.NDArray[np.int32]:
        """The merges, int32 (n, 3): left, right and merged id."""
        import numpy as np

        ids, pairs = self.ids, self.pairs
        listed = [(ids[a], ids[b], ids[self.merged((a, b))]) for a, b in pairs]
        return np.array(listed, dtype=np.int32).reshape(-1, 3)

    @property
    def ranks(self) -> npt.NDArray[np.int64]:
        """The rank of each of `merges`, int64 (n,). The lowest is merged first; among equal ones, the leftmost."""
        import numpy as np

        return np.arange(len(self.merges), dtype=np.int64)

    @property
    def merge_pairs(self) -> Sequence[tuple[bytes, bytes]]:
        return [(left.encode(), right.encode()) for left, right in self.pairs]

    @property
    def learned_pairs(self) -> Sequence[tuple[bytes, bytes]]:
        return [(self.in_pretokens(left).encode(), self.in_pretokens(right).encode()) for left, right in self.pairs]

    def in_pretokens(self, token: str) -> str:
        return token.replace(MARK, " ") if self.marks_spaces else token

    @property
    def fingerprint_parts(self) -> list[Part]:
        held = sorted((i, token) for token, i in self.ids.items())
        rules = [self.fuse_unknown, self.byte_fallback, self.whole_first, self.unknown, self.prefix, self.suffix]
        return [
            ("ids", [str(i) for i, _ in held]),
            ("tokens", [token for _, token in held]),
            ("merges", [part for pair in self.pairs for part in pair]),
            ("rules", list(map(repr, rules))),
        ]

    def spelled(self, word: str) -> str:
        """Return a pretoken with spaces spelled as in tokens."""
        return word.replace(" ", MARK) if self.marks_spaces else word

    def forms(self) -> Iterator[tuple[int, str]]:
        """Yield the ids and the spellings of the tokens that text can become by merging characters."""
        known = self.characters[0]
        for token, i in self.ids.items():
            if all(map(known.__contains__, token)):
                yield i, token
