"""The vocabulary of byte-level BPE: bytes, and the merges that join them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial

from tokenizer.byte_level import BY_MERGES, BY_RANKS, WHOLE_FIRST, spell, unspell, unspell_all
from tokenizer.splitting.patterns import Pattern
from tokenizer.vocabulary import Vocabulary, digest_of, flag_parts, special_token_part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Unpack

    import numpy as np
    import numpy.typing as npt

    from tokenizer.encoding.ids_to_text import ByteDecoding
    from tokenizer.encoding.kernel_encoder import EncodingTables, KernelTables
    from tokenizer.encoding.python_encoder import DropoutEncoder
    from tokenizer.splitting.chains import Chain
    from tokenizer.splitting.normalizers import Normalization
    from tokenizer.vocabulary import Common, Encode, EncodeWithSpans, Part

LONGEST_RANKED_TOKEN = 4096  # bytes, in a vocabulary by ranks


class PackedPairs:
    """A sequence of token pairs, stored as the merged tokens and the lengths of their left parts in characters."""

    def __init__(self, merged: list[str], lengths: Sequence[int]):
        self._merged = merged
        self._lengths = lengths

    def __reduce__(self) -> tuple[type[PackedPairs], tuple[list[str], list[int]]]:
        return PackedPairs, (self._merged, list(self._lengths))

    def __len__(self) -> int:
        return len(self._merged)

    def __getitem__(self, number: int) -> tuple[str, str]:
        merged, length = self._merged[number], self._lengths[number]
        return merged[:length], merged[length:]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return map(self.__getitem__, range(len(self)))


class BytePairVocabulary(Vocabulary):
    """An immutable vocabulary of byte-level BPE.

    ids: token -> id. A special token is among them only if text can become it, too. Tokens are bytes or, if `spelled`,
    strings in ByteLevel's alphabet.
    pairs: the merges in order, as pairs of tokens of the same type; None for a vocabulary of ranks.
    first_merged: the id of the first merged token, if those of later merges follow without gaps; otherwise None.
    unreachable: ids of tokens that are empty or have a character outside ByteLevel's alphabet, by spelling.
    rule: the file's rule that turns pretokens into ids.

    The caller has checked that ids are distinct integers, and that both parts and the merged token of every pair are
    tokens.
    """

    kind = "bpe"
    pattern: Pattern | Chain

    def __init__(
        self,
        *,
        ids: Mapping[bytes, int] | Mapping[str, int],
        rule: str = BY_MERGES,
        pairs: Sequence[Sequence[bytes]] | Sequence[Sequence[str]] | PackedPairs | None = None,
        first_merged: int | None = None,
        spelled: bool = False,
        unreachable: Mapping[str, int] | None = None,
        **common: Unpack[Common],
    ):
        self.ids = ids
        self.rule = rule
        self.pairs = pairs
        self.first_merged = first_merged
        self.spelled = spelled
        self.unreachable = unreachable or {}
        self.missing_bytes = bytes(byte for byte in range(256) if self.written(bytes([byte])) not in ids)
        if self.missing_bytes and (rule == BY_RANKS or len(self.missing_bytes) == 256):
            raise ValueError(
                f"the vocabulary lacks {len(self.missing_bytes)} of the 256 single bytes "
                f"(the first is 0x{self.missing_bytes[0]:02x}), so it is not a byte-level vocabulary"
            )
        special_tokens = common["special_tokens"]
        smallest, largest = min(ids.values()), max(ids.values())
        between = {i: spelling for spelling, i in special_tokens.items() if smallest <= i <= largest}
        for i in between.keys() & set(ids.values()) if between else ():
            if self.spelled_id(between[i]) != i:
                raise ValueError(f"the special token {between[i]!r} has the id {i} of another token")
        if len(set(special_tokens.values())) != len(special_tokens):
            raise ValueError("two special tokens have the same id")
        for spelling, i in special_tokens.items():
            if self.spelled_id(spelling) not in (None, i):
                raise ValueError(
                    f"the special token {spelling!r} is also the spelling of an ordinary token, which has another id: "
                    "choose another spelling, such as '<|name|>'"
                )
        super().__init__(largest=max([largest, *self.unreachable.values()]), **common)

    @property
    def is_lossless(self) -> bool:  # type: ignore[override]  # depends on the file
        return (self.normalizer is None or self.normalizer.is_nfc) and not self.pattern.drops

    def pretoken_encoder(self) -> Encode:
        from tokenizer.encoding.python_encoder import MergingEncoder

        return MergingEncoder(self).encode

    def kernel_tables(self) -> EncodingTables:
        from tokenizer.encoding.kernel_encoder import EncodingTables

        return EncodingTables(self)

    def decoding(self) -> ByteDecoding:
        from tokenizer.encoding.ids_to_text import ByteDecoding

        return ByteDecoding(self)

    def span_encoder(self, encode: Encode) -> EncodeWithSpans:
        from tokenizer.encoding.spans import merged_spans

        return partial(merged_spans, self, encode)

    def dropout_encoder(self, tables: Callable[[], KernelTables]) -> DropoutEncoder:
        from tokenizer.encoding.python_encoder import DropoutEncoder

        return DropoutEncoder(self, tables)

    @property
    def merge_pairs(self) -> list[tuple[bytes, bytes]]:
        tokens: Any = self.tokens  # merges refer to tokens that are not None
        return [(tokens[left], tokens[right]) for left, right, _ in self.merges.tolist()]

    def spelled_id(self, spelling: str) -> int | None:
        try:
            return self.ids.get(spelling if self.spelled else unspell(spelling))
        except KeyError:
            return self.unreachable.get(spelling)

    def written(self, token: bytes) -> Any:
        """Return a token as a key of `ids`: bytes, or a str if `spelled`."""
        return spell(token) if self.spelled else token

    def find(self, token: bytes) -> int | None:
        return self.ids.get(self.written(token))

    def spelling(self, token: bytes) -> str:
        return spell(token)

    @cached_property
    def tokens(self) -> list[bytes | None]:
        """The bytes of each token by id; None for gaps and special tokens that are not in `ids`."""
        listed: Any = list(self.ids)
        tokens: list[bytes | None] = [None] * self.size
        for token, i in zip(unspell_all(listed) if self.spelled else listed, self.ids.values(), strict=True):
            tokens[i] = token
        return tokens

    @cached_property
    def byte_lengths(self) -> npt.NDArray[np.int32]:
        """The length of each token in bytes, int32 (size,), read-only; 0 for special tokens and gaps."""
        import numpy as np

        lengths = np.array([len(token or b"") for token in self.tokens], dtype=np.int32)
        lengths.flags.writeable = False
        return lengths

    @cached_property
    def byte_ids(self) -> npt.NDArray[np.int32]:
        """The id of each single byte, int32 (256,). Missing bytes have ids from `size` on."""
        import numpy as np

        missing = {byte: self.size + k for k, byte in enumerate(self.missing_bytes)}
        ids = [missing[byte] if byte in missing else self.ids[self.written(bytes([byte]))] for byte in range(256)]
        return np.array(ids, dtype=np.int32)

    @cached_property
    def merges(self) -> npt.NDArray[np.int32]:
        """The merges in order, int32 (n, 3): left, right and merged id.

        For a vocabulary of ranks, these are the merges that joining by rank applies: one for each token. If they do not
        produce every token, the list has every two tokens that form a token, as in transformers' converter.

        Such conversions list several merges for one token, in the order of the tokens' ids. If one merge for each token
        produces every token, the others never apply and are left out.
        """
        import numpy as np

        if self.pairs is None:
            from tokenizer.encoding.merge_tables import all_merges_of_ranks

            return all_merges_of_ranks(self.tokens) if self._merges_of_ranks is None else self._merges_of_ranks
        listed = self._listed_merges
        steps = np.diff(listed[:, 2])
        if (steps >= 0).all() and (steps == 0).any():
            # Before a token is merged, all tokens of lower id have been merged wherever possible. So its bytes have
            # always become the same two parts, whatever surrounds them, and only the merge of these parts applies.
            needed = self._merges_of_ranks
            if needed is not None and set(map(tuple, needed.tolist())) <= set(map(tuple, listed.tolist())):
                return needed
        return listed

    @cached_property
    def _listed_merges(self) -> npt.NDArray[np.int32]:
        import numpy as np

        pairs: Any = self.pairs
        merges = np.empty((len(pairs), 3), dtype=np.int32)
        id_of: Any = self.ids.__getitem__
        for column, tokens in enumerate(zip(*pairs, strict=True)):
            merges[:, column] = np.fromiter(map(id_of, tokens), np.int32, len(merges))
        empty: Any = "" if self.spelled else b""
        merges[:, 2] = np.fromiter(map(id_of, map(empty.join, pairs)), np.int32, len(merges))
        return merges

    @cached_property
    def _merges_of_ranks(self) -> npt.NDArray[np.int32] | None:
        """The merges that give the same ids as joining by rank, with ids as ranks; None if no merges do."""
        from tokenizer.encoding.merge_tables import merges_from_ranks

        if max(map(len, self.ids)) > LONGEST_RANKED_TOKEN:
            return None
        return merges_from_ranks(self.tokens, self.byte_ids)

    @cached_property
    def semantics(self) -> str:
        """BY_MERGES if merging produces every token, so that it gives the ids for every text; otherwise WHOLE_FIRST.

        BY_RANKS equals one of these with the merges of `merges`. So fingerprints do not depend on the file format.
        """
        if self.rule == BY_MERGES or (self.rule == BY_RANKS and self._merges_of_ranks is not None):
            return BY_MERGES
        from tokenizer.encoding.merge_tables import all_tokens_reachable

        return BY_MERGES if all_tokens_reachable(self.tokens, self.merges, self.byte_ids) else WHOLE_FIRST

    @property
    def fingerprint_parts(self) -> list[Part]:
        import numpy as np

        # Gaps are left out, and special tokens are another part.
        held = [(i, token) for i, token in enumerate(self.tokens) if token is not None]
        return [
            ("ids", [np.array([i for i, _ in held], dtype="<i8").tobytes()]),
            ("tokens", [token for _, token in held]),
            ("merges", [np.ascontiguousarray(self.merges, dtype="<i4").tobytes()]),
        ]

    @cached_property
    def fingerprint(self) -> str:
        """The hexadecimal SHA-256 of everything that decides ids. It does not depend on the file format."""
        return digest_of(
            [
                *self.fingerprint_parts,
                ("pattern", [self.pattern.identity]),
                special_token_part(self.special_tokens),
                ("semantics", [self.semantics]),
                *self.normalizer_part,
                *flag_parts(self.special_tokens, self.added_flags, self.deciding_flags),
            ]
        )


def trained_vocabulary(
    merges: npt.NDArray[np.int32],
    byte_order: bytes,
    special_tokens: tuple[str, ...],
    pattern: Pattern,
    normalizer: Normalization | None = None,
) -> BytePairVocabulary:
    """Return a vocabulary of the special tokens, then the bytes in `byte_order`, then the merged tokens.

    merges: int32 (n, 2), pairs of symbols. Symbol k is the k-th byte or, from 256 on, the token of merge k - 256.
    """
    first = len(special_tokens)
    tokens = [bytes([byte]) for byte in byte_order]
    pairs: list[tuple[bytes, bytes]] = []
    for left, right in merges.tolist():
        pairs.append((tokens[left], tokens[right]))
        tokens.append(tokens[left] + tokens[right])
    ids = dict(zip(tokens, range(first, first + len(tokens)), strict=True))
    assert len(ids) == len(tokens), "two merges make the same token"
    return BytePairVocabulary(
        ids=ids,
        pairs=pairs,
        first_merged=first + 256,
        special_tokens={spelling: i for i, spelling in enumerate(special_tokens)},
        pattern=pattern,
        normalizer=normalizer,
    )
