"""Saved files open in other libraries with the same ids, and errors name damaged or unsupported files."""

import base64
import gc
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import tokenizers
import transformers

from tokenizer import Tokenizer
from tokenizer.byte_level import BY_MERGES


@pytest.fixture
def saved(trained, tmp_path):
    trained["cl100k"].save(tmp_path)
    return tmp_path / "tokenizer.json"


def names(folder):
    return [path.name for path in folder.iterdir()]


def edit(path, change):
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("name", ["gpt2", "cl100k"])
def test_a_saved_tokenizer_loads_unchanged(name, trained, tmp_path, random_strings):
    tok = trained[name]
    tok.save(tmp_path / "new" / "folder")
    for path in (tmp_path / "new" / "folder", tmp_path / "new" / "folder" / "tokenizer.json"):
        loaded = Tokenizer.load(path)
        assert loaded.fingerprint == tok.fingerprint
        assert loaded.merges == tok.merges
        assert loaded.pattern == tok.pattern == name
        assert loaded.special_tokens == tok.special_tokens
        assert (loaded.token_byte_lengths == tok.token_byte_lengths).all()
        strings = random_strings(500, 9)
        assert loaded.encode_batch(strings) == tok.encode_batch(strings)
    assert names(tmp_path / "new" / "folder") == ["tokenizer.json"]
    loaded.save(tmp_path / "again")
    again = (tmp_path / "again" / "tokenizer.json").read_bytes()
    assert again == (tmp_path / "new" / "folder" / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("name", ["gpt2", "cl100k"])
def test_tokenizers_and_transformers_open_a_saved_file_with_the_same_ids(
    name, trained, tmp_path, random_strings, stdlib_texts
):
    tok = trained[name]
    tok.save(tmp_path)
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    auto = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    strings = random_strings(10_000, seed=10) + stdlib_texts[:30]
    ours = tok.encode_batch(strings, disallowed_special=())
    assert [encoding.ids for encoding in peer.encode_batch(strings)] == ours
    assert fast(strings[-200:])["input_ids"] == ours[-200:] == auto(strings[-200:])["input_ids"]
    for text, ids in zip(strings[:500], ours, strict=False):
        assert peer.decode(ids) == text
    assert peer.get_vocab_size() == tok.vocab_size
    for text in ("<|endoftext|>", "a<|pad|> b"):
        assert peer.encode(text).ids == tok.encode(text, allowed_special="all")


def test_a_file_trained_by_tokenizers_loads_with_the_same_ids(tmp_path, stdlib_texts, random_strings):
    peer = tokenizers.ByteLevelBPETokenizer(add_prefix_space=False)
    peer.train_from_iterator(stdlib_texts[:40], 3000, special_tokens=["<s>", "<pad>"], show_progress=False)
    peer.save(str(tmp_path / "tokenizer.json"))
    tok = Tokenizer.load(tmp_path)
    assert tok.pattern == "gpt2"
    assert tok.special_tokens == {"<s>": 0, "<pad>": 1}
    for text in random_strings(2000, 11):
        assert tok.encode(text) == peer.encode(text).ids


def test_the_fingerprint_does_not_depend_on_the_file_format(shared, tmp_path):
    gpt2 = Tokenizer.load(shared / "vectors" / "gpt2")
    assert gpt2.special_tokens == {"<|endoftext|>": 50256}
    assert (
        gpt2.fingerprint == "8a4e4c1f2de678974d8454317d82e2a2fe8eccc0101535be236e0bd427923be5"
    )  # the fingerprint never changes
    gpt2.save(tmp_path)
    lines = [
        base64.b64encode(gpt2.token_bytes(i)) + b" %d\n" % i
        for i in range(gpt2.vocab_size)
        if gpt2.token_byte_lengths[i]
    ]
    (tmp_path / "r50k.tiktoken").write_bytes(b"".join(lines))
    as_ranks = Tokenizer.load(tmp_path / "r50k.tiktoken", pattern="r50k", special_tokens={"<|endoftext|>": 50256})
    assert as_ranks.vocabulary.semantics == BY_MERGES
    assert as_ranks.merges == gpt2.merges
    assert gpt2.fingerprint == Tokenizer.load(tmp_path).fingerprint == as_ranks.fingerprint
    assert Tokenizer.load(shared / "vectors" / "gpt2" / "vocab.bpe").fingerprint == gpt2.fingerprint


def test_different_vocabularies_have_different_fingerprints(stdlib_texts):
    def fingerprint(**options):
        return Tokenizer.train(stdlib_texts[:20], **({"vocab_size": 400} | options)).fingerprint

    seen = {
        fingerprint(),
        fingerprint(vocab_size=401),
        fingerprint(pattern="gpt2"),
        fingerprint(pattern="cl100k-2023"),
        fingerprint(special_tokens=("<|endoftext|>", "<|pad|>", "<|mask|>", "<|cls|>", "<|other|>")),
        fingerprint(byte_order="raw"),
    }
    assert len(seen) == 6
    assert fingerprint() in seen


def test_saving_replaces_whole_files_only(trained, saved, monkeypatch):
    before = saved.read_bytes()

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        trained["gpt2"].save(saved.parent)
    assert saved.read_bytes() == before
    assert names(saved.parent) == ["tokenizer.json"]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.9999])
def test_a_truncated_file_is_named(share, saved):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ValueError, match=r"tokenizer\.json.*truncated"):
        Tokenizer.load(saved)


def set_at(*path, value):
    def change(content):
        *parents, last = path
        for key in parents:
            content = content[key]
        content[last] = value

    return change


def drop(*path):
    def change(content):
        *parents, last = path
        for key in parents:
            content = content[key]
        del content[last]

    return change


SPLIT = ("pre_tokenizer", "pretokenizers", 0)
REFUSED = {
    "normalizer of type NFX": set_at("normalizer", value={"type": "NFX"}),
    "truncation": set_at("truncation", value={"max_length": 3}),
    "padding": set_at("padding", value={"strategy": "BatchLongest"}),
    "TemplateProcessing without special_tokens": set_at("post_processor", value={"type": "TemplateProcessing"}),
    "TemplateProcessing without pair": set_at(
        "post_processor", value={"type": "TemplateProcessing", "single": [], "special_tokens": {}}
    ),
    "neither a sequence nor": set_at(
        "post_processor",
        value={
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|pad|>", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        },
    ),
    "post_processor of type Unknown": set_at("post_processor", value={"type": "Unknown"}),
    "BertProcessing with cls": set_at("post_processor", value={"type": "BertProcessing", "cls": ["[CLS]", 0]}),
    "which is not an added token with the id that tokenizers gives it": set_at(
        "post_processor",
        value={
            "type": "TemplateProcessing",
            "single": [],
            "pair": [],
            "special_tokens": {"x": {"id": "x", "ids": [9], "tokens": ["x"]}},
        },
    ),
    "decoder of type Unknown": set_at("decoder", value={"type": "Unknown"}),
    "pre_tokenizer of type Unknown": set_at("pre_tokenizer", value={"type": "Unknown"}),
    "add_prefix_space = 1": set_at("pre_tokenizer", "pretokenizers", 1, "add_prefix_space", value=1),
    "pattern that is neither": set_at("pre_tokenizer", "pretokenizers", 1, value={"type": "Split"}),
    "Digits with individual_digits": set_at(*SPLIT, value={"type": "Digits", "individual_digits": "no"}),
    "Punctuation with behavior 'Merged'": set_at(*SPLIT, value={"type": "Punctuation", "behavior": "Merged"}),
    "pretokenizers that are not a list": set_at("pre_tokenizer", "pretokenizers", value={"type": "Digits"}),
    "has 1,000 pre_tokenizer.pretokenizers": set_at(
        "pre_tokenizer", "pretokenizers", value=[{"type": "Digits"}] * 1000
    ),
    "neither a Regex nor a String": set_at(*SPLIT, "pattern", value={"Regexp": "x"}),
    "not a valid regex": set_at(*SPLIT, "pattern", value={"Regex": "("}),
    "continuing_subword_prefix = None": set_at("model", "type", value="WordPiece"),
    "dropout": set_at("model", "dropout", value=0.1),
    "byte_fallback": set_at("model", "byte_fallback", value=True),
    "continuing_subword_prefix = 7": set_at("model", "continuing_subword_prefix", value=7),
    "no model.vocab": drop("model", "vocab"),
    "no merges": drop("model", "merges"),
    "no model": drop("model"),
    "the id -1": set_at("model", "vocab", "e", value=-1),
    "the id 1.5": set_at("model", "vocab", "e", value=1.5),
    "the id None": set_at("model", "vocab", "e", value=None),
    "twice": set_at("model", "vocab", "e", value=7),
    "ids up to": set_at("model", "vocab", "e", value=2**24 - 1),
    "merge 3 .* lacks": set_at("model", "merges", 3, value=["qqqq", "q"]),
    "merge 4, which is not a pair": set_at("model", "merges", 4, value=["a"]),
    "merge 5, which is not a pair": set_at("model", "merges", 5, value=7),
    "lstrip = 1": set_at("added_tokens", 0, "lstrip", value=1),
    "special = 'no'": set_at("added_tokens", 0, "special", value="no"),
    "name of a pattern": set_at(*SPLIT, "pattern", value={"Regex": "gpt2"}),
    "id True": set_at("model", "vocab", "e", value=True),
    r"added_tokens\[1\].id": set_at("added_tokens", 1, "id", value="x"),
    r"added_tokens\[2\], which is not an object": set_at("added_tokens", 2, value=3),
    "ignore_merges": set_at("model", "ignore_merges", value="yes"),
}


@pytest.mark.parametrize("said", REFUSED)
def test_damaged_or_unsupported_files_are_refused_by_name(said, saved):
    edit(saved, REFUSED[said])
    with pytest.raises(ValueError, match=said) as caught:
        Tokenizer.load(saved)
    assert "tokenizer.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"[]", b"3", b"\xff\xfe", b"[" * 100_000, b'{"model": []}', b"{}", b"null"])
def test_other_json_is_refused(content, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        Tokenizer.load(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "single bytes"),
        (b"IQ== 0\nIg==\n", "line 2"),
        (b"IQ== 0\n!!!! 1\n", "line 2"),
        (b"IQ== 0\nIg== x\n", "line 2"),
        (b"IQ== 0\nIg== 0\n", "line 2 repeats"),
        (b"IQ== 99999999999\n", "line 1"),
        (b"IQ== -1\n", "line 1"),
    ],
)
def test_damaged_rank_files_are_named(content, said, tmp_path):
    path = tmp_path / "x.tiktoken"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"x.tiktoken.*{said}"):
        Tokenizer.load(path, pattern="gpt2")


def test_a_rank_file_with_a_token_twice_is_refused(tmp_path):
    lines = [base64.b64encode(bytes([i])) + b" %d\n" % i for i in range(256)] + [b"YQ== 256\n"]
    (tmp_path / "x.tiktoken").write_bytes(b"".join(lines))
    with pytest.raises(ValueError, match="two tokens"):
        Tokenizer.load(tmp_path / "x.tiktoken", pattern="gpt2")


def test_an_error_in_loading_names_the_missing_file_or_option(tmp_path, saved):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Tokenizer.load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path / "empty")
    (tmp_path / "x.tiktoken").write_bytes(b"IQ== 0\n")
    with pytest.raises(ValueError, match="pattern"):
        Tokenizer.load(tmp_path / "x.tiktoken")
    with pytest.raises(ValueError, match="dict from spelling to id"):
        Tokenizer.load(tmp_path / "x.tiktoken", pattern="gpt2", special_tokens=["<|x|>"])
    with pytest.raises(ValueError, match="its own pattern"):
        Tokenizer.load(saved, pattern="gpt2")
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\n")
    with pytest.raises(ValueError, match=r"encoder\.json"):
        Tokenizer.load(tmp_path / "vocab.bpe")


def test_special_tokens_may_hold_any_characters(tmp_path):
    special = ("<|end of text|>", "漢字", "<\n>")
    tok = Tokenizer.train(["hello hello hello"], 256 + 5, special_tokens=special)
    tok.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert loaded.special_tokens == {spelling: i for i, spelling in enumerate(special)}
    assert loaded.fingerprint == tok.fingerprint
    text = "hello<|end of text|>漢字 <\n>x"
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert loaded.encode(text, allowed_special="all") == peer.encode(text).ids


def test_loading_restores_the_state_of_the_garbage_collector(saved):
    for collects in (False, True):
        gc.enable() if collects else gc.disable()
        try:
            Tokenizer.load(saved)
            with pytest.raises(FileNotFoundError):
                Tokenizer.load(saved.parent / "none")
            assert gc.isenabled() == collects
        finally:
            gc.enable()


def test_a_file_is_encoded_as_one_text(trained, stdlib_texts, tmp_path):
    tok = trained["cl100k"]
    path = tmp_path / "text.txt"
    for data in (b"", b"a<|endoftext|>\r\n\xff b", "".join(stdlib_texts[:50]).encode() + b" \n"):
        path.write_bytes(data)
        for form in (path, str(path)):
            ids = tok.encode_file(form, threads=2)
            assert ids.dtype == "uint32"
            assert ids.tolist() == tok.encode_ordinary(data)
    with pytest.raises(FileNotFoundError, match=r"none\.txt"):
        tok.encode_file(tmp_path / "none.txt")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with ThreadPoolExecutor(1) as pool:
            pool.submit((tmp_path / "pipe").write_bytes, data)
            assert tok.encode_file(tmp_path / "pipe").tolist() == ids.tolist()
