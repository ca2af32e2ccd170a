"""Ids equal those of tiktoken and of published vocabularies, and every byte round-trips."""

import json
import random
import time

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from tokenizer import Tokenizer

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


@given(st.binary(max_size=300))
def test_arbitrary_bytes_round_trip(trained, data):
    for tok in trained.values():
        ids = tok.encode_ordinary(data)
        assert tok.decode_bytes(ids) == data
        assert all(0 <= i < tok.vocab_size for i in ids)


@given(st.text(max_size=200))
def test_arbitrary_text_round_trips_and_equals_its_bytes(trained, text):
    for tok in trained.values():
        ids = tok.encode_ordinary(text)
        assert tok.decode(ids) == text
        assert tok.encode_ordinary(text.encode()) == ids


def test_a_custom_regex_trains_and_encodes(stdlib_texts):
    with pytest.warns(UserWarning, match="regex module"):
        tok = Tokenizer.train(stdlib_texts[:20], 600, pattern=r"[A-Za-z]+|[0-9]| +")
    text = stdlib_texts[0]
    assert tok.decode(tok.encode(text, disallowed_special=())) == text
    array = pa.array([*stdlib_texts[:5], "", "a1b2"])
    assert tok.encode_arrow(array, threads=2).to_pylist() == [tok.encode_ordinary(t) for t in array.to_pylist()]


@given(st.text(max_size=20) | st.sampled_from(["", " a", "  a", "\na", "the"]))
def test_a_prefix_space_is_added_as_in_tokenizers(trained, text):
    tok = trained["gpt2"]
    prefixed = pre_tokenizers.ByteLevel(add_prefix_space=True).pre_tokenize_str(text)
    spelled = "".join(piece for piece, _ in prefixed)
    ids = tok.encode(text, add_prefix_space=True, disallowed_special=())
    assert "".join(tok.id_to_token(i) for i in ids) == spelled
    with pytest.raises(ValueError, match="at byte 1"):
        tok.encode("a<|endoftext|>", add_prefix_space=True)
