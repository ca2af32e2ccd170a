"""A trimmed vocabulary cuts every text whose tokens stayed as before, and opens in the libraries of the full one."""

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer import Tokenizer
from tokenizer.trimming import count_ids

KINDS = ("bpe", "wordpiece", "unigram", "character-bpe")


@pytest.fixture(scope="module")
def texts(stdlib_texts):
    return stdlib_texts[0:30:2], stdlib_texts[31:34]


@pytest.fixture(scope="module", params=KINDS)
def trained(request, texts):
    return Tokenizer.train(texts[0], 2000, kind=request.param)


@pytest.fixture(scope="module", params=["used", "half"])
def pair(request, trained, texts):
    """Return a tokenizer, and the same one without some tokens."""
    return trained, trained.trim(texts[1], None if request.param == "used" else 1000)


def spelled(tok, ids):
    names = {i: name for name, i in tok.special_tokens.items()}
    return [names.get(i) or tok.vocabulary.tokens[i] for i in ids]


def same_if_all_stay(tok, trimmed, text):
    """Compare the tokens of a text; return whether all stayed."""
    before = spelled(tok, tok.encode_ordinary(text))
    kept = {*trimmed.vocabulary.tokens, *trimmed.special_tokens}
    if kept.issuperset(before):
        assert spelled(trimmed, trimmed.encode_ordinary(text)) == before
        return True
    return False


def test_texts_whose_tokens_stay_are_encoded_as_before(pair, texts):
    tok, trimmed = pair
    assert trimmed.vocab_size < tok.vocab_size
    lines = "".join(texts[0][:8]).splitlines(keepends=True)
    stayed = [same_if_all_stay(tok, trimmed, line) for line in lines]
    assert 0.05 < np.mean(stayed) < 1


@settings(max_examples=200)
@given(st.data())
def test_random_texts_whose_tokens_stay_are_encoded_as_before(pair, data):
    tok, trimmed = pair
    words = st.sampled_from(["self", " return", "(", "x", "\n", "  ", "ing", "_", "é", "字", "def ", "\u0301", "0"])
    same_if_all_stay(tok, trimmed, data.draw(st.one_of(st.lists(words, max_size=20).map("".join), st.text())))


def test_the_text_that_was_counted_keeps_its_tokens(trained, texts):
    trimmed = trained.trim(texts[1])
    assert all(same_if_all_stay(trained, trimmed, text) for text in texts[1])


def test_special_tokens_and_the_order_of_ids_stay(pair):
    tok, trimmed = pair
    kept = [token for token in tok.vocabulary.tokens if token in {*trimmed.vocabulary.tokens}]
    assert [token for token in trimmed.vocabulary.tokens if token is not None] == [t for t in kept if t is not None]
    assert [*trimmed.special_tokens] == [*tok.special_tokens]
    assert {*range(trimmed.vocab_size)} == {*trimmed.vocabulary.ids.values()} | {*trimmed.special_tokens.values()}


def test_the_saved_vocabulary_loads_here_and_in_tokenizers(pair, texts, tmp_path):
    trimmed = pair[1]
    trimmed.save(tmp_path)
    assert Tokenizer.load(tmp_path).fingerprint == trimmed.fingerprint
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in texts[1]:
        assert peer.encode(text, add_special_tokens=False).ids == trimmed.encode_ordinary(text)


def test_the_number_of_entries_is_the_wanted_one(trained, texts):
    for entries in (1999, 1500, 900):
        assert trained.trim(texts[1], entries).vocab_size == entries


def test_the_least_used_leaf_goes_first_and_its_count_passes_to_its_parts():
    """Counts: "abc" 1, "ab" 3, "cd" 2. Without "abc", "ab" and "c" occur once more."""
    ids = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256, b"cd": 257, b"abc": 258}
    tok = Tokenizer.from_merges(ids, [(b"a", b"b"), (b"c", b"d"), (b"ab", b"c")], "gpt2", {})
    corpus = ["abc", "ab", "ab", "ab", "cd", "cd"]
    assert count_ids(tok.vocabulary, corpus)[[256, 257, 258]].tolist() == [3, 2, 1]
    assert tok.trim(corpus, 258).vocabulary.tokens[256:] == [b"ab", b"cd"]
    assert tok.trim(corpus, 257).vocabulary.tokens[256:] == [b"ab"]
    assert tok.trim(["abc"] * 5, 258).vocabulary.tokens[256:] == [b"ab", b"abc"]  # a part stays


def test_dropping_leaves_costs_less_than_cutting_the_last_merges(texts):
    tok = Tokenizer.train(texts[0], 2000)
    held_out = texts[1]
    trimmed = tok.trim(texts[0], 1000)
    cut = Tokenizer.from_merges(
        {t: i for i, t in enumerate(t for t in tok.vocabulary.tokens[:1000] if t)}, tok.merges[:739], "cl100k"
    )
    assert sum(map(len, trimmed.encode_batch(held_out))) <= sum(map(len, cut.encode_batch(held_out)))


@pytest.mark.parametrize("name", ["gpt2", "cl100k", "roberta", "bert-uncased", "t5-small"])
def test_published_vocabularies_are_trimmed(shared, tmp_path, stdlib_texts, name):
    source = shared / "vectors" / name
    options = {"pattern": "cl100k"} if name == "cl100k" else {"pattern": "bert-uncased"} if "bert-" in name else {}
    path = next(iter((*source.glob("*.tiktoken"), *source.glob("vocab.txt"), source)))
    tok = Tokenizer.load(path, **options)
    trimmed = tok.trim(stdlib_texts[:10])
    assert trimmed.vocab_size < 0.5 * tok.vocab_size
    assert all(same_if_all_stay(tok, trimmed, text) for text in stdlib_texts[:10])
    assert spelled(trimmed, trimmed.ids_around_text[0]) == spelled(tok, tok.ids_around_text[0])
    trimmed.save(tmp_path)
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    full = tok(stdlib_texts[0])["input_ids"]
    assert peer.encode(stdlib_texts[0]).ids == trimmed(stdlib_texts[0])["input_ids"]
    assert spelled(trimmed, trimmed(stdlib_texts[0])["input_ids"]) == spelled(tok, full)


@pytest.mark.parametrize("entries", [10, 2.5, True])
def test_too_few_entries_are_refused(texts, entries):
    with pytest.raises(ValueError, match="entries"):
        Tokenizer.train(texts[0], 600).trim(texts[1], entries)


def test_a_trimmed_file_pads_with_the_token_that_padded_before(tmp_path):
    """Even if this token is an ordinary one, and no text uses it."""
    peer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"cat": 0, "dog": 1, "[UNK]": 2, "PAD": 3}, "[UNK]"))
    peer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    peer.enable_padding(pad_id=3, pad_token="PAD")
    peer.save(str(tmp_path / "tokenizer.json"))
    trimmed = Tokenizer.load(tmp_path).trim(["cat"])
    assert [*trimmed.vocabulary.ids] == ["cat", "[UNK]", "PAD"]
    trimmed.save(tmp_path)
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [each.ids for each in peer.encode_batch(["cat cat", "cat"])] == [[0, 0], [0, 2]]
    assert trimmed(["cat cat", "cat"], padding=True)["input_ids"] == [[0, 0], [0, 2]]


def test_a_merged_token_that_pads_stays_with_its_parts(tmp_path):
    tok = Tokenizer.train(["PAD PAD dog dog"], 262, special_tokens=(), min_frequency=1)
    tok.save(tmp_path)
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    peer.enable_padding(pad_id=peer.token_to_id("PAD"), pad_token="PAD")
    peer.save(str(tmp_path / "tokenizer.json"))
    tok = Tokenizer.load(tmp_path)
    assert tok.trim(["dog"], 258).vocabulary.tokens[256:] == [b"AD", b"PAD"]
    with pytest.raises(ValueError, match="give at least 258"):
        tok.trim(["dog"], 257)


def test_a_sentencepiece_model_must_be_converted_first(texts):
    model = Tokenizer.train(texts[0][:4], 600, kind="unigram", pattern="nmt_nfkc").as_sentencepiece()
    with pytest.raises(ValueError, match="a SentencePiece model cannot grow or be trimmed"):
        model.trim(texts[1])
    assert model.as_tokenizers().trim(texts[1]).vocab_size < 600
