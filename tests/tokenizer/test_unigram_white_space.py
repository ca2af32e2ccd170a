"""Unigram words that keep all white space: texts come back as they were, and runs of spaces are pieces."""

import io
import json

import pytest
import sentencepiece
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tokenizer import PieceRules, Tokenizer
from tokenizer.kinds.registry import all_kinds, resolve_splitter

PARTS = ["    ", " ", "\n", "\t", "\r\n", "def f(self):", "x = 1", "\0", "é", "字", "\x85", "#", "self", "        "]
TEXTS = st.lists(st.sampled_from([*PARTS, "▁", "<unk>"]) | st.text(max_size=3), max_size=9).map("".join)


@pytest.fixture(scope="module")
def code(stdlib_texts):
    return stdlib_texts[:20]


@pytest.fixture(scope="module")
def tok(code):
    return Tokenizer.train(code, 1500, "keep-whitespace", kind="unigram", pieces=PieceRules(byte_fallback=True))


@pytest.fixture(scope="module")
def peer(tok, tmp_path_factory):
    folder = tmp_path_factory.mktemp("keep-whitespace")
    tok.save(folder)
    assert Tokenizer.load(folder).fingerprint == tok.fingerprint
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_code_comes_back(tok, code):
    assert [tok.decode(ids) for ids in tok.encode_batch(code)] == code


@given(TEXTS)
def test_every_text_without_the_mark_comes_back(tok, text):
    decoded = tok.decode(tok.encode_ordinary(text))
    assert decoded == text.replace("▁", " ")


@given(TEXTS.filter(lambda text: "<unk>" not in text))
def test_ids_and_text_are_those_of_tokenizers(tok, peer, text):
    ids = tok.encode_ordinary(text)
    assert ids == peer.encode(text).ids == tok.encode_batch([text])[0]
    assert tok.decode(ids) == peer.decode(ids, skip_special_tokens=False)


def test_runs_of_spaces_are_pieces_and_nothing_follows_them(tok):
    pieces = [token.decode() for token in tok.vocabulary.tokens if token]
    assert {"▁" * 4, "▁" * 8} <= {*pieces}
    assert not [piece for piece in pieces if "▁" in piece[1:] and piece.strip("▁")]


def test_code_takes_as_few_tokens_as_in_sentencepiece_with_the_same_options(tok, code):
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(code),
        model_writer=written,
        vocab_size=tok.vocab_size - len(tok.special_tokens) + 1,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        byte_fallback=True,
        max_sentence_length=10**7,
        minloglevel=2,
    )
    theirs = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    assert sum(map(len, tok.encode_batch(code))) <= sum(len(theirs.encode(text)) for text in code)
    plain = Tokenizer.train(code, 1500, "llama2", kind="unigram", pieces=PieceRules(byte_fallback=True))
    assert sum(map(len, tok.encode_batch(code))) < 0.75 * sum(map(len, plain.encode_batch(code)))


@pytest.mark.parametrize("text", ["", " ", "a", "  a", "a  ", "a   b\n  c", "\n\n  \n"])
def test_a_word_ends_where_spaces_begin(text):
    words = [word.decode() for word in resolve_splitter("keep-whitespace").pretokens(text.encode())]
    assert "".join(words) == (" " + text if text else "")
    assert all(word.strip(" ").count(" ") == 0 for word in words)


@pytest.mark.parametrize("split", [False, True])
def test_short_and_long_texts_have_the_words_of_tokenizers_without_a_normalizer(tok, tmp_path, split):
    tok.save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    content["normalizer"] = None
    content["pre_tokenizer"]["pretokenizers"][0] |= {"prepend_scheme": "always", "split": split}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    ours, peer = Tokenizer.load(tmp_path), tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = ["def f(self):\n        x = 1", "    self  #", "self"]
    expected = [found.ids for found in peer.encode_batch(texts)]
    assert [ours.encode_ordinary(text) for text in texts] == expected
    ours.warm_up(1)
    assert ours.encode_batch(texts) == expected


def test_bpe_over_characters_has_no_such_words(code):
    with pytest.raises(ValueError, match="character-bpe needs words: llama2, "):
        Tokenizer.train(code, 1500, "keep-whitespace", kind="character-bpe")


def test_no_two_kinds_give_a_pattern_the_same_name():
    """The first kind that knows a name decides its splitter."""
    for kind in all_kinds():
        for name in kind.patterns:
            assert kind.accepts(resolve_splitter(name)), (kind.name, name)
