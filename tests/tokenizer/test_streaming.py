"""Ids of streams, first ids and numbers of ids are those of the whole text, in bounded memory and time."""

import json
import subprocess
import sys
import time
import warnings
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import PEAK_MEMORY
from tokenizer import Tokenizer
from tokenizer import encoding_methods as encoding
from tokenizer.encoding import text_encoder
from tokenizer.splitting import pretokenize
from tokenizer.splitting.patterns import resolve_pattern
from tokenizer.splitting.scanner import pretokens

PATTERNS = ["gpt2", "cl100k", "o200k", "llama3", "qwen2"]
PIECES = [
    "a",
    "B",
    "字",
    "ab CD",
    " ",
    "  ",
    "\n",
    "\r\n",
    "'",
    "'l",
    "'ll",
    "'RE",
    "1",
    "1234",
    ".",
    "/",
    "é",
    "e\u0301",
]
PIECES += [
    "ʰ",
    "\u0301",
    "😀",
    "\x00",
    "\ufffd",
    "\u2003",
    "\t",
    "ſ",
    "A" * 30,
    "字" * 10,
    " " * 30,
    "ÀÉ",
    "<|endoftext|>",
    "<|pad|>",
    "<|endof",
    "text|>",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)
BYTES = TEXTS.map(str.encode) | st.lists(st.sampled_from([b"a", b"\xff", b"\xe5\xad", b" ", b"\xf0\x9f", b"1"])).map(
    b"".join
)


# Fields of tokenizer.json. Normalizing a text twice, or its parts separately, gives other ids.
NORMALIZERS = {
    "Prepend": {"normalizer": {"type": "Prepend", "prepend": "x "}},
    "Strip": {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
    "ByteLevel": {"normalizer": {"type": "ByteLevel"}, "pre_tokenizer": None},
}


@pytest.fixture(
    scope="module",
    params=[*PATTERNS, "bert-uncased", "bert-cased", "t5-small", "NFC", *NORMALIZERS, r"\p{L}+|\s+|[^\p{L}\s]"],
)
def tok(request, tmp_path_factory):
    if request.param == "t5-small":
        return Tokenizer.load(request.getfixturevalue("shared") / "vectors" / "t5-small")
    model = "wordpiece" if request.param.startswith("bert") else "bpe"
    pattern = "gpt2" if request.param in ("NFC", *NORMALIZERS) else request.param
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the regex is slower, and there are few pairs
        made = Tokenizer.train(["".join(PIECES), "some text CD 字字 " * 3], 320, pattern, kind=model)
    if request.param == "NFC":
        ids = {made.token_bytes(i): i for i in range(len(made)) if made.token_byte_lengths[i]}
        return Tokenizer.from_merges(ids, made.merges, pattern, made.special_tokens, normalizer="NFC")
    if request.param in NORMALIZERS:
        made.save(folder := tmp_path_factory.mktemp("saved"))
        content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")) | NORMALIZERS[request.param]
        (folder / "changed.json").write_text(json.dumps(content), encoding="utf-8")
        return Tokenizer.load(folder / "changed.json")
    return made


@pytest.fixture
def short_streams(monkeypatch):
    """Encode streams a few bytes at a time, so that they are cut everywhere."""
    monkeypatch.setattr(text_encoder.TextEncoder.to_stream, "__defaults__", (5,))
    monkeypatch.setattr(pretokenize, "TAIL_BYTES", 64)
    monkeypatch.setattr(encoding, "LEAST_BYTES", 1)
    monkeypatch.setattr(encoding, "BYTES_PER_TOKEN", 1)


def cut_up(text, places):
    ends = sorted({min(place, len(text)) for place in places} | {0, len(text)})
    return [text[start:end] for start, end in pairwise(ends)]


@pytest.mark.usefixtures("short_streams")
def test_pieces_that_end_anywhere_have_the_ids_of_the_joined_text(tok):
    @settings(max_examples=150)
    @given(TEXTS | BYTES, st.lists(st.integers(0, 120), max_size=12))
    def check(text, places):
        for allowed, disallowed in (((), ()), ("all", ()), ((), "all"), ({"<|pad|>"}, {"<|endoftext|>"})):
            assert_streams(tok, text, places, allowed_special=allowed, disallowed_special=disallowed)

    check()


def assert_streams(tok, text, places, **options):
    """Check that the pieces of a text have its ids, or that both are refused with the same words."""
    try:
        expected = tok.encode(text, **options)
    except ValueError as error:
        expected = str(error)
    for pieces in (cut_up(text, places), [text[i : i + 1] for i in range(len(text))]):
        try:
            found = list(tok.encode_iterable(pieces, **options))
        except ValueError as error:
            found = str(error)
        assert found == expected


def test_a_special_token_in_a_stream_is_refused_unless_it_is_allowed(trained):
    tok = trained["gpt2"]
    pieces = ["some text ", "<|endof", "te", "xt|> and more"]
    with pytest.raises(ValueError, match=r"'<\|endoftext\|>' at byte 10: .* pass allowed_special"):
        list(tok.encode_iterable(pieces))
    assert list(tok.encode_iterable(pieces, disallowed_special=())) == tok.encode_ordinary("".join(pieces))
    expected = tok.encode("".join(pieces), allowed_special="all")
    assert list(tok.encode_iterable(pieces, allowed_special={"<|endoftext|>"})) == expected
    with pytest.raises(ValueError, match="allowed_special must be"):  # at once, and not with the first id
        tok.encode_iterable(pieces, allowed_special="<|endoftext|>")


def test_a_stream_with_special_tokens_takes_memory_for_its_last_part_only(trained):
    """A generator counts the pieces that are taken before the ids of the first ones are there."""
    tok, taken = trained["gpt2"], 0

    def pieces():
        nonlocal taken
        for _ in range(10_000):
            taken += 1
            yield "<|endoftext|>some text " * 10

    first = [next(ids) for ids in [tok.encode_iterable(pieces(), allowed_special="all")] for _ in range(20)]
    assert first == tok.encode("<|endoftext|>some text " * 20, allowed_special="all")[:20]
    assert taken < 10


@pytest.mark.usefixtures("short_streams")
def test_the_first_ids_are_those_of_the_whole_text(tok):
    @settings(max_examples=100)
    @given(TEXTS | BYTES, st.integers(0, 40))
    def check(text, most):
        for allowed in ((), "all"):
            options = {"allowed_special": allowed, "disallowed_special": ()}
            expected = tok.encode(text, **options)
            assert tok.encode(text, **options, max_tokens=most) == expected[:most]
            assert tok.count(text, **options) == len(expected)

    check()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_text_changes_the_pretokens_before_an_incomplete_end(pattern):
    """All continuations by up to two characters, one of each class, and by a longer text."""
    automaton = resolve_pattern(pattern).automaton
    continuations = [
        "",
        "a",
        "A",
        "字",
        "\u0301",
        "1",
        "'",
        "'l",
        "ll",
        "l",
        "e",
        " ",
        "\n",
        "\t",
        "/",
        ".",
        "aA",
        " a",
        "\na",
    ]

    @settings(max_examples=200)
    @given(TEXTS, st.sampled_from(continuations), TEXTS)
    def check(text, continuation, rest):
        decided = list(pretokens(text.encode(), automaton, complete=False))
        for whole in (text + continuation, text + continuation + rest):
            assert list(pretokens(whole.encode(), automaton))[: len(decided)] == decided

    check()


def test_real_text_is_encoded_in_pieces_and_in_parts(trained, stdlib_texts):
    text = "".join(stdlib_texts[:60])
    for tok in trained.values():
        ids = tok.encode_ordinary(text)
        assert list(tok.encode_iterable(text.splitlines(keepends=True), disallowed_special=())) == ids
        assert list(tok.encode_iterable([text], disallowed_special=())) == ids
        assert tok.count(text, disallowed_special=()) == len(ids)
        for most in (0, 1, 1000, len(ids), len(ids) + 1):
            assert tok.encode(text, disallowed_special=(), max_tokens=most) == ids[:most]


def test_first_ids_take_time_in_proportion_to_their_number(trained):
    tok = trained["cl100k"]
    text = b"The quick brown fox, jumps. " * 2_000_000
    assert tok.encode(text[:100_000], max_tokens=10) == tok.encode(text[:1000])[:10]
    started = time.process_time()
    assert len(tok.encode(text, disallowed_special=(), max_tokens=100)) == 100
    first = time.process_time() - started
    started = time.process_time()
    tok.count(text, disallowed_special=())
    assert first < (time.process_time() - started) / 10  # a thousandth is usual


def test_a_stream_takes_constant_memory(trained, tmp_path):
    trained["cl100k"].save(tmp_path)
    program = f"""{PEAK_MEMORY}
from collections import deque
from tokenizer import Tokenizer
tok = Tokenizer.load({str(tmp_path)!r})
def peak(megabytes):
    line = "The quick brown fox, 字字 1234 jumps.\\n" * 25_000
    deque(tok.encode_iterable(line for _ in range(megabytes)), maxlen=0)
    return peak_memory()
few = peak(2)
print((peak(30) - few) / 1e6)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 8


def test_special_tokens_are_checked_in_the_whole_text(trained):
    tok = trained["gpt2"]
    text = "a b c d " * 10 + "<|endoftext|>"
    with pytest.raises(ValueError, match=r"'<\|endoftext\|>' at byte 80"):
        tok.encode(text, max_tokens=2)
    with pytest.raises(ValueError, match=r"'<\|endoftext\|>' at byte 80"):
        tok.count(text)
    with pytest.raises(ValueError, match="max_tokens must be a whole number of at least 0, not -1"):
        tok.encode("a", max_tokens=-1)
    for wrong in ("a text", b"a text", 5):
        with pytest.raises(ValueError, match="pieces must be an iterable of texts"):
            tok.encode_iterable(wrong)
    with pytest.raises(ValueError, match="lone surrogate"):
        list(tok.encode_iterable(["a", "\ud800"]))


def test_a_missing_byte_is_named_by_its_place_in_the_stream(tmp_path):
    ids = {bytes([byte]): byte for byte in range(256) if byte != ord("~")}
    tok = Tokenizer.from_merges(ids, [], "gpt2", {"<x>": 300})
    with pytest.raises(ValueError, match="the byte 0x7e at byte offset 700001"):
        list(tok.encode_iterable(["a " * 300_000, "a " * 50_000, " ~"]))
    with pytest.raises(ValueError, match="the byte 0x7e at byte offset 5"):
        tok.count("a <x>~", allowed_special="all")
