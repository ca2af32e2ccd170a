"""Added tokens with flags are cut out of a text as in `tokenizers`."""

import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from tokenizer import Tokenizer

# No token begins with white space: `tokenizers` panics on such a token after one that strips white space on its
# right.
TOKENS = (
    AddedToken("<plain>", normalized=False, special=True),
    AddedToken("<left>", normalized=False, lstrip=True, special=True),
    AddedToken("<right>", normalized=False, rstrip=True, special=True),
    AddedToken("<both>", normalized=False, lstrip=True, rstrip=True),
    AddedToken("word", normalized=False, single_word=True),
    AddedToken("word word", normalized=True, single_word=True, lstrip=True),
    AddedToken("<normal>", normalized=True),
    AddedToken("<plain><normal>", normalized=True),
    AddedToken("cafe\u0301", normalized=True, rstrip=True),
)
PIECES = [token.content for token in TOKENS]
PIECES += [
    "<norm",
    "al>",
    " ",
    "  ",
    "\n",
    "\u3000",
    "\x85",
    "\x1c",
    "a",
    "é",
    "e\u0301",
    "caf",
    "é",
    "\u0301",
    "_",
    "1",
]
PIECES += ["²", "\u200d", "Ⓐ", "字", ".", "x word y", "words", "\t\r\n", "\u1112\u1161"]


def hugging_face(path, normalizer=None, tokens=TOKENS, pre_tokenizer=None):
    """Save and return a tokenizer of `tokenizers` whose tokens are the bytes."""
    vocabulary = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    peer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    peer.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    peer.decoder = decoders.ByteLevel()
    if normalizer:
        peer.normalizer = normalizer
    peer.add_tokens(list(tokens))
    peer.save(str(path))
    return peer


@pytest.mark.parametrize("normalizer", [None, normalizers.NFC()], ids=["as it is", "NFC"])
@pytest.mark.parametrize("prefix", [False, True])
def test_ids_with_flagged_tokens_equal_those_of_tokenizers(normalizer, prefix, tmp_path):
    step = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    peer = hugging_face(tmp_path / "tokenizer.json", normalizer, pre_tokenizer=step)
    tok = Tokenizer.load(tmp_path)
    tok.save(tmp_path / "again")
    again = Tokenizer.load(tmp_path / "again")
    assert again.fingerprint == tok.fingerprint
    peer_again = tokenizers.Tokenizer.from_file(str(tmp_path / "again" / "tokenizer.json"))

    @settings(max_examples=400)
    @given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
    def check(text):
        expected = peer.encode(text).ids
        assert tok.encode(text, allowed_special="all") == expected
        assert again.encode(text, allowed_special="all") == expected
        assert tok.encode_batch([text], allowed_special="all") == [expected]
        assert peer_again.encode(text).ids == expected

    check()


@pytest.mark.slow
def test_a_single_word_ends_where_tokenizers_says(tmp_path):
    peer = hugging_face(tmp_path / "tokenizer.json", tokens=[AddedToken("qq", single_word=True, normalized=False)])
    tok = Tokenizer.load(tmp_path)
    # Every code point of the first two planes. The others are Han, private or not assigned; some of them suffice.
    numbers = [*range(0x20000), *range(0x20000, 0x110000, 61)]
    characters = [chr(c) for c in numbers if not 0xD800 <= c < 0xE000]
    for first in range(0, len(characters), 64):
        text = " ".join(f"{c}qq qq{c}" for c in characters[first : first + 64])
        assert tok.encode(text, allowed_special="all") == peer.encode(text).ids


def test_only_tokens_that_would_be_cut_out_are_refused(tmp_path):
    hugging_face(tmp_path / "tokenizer.json", normalizers.NFC())
    tok = Tokenizer.load(tmp_path)
    assert tok.decode(tok.encode("a sword")) == "a sword"
    for text, said in (("a word", "'word' at byte 2"), ("cafe\u0301", "'cafe\u0301' at byte 0"), ("café", "byte 0")):
        with pytest.raises(ValueError, match=said):
            tok.encode(text)
    assert tok.decode(tok.encode("a  <both>  b", allowed_special={"<both>"})) == "a<both>b"
    assert tok.decode(tok.encode("a  <both>  b", disallowed_special=())) == "a  <both>  b"


def test_the_fingerprint_depends_on_the_flags_that_decide_ids(tmp_path):
    def fingerprint(normalizer, **flags):
        hugging_face(tmp_path / "tokenizer.json", normalizer, [AddedToken("<x>", **({"normalized": False} | flags))])
        return Tokenizer.load(tmp_path).fingerprint

    flags = ({}, {"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"lstrip": True, "rstrip": True})
    assert len({fingerprint(None, **each) for each in flags}) == len(flags)
    assert fingerprint(None, normalized=True) == fingerprint(None)  # as in earlier versions
    assert fingerprint(normalizers.NFC(), normalized=True) != fingerprint(normalizers.NFC())


def test_white_space_around_many_tokens_takes_linear_time(tmp_path):
    """In quadratic time the test would take minutes."""
    hugging_face(tmp_path / "tokenizer.json")
    tok = Tokenizer.load(tmp_path)
    text = (" " * 500_000 + "<both>" + " <left>" * 20_000 + "word" * 20_000) * 2
    ids = tok.encode_to_numpy(text, allowed_special="all")
    assert json.dumps(tok.decode(ids)).count("<left>") == 40_000
