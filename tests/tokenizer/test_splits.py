"""Splits are those of tiktoken and tokenizers, code point by code point."""

import itertools
import random
import warnings

import numpy as np
import pytest
import regex
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from tokenizer.patterns import CL100K_2023_REGEX, Pattern, resolve_pattern
from tokenizer.pretokenize import split
from tokenizer.unicode_classes import code_point_classes, probe_tiktoken

NAMED = ["gpt2", "cl100k"]


def tiktoken_splits(strings, ours, pattern):
    """How tiktoken splits the strings, told through a vocabulary in which every pretoken of ours is a token.

    Joins of two of ours are tokens as well: were tiktoken to split coarser than we do, they would come out.
    """
    ranks = {bytes([byte]): byte for byte in range(256)}
    for pretokens in ours:
        for pretoken in pretokens:
            ranks.setdefault(pretoken, len(ranks))
    for pretokens in ours:
        for left, right in itertools.pairwise(pretokens):
            ranks.setdefault(left + right, len(ranks))
    encoding = tiktoken.Encoding("splits", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    token_of = {rank: token for token, rank in ranks.items()}
    return [[token_of[i] for i in encoding.encode_ordinary(text)] for text in strings]


def assert_split_as_tiktoken(strings, name, pattern):
    ours = [split(text, resolve_pattern(name)) for text in strings]
    theirs = tiktoken_splits(strings, ours, pattern)
    for text, mine, other in zip(strings, ours, theirs, strict=True):
        assert mine == other, (name, text)


def test_class_table_is_tiktokens_on_every_code_point():
    np.testing.assert_array_equal(code_point_classes(), probe_tiktoken())


@pytest.mark.parametrize("name", NAMED)
def test_every_code_point_splits_as_in_tokenizers(name):
    pattern = resolve_pattern(name)
    theirs = pre_tokenizers.Split(Regex(pattern.regex), "isolated")
    code_points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for first in range(0, len(code_points), 1 << 12):
        text = "".join(f"x{chr(c)} {chr(c)}1\n" for c in code_points[first : first + (1 << 12)])
        assert split(text, pattern) == [piece.encode() for piece, _ in theirs.pre_tokenize_str(text)]


@pytest.mark.parametrize("name", NAMED)
def test_code_points_at_class_borders_split_as_in_tiktoken(name, tiktoken_patterns):
    borders = np.flatnonzero(np.diff(code_point_classes()))
    some = {int(c) for border in borders for c in (border, border + 1)}
    some |= set(random.Random(1).sample(range(0x110000), 3000))
    strings = [f"x{chr(c)}y {chr(c)}{chr(c)}1\t{chr(c)}\n" for c in sorted(some) if not 0xD800 <= c < 0xE000]
    assert_split_as_tiktoken(strings, name, tiktoken_patterns[name])


@pytest.mark.parametrize("name", NAMED)
def test_all_pairs_and_triples_of_classes_split_as_in_tiktoken(name, tiktoken_patterns, representatives):
    everything = "".join(representatives.values())
    strings = ["".join(pair) for pair in itertools.product(everything, repeat=2)]
    one_each = [members[0] for members in representatives.values()] + ["\r", "1", "ſ"]
    strings += ["".join(triple) for triple in itertools.product(one_each, repeat=3)]
    rng = random.Random(2)
    strings += ["".join(rng.choices(everything, k=3)) for _ in range(10_000)]
    assert_split_as_tiktoken(strings, name, tiktoken_patterns[name])


@pytest.mark.parametrize("name", NAMED)
def test_random_strings_split_as_in_tiktoken(name, tiktoken_patterns, random_strings):
    assert_split_as_tiktoken(random_strings(20_000, seed=3), name, tiktoken_patterns[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_a_million_random_strings_split_as_in_tiktoken(name, tiktoken_patterns, random_strings):
    for seed in range(20):
        assert_split_as_tiktoken(random_strings(50_000, seed=100 + seed), name, tiktoken_patterns[name])


@pytest.mark.parametrize("name", [*NAMED, "cl100k-2023"])
def test_random_strings_split_as_by_regex_in_tokenizers(name, random_strings):
    pattern = resolve_pattern(name)
    theirs = pre_tokenizers.Split(Regex(pattern.regex), "isolated")
    for text in random_strings(20_000, seed=4):
        assert split(text, pattern) == [piece.encode() for piece, _ in theirs.pre_tokenize_str(text)], text


@pytest.mark.parametrize("name", [*NAMED, "cl100k-2023"])
def test_scanner_and_regex_engine_agree(name, random_strings, stdlib_texts):
    by_scanner = resolve_pattern(name)
    by_regex = Pattern(by_scanner.regex)
    assert by_regex.automaton is None
    assert by_scanner.automaton is not None
    for text in random_strings(5_000, seed=5) + stdlib_texts[:10]:
        assert split(text, by_scanner) == split(text, by_regex), text


def test_named_patterns_and_their_spellings_are_the_same_pattern(tiktoken_patterns):
    assert resolve_pattern("r50k") == resolve_pattern("p50k") == resolve_pattern("gpt2")
    for name in NAMED:
        assert resolve_pattern(tiktoken_patterns[name]) == resolve_pattern(name)
        assert resolve_pattern(resolve_pattern(name).regex) == resolve_pattern(name)
    assert "+" not in regex.sub(r"[\])}\w]\+(?!\+)", "", resolve_pattern("cl100k").regex)  # nothing possessive
    assert resolve_pattern(CL100K_2023_REGEX).name == "cl100k-2023"


def test_final_white_space_tells_the_two_cl100k_apart():
    assert split("a\n  ", resolve_pattern("cl100k")) == [b"a", b"\n  "]
    assert split("a\n  ", resolve_pattern("cl100k-2023")) == [b"a", b"\n", b"  "]
    assert split("a\n  b", resolve_pattern("cl100k")) == split("a\n  b", resolve_pattern("cl100k-2023"))


@pytest.mark.parametrize("name", NAMED)
def test_bytes_that_are_not_utf8_stand_alone_and_split_the_text_around_them(name):
    pattern = resolve_pattern(name)
    bad = [b"\xff", b"\xc0", b"\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xf0\x9f\x98", b"\xc3"]
    for piece in bad:
        alone = [bytes([byte]) for byte in piece]
        assert split(b"ab  " + piece + b"  cd", pattern) == [b"ab", b"  ", *alone, b" ", b" cd"]
        assert split(piece, pattern) == alone


@given(
    st.binary(max_size=60) | st.lists(st.sampled_from([b"\xc3", b"\xa9", b"\xe2\x82\xac", b" ", b"a", b"\n", b"'s"]))
)
def test_any_bytes_split_alike_by_scanner_and_regex(data):
    data = data if isinstance(data, bytes) else b"".join(data)
    for name in NAMED:
        pattern = resolve_pattern(name)
        pretokens = split(data, pattern)
        assert b"".join(pretokens) == data
        assert all(pretokens)
        if not regex.search(r"[^\u0000-\u0250]", data.decode("utf-8", "ignore")):
            assert pretokens == split(data, Pattern(pattern.regex))


@pytest.mark.parametrize("regex", [r"[a-z]+", r"[a-w]+|x*", r"b", r"(?=c)"])
def test_text_that_a_regex_leaves_unmatched_is_a_pretoken_as_in_tokenizers(regex):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pattern = resolve_pattern(regex)
    theirs = pre_tokenizers.Split(Regex(pattern.regex), "isolated")
    for text in ("ab12cd!", "12", "xab--x", "", "ab"):
        assert split(text, pattern) == [piece.encode() for piece, _ in theirs.pre_tokenize_str(text)]


def test_a_regex_of_ones_own_is_announced_once():
    with pytest.warns(UserWarning, match="regex module"):
        resolve_pattern(r"\w+|\W+once")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolve_pattern(r"\w+|\W+once")


@pytest.mark.parametrize("wrong", ["(", "", None, 3])
def test_a_pattern_that_is_none_is_refused(wrong):
    with pytest.raises(ValueError, match="pattern"):
        resolve_pattern(wrong)
