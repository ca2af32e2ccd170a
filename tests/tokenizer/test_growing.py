"""A vocabulary grows: old ids and merges stay, and texts are cut into the old tokens, some of them joined."""

import json
from itertools import accumulate

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer import Tokenizer

bpe_continue = pytest.importorskip("bpe_continue")
ENDS = ("<|begin|>", "<|end|>")


@pytest.fixture(scope="module")
def halves(stdlib_texts):
    """Return two sets of texts of about 300 kB, to train on and to grow on."""
    return stdlib_texts[0:40:2], stdlib_texts[1:40:2]


def with_special_tokens_at(place, texts):
    """Return a tokenizer with 700 entries whose special tokens are its first, last or middle ids."""
    trained = Tokenizer.train(texts, 698 + 2 * (place == "first"), special_tokens=ENDS if place == "first" else ())
    if place == "first":
        return trained
    if place == "last":
        return trained.add_special_tokens(ENDS)
    ids = {token: i + 2 * (i >= 300) for i, token in enumerate(trained.vocabulary.tokens)}
    return Tokenizer.from_merges(ids, trained.merges, "cl100k", {ENDS[0]: 300, ENDS[1]: 301})


@pytest.fixture(scope="module", params=["first", "last", "middle"])
def pair(request, halves):
    """Return a tokenizer and the same one, grown from 700 to 1,000 entries."""
    tok = with_special_tokens_at(request.param, halves[0])
    return tok, tok.grow(halves[1], 1000)


def boundaries(tok, text):
    return {*accumulate(len(tok.token_bytes(i)) for i in tok.encode_ordinary(text))}


def test_ids_merges_and_special_tokens_stay(pair):
    tok, grown = pair
    assert (tok.vocab_size, grown.vocab_size) == (700, 1000)
    assert grown.special_tokens == tok.special_tokens
    assert grown.vocabulary.tokens[:700] == tok.vocabulary.tokens
    assert grown.merges[: len(tok.merges)] == tok.merges
    assert None not in grown.vocabulary.tokens[700:]


def test_real_text_becomes_shorter(pair, halves):
    grown = pair[1]
    before, after = (sum(map(len, each.encode_batch(halves[1]))) for each in pair)
    assert after < 0.93 * before
    assert grown.decode(grown.encode_ordinary(halves[1][0])) == halves[1][0]


@settings(max_examples=300)
@given(st.data())
def test_every_text_is_cut_into_present_tokens_some_of_them_joined(pair, halves, data):
    tok, grown = pair
    pieces = st.sampled_from([*"aeiou nrst(\n\t_", "self.", "return ", "def __", "  ", "Ünï", "漢字", "\x00", ENDS[0]])
    text = data.draw(st.one_of(st.lists(pieces, max_size=40).map("".join), st.text(), st.binary(max_size=80)))
    assert boundaries(grown, text) <= boundaries(tok, text)


def test_merges_are_those_of_bpe_continue(pair, halves, tmp_path):
    tok, grown = pair
    tok.save(tmp_path / "tok")
    grown.save(tmp_path / "grown")
    options = {"texts": halves[1], "vocab_size": 1000, "min_frequency": 2, "show_progress": False}
    peer = bpe_continue.continue_training(str(tmp_path / "tok" / "tokenizer.json"), **options)
    ours = json.loads((tmp_path / "grown" / "tokenizer.json").read_text())["model"]
    theirs = json.loads(peer.to_str())["model"]
    assert [tuple(pair) for pair in ours["merges"]] == [tuple(pair) for pair in theirs["merges"]]
    assert ours["vocab"].items() <= theirs["vocab"].items()
    saved = tokenizers.Tokenizer.from_file(str(tmp_path / "grown" / "tokenizer.json"))
    assert [saved.encode(text).ids for text in halves[1]] == grown.encode_batch(halves[1])
    assert Tokenizer.load(tmp_path / "grown").fingerprint == grown.fingerprint


@pytest.mark.parametrize("name", ["gpt2", "cl100k", "roberta"])
def test_published_vocabularies_grow(shared, tmp_path, stdlib_texts, name):
    source = shared / "vectors" / name
    pattern = {"pattern": "cl100k"} if name == "cl100k" else {}
    tok = Tokenizer.load(next(source.glob("*.tiktoken")) if name == "cl100k" else source, **pattern)
    texts = stdlib_texts[:25]
    grown = tok.grow(texts, tok.vocab_size + 200)
    grown.save(tmp_path)
    assert Tokenizer.load(tmp_path).fingerprint == grown.fingerprint
    assert grown.vocabulary.tokens[: tok.vocab_size] == tok.vocabulary.tokens
    cuts = [(boundaries(grown, text), boundaries(tok, text)) for text in texts]
    assert all(after <= before for after, before in cuts) and any(after < before for after, before in cuts)
    saved = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in texts:
        assert saved.encode(text, add_special_tokens=False).ids == grown.encode_ordinary(text)


def test_a_merge_that_spells_a_present_token_gets_its_id():
    """The present merges make "abc" of a + bc, but cut "abc" into ab + c, because a + b ranks before b + c."""
    ids = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256, b"bc": 257, b"abc": 258}
    tok = Tokenizer.from_merges(ids, [(b"a", b"b"), (b"b", b"c"), (b"a", b"bc")], "gpt2", {})
    grown = tok.grow(["abc"] * 5 + ["abcd"] * 3, 260)
    assert tok.encode("abc") == [256, 99]
    assert grown.vocabulary.pairs[3:] == [("ab", "c"), ("abc", "d")]
    assert (grown.encode("abc"), grown.encode("abcd")) == ([258], [259])


def test_growing_never_lists_an_existing_merge_twice(tmp_path):
    """The present merges make "abcd" of abc + d, but never "abc"."""
    ids = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256, b"bc": 257, b"abc": 258, b"abcd": 259}
    merges = [(b"a", b"b"), (b"b", b"c"), (b"a", b"bc"), (b"abc", b"d")]
    tok = Tokenizer.from_merges(ids, merges, "gpt2", {})
    grown = tok.grow(["abc"] * 5 + ["abcd"] * 5 + ["abcde"] * 3, 261)
    assert grown.merges == [*merges, (b"ab", b"c"), (b"abcd", b"e")]
    grown.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again == grown
    assert [again.encode(text) for text in ("abc", "abcd", "abcde")] == [[258], [259], [260]]


def test_text_is_normalized_before_it_is_counted(stdlib_texts):
    tok = Tokenizer.train(stdlib_texts[:5], 400, special_tokens=())
    normalized = Tokenizer.from_merges(
        {token: i for i, token in enumerate(tok.vocabulary.tokens)}, tok.merges, "cl100k", normalizer="NFC"
    )
    composed, apart = "é" * 16, "e\u0301" * 16
    grown = normalized.grow([apart] * 2, 405)
    assert grown.merges == tok.grow([composed] * 2, 405).merges
    assert len(grown.encode(apart)) == 1


def test_no_token_spells_a_special_token(halves):
    tok = Tokenizer.train(halves[0], 400, special_tokens=("zqzq",))
    grown = tok.grow(["zqzq"] * 100 + ["zqzqa"] * 50, 402)
    assert grown.vocabulary.tokens[400:] == [b"zq", b"zqa"]
    assert grown.decode(grown.encode_ordinary("zqzqa zqzq")) == "zqzqa zqzq"


def test_no_token_is_written_like_a_special_token():
    """tokenizer.json spells a space as "Ġ"."""
    tok = Tokenizer.train(["xy xy"], 259, special_tokens=["<|e|>", "Ġab"])
    grown = tok.grow([" ab ab ab abc abc"] * 3, 262)
    assert grown.vocabulary.tokens[259:] == [b"ab", b"abc", b" abc"]


def test_growth_ends_with_a_warning_where_the_text_has_no_more_pairs(halves):
    tok = Tokenizer.train(halves[0], 400)
    with pytest.warns(UserWarning, match="ran out of pairs that occur at least 2 times: the vocabulary has 40"):
        tok.grow(["zzzzqqqq zzzzqqqq"], 500)


def test_min_frequency_and_max_token_length_limit_the_new_tokens(halves):
    tok = Tokenizer.train(halves[0], 400)
    with pytest.warns(UserWarning, match="at least 90 times"):
        rare = tok.grow(halves[1], 2000, min_frequency=90)
    assert rare.merges == tok.grow(halves[1], 2000).merges[: len(rare.merges)]
    short = tok.grow(halves[1], 600, max_token_length=5)
    assert max(map(len, short.vocabulary.tokens[400:])) == 5


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("unigram", "Unigram cannot grow"),
        ("wordpiece", "WordPiece cannot grow"),
        ("words", "Words cannot grow"),
    ],
)
def test_other_kinds_are_refused_with_the_reason(halves, kind, reason):
    with pytest.raises(ValueError, match=f"{reason}, because "):
        Tokenizer.train(halves[0], 900, kind=kind).grow(halves[1], 1000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"entries": 400}, "entries is 400, but the vocabulary already has 400"),
        ({"entries": 2.5}, "entries must be a whole number"),
        ({"entries": 500, "min_frequency": -1}, "min_frequency"),
        ({"entries": 500, "memory": 100}, "memory"),
    ],
)
def test_wrong_arguments_are_named(halves, options, message):
    with pytest.raises(ValueError, match=message):
        Tokenizer.train(halves[0], 400).grow(halves[1], **options)


@pytest.fixture(scope="module")
def characters(halves):
    """Return BPE over characters with pieces for bytes, and the same one, grown from 800 to 1,000 entries."""
    texts = [text + "\n<s> <0x41> ☃☃ <0x41>☃ <s>" * 9 for text in halves[1]]
    options = {"kind": "character-bpe", "limit_alphabet": 60, "special_tokens": ("<s>",)}
    tok = Tokenizer.train(halves[0], 800, **options)
    return tok, tok.grow(texts, 1000)


def test_growing_bpe_over_characters_keeps_ids_and_merges(characters, halves, tmp_path):
    tok, grown = characters
    assert (tok.vocab_size, grown.vocab_size) == (800, 1000)
    assert grown.vocabulary.tokens[:800] == tok.vocabulary.tokens
    assert grown.merges[: len(tok.merges)] == tok.merges
    assert grown.special_tokens == tok.special_tokens
    new = [token.decode() for token in grown.vocabulary.tokens[800:]]
    assert not any("☃" in token or token in ("<s>", "<0x41>") for token in new)
    grown.save(tmp_path)
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = [text for text in halves[1] if "<s>" not in text and "<unk>" not in text]
    assert [each.ids for each in peer.encode_batch(texts)] == grown.encode_batch(texts)
    assert Tokenizer.load(tmp_path).fingerprint == grown.fingerprint


def test_tokens_come_after_special_tokens_that_were_added(tmp_path):
    texts = ["the cat sat on the mat and the dog ate the cat food again and again"]
    tok = Tokenizer.train(texts, 280, kind="character-bpe", min_frequency=1).add_special_tokens(["<x>"])
    grown = tok.grow(texts, 288, min_frequency=1)
    grown.save(tmp_path)
    assert Tokenizer.load(tmp_path) == grown
    assert grown.special_tokens == tok.special_tokens
    text = f"{texts[0]}<x>again"
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert peer.encode(text).ids == grown.encode(text, allowed_special="all")


@settings(max_examples=60)
@given(text=st.text(max_size=60) | st.text("self.ruint \n☃é", max_size=200))
def test_characters_are_joined_further_and_never_cut_anew(characters, text):
    def ends(tok):
        return {*accumulate(len(tok.vocabulary.tokens[i]) for i in tok.encode_ordinary(text))}

    before, after = map(ends, characters)
    assert after <= before
    assert max(after, default=0) == max(before, default=0)


def test_growing_on_the_same_text_makes_the_merges_of_longer_training(halves):
    short, long = (Tokenizer.train(halves[0], size, kind="character-bpe") for size in (900, 1000))
    assert short.grow(halves[0], 1000).merges == long.merges


def test_texts_that_are_not_split_into_words_give_no_tokens_across_words(tmp_path):
    """As in Llama 2's file, which has no pre-tokenizer."""
    peer = tokenizers.Tokenizer(tokenizers.models.BPE({"▁": 0, "a": 1, "b": 2, "▁a": 3}, [("▁", "a")]))
    steps = [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    peer.normalizer = tokenizers.normalizers.Sequence(steps)
    peer.decoder = tokenizers.decoders.Metaspace()
    peer.save(str(tmp_path / "tokenizer.json"))
    grown = Tokenizer.load(tmp_path).grow(["ab abb  ab ab"] * 9, 7)
    assert [token.decode() for token in grown.vocabulary.tokens[4:]] == ["▁ab", "▁▁ab", "▁abb"]


def test_vocabularies_that_mark_words_do_not_grow(halves, tmp_path):
    ids = {token: i for i, token in enumerate(["a", "b</w>", "ab</w>"])}
    model = tokenizers.models.BPE(ids, [("a", "b</w>")], end_of_word_suffix="</w>")
    peer = tokenizers.Tokenizer(model)
    peer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    peer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="marks words by '</w>' cannot grow"):
        Tokenizer.load(tmp_path).grow(halves[1], 1000)
