"""Ids equal those of tiktoken, tokenizers and transformers, and every byte round-trips."""

import json
import pickle
import random
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pytest
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer import Tokenizer
from tokenizer.encoding.bulk import EncoderPool
from tokenizer.vocabulary import BY_MERGES, WHOLE_FIRST

NAMED = ["gpt2", "cl100k"]
HARD = {
    "nothing": "",
    "one byte": "a",
    "NUL": "\x00",
    "NULs": "\x00" * 5000,
    "one letter": "a" * 300_000,
    "spaces": " " * 300_000,
    "newline-space": "\n " * 100_000,
    "random letters": "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=100_000)),
    "Han without spaces": "".join(chr(random.Random(2).randrange(0x4E00, 0x9FFF)) for _ in range(2)) * 20_000,
    "digits": "0123456789" * 20_000,
    "emoji": "👨‍👩‍👧‍👦" * 5_000,
    "combining": "e" + "\u0301" * 20_000,
    "15 to 17 bytes": " ".join("abcdefghijklmnopqrstuvwxyz"[:n] for n in range(1, 27)),
    "63 to 65 bytes": " ".join("abcdefghij" * 7 for _ in range(3)) + "".join(f" {'xy' * n}" for n in range(28, 36)),
    "40 bytes and around": "".join(f" {'qz' * n}" for n in range(15, 30)),
}


@pytest.fixture(scope="module")
def published(shared):
    return {
        "gpt2": Tokenizer.load(shared / "vectors" / "gpt2"),
        "cl100k": Tokenizer.load(shared / "vectors" / "cl100k" / "cl100k_base.tiktoken", pattern="cl100k"),
    }


@pytest.mark.parametrize("name", NAMED)
def test_published_vocabularies_give_the_published_ids(name, published, shared):
    tok = published[name]
    with (shared / "vectors" / name / "cases.jsonl").open(encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    assert len(cases) > 40
    for case in cases:
        assert tok.encode_ordinary(case["text"]) == case["ids"]
        assert tok.decode(case["ids"]) == case["text"]
    assert tok.encode_batch([case["text"] for case in cases], disallowed_special=()) == [c["ids"] for c in cases]


@pytest.mark.parametrize("name", NAMED)
def test_published_vocabularies_equal_tiktoken_on_random_strings(
    name, published, as_tiktoken, tiktoken_patterns, random_strings
):
    tok = published[name]
    peer = as_tiktoken(tok, tiktoken_patterns[name])
    strings = random_strings(10_000, seed=6)
    assert tok.encode_batch(strings) == peer.encode_ordinary_batch(strings)


@pytest.mark.parametrize("name", NAMED)
def test_our_vocabularies_equal_tiktoken(name, trained, as_tiktoken, tiktoken_patterns, random_strings, stdlib_texts):
    tok = trained[name]
    peer = as_tiktoken(tok, tiktoken_patterns[name])
    strings = random_strings(20_000, seed=7) + stdlib_texts[:60]
    for text, ids in zip(strings, tok.encode_batch(strings, disallowed_special=()), strict=True):
        assert ids == peer.encode_ordinary(text), text


@pytest.mark.parametrize("kind", HARD)
@pytest.mark.parametrize("name", NAMED)
def test_hard_inputs_equal_tiktoken_and_round_trip(name, kind, trained, as_tiktoken, tiktoken_patterns):
    tok = trained[name]
    text = HARD[kind]
    ids = tok.encode(text)
    assert ids == as_tiktoken(tok, tiktoken_patterns[name]).encode_ordinary(text)
    assert tok.decode(ids) == text
    assert tok.encode_to_numpy(text, threads=2).tolist() == ids


def test_no_input_takes_quadratic_time(trained):
    tok = trained["cl100k"]
    for unit in ("a", " ", "ab", "\n "):
        tok.encode(unit * 1000)
        started = time.process_time()
        tok.encode_to_numpy(unit * (8_000_000 // len(unit)))
        assert time.process_time() - started < 20  # quadratic time would be hours


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("characters", ["a", "ab", "abc ", "aab", "aaab\n", "字符", "the cat"])
def test_long_pretokens_equal_tiktoken_however_they_are_merged(
    name, characters, trained, as_tiktoken, tiktoken_patterns
):
    """Pretokens merge by a scan up to 64 bytes, a heap up to 4,096, buckets above. Lengths are near these or random."""
    tok, rng = trained[name], random.Random(17)
    peer = as_tiktoken(tok, tiktoken_patterns[name])
    for length in [62, 63, 64, 65, 66, 4095, 4096, 4097, *(rng.randrange(1, 9000) for _ in range(12))]:
        text = "".join(rng.choices(characters, k=length))
        assert tok.encode_to_numpy(text).tolist() == peer.encode_ordinary(text)
        assert tok.encode_to_numpy("x " + text + " tail").tolist() == peer.encode_ordinary("x " + text + " tail")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_arbitrary_bytes_round_trip(trained, data):
    for tok in trained.values():
        ids = tok.encode_ordinary(data)
        assert tok.decode_bytes(ids) == data
        assert all(0 <= i < tok.vocab_size for i in ids)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200))
def test_arbitrary_text_round_trips_and_equals_its_bytes(trained, text):
    for tok in trained.values():
        ids = tok.encode_ordinary(text)
        assert tok.decode(ids) == text
        assert tok.encode_ordinary(text.encode()) == ids


def test_caches_do_not_change_ids(trained, stdlib_texts):
    """Cold and warm encoders give the same ids for texts in any order."""
    tok = trained["cl100k"]
    expected = {}
    for text in stdlib_texts[:30]:
        expected[text] = Tokenizer(tok._vocabulary).encode_ordinary(text)
    for text in stdlib_texts[:30][::-1] + stdlib_texts[:30]:
        assert tok.encode_ordinary(text) == expected[text]


def test_more_pretokens_than_the_caches_hold_are_exact(trained, as_tiktoken, tiktoken_patterns):
    tok = trained["gpt2"]
    rng = random.Random(8)
    letters = "abcdefghijklmnopqrstuvwxyzéøж字"
    words = ["".join(rng.choices(letters, k=rng.randrange(2, 24))) for _ in range(300_000)]
    text = " ".join(words + words[:1000])
    assert tok.encode_ordinary(text) == as_tiktoken(tok, tiktoken_patterns["gpt2"]).encode_ordinary(text)


def test_threads_do_not_change_ids(trained, stdlib_texts):
    for tok in trained.values():
        text = "".join(stdlib_texts)
        one = tok.encode_to_numpy(text, threads=1, disallowed_special=())
        assert one.dtype == np.uint32
        for threads in (2, 5):
            assert np.array_equal(tok.encode_to_numpy(text, threads=threads, disallowed_special=()), one)
        array = pa.array(stdlib_texts)
        assert tok.encode_arrow(array, threads=1).equals(tok.encode_arrow(array, threads=3))


def test_a_tokenizer_may_be_shared_by_threads(trained, stdlib_texts):
    from concurrent.futures import ThreadPoolExecutor

    tok = Tokenizer(trained["cl100k"]._vocabulary)
    texts = stdlib_texts[:80]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(tok.encode_ordinary, texts))
    assert together == [trained["cl100k"].encode_ordinary(text) for text in texts]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view()])
def test_arrow_arrays_encode_document_by_document(kind, trained, stdlib_texts):
    tok = trained["cl100k"]
    documents = ["", "hello", "", "", "a\n  ", "<|endoftext|>", *stdlib_texts[:20], ""]
    encoded = tok.encode_arrow(pa.array(documents, kind))
    assert encoded.type == pa.large_list(pa.uint32())
    assert encoded.to_pylist() == [tok.encode_ordinary(document) for document in documents]
    assert tok.encode_arrow(pa.array(documents, kind)[2:5]).to_pylist() == encoded.to_pylist()[2:5]
    chunked = pa.chunked_array([pa.array(documents, kind)[:3], pa.array(documents, kind)[3:]])
    assert tok.encode_arrow(chunked).to_pylist() == encoded.to_pylist()
    assert tok.encode_arrow(pa.array([], kind)).to_pylist() == []
    assert tok.encode_arrow(pa.array(["", ""], kind)).to_pylist() == [[], []]


def test_arrow_documents_cut_over_threads_keep_their_ids(trained, stdlib_texts):
    tok = trained["gpt2"]
    large = "".join(stdlib_texts)
    documents = ["", large, "x", "", large[:2_000_000], ""]
    assert tok.encode_arrow(pa.array(documents), threads=2).to_pylist() == [tok.encode_ordinary(d) for d in documents]


def test_invalid_arrow_input_is_a_value_error(trained):
    tok = trained["gpt2"]
    with pytest.raises(ValueError, match=r"1 null document.*number 1"):
        tok.encode_arrow(pa.array(["a", None]))
    with pytest.raises(ValueError, match="int64"):
        tok.encode_arrow(pa.array([1]))
    with pytest.raises(ValueError, match="pyarrow"):
        tok.encode_arrow(["a"])


SPECIAL_TEXTS = [
    "<|endoftext|>",
    "a<|endoftext|>b",
    "a <|pad|><|pad|> <|mask|",
    " \n<|sep|> x",
    "none",
    "<|endoftext|><|end",
]


@pytest.mark.parametrize("text", SPECIAL_TEXTS)
@pytest.mark.parametrize("allowed", [set(), "all", {"<|endoftext|>"}, {"<|pad|>", "<|sep|>"}])
@pytest.mark.parametrize("disallowed", ["all", (), {"<|pad|>"}])
def test_special_tokens_follow_tiktokens_rule(text, allowed, disallowed, trained, as_tiktoken, tiktoken_patterns):
    tok = trained["cl100k"]
    peer = as_tiktoken(tok, tiktoken_patterns["cl100k"])
    options = {"allowed_special": allowed, "disallowed_special": disallowed}
    try:
        expected = peer.encode(text, **options)
    except ValueError:
        with pytest.raises(ValueError, match="special token"):
            tok.encode(text, **options)
        with pytest.raises(ValueError, match="special token"):
            tok.encode_batch(["x", text], **options)
        return
    assert tok.encode(text, **options) == expected
    assert tok.encode(text.encode(), **options) == expected
    assert tok.encode_to_numpy(text, **options).tolist() == expected
    assert tok.encode_batch([text, "x"], **options) == [expected, peer.encode("x")]
    assert tok.decode(expected) == text == peer.decode(expected)


def test_the_error_for_a_special_token_says_what_to_do(trained):
    with pytest.raises(ValueError, match=r"'<\|pad\|>' at byte 3.*allowed_special.*disallowed_special=\(\)"):
        trained["gpt2"].encode("ab <|pad|>")
    with pytest.raises(ValueError, match="all"):
        trained["gpt2"].encode("x", allowed_special="<|pad|>")


@pytest.mark.parametrize("text", ["\ud800", "ab\udfff", "x" * 100 + "\udc80y"])
def test_a_lone_surrogate_is_named_with_its_position(text, trained):
    place = next(i for i, c in enumerate(text) if 0xD800 <= ord(c) < 0xE000)
    for method in ("encode", "encode_ordinary", "encode_to_numpy"):
        with pytest.raises(ValueError, match=rf"U\+{ord(text[place]):04X}.* character {place}\b"):
            getattr(trained["gpt2"], method)(text)


def test_the_error_for_a_surrogate_pair_names_a_repair_that_works(trained):
    text = "ab\ud83d\ude00"
    with pytest.raises(ValueError, match=r"pair \(U\+D83D U\+DE00\) at character 2 instead of U\+1F600") as caught:
        trained["gpt2"].encode(text)
    assert "text.encode('utf-16', 'surrogatepass').decode('utf-16')" in str(caught.value)
    assert text.encode("utf-16", "surrogatepass").decode("utf-16") == "ab\U0001f600"
    for lone in ("\ude00\ud83d", "\ud83d", "\ud83dx", "\ud83d\ud83d\ude00"):
        with pytest.raises(ValueError, match="lone surrogate"):
            trained["gpt2"].encode(lone)


def test_an_error_in_a_batch_names_its_text(trained):
    tok = trained["gpt2"]
    for wrong, said in ((3, "not int"), ("\ud800", "lone surrogate"), ("<|pad|>", "special token")):
        with pytest.raises(ValueError, match=rf"texts\[2\]: .*{said}"):
            tok.encode_batch(["a", b"b", wrong])
    for wrong in ("hi", b"hi", None, 3):
        with pytest.raises(ValueError, match="must be a list of texts"):
            tok.encode_batch(wrong)
    with pytest.raises(ValueError, match='must be "all"'):
        tok.encode_batch([], allowed_special="<|pad|>")
    assert tok.encode_batch([]) == []


@pytest.mark.parametrize("wrong", [None, 3, ["a"]])
def test_input_that_is_not_text_is_a_value_error(wrong, trained):
    with pytest.raises(ValueError, match="str or bytes"):
        trained["gpt2"].encode(wrong)


def test_invalid_ids_are_value_errors(trained):
    tok = trained["gpt2"]
    for wrong in ([tok.vocab_size], [-1], [2**40]):
        with pytest.raises(ValueError, match=f"{wrong[0]} is not an id"):
            tok.decode(wrong)
    with pytest.raises(ValueError, match="whole numbers"):
        tok.decode(["a"])
    for wrong in (15496, np.int64(3), np.array(3), [[1]], np.array([[1]]), "5", b"5", None):
        with pytest.raises(ValueError, match="ids must be"):
            tok.decode(wrong)
    with pytest.raises(ValueError, match="is not an id"):
        tok.token_bytes(-1)
    for wrong in (1.9, "5", None):
        with pytest.raises(ValueError, match="whole number"):
            tok.token_bytes(wrong)
    assert tok.token_bytes(np.uint16(300)) == tok.token_bytes(300)


def test_decoding_takes_lists_arrays_and_arrow(trained):
    tok = trained["cl100k"]
    ids = tok.encode("hello wörld")
    for form in (ids, tuple(ids), np.array(ids), np.array(ids, np.uint16), pa.array(ids, pa.uint32()), iter(ids)):
        assert tok.decode(form) == "hello wörld"
    cut = tok.encode(b"\xc3\xb6")[:1] if len(tok.encode(b"\xc3\xb6")) > 1 else tok.encode(b"\xc3")
    assert tok.decode(cut) == "\ufffd"
    with pytest.raises(UnicodeDecodeError):
        tok.decode(cut, errors="strict")


def test_many_ids_decode_at_once_to_the_same_bytes(trained, stdlib_texts):
    tok = trained["gpt2"]
    rng = np.random.default_rng(3)
    special = rng.choice([*tok.special_tokens.values()], 1000)
    ids = np.concatenate([tok.encode_to_numpy(stdlib_texts[0], disallowed_special=()), special, rng.permutation(4096)])
    ids = np.tile(ids, 100_000 // len(ids) + 1)
    expected = b"".join(map(tok.token_bytes, ids.tolist()))
    for form in (ids, ids.astype(np.int64), ids.astype(np.uint16), ids[::-1][::-1], pa.array(ids)):
        assert tok.decode_bytes(form) == expected
    for wrong in (-1, tok.vocab_size, 2**40):
        damaged = ids.astype(np.int64)
        damaged[77_777] = wrong
        with pytest.raises(ValueError, match=f"{wrong} is not an id"):
            tok.decode_bytes(damaged)


def test_warming_up_changes_no_ids(trained, stdlib_texts):
    tok = Tokenizer(trained["cl100k"]._vocabulary)
    tok.warm_up(threads=2)
    text = stdlib_texts[1]
    assert tok.encode(text, disallowed_special=()) == trained["cl100k"].encode(text, disallowed_special=())


def test_a_custom_regex_trains_and_encodes(stdlib_texts):
    with pytest.warns(UserWarning, match="regex module"):
        tok = Tokenizer.train(stdlib_texts[:20], 600, pattern=r"[A-Za-z]+|[0-9]| +")
    text = stdlib_texts[0]
    assert tok.decode(tok.encode(text, disallowed_special=())) == text
    array = pa.array([*stdlib_texts[:5], "", "a1b2"])
    assert tok.encode_arrow(array, threads=2).to_pylist() == [tok.encode_ordinary(t) for t in array.to_pylist()]


def by_ranks(ranks):
    """Return ranks as the lines of a .tiktoken file."""
    import base64

    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())


@pytest.mark.parametrize("seed", range(20))
def test_ranks_with_tokens_that_merging_cannot_make_equal_tiktoken_and_save(seed, tmp_path):
    """Some tokens of random ranks are not joins of smaller ones. Whole pretokens are looked up, then ranks decide."""
    rng = random.Random(seed)
    ranks = {bytes([byte]): i for i, byte in enumerate(rng.sample(range(256), 256))}
    for _ in range(60):
        ranks.setdefault("".join(rng.choices("ab c", k=rng.randrange(2, 7))).encode(), len(ranks))
    (tmp_path / "random.tiktoken").write_bytes(by_ranks(ranks))
    tok = Tokenizer.load(tmp_path / "random.tiktoken", pattern="gpt2")
    assert tok._vocabulary.semantics == WHOLE_FIRST
    tok.save(tmp_path)
    saved, hugging_face = Tokenizer.load(tmp_path), tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert saved.fingerprint == tok.fingerprint
    peer = tiktoken.Encoding(
        "random",
        pat_str=r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
        mergeable_ranks=ranks,
        special_tokens={},
    )
    for length in (1, 3, 8, 20, 60, 5000):
        for _ in range(40 if length < 5000 else 2):
            text = "".join(rng.choices("ab c" if length < 5000 else "ab", k=length))
            expected = peer.encode(text)
            assert tok.encode(text) == saved.encode(text) == hugging_face.encode(text).ids == expected
            assert tok.encode_to_numpy(text).tolist() == expected


@pytest.mark.parametrize("ignore_merges", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_both_merge_semantics_equal_tokenizers(seed, ignore_merges, tmp_path):
    """Merges are random, in random order, and no text reaches some of their tokens. Both semantics are kept."""
    rng = random.Random(seed)
    from tokenizer.formats.hugging_face import spell

    base = Tokenizer.train(["ab"], 256, special_tokens=(), byte_order="raw", min_frequency=1)
    base.save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    vocab, merges = content["model"]["vocab"], []
    pieces = [spell(b) for b in (b"a", b"b", b"c", b" ")]
    for _ in range(60):
        left, right = rng.choice(pieces), rng.choice(pieces)
        if [left, right] in merges or len(left + right) > 8:
            continue
        merges.append([left, right])
        if left + right not in vocab:
            vocab[left + right] = len(vocab)
            pieces.append(left + right)
    rng.shuffle(merges)
    content["model"]["merges"] = merges
    content["model"]["ignore_merges"] = ignore_merges
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    tok, peer = Tokenizer.load(path), tokenizers.Tokenizer.from_file(str(path))
    assert tok._vocabulary.semantics in ((WHOLE_FIRST, BY_MERGES) if ignore_merges else (BY_MERGES,))
    texts = ["".join(rng.choices("abc ", k=rng.choice((2, 5, 12, 50)))) for _ in range(400)]
    texts += ["".join(rng.choices("abc", k=6000))]
    for text in texts:
        assert tok.encode(text) == peer.encode(text).ids, text
    tok.save(tmp_path / "again")
    again = Tokenizer.load(tmp_path / "again")
    assert again.fingerprint == tok.fingerprint
    assert [again.encode(text) for text in texts] == [tok.encode(text) for text in texts]


def test_encoders_are_reused_and_bounded(trained, stdlib_texts):
    pool = EncoderPool(trained["gpt2"]._vocabulary)
    first = pool.take()
    size = sum(array.nbytes for array in first.caches)
    from tokenizer.documents import single_block

    for text in stdlib_texts[:20]:
        first.encode(single_block(text.encode()))
    assert sum(array.nbytes for array in first.caches) == size < 32 << 20
    pool.give_back(first)
    assert pool.take() is first


def test_a_tokenizer_pickles(trained):
    tok = trained["cl100k"]
    copy = pickle.loads(pickle.dumps(tok))
    assert copy.fingerprint == tok.fingerprint
    assert copy.encode("hello") == tok.encode("hello")


@pytest.mark.parametrize("what", ["train", "encode"])
def test_ctrl_c_stops_within_a_second(what, interrupt):
    program = {
        "train": "Tokenizer.train(iter(lambda: 'some words ' * 1000, 0), 1000, threads=2)",
        "encode": "tok.encode_to_numpy('abcde' * 12_000_000, threads=2)",
    }[what]
    script = (
        "from tokenizer import Tokenizer\n"
        "tok = Tokenizer.train(['abcde' * 100], 262, special_tokens=(), min_frequency=1)\n"
        "tok.encode('abc' * 5000)\n"
        f"print('ready', flush=True)\n{program}\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    assert b"KeyboardInterrupt" in interrupt(process, after=1, threads=2)


def test_importing_loads_no_kernels():
    script = "import sys, tokenizer; print([m for m in ('numba', 'pyarrow', 'regex', 'torch') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_kernels_load_without_a_writable_folder():
    """In a read-only container, for example, every process compiles the kernels."""
    code = (
        "import numba.core.caching as caching\n"
        "def refuse(self): raise OSError(30, 'Read-only file system')\n"
        "caching._CacheLocator.ensure_cache_path = refuse\n"
        "import tokenizer.kernels.merge_loop, tokenizer.kernels.encode\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
