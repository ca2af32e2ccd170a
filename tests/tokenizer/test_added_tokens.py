"""Added tokens with flags are cut out of a text as in `tokenizers`."""

import json

import pytest
import tokenizers
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from tests.tokenizer.test_streaming import assert_streams
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


@pytest.mark.parametrize("normalizer", [None, normalizers.NFC()], ids=["as it is", "NFC"])
def test_flagged_tokens_are_found_across_the_pieces_of_a_stream(normalizer, tmp_path):
    peer = hugging_face(tmp_path / "tokenizer.json", normalizer)
    tok = Tokenizer.load(tmp_path)

    @settings(max_examples=400)
    @given(
        st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
        st.lists(st.integers(0, 60), max_size=8),
        st.sampled_from(["all", {"<both>", "word word"}, {"word"}]),
    )
    def check(text, places, allowed):
        for whole in (text, text.encode() + b"\xe2\x80", b"\x80" + text.encode()):
            assert_streams(tok, whole, places, allowed_special=allowed, disallowed_special=())
            assert_streams(tok, whole, places, allowed_special=allowed)
        pieces = [text[i : i + 1] for i in range(len(text))]
        assert list(tok.encode_iterable(pieces, allowed_special="all")) == peer.encode(text).ids

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


@pytest.mark.parametrize("normalizer", [normalizers.Lowercase(), normalizers.Prepend(" ")], ids=["lower", "prepend"])
@pytest.mark.parametrize("content", ["He", "New"], ids=["in the vocabulary", "not in the vocabulary"])
@pytest.mark.parametrize("special", [False, True])
def test_an_added_token_that_is_found_in_normalized_text_decodes_as_in_tokenizers(
    normalizer, content, special, tmp_path
):
    vocabulary = {c: i for i, c in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), "He", "he"])}
    peer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[("H", "e"), ("h", "e")]))
    peer.normalizer, peer.decoder = normalizer, decoders.ByteLevel()
    peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    peer.add_tokens([AddedToken(content, normalized=True, special=special)])
    peer.save(str(tmp_path / "tokenizer.json"))
    tok = Tokenizer.load(tmp_path)
    for text in (f"say {content} you", f"{content} {content.lower()}", f"{content}{content}"):
        ids = tok.encode(text, allowed_special="all")
        assert ids == peer.encode(text).ids
        for skip in (False, True):
            assert tok.decode(ids, skip_special_tokens=skip) == peer.decode(ids, skip_special_tokens=skip)


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


def kind_of_model(kind, gap):
    """Return a tokenizer of `tokenizers` with few tokens. The id before the last is unused if `gap` is true."""
    if kind == "bpe":
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        peer = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate([*letters, "<old>"])}, []))
        peer.pre_tokenizer, peer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    elif kind == "wordpiece":
        tokens = ["[UNK]", "a", "b", "##a", "##b", "new", "<old>"]
        peer = tokenizers.Tokenizer(models.WordPiece({c: i for i, c in enumerate(tokens)}, unk_token="[UNK]"))
        peer.normalizer, peer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        peer.decoder = decoders.WordPiece()
    else:
        peer = tokenizers.Tokenizer(
            models.Unigram([("<unk>", -9.5), ("\u2581", -1.5), ("a", -2.5), ("<old>", -8.5)], 0)
        )
        peer.pre_tokenizer, peer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    content = json.loads(peer.to_str())
    if gap and kind != "unigram":
        content["model"]["vocab"]["<old>"] += 5
    return content


ADDED = ("<old>", "<new>", "<other>", "new word", "word", "a")


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_added_tokens_have_the_ids_of_tokenizers_whatever_ids_the_file_lists(kind, tmp_path):
    @settings(max_examples=300)
    @given(
        st.lists(
            st.fixed_dictionaries(
                {"content": st.sampled_from(ADDED), "id": st.integers(0, 400), "special": st.booleans()}
            ),
            unique_by=lambda token: token["content"],
            max_size=5,
        ),
        st.booleans(),
        st.lists(st.sampled_from([*ADDED, " ", "b", "ab", "w"]), max_size=6).map("".join),
    )
    def check(added, gap, text):
        content = kind_of_model(kind, gap)
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        content["added_tokens"] = [token | plain for token in added]
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        try:
            tok = Tokenizer.load(tmp_path)
        except ValueError as error:
            # "a" is a byte of BPE. A new token can also get the id of another one, if the vocabulary has gaps.
            assert "gives the id" in str(error) or (kind == "bpe" and "'a'" in str(error))
            assert gap or kind == "bpe"
            return
        assert tok.special_tokens == {token["content"]: peer.token_to_id(token["content"]) for token in added}
        expected = peer.encode(text).ids
        assert tok.encode(text, allowed_special="all") == expected
        tok.save(tmp_path / "again")
        assert Tokenizer.load(tmp_path / "again") == tok
        assert tokenizers.Tokenizer.from_file(str(tmp_path / "again" / "tokenizer.json")).encode(text).ids == expected

    check()


def flagged(content, **flags):
    """Return the fields of an added token in tokenizer_config.json."""
    plain = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    return {"content": content} | plain | flags


BESIDE = {
    "gaps": {"added_tokens.json": {"<x>": 300, "<y>": 305}},
    "descending": {"added_tokens.json": {"<x>": 258, "<y>": 257}},
    "config with gaps": {"added_tokens_decoder": {"300": flagged("<x>"), "305": flagged("<y>", special=False)}},
    "config descending": {"added_tokens_decoder": {"258": flagged("<x>"), "257": flagged("<y>", special=False)}},
    "another id for a token of the vocabulary": {
        "added_tokens_decoder": {"5": flagged("<x>"), "305": flagged("<old>")}
    },
}


@pytest.mark.parametrize("listed", BESIDE)
@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_added_tokens_beside_a_vocabulary_have_the_ids_of_transformers(kind, listed, tmp_path):
    config, files = {}, dict(BESIDE[listed])
    if "added_tokens.json" in files:
        config["additional_special_tokens"] = ["<x>", "<y>"]
        (tmp_path / "added_tokens.json").write_text(json.dumps(files.pop("added_tokens.json")))
    if kind == "bpe":
        model = kind_of_model(kind, gap=False)["model"]
        (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"] | {"<|endoftext|>": 257}))
        (tmp_path / "merges.txt").write_text("#version: 0.2\n")
        theirs = transformers.GPT2Tokenizer
    else:
        (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n<old>\n")
        theirs = transformers.BertTokenizer
    config |= files | {"tokenizer_class": theirs.__name__, "do_lower_case": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    peer = theirs.from_pretrained(tmp_path)
    tok = Tokenizer.load(tmp_path)
    assert tok.special_tokens == peer.get_added_vocab()
    for text in ("a<x>b <y>", "<y><x><old>"):
        assert tok.encode(text, allowed_special="all") == peer(text, add_special_tokens=False)["input_ids"]


def test_an_added_token_beside_vocab_txt_is_found_in_normalized_text_as_in_transformers(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n")
    (tmp_path / "added_tokens.json").write_text('{"NewTok": 7}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')
    assert transformers.BertTokenizer.from_pretrained(tmp_path)("a newtok")["input_ids"][1:-1] == [5, 7]
    assert Tokenizer.load(tmp_path).encode("a newtok", allowed_special="all") == [5, 7]
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": "NewTok"}')
    assert transformers.BertTokenizer.from_pretrained(tmp_path)("a newtok NewTok")["input_ids"][1:-1] == [5, 1, 7]
    assert Tokenizer.load(tmp_path).encode("a newtok NewTok", allowed_special="all") == [5, 1, 7]


def test_a_template_with_another_id_than_the_added_token_is_refused(tmp_path):
    content = kind_of_model("bpe", gap=False)
    content["added_tokens"] = [flagged("<x>") | {"id": 300}]
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<x>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"<x>": {"id": "<x>", "ids": [300], "tokens": ["<x>"]}},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"'ids': .300.*, which is not an added token with the id that tokenizers"):
        Tokenizer.load(tmp_path)
