"""Vocabularies of words and of characters are those of `tokenizers`: ids, decoded text, offsets and training."""

import collections
import json
import pickle

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from tokenizer import PretokenCounts, Tokenizer, count_pretokens

KINDS = ("words", "characters")
TEXTS = ["the cat, the dog and the naïve café: x_1 == [1, 23]!", "日本語 日本 … 🎉🎉 the\tend\n"] * 3
NASTY = ["", " ", "\0", "a\0b", "[UNK] <|endoftext|>the", "e\u0301\u200dx", "\u2028 \xa0\x85", "\ufffd", "日" * 3000]
PIECES = st.sampled_from(
    ["the", "cat", ",", ", ", " ", "\n", "é", "日本", "🎉", "[UNK]", "<|sep|>", "\0", "_", "ß", "\u0301"]
)
STRINGS = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=30).map("".join))


def train(kind, size=24, texts=TEXTS, **options):
    return Tokenizer.train(texts, size, kind=kind, **options)


@pytest.fixture(scope="module", params=KINDS)
def saved(request, tmp_path_factory):
    """Return a tokenizer, itself read from its file, and the peer that reads this file."""
    folder = tmp_path_factory.mktemp(request.param)
    train(request.param, 20).save(folder)
    path = folder / "tokenizer.json"
    return train(request.param, 20), Tokenizer.load(path), tokenizers.Tokenizer.from_file(str(path))


@given(text=STRINGS)
def test_ids_decoded_text_and_offsets_of_any_text_are_those_of_tokenizers(saved, text):
    same_as_peer(saved, text)


@pytest.mark.parametrize("text", NASTY)
def test_ids_decoded_text_and_offsets_of_nasty_texts_are_those_of_tokenizers(saved, text):
    same_as_peer(saved, text)


def same_as_peer(saved, text):
    ours, loaded, peer = saved
    encoding = peer.encode(text, add_special_tokens=False)
    ids = ours.encode(text, allowed_special="all")
    assert ids == loaded.encode(text, allowed_special="all") == encoding.ids
    assert ours.encode_with_offsets(text, allowed_special="all") == (ids, encoding.offsets)
    for skip in (False, True):
        assert ours.decode(ids, skip_special_tokens=skip) == peer.decode(ids, skip_special_tokens=skip)
    peer.encode_special_tokens = True  # special tokens are text
    ordinary = peer.encode(text, add_special_tokens=False).ids
    peer.encode_special_tokens = False
    assert ours.encode_ordinary(text) == ordinary


@given(texts=st.lists(STRINGS, max_size=8))
def test_the_kernels_give_the_ids_of_plain_python(saved, texts):
    ours, loaded, _ = saved
    loaded.warm_up()
    assert loaded.encode_batch(texts, disallowed_special=()) == [ours.encode_ordinary(text) for text in texts]
    assert list(loaded.encode_iterable(texts, disallowed_special=())) == ours.encode_ordinary("".join(texts))
    assert b"".join(loaded.vocabulary.decoding().decode_each(ids := ours.encode_ordinary("".join(texts)))) == (
        ours.decode_bytes(ids)
    )


@given(data=st.one_of(st.binary(max_size=40), STRINGS.map(lambda text: text.encode()[1:])))
@example(b"ab\xff\xe2\x82 c")
def test_each_byte_of_invalid_utf8_is_read_as_a_replacement_character(saved, data):
    ours, loaded, _ = saved
    text = data.decode(errors="surrogateescape")
    text = "".join("\ufffd" if "\udc80" <= character <= "\udcff" else character for character in text)
    loaded.warm_up()
    assert ours.encode_ordinary(data) == ours.encode_ordinary(text) == loaded.encode_ordinary(data)
    ids, spans = ours.encode_with_offsets(data, disallowed_special=())
    assert ids == ours.encode_ordinary(data)
    assert all(start < end for start, end in spans) and spans == sorted(spans)


@pytest.mark.filterwarnings("ignore:the corpus ran out of words that occur at least 2 times")
def test_words_are_trained_as_tokenizers_trains_them(stdlib_texts):
    texts = stdlib_texts[:12]
    for size, least in ((50, 0), (700, 0), (700, 3), (10**6, 2)):
        peer = tokenizers.Tokenizer(models.WordLevel(unk_token="[UNK]"))
        peer.pre_tokenizer = pre_tokenizers.Whitespace()
        options = {"special_tokens": ["<|pad|>", "[UNK]"], "min_frequency": least}
        peer.train_from_iterator(texts, trainers.WordLevelTrainer(vocab_size=size, show_progress=False, **options))
        ours = Tokenizer.train(texts, size, kind="words", **options)
        assert ours.vocabulary.ids == peer.get_vocab()


@pytest.mark.filterwarnings("ignore:the corpus ran out of words")
@given(words=st.lists(st.sampled_from(["a", "b", "é", "日", "🎉", "ab", "_"]), min_size=1, max_size=60))
def test_words_of_equal_count_have_ids_in_ascending_order(words):
    peer = tokenizers.Tokenizer(models.WordLevel(unk_token="[UNK]"))
    peer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(vocab_size=5, special_tokens=["[UNK]"], show_progress=False)
    peer.train_from_iterator([" ".join(words)], trainer)
    ours = train("words", 5, [" ".join(words)], special_tokens=["[UNK]"])
    assert ours.vocabulary.ids == peer.get_vocab()


def test_characters_are_the_most_frequent_ones_of_the_text():
    frequent = collections.Counter("".join(TEXTS))
    ordered = sorted(frequent, key=lambda character: (-frequent[character], character))
    tok = train("characters", 20, special_tokens=["<|pad|>"])
    assert [*tok.vocabulary.ids] == ["<|pad|>", "[UNK]", *ordered[:18]]
    peer = tokenizers.Tokenizer(models.BPE(vocab=tok.vocabulary.ids, merges=[], unk_token="[UNK]"))
    peer.decoder = decoders.Fuse()
    text = "the cat's café"
    assert tok.encode(text) == peer.encode(text).ids and tok.decode(tok.encode(text)) == peer.decode(
        peer.encode(text).ids
    )


@pytest.mark.parametrize("kind", KINDS)
def test_training_does_not_depend_on_threads_or_saved_counts(kind, tmp_path, stdlib_texts):
    texts = stdlib_texts[:20]
    tok = Tokenizer.train(texts, 60, kind=kind, threads=1)
    counts = count_pretokens(texts, tok.pattern, threads=2)
    counts.save(tmp_path / "counts.parquet")
    loaded = PretokenCounts.load(tmp_path / "counts.parquet")
    assert loaded == counts and pickle.loads(pickle.dumps(tok.vocabulary.pattern)) == tok.vocabulary.pattern
    assert Tokenizer.train_from_counts(loaded, 60, kind=kind).fingerprint == tok.fingerprint
    joined = Tokenizer.train(["\n".join(texts)], 60, kind="words", threads=2)
    assert joined.fingerprint == Tokenizer.train(["\n".join(texts)], 60, kind="words", threads=1).fingerprint


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_vocabulary_is_the_same_one(kind, tmp_path):
    tok = train(kind)
    tok.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.kind, loaded.fingerprint, loaded.pattern) == (kind, tok.fingerprint, tok.pattern)
    assert not loaded.is_lossless
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again" / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


def test_files_have_the_usual_models(tmp_path):
    for kind in KINDS:
        train(kind).save(tmp_path / kind)
    words, characters = (json.loads((tmp_path / kind / "tokenizer.json").read_text()) for kind in KINDS)
    assert words["model"].keys() == {"type", "unk_token", "vocab"} and words["model"]["type"] == "WordLevel"
    assert (words["pre_tokenizer"], words["decoder"]) == ({"type": "Whitespace"}, None)
    assert (characters["model"]["type"], characters["model"]["merges"]) == ("BPE", [])
    assert (characters["pre_tokenizer"], characters["decoder"]) == (None, {"type": "Fuse"})


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_are_added_and_unused_tokens_trimmed(kind, tmp_path):
    tok = train(kind).add_special_tokens(["[A]"])
    assert tok.special_tokens["[A]"] == tok.vocab_size - 1
    small = tok.trim(["the [A]"])
    assert (
        small.vocab_size < tok.vocab_size and small.decode(small.encode("the cat", allowed_special="all"))[:3] == "the"
    )
    assert small.decode(small.encode("zebra")[:1]) == "[UNK]"
    small.save(tmp_path)
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert small.encode("the [A] x", allowed_special="all") == peer.encode("the [A] x").ids


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("words", {"size": 6}, r"vocab_size must be at least 7 \(a word, \[UNK\] and 5 special tokens\), not 6"),
        ("characters", {"size": 6}, r"vocab_size must be at least 7 \(a character, \[UNK\] and 5 special tokens\)"),
        ("words", {"special_tokens": ["the"]}, "the special token 'the' can be a word of the text"),
        ("characters", {"special_tokens": ["t"]}, "the special token 't' can be a character of the text"),
        ("words", {"pattern": "cl100k"}, "words needs the pattern whitespace, not cl100k"),
        ("characters", {"pattern": "whitespace"}, "characters needs the pattern characters, not whitespace"),
        ("words", {"max_token_length": 5}, "`max_token_length` is not an option of words"),
        ("characters", {"limit_alphabet": 5}, "`limit_alphabet` is not an option of characters"),
    ],
)
def test_options_that_train_nothing_are_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        train(kind, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_what_needs_merges_scores_or_bytes_is_refused_in_a_sentence(kind):
    tok = train(kind)
    with pytest.raises(ValueError, match=f"dropout is for BPE: {kind} has no merges"):
        tok.encode_with_dropout("the", 0.5, 1)
    with pytest.raises(ValueError, match=f"only Unigram pieces have scores: segmentations by {kind} cannot be"):
        tok.encode_nbest("the", 2)
    with pytest.raises(ValueError, match=f"{kind.capitalize()} cannot grow, because there are no merges"):
        tok.grow(TEXTS, 100)
    with pytest.raises(ValueError, match=f"this vocabulary is {kind}"):
        tok.as_sentencepiece()
    with pytest.raises(ValueError, match=f"{kind} have no fixed number of bytes"):
        np.asarray(tok.token_byte_lengths)


def test_offsets_need_the_pre_tokenizer_of_training(tmp_path):
    train("words").save(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"normalizer": {"type": "Lowercase"}}))
    tok = Tokenizer.load(tmp_path)
    assert tok.encode("THE cat") == tok.encode("the cat")
    with pytest.raises(ValueError, match="offsets of words need the pre-tokenizer of training and no normalizer"):
        tok.encode_with_offsets("THE cat")
