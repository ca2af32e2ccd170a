"""Tokens by id and by spelling, comparison, construction in memory and added special tokens agree with the peers."""

import pickle

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tokenizer import Tokenizer

SPECIAL = ["<|endoftext|>", "<|é 字|>"]


@pytest.fixture(scope="module", params=["bpe", "wordpiece", "unigram"])
def tok(request, stdlib_texts):
    if request.param == "unigram":
        return Tokenizer.load(request.getfixturevalue("shared") / "vectors" / "t5-small")
    special = SPECIAL if request.param == "bpe" else ["[PAD]", "[UNK]", "[CLS]"]
    texts = [*stdlib_texts[:30], "naïve café 字符 字 éé"]
    return Tokenizer.train(texts, 800, special_tokens=special, kind=request.param)


@pytest.fixture(scope="module")
def peer(tok, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    tok.save(folder)
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_tokens_and_ids_are_those_of_tokenizers(tok, peer):
    vocabulary = tok.get_vocab()
    assert vocabulary == peer.get_vocab(with_added_tokens=True)
    assert len(tok) == tok.vocab_size == peer.get_vocab_size()
    for spelling, i in vocabulary.items():
        assert tok.token_to_id(spelling) == peer.token_to_id(spelling) == i
        assert tok.id_to_token(i) == peer.id_to_token(i) == spelling
    for unknown in ("not a token", "", "\udcff"):
        assert tok.token_to_id(unknown) is None
    for unknown in (len(tok), -1):
        assert tok.id_to_token(unknown) is None


def test_a_changed_copy_of_the_vocabulary_does_not_change_the_tokenizer(tok):
    tok.get_vocab().clear()
    assert len(tok.get_vocab()) == len(tok)


def test_a_single_token_is_found_by_its_bytes(tok):
    for i in range(len(tok)):
        token = tok.token_bytes(i)
        assert tok.encode_single_token(token) == i
    with pytest.raises(ValueError, match="'no such token' is not a token of this vocabulary"):
        tok.encode_single_token("no such token")
    with pytest.raises(ValueError, match="is not a token"):
        tok.encode_single_token(b"\xff\xfe\xfd")


def test_single_tokens_are_those_of_tiktoken(trained, as_tiktoken, tiktoken_patterns):
    tok = trained["gpt2"]
    theirs = as_tiktoken(tok, tiktoken_patterns["gpt2"])
    for i in range(len(tok)):
        assert tok.encode_single_token(tok.token_bytes(i)) == theirs.encode_single_token(tok.token_bytes(i)) == i


def test_tokenizers_with_the_same_ids_are_equal_and_have_the_same_hash(tok, tmp_path, trained):
    tok.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again == tok
    assert len({again, tok, pickle.loads(pickle.dumps(tok))}) == 1
    assert tok != trained["gpt2"]
    assert tok != "a tokenizer"
    assert len({tok, trained["gpt2"], trained["cl100k"]}) == 3


def test_added_special_tokens_have_the_next_ids_also_in_tokenizers(tok, tmp_path):
    before, fingerprint = tok.special_tokens, tok.fingerprint
    more = tok.add_special_tokens(["<new>", next(iter(before)), "<字 new>"])
    assert (tok.special_tokens, tok.fingerprint) == (before, fingerprint)
    assert more.special_tokens == before | {"<new>": len(tok), "<字 new>": len(tok) + 1}
    assert more != tok
    more.save(tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "self <new> def<字 new><new>x"
    expected = theirs.encode(text, add_special_tokens=False).ids
    assert more.encode(text, allowed_special="all") == expected
    assert {len(tok), len(tok) + 1} <= set(expected)
    assert Tokenizer.load(tmp_path) == more
    assert more.decode(expected, skip_special_tokens=True) == theirs.decode(expected)
    assert tok.encode("<new>", allowed_special="all") == tok.encode_ordinary("<new>")
    assert more.add_special_tokens([]) == more


def test_an_ordinary_token_can_become_special_as_in_tokenizers(tok, tmp_path):
    more = tok.add_special_tokens(["self"])
    assert len(more) == len(tok)
    assert more.special_tokens["self"] == tok.token_to_id("self")
    more.save(tmp_path)
    assert Tokenizer.load(tmp_path) == more
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in ("self", "def itself(self):", "selfish self"):
        ids = more.encode(text, allowed_special="all")
        assert ids == theirs.encode(text, add_special_tokens=False).ids
        assert more.encode(text, disallowed_special=()) == tok.encode(text)
        if tok.kind == "bpe":
            assert more.decode(ids) == text
    with pytest.raises(ValueError, match="sequence of strings"):
        tok.add_special_tokens("<one>")


def test_tokenizers_are_made_in_memory_from_vocabulary_and_merges(trained, stdlib_texts):
    tok = trained["cl100k"]
    theirs = Tokenizer.from_merges(
        {token: i for token, i in tok.get_vocab().items() if token not in tok.special_tokens},
        [
            (tok.id_to_token(tok.encode_single_token(a)), tok.id_to_token(tok.encode_single_token(b)))
            for a, b in tok.merges
        ],
        "cl100k",
        tok.special_tokens,
    )
    ids = {tok.token_bytes(i): i for i in range(len(tok)) if tok.token_byte_lengths[i]}
    from_bytes = Tokenizer.from_merges(ids, tok.merges, "cl100k", tok.special_tokens)
    from_ranks = Tokenizer.from_ranks(ids, "cl100k", tok.special_tokens)
    assert tok == theirs == from_bytes == from_ranks
    ids.clear()
    for made in (theirs, from_bytes, from_ranks):
        assert made.encode_batch(stdlib_texts[:5]) == tok.encode_batch(stdlib_texts[:5])


def test_a_tiktoken_encoding_and_its_ranks_give_the_same_ids(trained, as_tiktoken, tiktoken_patterns, random_strings):
    encoding = as_tiktoken(trained["gpt2"], tiktoken_patterns["gpt2"])
    tok = Tokenizer.from_ranks(encoding._mergeable_ranks, encoding._pat_str, encoding._special_tokens)
    assert tok == trained["gpt2"]
    texts = random_strings(500, seed=3)
    assert tok.encode_batch(texts) == encoding.encode_ordinary_batch(texts)


@pytest.mark.parametrize("pattern", ["bert-uncased", "bert-cased"])
def test_a_wordpiece_vocabulary_in_memory_is_that_of_tokenizers(pattern):
    vocabulary = {
        token: i for i, token in enumerate(["[PAD]", "[UNK]", "[SEP]", "[CLS]", "play", "##ing", "P", "##lay", "!"])
    }
    theirs = tokenizers.BertWordPieceTokenizer(vocabulary, lowercase=pattern == "bert-uncased")
    tok = Tokenizer.from_wordpiece(vocabulary, pattern)
    assert tok.special_tokens == {"[PAD]": 0, "[UNK]": 1, "[SEP]": 2, "[CLS]": 3}

    @given(st.text(st.sampled_from("Plaing! é"), max_size=20))
    def check(text):
        assert tok.encode(text) == theirs.encode(text, add_special_tokens=False).ids

    check()


BYTES = {bytes([byte]): byte for byte in range(256)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tokenizer.from_ranks({}, "gpt2"), "ranks must be a dict from bytes to id"),
        (lambda: Tokenizer.from_ranks([1], "gpt2"), "ranks must be a dict"),
        (lambda: Tokenizer.from_ranks(BYTES | {"a": 256}, "gpt2"), "the token 'a' is not bytes, or is empty"),
        (lambda: Tokenizer.from_ranks(BYTES | {b"ab": 3}, "gpt2"), r"b'\\x03' and b'ab' have the same rank 3"),
        (
            lambda: Tokenizer.from_ranks(BYTES | {b"ab": 10**9}, "gpt2"),
            "the rank 1000000000 of b'ab' is not an id below 16777216",
        ),
        (lambda: Tokenizer.from_ranks({b"a": 0}, "gpt2"), "lacks 255 of the 256 single bytes"),
        (lambda: Tokenizer.from_ranks(BYTES, "gpt2", {"<x>": 3}), "'<x>' has the id 3 of another token"),
        (lambda: Tokenizer.from_ranks(BYTES, "gpt2", ["<x>"]), "special_tokens must be a dict"),
        (lambda: Tokenizer.from_merges(BYTES, [(b"a", b"b")], "gpt2"), "merge 0 .* with 'ab', which the vocabulary"),
        (lambda: Tokenizer.from_merges(BYTES, [(97, 98)], "gpt2"), "merge 0, which is not a pair"),
        (lambda: Tokenizer.from_merges([b"a"], [], "gpt2"), "must be a dict from token to id"),
        (lambda: Tokenizer.from_merges({"a": 0, "字": 1}, [], "gpt2"), "'字'.* spells no byte"),
        (lambda: Tokenizer.from_wordpiece({"a": 0}), r"has no '\[UNK\]' in it"),
        (lambda: Tokenizer.from_wordpiece({"[UNK]": 0}, "gpt2"), "pattern must be one of bert-uncased, bert-cased"),
    ],
)
def test_a_wrong_vocabulary_in_memory_is_refused_in_a_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make()
