"""Other libraries open what `save` writes, and give our ids. Readers that are not installed are skipped by name."""

import json
from importlib import import_module

import pytest
import tiktoken
import tokenizers
import transformers

from tokenizer import Tokenizer

OTHERS = ("llama3", "qwen2", "o200k")
# The readers of cl100k's regex, which no published tokenizer.json has.
READ_ANY_REGEX = ("tokenizers", "transformers", "fastokens")


def by_tokenizers(path):
    peer = tokenizers.Tokenizer.from_file(str(path))
    return lambda text: peer.encode(text, add_special_tokens=False).ids


def by_transformers(path):
    peer = transformers.AutoTokenizer.from_pretrained(str(path.parent))
    return lambda text: peer(text, add_special_tokens=False)["input_ids"]


def by_fast_reader(name):
    def read(path):
        peer = pytest.importorskip(name).Tokenizer
        encode = peer.from_file(str(path)).encode if hasattr(peer, "from_file") else peer(str(path)).encode
        return lambda text: [*getattr(encode(text), "ids", encode(text))]

    return read


READERS = {"tokenizers": by_tokenizers, "transformers": by_transformers}
READERS |= {name: by_fast_reader(name) for name in ("fastokens", "gigatoken", "snaptokens")}
TEXTS = ["", " ", "a\n\t ", "x\n\n", " \n y", "Don't  panic: 12345 naïve 字\r\n\r\n'LL ſ", "\x00\ufeff\u2028 \u0301"]


@pytest.fixture(scope="module")
def of_pattern(stdlib_texts):
    return {name: Tokenizer.train(stdlib_texts[:20], 1000, pattern=name) for name in ("gpt2", *OTHERS, "cl100k")}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("pattern", ["gpt2", *OTHERS, "cl100k"])
def test_readers_open_a_trained_tokenizer(name, pattern, of_pattern, tmp_path, random_strings):
    if pattern == "cl100k" and name not in READ_ANY_REGEX:
        pytest.skip(f"{name} reads no cl100k")
    tok = of_pattern[pattern]
    tok.save(tmp_path)
    encode = READERS[name](tmp_path / "tokenizer.json")
    for text in [*TEXTS, *random_strings(300, seed=9), "a<|endoftext|>b"]:
        assert encode(text) == tok.encode(text, allowed_special="all"), ascii(text)


@pytest.mark.parametrize("name", READERS)
def test_readers_open_gpt2(name, shared, tmp_path, random_strings):
    tok = Tokenizer.load(shared / "vectors" / "gpt2")
    tok.save(tmp_path)
    encode = READERS[name](tmp_path / "tokenizer.json")
    for text in [*TEXTS, *random_strings(300, seed=10)]:
        assert encode(text) == tok.encode(text, disallowed_special=()), ascii(text)


def test_gpt2_is_spelled_as_published(trained, tmp_path):
    trained["gpt2"].save(tmp_path)
    step = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))["pre_tokenizer"]
    assert step == {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def test_tiktoken_reads_our_tokens_as_ranks(trained, random_strings):
    """The ids of trained tokens are in the order of merging, as tiktoken needs it."""
    published = import_module("tiktoken_ext.openai_public").r50k_pat_str
    tok = trained["gpt2"]
    special = tok.special_tokens
    ranks = {tok.token_bytes(i): i for i in range(tok.vocab_size) if i not in special.values()}
    peer = tiktoken.Encoding("ours", pat_str=published, mergeable_ranks=ranks, special_tokens=special)
    for text in [*TEXTS, *random_strings(300, seed=11), "a<|endoftext|>b"]:
        assert peer.encode(text, allowed_special="all") == tok.encode(text, allowed_special="all"), ascii(text)
