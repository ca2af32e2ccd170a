"""The kernel splits pretokens where no merge can join both sides, with the ids of merging the whole pretoken."""

import random
import warnings
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer import Tokenizer, resolve_pattern
from tokenizer.bpe_vocabulary import BytePairVocabulary
from tokenizer.byte_level import BY_MERGES, BY_RANKS, WHOLE_FIRST
from tokenizer.encoding.kernel_encoder import EncodingTables
from tokenizer.kernels.cuts import next_fine_cut
from tokenizer.kernels.tools import kernel

# Any mix of the characters of one alphabet is a single pretoken of the pattern gpt2.
ALPHABETS = ["ab", "abcdefgh", "字符号", "aé字", "!?😀😁", "—…👍🏽"]
# Pretokens are split from 5 bytes on, or 16 if ASCII, and merged by a scan up to 64, by a heap up to 4,096.
SHORT = [1, 2, 4, 5, 6, 7, 14, 15, 16, 17, 18, 31, 32, 63, 64, 65, 66, 130]
LONG = [4094, 4095, 4096, 4097, 4098, 4101, 5000]
SEEDS = st.integers(0, 2**32)


def reference_ids(pretoken, vocabulary):
    """Return the ids by the definition: join the pair of lowest rank, leftmost first, until none is left."""
    ids, pairs = vocabulary.ids, vocabulary.pairs
    if vocabulary.rule != BY_MERGES and pretoken in ids:
        return [ids[pretoken]]
    never = len(ids) + len(pairs or ())
    listed = {pair: number for number, pair in enumerate(pairs or ())}

    def rank(left, right):
        return listed.get((left, right), never) if pairs is not None else ids.get(left + right, never)

    parts = [pretoken[i : i + 1] for i in range(len(pretoken))]
    ranks = [rank(parts[i], parts[i + 1]) for i in range(len(parts) - 1)]
    while ranks and (lowest := min(ranks)) < never:
        i = ranks.index(lowest)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
        del ranks[i]
        if i > 0:
            ranks[i - 1] = rank(parts[i - 1], parts[i])
        if i < len(ranks):
            ranks[i] = rank(parts[i], parts[i + 1])
    return [ids[part] for part in parts]


@st.composite
def vocabularies(draw):
    """Draw (alphabet, vocabulary) with random merges in random order, and tokens that no merge makes."""
    alphabet = draw(st.sampled_from(ALPHABETS))
    rng = random.Random(draw(st.integers(0, 2**32)))
    rule = draw(st.sampled_from([BY_MERGES, WHOLE_FIRST, BY_RANKS]))
    ids = {bytes([byte]): i for i, byte in enumerate(rng.sample(range(256), 256))}
    pieces = sorted({bytes([byte]) for byte in f"{alphabet} ".encode()})
    pairs = []
    for _ in range(draw(st.integers(0, 40))):
        left, right = rng.choice(pieces), rng.choice(pieces)
        if (left, right) not in pairs and len(left + right) <= 24:
            pairs.append((left, right))
            pieces.append(left + right)
            ids.setdefault(left + right, len(ids))
    if draw(st.booleans()):  # some merges come before the merges of their parts
        rng.shuffle(pairs)
    for _ in range(draw(st.integers(0, 3))):
        ids.setdefault("".join(rng.choices(alphabet, k=rng.randrange(2, 8))).encode(), len(ids))
    return alphabet, BytePairVocabulary(
        ids=ids,
        pairs=None if rule == BY_RANKS else pairs,
        special_tokens={},
        pattern=resolve_pattern("gpt2"),
        rule=rule,
    )


def words(alphabet, sizes, seed):
    """Return words that fill each size in bytes, some random and some with repeated characters."""
    rng = random.Random(seed)
    for size in sizes:
        unit = rng.choices(alphabet, k=rng.choice((1, 2, 3, 200)))
        text = "".join(unit) * (size // len(unit) + 1)
        yield text.encode()[:size].decode(errors="ignore").encode()


def assert_ids_are_those_of_the_whole(tok, pretokens):
    """Check pretokens alone, for the first and the second time, and in one document after spaces."""
    spaced = [b" " + pretoken for pretoken in pretokens]
    texts = pretokens + spaced
    expected = [reference_ids(text, tok.vocabulary) for text in texts]
    # Short comparisons: pytest takes minutes to print the difference of two long lists.
    for _ in range(2):
        ids = tok.encode_batch(texts, threads=1)
        assert [text for text, ours, right in zip(texts, ids, expected, strict=True) if ours != right] == []
    together = tok.encode_to_numpy(b"".join(spaced), threads=1).tolist()
    is_right = together == list(chain.from_iterable(expected[len(pretokens) :]))
    assert is_right


@settings(max_examples=100, deadline=None)
@given(vocabularies(), st.lists(st.sampled_from(SHORT), min_size=1, max_size=20), st.integers(0, 2**32))
def test_short_pretokens_have_the_ids_of_the_whole(drawn, sizes, seed):
    alphabet, vocabulary = drawn
    pretokens = [word for word in words(alphabet, sizes, seed) if word]
    assert_ids_are_those_of_the_whole(Tokenizer(vocabulary), pretokens)


@settings(max_examples=12, deadline=None)
@given(vocabularies(), st.sampled_from(LONG), st.integers(0, 2**32))
def test_long_pretokens_have_the_ids_of_the_whole(drawn, size, seed):
    alphabet, vocabulary = drawn
    assert_ids_are_those_of_the_whole(Tokenizer(vocabulary), list(words(alphabet, [size, 40], seed)))


@pytest.mark.filterwarnings("ignore:the corpus ran out of pairs")
@settings(max_examples=25, deadline=None)
@given(st.sampled_from(ALPHABETS), st.integers(0, 60), st.integers(0, 2**32))
def test_trained_vocabularies_have_the_ids_of_the_whole(alphabet, merges, seed):
    corpus = b" ".join(words(alphabet, [3, 9, 20, 20, 40], seed)).decode()
    tok = Tokenizer.train([corpus], 256 + merges, "gpt2", special_tokens=(), min_frequency=1)
    assert_ids_are_those_of_the_whole(tok, [word for word in words(alphabet, SHORT, seed + 1) if word])


@settings(max_examples=100, deadline=None)
@given(vocabularies())
def test_pretokens_are_split_where_no_merge_joins_two_bytes(drawn):
    """A pretoken that is a token is not split, even if no merges make it."""
    _, vocabulary = drawn
    shapes = EncodingTables(vocabulary).cuts.shapes
    if vocabulary.semantics == BY_MERGES:
        joined = {left[-1:] + right[:1] for left, right in vocabulary.merge_pairs}
        assert {bytes(divmod(int(place), 256)) for place in np.flatnonzero(shapes)} == joined
    else:
        assert len(shapes) == 0


@kernel
def cut_finely(data, cuts, places):
    place, n = 0, 0
    while place < len(data):
        place = next_fine_cut(data, place, len(data), cuts)
        places[n] = place
        n += 1
    return n


def test_the_pieces_of_a_pretoken_have_the_ids_of_the_whole():
    """Cuts are between bytes that a merge joins elsewhere, too."""
    between_joined = set()

    @settings(max_examples=200, deadline=None)
    @given(vocabularies(), st.integers(1, 300), SEEDS)
    def check(drawn, size, seed):
        alphabet, vocabulary = drawn
        cuts = EncodingTables(vocabulary).cuts
        text = b"".join(words(alphabet, [size], seed))
        if len(cuts.shapes) == 0:
            return
        places = np.empty(len(text), dtype=np.int64)
        ends = places[: cut_finely(np.frombuffer(text, dtype=np.uint8), cuts, places)].tolist()
        pieces = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        assert b"".join(pieces) == text
        merged = [i for piece in pieces for i in reference_ids(piece, vocabulary)]
        is_right = merged == reference_ids(text, vocabulary)
        assert is_right
        between_joined.update(end for end in ends[:-1] if cuts.shapes[text[end - 1] << 8 | text[end]])

    check()
    assert between_joined


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["ab ", "abc  ", "é字 a"]), st.integers(1, 200), st.sampled_from([70, 200, 600, 5000]), SEEDS)
def test_texts_without_a_split_have_the_ids_of_the_whole(alphabet, merges, size, seed):
    rng = random.Random(seed)
    listed = ["".join(rng.choices(alphabet, k=rng.randrange(1, 6))) for _ in range(rng.randrange(2, 40))]
    texts = [" ".join(rng.choices(listed, k=size)) for _ in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the text may have too few pairs
        tok = Tokenizer.train(texts[:1], 256 + merges, r"[\s\S]+", special_tokens=(), min_frequency=1)
    pretokens = [text.encode()[:size].decode(errors="ignore").encode() for text in texts]
    expected = [reference_ids(pretoken, tok.vocabulary) for pretoken in pretokens]
    is_right = [tok.encode_batch(pretokens, threads=1) == expected for _ in range(2)]
    assert is_right == [True, True]
