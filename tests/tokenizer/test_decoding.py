"""Ids in any form decode to their bytes, and invalid ids are errors."""

import numpy as np
import pyarrow as pa
import pytest


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
