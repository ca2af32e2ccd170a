"""Synthetic sources: closed forms against brute force, scipy and samples."""

import itertools
import json
import time

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from corpora import open_corpus
from corpora.synthetic import IIDSource, MarkovSource, SyntheticDocuments, source_from_description
from tests.corpora.helpers import documents, everything


def transition_matrix(source: MarkovSource) -> np.ndarray:
    """Return the transition matrix from context to context, computed with tuples of symbols."""
    contexts = list(itertools.product(range(source.symbols), repeat=source.order))
    number = {context: i for i, context in enumerate(contexts)}
    matrix = np.zeros((len(contexts), len(contexts)))
    for context in contexts:
        for symbol, probability in enumerate(source.conditional(np.array([context]))[0]):
            matrix[number[context], number[(*context, symbol)[1:]]] += probability
    return matrix


@pytest.mark.parametrize(("order", "symbols", "seed"), [(1, 2, 0), (1, 7, 1), (2, 4, 2), (3, 3, 3), (2, 16, 0)])
def test_entropy_rate_equals_that_of_scipys_stationary_distribution(order, symbols, seed):
    source = MarkovSource(order, symbols, seed=seed)
    values, vectors = scipy.linalg.eig(transition_matrix(source).T)
    stationary = np.real(vectors[:, np.argmin(np.abs(values - 1))])
    stationary /= stationary.sum()
    contexts = np.array(list(itertools.product(range(symbols), repeat=order)))
    entropies = scipy.stats.entropy(source.conditional(contexts), base=2, axis=1)
    assert source.entropy_rate_bits == pytest.approx(stationary @ entropies, abs=1e-9)
    assert source.stationary == pytest.approx(stationary, abs=1e-9)


def test_entropy_rate_is_the_growth_of_the_block_entropy():
    source = MarkovSource(2, 3, seed=5, concentration=1.0)
    block = dict(zip(itertools.product(range(3), repeat=2), source.stationary, strict=True))
    entropies = []
    for _ in range(4):
        block = {
            (*word, symbol): p * q
            for word, p in block.items()
            for symbol, q in enumerate(source.conditional(np.array([word]))[0])
        }
        entropies.append(-sum(p * np.log2(p) for p in block.values()))
    assert np.diff(entropies) == pytest.approx([source.entropy_rate_bits] * 3, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=30).filter(lambda p: sum(p) > 0.1))
def test_iid_entropy_rate_is_scipys_entropy(weights):
    probabilities = np.array(weights) / sum(weights)
    source = IIDSource(probabilities)
    assert source.entropy_rate_bits == pytest.approx(scipy.stats.entropy(probabilities, base=2), abs=1e-9)
    assert source.conditional(np.zeros((3, 2), dtype=int)) == pytest.approx(np.tile(probabilities, (3, 1)))


@pytest.mark.parametrize("together", [True, False])
def test_samples_follow_the_conditional_distributions(together):
    source = MarkovSource(2, 4, seed=1, concentration=1.0)
    generator = np.random.default_rng(7)
    symbols = source.sample_documents(400, 1000, generator) if together else source.sample(400_000, generator)[None]
    assert symbols.dtype == np.uint8
    counts = np.zeros((16, 4))
    np.add.at(counts, (symbols[:, :-2].astype(int) * 4 + symbols[:, 1:-1], symbols[:, 2:]), 1)
    contexts = np.array(list(itertools.product(range(4), repeat=2)))
    expected = source.conditional(contexts) * counts.sum(axis=1, keepdims=True)
    # The seed is fixed, so the result never changes.
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert 0.001 < scipy.stats.chi2.sf(statistic, df=16 * 3) < 0.999
    # The information content per symbol, which a perfect model would measure.
    nats = -np.log2(np.take_along_axis(source.conditional(contexts), np.arange(4)[None].repeat(16, 0), 1))
    assert (counts * nats).sum() / counts.sum() == pytest.approx(source.entropy_rate_bits, abs=0.01)


def test_documents_begin_in_the_stationary_distribution():
    source = MarkovSource(2, 3, seed=3)
    starts = source.sample_documents(60_000, 3, np.random.default_rng(0)).astype(int)
    counts = np.bincount(starts[:, 0] * 3 + starts[:, 1], minlength=9)
    assert scipy.stats.chisquare(counts, source.stationary * len(starts)).pvalue > 0.001


def test_impossible_symbols_are_never_drawn():
    source = IIDSource([0.0, 0.1, 0.0, 0.7, 0.2, 0.0])
    symbols = source.sample(200_000, np.random.default_rng(0))
    assert set(np.unique(symbols)) == {1, 3, 4}
    counts = np.bincount(symbols)[[1, 3, 4]]
    assert scipy.stats.chisquare(counts, np.array([0.1, 0.7, 0.2]) * 200_000).pvalue > 0.001


def test_the_built_in_markov_corpus_has_between_1_and_3_bits_and_16_single_byte_symbols():
    corpus = open_corpus("markov-2-16")
    source = source_from_description(corpus.synthetic)
    assert (source.order, source.symbols) == (2, 16)
    assert 1 < source.entropy_rate_bits < 3
    text = documents(corpus, "train")[0]
    assert set(text) == set("abcdefghijklmnop")
    assert source.to_text(source.from_text(text.encode())) == text.encode()


@pytest.mark.parametrize("name", ["markov-2-16", "iid-16"])
def test_a_perfect_model_of_the_validation_text_measures_the_entropy_rate(name):
    corpus = open_corpus(name)
    source = source_from_description(corpus.synthetic)
    symbols = np.stack([source.from_text(text.encode()) for text in documents(corpus, "validation")])
    windows = np.lib.stride_tricks.sliding_window_view(symbols, source.order + 1, axis=1).reshape(-1, source.order + 1)
    probabilities = source.conditional(windows[:, :-1])[np.arange(len(windows)), windows[:, -1]]
    assert -np.log2(probabilities).mean() == pytest.approx(source.entropy_rate_bits, abs=0.015)


def test_a_description_survives_json_and_gives_the_same_source():
    for source in (MarkovSource(3, 5, seed=9, concentration=0.5, alphabet="vwxyz"), IIDSource([0.5, 0.25, 0.25])):
        again = source_from_description(json.loads(json.dumps(source.describe())))
        assert np.array_equal(again.table, source.table)
        assert np.array_equal(again.alphabet, source.alphabet)
    with pytest.raises(ValueError, match="use the numpy version"):
        source_from_description(MarkovSource(1, 4).describe() | {"entropy_rate_bits": 1.0})
    with pytest.raises(ValueError, match="does not describe"):
        source_from_description({"kind": "iid", "sides": 6})


def test_synthetic_corpora_are_deterministic_and_their_splits_differ():
    source = MarkovSource(1, 8)
    first, again, longer = (
        [
            text
            for chunk in SyntheticDocuments(source, {"train": n, "validation": 9}, 500).chunks()
            for text in chunk.documents.to_pylist()
        ]
        for n in (300, 300, 700)
    )
    assert first == again
    assert first[:300] == longer[:300]
    assert len({*first}) == 309
    corpus = open_corpus("iid-16")
    assert corpus.split_rule == "predefined"
    assert {name: len(texts) for name, texts in everything(corpus).items()} == {"train": 2048, "validation": 128}


def test_sampling_four_megabytes_takes_seconds_of_cpu_time():
    source = MarkovSource(2, 16)
    start = time.process_time()
    source.sample_documents(256, 1 << 14, np.random.default_rng(0))
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: MarkovSource(4, 16), r"16\*\*4 contexts"),
        (lambda: MarkovSource(1, 1), "2 to 62 symbols"),
        (lambda: MarkovSource(1, 4, concentration=0), "above 0"),
        (lambda: MarkovSource(1, 3, alphabet="aab"), "different ASCII characters"),
        (lambda: IIDSource([0.5, 0.6]), "sum to 1"),
        (lambda: MarkovSource(2, 4).conditional(np.zeros((5, 1), dtype=int)), r"should be \(N, 2\)"),
        (lambda: MarkovSource(1, 4).conditional(np.full((5, 1), 4)), "from 0 to 3"),
        (lambda: MarkovSource(1, 4).from_text(b"abcx"), "bytes that are not among"),
        (lambda: source_from_description({"kind": ["iid"]}), 'must be "iid" or "markov", not \\[\'iid\'\\]'),
        (
            lambda: source_from_description({**MarkovSource(1, 4).describe(), "entropy_rate_bits": "1"}),
            "is '1', but must be a number",
        ),
    ],
)
def test_an_invalid_source_or_context_is_refused(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()


@pytest.mark.parametrize(("order", "symbols"), [(0, 3), (1, 3), (2, 3), (3, 2)])
def test_block_entropies_and_mutual_information_are_those_of_all_sequences(order, symbols):
    source = MarkovSource(order, symbols, seed=order, concentration=1.0)
    length = 6
    sequences = np.array(list(itertools.product(range(symbols), repeat=length)))
    contexts = sequences[:, :order] @ (symbols ** np.arange(order)[::-1])
    probabilities = source.stationary[contexts]
    for place in range(order, length):
        followers = source.conditional(sequences[:, :place])
        probabilities = probabilities * followers[np.arange(len(sequences)), sequences[:, place]]
    grid = probabilities.reshape((symbols,) * length)
    for n in range(1, length + 1):
        block = grid.sum(axis=tuple(range(n, length)))
        assert source.block_entropy_bits(n) == pytest.approx(-float((block * np.log2(block)).sum()))
    for distance in range(1, length):
        joint = grid.sum(axis=tuple(set(range(length)) - {0, distance}))
        independent = np.outer(joint.sum(axis=1), joint.sum(axis=0))
        information = float((joint * np.log2(joint / independent)).sum())
        assert source.mutual_information_bits(distance) == pytest.approx(information, abs=1e-12)
