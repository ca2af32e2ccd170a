"""The n best and random segmentations of Unigram, and the likelihood of a text, against enumeration."""

import itertools
import json
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenizer import PieceRules, Tokenizer
from tokenizer.encoding.unigram_lattice import Lattices


@pytest.fixture(scope="module")
def tok():
    """A vocabulary of few letters; other letters are unknown."""
    words = ["abc", "ab", "aab", "bca", "caa", "abcabc", "bc", "aa"]
    return Tokenizer.train([" ".join(words * 5)], 24, kind="unigram", special_tokens=["<|x|>"])


def enumerated(tok, text):
    """Return all segmentations of a text as ids with their scores, best first."""
    lattices = Lattices(tok.vocabulary)

    def paths(pretoken, start):
        if start == len(pretoken):
            yield [], 0.0
            return
        for end, i, score in lattices.edges(pretoken, start):
            for rest, total in paths(pretoken, end):
                yield [(pretoken[start:end], i), *rest], score + total

    words = [list(paths(" " + word, 0)) for word in text.split()]
    found = [
        ([i for path, _ in chosen for i in lattices.ids_of(path)], math.fsum(score for _, score in chosen))
        for chosen in itertools.product(*words)
    ]
    return sorted(found, key=lambda item: -item[1])


texts = st.text("abc zж", max_size=8)


@given(texts, st.integers(1, 30))
def test_the_n_best_segmentations_are_those_of_enumeration(tok, text, n):
    expected, found = enumerated(tok, text), tok.encode_nbest(text, n)
    assert [score for _, score in found] == pytest.approx([score for _, score in expected[:n]])
    scores = {}
    for ids, score in expected:
        scores.setdefault(tuple(ids), []).append(score)
    for ids, score in found:
        assert any(score == pytest.approx(each) for each in scores[tuple(ids)])
    assert found[0][0] == tok.encode_ordinary(text)


@given(texts)
def test_the_likelihood_is_the_sum_over_all_segmentations(tok, text):
    expected = math.log(math.fsum(math.exp(score) for _, score in enumerated(tok, text)))
    assert tok.log_likelihood(text) == pytest.approx(expected)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0, 2.5])
def test_samples_have_the_distribution_of_the_scores(tok, alpha):
    text, draws = "abcaab ca", 4000
    weights = Counter()
    for ids, score in enumerated(tok, text):
        weights[tuple(ids)] += math.exp(alpha * score)
    total = sum(weights.values())
    drawn = Counter(tuple(tok.encode_sampled(text, alpha, seed)) for seed in range(draws))
    assert drawn.keys() <= weights.keys()
    # The mean of the chi-square statistic is about the number of outcomes.
    likely = {ids: weight / total for ids, weight in weights.items() if draws * weight / total >= 5}
    statistic = sum((drawn[ids] - draws * p) ** 2 / (draws * p) for ids, p in likely.items())
    assert statistic < len(likely) + 5 * math.sqrt(2 * len(likely)) + 10


def test_a_large_alpha_gives_the_best_segmentation_and_a_seed_the_same_ids(tok):
    text = "abcab caa abc"
    assert tok.encode_sampled(text, 1e6, 1) == tok.encode(text)
    assert tok.encode_sampled(text, 0.1, 7) == tok.encode_sampled(text, 0.1, 7)
    assert len({tuple(tok.encode_sampled(text, 0.1, seed)) for seed in range(20)}) > 3
    special = tok.special_tokens["<|x|>"]
    assert tok.encode_sampled("ab<|x|>", 1, 0, allowed_special="all")[-1] == special
    with pytest.raises(ValueError, match="disallowed"):
        tok.encode_sampled("ab<|x|>", 1, 0)


def test_only_the_start_of_a_text_gets_a_mark_also_in_samples(tok, tmp_path):
    """As with the Metaspace option `first`."""
    tok.save(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    content["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    file.write_text(json.dumps(content))
    first, text = Tokenizer.load(tmp_path), "abc<|x|>abc"
    assert first.encode(text, "all") != tok.encode(text, "all")
    assert first.encode_sampled(text, 1e6, 0, "all") == first.encode(text, "all")


def test_every_sample_of_a_long_text_decodes_to_it(stdlib_texts):
    tok = Tokenizer.train(stdlib_texts[:3], 500, kind="unigram", pieces=PieceRules(character_coverage=1))
    text = tok.decode(tok.encode_ordinary(stdlib_texts[0][:20_000]))
    assert tok.decode(tok.encode_sampled(text, 0.2, 3)) == text
    assert [tok.decode(ids) for ids, _ in tok.encode_nbest(text, 3)] == [text] * 3


@pytest.mark.parametrize("n", [0, -1, 1.5, "2"])
def test_a_wrong_number_of_segmentations_is_refused(tok, n):
    with pytest.raises(ValueError, match="n must be a whole number of at least 1"):
        tok.encode_nbest("a", n)


def test_wrong_options_and_other_kinds_are_refused(tok):
    for alpha in (-0.1, float("nan"), float("inf"), "1"):
        with pytest.raises(ValueError, match="alpha must be a number of at least 0"):
            tok.encode_sampled("a", alpha, 0)
    with pytest.raises(ValueError, match="seed must be a whole number"):
        tok.encode_sampled("a", 1, -1)
    bpe = Tokenizer.train(["ab ab"], 257, min_frequency=1, special_tokens=())
    for call in (
        lambda: bpe.encode_nbest("a", 1),
        lambda: bpe.encode_sampled("a", 1, 0),
        lambda: bpe.log_likelihood("a"),
    ):
        with pytest.raises(ValueError, match="only Unigram pieces have scores"):
            call()
