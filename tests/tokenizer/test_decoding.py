"""Ids in any form decode to their bytes, and invalid ids are errors."""

import warnings
from array import array
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenizer.test_added_tokens import hugging_face
from tokenizer import Tokenizer


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
    forms = [ids, ids.astype(np.int64), ids.astype(np.uint16), ids[::-1][::-1], pa.array(ids)]
    listed = array("I", ids.tolist())
    for form in (*forms, listed, memoryview(listed), torch.tensor(ids.tolist())):
        assert tok.decode_bytes(form) == expected
    for wrong in (-1, tok.vocab_size, 2**40):
        damaged = ids.astype(np.int64)
        damaged[77_777] = wrong
        with pytest.raises(ValueError, match=f"{wrong} is not an id"):
            tok.decode_bytes(damaged)


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "sentencepiece"])
def test_no_negative_id_decodes_to_a_token(kind, shared):
    """Python reads negative indices from the end of a list. -100 is the ignore index of PyTorch."""
    if kind == "sentencepiece":
        tok = Tokenizer.load(shared / "vectors" / "sentencepiece" / "test_model.model")
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # there are few words
            tok = Tokenizer.train(["some words and other words, often"] * 3, 300 if kind == "bpe" else 40, kind=kind)
    methods = [
        *(tok.decode, tok.decode_bytes, tok.decode_tokens_bytes, tok.decode_with_offsets),
        lambda ids: tok.decode(ids, skip_special_tokens=True),
        lambda ids: tok.decode_batch([ids]),
    ]
    for wrong in (-1, -100, -tok.vocab_size, -tok.vocab_size - 1, -2 * tok.vocab_size):
        ids = [5, wrong, 6]
        calls = [partial(method, form) for method in methods for form in (ids, np.array(ids))]
        calls += [partial(method, wrong) for method in (tok.token_bytes, tok.added_bytes)]
        for many in (np.array(ids * 20_000), pa.array(ids * 20_000)):
            calls += [partial(tok.decode_bytes, many, skip_special_tokens=skip) for skip in (False, True)]
        for call in calls:
            with pytest.raises(ValueError, match=f"{wrong} is not an id of this tokenizer, which has"):
                call()


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


TEXTS = st.one_of(st.text(max_size=40), st.binary(max_size=40), st.text(st.sampled_from("a é字😀\u0301"), max_size=40))


@given(TEXTS)
def test_tokens_have_the_character_offsets_of_tiktoken(trained, as_tiktoken, tiktoken_patterns, text):
    tok = trained["gpt2"]
    peer = as_tiktoken(tok, tiktoken_patterns["gpt2"])
    ids = tok.encode_ordinary(text)
    pieces = tok.decode_tokens_bytes(ids)
    assert pieces == peer.decode_tokens_bytes(ids)
    decoded, offsets = tok.decode_with_offsets(ids)
    assert decoded == tok.decode(ids)
    # By definition: the character that holds the first byte of a token.
    before = [b"".join(pieces[:number]) for number in range(len(pieces))]
    data = b"".join(pieces)
    lengths = [len(data[: len(start) + 1].decode(errors="replace")) for start in before]
    assert offsets == [length - 1 for length in lengths]
    try:
        data.decode()
    except UnicodeDecodeError:
        with pytest.raises(ValueError, match="utf-8"):
            tok.decode_with_offsets(ids, errors="strict")
    else:
        assert tok.decode_with_offsets(ids, errors="strict") == peer.decode_with_offsets(ids) == (decoded, offsets)


def test_a_token_inside_a_character_has_the_offset_of_the_character(trained):
    tok = trained["gpt2"]
    ids = tok.encode("é") + [tok.encode_single_token(bytes([byte])) for byte in "a😀b".encode()] + [0]
    assert tok.decode_with_offsets(ids)[1][-7:] == [1, 2, 2, 2, 2, 3, 4]
    assert tok.decode_with_offsets([]) == ("", [])
    with pytest.raises(ValueError, match="errors must be 'replace' or 'strict', not 'ignore'"):
        tok.decode_with_offsets(ids, errors="ignore")


def test_a_batch_of_ids_decodes_as_each_of_its_lists(trained):
    tok = trained["cl100k"]
    texts = ["hello wörld", "", "字", "a" * 1000]
    batch = tok.encode_batch(texts)
    assert tok.decode_batch(batch) == texts
    assert tok.decode_batch(tok.encode_arrow(pa.array(texts))) == texts
    assert tok.decode_batch(np.array([[1, 2], [3, 4]])) == [tok.decode([1, 2]), tok.decode([3, 4])]
    with pytest.raises(ValueError, match=rf"batch\[1\]: {len(tok)} is not an id"):
        tok.decode_batch([[1], [len(tok)]])


def test_skipped_special_tokens_leave_no_bytes(trained):
    tok = trained["gpt2"]
    special = [*tok.special_tokens.values()]
    ids = [special[0], *tok.encode("a b"), special[1], *tok.encode(" c"), *special]
    for form in (ids, np.array(ids), pa.array(ids)):
        assert tok.decode(form, skip_special_tokens=True) == "a b c"
        assert tok.decode_bytes(form, skip_special_tokens=True) == b"a b c"
    assert tok.decode_batch([ids, special], skip_special_tokens=True) == ["a b c", ""]
    many = np.tile(np.array(ids), 10_000)
    for form in (many, pa.array(many)):
        assert tok.decode_bytes(form, skip_special_tokens=True) == b"a b c" * 10_000
    for wrong in ([len(tok)], ["a"], [[1]]):
        with pytest.raises(ValueError, match="id"):
            tok.decode(wrong, skip_special_tokens=True)


def test_added_tokens_that_are_not_special_are_not_skipped_as_in_tokenizers(tmp_path):
    peer = hugging_face(tmp_path / "tokenizer.json")
    tok = Tokenizer.load(tmp_path)
    ids = [*range(256, len(tok)), *tok.encode("a")]
    assert tok.decode(ids, skip_special_tokens=True) == peer.decode(ids, skip_special_tokens=True)
    assert tok.decode(ids, skip_special_tokens=True) not in ("a", tok.decode(ids))


@given(st.lists(st.sampled_from([" .", " ,", " ' ", " n't", " 'm", " 've", "a", " ", "'", "?!", " 're", "n't"])))
def test_clean_up_is_that_of_transformers(trained, pieces):
    text = "".join(pieces)
    expected = transformers.PreTrainedTokenizerFast.clean_up_tokenization(None, text)
    ids = trained["gpt2"].encode(text)
    assert trained["gpt2"].decode(ids, clean_up_tokenization_spaces=True) == expected
    assert trained["gpt2"].decode_batch([ids], clean_up_tokenization_spaces=True) == [expected]
    assert trained["gpt2"].decode(ids) == text
