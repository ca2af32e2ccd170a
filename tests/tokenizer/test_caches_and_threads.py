"""Caches, threads and processes change no ids."""

import pickle
import random
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from tokenizer import Tokenizer
from tokenizer.encoding.kernel_encoder import EncoderPool


def test_caches_do_not_change_ids(trained, stdlib_texts):
    """Cold and warm encoders give the same ids for texts in any order."""
    tok = trained["cl100k"]
    expected = {}
    for text in stdlib_texts[:30]:
        expected[text] = Tokenizer(tok.vocabulary).encode_ordinary(text)
    for text in stdlib_texts[:30][::-1] + stdlib_texts[:30]:
        assert tok.encode_ordinary(text) == expected[text]


def test_more_pretokens_than_the_caches_hold_are_exact(trained, as_tiktoken, tiktoken_patterns):
    tok = trained["gpt2"]
    rng = random.Random(8)
    letters = "abcdefghijklmnopqrstuvwxyzéøж字"
    words = ["".join(rng.choices(letters, k=rng.randrange(2, 24))) for _ in range(300_000)]
    text = " ".join(words + words[:1000])
    assert tok.encode_ordinary(text) == as_tiktoken(tok, tiktoken_patterns["gpt2"]).encode_ordinary(text)


def test_encoders_are_reused_and_bounded(trained, stdlib_texts):
    pool = EncoderPool(trained["gpt2"].vocabulary.kernel_tables)
    first = pool.take()
    size = sum(array.nbytes for array in first.caches)
    from tokenizer.document_blocks import single_block

    for text in stdlib_texts[:20]:
        first.encode(single_block(text.encode()))
    assert sum(array.nbytes for array in first.caches) == size < 32 << 20
    pool.give_back(first)
    assert pool.take() is first


def test_warming_up_changes_no_ids(trained, stdlib_texts):
    tok = Tokenizer(trained["cl100k"].vocabulary)
    tok.warm_up(threads=2)
    text = stdlib_texts[1]
    assert tok.encode(text, disallowed_special=()) == trained["cl100k"].encode(text, disallowed_special=())


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

    tok = Tokenizer(trained["cl100k"].vocabulary)
    texts = stdlib_texts[:80]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(tok.encode_ordinary, texts))
    assert together == [trained["cl100k"].encode_ordinary(text) for text in texts]


def test_a_tokenizer_that_was_used_pickles(trained):
    tok = trained["cl100k"]
    tok.encode("hello")
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
