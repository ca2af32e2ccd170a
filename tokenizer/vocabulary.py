"""What a tokenizer is, whatever file it came from: tokens with their ids, merges, special tokens, pattern, semantics.

It holds what the file says as plain Python data, which is all that a short text needs; what the bulk path reads
(arrays) and what compares vocabularies (merges, semantics, fingerprint) is worked out when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from tokenizer.byte_level import spell, unspell_all
from tokenizer.splitting.patterns import Pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    import numpy as np

    from tokenizer.splitting.chains import Chain

# How a pretoken becomes ids.
BY_MERGES = "merges"  # the listed merge of lowest rank, leftmost first
WHOLE_FIRST = "whole pretoken, then merges"  # Hugging Face's ignore_merges
BY_RANKS = "whole pretoken, then ranks"  # tiktoken: any two neighbours whose bytes are a token, lowest id first

LONGEST_RANKED_TOKEN = 4096  # bytes, in a vocabulary by ranks


class CutPairs:
    """Pairs of tokens, as the tokens that merging them makes and the lengths of the left ones."""

    def __init__(self, wholes: list[str], lengths: Sequence[int]):
        self._wholes = wholes
        self._lengths = lengths

    def __reduce__(self):
        return CutPairs, (self._wholes, list(self._lengths))

    def __len__(self) -> int:
        return len(self._wholes)

    def __getitem__(self, number: int) -> tuple[str, str]:
        whole, length = self._wholes[number], self._lengths[number]
        return whole[:length], whole[length:]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return map(self.__getitem__, range(len(self)))


class Vocabulary:
    """A vocabulary, not to be changed.

    ids: token -> id, without special tokens; in bytes or, where `spelled`, in ByteLevel's alphabet. pairs: the merges
    in order, as pairs of tokens in the same writing; None for a vocabulary by ranks. first_merged: the id of the first
    merge's token, where the others' follow one by one in the order of the merges. rule: how the file says that
    pretokens become ids. normalizer: "NFC" or None. added_flags: how an added token differs from a plain special one.
    post_processor: tokenizer.json's field, which changes no ids and is kept for saving.

    Whoever makes one has checked that ids are whole numbers and distinct, and that the parts and the wholes of
    pairs are tokens.
    """

    def __init__(
        self,
        *,
        ids: Mapping[bytes, int] | Mapping[str, int],
        special_tokens: dict[str, int],
        pattern: Pattern | Chain,
        rule: str = BY_MERGES,
        pairs: Sequence[Sequence] | CutPairs | None = None,
        first_merged: int | None = None,
        spelled: bool = False,
        normalizer: str | None = None,
        added_flags: Mapping[str, dict] | None = None,
        post_processor: dict | None = None,
    ):
        self.ids = ids
        self.special_tokens = special_tokens
        self.pattern = pattern
        self.rule = rule
        self.pairs = pairs
        self.first_merged = first_merged
        self.spelled = spelled
        self.normalizer = normalizer
        self.added_flags = added_flags or {}
        self.post_processor = post_processor
        # Bytes without a token. The k-th is encoded as the id `size` + k, which is never returned to a caller.
        self.missing_bytes = bytes(byte for byte in range(256) if self.written(bytes([byte])) not in ids)
        if self.missing_bytes and (rule == BY_RANKS or len(self.missing_bytes) == 256):
            raise ValueError(
                f"the vocabulary lacks {len(self.missing_bytes)} of the 256 single bytes "
                f"(the first is 0x{self.missing_bytes[0]:02x}), which makes it no byte-level vocabulary"
            )
        smallest, largest = min(ids.values()), max(ids.values())
        between = {i: spelling for spelling, i in special_tokens.items() if smallest <= i <= largest}
        for i in between.keys() & set(ids.values()) if between else ():
            raise ValueError(f"the special token {between[i]!r} has the id {i}, which is taken")
        if len(set(special_tokens.values())) != len(special_tokens):
            raise ValueError("two special tokens have the same id")
        self.size = max([largest, *special_tokens.values()]) + 1

    def written(self, token: bytes):
        """A token as `ids` and `pairs` write it."""
        return spell(token) if self.spelled else token

    @cached_property
    def tokens(self) -> list[bytes | None]:
        """Token bytes by id; None for ids without (special tokens, and gaps)."""
        listed = list(self.ids)
        tokens: list[bytes | None] = [None] * self.size
        for token, i in zip(unspell_all(listed) if self.spelled else listed, self.ids.values(), strict=True):
            tokens[i] = token
        return tokens

    @cached_property
    def byte_lengths(self) -> np.ndarray:
        """int32 (size,): bytes of each token, 0 for special tokens and gaps. Read-only."""
        import numpy as np

        lengths = np.array([len(token or b"") for token in self.tokens], dtype=np.int32)
        lengths.flags.writeable = False
        return lengths

    @cached_property
    def byte_ids(self) -> np.ndarray:
        """Return the id of each single byte, int32 (256,); missing bytes have ids from `size` on."""
        import numpy as np

        missing = {byte: self.size + k for k, byte in enumerate(self.missing_bytes)}
        ids = [missing[byte] if byte in missing else self.ids[self.written(bytes([byte]))] for byte in range(256)]
        return np.array(ids, dtype=np.int32)

    @cached_property
    def merges(self) -> np.ndarray:
        """int32 (n, 3): left, right and merged id, in order.

        A vocabulary by ranks has the merges that joining by rank does: one for each token or, where that does not make
        every token, every two tokens that together are a token, as transformers' converter lists them.

        Where a file lists several merges that make the same token, in the order of the tokens' ids (as such
        conversions do), those that never happen are left out, if every token is made by one alone.
        """
        import numpy as np

        if self.pairs is None:
            from tokenizer.encoding.merge_tables import all_merges_of_ranks

            return all_merges_of_ranks(self.tokens) if self._merges_of_ranks is None else self._merges_of_ranks
        listed = self._listed_merges
        wholes = listed[:, 2]
        if (np.diff(wholes) >= 0).all() and (np.diff(wholes) == 0).any():
            # When a token's turn comes, the tokens before it have been made wherever they could be. So whatever stands
            # around its bytes, they have become the same two parts; and it is the merge of these that happens.
            needed = self._merges_of_ranks
            if needed is not None and set(map(tuple, needed.tolist())) <= set(map(tuple, listed.tolist())):
                return needed
        return listed

    @cached_property
    def _listed_merges(self) -> np.ndarray:
        import numpy as np

        merges = np.empty((len(self.pairs), 3), dtype=np.int32)
        of = self.ids.__getitem__
        for column, tokens in enumerate(zip(*self.pairs, strict=True)):
            merges[:, column] = np.fromiter(map(of, tokens), np.int32, len(merges))
        nothing = "" if self.spelled else b""
        merges[:, 2] = np.fromiter(map(of, map(nothing.join, self.pairs)), np.int32, len(merges))
        return merges

    @cached_property
    def _merges_of_ranks(self) -> np.ndarray | None:
        """The merges that give the ids of joining by rank, with ids as ranks; None where there are none."""
        from tokenizer.encoding.merge_tables import merges_from_ranks

        if max(map(len, self.ids)) > LONGEST_RANKED_TOKEN:
            return None
        return merges_from_ranks(self.tokens, self.byte_ids)

    @cached_property
    def semantics(self) -> str:
        """WHOLE_FIRST, or BY_MERGES where that gives the same ids for every text: where merging makes every token.

        BY_RANKS is one of these with the merges of `merges`, so fingerprints do not depend on the file's format.
        """
        if self.rule == BY_MERGES or (self.rule == BY_RANKS and self._merges_of_ranks is not None):
            return BY_MERGES
        from tokenizer.encoding.merge_tables import all_tokens_reachable

        return BY_MERGES if all_tokens_reachable(self.tokens, self.merges, self.byte_ids) else WHOLE_FIRST

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over all that decides ids; see DESIGN: the same whatever file format it was read from."""
        import hashlib

        import numpy as np

        digest = hashlib.sha256()

        def add(name: str, *parts: bytes) -> None:
            digest.update(f"{name} {len(parts)}\n".encode())
            for part in parts:
                digest.update(len(part).to_bytes(8, "little"))
                digest.update(part)

        # Gaps at the end do not count; a special token's bytes are its spelling's, told apart below.
        held = [i for i, token in enumerate(self.tokens) if token is not None]
        add("ids", np.array(held, dtype="<i8").tobytes())
        add("tokens", *(self.tokens[i] for i in held))
        add("merges", np.ascontiguousarray(self.merges, dtype="<i4").tobytes())
        add("pattern", self.pattern.identity.encode())
        by_id = sorted(self.special_tokens.items(), key=lambda item: item[1])
        add("special tokens", *(f"{i} {spelling}".encode() for spelling, i in by_id))
        add("semantics", self.semantics.encode())
        if self.normalizer is not None:
            add("normalizer", self.normalizer.encode())
        deciding = ("lstrip", "rstrip", "single_word", *(["normalized"] if self.normalizer else []))
        flags = {i: [flag for flag in deciding if self.added_flags.get(token, {}).get(flag)] for token, i in by_id}
        if any(flags.values()):
            add("flags", *(f"{i} {' '.join(each)}".encode() for i, each in flags.items() if each))
        return digest.hexdigest()


def trained_vocabulary(
    merges: np.ndarray, byte_order: bytes, special_tokens: tuple[str, ...], pattern: Pattern
) -> Vocabulary:
    """Special tokens first, then the bytes in `byte_order`, then the merges (int32 (n, 2), of symbols)."""
    first = len(special_tokens)
    tokens = [bytes([byte]) for byte in byte_order]
    pairs = [(left, right) for left, right in merges.tolist()]
    for number, (left, right) in enumerate(pairs):
        pairs[number] = (tokens[left], tokens[right])
        tokens.append(tokens[left] + tokens[right])
    ids = dict(zip(tokens, range(first, first + len(tokens)), strict=True))
    assert len(ids) == len(tokens), "two merges make the same token"
    return Vocabulary(
        ids=ids,
        pairs=pairs,
        first_merged=first + 256,
        special_tokens={spelling: i for i, spelling in enumerate(special_tokens)},
        pattern=pattern,
    )
