"""The ids of the pieces of a long text are the ids of the whole text."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenizer import Tokenizer

SAMPLE = "it's  We'll see\n\n  x y 12 345 a b c \t don't\u3000ok\r\n the end. " * 30


@pytest.fixture(scope="module", params=["gpt2", "cl100k", "o200k", "llama3", "qwen2"])
def tok(request):
    return Tokenizer.train([SAMPLE], vocab_size=300, pattern=request.param)


@given(text=st.text(alphabet="ab 's\n\t\r1./\u00e9\u5b57\u0301\u3000Z", max_size=200), piece=st.integers(1, 40))
def test_pieces_encode_to_the_ids_of_the_whole_text(tok, text, piece):
    data = text.encode()
    cuts = tok.cuts(data, piece)
    assert cuts == sorted(set(cuts))
    ends = [0, *cuts, len(data)]
    pieces = [data[start:stop] for start, stop in pairwise(ends)]
    assert [i for part in pieces for i in tok.encode_ordinary(part)] == tok.encode_ordinary(data)


def test_words_are_cut_into_pieces_of_about_the_requested_size(tok):
    data = b"one two three " * 1000
    ends = [0, *tok.cuts(data, 500), len(data)]
    assert max(stop - start for start, stop in pairwise(ends)) <= 510


@pytest.mark.parametrize(
    ("normalizer", "is_cut"),
    [
        ({"type": "Strip", "strip_left": True, "strip_right": True}, False),
        ({"type": "Prepend", "prepend": "x"}, False),
        ({"type": "Replace", "pattern": {"String": "o w"}, "content": "x"}, False),
        ({"type": "NFKC"}, True),
    ],
)
def test_pieces_of_a_text_that_is_normalized_encode_to_the_ids_of_the_whole_text(tok, normalizer, is_cut, tmp_path):
    tok.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"normalizer": normalizer}))
    normalized = Tokenizer.load(path)
    data = b"hello world  \n" * 300
    cuts = normalized.cuts(data, 400)
    assert (len(cuts) > 5) == is_cut
    pieces = [data[start:stop] for start, stop in pairwise([0, *cuts, len(data)])]
    assert [i for part in pieces for i in normalized.encode_ordinary(part)] == normalized.encode_ordinary(data)


def test_a_regex_without_a_name_is_never_cut():
    with pytest.warns(UserWarning, match="regex"):
        tok = Tokenizer.train(["one two three"], vocab_size=262, pattern=r"\w+ \w+|\s")
    assert tok.cuts(b"one two three " * 1000, 100) == []
