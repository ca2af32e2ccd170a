"""The kernel for SentencePiece's normalization writes what the rules in plain Python give."""

from functools import cache
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokenizer.document_blocks import block_of
from tokenizer.splitting.double_array import compile_map
from tokenizer.splitting.nfkc import named_map
from tokenizer.splitting.precompiled_map import LONGEST_REPLACEMENT, CharacterMap
from tokenizer.splitting.sentencepiece_blocks import LONGEST_PIECE, has_kernel, normalized_block
from tokenizer.splitting.whole_text import SentencePieceText

REPLACEMENTS = {"a\u0301": "á", "ﬁ": "fi", "\u3000": " ", "\n": " ", "\u00ad": "", "«": " < ", "b": "  ", "½": "1/2"}
PIECES = [" ", "▁", "<x>", "<x y>", " a", "a\u0301", "é"]
PARTS = [*PIECES, *REPLACEMENTS, "a", "\u0301", "<", "x", "\0", "\t", "中", "\U0001d49c", "\u200d"]
BROKEN = [b"\xff", b"\xe2\x96", b"\xf0\x9f\x98", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf"]
TEXTS = st.lists(st.sampled_from([*map(str.encode, PARTS), *BROKEN]) | st.text(max_size=3).map(str.encode), max_size=12)


@cache
def character_map(name):
    """Return a map by its name. The map of NFKC takes seconds to make, so the import of this file makes none."""
    if name == "few":
        return CharacterMap(compile_map({key.encode(): text.encode() for key, text in REPLACEMENTS.items()}))
    return named_map(name) if name else None


def assert_as_in_python(documents, text):
    block, ends = normalized_block(block_of(documents), text)
    found = [bytes(block.data[start:end]) for start, end in pairwise(block.offsets.tolist())]
    assert found == [text.normalize(document) for document in documents]
    assert ends.tolist() == [end for start, end in pairwise(block.offsets.tolist()) if end > start]


@given(
    st.lists(TEXTS.map(b"".join), max_size=5),
    st.sampled_from([None, "few", "nmt_nfkc"]),
    st.lists(st.sampled_from(PIECES), unique=True).map(tuple),
    st.tuples(*[st.booleans()] * 4),
)
@example([b"", b"  ", b"\xc2\xad", "▁ ▁".encode()], "few", (), (True, True, True, False))
@example([b"", b"  ", b"\xc2\xad", "▁ ▁".encode()], "few", (), (True, True, True, True))
def test_the_kernel_writes_what_the_rules_give(documents, replacements, pieces, options):
    assert_as_in_python(documents, SentencePieceText(character_map(replacements), pieces, *options))


@pytest.mark.parametrize("squeezes", [False, True])
def test_replacements_much_longer_than_their_keys_fit(squeezes):
    characters = CharacterMap(compile_map({b"a": b"x " * (LONGEST_REPLACEMENT // 2)}))
    assert_as_in_python([b"a" * 100, b"b", b"a b" * 50], SentencePieceText(characters, (), True, squeezes, True, False))


@pytest.mark.parametrize("piece", ["a\0", "a" * (LONGEST_PIECE + 1)])
def test_pieces_that_the_kernel_does_not_support_use_the_rules(piece):
    text = SentencePieceText(None, (piece,), True, True, True, False)
    assert not has_kernel(text)
    assert has_kernel(text._replace(user_defined=("a" * LONGEST_PIECE,)))
