"""special_text="cut" trains on the text between the spellings of special tokens."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.cli.errors import UsageError
from pipelines.verbs.train_tokenizer import train_tokenizer
from tokenizer import Tokenizer, count_pretokens
from tokenizer.document_blocks import BLOCK_BYTES

pytestmark = pytest.mark.filterwarnings("ignore:the corpus ran out")
SPECIAL = ("<|a|>", "<|a|><|b|>", "b c")


def pieces(documents, spellings):
    """Return the text between the spellings, of which the longest at a place counts."""
    pattern = "|".join(re.escape(spelling) for spelling in sorted(spellings, key=len, reverse=True))
    return [piece for document in documents for piece in re.split(pattern, document)]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.sampled_from([*SPECIAL, "<|a|", "ab ", "c", "é", "\n", "\x00"])).map("".join)))
def test_counts_are_those_of_the_text_between_the_spellings(documents):
    for pattern in ("cl100k", "bert-uncased", r"\w+|\W"):
        counts = count_pretokens(documents, pattern, threads=1, cut_at=SPECIAL)
        assert counts == count_pretokens(pieces(documents, SPECIAL), pattern, threads=1)


@pytest.mark.parametrize("spelling", ["<|x|>", "d e"])
def test_a_spelling_at_the_end_of_a_part_of_a_long_file_is_cut(spelling, tmp_path):
    text = ("word " * (BLOCK_BYTES // 5) + spelling) * 3 + "\n".join(["abcd ef"] * 9)
    (tmp_path / "text.txt").write_text(text)
    counts = count_pretokens(tmp_path / "text.txt", threads=2, cut_at=(spelling,), memory=50_000_000)
    assert counts == count_pretokens(text.split(spelling), threads=1)


def test_training_cuts_only_if_asked():
    documents = ["one two<|a|>one two<|a|>" * 5]
    options = {"vocab_size": 300, "pattern": "gpt2", "special_tokens": ("<|a|>",), "min_frequency": 1}
    as_text = Tokenizer.train(documents, **options)
    cut = Tokenizer.train(documents, special_text="cut", **options)
    assert (b"<", b"|") in as_text.merges
    assert cut.merges == Tokenizer.train(["one two"] * 10, **options).merges
    assert as_text.fingerprint == Tokenizer.train(documents, special_text="text", **options).fingerprint


def test_cut_means_what_encoding_special_tokens_means():
    tok = Tokenizer.train(["some text"], 300, special_tokens=SPECIAL)
    text = "<|a|><|b|> ab cd <|a|<|a|> b c"
    parts, special = [[]], set(tok.special_tokens.values())
    for token in tok.encode(text, allowed_special="all"):
        parts.append([]) if token in special else parts[-1].append(token)
    assert [tok.decode(part) for part in parts] == pieces([text], SPECIAL)
    assert count_pretokens([text], cut_at=SPECIAL) == count_pretokens(pieces([text], SPECIAL))


def test_another_value_is_refused():
    with pytest.raises(ValueError, match="special_text must be text or cut, not 'drop'"):
        Tokenizer.train(["a"], 300, special_text="drop")


def test_the_command_cuts_the_corpus_and_refuses_to_cut_saved_counts(tmp_path):
    text = "".join(f"line {n}<|pad|>line {n} again\n" for n in range(400))
    (tmp_path / "text.txt").write_text(text)
    corpus, options = [str(tmp_path / "text.txt")], {"vocab_size": 300, "special_tokens": ("<|pad|>",)}
    cut = train_tokenizer(corpus, out=tmp_path / "cut", special_text="cut", **options)
    as_text = train_tokenizer(corpus, out=tmp_path / "text", **options)
    assert [any(b"|" in left + right for left, right in tok.merges) for tok in (cut, as_text)] == [False, True]
    with pytest.raises(UsageError, match="`special_text='cut'` has no effect on saved counts"):
        train_tokenizer(out=tmp_path / "x", vocab_size=300, counts=(tmp_path / "counts",), special_text="cut")
