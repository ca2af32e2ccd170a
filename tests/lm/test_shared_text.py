"""The longest matches of a text with other texts equal those of a plain search."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm.text_statistics.match_lengths import is_covered, longest_matches

few_letters = st.binary(max_size=20).map(lambda text: bytes(byte % 3 for byte in text))
documents = st.lists(few_letters, max_size=6)


def joined(parts):
    return np.frombuffer(b"".join(parts), np.uint8), np.cumsum([0, *map(len, parts)])


def matches_of(parts, *others):
    return longest_matches(*joined(parts), map(joined, others)).tolist()


def searched(parts, others):
    """Return the longest match of each position, found by a search in every document."""
    found = []
    for document in parts:
        for start in range(len(document)):
            length = 0
            while start + length < len(document) and any(document[start : start + length + 1] in o for o in others):
                length += 1
            found.append(length)
    return found


@given(parts=documents, others=st.lists(documents, max_size=3))
def test_matches_equal_those_of_a_plain_search(parts, others):
    assert matches_of(parts, *others) == searched(parts, [document for other in others for document in other])


@given(parts=documents, other=documents)
def test_matches_equal_those_of_a_plain_search_if_the_text_has_every_byte(parts, other):
    every = bytes(range(256))
    assert matches_of([*parts, every], other) == searched([*parts, every], other)
    assert matches_of(parts, [*other, every]) == searched(parts, [*other, every])


def test_matches_do_not_cross_documents():
    assert matches_of([b"abcd"], [b"ab", b"cd"]) == [2, 1, 2, 1]
    assert matches_of([b"ab", b"cd"], [b"abcd"]) == [2, 1, 2, 1]
    assert matches_of([b"a\0b"], [b"a", b"b"]) == [1, 0, 1]


def test_a_copy_matches_to_the_end_of_its_document():
    text = bytes(np.random.default_rng(0).integers(0, 256, 5000, np.uint8))
    assert matches_of([text[:3000], text[3000:]], [text]) == [*range(3000, 0, -1), *range(2000, 0, -1)]
    assert matches_of([b"a" * 1000], [b"a" * 400]) == [min(400, 1000 - i) for i in range(1000)]


def test_an_empty_text_or_no_other_text_gives_no_matches():
    assert matches_of([], [b"abc"]) == matches_of([b""], [b"abc"]) == []
    assert matches_of([b"abc"]) == matches_of([b"abc"], []) == matches_of([b"abc"], [b""]) == [0, 0, 0]
    assert matches_of([b"a"], [b"a"]) == [1]


@pytest.mark.parametrize("length", [1, 2, 3, 5])
@given(parts=documents, others=documents)
def test_bytes_are_covered_if_a_match_of_the_length_contains_them(length, parts, others):
    expected = []
    for document in parts:
        inside = [False] * len(document)
        for start in range(len(document) - length + 1):
            if any(document[start : start + length] in other for other in others):
                inside[start : start + length] = [True] * length
        expected += inside
    assert is_covered(np.array(matches_of(parts, others), np.int32), length).tolist() == expected
