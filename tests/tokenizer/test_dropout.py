"""BPE dropout has the distribution of the paper's algorithm, and a seed decides every draw."""

from collections import Counter
from functools import cache
from itertools import pairwise, product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import chisquare

from tokenizer import Tokenizer

BYTES = {bytes([byte]): byte for byte in range(256)}
MERGES = [(b"a", b"b"), (b"b", b"c"), (b"a", b"a"), (b"ab", b"c"), (b"aa", b"aa"), (b"a", b"bc"), (b"abc", b"ab")]
TOKENS = list(dict.fromkeys(left + right for left, right in MERGES))


@pytest.fixture(scope="module")
def tok():
    return Tokenizer.from_merges(
        BYTES | {token: 256 + k for k, token in enumerate(TOKENS)}, MERGES, "gpt2", {"<s>": 300}
    )


@cache
def distribution(parts, dropout):
    """Return the probability of each segmentation: algorithm 1 of the paper, with all sets of dropped merges."""
    possible = [(MERGES.index(pair), at) for at, pair in enumerate(pairwise(parts)) if pair in MERGES]
    total = Counter()
    for dropped in product([False, True], repeat=len(possible)):
        probability = 1.0
        for is_dropped in dropped:
            probability *= dropout if is_dropped else 1 - dropout
        kept = [merge for merge, is_dropped in zip(possible, dropped, strict=True) if not is_dropped]
        if not kept:
            total[parts] += probability
            continue
        _, at = min(kept)
        for result, share in distribution((*parts[:at], parts[at] + parts[at + 1], *parts[at + 2 :]), dropout).items():
            total[result] += probability * share
    return total


def segmentation(tok, text, dropout, seed):
    return tuple(map(tok.token_bytes, tok.encode_with_dropout(text, dropout, seed)))


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("text", ["abc", "aaaa", "aaaaa", "abcab", "aabca", "bcabcab"])
def test_segmentations_have_the_probabilities_of_the_papers_algorithm(tok, text, dropout):
    draws = 4000
    expected = distribution(tuple(bytes([byte]) for byte in text.encode()), dropout)
    assert sum(expected.values()) == pytest.approx(1)
    seen = Counter(segmentation(tok, text, dropout, seed) for seed in range(draws))
    assert seen.keys() <= {result for result, probability in expected.items() if probability}
    assert sum(abs(seen[result] / draws - share) for result, share in expected.items()) / 2 < 0.05  # total variation
    rare = {result for result, share in expected.items() if draws * share < 5}
    bins = [(seen[result], draws * share) for result, share in expected.items() if result not in rare]
    bins.append((sum(seen[result] for result in rare), draws * sum(expected[result] for result in rare)))
    found, wanted = zip(*[each for each in bins if each[1] > 0], strict=True)
    assert chisquare(found, wanted).pvalue > 1e-4


def test_pretokens_are_segmented_independently(tok):
    draws = 4000
    one = distribution((b"a", b"b", b"c"), 0.5)
    both = Counter(segmentation(tok, "abc\nabc", 0.5, seed) for seed in range(draws))
    for first, second in product(one, one):
        assert both[*first, b"\n", *second] / draws == pytest.approx(one[first] * one[second], abs=0.03)


@given(st.one_of(st.text(max_size=100), st.binary(max_size=100)), st.floats(0, 1), st.integers(0))
@example("<|sep|> a<|pad|>", 0.5, 0)
def test_any_text_is_decoded_exactly_and_a_seed_repeats_its_ids(trained, text, dropout, seed):
    tok = trained["cl100k"]
    data = text.encode() if isinstance(text, str) else text

    def encode(given, probability):
        return tok.encode_with_dropout(given, probability, seed, disallowed_special=())

    ids = encode(text, dropout)
    assert tok.decode_bytes(ids) == data
    assert encode(data, dropout) == ids
    assert encode(text, 0) == tok.encode_ordinary(text)
    assert encode(text, 1) == [tok.encode_single_token(bytes([byte])) for byte in data]


def test_dropout_that_almost_never_drops_merges_as_encode_does(trained, stdlib_texts, random_strings):
    for tok in trained.values():
        for text in [stdlib_texts[0][:50_000], *random_strings(500, seed=1), "a" * 3000, " " * 3000]:
            ids = tok.encode_with_dropout(text, 5e-324, 0, disallowed_special=())
            assert ids == tok.encode(text, disallowed_special=())


def test_more_dropout_gives_more_tokens_and_other_seeds_other_ids(trained, stdlib_texts):
    tok, text = trained["gpt2"], stdlib_texts[0][:5000]
    numbers = [len(tok.encode_with_dropout(text, tenths / 10, 1)) for tenths in range(11)]
    assert numbers == sorted(set(numbers))
    assert len({tuple(tok.encode_with_dropout(text, 0.1, seed)) for seed in range(20)}) == 20


def test_tokenizers_with_equal_ids_draw_equal_ids(trained, tmp_path):
    tok = trained["cl100k"]
    ranks = {tok.token_bytes(i): i for i in range(len(tok)) if tok.token_byte_lengths[i]}
    of_ranks = Tokenizer.from_ranks(ranks, "cl100k", tok.special_tokens)
    tok.save(tmp_path)
    text = "The quick brown fox jumps over the lazy dog. " * 20
    expected = tok.encode_with_dropout(text, 0.3, 7)
    assert of_ranks.encode_with_dropout(text, 0.3, 7) == expected
    assert Tokenizer.load(tmp_path).encode_with_dropout(text, 0.3, 7) == expected


def test_ids_of_a_seed_are_the_same_in_every_version(tok):
    assert tok.encode_with_dropout("abcabcab aaaa", 0.5, 12345) == [97, 98, 99, 97, 257, 256, 32, 258, 97, 97]


def test_special_tokens_are_kept(tok):
    for seed in range(20):
        ids = tok.encode_with_dropout("abc<s>abc", 0.5, seed, allowed_special="all")
        assert ids.count(300) == 1
        assert tok.decode(ids) == "abc<s>abc"
    with pytest.raises(ValueError, match="the special token '<s>' at byte 3"):
        tok.encode_with_dropout("abc<s>", 0.5, 0)


def test_wrong_arguments_and_vocabularies_without_merges_are_refused(tok):
    for wrong in (-0.1, 1.1, float("nan"), "0.1"):
        with pytest.raises(ValueError, match="dropout must be a probability from 0 to 1"):
            tok.encode_with_dropout("a", wrong, 0)
    for wrong in (None, -1, 0.5):
        with pytest.raises(ValueError, match="seed must be a whole number of at least 0"):
            tok.encode_with_dropout("a", 0.1, wrong)
    with pytest.raises(ValueError, match="dropout is for BPE: wordpiece has no merges to drop"):
        Tokenizer.from_wordpiece({"[UNK]": 0, "a": 1}).encode_with_dropout("a", 0.1, 0)
    missing = Tokenizer.from_merges({token: i for token, i in BYTES.items() if token != b"~"}, [], "gpt2")
    with pytest.raises(ValueError, match="the byte 0x7e at byte offset 2"):
        missing.encode_with_dropout("ab~", 0.1, 0)
