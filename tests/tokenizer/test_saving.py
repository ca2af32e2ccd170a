"""tokenizer.json is written token by token, with the same text as json.dumps of the whole content."""

import base64
import json

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokenizer import DEFAULT_SPECIAL_TOKENS, Tokenizer
from tokenizer.byte_level import spell

pytestmark = pytest.mark.filterwarnings("ignore:the corpus ran out of pairs")

TEXTS = st.binary(max_size=60) | st.text(alphabet='ab é字"\\\n\x7f', max_size=60).map(str.encode)
SPECIAL = st.lists(st.sampled_from([*DEFAULT_SPECIAL_TOKENS, '<"\\\n>', "<字\u2028>", " a b"]), unique=True)


def check_saved(tok, folder):
    """Save a tokenizer, compare the file with json.dumps of the expected content, and return the content."""
    tok.save(folder)
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    content = json.loads(text)
    assert text == json.dumps(content, ensure_ascii=False, indent=2) + "\n"
    special = {i: spelling for spelling, i in tok.special_tokens.items()}
    entries = [(special.get(i) or spell(tok.token_bytes(i)), i) for i in range(tok.vocab_size)]
    assert list(content["model"]["vocab"].items()) == entries
    assert content["model"]["merges"] == [[spell(left), spell(right)] for left, right in tok.merges]
    assert [(token["content"], token["id"]) for token in content["added_tokens"]] == sorted(
        tok.special_tokens.items(), key=lambda item: item[1]
    )
    return content


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=4), SPECIAL, st.sampled_from(["gpt2", "raw"]), st.booleans())
def test_a_file_is_what_json_dumps_makes_of_the_vocabulary(tmp_path_factory, texts, special, byte_order, few):
    folder = tmp_path_factory.mktemp("saved")
    merges = 0 if few else 40
    size = 256 + len(special) + merges
    tok = Tokenizer.train(texts, size, special_tokens=special, byte_order=byte_order, min_frequency=1)
    check_saved(tok, folder / "trained")
    check_saved(Tokenizer.load(folder / "trained"), folder / "again")
    assert (folder / "again" / "tokenizer.json").read_bytes() == (folder / "trained" / "tokenizer.json").read_bytes()


def test_flags_normalizer_and_post_processor_are_written_as_they_were_read(tmp_path):
    tok = Tokenizer.train(["some text, some more"], 300, special_tokens=["<s>", "<name>"])
    content = check_saved(tok, tmp_path)
    content["added_tokens"][1] |= {"special": False, "lstrip": True, "normalized": True}
    content["normalizer"] = {"type": "NFC"}
    content["model"]["ignore_merges"] = True
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
    }
    (tmp_path / "changed.json").write_text(json.dumps(content), encoding="utf-8")
    saved = check_saved(Tokenizer.load(tmp_path / "changed.json"), tmp_path / "saved")
    assert saved == content | {"model": content["model"] | {"ignore_merges": False}}  # merging makes every token


def test_ids_without_a_token_are_left_out(tmp_path):
    """The ranks have gaps, one of them before a special token."""
    tok = Tokenizer.train(["some text, some more text"], 262, special_tokens=())
    ranks = tmp_path / "gaps.tiktoken"
    lines = [(tok.token_bytes(i), i + 5 * (i > 257)) for i in range(tok.vocab_size)]
    ranks.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % i for token, i in lines))
    gaps = Tokenizer.load(ranks, pattern="cl100k", special_tokens={"<end>": 280})
    gaps.save(tmp_path)
    text = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    content = json.loads(text)
    assert text == json.dumps(content, ensure_ascii=False, indent=2) + "\n"
    assert content["model"]["vocab"] == {spell(token): i for token, i in lines} | {"<end>": 280}
    assert Tokenizer.load(tmp_path).fingerprint == gaps.fingerprint


def test_tokens_of_megabytes_are_written_in_full(tmp_path):
    """Tokens are spelled in parts: letters, bytes whose spelling is not ASCII, and characters that JSON escapes."""
    runs = [letter * 5_000_000 for letter in (b"x", b" ", b"\\", b"\xff\x00")]
    tok = Tokenizer.train(runs, 256 + 100, special_tokens=(), min_frequency=1)
    assert tok.token_byte_lengths.max() > 1 << 21
    check_saved(tok, tmp_path)


@pytest.mark.parametrize("spelling", ["Ġsome", "ĠĠ"])
def test_a_special_token_spelled_like_an_ordinary_one_must_have_its_id(spelling):
    """tokenizer.json could not hold both."""
    said = f"special token '{spelling}' is also the spelling of an ordinary token"
    with pytest.raises(ValueError, match=said):
        Tokenizer.train([" some some   "], 300, special_tokens=[spelling, "<other>"], min_frequency=1)
    ranks = {bytes([byte]): byte for byte in range(256)} | {b" some": 256, b"  ": 257}
    with pytest.raises(ValueError, match=said):
        Tokenizer.from_ranks(ranks, "gpt2", {spelling: 300})
    tok = Tokenizer.from_ranks(ranks, "gpt2").add_special_tokens([spelling])
    assert tok == Tokenizer.from_ranks(ranks, "gpt2", tok.special_tokens)
    assert tok.special_tokens[spelling] == tok.token_to_id(spelling) in (256, 257)


def test_a_token_that_no_merge_makes_is_saved_and_loaded_as_a_special_token(tmp_path):
    ids = {bytes([byte]): byte for byte in range(256)} | {b"xyz": 256, b"xyzw": 257, b"ab": 258}
    tok = Tokenizer.from_merges(ids, [(b"xyz", b"w"), (b"a", b"b")], "gpt2").add_special_tokens(["xyz", "ab"])
    tok.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again == tok
    assert tok.special_tokens == again.special_tokens == {"xyz": 256, "ab": 258}
    for each in (tok, again):
        assert each.encode("xyz ab", allowed_special="all") == [256, 32, 258]
        assert each.encode_ordinary("xyzw ab") == [*b"xyzw", 32, 258]


BYTES = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256, b" a": 258}
WORDS = {"[UNK]": 0, "a": 1, "##b": 2, "abc": 3, "[CLS]": 5}
SPELLINGS = (
    "<x>",
    "<y>",
    "ab",
    "a",
    " ",
    "\n",
    "abc",
    " a",
    "Ġa",
    "é",
    "[CLS]",
    "<long" + ">" * 4092,
    "<long" + ">" * 4090,
)
ODD_IDS = st.integers(0, 300) | st.sampled_from([66_000, 66_100, 100_257, 2**24 - 1, 2**24, -1])
SPECIAL_IDS = st.dictionaries(st.sampled_from(SPELLINGS), ODD_IDS, max_size=3)


def made(way, special, more, folder):
    """Return a tokenizer that was made in one of several ways, with these special tokens and then some more."""
    if way == "ranks":
        tok = Tokenizer.from_ranks(BYTES, "gpt2", special)
    elif way == "rank file":
        lines = [base64.b64encode(token) + b" %d\n" % i for token, i in BYTES.items()]
        (folder / "x.tiktoken").write_bytes(b"".join(lines))
        tok = Tokenizer.load(folder / "x.tiktoken", pattern="gpt2", special_tokens=special)
    elif way == "merges":
        tok = Tokenizer.from_merges(BYTES, [(b"a", b"b"), (b" ", b"a")], "gpt2", special)
    elif way == "wordpiece":
        tok = Tokenizer.from_wordpiece(WORDS, special_tokens=special)
    elif way == "vocab.txt":
        (folder / "vocab.txt").write_text("[UNK]\na\n##b\nabc\n")
        tok = Tokenizer.load(folder / "vocab.txt", pattern="bert-uncased", special_tokens=special)
    else:
        spellings = sorted(special, key=special.__getitem__)
        tok = Tokenizer.train(["ab abc ab abc"], 290, kind=way, special_tokens=spellings, min_frequency=1)
    return tok.add_special_tokens(more) if more else tok


@pytest.mark.filterwarnings("ignore:training starts", "ignore:the corpus ran out")
@pytest.mark.parametrize("way", ["ranks", "rank file", "merges", "wordpiece", "vocab.txt", "bpe", "unigram"])
def test_every_tokenizer_that_can_be_made_is_saved_and_loaded_with_the_same_ids(way, tmp_path):
    @settings(max_examples=20 if way == "unigram" else 100)
    @given(
        SPECIAL_IDS,
        st.lists(st.sampled_from(SPELLINGS), unique=True, max_size=2),
        st.lists(st.sampled_from([*SPELLINGS, "b", "c"]), max_size=5).map("".join),
    )
    @example({"<|endoftext|>": 100_257}, [], "")
    @example({"<x>": 66_000}, ["<y>"], "<x><y>")
    def check(special, more, text):
        try:
            tok = made(way, special, more, tmp_path)
        except ValueError:
            return
        tok.save(tmp_path / "saved")
        again = Tokenizer.load(tmp_path / "saved")
        assert again.special_tokens == tok.special_tokens
        assert again == tok
        peer = tokenizers.Tokenizer.from_file(str(tmp_path / "saved" / "tokenizer.json"))
        expected = tok.encode(text, allowed_special="all")
        assert again.encode(text, allowed_special="all") == expected
        assert peer.encode(text, add_special_tokens=False).ids == expected
        assert again.encode(text, disallowed_special=()) == tok.encode(text, disallowed_special=())

    check()


def test_one_rule_says_which_ids_special_tokens_may_have(tmp_path):
    Tokenizer.from_ranks(BYTES, "gpt2", {"<x>": 300}).save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["vocab"]["<x>"] = content["added_tokens"][0]["id"] = 100_257
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    makers = (
        lambda: Tokenizer.from_ranks(BYTES, "gpt2", {"<x>": 100_257}),
        lambda: Tokenizer.from_merges(BYTES, [(b"a", b"b"), (b" ", b"a")], "gpt2", {"<x>": 100_257}),
        lambda: Tokenizer.load(tmp_path),
    )
    for make in makers:
        with pytest.raises(
            ValueError, match="ids up to 100257 are too large for 259 tokens: the largest allowed id is 66053"
        ):
            make()


@pytest.mark.parametrize("normalizer", ["NFKC", "nfc", 3])
def test_a_normalizer_that_no_file_may_name_is_refused(normalizer):
    for make in (
        lambda: Tokenizer.from_ranks(BYTES, "gpt2", normalizer=normalizer),
        lambda: Tokenizer.from_merges(BYTES, [], "gpt2", normalizer=normalizer),
    ):
        with pytest.raises(ValueError, match="normalizer must be 'NFC' or None"):
            make()


def test_a_file_too_large_to_load_is_refused_and_the_previous_file_is_kept(tmp_path, monkeypatch):
    Tokenizer.train(["some text"], 256, special_tokens=()).save(tmp_path)
    before = (tmp_path / "tokenizer.json").read_bytes()
    monkeypatch.setattr("tokenizer.formats.strict_json.LARGEST_FILE", 100_000)
    tok = Tokenizer.train(["x" * 65536], 300, special_tokens=())
    with pytest.raises(ValueError, match=r"a token has 32,768 bytes, so train with a smaller `?max_token_length"):
        tok.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
    assert (tmp_path / "tokenizer.json").read_bytes() == before
