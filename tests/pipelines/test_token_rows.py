"""Tokens of another vocabulary get the rows of the same text, in every kind of vocabulary."""

import pytest

from lm.new_entries import NEW
from pipelines.exchange.token_rows import token_rows
from tokenizer import Tokenizer
from tokenizer.training.piece_rules import PieceRules

KINDS = {
    "bpe": {},
    "wordpiece": {"kind": "wordpiece"},
    "unigram": {"kind": "unigram"},
    "unigram with bytes": {"kind": "unigram", "pieces": PieceRules(byte_fallback=True)},
    "character-bpe": {"kind": "character-bpe"},
    "words": {"kind": "words"},
    "characters": {"kind": "characters"},
}


@pytest.fixture(scope="module")
def texts(text_folder):
    return [path.read_text() for path in sorted(text_folder.glob("*.txt"))[:30]]


@pytest.fixture(scope="module")
def trained(texts):
    return {
        name: Tokenizer.train(texts, 60 if name == "characters" else 1500, **options) for name, options in KINDS.items()
    }


def carried(old, new):
    """Return the spelling of the row of each copied token, and the spellings of the pieces of each new one."""
    rows, pieces = token_rows(old, new)
    spelled, left = old.vocabulary.tokens, iter(pieces)
    copied, composed = {}, {}
    for token, row in zip(new.vocabulary.tokens, rows, strict=True):
        if row == NEW:
            composed[token] = [spelled[i] for i in next(left)]
        elif token is not None:
            copied[token] = spelled[row]
    return copied, composed


@pytest.mark.parametrize("name", KINDS)
def test_a_vocabulary_keeps_all_of_its_rows(trained, texts, name):
    tok = trained[name]
    assert token_rows(tok, tok) == ([*range(tok.vocab_size)], [])
    trimmed = tok.trim(texts[:2])
    rows, pieces = token_rows(tok, trimmed)
    assert not pieces and rows == sorted({*rows})
    for token, row in zip(trimmed.vocabulary.tokens, rows, strict=True):
        assert token == tok.vocabulary.tokens[row]


@pytest.mark.parametrize("name", ["unigram with bytes", "character-bpe"])
def test_tokens_of_bytes_are_bytes(trained, name):
    copied, composed = carried(trained["bpe"], trained[name])
    assert copied[b"<0x80>"] == b"\x80"
    assert copied[b"A"] == b"A" and composed[b"<0x41>"] == []  # an equal row would share the probability of A
    copied, _ = carried(trained[name], trained["bpe"])
    assert copied[b"\x80"] == b"<0x80>"
    assert copied[b"A"] == b"A"  # the character, if there is one, and not its byte


def test_a_part_of_a_character_has_the_rows_of_its_bytes(trained):
    ids = {bytes([byte]): byte for byte in range(256)} | {b"\xe4\xb8": 256}
    new = Tokenizer.from_merges(ids, [(b"\xe4", b"\xb8")], "gpt2", {})
    assert carried(trained["unigram with bytes"], new)[1][b"\xe4\xb8"] == [b"<0xE4>", b"<0xB8>"]
    assert carried(trained["unigram"], new)[1][b"\xe4\xb8"] == []


def test_words_begin_after_a_space_and_characters_do_not(trained):
    assert carried(trained["bpe"], trained["words"])[0][b"self"] == b" self"
    assert carried(trained["words"], trained["bpe"])[0][b" self"] == b"self"
    assert carried(trained["bpe"], trained["characters"])[0][b"s"] == b"s"


def test_words_of_wordpiece_begin_after_a_space(trained):
    copied, _ = carried(trained["bpe"], trained["wordpiece"])
    assert copied[b"self"] == b" self" and copied[b"##ing"] == b"ing"
    copied, _ = carried(trained["wordpiece"], trained["bpe"])
    assert copied[b" self"] == b"self" and copied[b"ing"] == b"##ing"


@pytest.mark.parametrize("name", ["unigram", "unigram with bytes", "character-bpe"])
def test_pieces_have_no_space_that_the_token_lacks(trained, name):
    known = trained[name].vocabulary.ids.keys()
    for new in ("bpe", "wordpiece"):
        for token, pieces in carried(trained[name], trained[new])[1].items():
            if token is not None and (new == "bpe" or token.startswith(b"##")):
                text = token.removeprefix(b"##") if new == "wordpiece" else token
                joined = b"".join(piece or b"" for piece in pieces).replace("▁".encode(), b" ")
                assert joined.startswith(b" ") <= text[:1].isspace(), token
                if text.isalpha() and known >= {*text.decode()}:
                    assert joined == text


def test_tokens_without_a_spelling_in_the_old_vocabulary_have_no_pieces():
    old = Tokenizer.train(["some words"] * 3, 40, kind="wordpiece")
    new = Tokenizer.train(["ξένος"] * 3, 40, kind="wordpiece")
    assert {b"".join(pieces) for pieces in carried(old, new)[1].values()} == {b""}


def test_special_tokens_have_the_row_of_their_name():
    old = Tokenizer.train(["some words"] * 3, 262, special_tokens=("<|a|>", "<|b|>"))
    new = Tokenizer.train(["some words"] * 3, 262, special_tokens=("<|b|>", "<|c|>"))
    rows, _ = token_rows(old, new)
    assert rows[new.special_tokens["<|b|>"]] == old.special_tokens["<|b|>"]
    assert rows[new.special_tokens["<|c|>"]] == NEW
