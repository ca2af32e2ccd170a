"""Custom split patterns split as in tokenizers and tiktoken, and hostile patterns are refused."""

import json
import re
import subprocess
import sys
import warnings

import pytest
import tiktoken
import tokenizers
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from tokenizer import Tokenizer
from tokenizer.splitting.patterns import SPELLINGS, Pattern, resolve_pattern
from tokenizer.splitting.pretokenize import split
from tokenizer.splitting.regex_translation import compile_regex
from tokenizer.splitting.scanner import pretokens, regex_pretokens
from tokenizer.splitting.unicode_properties import case_variants, table_digest

pytestmark = pytest.mark.filterwarnings("ignore:the split pattern", "ignore:the corpus ran out")

EVERYTHING = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)
SINGLE = re.findall("..", "LuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCoCn")
ASSIGNED = EVERYTHING[:0x33000]  # without the empty planes
CATEGORIES = [*"LMNPSZC", "LC", *SINGLE]
SCRIPTS = ["Han", "Latin", "Greek", "Cyrillic", "Arabic", "Hiragana", "Katakana", "Hangul", "Common", "Inherited"]
PATTERNS = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|\p{Lu}+|\p{Nd}{1,3}|\p{P}+|\p{S}+",
    r"\p{Han}+|[\p{Hiragana}\p{Katakana}]+|[^\p{Han}\p{Hiragana}\p{Katakana}\s]+|\s+",
    r"\d+|\D",
    r"\p{^L}+|\p{Letter}{1,4}",
    r"[\P{Ll}a-f]+",
    r"(?i)[\p{Lu}k-s]+|ſ|[^\p{Lu}]x",
    r"(?i:sky|kilo|ı|σ)+|(?:x|(?i)y)z|[[:alpha:]]+|[[:^space:][:digit:]]",
    r"\w+|\h|[^\w\s]+",
    r"\b\w|\B\S",
    "(?x) \\p{Sc} # a currency\n  \\x{31} | [\\x{30}-9\\u0100-\\u017f] | \\N\\N",
]


def by_tokenizers(pattern, text):
    pieces = pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str(text)
    return [piece.encode() for piece, _ in pieces]


def members_in_tiktoken(pattern):
    single_bytes = {bytes([byte]): byte for byte in range(256)}
    probe = tiktoken.Encoding("probe", pat_str=pattern, mergeable_ranks=single_bytes, special_tokens={})
    return bytes(probe.encode_ordinary(EVERYTHING)).decode()


def assert_every_code_point_is_split_alike(pattern, text=EVERYTHING):
    ours, theirs = split(text, resolve_pattern(pattern)), by_tokenizers(pattern, text)
    assert len(ours) == len(theirs)
    assert ours == theirs


def test_every_general_category_is_that_of_tokenizers_on_every_assigned_code_point():
    assert_every_code_point_is_split_alike("|".join(rf"\p{{{name}}}+" for name in SINGLE), ASSIGNED)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CATEGORIES, *SCRIPTS, "White_Space", "Alphabetic", "Uppercase", "Ideographic"])
def test_every_property_is_that_of_both_engines_on_every_code_point(name):
    for pattern in (rf"\p{{{name}}}+", rf"[^\P{{{name}}}]+"):
        assert_every_code_point_is_split_alike(pattern)
        members = "".join(match.group() for match in compile_regex(pattern).finditer(EVERYTHING))
        assert members == members_in_tiktoken(pattern)


@pytest.mark.parametrize("pattern", [r"\s+", r"\S+", r"\d+", r"\D+", r"\h+", r"\p{Script=Han}+", r"(?i)[\p{Ll}]+"])
def test_classes_are_those_of_tiktoken_on_every_code_point(pattern):
    members = "".join(match.group() for match in compile_regex(pattern).finditer(EVERYTHING))
    assert members == members_in_tiktoken(pattern)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_assigned_code_point_is_split_as_in_tokenizers(pattern):
    assert_every_code_point_is_split_alike(pattern, ASSIGNED)


# Code points that are new in Unicode 17, that have case, or that distinguish the classes.
characters = st.one_of(
    st.sampled_from([*"\u208f\ua7ce\u1c89kKsStT'123 \t\n\r.,ßſıİ²¼\u200d字かカ\u0301\U000323b0", "'s", "'ll", "kilo"]),
    st.sampled_from(sorted(case_variants())),
    st.characters(exclude_categories=["Cs"]),
)


@given(st.lists(characters, max_size=12).map("".join), st.sampled_from(PATTERNS))
def test_any_text_is_split_as_in_tokenizers(text, pattern):
    assert split(text, resolve_pattern(pattern)) == by_tokenizers(pattern, text)


def test_a_code_point_newer_than_the_engines_is_no_letter(tmp_path):
    pattern = PATTERNS[0]
    tok = Tokenizer.train(["it's she's " * 20], 270, pattern=pattern)
    tok.save(tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert split("\u208f's", resolve_pattern(pattern)) == ["\u208f'".encode(), b"s"]
    assert tok.encode("\u208f's") == theirs.encode("\u208f's").ids


@pytest.mark.parametrize("written", [r"\pL+|\PL", r"[\pL]+|[^\pL]"])
def test_a_property_of_one_letter_works_and_is_refused_only_where_tokenizers_would_read_letters(written):
    assert split("añb1", resolve_pattern(written)) == ["añb".encode(), b"1"]
    with pytest.raises(ValueError, match=r"has \\pL, which is plain letters in tokenizer\.json: write \\p\{L\}"):
        Tokenizer.train(["some text"], 270, pattern=written)


@pytest.mark.parametrize("wrong", [r"\p{Klingon}", r"[^\p{Klingon}]", r"\P{Age=99}", r"[[:vowel:]]", r"\p{}"])
def test_an_unknown_property_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match=r"has the unknown property .*(Klingon|Age=99|vowel|\{\})"):
        resolve_pattern(wrong)


def test_the_fingerprint_of_a_custom_pattern_is_that_of_earlier_versions():
    assert resolve_pattern(r"\p{L}+|\s").identity == r"\p{L}+|\s"
    assert Pattern("[a-z]+").identity == "[a-z]+"
    assert table_digest()[:16] == "9430cd1058391b03", "another table needs another identity"


HOSTILE = [
    (r"(?:(?:(?:a{9999}){9999}){9999})|.", "elements once its counted repetitions are written out"),
    (r"(?:a{1,1000}){1,1000}b|.", "elements once its counted repetitions are written out"),
    (r"(?:a{0,999999999})*", "elements once its counted repetitions are written out"),
    (r"(?R)|a", r"has '\(\?R\)': recursion"),
    (r"(a(?1)?b)", r"has '\(\?1\)': recursion"),
    (r"(?<x>a)\g<x>", r"has '..g<': recursion"),
    ("(" * 4000 + "a" + ")" * 4000, "groups nested more than 100 deep"),
    ("a" * 10_001, "10,001 characters"),
    (r"(?e)a{e<=3}", "has the flag 'e'"),
]


def test_patterns_that_explode_are_refused_in_little_memory():
    program = """if True:
        import json, resource, sys
        from tokenizer.splitting.patterns import resolve_pattern
        resource.setrlimit(resource.RLIMIT_AS, (600_000_000, 600_000_000))
        for pattern in sys.argv[1:]:
            try:
                resolve_pattern(pattern)
            except ValueError as error:
                print(json.dumps(str(error)))
    """
    words = [sys.executable, "-c", program, *(pattern for pattern, _ in HOSTILE)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-500:]
    for (pattern, message), said in zip(HOSTILE, ran.stdout.splitlines(), strict=True):
        assert re.search(message, json.loads(said)), (pattern[:50], said)


@given(st.text(st.sampled_from("\\pPLwbxuN{}[]()^-&?:i*+|.,1a#<>=!R ")) | st.text())
def test_any_string_is_a_pattern_or_refused(pattern):
    try:
        found = resolve_pattern(pattern)
    except ValueError:
        return
    assert b"".join(split("ab (1)", found)) == b"ab (1)"


def test_a_pattern_that_backtracks_without_end_is_refused_by_name():
    program = """if True:
        from tokenizer import resolve_pattern
        try:
            list(resolve_pattern(r"(a|a)+$x|\\s").pretokens(b"a" * 40))
        except ValueError as error:
            print(error)
    """
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-500:]
    assert "the split pattern '(a|a)+$x|" in ran.stdout
    assert "backtracks too much" in ran.stdout


@pytest.mark.parametrize("pattern", [r"\p{L}+|\s", r"x*", r"x*|ab", r"(?=a)|a", r"(?<=a)b|a(?!b)|\s*", r"\Ab|a|"])
def test_long_texts_are_split_as_in_tokenizers_however_many_matches_they_have(pattern):
    text = "ab a  bxx b\n" * 3000
    assert split(text, resolve_pattern(pattern)) == by_tokenizers(pattern, text)


# Published patterns, and one whose contractions, digits and marks differ from all named ones.
PUBLISHED = [
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?(?>\p{L}+)|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    r"\s?\p{L}+|\s?\p{N}|\s?[^\s\p{L}\p{N}]++|\s+(?=[\s])|\s+",
    r"(?x) https?://\S+ | \p{Han} | \w+ (?: ' \w+ )* | \s+ | .",
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("regex", PUBLISHED)
def test_published_patterns_run_through_the_scanner_and_split_as_in_tokenizers(regex, random_strings, stdlib_texts):
    pattern = resolve_pattern(regex)
    assert pattern.automaton is not None
    for text in random_strings(3_000, seed=12) + stdlib_texts[:5] + ["see https://x.org/a?b now", "it's 12'000"]:
        assert split(text, pattern) == list(pretokens(text.encode(), pattern.automaton)) == by_tokenizers(regex, text)


def regexes():
    """Return regexes of a small grammar, most of which match any text."""
    sets = st.sampled_from([*"ab1 ", r"\n", r"\s", r"\S", r"\p{L}", r"[^ab]", r"[^\s\p{L}]", r"\w", "(?i:k)", "."])
    counts = st.sampled_from(["", "", "", "+", "*", "?", "{1,2}", "{2,}", "++", "?+", "{1,2}+"])
    ahead = st.tuples(st.sampled_from(["(?=", "(?!"]), sets, st.sampled_from(["", r"|\Z"])).map(
        lambda x: "".join(x) + ")"
    )
    single = st.tuples(sets, counts).map("".join)
    leaves = st.one_of(single, single, ahead, single.map("(?>{})".format))

    def groups(inner):
        sequences = st.lists(inner, min_size=1, max_size=3).map("".join)
        alternatives = st.lists(sequences, min_size=1, max_size=3).map("|".join)
        return st.tuples(alternatives, counts).map(lambda x: f"(?:{x[0]}){x[1]}")

    rest = st.sampled_from([r"[\s\S]", r"\s+(?!\S)|\s+|\S", r".|\n", r"\s+|\S+"])
    return st.tuples(st.recursive(leaves, groups, max_leaves=8), rest).map("|".join)


@given(regexes(), st.lists(st.text(st.sampled_from("ab1 \nkK'é\u212a\xff"), max_size=12), min_size=1, max_size=12))
def test_any_automaton_splits_as_the_regex_module_does(regex, texts):
    try:
        pattern = resolve_pattern(regex)
    except ValueError:
        assume(False)
    assume(pattern.automaton is not None)
    for text in texts:
        expected = list(regex_pretokens(text.encode(), regex))
        assert list(pretokens(text.encode(), pattern.automaton)) == expected == split(text, pattern)


@pytest.mark.parametrize(
    "regex",
    [
        r"a+b|a|[^a]",  # reads a run of a again and again
        r"ab*c|[\s\S]",  # depends on text far behind the match
        r"[a-z]+",  # leaves text between its matches
        r"x*|[\s\S]",  # matches empty text
        r"(a)\1|[\s\S]",
        r"(?<=a)b|[\s\S]",
        r"\ba|[\s\S]",
        r"a+?|[\s\S]",
        r"(?=ab)a|[\s\S]",
        r"a{2}{3}|[\s\S]",
        r"a{200}|[\s\S]",
    ],
)
def test_a_regex_without_an_automaton_gives_the_matches_of_the_regex_module(regex):
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        try:
            pattern = resolve_pattern(regex)
        except ValueError as error:
            assert "multiple repeat" in str(error)
            return
    assert pattern.automaton is None
    for text in ("aab aaa", "abbc abb", "a" * 450):
        matches = (match.group() for match in compile_regex(regex).finditer(text) if match.group())
        if regex not in ("[a-z]+", r"x*|[\s\S]"):
            assert split(text, pattern) == [match.encode() for match in matches]


@pytest.mark.parametrize(
    ("regex", "splits"),
    [(PUBLISHED[0], True), (PUBLISHED[3], True), (r"\w+ \w+|\s|\w+|\S", False), (r"[a-z]+\s*|[^a-z]", False)],
)
def test_a_text_is_cut_at_spaces_only_if_the_regex_splits_there(regex, splits):
    assert resolve_pattern(regex).splits_at_spaces is splits


LINES = "def f(x):\n    if x:\n        return 12345\n    return 2\n\nFoo bar\nbaz  \n"
ANCHORED = [
    r"^[ ]+|\w+|\s|[^\w\s]",
    r"\w+$|\s+|\S",
    r"(?x) [$^\s]+ $ # $ is an edge" "\n | [^$]",
    r"\s*\Z|\w+|\W",
    r"(?<=^)\S|.|\n",
]
# Regexes that tokenizers reads otherwise, and the part that it does.
MISREAD = [
    (r"(?m:.)+|\n", r"(?m:"),
    (r"(?im).+|\n", r"(?im)"),
    (r"[a-z]{2}?o", r"{2}?"),
    (r"\d{1,2}+|\D", r"{1,2}+"),
    (r"f(?i)OO|BAR|\s|\w", r"(?i)"),
    (r"[\U00000046]oo", r"\U"),
    (r"\mb\w+|\s|\w|\W", r"\m"),
    (r"\N{DIGIT ONE}|\w+|\W", r"\N{"),
]
UNREADABLE = [(r"(?s).+", r"(?s)"), (r"(?u)\w+|\W", "(?u)"), (r"(?P<word>\w+)|\W", "(?P<word>"), (r"(?|a|.)", "(?|")]
READ_ALIKE = [
    r"\A\w+|\s+\z|\w|\W",
    r"(?i)f|o|\s|\S",
    r"(?:x|(?i)FOO)|\s|\S",
    r"\w{2}|\w{,3}?\s|\w{1,2}?|\W",
    r"[$^]|\^|\$|.|\n",
]


def trained_by_tokenizers(regex, path):
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(regex), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    theirs.train_from_iterator([LINES] * 3, tokenizers.trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet))
    theirs.save(str(path))
    return theirs


@pytest.mark.parametrize("regex", ANCHORED)
def test_anchors_of_a_tokenizer_json_match_at_the_edges_of_lines(regex, tmp_path):
    theirs = trained_by_tokenizers(regex, tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    loaded.save(tmp_path / "saved")
    again = tokenizers.Tokenizer.from_file(str(tmp_path / "saved" / "tokenizer.json"))
    for text in (LINES, LINES * 50, "a\n", "\na", "a \n\n", "x"):
        assert loaded.encode(text) == theirs.encode(text).ids == again.encode(text).ids


@pytest.mark.parametrize("regex", ANCHORED)
def test_a_vocabulary_is_not_trained_with_anchors_that_tokenizers_would_read_at_every_line(regex):
    with pytest.raises(ValueError, match=r"has (\^|\$|\\Z), which .*: write \\A for the start of the text"):
        Tokenizer.train([LINES], 300, pattern=regex)


@pytest.mark.parametrize(("regex", "part"), MISREAD + UNREADABLE)
def test_a_vocabulary_is_not_trained_with_a_regex_that_tokenizers_reads_otherwise(regex, part):
    with pytest.raises(ValueError, match=f"has '?{re.escape(part)}"):
        Tokenizer.train([LINES], 300, pattern=regex)


@pytest.mark.parametrize(("regex", "part"), MISREAD)
def test_a_tokenizer_json_is_refused_if_its_regex_would_be_read_otherwise(regex, part, tmp_path):
    trained_by_tokenizers(regex, tmp_path / "tokenizer.json")
    assert split(LINES, resolve_pattern(regex)) != by_tokenizers(regex, LINES)
    with pytest.raises(ValueError, match=f"has '?{re.escape(part)}"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_the_regex_of_cl100k_in_tiktoken_is_another_one_in_a_tokenizer_json(tmp_path):
    regex = next(regex for regex, name in SPELLINGS.items() if name == "cl100k" and "{1,3}+" in regex)
    assert by_tokenizers(regex, "12345") == [b"12345"]
    assert split("12345", resolve_pattern(regex)) == [b"123", b"45"]
    trained_by_tokenizers(regex, tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match="repeats a repetition"):
        Tokenizer.load(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("regex", READ_ALIKE)
def test_a_regex_that_both_read_alike_is_trained_saved_and_loaded(regex, tmp_path):
    tok = Tokenizer.train([LINES], 290, pattern=regex)
    tok.save(tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in (LINES, "foo FOO bar\n\n", "^$ a\n"):
        assert tok.encode(text) == theirs.encode(text).ids == Tokenizer.load(tmp_path).encode(text)
