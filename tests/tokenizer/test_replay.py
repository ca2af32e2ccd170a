"""The replay of the first merges agrees with a plain recount of all words before every merge."""

import random
from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizer.test_bert_words import hard_strings
from tokenizer import PretokenCounts, Tokenizer, count_pretokens
from tokenizer.splitting.bert_splitter import NAMED_WORDS
from tokenizer.splitting.patterns import resolve_pattern
from tokenizer.training.replay import LONGEST_SAMPLE, replay

pytestmark = pytest.mark.filterwarnings("ignore:the corpus ran out")
ALL = 1000  # more merges than these corpora have


def counts_of(words, pattern):
    """Return {bytes: occurrences} as pretoken counts."""
    offsets = np.cumsum([0, *map(len, words)])
    data = np.frombuffer(b"".join(words), dtype=np.uint8)
    return PretokenCounts(pattern, data, offsets, np.array([*words.values()], dtype=np.int64))


def joined(parts, pair, token):
    """Return the parts with the pair replaced from left to right."""
    out = []
    for part in parts:
        if out and (out[-1], part) == pair:
            out[-1:] = [None, token]  # a merged token joins no further in this pass
        else:
            out.append(part)
    return [part for part in out if part is not None]


def check(tok, counts, split, prefix=b""):
    """Recount the words by the book before each merge of the replay. `split` cuts a word into its first tokens."""
    parts = {word: split(word) for word, _ in counts.items()}
    occurrences = dict(counts.items())
    steps = replay(counts, tok.vocabulary, ALL)
    for step in steps:
        pair = step.left, step.right
        assert step.token == step.left + step.right.removeprefix(prefix)
        symbols, pairs, changed = Counter(), Counter(), []
        for word, present in parts.items():
            for part in present:
                symbols[part] += occurrences[word]
            for each in pairwise(present):
                pairs[each] += occurrences[word]
            if pair in pairwise(present):
                changed.append((-occurrences[word], len(word), word))
        assert (step.count, step.left_count, step.right_count) == (pairs[pair], symbols[pair[0]], symbols[pair[1]])
        assert step.likelihood == pytest.approx(float(Fraction(pairs[pair], symbols[pair[0]] * symbols[pair[1]])))
        most, _, word = min(changed)
        assert (step.word, step.word_count) == (word, -most)
        before = parts[word]
        parts = {word: joined(present, pair, step.token) for word, present in parts.items()}
        if len(before) <= LONGEST_SAMPLE:
            assert (step.before, step.after) == (before, parts[word])
    return steps


def single_bytes(word):
    return [bytes([byte]) for byte in word]


def characters(word):
    text = word.decode()
    return [text[:1].encode(), *(b"##" + c.encode() for c in text[1:])]


BYTES = st.binary(min_size=1, max_size=9) | st.text("ab", min_size=1, max_size=9).map(str.encode)
WORDS = st.dictionaries(BYTES, st.integers(1, 6), min_size=1, max_size=12)
LETTERS = st.dictionaries(st.text("abé", min_size=1, max_size=9).map(str.encode), st.integers(1, 6), min_size=1)


@settings(max_examples=50, deadline=None)
@given(WORDS)
def test_merges_of_bytes_have_the_counts_of_a_recount(words):
    counts = counts_of(words, resolve_pattern("gpt2"))
    tok = Tokenizer.train_from_counts(counts, 600, min_frequency=1)
    steps = check(tok, counts, single_bytes)
    assert [(step.left, step.right) for step in steps] == tok.merges
    assert [step.count for step in steps] == sorted((step.count for step in steps), reverse=True)


@pytest.mark.parametrize("score", ["frequency", "likelihood"])
@settings(max_examples=40, deadline=None)
@given(words=LETTERS)
def test_merges_of_wordpiece_have_the_counts_of_a_recount(score, words):
    counts = counts_of(words, NAMED_WORDS["bert-cased"])
    tok = Tokenizer.train_from_counts(counts, 600, kind="wordpiece", merge_by=score, min_frequency=1)
    steps = check(tok, counts, characters, b"##")
    made = dict.fromkeys(step.token.decode() for step in steps)
    assert [token for token in tok.vocabulary.ids if len(token.removeprefix("##")) > 1 and token in made] == [*made]
    assert all(len(tok.encode_ordinary(word.decode())) == 1 for word in words)


def test_counts_beyond_32_bits_and_more_words_than_a_batch_are_exact():
    rng = random.Random(5)
    words = {"".join(rng.choices("abcdefgh", k=rng.randrange(1, 9))).encode(): 2**40 + i for i in range(9_000)}
    counts = counts_of(words, resolve_pattern("gpt2"))
    tok = Tokenizer.train_from_counts(counts, 256 + 12, special_tokens=())
    assert len(check(tok, counts, single_bytes)) == 12


def test_hard_strings_have_the_counts_of_a_recount():
    texts = list(hard_strings(60, 3, NAMED_WORDS["bert-cased"]))
    counts = count_pretokens(texts, "bert-cased", threads=1)
    tok = Tokenizer.train_from_counts(counts, 3000, kind="wordpiece")
    assert check(tok, counts, characters, b"##")


def test_characters_outside_the_alphabet_leave_their_neighbours_adjacent_and_within_the_word():
    words = {"éaéb".encode(): 3, b"b": 9, b"a": 9}
    counts = counts_of(words, NAMED_WORDS["bert-cased"])
    tok = Tokenizer.train_from_counts(counts, 60, kind="wordpiece", limit_alphabet=2)
    (step,) = replay(counts, tok.vocabulary, ALL)
    assert (step.count, step.before, step.after) == (3, [b"##a", b"##b"], [b"##ab"])


def test_a_long_word_is_cut_around_the_merge():
    counts = counts_of({b"x" * 3 + b"abc" * 40: 2}, resolve_pattern("gpt2"))
    (step,) = replay(counts, Tokenizer.train_from_counts(counts, 262, min_frequency=50).vocabulary, 1)
    assert step.count == 80
    assert (step.before, step.after) == (single_bytes(b"abc" * 11)[:32], [b"ab", b"c"] * 10 + [b"ab"])


def test_a_wordpiece_file_has_no_merges_to_replay(tmp_path):
    counts = count_pretokens(["low lower lowest"] * 3, "bert-uncased", threads=1)
    tok = Tokenizer.train_from_counts(counts, 40, kind="wordpiece")
    assert replay(counts, tok.vocabulary, 2)
    tok.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert loaded == tok
    assert replay(counts, loaded.vocabulary, 2) == []
