"""How well tokenizers fit a text: the numbers equal closed forms and counts by other libraries, for every kind."""

import json
import math
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpora import open_corpus
from pipelines.reporting.tokenizer_fit import ALPHA, fit_to_tokens, fit_to_words, renyi_efficiency, words_of
from tokenizer import Tokenizer


@pytest.fixture(scope="module", params=["bpe", "wordpiece"])
def tok(request):
    texts = ["the cat sat on the mat, the hat and the bat"] * 5
    return Tokenizer.train(texts, 300 if request.param == "bpe" else 34, kind=request.param)


def words_in(texts):
    """Return the words of a list of texts."""
    kind = pa.large_binary() if any(isinstance(text, bytes) for text in texts) else pa.large_string()
    return words_of(pa.chunked_array([pa.array(texts, kind)]))


def counted(texts):
    """Return how often each word occurs in a list of texts."""
    found = words_in(texts)
    return dict(zip(found.words.to_pylist(), found.counts.tolist(), strict=True))


def test_words_stand_between_white_space_without_punctuation_at_their_ends():
    assert counted(["The «cat's»  hat,\n(the) cat's ... —", "3.5"]) == {
        "The": 1, "cat's": 2, "hat": 1, "the": 1, "3.5": 1,
    }  # fmt: skip
    assert counted([]) == counted(["", " ... \n"]) == {}
    assert counted([b"a \xff b", b"a"]) == {"a": 2, "\ufffd": 1, "b": 1}


def test_uniform_frequencies_have_the_efficiency_1():
    assert renyi_efficiency(np.full(64, 7), 64) == pytest.approx(1)
    assert renyi_efficiency(np.array([0, 5, 0, 5]), 16) == pytest.approx(math.log(2) / math.log(16))
    assert renyi_efficiency(np.array([0, 9]), 16) == pytest.approx(0)
    assert renyi_efficiency(np.zeros(4, int), 4) is None


@given(counts=st.lists(st.integers(0, 1000), min_size=2, max_size=20).filter(any))
def test_the_efficiency_is_that_of_the_formula_and_at_most_1(counts):
    total = sum(counts)
    entropy = math.log(sum((count / total) ** ALPHA for count in counts)) / (1 - ALPHA)
    found = renyi_efficiency(np.array(counts), len(counts))
    assert found == pytest.approx(entropy / math.log(len(counts)), abs=1e-9)
    assert -1e-9 <= found <= 1 + 1e-9


@pytest.mark.parametrize("options", [["bpe"], ["wordpiece"], ["wordpiece", "--merge-by", "likelihood"]])
def test_trace_prints_the_first_merges_and_a_word_that_each_changes(options, in_process, tmp_path):
    text = "low low low low low\nlower lower\n" + "newest " * 6 + "\n" + "widest " * 3 + "\n"
    (tmp_path / "text.txt").write_text(text + "z\n" * 10)  # the last tenth is held out
    command = ["train-tokenizer", "text.txt", "--vocab-size", "280", "--kind", *options]
    command = [*command, "--trace", "3", "--out", "tok", "--overwrite"]
    rows = json.loads(in_process(*command, "--json").stdout)["trace"]
    assert [row["merge"] for row in rows] == [1, 2, 3]
    first = {key: rows[0][key] for key in ("left", "right", "token", "count", "word_count", "before", "after")}
    expected = {
        "bpe": ("e", "s", "es", 9, 5, "· n e w e s t", "· n e w es t"),
        "wordpiece": ("##e", "##s", "##es", 9, 6, "n ##e ##w ##e ##s ##t", "n ##e ##w ##es ##t"),
        "likelihood": ("w", "##i", "wi", 3, 3, "w ##i ##d ##e ##s ##t", "wi ##d ##e ##s ##t"),
    }[options[-1]]
    assert (*[*first.values()][:5], " ".join(first["before"]), " ".join(first["after"])) == expected
    assert rows[0].get("score") == (pytest.approx(1 / 3) if "likelihood" in options else None)
    lines = [line for line in in_process(*command).stdout.splitlines() if not line.startswith("next: ")]
    at = next(i for i, line in enumerate(lines) if line.startswith("merge "))
    cells = re.split(r"\s{2,}", lines[at + 1].strip())
    assert cells[:3] == ["1", f"{expected[0]} {expected[1]}", str(expected[3])]
    assert cells[-2:] == [*expected[5:]]
    assert len(lines) - at == 1 + 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trace", "-1"], "--trace is -1, but must be from 0 to 1,000"),
        (["--trace", "1001"], "--trace is 1001, but must be from 0 to 1,000"),
        (["--trace", "3", "--kind", "unigram"], "--trace shows merges, but unigram has none"),
    ],
)
def test_trace_refuses_too_many_merges_and_unigram(options, message, in_process, tmp_path):
    (tmp_path / "text.txt").write_text("low lower")
    done = in_process("train-tokenizer", "text.txt", "--vocab-size", "300", "--out", "tok", *options)
    assert done.returncode
    assert message in re.sub(r"\s+", " ", done.stderr)
    assert not (tmp_path / "tok").exists()


def test_numbers_of_words_are_those_of_tokenizers(tok, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    tok.save(tmp_path)
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = ["the cat sat. The mats have been “matted” ☃ matted matte"]
    words, unknown = counted(text), tok.special_tokens.get("[UNK]")
    ids = {word: peer.encode(f" {word}", add_special_tokens=False).ids for word in words}
    found = fit_to_words(tok, words_in(text))
    assert found["tokens_per_word"] == sum(n * len(ids[word]) for word, n in words.items()) / sum(words.values())
    whole = sum(n for word, n in words.items() if len(ids[word]) == 1 and ids[word][0] != unknown)
    assert found["whole_words"] == whole / sum(words.values())
    assert 0 < found["whole_words"] < 1 < found["tokens_per_word"]
    assert fit_to_words(tok, words_in([])) == {"tokens_per_word": None, "whole_words": None}


@pytest.mark.parametrize("kind", ["unigram", "character-bpe"])
@pytest.mark.parametrize("in_python", [False, True])
def test_a_word_is_whole_where_every_space_is_a_token(kind, in_python):
    tok = Tokenizer.train(["cats sat and cats ran"] * 50, 330, "llama2", kind=kind, special_tokens=())
    assert len(tok.encode("cats cats")) == 2
    assert fit_to_words(tok, words_in(["cats, cats"]), in_python) == {"tokens_per_word": 1.0, "whole_words": 1.0}


def test_only_kinds_with_an_unknown_token_have_a_share_of_it(tok):
    ids = tok.encode("the cat ☃ ☃☃ mat")
    found = fit_to_tokens(tok, np.bincount(ids, minlength=tok.vocab_size), tok.vocab_size)["unknown"]
    assert found == (None if tok.kind == "bpe" else pytest.approx(2 / len(ids)))


@pytest.fixture(scope="module")
def languages(tmp_path_factory):
    """Return a JSONL file of 600 documents, half of them German, some without a language."""
    path = tmp_path_factory.mktemp("languages") / "two.jsonl"
    rows = [
        {"lang": ["en", "de", ""][i % 2 if i % 7 else 2], "text": f"{['the house', 'das Häuschen'][i % 2]} {i}"}
        for i in range(600)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_each_language_is_measured_separately(in_process, languages, tmp_path):
    Tokenizer.train([languages.read_text()], 60, kind="wordpiece").save(tmp_path / "words")
    command = ("train-tokenizer", languages, "--vocab-size", "300", "--compare", "words")
    done = in_process(*command, "--out", "a", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    batches = open_corpus([str(languages)]).batches("validation")
    texts = [text for batch in batches for text in batch["text"].to_pylist()]
    named = {row["text"]: row["lang"] for row in map(json.loads, languages.read_text().splitlines())}
    assert summary["languages"].keys() == {"en", "de"}
    for language, found in summary["languages"].items():
        own = [text for text in texts if named[text] == language]
        assert found["bytes"] == sum(len(text.encode()) for text in own)
        for name, folder in (("this one", "a"), ("words", "words")):
            tok = Tokenizer.load(tmp_path / folder)
            assert found["held_out"][name]["tokens"] == sum(map(len, tok.encode_batch(own)))
            words = fit_to_words(tok, words_in(own))
            assert found["held_out"][name].items() >= words.items()
    done = in_process(*command, "--out", "b")
    lines = [line for line in done.stdout.splitlines() if not line.startswith("next: ")]
    assert max(map(len, lines)) <= 80
    assert [re.split(r" {2,}", line)[0] for line in lines[-3:]] == ["bytes per token in 2 languages", "de", "en"]


def test_without_a_language_column_there_are_no_numbers_by_language(in_process, text_folder):
    command = ("train-tokenizer", text_folder, "--vocab-size", "300")
    assert in_process(*command, "--out", "c").returncode == 0
    done = in_process(*command, "--out", "d", "--compare", "c", "--json")
    assert json.loads(done.stdout)["languages"] == {}


def test_tokenize_prints_the_fit_of_a_text(in_process, tok, tmp_path):
    tok.save(tmp_path / "tok")
    done = in_process("tokenize", "the cats ☃", "--tokenizer", "tok")
    words = fit_to_words(tok, words_in(["the cats ☃"]), in_python=True)
    said = " ".join(done.stdout.split())
    assert f"{words['tokens_per_word']:.2f} tokens per word, {words['whole_words']:.0%} of the words whole" in said
    assert ("unknown" in said) == (tok.kind == "wordpiece")
