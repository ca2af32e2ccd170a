"""Entropies, mutual information, match lengths, laws and divergences of texts from sources with known values."""

from collections import Counter
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpora.synthetic import IIDSource, MarkovSource
from lm.text_statistics import kernels as text_kernels
from lm.text_statistics.distributions import conditional_entropy, entropy, js, kl
from lm.text_statistics.divergence import text_divergences
from lm.text_statistics.frequency_laws import fit_heaps, fit_zipf, vocabulary_growth
from lm.text_statistics.match_lengths import match_rates, previous_match_lengths
from lm.text_statistics.mutual_information import information, log_distances, mutual_information
from lm.text_statistics.ngram_entropy import ngram_entropies

SOURCES = {
    "independent": IIDSource([1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 16]),
    "uniform": IIDSource([1 / 4] * 4),
    "markov-1": MarkovSource(1, 8, seed=2, concentration=0.5),
    "markov-2": MarkovSource(2, 6, seed=1),
}
DOCUMENTS, LENGTH = 256, 8192
documents = st.lists(st.binary(max_size=20).map(lambda text: bytes(byte % 5 for byte in text)), min_size=1, max_size=6)


@pytest.fixture(scope="module", params=SOURCES)
def sampled(request):
    """Return a source, and (ids, offsets) of a text of 2 million symbols from it."""
    source = SOURCES[request.param]
    symbols = source.sample_documents(DOCUMENTS, LENGTH, np.random.default_rng(7))
    return source, symbols.reshape(-1).copy(), np.arange(DOCUMENTS + 1) * LENGTH


def joined(parts, dtype=np.uint8):
    return np.frombuffer(b"".join(parts), np.uint8).astype(dtype), np.cumsum([0, *map(len, parts)])


def test_block_and_conditional_entropies_are_those_of_the_source_within_1_percent(sampled):
    source, ids, offsets = sampled
    rows = [row for row in ngram_entropies(ids, offsets, threads=2) if row.coverage > 0.99]
    assert len(rows) >= 6
    for row in rows:
        before = source.block_entropy_bits(row.n - 1) if row.n > 1 else 0.0
        assert row.reliable
        assert row.block == pytest.approx(source.block_entropy_bits(row.n), rel=0.01)
        assert row.block_miller_madow == pytest.approx(source.block_entropy_bits(row.n), rel=0.01)
        assert row.conditional_miller_madow == pytest.approx(source.block_entropy_bits(row.n) - before, rel=0.01)


@pytest.mark.parametrize("symbols", [5, 5000, 200_000])  # one, two and three words a window
@settings(max_examples=30)
@given(parts=documents)
def test_ngrams_are_counted_within_documents(symbols, parts):
    ids, offsets = joined(parts, np.uint32)
    scale = symbols // 5
    rows = {row.n: row for row in ngram_entropies(ids * scale, offsets)}
    for n in range(1, 9):
        ngrams = Counter(part[i : i + n] for part in parts for i in range(len(part) - n + 1))
        total = sum(ngrams.values())
        assert (n in rows) == (total > 0)
        if total:
            row = rows[n]
            assert row.windows == total
            assert row.distinct == len(ngrams)
            assert row.singletons == sum(count == 1 for count in ngrams.values())
            assert row.block == pytest.approx(entropy(np.array(list(ngrams.values())) / total), abs=1e-9)
            joint = np.zeros((len(ngrams), 5))
            contexts = list(dict.fromkeys(ngram[:-1] for ngram in ngrams))
            for ngram, count in ngrams.items():
                joint[contexts.index(ngram[:-1]), ngram[-1]] = count / total
            assert row.conditional == pytest.approx(conditional_entropy(joint), abs=1e-9)


def test_miller_madow_reduces_the_bias_of_a_small_sample():
    source = SOURCES["uniform"]
    ids = source.sample(2000, np.random.default_rng(0)).copy()
    row = ngram_entropies(ids, np.array([0, len(ids)]))[3]
    assert abs(row.block_miller_madow - 8) < abs(row.block - 8) / 3


def test_mutual_information_is_that_of_the_source_beyond_its_baseline_within_2_percent(sampled):
    # 2e-4 bits are three standard errors of two million pairs.
    source, ids, offsets = sampled
    found = mutual_information(ids, offsets, distances=[1, 2, 3, 5, 10, 100], threads=2)
    for distance, bits, baseline in zip(found.distances, found.text, found.shuffled, strict=True):
        assert bits - baseline == pytest.approx(source.mutual_information_bits(distance), rel=0.02, abs=2e-4)
    assert found.shuffled_within == pytest.approx(found.shuffled, abs=2e-5)
    assert found.pairs == [DOCUMENTS * (LENGTH - distance) for distance in found.distances]


def test_documents_of_two_kinds_have_information_at_every_distance_without_any_order():
    generator = np.random.default_rng(3)
    kinds = [[0.9, 0.1], [0.1, 0.9]]
    parts = [generator.choice(2, size=2000, p=kinds[i % 2]).astype(np.uint8).tobytes() for i in range(500)]
    found = mutual_information(*joined(parts), distances=[1, 10, 1000])
    joint = sum(np.outer(kind, kind) for kind in kinds) / 2
    for place in range(3):
        assert found.text[place] == pytest.approx(information(np.round(joint * 10**9).astype(np.int64)), rel=0.02)
        assert found.shuffled_within[place] == pytest.approx(found.text[place], rel=0.02)
        assert found.shuffled[place] < 1e-5


def test_pairs_do_not_cross_documents():
    ids, offsets = joined([b"\0\1", b"\0\1", b"\0\0\0\1"])
    found = mutual_information(ids, offsets, distances=[1, 2, 3])
    assert found.pairs == [5, 2, 1]


def test_distances_with_few_pairs_are_left_out():
    ids = np.random.default_rng(0).integers(0, 2, 30_000).astype(np.uint8)
    found = mutual_information(ids, np.array([0, 30_000]))
    assert len(found.distances) > 40
    assert found.pairs[0] == 29_999 and 10_000 <= found.pairs[-1] < 13_000
    assert mutual_information(ids[:9000], np.array([0, 9000])).distances == []


def test_a_large_alphabet_is_cut_to_256_symbols():
    ids = np.arange(1000, dtype=np.uint32)
    found = mutual_information(ids, np.array([0, 1000]), distances=[1])
    assert found.symbols == 256
    assert found.other == pytest.approx(0.745)


def test_distances_are_evenly_spaced_on_a_logarithmic_axis():
    distances = log_distances(100_000)
    assert 50 <= len(distances) <= 52
    assert distances[0] == 1 and distances[-1] == 100_000
    assert log_distances(3) == [1, 2, 3]
    assert log_distances(0) == []


@given(st.binary(max_size=60).map(lambda text: bytes(byte % 3 for byte in text)))
def test_match_lengths_are_those_of_a_search(text):
    def longest(i):
        pairs = (zip(text[j:], text[i:], strict=False) for j in range(i))
        return max((len(list(takewhile(lambda pair: pair[0] == pair[1], each))) for each in pairs), default=0)

    found = previous_match_lengths(np.frombuffer(text, np.uint8))
    assert found.tolist() == [longest(i) for i in range(len(text))]


def test_the_slope_of_match_lengths_is_the_entropy_rate_within_2_percent(sampled):
    source, ids, _ = sampled
    rates = match_rates(ids, [1_000_000, len(ids)])
    for rate in rates:
        assert rate.slope == pytest.approx(source.entropy_rate_bits, rel=0.02)
        assert rate.classic == pytest.approx(source.entropy_rate_bits, rel=0.2)
    # What the slope is for.
    assert abs(rates[-1].slope - source.entropy_rate_bits) < abs(rates[-1].classic - source.entropy_rate_bits)


def test_a_text_that_repeats_has_no_entropy_and_a_short_one_no_estimate():
    repeated = np.zeros(100_000, dtype=np.uint8)
    (rate,) = match_rates(repeated, [100_000])
    assert rate.slope < 0.001
    assert rate.classic < 0.001
    (rate,) = match_rates(repeated[:2], [2])
    assert rate.slope is None and rate.classic is None


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.3])
def test_zipf_fits_the_exponent_of_its_source_within_2_percent(exponent):
    weights = np.arange(1, 2001) ** -exponent
    counts = np.random.default_rng(5).multinomial(3_000_000, weights / weights.sum())
    fit = fit_zipf(counts)
    assert fit.exponent == pytest.approx(exponent, rel=0.02)
    assert fit.distance < 0.01
    assert fit_zipf(counts[:9]) is None


def test_heaps_fits_a_vocabulary_that_grows_by_its_law():
    n = np.arange(1, 200_001)
    vocabulary = np.ceil(7 * n**0.6).clip(max=n).astype(np.int64)
    words = np.where(np.diff(vocabulary, prepend=0) > 0, vocabulary, 1)
    growth = vocabulary_growth(words)
    assert growth[0] == (1, 1)
    assert growth[-1] == (200_000, len(np.unique(words)))
    fit = fit_heaps([(int(length), float(vocabulary[length - 1])) for length, _ in growth])
    assert fit.exponent == pytest.approx(0.6, rel=0.01)
    assert fit.factor == pytest.approx(7, rel=0.05)
    assert fit.deviation < 0.01
    assert vocabulary_growth(words[:0]) == []
    assert fit_heaps(growth[:3]) is None


def test_words_are_runs_without_white_space_and_end_with_the_document():
    text, offsets = joined([b" the cat\tthe\n", b"the", b"", b"ca", b"t"])
    hashes, space = np.empty(6, dtype=np.uint64), np.isin(text, list(b" \t\n"))
    assert text_kernels.hash_words(text, offsets, space, hashes[:0]) == 6
    assert text_kernels.hash_words(text, offsets, space, hashes) == 6
    the, cat, the_2, the_3, ca, t = hashes.tolist()
    assert the == the_2 == the_3
    assert len({the, cat, ca, t}) == 4


def test_divergences_are_those_of_the_sources_within_2_percent():
    one, two = (MarkovSource(1, 6, seed=seed, concentration=1.0) for seed in (1, 2))
    texts = []
    for number, source in enumerate((one, two)):
        symbols = source.sample_documents(256, 4096, np.random.default_rng(number))
        texts.append((symbols.reshape(-1).copy(), np.arange(257) * 4096))
    unigrams, bigrams = text_divergences(*texts)
    p, q = (source.stationary for source in (one, two))
    joint_p, joint_q = (source.stationary[:, None] * source.table for source in (one, two))
    for found, true_p, true_q in ((unigrams, p, q), (bigrams, joint_p, joint_q)):
        assert found.kl == pytest.approx(kl(true_p, true_q), rel=0.02)
        assert found.reverse_kl == pytest.approx(kl(true_q, true_p), rel=0.02)
        assert found.js == pytest.approx(js(true_p, true_q), rel=0.02)
    assert text_divergences(texts[0], texts[0])[1].kl == 0


def test_divergences_of_texts_without_a_common_symbol_are_finite():
    low, high = np.zeros(1000, dtype=np.uint32), np.full(1000, 70_000, dtype=np.uint32)
    unigrams, bigrams = text_divergences((low, np.array([0, 1000])), (high, np.array([0, 1000])))
    assert 0 < unigrams.kl < 20
    assert bigrams.js > 0.9
