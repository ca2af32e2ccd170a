"""With the same seed, the kernels draw the same random ids as plain Python."""

import sys
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokenizer import PieceRules, Tokenizer
from tokenizer.encoding import segmentation_sampling as drawing
from tokenizer.encoding.dropout import DropoutEncoder
from tokenizer.encoding.segmentation_sampling import uniform_numbers
from tokenizer.encoding.segmentations import Segmentations

pytestmark = pytest.mark.filterwarnings("ignore:the split pattern")  # the regex is slower

NASTY = [
    b"",
    b"\0",
    b"a" * 3000,
    b" " * 3000,
    b"\xff\xfea\xe2\x82",
    "日本語 é\u0301 🙂\n\t it's 1234567".encode(),
    b"abcab" * 400,
]
TEXTS = st.one_of(st.text(max_size=200).map(str.encode), st.binary(max_size=100))


@pytest.fixture(scope="module")
def merging(trained):
    """Return BPE encoders in plain Python and with kernels, by name."""
    vocabularies = {name: tok.vocabulary for name, tok in trained.items()}
    words = ["abc ab\nabcab 日本"] * 3
    vocabularies["regex"] = Tokenizer.train(words, 262, r"\S+|\s", min_frequency=1, special_tokens=()).vocabulary
    return {name: _both(DropoutEncoder, vocabulary) for name, vocabulary in vocabularies.items()}


@pytest.fixture(scope="module")
def segmenting(stdlib_texts):
    """Return Unigram encoders in plain Python and with kernels, by whether unknown characters become bytes."""
    both = {}
    for falls_back in (False, True):
        rules = PieceRules(byte_fallback=falls_back)
        options = {"kind": "unigram", "pattern": "nmt_nfkc", "pieces": rules, "special_tokens": ()}
        both[falls_back] = _both(Segmentations, Tokenizer.train(stdlib_texts[:5], 600, **options).vocabulary)
    return both


def _both(make, vocabulary):
    tables = vocabulary.kernel_tables()
    return [make(vocabulary, lambda: tables, plain_bytes) for plain_bytes in (sys.maxsize, -1)]


def assert_equal_draws(plain, kernel, seed):
    """plain, kernel: functions from a random generator to ids."""
    one, other = Random(seed), Random(seed)
    assert plain(one) == kernel(other)
    assert one.random() == other.random()  # both used as many numbers


@given(TEXTS, st.floats(0, 1), st.integers(0, 2**70))
def test_dropout_by_kernels_gives_the_ids_of_plain_python(merging, text, dropout, seed):
    for plain, kernel in merging.values():
        assert_equal_draws(
            lambda random, e=plain: e.encode(text, dropout, random),
            lambda random, e=kernel: e.encode(text, dropout, random),
            seed,
        )


@given(TEXTS, st.floats(0, 20), st.integers(0, 2**70))
@example("<unk> 日本 \u0301é".encode(), 0.0, 0)
def test_sampling_by_kernels_gives_the_ids_of_plain_python(segmenting, text, alpha, seed):
    for plain, kernel in segmenting.values():
        assert_equal_draws(
            lambda random, e=plain: e.sample(text, alpha, random),
            lambda random, e=kernel: e.sample(text, alpha, random),
            seed,
        )


@pytest.mark.parametrize("per_byte", [0.0, 1.5])
def test_long_and_nasty_texts_have_equal_draws_with_any_supply_of_random_numbers(
    merging, segmenting, stdlib_texts, monkeypatch, per_byte
):
    monkeypatch.setattr(drawing, "NUMBERS_PER_BYTE", per_byte)
    monkeypatch.setattr(drawing, "LEAST_NUMBERS", 1 if per_byte else 64)
    for number, text in enumerate([*NASTY, stdlib_texts[0][:20_000].encode()]):
        for plain, kernel in merging.values():
            for dropout in (0.1, 0.9):
                assert plain.encode(text, dropout, Random(number)) == kernel.encode(text, dropout, Random(number))
        for plain, kernel in segmenting.values():
            assert plain.sample(text, 0.2, Random(number)) == kernel.sample(text, 0.2, Random(number))


@given(st.integers(0, 2**70), st.integers(0, 700))
def test_many_random_numbers_at_once_are_those_of_single_calls(seed, n):
    one, other = Random(seed), Random(seed)
    assert uniform_numbers(one, n).tolist() == [other.random() for _ in range(n)]
    assert one.getstate() == other.getstate()


def test_an_alpha_too_large_for_float64_is_refused(segmenting):
    for plain, kernel in segmenting.values():
        for encoder in (plain, kernel):
            with pytest.raises(ValueError, match=r"alpha is 1e\+200, but the scores of this vocabulary allow at most"):
                encoder.sample(b"ab", 1e200, Random(0))
