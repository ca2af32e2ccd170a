"""Corpus cards, the standard library, and corpus summaries."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from corpora import list_cards, load_card, open_corpus, summarize
from tests.corpora.helpers import documents, everything, expected_hash_split


def test_stdlib_is_every_py_file_except_tests_and_site_packages_in_path_order():
    root = sysconfig.get_path("stdlib")
    expected, empty = {}, 0
    for path in Path(root).glob("**/*.py"):
        relative = path.relative_to(root).as_posix()
        if re.search(r"(^|/)(test|tests|idle_test|site-packages|dist-packages)/", relative):
            continue
        data = path.read_bytes()
        try:
            data.decode()
        except UnicodeDecodeError:
            continue
        empty += not data
        if data:
            expected[relative] = data.decode()
    corpus = open_corpus(["stdlib"])
    found = everything(corpus)
    for split, texts in found.items():
        chosen = [text for _, text in sorted(expected.items()) if expected_hash_split(text, 0.05) == split]
        assert texts == chosen
    assert corpus.dropped.empty_documents == empty
    assert corpus.split_rule == "hash:0.05"
    assert sum(len(text) for text in found["validation"]) > 100_000


def test_every_card_says_what_it_is_and_under_which_licence():
    cards = {card.name: card for card in list_cards()}
    assert {"stdlib", "tinystories", "wikitext-103", "fineweb-edu", "openwebtext", "iid-16", "markov-2-16"} <= set(
        cards
    )
    assert all(card.description and card.licence for card in cards.values())


def test_a_card_of_your_own_is_a_corpus(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text('{"body": "a1"}\n{"body": "a2"}\n')
    (tmp_path / "data" / "b.jsonl").write_text('{"body": "b1"}\n')
    (tmp_path / "mine.toml").write_text(
        'description = "mine"\nlicence = "MIT"\nreader = "files"\ntext_column = "body"\n'
        '[splits]\ntrain = "data/a.jsonl"\nvalidation = ["data/b*"]\n'
    )
    corpus = open_corpus(str(tmp_path / "mine.toml"))
    assert (corpus.name, corpus.description, corpus.licence) == ("mine", "mine", "MIT")
    assert everything(corpus) == {"train": ["a1", "a2"], "validation": ["b1"]}


def synthetic(**changes):
    """Return a card of a synthetic corpus with some lines changed."""
    lines = {"length": "9", "source": '{kind = "markov", symbols = 3, order = 1}', "documents": "{train = 1}"} | changes
    return 'reader = "synthetic"\n' + "\n".join(f"{key} = {value}" for key, value in lines.items())


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("reader = ", "is not TOML"),
        ('reader = "web"', '"reader" in the corpus card .* should be one of'),
        ('reader = "hub"', 'lacks "repository"'),
        ('reader = "files"', 'lacks "paths"'),
        ('reader = "stdlib"\nlicense = "MIT"', 'unknown key "license"; did you mean "licence"'),
        ('reader = "files"\npaths = "a.txt"', '"paths" .* should be a list'),
        (
            'reader = "synthetic"\nlength = 9\nsource = {kind = "markof"}\ndocuments = {train = 1}',
            'must be "iid" or "markov"',
        ),
        ('reader = "synthetic"\nlength = 9\nsource = {kind = "iid"}\ndocuments = {train = "1"}', "whole numbers"),
        (synthetic(documents="{train = 1HUGE}"), '"documents" in .* should hold whole numbers, not 100'),
        (synthetic(length="1HUGE"), '"length" in .* should be at most'),
        (synthetic(source='{kind = "markov", symbols = 3, order = 1HUGE}'), '"source" in .* 64-bit numbers'),
        (synthetic(source='{kind = "markov", symbols = 3, order = 1000000000}'), "a chain of order 1e\\+09 over"),
        (
            synthetic(source='{kind = "markov", symbols = 3, order = 1, concentration = inf}'),
            "at most 1e\\+09, not inf",
        ),
        ('reader = "files"\npaths = [1HUGE]', "should hold names, not 100"),
        ('reader = "files"\nsplits = {train = 1e300}', "should hold names, not 1e"),
    ],
)
def test_a_wrong_card_is_refused_in_one_sentence(tmp_path, content, complaint):
    (tmp_path / "card.toml").write_text(content.replace("HUGE", "0" * 400))
    with pytest.raises(ValueError, match=complaint) as error:
        open_corpus(str(tmp_path / "card.toml"))
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_a_card_counts_the_files_that_it_skips(tmp_path):
    for name in ("all/a.txt", "all/b.png", "all/c.md", "dev/a.txt", "dev/b.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    (tmp_path / "card.toml").write_text('reader = "files"\npaths = ["all"]\nsplits = {validation = "dev"}')
    assert open_corpus(str(tmp_path / "card.toml")).skipped_files == {".png": 2, ".md": 1}


@pytest.mark.parametrize("held_out", ["dev", "all/3.txt"])
def test_files_that_a_card_holds_out_are_not_trained_on(tmp_path, held_out):
    for name in ("dev/0.txt", *(f"all/{number}.txt" for number in range(30))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    card = f'reader = "files"\npaths = ["all"]\nsplits = {{validation = "{held_out}"}}'
    (tmp_path / "card.toml").write_text(card)
    corpus = open_corpus(str(tmp_path / "card.toml"))
    assert corpus.split_rule == "predefined"
    found = everything(corpus)
    assert found["validation"] == ["dev/0.txt" if held_out == "dev" else held_out]
    assert sorted(found["train"]) == sorted({f"all/{number}.txt" for number in range(30)} - {held_out})


@pytest.mark.parametrize("spec", ["card.toml", "a.txt"])
def test_a_corpus_that_is_named_twice_is_read_once(tmp_path, spec):
    (tmp_path / "a.txt").write_text("a text")
    (tmp_path / "card.toml").write_text('reader = "files"\npaths = ["a.txt"]')
    assert documents(open_corpus([str(tmp_path / spec)] * 2, split="none"), "train") == ["a text"]


def test_a_card_takes_precedence_over_a_folder_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stdlib").mkdir()
    (tmp_path / "stdlib" / "a.txt").write_text("a\n" * 10)
    assert open_corpus("stdlib").licence == load_card(next(c.path for c in list_cards() if c.name == "stdlib")).licence
    assert documents(open_corpus("./stdlib"), "train") == ["a\n" * 9]


def test_a_summary_adds_up_and_shows_excerpts(tmp_path):
    texts = [f"{i} é" * (i % 7) for i in range(100)]
    for i, text in enumerate(texts):
        (tmp_path / f"{i:03}.txt").write_text(text)
    calls = []
    corpus = open_corpus(str(tmp_path))
    summary = summarize(corpus, excerpts=4, excerpt_bytes=3, progress=lambda *call: calls.append(call))
    assert summary.documents == sum(map(bool, texts))
    assert summary.bytes == sum(len(text.encode()) for text in texts)
    assert summary.dropped.empty_documents == texts.count("")
    found = everything(corpus)
    assert {name: split.documents for name, split in summary.splits.items()} == {n: len(t) for n, t in found.items()}
    assert len(summary.excerpts) == 4
    assert all(any(text.startswith(excerpt.rstrip("…")) for text in texts) for excerpt in summary.excerpts)
    assert summary.excerpts == summarize(corpus, excerpts=4, excerpt_bytes=3).excerpts
    assert calls[-1][1] == summary.bytes == corpus.text_bytes_estimate


def test_importing_corpora_loads_nothing_heavy():
    program = "import sys, corpora; print([m for m in ('datasets', 'torch', 'numba', 'pandas') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_shared_wikitext_2_has_three_own_splits():
    shared = Path(os.environ.get("BYTELM_SHARED", Path(__file__).parents[3] / "shared")) / "corpora"
    if not shared.is_dir():
        pytest.skip("the shared corpora are absent")
    summary = summarize(open_corpus(str(shared / "wikitext2.*.txt.xz")))
    assert summary.split_rule == "predefined"
    assert list(summary.splits) == ["train", "validation", "test"]
    assert summary.splits["train"].bytes > 10_000_000
