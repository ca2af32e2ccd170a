"""Tokens that merges never make, tokens that the split pattern cuts, and the longest and oddest tokens."""

import json
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer import Tokenizer
from tokenizer.health import longest_tokens, odd_tokens, split_tokens, unmerged_tokens

LETTERS = (b"a", b"b")
LONGEST = 9  # characters of all texts that are tried


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_exactly_the_tokens_that_no_text_becomes_are_found(data):
    ids = {bytes([byte]): byte for byte in range(256)}
    merges = []
    for _ in range(data.draw(st.integers(1, 5))):
        known = [token for token in ids if token in LETTERS or len(token) > 1]
        left, right = data.draw(st.sampled_from(known)), data.draw(st.sampled_from(known))
        if len(left + right) <= 4 and left + right not in ids:
            ids[left + right] = len(ids)
            merges.append((left, right))
    tok = Tokenizer.from_merges(ids, merges, r"[ab]+", {})
    texts = (
        "".join(map(bytes.decode, letters)) for n in range(1, LONGEST + 1) for letters in product(LETTERS, repeat=n)
    )
    reached = {i for text in texts for i in tok.encode(text)}
    assert {*unmerged_tokens(tok.vocabulary)} == {*range(256, len(ids))} - reached


def test_tokens_of_several_words_are_cut_by_a_split_between_words(stdlib_texts):
    tok = Tokenizer.train(stdlib_texts[:10], 500, special_tokens=())
    assert split_tokens(tok.vocabulary) == []
    joined = tok.grow(stdlib_texts[:10], 540, superwords=4)
    ids = {token: i for i, token in enumerate(joined.vocabulary.tokens)}
    words = Tokenizer.from_merges(ids, joined.merges, "cl100k", {})
    of_words = [i for token, i in ids.items() if i >= 500 and len(tok.encode(token)) > 1]
    assert split_tokens(words.vocabulary) and {*split_tokens(words.vocabulary)} <= {*of_words}


def test_a_published_vocabulary_has_no_such_tokens(shared):
    vocabulary = Tokenizer.load(shared / "vectors" / "gpt2").vocabulary
    assert unmerged_tokens(vocabulary) == split_tokens(vocabulary) == []


def test_a_space_that_the_splitter_puts_before_a_text_cuts_no_token(tmp_path):
    ids = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256, b"'l": 257, b"'ll": 258, b"a b": 259}
    merges = [(b"a", b"b"), (b"'", b"l"), (b"'l", b"l")]
    Tokenizer.from_merges(ids, merges, "gpt2", {}).save(tmp_path)
    path = tmp_path / "tokenizer.json"
    fields = json.loads(path.read_text())
    fields["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    path.write_text(json.dumps(fields))
    tok = Tokenizer.load(tmp_path)
    assert 256 in tok.encode("(ab") and 258 in tok.encode("we'll")
    assert split_tokens(tok.vocabulary) == [257, 259]


def test_the_longest_and_oddest_tokens_are_found_and_special_ones_left_out():
    tokens = [b" word", b"x1y2", "xя ".encode(), b"longest token", b" (", "é".encode()[:1]]
    ids = {bytes([byte]): byte for byte in range(256)} | {token: 256 + k for k, token in enumerate(tokens[:-1])}
    tok = Tokenizer.from_merges(ids, [], "cl100k", {"<|1a2b3c special|>": 261})
    assert longest_tokens(tok.vocabulary, 2) == [259, 256]
    assert odd_tokens(tok.vocabulary, 9) == [257, 258, 259]
