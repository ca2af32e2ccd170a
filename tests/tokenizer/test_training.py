"""Merges equal those of tokenizers, of rustbpe, and of a plain implementation of the rule."""

import importlib.util
import random
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import PEAK_MEMORY
from tests.tokenizer.trainers import merges_of_tokenizers, ranks_of_rustbpe, vocabulary, vocabulary_of
from tokenizer import DEFAULT_SPECIAL_TOKENS, PretokenCounts, Tokenizer, resolve_pattern
from tokenizer.training.count_table import Counted

pytestmark = pytest.mark.filterwarnings("ignore:the corpus ran out of pairs")


@pytest.mark.parametrize("name", ["gpt2", "cl100k"])
def test_merges_equal_those_of_tokenizers(name, stdlib_texts):
    texts, pattern = stdlib_texts[::3], resolve_pattern(name).regex
    tok = Tokenizer.train(texts, 4000, pattern=name, min_frequency=1)
    peer = merges_of_tokenizers(texts, 4000, pattern, DEFAULT_SPECIAL_TOKENS, min_frequency=1)
    assert vocabulary(tok) == vocabulary_of(peer)


@pytest.mark.parametrize("name", ["gpt2", "cl100k"])
def test_merges_equal_those_of_rustbpe(name, stdlib_texts):
    texts = stdlib_texts[::3]
    tok = Tokenizer.train(texts, 4000, name, special_tokens=(), min_frequency=1, byte_order="raw")
    assert vocabulary(tok) == ranks_of_rustbpe(texts, 4000, resolve_pattern(name).regex)


@pytest.mark.parametrize("corpus", ["books", "multilingual"])
def test_merges_equal_those_of_rustbpe_on_shared_corpora(corpus, shared):
    import json
    import lzma

    texts, size = [], 0
    with lzma.open(shared / "corpora" / f"{corpus}.jsonl.xz", "rt", encoding="utf-8") as lines:
        for line in lines:
            texts.append(json.loads(line)["text"])
            size += len(texts[-1])
            if size > 2_000_000:
                break
    tok = Tokenizer.train(texts, 8000, special_tokens=(), min_frequency=1, byte_order="raw")
    assert vocabulary(tok) == ranks_of_rustbpe(texts, 8000, resolve_pattern("cl100k").regex)


@settings(max_examples=60, deadline=None)
@given(
    documents=st.lists(st.text("ab c", max_size=40), max_size=8),
    byte_order=st.sampled_from(["gpt2", "raw"]),
    min_frequency=st.integers(0, 4),
    max_token_length=st.none() | st.integers(1, 5),
)
def test_merges_follow_the_rule_on_small_alphabets(reference, documents, byte_order, min_frequency, max_token_length):
    options = {"byte_order": byte_order, "min_frequency": min_frequency, "max_token_length": max_token_length}
    tok = Tokenizer.train(documents, 256 + 30, "gpt2", special_tokens=(), **options)
    assert tok.merges == reference(documents, resolve_pattern("gpt2").regex, 30, **options)


@pytest.mark.parametrize("seed", range(12))
def test_merges_follow_the_rule_on_random_text(reference, random_strings, seed):
    documents = random_strings(150, seed)
    name = ("gpt2", "cl100k")[seed % 2]
    tok = Tokenizer.train(
        documents, 256 + 120, name, special_tokens=(), min_frequency=1, byte_order=("raw", "gpt2")[seed % 2]
    )
    # The strings have no code points on which the Unicode version of the regex module differs.
    expected = reference(documents, resolve_pattern(name).regex, 120, byte_order=("raw", "gpt2")[seed % 2])
    assert tok.merges == expected


def test_reference_agrees_with_the_shared_oracle(shared, reference, random_strings):
    spec = importlib.util.spec_from_file_location("oracle", shared / "oracle" / "train_reference.py")
    oracle = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(oracle)
    documents = random_strings(100, 77)
    pattern = resolve_pattern("cl100k").regex
    for byte_order in ("gpt2", "raw"):
        expected = oracle.train(documents, pattern, 256 + 80, byte_order)
        assert reference(documents, pattern, 80, byte_order=byte_order) == expected
        tok = Tokenizer.train(documents, 336, special_tokens=(), min_frequency=1, byte_order=byte_order)
        assert tok.merges == expected


@pytest.mark.parametrize("options", [{"min_frequency": 40}, {"max_token_length": 4}, {"min_frequency": 0}])
def test_options_mean_what_they_mean_in_tokenizers(options, stdlib_texts):
    texts = stdlib_texts[:30]
    ours = Tokenizer.train(texts, 3000, "gpt2", special_tokens=("<|a|>",), **({"min_frequency": 1} | options))
    if "max_token_length" in options:
        options = {
            "max_token_length": options["max_token_length"] + 1
        }  # theirs is the first length that is not allowed
    theirs = merges_of_tokenizers(texts, 3000, resolve_pattern("gpt2").regex, ["<|a|>"], **options)
    assert vocabulary(ours) == vocabulary_of(theirs)


def test_threads_batches_and_order_do_not_change_merges(stdlib_texts, tmp_path):
    expected = Tokenizer.train(stdlib_texts, 3000, threads=1).fingerprint
    shuffled = random.Random(5).sample(stdlib_texts, len(stdlib_texts))
    assert Tokenizer.train(shuffled, 3000, threads=3).fingerprint == expected
    assert Tokenizer.train((text.encode() for text in stdlib_texts), 3000, threads=2).fingerprint == expected
    for kind in (pa.string(), pa.large_string(), pa.large_binary(), pa.string_view()):
        array = pa.array(stdlib_texts, kind)
        assert Tokenizer.train(array, 3000).fingerprint == expected
        batches = pa.table({"text": array}).to_batches(max_chunksize=7)
        assert Tokenizer.train(iter(batches), 3000, threads=2).fingerprint == expected
    paths = [tmp_path / f"{i}.txt" for i in range(len(stdlib_texts))]
    for path, text in zip(paths, stdlib_texts, strict=True):
        path.write_bytes(text.encode())
    assert Tokenizer.train(paths, 3000, threads=2).fingerprint == expected
    assert Tokenizer.train(iter([*paths[:20], *stdlib_texts[20:]]), 3000).fingerprint == expected


def test_running_out_of_pairs_gives_a_smaller_vocabulary_and_a_warning():
    with pytest.warns(UserWarning, match=r"has 258 entries, not 400"):
        tok = Tokenizer.train(["abc abc"], 400, "gpt2", special_tokens=())
    assert tok.merges == [(b"a", b"b"), (b"ab", b"c")]


def test_overlapping_pairs_count_twice_and_merge_from_the_left():
    tok = Tokenizer.train(["aaa bb bb"], 258, "gpt2", special_tokens=(), min_frequency=2)
    assert tok.merges[0] == (b"a", b"a")  # twice in aaa, as often as (b, b), and a comes before b
    assert tok.encode("aaa") == [256, tok.encode("a")[0]]


def test_special_tokens_come_first_and_count():
    tok = Tokenizer.train(["hello hello"] * 3, 256 + 5 + 2)
    assert list(tok.special_tokens.items()) == [(name, i) for i, name in enumerate(DEFAULT_SPECIAL_TOKENS)]
    assert tok.vocab_size == 263
    assert tok.token_bytes(5) == b"!"
    assert tok.token_byte_lengths[:6].tolist() == [0, 0, 0, 0, 0, 1]
    assert tok.token_byte_lengths.dtype == np.int32


def test_256_entries_make_the_tokenizer_without_merges():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tok = Tokenizer.train(["some text"], 256, special_tokens=(), byte_order="raw")
    assert tok.merges == []
    assert tok.encode("aé\n") == [97, 0xC3, 0xA9, 10]


@pytest.mark.parametrize("documents", [[], [""], ["", "a"], [b"\xff\xff"]])
def test_corpora_without_pairs_give_the_byte_vocabulary(documents):
    tok = Tokenizer.train(documents, 300, special_tokens=())
    assert tok.vocab_size == 256


def test_a_short_text_of_one_frequent_pair_trains():
    """The places of this pair fill most of the buffer, so compaction alone does not make enough room for the merge."""
    text = "bbb abbabbaab aaaaaaaaaaaaaaaaaaaa bbbabaaaaaabbbbbbbbb aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    tok = Tokenizer.train([text], 280, special_tokens=(), min_frequency=1)
    assert tok.vocab_size == 280
    assert tok.merges[0] == (b"a", b"a")


def test_hard_documents_train():
    documents = ["a" * 3_000_000, " " * 1_000_000, "\n " * 300_000, "\x00" * 100_000, b"\xff\xfe" * 50_000]
    tok = Tokenizer.train(documents, 300, special_tokens=(), min_frequency=1)
    assert (b"a" * 2**10) in {tok.token_bytes(i) for i in range(tok.vocab_size)}
    for document in documents:
        document = document.encode() if isinstance(document, str) else document
        assert tok.decode_bytes(tok.encode(document)) == document


def test_progress_is_reported_in_both_phases(stdlib_texts, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(stdlib_texts), encoding="utf-8", newline="")
    calls = []
    Tokenizer.train(path, 1000, progress=lambda *call: calls.append(call))
    size = path.stat().st_size
    assert ("count", size, size) in calls
    assert calls[-1] == ("merge", 1000 - 261, 1000 - 261)
    for phase in ("count", "merge"):
        done = [call[1] for call in calls if call[0] == phase]
        assert done == sorted(done)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"vocab_size": 260}, "at least 261"),
        ({"vocab_size": 255, "special_tokens": ()}, "at least 256"),
        ({"vocab_size": 256, "special_tokens": ("<unk>",)}, "at least 257"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"vocab_size": 300.0}, r"whole number, not 300\.0"),
        ({"special_tokens": "<|x|>"}, "sequence"),
        ({"special_tokens": {"<|x|>": 0}}, "in the order of their ids, not a dict"),
        ({"special_tokens": {"<|x|>", "<|y|>"}}, "in the order of their ids, not a set"),
        ({"special_tokens": None}, "sequence"),
        ({"special_tokens": ("<|x|>", "<|x|>")}, "twice"),
        ({"special_tokens": ("",)}, "non-empty"),
        ({"special_tokens": ("a",)}, "single byte"),
        ({"min_frequency": -1}, "min_frequency"),
        ({"max_token_length": 0}, "max_token_length"),
        ({"byte_order": "big"}, "byte_order"),
        ({"tie_break": "first"}, "tie_break must be ids or bytes, not 'first'"),
        ({"threads": 0}, "threads"),
    ],
)
def test_impossible_settings_are_value_errors(options, said):
    with pytest.raises(ValueError, match=said):
        Tokenizer.train(["text"], **({"vocab_size": 300} | options))


def test_bad_corpora_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Tokenizer.train(str(tmp_path / "nowhere.txt"), 300)
    for text in ("a text, not a path", "long " * 10_000, "with a \x00"):
        with pytest.raises(FileNotFoundError, match="goes in a list"):
            Tokenizer.train(text, 300)
    assert Tokenizer.train(["long " * 10_000, "with a \x00"], 257, special_tokens=()).vocab_size == 257
    with pytest.raises(ValueError, match="folder"):
        Tokenizer.train(tmp_path, 300)
    with pytest.raises(ValueError, match="bytes"):
        Tokenizer.train(b"text", 300)
    with pytest.raises(ValueError, match="int"):
        Tokenizer.train([3], 300)
    with pytest.raises(ValueError, match="null"):
        Tokenizer.train(pa.array(["a", None]), 300)
    with pytest.raises(ValueError, match="one text column"):
        Tokenizer.train(pa.table({"a": ["x"], "b": ["y"]}), 300)
    with pytest.raises(ValueError, match=r"U\+D800.*character 2"):
        Tokenizer.train(["ok", "ab\ud800"], 300)


def test_in_a_list_str_is_text_and_path_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("hello").write_text("bye bye bye")
    assert Tokenizer.train(["hello", "hello there"], 258, special_tokens=(), min_frequency=1).decode([256]) == "he"
    for corpus in (Path("hello"), [Path("hello")], (Path("hello"),), iter([Path("hello")]), "hello"):
        assert Tokenizer.train(corpus, 257, special_tokens=(), min_frequency=1).decode([256]) == "by"
    assert Tokenizer.train(iter(["hello"]), 257, special_tokens=(), min_frequency=1).decode([256]) == "el"
    mixed = Tokenizer.train(["zz" * 9, Path("hello")], 258, special_tokens=(), min_frequency=1)
    assert [mixed.decode([i]) for i in (256, 257)] == ["zz", "zzzz"]
    for corpus in (["hello"], ("hello", str(tmp_path / "hello"))):
        with pytest.raises(ValueError, match=r"names an existing file.*pass Path objects.*or iter"):
            Tokenizer.train(corpus, 300)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Tokenizer.train(["a text", Path("nowhere")], 300)
    with pytest.raises(ValueError, match="is a folder"):
        Tokenizer.train([tmp_path], 300)


def test_an_error_in_the_middle_of_a_corpus_ends_the_training(stdlib_texts):
    def documents():
        yield from stdlib_texts
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        Tokenizer.train(documents(), 1000, threads=2)


def test_training_on_one_long_pretoken_takes_memory_in_proportion_to_the_text():
    """Arrays that can grow must not touch memory before they use it."""
    program = """if True:
        import warnings
        from tokenizer import Tokenizer
        warnings.simplefilter("ignore")
        Tokenizer.train([b"load the kernels " * 10], 270)
        before = peak_memory()
        tok = Tokenizer.train([b"a" * 8_000_000], 400, pattern="gpt2", threads=1)
        print(len(tok.merges), peak_memory() - before)
    """
    words = [sys.executable, "-c", PEAK_MEMORY + program]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    merges, taken = map(int, ran.stdout.split())
    assert merges == 22
    assert taken < 35 * 8_000_000


@pytest.mark.parametrize("text", ["a" * 70_001, " " * 66_000, "ab" * 35_000, "abc" * 30_000 + "a" * 40_000])
def test_merges_follow_the_rule_on_one_long_pretoken(reference, text):
    """The pretoken is longer than the initial size of the arrays that grow."""
    tok = Tokenizer.train([text], 256 + 20, "gpt2", special_tokens=(), min_frequency=2)
    assert tok.merges == reference([text], resolve_pattern("gpt2").regex, 20, min_frequency=2)


@pytest.mark.parametrize(("memory", "least"), [(8, 2**40 + 1), (150, 4)])
def test_too_small_a_memory_is_refused_at_once_with_the_least_count_that_fits(memory, least):
    counted = Counted.of({b"ab": 2**40, b"abc": 100, b"abcdefgh": 3})
    counts = PretokenCounts(resolve_pattern("gpt2"), *counted)
    with pytest.raises(ValueError, match=rf"min_count={least}`"):
        Tokenizer.train_from_counts(counts, 300, memory=memory)
