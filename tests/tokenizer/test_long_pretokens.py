"""Very long pretokens are merged window by window, with the ids of merging the whole pretoken.

Vocabularies that were trained on such pretokens load again.
"""

import random
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer import Tokenizer, resolve_pattern
from tokenizer.bpe_vocabulary import BytePairVocabulary
from tokenizer.byte_level import BY_MERGES
from tokenizer.encoding import long_pretokens
from tokenizer.encoding.kernel_encoder import EncodingTables


@st.composite
def monotone_vocabularies(draw):
    """Draw merges of two letters in which parts come before their join, and tokens may be longer than a window."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    pieces, pairs = [b"a", b"b"], []
    for _ in range(draw(st.integers(0, 30))):
        pair = rng.choice(pieces[-6:]), rng.choice(pieces)
        if pair not in pairs and b"".join(pair) not in pieces:
            pairs.append(pair)
            pieces.append(b"".join(pair))
    ids = {bytes([byte]): byte for byte in range(256)} | {b"".join(pair): 256 + i for i, pair in enumerate(pairs)}
    return BytePairVocabulary(ids=ids, pairs=pairs, special_tokens={}, pattern=resolve_pattern("gpt2"), rule=BY_MERGES)


def encoded(data, tables, start=0):
    out = np.empty(len(data) + 4, dtype=np.uint32)
    array = np.frombuffer(data, dtype=np.uint8)
    end = long_pretokens.encode_long(array, start, len(data), tables, out, 0, lambda: None)
    return out[:end].tolist()


def merged_whole(data, tables):
    out = np.empty(len(data) + 4, dtype=np.uint32)
    array = np.frombuffer(data, dtype=np.uint8)
    return out[: long_pretokens.merge_by_heap(array, 0, len(data), tables, out, 0, lambda: None)].tolist()


@pytest.fixture
def small_windows(monkeypatch):
    monkeypatch.setattr(long_pretokens, "WINDOW", 8)
    monkeypatch.setattr(long_pretokens, "MARGIN", 2)


@pytest.mark.usefixtures("small_windows")
def test_windows_give_the_ids_of_the_whole_pretoken():
    widths = set()

    @settings(max_examples=400, deadline=None)
    @given(monotone_vocabularies(), st.integers(1, 500), st.integers(0, 2**32))
    def check(vocabulary, size, seed):
        tables = EncodingTables(vocabulary)
        assert tables.made_by is not None  # otherwise windows are not used
        rng = random.Random(seed)
        letters = rng.choice(["a", "ab", "aaaaaaab"])
        data = "".join(rng.choices(letters, k=size)).encode()
        expected = merged_whole(data, tables)
        assert encoded(data, tables) == expected
        assert encoded(b"before" + data, tables, start=6) == expected
        widths.update(vocabulary.byte_lengths[expected].tolist())

    check()
    assert max(widths) > 8  # some tokens are longer than a window, which must grow


@pytest.mark.usefixtures("small_windows")
def test_a_window_that_cannot_end_anywhere_grows():
    """Each token is the previous one and one more letter, so a text is one token up to its last byte."""
    ids = {bytes([byte]): byte for byte in range(256)}
    pieces = [b"ab" + b"c" * n for n in range(120)]
    pairs = [(b"a", b"b")] + [(left, b"c") for left, _ in pairwise(pieces)]
    ids |= {b"".join(pair): 256 + i for i, pair in enumerate(pairs)}
    tables = EncodingTables(
        BytePairVocabulary(ids=ids, pairs=pairs, special_tokens={}, pattern=resolve_pattern("gpt2"), rule=BY_MERGES)
    )
    for size in (15, 16, 17, 40, 100, 119, 150):
        data = (b"ab" + b"c" * size) * 3 + b"c"
        assert encoded(data, tables) == merged_whole(data, tables)


def test_windows_of_the_real_size_meet_at_every_phase(trained, as_tiktoken, tiktoken_patterns):
    """Over several windows, run lengths have every remainder modulo the length of a token."""
    tok = trained["cl100k"]
    peer = as_tiktoken(tok, tiktoken_patterns["cl100k"])
    for unit in ("a", " ", "\n ", "ab", "=-"):
        for extra in range(9):
            text = (unit * long_pretokens.WINDOW)[: 2 * long_pretokens.WINDOW // len(unit) + extra]
            assert tok.encode_to_numpy(text, 1).tolist() == peer.encode_ordinary(text)


def test_tokens_longer_than_a_window_are_found():
    """Each token is the previous one twice, so the ids of a run are the binary digits of its length."""
    tok = Tokenizer.train([b"a" * 300_000], 273, special_tokens=())
    assert tok.token_byte_lengths.max() == 2 * long_pretokens.WINDOW
    for size in (5_000, long_pretokens.WINDOW, long_pretokens.WINDOW + 1, 100_000, 250_001):
        widths = tok.token_byte_lengths[tok.encode(b"a" * size)].tolist()
        longest = [2 * long_pretokens.WINDOW] * (size // (2 * long_pretokens.WINDOW))
        digits = [1 << bit for bit in range(16, -1, -1) if size >> bit & 1]
        assert widths == longest + digits


def test_a_few_long_runs_give_the_ids_of_the_whole_pretoken():
    widths = set()

    @settings(max_examples=200, deadline=None)
    @given(monotone_vocabularies(), st.lists(st.integers(4000, 9000), min_size=1, max_size=3), st.booleans())
    def check(vocabulary, repeats, first):
        tables = EncodingTables(vocabulary)
        data = b"".join((b"ab"[(first + i) % 2 :][:1]) * repeat for i, repeat in enumerate(repeats))
        expected = merged_whole(data, tables)
        assert encoded(data, tables) == expected
        widths.update(vocabulary.byte_lengths[expected].tolist())

    check()
    assert max(widths) > 4


RUNS = ["a" * 20_000 + " bc"] * 2


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "words"},
        {"kind": "wordpiece"},
        {"kind": "wordpiece", "merge_by": "likelihood", "min_frequency": 2},
        {"kind": "character-bpe"},
    ],
)
@pytest.mark.filterwarnings("ignore:the corpus ran out")
def test_a_vocabulary_that_was_trained_on_a_long_run_loads_again(options, tmp_path):
    tok = Tokenizer.train(RUNS, 6000, special_tokens=(), **options)
    tok.save(tmp_path)
    assert Tokenizer.load(tmp_path).fingerprint == tok.fingerprint


@pytest.mark.filterwarnings("ignore:the corpus ran out")
def test_a_vocabulary_that_grew_on_a_long_run_loads_again(tmp_path):
    grown = Tokenizer.train(["a bc"] * 2, 263, kind="character-bpe", special_tokens=()).grow(RUNS, 6000)
    grown.save(tmp_path)
    assert Tokenizer.load(tmp_path).fingerprint == grown.fingerprint


def test_a_word_has_up_to_4096_characters_of_any_width():
    longest, longer = "é" * 4096, "b" * 4097
    tok = Tokenizer.train([longest, longer], 10, kind="words", special_tokens=(), min_frequency=1)
    assert [*tok.vocabulary.ids] == ["[UNK]", longest]


def test_a_word_of_2_gib_is_refused_by_unigram():
    tok = Tokenizer.train(["a word and another word"] * 3, 24, kind="unigram", special_tokens=())
    tables, none = tok.vocabulary.kernel_tables(), np.empty(0, dtype=np.uint8)
    with pytest.raises(ValueError, match="a single pretoken of 2147483648 bytes is longer than the 2 GiB supported"):
        tables.encode_long(none, 5, 5 + 2**31, none, 0, lambda: None)  # before it reads the text


def test_a_run_is_encoded_in_memory_for_its_ids():
    """Each token is the previous one twice. A run has few ids, and encoding needs no memory for each byte."""
    script = """
import resource, sys
from tokenizer import Tokenizer
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
tok = Tokenizer.train([b"a" * 300_000], 273, special_tokens=())
text = b"a" * 32_000_000
tok.encode(text[:20_000])
before = peak()
tok.encode(text)
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert int(done.stdout) < 32_000_000
