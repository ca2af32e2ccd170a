"""Splits equal those of tiktoken and tokenizers for every code point."""

import hashlib
import itertools
import random
import subprocess
import sys
import warnings

import pytest
import regex
import tiktoken
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from tokenizer import Tokenizer
from tokenizer.splitting.automata import stored_automata
from tokenizer.splitting.patterns import NAMES, SPELLINGS, resolve_pattern
from tokenizer.splitting.pretokenize import split
from tokenizer.splitting.regex_compilation import compile_automaton
from tokenizer.splitting.scanner import pretokens, regex_pretokens
from tokenizer.splitting.unicode_classes import PROPERTIES, code_point_classes, probe_tiktoken

NAMED = ["gpt2", "cl100k", "o200k", "llama3", "qwen2"]
SURROGATES = range(0xD800, 0xE000)


def tiktoken_splits(strings, ours, pattern):
    """Return tiktoken's splits of the strings, found with a vocabulary in which each of our pretokens is a token.

    Joins of two of our pretokens are tokens too. They appear in the result if tiktoken splits more coarsely.
    """
    ranks = {bytes([byte]): byte for byte in range(256)}
    for pieces in ours:
        for pretoken in pieces:
            ranks.setdefault(pretoken, len(ranks))
    for pieces in ours:
        for left, right in itertools.pairwise(pieces):
            ranks.setdefault(left + right, len(ranks))
    encoding = tiktoken.Encoding("splits", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    token_of = {rank: token for token, rank in ranks.items()}
    return [[token_of[i] for i in encoding.encode_ordinary(text)] for text in strings]


def assert_split_as_tiktoken(strings, name, pattern):
    ours = [split(text, resolve_pattern(name)) for text in strings]
    theirs = tiktoken_splits(strings, ours, pattern)
    for text, mine, other in zip(strings, ours, theirs, strict=True):
        assert mine == other, (name, text)


def assert_split_as_tokenizers(strings, name):
    pattern = resolve_pattern(name)
    theirs = pre_tokenizers.Split(Regex(pattern.regex), "isolated")
    for text in strings:
        assert split(text, pattern) == [piece.encode() for piece, _ in theirs.pre_tokenize_str(text)], (name, text)


def strings_around(code_points):
    """Return strings of some hundred code points each, in contexts that distinguish their classes."""
    characters = [chr(c) for c in code_points if c not in SURROGATES]
    for first in range(0, len(characters), 512):
        some = characters[first : first + 512]
        yield "".join(f"x{c} {c}1\n{c}A{c}Aa'{c} '{c}e'L{c}..{c}a" for c in some)


def code_points_of_every_kind():
    """Return all code points, but of each run of one class only the first and the last 128."""
    kept, place = [], 0
    for _, run in itertools.groupby(code_point_classes()):
        length = sum(1 for _ in run)
        kept += [*range(place, place + min(length, 128)), *range(place + max(128, length - 128), place + length)]
        place += length
    return kept


def test_class_table_is_tiktokens_on_every_code_point():
    assert code_point_classes() == probe_tiktoken()


@pytest.mark.parametrize(("number", "prop"), list(enumerate(PROPERTIES, start=1)))
def test_class_table_is_that_of_tokenizers_on_every_code_point(number, prop):
    everything = "".join(chr(c) for c in range(0x110000) if c not in SURROGATES)
    runs = pre_tokenizers.Split(Regex(f"{prop}+"), "removed", invert=True).pre_tokenize_str(everything)
    members = [ord(character) for run, _ in runs for character in run]
    assert members == [c for c, found in enumerate(code_point_classes()) if found == number]


@pytest.mark.parametrize("name", NAMED)
def test_code_points_of_every_kind_split_as_in_tiktoken_and_tokenizers(name, published_patterns):
    strings = list(strings_around(code_points_of_every_kind()))
    assert_split_as_tiktoken(strings, name, published_patterns[name])
    assert_split_as_tokenizers(strings, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_every_code_point_splits_as_in_tiktoken_and_tokenizers(name, published_patterns):
    for first in range(0, 0x110000, 1 << 15):
        strings = list(strings_around(range(first, first + (1 << 15))))
        assert_split_as_tiktoken(strings, name, published_patterns[name])
        assert_split_as_tokenizers(strings, name)


@pytest.mark.parametrize("name", NAMED)
def test_all_pairs_and_triples_of_classes_split_as_in_tiktoken(name, published_patterns, representatives):
    everything = "".join(representatives.values())
    strings = ["".join(pair) for pair in itertools.product(everything, repeat=2)]
    one_each = [members[0] for members in representatives.values()] + ["\r", "1", "ſ"]
    strings += ["".join(triple) for triple in itertools.product(one_each, repeat=3)]
    rng = random.Random(2)
    strings += ["".join(rng.choices(everything, k=3)) for _ in range(10_000)]
    assert_split_as_tiktoken(strings, name, published_patterns[name])


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize(("characters", "length"), [("Asſ字\u03011.'/ \t\n", 4), ("As字' \n", 6)])
def test_all_short_strings_of_the_classes_split_as_by_regex(name, characters, length):
    pattern = resolve_pattern(name)
    compiled = regex.compile(pattern.regex)
    for text in map("".join, itertools.product(characters, repeat=length)):
        assert list(pretokens(text.encode(), pattern.automaton)) == [x.encode() for x in compiled.findall(text)], text


@pytest.mark.parametrize("name", NAMED)
def test_random_strings_split_as_in_tiktoken(name, published_patterns, random_strings):
    assert_split_as_tiktoken(random_strings(5_000, seed=3), name, published_patterns[name])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_a_million_random_strings_split_as_in_tiktoken(part, published_patterns, random_strings):
    for seed in range(100 + 5 * part, 105 + 5 * part):
        strings = random_strings(20_000, seed)
        for name in NAMED:
            assert_split_as_tiktoken(strings, name, published_patterns[name])


@pytest.mark.parametrize("name", NAMED)
def test_random_strings_split_as_by_the_canonical_regex_in_tokenizers_and_tiktoken(name, random_strings):
    assert_split_as_tokenizers(random_strings(5_000, seed=4), name)
    assert_split_as_tiktoken(random_strings(5_000, seed=6), name, resolve_pattern(name).regex)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_taken_for_a_named_pattern_splits_like_it_in_tiktoken(spelling, random_strings):
    assert_split_as_tiktoken(random_strings(3_000, seed=8), resolve_pattern(spelling).name, spelling)


@pytest.mark.parametrize("name", NAMED)
def test_scanner_and_regex_engine_agree(name, random_strings, stdlib_texts):
    pattern = resolve_pattern(name)
    assert pattern.automaton is not None
    for text in random_strings(5_000, seed=5) + stdlib_texts[:10]:
        assert split(text, pattern) == list(regex_pretokens(text.encode(), pattern.regex)), text


@pytest.mark.parametrize("name", NAMED)
def test_the_stored_automaton_of_a_named_pattern_is_compiled_from_its_regex(name):
    regex = resolve_pattern(name).regex
    assert stored_automata()[regex] == compile_automaton(regex), "run python -m tokenizer.splitting.patterns"


def test_named_patterns_and_their_spellings_are_the_same_pattern(published_patterns):
    assert resolve_pattern("r50k") == resolve_pattern("p50k") == resolve_pattern("gpt2")
    assert resolve_pattern("cl100k-2023") == resolve_pattern("llama3")
    assert set(NAMES.values()) == set(NAMED)
    for name in NAMED:
        assert resolve_pattern(published_patterns[name]) == resolve_pattern(name)
        assert resolve_pattern(resolve_pattern(name).regex) == resolve_pattern(name)
        assert not regex.search(r"[+*?]\+|\d}\+", resolve_pattern(name).regex)  # nothing possessive


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("gpt2", "931e61ddfcccd49430e29ba602ed9710028c7580c00728c3b5a5b0307e77f6a2"),
        ("cl100k", "fa0e220935725d9b569ee68a1a052639be00ae572b2a7d667af4b8d20fbe5331"),
        ("llama3", "e2f862fe8e004afe9c057171d9b5fc142df9a7e7785728cf69160df63fcdfad2"),
    ],
)
def test_the_fingerprint_of_a_pattern_never_changes(name, digest):
    assert hashlib.sha256(resolve_pattern(name).identity.encode()).hexdigest() == digest


def test_cl100k_and_llama3_differ_in_final_white_space():
    assert split("a\n  ", resolve_pattern("cl100k")) == [b"a", b"\n  "]
    assert split("a\n  ", resolve_pattern("llama3")) == [b"a", b"\n", b"  "]
    assert split("a\n  b", resolve_pattern("cl100k")) == split("a\n  b", resolve_pattern("llama3"))


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("HTMLParser", "HTMLParser"),
        ("parseHTML5", "parse HTML 5"),
        ("don'tIt'LL", "don't It'LL"),
        ("字ABC", "字 ABC"),
        ("A字BCd", "A字BCd"),
        ("cafe\u0301Bar!\u0301x!!\u0301x", "cafe\u0301 Bar !\u0301x !!\u0301 x"),
        (".\n/\n/.", ".\n/\n/ ."),
    ],
)
def test_o200k_splits_words_on_case(text, pieces):
    assert split(text, resolve_pattern("o200k")) == [piece.encode() for piece in pieces.split(" ")]


@pytest.mark.parametrize("name", NAMED)
def test_no_text_takes_more_than_linear_time(name, representatives):
    class Counted(list):
        reads = 0

        def __getitem__(self, place):
            Counted.reads += 1
            return list.__getitem__(self, place)

    counted = resolve_pattern(name).automaton._replace()
    counted.table = Counted(counted.table)
    kinds = [members[0] for members in representatives.values()] + ["\r"]
    for one, other in itertools.product(kinds, repeat=2):
        text = one + other * 500 + one * 500 + (one + other) * 250
        Counted.reads = 0
        number = sum(1 for _ in pretokens(text.encode(), counted))
        assert number <= Counted.reads <= 4 * len(text)


@pytest.mark.parametrize("name", NAMED)
def test_text_cut_before_white_space_after_an_ascii_letter_or_digit_has_the_same_pretokens(name, random_strings):
    pattern = resolve_pattern(name)
    cuts = 0
    for text in random_strings(5_000, seed=9):
        for place in regex.finditer(r"[A-Za-z0-9]\K(?=[ \n])", text):
            pieces = split(text[: place.end()], pattern) + split(text[place.end() :], pattern)
            assert pieces == split(text, pattern), text
            cuts += 1
    assert cuts > 2_500


@pytest.mark.parametrize("name", NAMED)
def test_bytes_that_are_not_utf8_stand_alone_and_split_the_text_around_them(name):
    pattern = resolve_pattern(name)
    bad = [b"\xff", b"\xc0", b"\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xf0\x9f\x98", b"\xc3"]
    for piece in bad:
        alone = [bytes([byte]) for byte in piece]
        assert split(b"ab  " + piece + b"  cd", pattern) == [b"ab", b"  ", *alone, b" ", b" cd"]
        assert split(piece, pattern) == alone


PIECES = (
    b"\xc3|\xa9|\xe2\x82\xac|\xe5\xad|\x97|\xcc\x81|\xed\xa0\x80|\xf0\x9f\x98\x80|\xf4\x90\x80\x80|'\xc5\xbf|'s|'L|l"
)
PIECES = [*PIECES.split(b"|"), b" ", b"\t", b"\n", b"\r", b"a", b"A", b"1", b"/", b"."]
any_bytes = st.binary(max_size=60) | st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join)


@given(any_bytes)
def test_any_bytes_split_alike_by_kernel_and_by_regex(data):
    for name in NAMED:
        pattern = resolve_pattern(name)
        pieces = split(data, pattern)
        assert b"".join(pieces) == data
        assert all(pieces)
        if not regex.search(r"[^\u0000-\u0350]", data.decode("utf-8", "ignore")):
            assert pieces == list(regex_pretokens(data, pattern.regex))


@given(any_bytes)
def test_any_bytes_split_alike_by_kernel_and_in_plain_python(data):
    for name in NAMED:
        pattern = resolve_pattern(name)
        assert split(data, pattern) == list(pretokens(data, pattern.automaton))


@pytest.mark.parametrize("name", NAMED)
def test_random_strings_split_alike_by_kernel_and_in_plain_python(name, random_strings, stdlib_texts):
    pattern = resolve_pattern(name)
    for text in random_strings(5_000, seed=7) + stdlib_texts[:10]:
        assert split(text, pattern) == list(pretokens(text.encode(), pattern.automaton)), text


@pytest.mark.parametrize("name", NAMED)
def test_long_ascii_texts_split_alike_by_windows_of_64_bytes_and_in_plain_python(name):
    """The kernel reads ASCII in windows and leaves undecided places to the automaton. So every kind of text must
    start at every offset of a window, and some runs must be longer than a window."""
    pattern = resolve_pattern(name)
    rng = random.Random(11)
    pieces = [
        *"aZ5'!/\t \n\r",
        "é",
        "字",
        "\u0301",
        " the",
        "  ",
        "\n\n",
        "!\n/\n",
        "'s",
        "'LL",
        "don't",
        "ABc",
        "it'ſ",
        "123",
    ]
    for _ in range(3000):
        many = rng.sample(pieces, rng.choice((2, 4, len(pieces))))
        runs = (rng.choice(many) * rng.choice((1, 1, 1, 2, 3, 17, 70)) for _ in range(rng.randrange(1, 60)))
        text = "".join(runs).encode()
        text = text[rng.randrange(3) :] + b"x" * rng.choice((0, 0, 64))
        assert split(text, pattern) == list(pretokens(text, pattern.automaton)), text


def test_the_plain_python_scanner_loads_neither_numpy_nor_numba_nor_regex():
    program = """if True:
        import sys
        from tokenizer.splitting.patterns import resolve_pattern
        from tokenizer.splitting.scanner import pretokens
        for name in ("gpt2", "cl100k", "o200k", "llama3", "qwen2"):
            assert list(pretokens("Grüße, 世界".encode(), resolve_pattern(name).automaton))
        print(*{"numpy", "numba", "regex", "pyarrow"} & sys.modules.keys())
    """
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == []


@pytest.mark.parametrize("regex", [r"[a-z]+", r"[a-w]+|x*", r"b", r"(?=c)"])
def test_text_that_a_regex_leaves_unmatched_is_a_pretoken_as_in_tokenizers(regex):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pattern = resolve_pattern(regex)
    theirs = pre_tokenizers.Split(Regex(pattern.regex), "isolated")
    for text in ("ab12cd!", "12", "xab--x", "", "ab"):
        assert split(text, pattern) == [piece.encode() for piece, _ in theirs.pre_tokenize_str(text)]


def test_a_custom_regex_is_announced_once():
    with pytest.warns(UserWarning, match="regex module"):
        resolve_pattern(r"\w+|\W+once")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolve_pattern(r"\w+|\W+once")


@pytest.mark.parametrize("regex", [r"[\p{Lu}\p{M}&&[^\p{Han}]]*[\p{Ll}]+", r"[a[b]]+", r"[\w--\d]+", r"x|[a-z~~b]"])
def test_sets_within_classes_which_engines_read_differently_are_refused(regex):
    with pytest.raises(ValueError, match="inside a character class: other engines read it as a set operation"):
        resolve_pattern(regex)


@pytest.mark.filterwarnings("ignore:the split pattern")
@pytest.mark.parametrize("regex", [r"[[:alpha:]]+", r"[\[\]a-z]+", r"[a\-\-\&\&b]+|\[a&&b", r"[]a]+|--"])
def test_characters_that_only_look_like_sets_split_as_in_tokenizers(regex):
    theirs = pre_tokenizers.Split(Regex(regex), "isolated")
    for text in ("ab[cd]x--y", "[a&&b]", "a]]-&", "xyz"):
        expected = [piece.encode() for piece, _ in theirs.pre_tokenize_str(text)]
        assert split(text, resolve_pattern(regex)) == expected


@pytest.mark.filterwarnings("ignore:the split pattern", "ignore:the corpus ran out")
def test_possessive_intervals_are_written_so_that_tokenizers_does_not_repeat_them(tmp_path):
    text = ["12345678 1234 " * 20]
    with pytest.raises(ValueError, match=r"has '\{1,2\}\+', which repeats .* write \(\?>x\{1,2\}\) for x\{1,2\}\+"):
        Tokenizer.train(text, 270, pattern=r"\p{N}{1,2}+|\s")
    tok = Tokenizer.train(text, 270, pattern=r"(?>\p{N}{1,2})|\s")
    tok.save(tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tok.encode("1234567 8") == theirs.encode("1234567 8").ids
    content = (tmp_path / "tokenizer.json").read_text().replace("(?>\\\\p{N}{1,2})", "\\\\p{N}{1,2}+")
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json: the split pattern .* repeats a repetition"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("wrong", ["(", "", None, 3])
def test_an_invalid_pattern_is_refused(wrong):
    with pytest.raises(ValueError, match="pattern"):
        resolve_pattern(wrong)
