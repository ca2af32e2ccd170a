"""Training on long runs of one letter is exact."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizer.trainers import merges_of_tokenizers, vocabulary, vocabulary_of
from tokenizer import DEFAULT_SPECIAL_TOKENS, Tokenizer, resolve_pattern

pytestmark = pytest.mark.filterwarnings("ignore:the corpus ran out of pairs")

LONG = st.tuples(st.sampled_from("abc"), st.integers(4000, 5000)).map(lambda run: run[0] * run[1])
SHORT = st.tuples(st.sampled_from("abc"), st.integers(1, 12)).map(lambda run: run[0] * run[1])
WITH_RUNS = st.lists(LONG | SHORT | st.sampled_from(["ab" * 9, "abcab", "caab", " "]), max_size=8).map("".join)


@settings(max_examples=25, deadline=None)
@given(
    documents=st.lists(WITH_RUNS, min_size=1, max_size=4),
    repeated=st.integers(1, 3),
    byte_order=st.sampled_from(["gpt2", "raw"]),
    min_frequency=st.integers(0, 3),
    max_token_length=st.none() | st.integers(1, 40),
)
def test_merges_of_runs_follow_the_rule(reference, documents, repeated, byte_order, min_frequency, max_token_length):
    documents = [*documents, *documents[:1] * repeated]
    options = {"byte_order": byte_order, "min_frequency": min_frequency, "max_token_length": max_token_length}
    tok = Tokenizer.train(documents, 256 + 25, "gpt2", special_tokens=(), **options)
    assert tok.merges == reference(documents, resolve_pattern("gpt2").regex, 25, **options)


def test_merges_of_runs_beside_words_equal_those_of_tokenizers(stdlib_texts):
    runs = [
        "e" * 70001,
        " " * 50000 + "in",
        "=" * 4096,
        "-" * 4097 + "=" * 9000 + "-" * 5,
        "x" + "er" * 40 + "r" * 6001,
    ]
    texts = [*stdlib_texts[:20], *runs, *runs[1:3]]
    tok = Tokenizer.train(texts, 2000, "gpt2", min_frequency=1)
    regex = resolve_pattern("gpt2").regex
    assert vocabulary(tok) == vocabulary_of(
        merges_of_tokenizers(texts, 2000, regex, DEFAULT_SPECIAL_TOKENS, min_frequency=1)
    )
