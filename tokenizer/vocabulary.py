"""The interface of vocabularies, for encoding, decoding and files, as plain Python objects.

That is enough for short texts. Methods that need kernels import them, and values that compare vocabularies are computed
on first use. `kinds/` says how vocabularies are trained, read and written.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Required, TypedDict

    import numpy as np
    import numpy.typing as npt

    from tokenizer.encoding.ids_to_text import ByteDecoding
    from tokenizer.encoding.kernel_encoder import KernelTables
    from tokenizer.encoding.python_encoder import DropoutEncoder
    from tokenizer.encoding.segmentations import Segmentations
    from tokenizer.splitting.normalizers import Normalization
    from tokenizer.splitting.splitter import Splitter

    Encode = Callable[[bytes], list[int]]
    EncodeWithSpans = Callable[[bytes], tuple[list[int], list[tuple[int, int]]]]

    class Common(TypedDict, total=False):
        """Arguments of every vocabulary, as in `Vocabulary`."""

        special_tokens: Required[dict[str, int]]
        pattern: Required[Any]  # a splitter; each kind has its own
        added_flags: Mapping[str, dict[str, bool]] | None
        post_processor: dict[str, Any] | None
        length_settings: Mapping[str, Any] | None
        normalizer: Normalization | None


Part = tuple[str, Sequence[bytes | str]]
"""The name and the content of a part of a fingerprint."""
LONGEST_TOKEN = 4096
"""Most characters (integers, for vocabularies of integers) in a token of any kind but byte-level BPE.

Training leaves longer tokens out, and loading refuses them."""


class Vocabulary:
    """An immutable vocabulary: tokens with their ids, special tokens, and the splitter of texts into pretokens.

    ids: token -> id; the type of tokens depends on the kind. special_tokens: spelling -> id.
    added_flags: the flags in which an added token differs from a plain special token, by spelling.
    post_processor: the field of tokenizer.json, which changes no ids, for saving.
    length_settings: the fields truncation and padding of tokenizer.json, which change no ids either.
    normalizer: the normalization before `pattern` splits a text, if it is not a part of `pattern`.
    """

    kind: str
    units = "tokens"
    """The name of tokens in messages."""
    is_lossless = False
    missing_bytes = b""
    """Bytes without a token. The k-th is encoded as the id `size` + k, which callers never see."""
    prefix = ""
    """Start of tokens that continue a word."""
    merges_characters = False
    """Whether training merges characters, not bytes."""
    starts_words = False
    """Whether tokens without `prefix` begin a word, before which decoding writes a space."""
    ids: Mapping[Any, int]
    unreachable: Mapping[str, int] = {}
    """Ids of tokens that no text becomes, by spelling. They are not among `ids`."""

    def __init__(
        self,
        *,
        largest: int,
        special_tokens: dict[str, int],
        pattern: Splitter,
        added_flags: Mapping[str, dict[str, bool]] | None = None,
        post_processor: dict[str, Any] | None = None,
        length_settings: Mapping[str, Any] | None = None,
        normalizer: Normalization | None = None,
    ):
        """largest: the largest id of a token that is not special."""
        self.special_tokens = special_tokens
        self.pattern = pattern
        self.added_flags = added_flags or {}
        self.post_processor = post_processor
        self.length_settings = length_settings or {}
        self.normalizer = normalizer
        self.size = max([largest, *special_tokens.values()]) + 1

    @abstractmethod
    def pretoken_encoder(self) -> Encode:
        """Return a function that maps a pretoken to its ids, in plain Python."""

    @abstractmethod
    def kernel_tables(self) -> KernelTables:
        """Return the tables that the encoding kernel reads."""

    @abstractmethod
    def decoding(self) -> ByteDecoding:
        """Return the decoder of ids."""

    def span_encoder(self, encode: Encode) -> EncodeWithSpans:
        """Return a function from a text to its ids and the bytes that each stands for. encode: from a text to ids."""
        raise ValueError(f"offsets of {self.units} are not supported: use encode")

    def dropout_encoder(self, tables: Callable[[], KernelTables]) -> DropoutEncoder:
        """Return the encoder that drops merges at random. tables: returns the tables of the kernels."""
        raise ValueError(f"dropout is for BPE: {self.kind} has no merges to drop")

    def segmentations(self, tables: Callable[[], KernelTables]) -> Segmentations:
        """Return the segmentations of texts by their scores. tables: returns the tables of the kernels."""
        raise ValueError(f"only Unigram pieces have scores: segmentations by {self.kind} cannot be ranked or drawn")

    @property
    def unknown_id(self) -> int | None:
        """The id of text that no tokens spell; None if tokens spell every text."""
        return None

    @property
    def inside(self) -> Vocabulary:
        """The vocabulary for text that follows a special token; itself unless the start of a text is special."""
        if self.pattern.inside is self.pattern:
            return self
        later = copy(self)
        later.pattern = self.pattern.inside
        return later

    @property
    def merge_pairs(self) -> Sequence[tuple[bytes, bytes]]:
        """The merges of encoding in order, as pairs of tokens."""
        return ()

    @property
    def learned_pairs(self) -> Sequence[tuple[bytes, bytes]]:
        """The merges of training in order, as pairs of tokens."""
        return self.merge_pairs

    def in_pretokens(self, token: str) -> str:
        """Return a token as pretokens spell it."""
        return token

    @cached_property
    def tokens(self) -> list[bytes | None]:
        """The spelling of each token by id; None for special tokens and gaps."""
        special = set(self.special_tokens.values())
        tokens: list[bytes | None] = [None] * self.size
        for token, i in self.ids.items():
            if i not in special:
                tokens[i] = token.encode()
        return tokens

    def find(self, token: bytes) -> int | None:
        """Return the id of the ordinary token with these bytes, or None."""
        return self.ids.get(token.decode(errors="surrogateescape"))

    def spelled_id(self, spelling: str) -> int | None:
        """Return the id of the ordinary token that tokenizer.json spells so, or None."""
        return self.ids.get(spelling)

    def spelling(self, token: bytes) -> str:
        """Return a token as tokenizer.json spells it."""
        return token.decode()

    @property
    def byte_lengths(self) -> npt.NDArray[np.int32]:
        """The length of each token in bytes, int32 (size,); ValueError if tokens have no fixed number of bytes."""
        raise ValueError(
            f"{self.units} have no fixed number of bytes, because normalization and the unknown token lose text: "
            "count the bytes of the original documents"
        )

    @property
    @abstractmethod
    def fingerprint_parts(self) -> list[Part]:
        """The parts of the fingerprint: everything that decides ids, without pattern and special tokens."""

    @property
    def splits_at_spaces(self) -> bool:
        """Whether a cut before a space that follows an ASCII letter changes no ids."""
        normalizer = self.normalizer
        return self.pattern.splits_at_spaces and (normalizer is None or normalizer.cuts_at_ascii)

    @property
    def normalizer_part(self) -> list[Part]:
        """The part of the fingerprint that names the normalizer, if there is one."""
        return [] if self.normalizer is None else [("normalizer", [self.normalizer.identity])]

    @property
    def deciding_flags(self) -> tuple[str, ...]:
        """The flags of added tokens that decide where they are found."""
        return ("lstrip", "rstrip", "single_word", *(["normalized"] if self.normalizer is not None else []))

    @cached_property
    def fingerprint(self) -> str:
        """The hexadecimal SHA-256 of everything that decides ids. It does not depend on the file format."""
        return digest_of(
            [
                ("kind", [self.kind]),
                *self.fingerprint_parts,
                ("pattern", [self.pattern.identity]),
                special_token_part(self.special_tokens),
                *self.normalizer_part,
                *flag_parts(self.special_tokens, self.added_flags, self.deciding_flags),
            ]
        )


def digest_of(parts: Iterable[Part]) -> str:
    """Return the hexadecimal SHA-256 of named parts. Lengths are hashed too, so different lists of parts differ."""
    import hashlib

    digest = hashlib.sha256()
    for name, contents in parts:
        digest.update(f"{name} {len(contents)}\n".encode())
        for content in contents:
            encoded = content.encode() if isinstance(content, str) else content
            digest.update(len(encoded).to_bytes(8, "little"))
            digest.update(encoded)
    return digest.hexdigest()


def special_token_part(special_tokens: Mapping[str, int]) -> Part:
    """Return the part of special tokens in the order of their ids."""
    by_id = sorted(special_tokens.items(), key=lambda item: item[1])
    return "special tokens", [f"{i} {spelling}" for spelling, i in by_id]


def flag_parts(
    special_tokens: Mapping[str, int], added_flags: Mapping[str, Mapping[str, bool]], deciding: Sequence[str]
) -> Iterator[Part]:
    """Yield the part of the flags in `deciding` that decide where special tokens are found, if any is set."""
    flags = []
    for spelling, i in sorted(special_tokens.items(), key=lambda item: item[1]):
        if given := [flag for flag in deciding if added_flags.get(spelling, {}).get(flag)]:
            flags.append(f"{i} {' '.join(given)}")
    if flags:
        yield "flags", flags
