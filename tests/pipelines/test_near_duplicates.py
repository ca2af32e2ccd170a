"""The kernels of near duplicates agree with datasketch, with sets in Python, and with the closed form."""

import random
import re

import numpy as np
import pytest
from datasketch import MinHash
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.dataset import shingle_kernels as kernels
from pipelines.dataset.duplicates import buckets_of
from tokenizer.document_blocks import block_of

letters = st.text(alphabet="abAZ019 .\n\té“—ß中文，。かㄱ한ไทยမ្ក😀\u00a0\x00", max_size=40)


def shingles(document):
    """Return the 64-bit shingles of a document in order."""
    out = np.empty(len(document), np.uint64)
    data = block_of([document]).data
    return out[: kernels.write_shingles(data, 0, len(document), np.empty(kernels.WORDS + 1, np.uint64), out)]


def signed(documents, room=1024):
    """Return the signatures, band keys and numbers of shingles of documents."""
    block, count = block_of(documents), len(documents)
    signatures, keys = np.empty((count, 112), np.uint32), np.empty((count, 14), np.uint64)
    counts = np.empty(count, np.int64)
    kernels.sign(block.data, block.offsets, np.empty(6 + room, np.uint64), signatures, keys, counts)
    return signatures, keys, counts


def words(text):
    """Return the words of a text, by its characters."""
    out, inside = [], False
    for character in text:
        code = ord(character)
        separator = (
            not character.isalnum() if code < 128 else re.match("[\x80-\xbf\u2000-\u207f\u3000-\u303f]", character)
        )
        alone = re.match("[\u0e00-\u0fff\u1000-\u10bf\u1780-\u17ff\u3040-\u9fff\uf000-\U0010ffff]", character)
        if not separator:
            letter = character.lower() if code < 128 else character
            if inside and not alone:
                out[-1] += letter
            else:
                out.append(letter)
        inside = not separator and not alone
    return out


def numbered(items):
    """Return the first place of each item."""
    first = {}
    return [first.setdefault(item, place) for place, item in enumerate(items)]


@settings(deadline=None)
@given(letters | st.text())
@example("The  QUICK, brown—fox\njumps over the quick brown fox jumps over")
@example("我喜欢吃苹果。我喜欢吃苹果。")
def test_shingles_are_equal_where_five_words_are(text):
    found = words(text)
    expected = list(zip(*(found[k:] for k in range(5)), strict=False))
    assert numbered(shingles(text.encode()).tolist()) == numbered(expected)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60) | letters.map(str.encode), min_size=1, max_size=4))
@example([b"", b"\xff\xfe\xfd \xe4 \xe4\xb8 a b c d", b"\x00" * 50, b"a\x00b\x00c\x00d\x00e\x00f"])
def test_any_bytes_have_the_signature_that_datasketch_computes(documents):
    signatures, _, counts = signed(documents)
    for document, signature, count in zip(documents, signatures, counts, strict=True):
        high = (shingles(document) >> np.uint64(32)).astype(np.uint32)
        assert count == len(high)
        peer = MinHash(
            num_perm=112,
            scheme="affine32",
            permutations=(kernels.MULTIPLIERS, kernels.INCREMENTS),
            hashfunc=before_murmur,
        )
        for value in high.tolist():
            peer.update(value)
        assert signature.tolist() == peer.hashvalues.tolist()


def before_murmur(value):
    """Return what datasketch's first step, the finalizer of MurmurHash3, maps to `value`."""
    value ^= value >> 16
    value = value * pow(0xC2B2AE35, -1, 1 << 32) % (1 << 32)
    value ^= value >> 13 ^ value >> 26
    value = value * pow(0x85EBCA6B, -1, 1 << 32) % (1 << 32)
    return value ^ value >> 16


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60) | letters.map(str.encode), min_size=1, max_size=4), st.integers(1, 7))
def test_signatures_do_not_depend_on_the_size_of_the_buffer(documents, room):
    for one, other in zip(signed(documents), signed(documents, room), strict=True):
        assert np.array_equal(one, other)


@pytest.fixture(scope="module")
def pairs(text_folder):
    """Return 6,000 pairs of near duplicates made of real text, as words joined by spaces, and their similarities."""
    text = b" ".join(path.read_bytes() for path in sorted(text_folder.iterdir()))
    source, generator = re.findall("[a-z0-9]+", text.decode(errors="ignore").lower()), random.Random(1)
    documents, similarities = [], []
    for _ in range(6000):
        start, size = generator.randrange(len(source) - 400), generator.randrange(50, 400)
        one = source[start : start + size]
        changes = generator.random() ** 2 * size / 10
        other = [generator.choice(source) if generator.random() < changes / size else word for word in one]
        sets = [set(zip(*(each[k:] for k in range(5)), strict=False)) for each in (one, other)]
        similarities.append(len(sets[0] & sets[1]) / len(sets[0] | sets[1]))
        documents += [" ".join(each).encode() for each in (one, other)]
    return documents, np.array(similarities)


def test_the_share_of_pairs_found_is_that_of_the_closed_form(pairs):
    documents, similarities = pairs
    keys = signed(documents)[1]
    found = (keys[::2] == keys[1::2]).any(axis=1)
    expected = 1 - (1 - similarities**8) ** 14
    levels = np.digitize(similarities, [0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9])
    for chosen in [levels == level for level in range(8)] + [levels >= 0]:
        assert chosen.sum() > 300
        deviation = np.sqrt((expected * (1 - expected))[chosen].sum())
        assert abs(found[chosen].sum() - expected[chosen].sum()) < 4 * deviation + 1


def test_signatures_estimate_the_similarity_without_bias(pairs):
    documents, similarities = pairs
    signatures = signed(documents)[0]
    error = (signatures[::2] == signatures[1::2]).mean(axis=1) - similarities
    deviation = np.sqrt(similarities * (1 - similarities) / 112)
    assert abs(error.mean()) < 4 * np.sqrt((deviation**2).mean() / len(error))
    assert np.mean(error**2) == pytest.approx(np.mean(deviation**2), rel=0.1)


@given(st.lists(st.integers(0, 6), max_size=12), st.data())
def test_buckets_hold_the_documents_with_equal_keys(keys, data):
    documents = [number for number in range(len(keys)) if data.draw(st.booleans())]
    members, ends = buckets_of(np.array(keys, np.uint64), np.array(documents, np.int64))
    found = [part.tolist() for part in np.split(members, ends)[:-1]]
    expected = [[number for number in documents if keys[number] == key] for key in range(7)]
    assert found == [bucket for bucket in expected if len(bucket) > 1]


def united(sets, buckets):
    """Return the first set of each set's component, and how often sets were not compared."""
    sizes = np.array([len(each) for each in sets], np.int64)
    flat = np.array([value for each in sets for value in sorted(each)], np.uint64)
    flat.flags.writeable = False
    parents = np.arange(len(sets))
    members = np.array([number for bucket in buckets for number in bucket], np.int64)
    ends = np.cumsum([len(bucket) for bucket in buckets], dtype=np.int64)
    memory = np.empty(max(map(len, buckets), default=0), np.int64)
    cut = kernels.unite(flat, np.cumsum(sizes) - sizes, sizes, members, ends, parents, memory)
    while not np.array_equal(parents, parents[parents]):
        parents = parents[parents]
    return parents.tolist(), cut


@settings(deadline=None)
@given(st.lists(st.sets(st.integers(0, 9), min_size=1), min_size=1, max_size=8), st.data())
def test_similar_sets_of_a_bucket_are_joined_directly_or_through_others(sets, data):
    numbers = st.lists(st.integers(0, len(sets) - 1), min_size=2, max_size=8, unique=True).map(sorted)
    buckets = data.draw(st.lists(numbers, max_size=4)) if len(sets) > 1 else []
    expected = list(range(len(sets)))
    for bucket in buckets:
        for a in bucket:
            for b in bucket:
                if 4 * len(sets[a] & sets[b]) >= 3 * len(sets[a] | sets[b]):
                    low, high = sorted((expected[a], expected[b]))
                    expected = [low if root == high else root for root in expected]
    assert united(sets, buckets) == (expected, 0)


def test_a_bucket_of_similar_sets_takes_a_comparison_per_set():
    """All twenty billion pairs of this bucket would take minutes."""
    count = 200_000
    parents, cut = united([{1, 2, 3, 4}] * count, [range(count)])
    assert set(parents) == {0}
    assert cut == 0


def test_a_bucket_of_different_sets_takes_a_bounded_number_of_comparisons_per_set():
    count = 100_000
    parents, cut = united([{number} for number in range(count)], [range(count)])
    assert parents == list(range(count))
    assert cut == count - 257  # the last 257 sets meet all others


def test_sets_are_joined_through_a_member_that_is_not_the_first():
    sets = [set(range(10)), set(range(1, 11)), set(range(2, 12)), {99}]
    assert united(sets, [[0, 1, 2, 3]])[0] == [0, 0, 0, 3]


def test_common_counts_the_shared_elements_of_pairs():
    generator = np.random.default_rng(0)
    sets = [np.unique(generator.integers(0, 50, size, np.uint64)) for size in (0, 1, 30, 60)]
    sizes = np.array([len(each) for each in sets])
    flat = np.concatenate(sets)
    flat.flags.writeable = False
    chosen = np.array([(a, b) for a in range(4) for b in range(4)])
    out = np.empty(16, np.int64)
    kernels.common(flat, np.cumsum(sizes) - sizes, sizes, chosen, out)
    assert out.tolist() == [len(set(sets[a]) & set(sets[b])) for a, b in chosen]
