"""A text encoded in parts has the ids of the text encoded at once."""

import json
import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer import Tokenizer
from tokenizer.encoding import kernel_encoder, long_pretokens

pytestmark = pytest.mark.filterwarnings("ignore:the corpus ran out of pairs")

SAMPLE = "some text, aaaa bb 123\n\n  字字é " * 50
RUN = st.tuples(st.sampled_from(["a", "b", " ", "ab", "字", "\x00"]), st.integers(1, 9000)).map(
    lambda run: run[0] * run[1]
)
TEXTS = st.lists(RUN | st.text(alphabet="ab é字1\n", max_size=50), max_size=6).map("".join)


def in_parts(tok, text):
    return [i for part in tok.encode_in_parts(text) for i in part.tolist()]


@pytest.fixture(params=["gpt2", "cl100k", r"\p{L}+|\s+|[^\p{L}\s]"])
def tok(request):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the regex is slower
        return Tokenizer.train([SAMPLE], 300, request.param, special_tokens=())


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(kernel_encoder, "PART_IDS", 100)
    monkeypatch.setattr(kernel_encoder, "CHUNKS_PER_CALL", 1)
    monkeypatch.setattr(long_pretokens, "PART_IDS", 1000)


@pytest.mark.usefixtures("small_parts")
def test_a_text_in_parts_has_the_ids_of_the_whole_text(tok):
    numbers = set()

    @settings(max_examples=100, deadline=None)
    @given(TEXTS)
    def check(text):
        assert in_parts(tok, text) == tok.encode_ordinary(text)
        numbers.add(len(list(tok.encode_in_parts(text))))

    check()
    assert max(numbers) > 5


@pytest.mark.usefixtures("small_parts")
def test_parts_have_the_same_ids_if_whole_pretokens_are_looked_up_first(tmp_path):
    tok = Tokenizer.train([SAMPLE, "x" * 8192, "x" * 8192], 310, "gpt2", special_tokens=())
    assert tok.token_byte_lengths.max() == 8192
    tok.save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["ignore_merges"] = True
    content["model"]["merges"] = [merge for merge in content["model"]["merges"] if merge != ["x" * 4096, "x" * 4096]]
    (tmp_path / "whole.json").write_text(json.dumps(content), encoding="utf-8")
    whole_first = Tokenizer.load(tmp_path / "whole.json")
    for size in (8191, 8192, 8193, 20_000):
        assert in_parts(whole_first, "x" * size) == whole_first.encode_ordinary("x" * size)
    assert len(in_parts(whole_first, "x" * 8192)) == 1
    assert len(in_parts(whole_first, "x" * 8193)) == 3


@pytest.mark.usefixtures("small_parts")
def test_parts_are_normalized_and_name_a_missing_byte(tmp_path):
    tok = Tokenizer.train([SAMPLE], 300, "gpt2", special_tokens=())
    tok.save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    content["normalizer"] = {"type": "NFC"}
    del content["model"]["vocab"]["~"]
    (tmp_path / "changed.json").write_text(json.dumps(content), encoding="utf-8")
    changed = Tokenizer.load(tmp_path / "changed.json")
    text = "e\u0301a" * 3000 + "a" * 9000
    assert in_parts(changed, text) == changed.encode_ordinary(text) == tok.encode_ordinary(text.replace("e\u0301", "é"))
    with pytest.raises(ValueError, match=re.escape("the byte 0x7e at byte offset 9001")):
        in_parts(changed, "a" * 9000 + " ~")
