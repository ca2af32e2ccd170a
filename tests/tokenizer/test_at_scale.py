"""On whole corpora and a million strings, merges and ids equal those of the peers."""

import json
import lzma
import random

import numpy as np
import pytest

from tests.tokenizer.trainers import merges_of_tokenizers, ranks_of_rustbpe, vocabulary, vocabulary_of
from tokenizer import PATTERN_NAMES, Tokenizer, resolve_pattern

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["books", "multilingual", "standard library"])
def corpus(request, stdlib_texts):
    """Return the documents of a corpus of 6 to 24 MB."""
    if request.param == "standard library":
        return stdlib_texts
    path = request.getfixturevalue("shared") / "corpora" / f"{request.param}.jsonl.xz"
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


@pytest.mark.parametrize("name", ["gpt2", "cl100k"])
def test_32000_entries_have_the_merges_of_tokenizers_and_rustbpe(name, corpus):
    pattern = resolve_pattern(name).regex
    options = {"vocab_size": 32_000, "pattern": name, "special_tokens": (), "min_frequency": 1}
    ours = Tokenizer.train(corpus, **options, threads=2)
    assert vocabulary(ours) == vocabulary_of(merges_of_tokenizers(corpus, 32_000, pattern))
    assert vocabulary(Tokenizer.train(corpus, **options, byte_order="raw")) == ranks_of_rustbpe(corpus, 32_000, pattern)
    shuffled = random.Random(1).sample(corpus, len(corpus))
    assert Tokenizer.train(iter(shuffled), **options, threads=1).fingerprint == ours.fingerprint


@pytest.fixture(scope="module")
def tokenizers_and_peers(shared, stdlib_texts, as_tiktoken, published_patterns):
    """Return published and own tokenizers for every pattern, each with the same vocabulary in tiktoken."""
    vectors = shared / "vectors"
    found = [
        Tokenizer.load(vectors / "gpt2"),
        Tokenizer.load(vectors / "cl100k" / "cl100k_base.tiktoken", pattern="cl100k"),
        *(Tokenizer.train(stdlib_texts, 8_000, pattern=name) for name in PATTERN_NAMES),
    ]
    return [(tok, as_tiktoken(tok, published_patterns[tok.pattern])) for tok in found]


@pytest.mark.parametrize("part", range(10))
def test_a_million_random_strings_have_the_ids_of_tiktoken(part, tokenizers_and_peers, random_strings):
    strings = random_strings(100_000, 200 + part)
    for tok, peer in tokenizers_and_peers:
        assert tok.encode_batch(strings, disallowed_special=()) == peer.encode_ordinary_batch(strings), repr(tok)


def test_whole_files_have_the_ids_of_tiktoken(corpus, tokenizers_and_peers, tmp_path):
    text = "\n\n".join(corpus)
    path = tmp_path / "text.txt"
    path.write_bytes(text.encode())
    for tok, peer in tokenizers_and_peers:
        expected = np.array(peer.encode_ordinary(text), dtype=np.uint32)
        for threads in (1, 2):
            assert np.array_equal(tok.encode_file(path, threads), expected), repr(tok)
        assert tok.decode_bytes(expected) == path.read_bytes()
