"""Files in the published formats of Llama 3, Qwen, o200k and GPT-2 give the ids of their own libraries."""

import base64
import json
import random
import unicodedata

import pyarrow as pa
import pytest
import tiktoken
import tokenizers
import transformers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
from transformers.convert_slow_tokenizer import TikTokenConverter

from tokenizer import PatternNeededError, Tokenizer, encoding_name_for_model, resolve_pattern
from tokenizer.byte_level import WHOLE_FIRST
from tokenizer.formats.published import PUBLISHED, recognise


def as_ranks(tok):
    """Return a vocabulary in tiktoken's format."""
    ids = [i for i in range(tok.vocab_size) if tok.token_byte_lengths[i]]
    return b"".join(base64.b64encode(tok.token_bytes(i)) + b" %d\n" % i for i in ids)


def hugging_face_ids(path, texts):
    """Return the ids of tokenizers and transformers without special tokens around the texts."""
    peer = tokenizers.Tokenizer.from_file(str(path))
    ids = [encoding.ids for encoding in peer.encode_batch(texts, add_special_tokens=False)]
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
    assert fast(texts[:200], add_special_tokens=False)["input_ids"] == ids[:200]
    return ids


@pytest.fixture(scope="module")
def plain(stdlib_texts):
    """Return tokenizers without special tokens, whose ids start at 0, for published patterns."""
    names = ("gpt2", "llama3", "qwen2", "o200k")
    return {name: Tokenizer.train(stdlib_texts[:60], 1500, pattern=name, special_tokens=()) for name in names}


@pytest.fixture
def llama(plain, tmp_path):
    """Return Llama 3's files: tokenizer.model in tiktoken's format, and its conversion by transformers."""
    (tmp_path / "tokenizer.model").write_bytes(as_ranks(plain["llama3"]))
    special = ["<|begin_of_text|>", "<|end_of_text|>", *(f"<|reserved_special_token_{i}|>" for i in range(5))]
    converter = TikTokenConverter(vocab_file=str(tmp_path / "tokenizer.model"), extra_special_tokens=special)
    peer = converter.converted()
    begin = special[0]
    peer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{begin} $A",
                pair=f"{begin} $A {begin}:1 $B:1",
                special_tokens=[(begin, peer.token_to_id(begin))],
            ),
        ]
    )
    (tmp_path / "hf").mkdir()
    peer.save(str(tmp_path / "hf" / "tokenizer.json"))
    return tmp_path


def test_llama_3_files_give_the_same_ids_and_fingerprint(llama, plain, random_strings, as_tiktoken):
    from tokenizer.splitting.patterns import LLAMA3_REGEX

    tok = Tokenizer.load(llama / "hf")
    assert tok.pattern == "llama3"
    assert tok.special_tokens["<|begin_of_text|>"] == 1500
    ranks = Tokenizer.load(llama, pattern="llama3", special_tokens=tok.special_tokens)
    texts = random_strings(4000, 40)
    expected = hugging_face_ids(llama / "hf" / "tokenizer.json", texts)
    assert tok.encode_batch(texts) == expected
    assert [tok.encode(text) for text in texts[:500]] == expected[:500]
    assert ranks.encode_batch(texts) == expected
    assert as_tiktoken(plain["llama3"], LLAMA3_REGEX).encode_ordinary_batch(texts) == expected
    assert tok.fingerprint == ranks.fingerprint
    assert tok.merges == ranks.merges == plain["llama3"].merges
    assert tok.encode("<|end_of_text|>", allowed_special="all") == [1501]


def test_a_template_is_kept_but_not_applied(llama):
    tok = Tokenizer.load(llama / "hf")
    assert 1500 not in tok.encode("Hello")
    tok.save(llama / "again")
    before = tokenizers.Tokenizer.from_file(str(llama / "hf" / "tokenizer.json"))
    after = tokenizers.Tokenizer.from_file(str(llama / "again" / "tokenizer.json"))
    assert after.encode("Hello", "you").ids == before.encode("Hello", "you").ids
    assert after.encode("Hello").ids == [1500, *tok.encode("Hello")]
    assert Tokenizer.load(llama / "again").fingerprint == tok.fingerprint


@pytest.fixture
def unreachable(plain, trained, tmp_path):
    """Return Llama 3's files, whose ranks have tokens that merging never makes, and special tokens by id."""
    ranks = {plain["llama3"].token_bytes(i): i for i in range(1500)}
    larger = trained["cl100k"]
    for i in range(2000, larger.vocab_size, 3):
        ranks.setdefault(larger.token_bytes(i), len(ranks))
    for text in ("import numpy", "наука", "наук", "ука", "aaaa", "aaaaaaa", "   \n\n", "変数の"):
        ranks.setdefault(text.encode(), len(ranks))
    lines = b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
    (tmp_path / "tokenizer.model").write_bytes(lines)
    special = {f"<|special_{i}|>": len(ranks) + i for i in range(3)}
    converter = TikTokenConverter(vocab_file=str(tmp_path / "tokenizer.model"), extra_special_tokens=special)
    (tmp_path / "hf").mkdir()
    converter.converted().save(str(tmp_path / "hf" / "tokenizer.json"))
    return ranks, special


def test_llama_3s_ranks_save_as_transformers_converts_them(unreachable, tmp_path, random_strings, stdlib_texts):
    from tokenizer.splitting.patterns import LLAMA3_REGEX

    ranks, special = unreachable
    converted = Tokenizer.load(tmp_path / "hf")
    tok = Tokenizer.load(tmp_path / "tokenizer.model", pattern="llama3", special_tokens=special)
    assert tok.vocabulary.semantics == WHOLE_FIRST
    assert tok.merges == converted.merges
    assert tok.fingerprint == converted.fingerprint
    tok.save(tmp_path / "saved")
    saved = Tokenizer.load(tmp_path / "saved")
    assert saved.fingerprint == tok.fingerprint
    texts = [*random_strings(1000, 41), *stdlib_texts[:20], "наука научная 変数の aaaaaaaaaaaaaaaaa import numpy"]
    expected = tiktoken.Encoding(
        "llama", pat_str=LLAMA3_REGEX, mergeable_ranks=ranks, special_tokens=special
    ).encode_ordinary_batch(texts)
    assert tok.encode_batch(texts) == saved.encode_batch(texts) == converted.encode_batch(texts) == expected
    for folder in ("saved", "hf"):
        assert hugging_face_ids(tmp_path / folder / "tokenizer.json", texts) == expected
    model = {name: json.loads((tmp_path / name / "tokenizer.json").read_bytes())["model"] for name in ("saved", "hf")}
    assert model["saved"]["merges"] == model["hf"]["merges"]


@pytest.fixture
def qwen(plain, tmp_path):
    """Return Qwen's files: a tokenizer.json, and vocab.json and merges.txt with a tokenizer_config.json."""
    plain["qwen2"].save(tmp_path)
    model = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    (tmp_path / "tokenizer.json").unlink()
    merges = [tuple(merge) for merge in model["merges"]]
    peer = transformers.Qwen2Tokenizer(vocab=model["vocab"], merges=merges)
    peer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    peer.add_tokens([transformers.AddedToken(t, special=False, normalized=False) for t in ("<think>", "</think>")])
    peer.save_pretrained(tmp_path / "hf")
    (tmp_path / "vocab").mkdir()
    peer.backend_tokenizer.model.save(str(tmp_path / "vocab"))
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    config = {
        "added_tokens_decoder": {
            str(i): {"content": token.content, "special": token.special} | flags
            for i, token in sorted(peer.added_tokens_decoder.items())
        },
        "add_prefix_space": False,
        "tokenizer_class": "Qwen2Tokenizer",
    }
    (tmp_path / "vocab" / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


DECOMPOSED = [
    "cafe\u0301",
    "e\u0301" * 30,
    "\u1112\u1161\u11ab",
    "A\u030a \u212b \u2126 ;\u037e",
    "a\u0323\u0307",
    "x\u0338=",
]


def test_qwen_files_give_the_same_ids_and_fingerprint(qwen, plain, random_strings):
    tok = Tokenizer.load(qwen / "hf")
    assert (tok.pattern, tok.normalizer) == ("qwen2", "NFC")
    pair = Tokenizer.load(qwen / "vocab")
    assert pair.special_tokens == tok.special_tokens
    assert pair.special_tokens["<think>"] == 1503
    (qwen / "qwen.tiktoken").write_bytes(as_ranks(plain["qwen2"]))
    given = {"pattern": "qwen2", "special_tokens": tok.special_tokens, "normalizer": "NFC"}
    ranks = Tokenizer.load(qwen / "qwen.tiktoken", **given)
    texts = [*DECOMPOSED, *random_strings(4000, 42)]
    expected = hugging_face_ids(qwen / "hf" / "tokenizer.json", texts)
    for ours in (tok, pair, ranks):
        assert [ours.encode(text) for text in texts[:500]] == expected[:500]
        assert ours.encode_batch(texts) == expected
        assert ours.encode_arrow(pa.array(texts)).to_pylist() == expected
        assert [ours.encode_to_numpy(text).tolist() for text in texts[:500]] == expected[:500]
    assert tok.fingerprint == pair.fingerprint == ranks.fingerprint
    assert tok.fingerprint != Tokenizer.load(qwen / "qwen.tiktoken", **given | {"normalizer": None}).fingerprint
    text = "<|im_start|>cafe\u0301<think>e\u0301</think>\u0301"
    peer = tokenizers.Tokenizer.from_file(str(qwen / "hf" / "tokenizer.json"))
    assert tok.encode(text, allowed_special="all") == pair.encode(text, allowed_special="all") == peer.encode(text).ids


def test_added_tokens_that_are_not_special_follow_the_same_rule_and_survive_saving(qwen):
    for folder in ("hf", "vocab"):
        tok = Tokenizer.load(qwen / folder)
        with pytest.raises(ValueError, match="'<think>' at byte 2"):
            tok.encode("a <think>")
        assert tok.encode("<think>", allowed_special={"<think>"}) == [tok.special_tokens["<think>"]]
        assert tok.decode(tok.encode("<think>", disallowed_special=())) == "<think>"
        tok.save(qwen / "again")
        assert Tokenizer.load(qwen / "again").fingerprint == tok.fingerprint
        peer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(qwen / "again" / "tokenizer.json"))
        assert {token.content for token in peer.added_tokens_decoder.values() if not token.special} == {
            "<think>",
            "</think>",
        }
        text = "e\u0301<think>e\u0301"
        assert peer(text)["input_ids"] == tok.encode(text, allowed_special="all")


def test_nfc_holds_for_text_of_any_length_and_leaves_other_bytes_alone(qwen, tmp_path):
    tok = Tokenizer.load(qwen / "hf")
    text = "naïve e\u0301cole, \u1112\u1161\u11ab; " * 200_000
    assert tok.decode(tok.encode_to_numpy(text, threads=2)) == unicodedata.normalize("NFC", text)
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    assert (tok.encode_file(tmp_path / "text.txt") == tok.encode_to_numpy(text)).all()
    han = "字\u0301" * 500_000  # no ASCII character to cut at
    assert tok.decode(tok.encode_to_numpy(han)) == unicodedata.normalize("NFC", han)
    data = b"e\xcc\x81\xff\xcc\x81 e\xcc"
    assert tok.decode_bytes(tok.encode(data)) == b"\xc3\xa9\xff\xcc\x81 e\xcc"
    documents = [b"e\xcc", b"\x81", b"", b"e\xcc\x81", b"\xcc\x81"]
    assert tok.encode_arrow(pa.array(documents)).to_pylist() == [tok.encode(document) for document in documents]


def test_nfc_is_that_of_tokenizers_for_every_code_point():
    from tokenizer.text import nfc

    rng = random.Random(44)
    characters = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    # Marks of the lowest and the highest class show whether a code point moves, or stands between.
    texts = [f"q{c}\u0338\u0345{c} e{c}\u0301" for c in characters]
    texts += [unicodedata.normalize("NFD", c) for c in characters]
    marks = [c for c in characters if unicodedata.combining(c)]
    texts += [rng.choice(characters) + "".join(rng.choices(marks, k=rng.randrange(1, 5))) for _ in range(100_000)]
    text = " ".join(texts)
    assert nfc(text.encode()).decode() == normalizers.NFC().normalize_str(text)


@pytest.mark.parametrize("behavior", ["isolated", "removed"])
def test_o200k_files_give_the_same_ids_and_fingerprint(behavior, plain, tmp_path, random_strings, tiktoken_patterns):
    from tokenizer.splitting.patterns import O200K_REGEX

    plain["o200k"].save(tmp_path / "ours")
    model = json.loads((tmp_path / "ours" / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    peer = tokenizers.Tokenizer(models.BPE(vocab=model["vocab"], merges=merges, ignore_merges=True))
    split = pre_tokenizers.Split(Regex(O200K_REGEX), behavior, invert=behavior == "removed")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    peer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    peer.decoder = decoders.ByteLevel()
    peer.post_processor = processors.ByteLevel(trim_offsets=False)
    peer.add_special_tokens(["<|endoftext|>", "<|endofprompt|>"])
    peer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "o200k_base.tiktoken").write_bytes(as_ranks(plain["o200k"]))
    tok = Tokenizer.load(tmp_path / "tokenizer.json")
    assert tok.pattern == "o200k"
    ranks = Tokenizer.load(tmp_path / "o200k_base.tiktoken", pattern="o200k", special_tokens=tok.special_tokens)
    assert tok.fingerprint == ranks.fingerprint
    texts = random_strings(4000, 43)
    expected = hugging_face_ids(tmp_path / "tokenizer.json", texts)
    assert tok.encode_batch(texts) == ranks.encode_batch(texts) == expected
    encoding = tiktoken.Encoding(
        "o200k",
        pat_str=tiktoken_patterns["o200k"],
        mergeable_ranks={plain["o200k"].token_bytes(i): i for i in range(1500)},
        special_tokens={},
    )
    assert encoding.encode_ordinary_batch(texts) == expected


def test_gpt_2_files_of_transformers_load(shared, tmp_path):
    """The files are vocab.json and merges.txt as published, and their conversion by GPT2Tokenizer."""
    gpt2 = Tokenizer.load(shared / "vectors" / "gpt2")
    (tmp_path / "vocab.json").write_bytes((shared / "vectors" / "gpt2" / "encoder.json").read_bytes())
    (tmp_path / "merges.txt").write_bytes((shared / "vectors" / "gpt2" / "vocab.bpe").read_bytes())
    for path in (tmp_path, tmp_path / "vocab.json", tmp_path / "merges.txt"):
        assert Tokenizer.load(path).fingerprint == gpt2.fingerprint
    peer = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    peer.save_pretrained(tmp_path / "hf")
    assert Tokenizer.load(tmp_path / "hf").fingerprint == gpt2.fingerprint
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 1024, "tokenizer_class": "GPT2Tokenizer"}')
    windows = (tmp_path / "merges.txt").read_bytes().replace(b"\n", b"\r\n")
    (tmp_path / "merges.txt").write_bytes(windows)
    assert Tokenizer.load(tmp_path).fingerprint == gpt2.fingerprint


@pytest.mark.parametrize("name", ["cl100k_base.tiktoken", "mine.tiktoken", "tokenizer.model"])
def test_published_ranks_are_recognised_by_content_whatever_their_name(name, shared, tmp_path, tiktoken_encodings):
    published = shared / "vectors" / "cl100k" / "cl100k_base.tiktoken"
    (tmp_path / name).symlink_to(published)
    tok = Tokenizer.load(tmp_path / name)
    assert tok.pattern == "cl100k"
    assert tok.special_tokens == tiktoken_encodings["cl100k_base"]["special_tokens"]
    assert tok.encode("hello<|endofprompt|> world", allowed_special="all") == [15339, 100276, 1917]
    given = Tokenizer.load(tmp_path / name, pattern="cl100k", special_tokens=tok.special_tokens)
    assert given.fingerprint == tok.fingerprint
    assert Tokenizer.load(tmp_path / name, special_tokens={}).special_tokens == {}
    # With an explicit pattern there are no special tokens, so fingerprints do not change.
    assert Tokenizer.load(tmp_path / name, pattern="cl100k").special_tokens == {}


def test_ranks_are_recognised_by_name_where_their_content_is_another(shared, plain, tmp_path):
    content = (shared / "vectors" / "cl100k" / "cl100k_base.tiktoken").read_bytes()
    whole = Tokenizer.load(shared / "vectors" / "cl100k" / "cl100k_base.tiktoken")
    (tmp_path / "cl100k.tiktoken").write_bytes(content.replace(b"\n", b"\r\n"))
    assert Tokenizer.load(tmp_path / "cl100k.tiktoken").fingerprint == whole.fingerprint
    (tmp_path / "mine.tiktoken").write_bytes(content.replace(b"\n", b"\r\n"))
    with pytest.raises(PatternNeededError, match=r"mine\.tiktoken: .*pass pattern= with one of gpt2, r50k"):
        Tokenizer.load(tmp_path / "mine.tiktoken")
    # A vocabulary of another size has other ids. Its name gives the pattern only.
    (tmp_path / "o200k_base.tiktoken").write_bytes(as_ranks(plain["o200k"]))
    tok = Tokenizer.load(tmp_path / "o200k_base.tiktoken")
    assert (tok.pattern, tok.special_tokens, tok.vocab_size) == ("o200k", {}, 1500)


def test_facts_about_published_ranks_equal_those_of_tiktoken(tiktoken_encodings):
    for name, known in PUBLISHED.items():
        if name in ("llama3", "multilingual"):
            continue
        theirs = tiktoken_encodings[name if name in tiktoken_encodings else f"{name}_base"]
        assert resolve_pattern(theirs["pat_str"]).name == known.pattern
        # In o200k_harmony, two special tokens have the id 200018.
        assert {token: i for token, i in theirs["special_tokens"].items() if token != "<|reserved_200018|>"} == (
            known.special_tokens
        )
        assert theirs["mergeable_ranks"] == known.sha256
        if "explicit_n_vocab" in theirs:
            assert theirs["explicit_n_vocab"] == known.ranks + len(known.special_tokens)


def test_names_tell_vocabularies_with_the_same_ranks_apart():
    for name, size in (("p50k_edit", 4), ("p50k_base", 1)):
        pattern, special = recognise(b"with other line ends", 50280, name)
        assert (pattern, len(special)) == ("gpt2", size)
    assert recognise(b"with other line ends", 199998, "o200k_harmony")[1]["<|return|>"] == 200002


def test_names_of_models_give_the_encodings_of_tiktoken():
    begun = [f"{name}mini" for name in tiktoken.model.MODEL_PREFIX_TO_ENCODING]
    for name in [*tiktoken.model.MODEL_TO_ENCODING, *begun, "gpt-4o-2024-05-13", "gpt-4-32k", "ft:gpt-4o-x"]:
        assert encoding_name_for_model(name) == tiktoken.model.encoding_name_for_model(name), name
    for name in ("gpt", "gpt-4.1x", "", None):
        with pytest.raises(ValueError, match="no encoding is known for the model"):
            encoding_name_for_model(name)


@pytest.fixture
def pair(plain, tmp_path):
    """Return a folder with vocab.json and merges.txt only."""
    plain["gpt2"].save(tmp_path)
    model = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "my-vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
    (tmp_path / "my-merges.txt").write_text("#version: 0.2\n" + merges, encoding="utf-8")
    return tmp_path / "my-vocab.json"


def test_files_beside_merges_are_read(pair, plain):
    folder = pair.parent
    for name in ("vocab.json", "merges.txt"):
        (folder / f"my-{name}").rename(folder / name)
    assert Tokenizer.load(folder).fingerprint == plain["gpt2"].fingerprint
    assert Tokenizer.load(folder, pattern="llama3").pattern == "llama3"
    (folder / "added_tokens.json").write_text('{"<|im_end|>": 1501, "<|endoftext|>": 1500}')
    assert Tokenizer.load(folder).special_tokens == {"<|im_end|>": 1501, "<|endoftext|>": 1500}
    assert Tokenizer.load(folder, special_tokens={"<x>": 1500}).special_tokens == {"<x>": 1500}
    config = folder / "tokenizer_config.json"
    for content, said in (
        ('{"tokenizer_class": "MyTokenizer"}', "'MyTokenizer'.*pass pattern="),
        ('{"tokenizer_class": 3}', "'3'.*pass pattern="),
        ('{"add_prefix_space": true}', "add_prefix_space"),
        ('{"added_tokens_decoder": {"x": {}}}', "added_tokens_decoder"),
        ('{"added_tokens_decoder": {"1500": {"content": "<a>", "lstrip": 1}}}', "lstrip = 1"),
        ('{"added_tokens_decoder": []}', "added_tokens_decoder"),
        ("[]", "tokenizer_config.json is not"),
        ("{", "tokenizer_config.json is not JSON"),
    ):
        config.write_text(content)
        with pytest.raises(ValueError, match=said):
            Tokenizer.load(folder)
    config.write_text('{"tokenizer_class": "MyTokenizer"}')
    assert Tokenizer.load(folder, pattern="gpt2").pattern == "gpt2"


@pytest.mark.parametrize(
    ("merges", "said"),
    [
        ("a\n", "merge 0, which is not a pair"),
        ("a b c\n", "merge 0, which is not a pair"),
        ("#version: 0.2\n\nh e\n", "merge 0, which is not a pair"),
        ("zq qz\n", "lacks"),
        ("i n\ni n\n", "merge 1 .* twice"),
        ("#version: 0.2\nin ret\n", "lacks"),
    ],
)
def test_damaged_merges_are_named(merges, said, pair):
    path = pair.with_name("my-merges.txt")
    path.write_text(merges, encoding="utf-8")
    with pytest.raises(ValueError, match=f"my-merges.txt.*{said}"):
        Tokenizer.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not UTF-8"):
        Tokenizer.load(path)
    path.unlink()
    with pytest.raises(ValueError, match=r"needs my-merges\.txt"):
        Tokenizer.load(pair)


def test_other_models_are_refused_by_name(tmp_path):
    path = tmp_path / "tokenizer.model"
    pieces = b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02\n\x0c\n\x03<s>\x15\x00\x00\x00\x00\x18\x03"
    path.write_bytes(pieces + b"\x12\x02\x18\x04")
    for place in (tmp_path, path):
        with pytest.raises(
            ValueError, match=r"tokenizer\.model: has trainer_spec\.model_type char, which is not supported"
        ):
            Tokenizer.load(place, pattern="llama3")
    (tmp_path / "a.tiktoken").write_bytes(b"IQ== 0\n")
    (tmp_path / "b.tiktoken").write_bytes(b"IQ== 0\n")
    with pytest.raises(ValueError, match=r"2 \*\.tiktoken files"):
        Tokenizer.load(tmp_path, pattern="llama3")
    (tmp_path / "words.txt").write_text("IQ is 100\n")
    with pytest.raises(ValueError, match="neither"):
        Tokenizer.load(tmp_path / "words.txt", pattern="gpt2")
    with pytest.raises(ValueError, match="normalizer must be"):
        Tokenizer.load(tmp_path / "a.tiktoken", pattern="gpt2", normalizer="NFKC")


def test_a_rank_file_in_any_layout_of_lines_is_the_same(plain, tmp_path):
    content = as_ranks(plain["gpt2"])
    path = tmp_path / "x.tiktoken"
    for written in (
        content,
        content.removesuffix(b"\n"),
        content.replace(b"\n", b"\r\n"),
        content.replace(b" ", b"\t"),
    ):
        path.write_bytes(written)
        assert Tokenizer.load(path, pattern="gpt2").fingerprint == plain["gpt2"].fingerprint
    lines = content.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[::-1]))
    assert Tokenizer.load(path, pattern="gpt2").fingerprint == plain["gpt2"].fingerprint
