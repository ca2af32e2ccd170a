"""With tie_break="bytes", the greatest pair of bytes is merged among pairs of equal count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenizer.conftest import reference_merges
from tokenizer import Tokenizer, resolve_pattern
from tokenizer.training.counting import count_pretokens

pytestmark = pytest.mark.filterwarnings("ignore:the corpus ran out of pairs")


def trained(documents, number, pattern="gpt2", **options):
    options = {"special_tokens": (), "min_frequency": 1, "tie_break": "bytes"} | options
    return Tokenizer.train(documents, 256 + number, pattern, **options)


def test_the_greatest_left_bytes_then_right_bytes_win():
    assert trained(["ab", "ba", "ca", "cb"], 1).merges == [(b"c", b"b")]
    assert trained(["low low low"], 3).merges == [(b"o", b"w"), (b"l", b"ow"), (b" ", b"low")]


def test_a_token_is_less_than_its_continuations():
    """(ab, c) and (a, d) are equally frequent, and ab is greater than a."""
    documents = ["ab"] * 9 + ["abc"] * 3 + ["ad"] * 3
    assert trained(documents, 2).merges == [(b"a", b"b"), (b"ab", b"c")]


@given(
    documents=st.lists(st.text("ab\x00é", max_size=60) | st.binary(max_size=20), max_size=8),
    byte_order=st.sampled_from(["gpt2", "raw"]),
    min_frequency=st.integers(0, 3),
    max_token_length=st.none() | st.integers(1, 5),
)
def test_merges_follow_the_rule_on_small_alphabets(documents, byte_order, min_frequency, max_token_length):
    options = {"min_frequency": min_frequency, "max_token_length": max_token_length}
    counts = dict(count_pretokens(documents, resolve_pattern("gpt2")).items())
    expected = reference_merges(counts, 60, tie_break="bytes", **options)
    assert trained(documents, 60, byte_order=byte_order, **options).merges == expected


@pytest.mark.parametrize("name", ["gpt2", "cl100k"])
def test_merges_follow_the_rule_on_real_text(reference, stdlib_texts, name):
    texts = stdlib_texts[:12]
    expected = reference(texts, resolve_pattern(name).regex, 400, tie_break="bytes")
    assert trained(texts, 400, name).merges == expected
    assert trained(texts, 400, name, tie_break="ids").merges != expected


@pytest.mark.parametrize("text", ["z" * 5000, "abcdefghij" * 300, "".join(chr(97 + i * i % 23) for i in range(400))])
def test_tokens_that_grow_by_one_part_at_a_time_follow_the_rule(text):
    """Neighbouring labels run out, so that all tokens are labelled again."""
    assert trained([text], 250).merges == reference_merges({text.encode(): 1}, 250, tie_break="bytes")


def test_tie_break_does_not_depend_on_document_order_or_threads(stdlib_texts):
    expected = trained(stdlib_texts, 2000, threads=1).merges
    assert trained(stdlib_texts[::-1], 2000, threads=2).merges == expected


def test_saved_tokenizer_keeps_the_merges(stdlib_texts, tmp_path):
    tok = trained(stdlib_texts[:12], 300)
    tok.save(tmp_path)
    assert Tokenizer.load(tmp_path) == tok
