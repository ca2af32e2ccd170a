"""The trie of the kernels holds exactly the strings that it is built from."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer.encoding.piece_tables import trie_of
from tokenizer.kernels.trie import ROOT

MANY = [bytes([a, b]) for a in range(256) for b in range(256)]


def find(units, text):
    """Return the id of a string, or None if the trie does not have it."""
    base, number = ROOT, 0
    for byte in text:
        unit = int(units[base + byte])
        if unit & 0x1FF != 0x100 | byte:
            return None
        base, number = unit >> 36, unit >> 9 & (1 << 27) - 1
    return number - 1 if number else None


def assert_holds(strings):
    units = trie_of(strings.items())
    assert {text: find(units, text) for text in strings} == strings
    rng = random.Random(0)
    others = {text[:k] for text in strings for k in range(1, len(text))}
    others |= {text + bytes([rng.randrange(256)]) for text in strings} | {bytes([byte]) for byte in range(256)}
    assert [text for text in others - set(strings) if find(units, text) is not None] == []


@given(st.dictionaries(st.binary(min_size=1, max_size=12), st.integers(0, (1 << 27) - 3), max_size=60))
@settings(max_examples=50)
def test_a_trie_has_the_id_of_each_string_and_no_other_string(strings):
    assert_holds(strings)


@pytest.mark.parametrize(
    "strings",
    [[b"\0"], [b"\xff" * 4000], MANY, MANY[::129], [bytes([byte]) * 40 for byte in range(256)]],
    ids=["NUL", "long", "full nodes", "scattered", "chains"],
)
def test_tries_of_any_shape_are_built(strings):
    assert_holds(dict(zip(strings, np.random.default_rng(0).permutation(len(strings)).tolist(), strict=True)))
