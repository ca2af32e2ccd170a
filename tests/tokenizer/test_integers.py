"""BPE over integers: the merges and ids of a plain reference, of tokenizers and of rustbpe."""

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, trainers

from tests.tokenizer.trainers import ranks_of_rustbpe
from tokenizer import Tokenizer
from tokenizer.splitting.integers import FIRST, MOST, as_text, from_text

SEQUENCES = st.lists(st.lists(st.integers(0, 5), max_size=30), min_size=1, max_size=8)


def learn_plainly(sequences, base, wanted, min_count=2):
    """Return the merges of integers, as pairs of tuples; ties go to the smallest left, then right id."""
    words = Counter(map(tuple, sequences))
    cut = {word: [(i,) for i in word] for word in words}
    ids = {(i,): i for i in range(base)}
    merges = []
    while len(ids) < base + wanted:
        counts = Counter()
        for word, count in words.items():
            for pair in pairwise(cut[word]):
                counts[pair] += count
        best = min(counts, key=lambda pair: (-counts[pair], ids[pair[0]], ids[pair[1]]), default=None)
        if best is None or counts[best] < min_count:
            break
        merges.append(best)
        ids.setdefault(best[0] + best[1], len(ids))
        cut = {word: join(symbols, best) for word, symbols in cut.items()}
    return merges, ids


def join(symbols, pair):
    joined = []
    for symbol in symbols:
        if joined and (joined[-1], symbol) == pair and not getattr(joined[-1], "fresh", False):
            joined[-1] = Fresh(pair[0] + pair[1])
        else:
            joined.append(symbol)
    return [tuple(symbol) for symbol in joined]


class Fresh(tuple):
    """A token that was merged just now, which the same merge does not join."""

    fresh = True


def encode_plainly(sequence, merges, ids):
    symbols = [(i,) for i in sequence]
    for pair in merges:
        symbols = join(symbols, pair)
    return [ids[symbol] for symbol in symbols]


def as_characters(sequence):
    return "".join(chr(FIRST + i) for i in sequence)


def as_tuples(tok):
    return [tuple(tuple(ord(c) - FIRST for c in part.decode()) for part in pair) for pair in tok.merges]


@settings(max_examples=150, deadline=None)
@given(SEQUENCES, st.integers(0, 25))
@pytest.mark.filterwarnings("ignore:the sequences ran out")
def test_merges_and_ids_are_those_of_a_plain_reference(sequences, wanted):
    tok = Tokenizer.train_ids(sequences, 6 + wanted, base=6, special_tokens=())
    merges, ids = learn_plainly(sequences, 6, wanted)
    assert as_tuples(tok) == merges
    for sequence in sequences:
        encoded = tok.encode_ids(sequence)
        assert encoded.tolist() == encode_plainly(sequence, merges, ids)
        assert tok.decode_ids(encoded).tolist() == sequence


@settings(max_examples=60, deadline=None)
@given(SEQUENCES, st.integers(1, 25))
@pytest.mark.filterwarnings("ignore:the sequences ran out")
def test_tokenizers_trains_the_same_merges(sequences, wanted):
    tok = Tokenizer.train_ids(sequences, 6 + wanted, base=6, special_tokens=())
    peer = tokenizers.Tokenizer(models.BPE())
    alphabet = [chr(FIRST + i) for i in range(6)]
    trainer = trainers.BpeTrainer(
        vocab_size=6 + wanted, min_frequency=2, initial_alphabet=alphabet, special_tokens=alphabet, show_progress=False
    )
    peer.train_from_iterator(map(as_characters, sequences), trainer)
    learned = [tuple(pair) for pair in json.loads(peer.to_str())["model"]["merges"]]
    assert [tuple(map(bytes.decode, pair)) for pair in tok.merges] == learned


def test_rustbpe_learns_the_same_tokens():
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 20, 50) for _ in range(40)]
    tok = Tokenizer.train_ids(sequences, 300, base=256, special_tokens=())
    texts = ["".join(chr(97 + i) for i in sequence.tolist()) for sequence in sequences]
    theirs = ranks_of_rustbpe(texts, 300, r"[a-z]+")
    ours = [bytes(97 + i for i in tok.decode_ids([token]).tolist()) for token in range(256, 300)]
    assert ours == theirs[256:]


@pytest.fixture(scope="module")
def notes():
    rng = np.random.default_rng(1)
    return [rng.choice([3, 60, 64, 67, 299], rng.integers(1, 80)) for _ in range(100)]


@pytest.fixture(scope="module")
def tok(notes):
    return Tokenizer.train_ids(notes, 400, special_tokens=("<|endoftext|>",))


def test_integers_are_their_own_ids_and_special_tokens_are_last(tok):
    assert tok.kind == "integers" and tok.is_lossless
    assert [tok.decode_ids([i]).tolist() for i in range(300)] == [[i] for i in range(300)]
    assert tok.special_tokens == {"<|endoftext|>": 399}
    assert tok.token_byte_lengths[399] == 0 and (tok.token_byte_lengths[:300] == 4).all()


def test_the_saved_file_gives_the_same_ids_in_tokenizers_and_here(tok, notes, tmp_path):
    tok.save(tmp_path)
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == tok.fingerprint and again.kind == "integers"
    for sequence in notes:
        ids = tok.encode_ids(sequence).tolist()
        assert ids == again.encode_ids(sequence).tolist() == peer.encode(as_characters(sequence.tolist())).ids
        assert peer.decode(ids) == as_characters(sequence.tolist())


def test_long_sequences_have_the_ids_of_plain_merging(tok):
    sequence = np.random.default_rng(2).choice([3, 60, 64, 67, 299], 20_000)
    ids = tok.encode_ids(sequence)
    assert ids.tolist() == tok.vocabulary.pretoken_encoder()(as_text(sequence).tobytes())
    assert (tok.decode_ids(ids) == sequence).all()


def test_sequences_come_as_lists_rows_offsets_or_bytes():
    rows = np.random.default_rng(3).integers(0, 9, (50, 12))
    fingerprint = Tokenizer.train_ids(rows, 60).fingerprint
    values, offsets = rows.reshape(-1), np.arange(0, 601, 12)
    assert Tokenizer.train_ids(values, 60, offsets=offsets).fingerprint == fingerprint
    assert Tokenizer.train_ids(rows.tolist(), 60, base=9).fingerprint == fingerprint
    assert Tokenizer.train_ids((bytes(row.tolist()) for row in rows), 60).fingerprint == fingerprint


def test_bytes_that_are_no_text_come_back():
    data = bytes(range(256)) * 3 + b"\xff\xfe\x80\x80"
    tok = Tokenizer.train_ids([data] * 2, 300, base=256)
    assert tok.decode_ids(tok.encode_ids(data)).astype(np.uint8).tobytes() == data


def test_trimming_keeps_the_integers(tok, notes):
    few = tok.trim([as_characters(notes[0].tolist())])
    assert few.vocab_size < tok.vocab_size
    tokens = [few.decode_ids([i]).tolist() for i in few.encode_ids(notes[0]).tolist()]
    assert tokens == [tok.decode_ids([i]).tolist() for i in tok.encode_ids(notes[0]).tolist()]
    assert few.decode_ids([299]).tolist() == [299]


@given(st.lists(st.integers(0, MOST - 1)))
def test_every_integer_has_a_character(integers):
    text = as_text(np.array(integers, np.int64))
    assert text.tobytes().decode() == as_characters(integers)
    assert from_text(text).tolist() == integers


def test_tokens_have_at_most_the_given_length():
    tok = Tokenizer.train_ids([[7] * 1000], 20, base=8, max_token_length=16, special_tokens=(), min_frequency=1)
    assert max(map(len, (token.decode() for token in tok.vocabulary.tokens))) == 16


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda tok: tok.encode_ids([1, 300]), "sequence has 300 at 1: integers must be from 0 to 299"),
        (lambda tok: tok.encode_ids([-1]), "sequence has -1 at 0"),
        (lambda tok: tok.encode_ids([0.5]), "sequence must be a sequence of integers"),
        (lambda tok: tok.encode("hello"), "the text is no sequence of integers"),
        (lambda tok: tok.encode(chr(FIRST + 300)), "the sequence has the integer 300, but the vocabulary has those"),
        (lambda tok: tok.decode_ids([399]), "ids has a special token"),
        (lambda tok: tok.decode_ids([400]), "400 is not an id"),
        (lambda tok: Tokenizer.train(["ab"], 300).encode_ids([1]), "this is a tokenizer of texts"),
        (lambda tok: Tokenizer.train_ids([[1, 131072]], 300), "has 131072 at 1"),
        (lambda tok: Tokenizer.train_ids([[1], [9]], 300, base=9), r"sequences\[1\] has 9 at 0"),
        (lambda tok: Tokenizer.train_ids([[1, 50]], 51), "vocab_size must be at least 56"),
        (lambda tok: Tokenizer.train_ids(np.zeros(4, int), 51), "1 dimensions: give 2-D, or `offsets`"),
        (lambda tok: Tokenizer.train_ids(np.zeros(4, int), 51, offsets=[0, 5]), "offsets must be whole numbers"),
        (lambda tok: Tokenizer.train_ids([[1]], 51, kind="bpe"), "kind must be integers"),
        (lambda tok: Tokenizer.train(["ab"], 300, base=9), "`base` is not an option of bpe"),
        (lambda tok: Tokenizer.train(["ab"], 300, kind="integers"), "the text is no sequence of integers"),
    ],
)
def test_wrong_values_are_named(tok, call, message):
    with pytest.raises(ValueError, match=message):
        call(tok)


@settings(max_examples=60, deadline=None)
@given(SEQUENCES, st.integers(0, 8), st.integers(1, 12))
@pytest.mark.filterwarnings("ignore:the sequences ran out", "ignore:the corpus ran out")
def test_growing_on_the_same_sequences_equals_training_to_the_final_size(sequences, first, more):
    whole = Tokenizer.train_ids(sequences, 6 + first + more, base=6, special_tokens=())
    grown = Tokenizer.train_ids(sequences, 6 + first, base=6, special_tokens=())
    if grown.vocab_size < 6 + first:
        return  # nothing is left to merge
    assert grown.grow_ids(sequences, 6 + first + more).fingerprint == whole.fingerprint


def test_growing_on_other_sequences_keeps_ids_and_joins_tokens(tok, notes, tmp_path):
    riffs = [np.tile([299, 3, 3, 64], 20), *([3, 299] * k for k in range(1, 20))]
    grown = tok.grow_ids(riffs, 412)
    assert grown.vocab_size == 412 and grown.merges[: len(tok.merges)] == tok.merges
    assert grown.special_tokens == tok.special_tokens
    assert [grown.decode_ids([i]).tolist() for i in range(399)] == [tok.decode_ids([i]).tolist() for i in range(399)]
    grown.save(tmp_path)
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(tmp_path).fingerprint == grown.fingerprint
    for sequence in [*notes, *riffs]:
        before, after = tok.encode_ids(sequence), grown.encode_ids(sequence)
        ends = [np.cumsum([len(each.decode_ids([i])) for i in ids]) for each, ids in ((tok, before), (grown, after))]
        assert {*ends[1]} <= {*ends[0]} and len(after) <= len(before)
        assert peer.encode(as_characters(list(sequence))).ids == after.tolist()
    assert sum(len(grown.encode_ids(riff)) for riff in riffs) < 0.7 * sum(len(tok.encode_ids(riff)) for riff in riffs)


def test_growing_keeps_special_tokens_that_were_added(tmp_path):
    sequences = [[1, 2, 1, 2, 3, 1, 2]] * 5
    tok = Tokenizer.train_ids(sequences, 5, special_tokens=()).add_special_tokens(["<x>"])
    grown = tok.grow_ids(sequences, 7)
    grown.save(tmp_path)
    assert Tokenizer.load(tmp_path) == grown
    assert grown.special_tokens == tok.special_tokens == {"<x>": 5}


def test_growing_refuses_unknown_integers_texts_and_superwords(tok, notes):
    with pytest.raises(ValueError, match=r"sequences\[0\]"):
        tok.grow_ids([[300]], 500)
    with pytest.raises(ValueError, match="300"):
        tok.grow([as_characters([300])], 500)
    with pytest.raises(ValueError, match="superwords is for byte-level BPE"):
        tok.grow([as_characters([1, 2])], 500, superwords=4)
    with pytest.raises(ValueError, match="this is a tokenizer of texts"):
        Tokenizer.train(["a text"], 270).grow_ids(notes, 500)
