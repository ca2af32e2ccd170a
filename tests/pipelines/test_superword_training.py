"""train-tokenizer and sweep-vocabulary make vocabularies of superwords, and BPE of normalized text."""

import json
import tempfile
from dataclasses import replace

import pytest

from corpora import open_corpus
from pipelines.recipes.recipe import save_config
from pipelines.verbs.sweep_vocabulary import sweep_vocabulary
from pipelines.verbs.train_tokenizer import train_tokenizer
from tokenizer import Tokenizer


@pytest.fixture(scope="module")
def corpus(text_folder):
    return [str(text_folder)]


def training_texts(corpus):
    return [text for batch in open_corpus(corpus).batches("train") for text in batch.column(0).to_pylist()]


def test_superwords_are_training_and_then_growth(corpus, tmp_path):
    made = train_tokenizer(corpus, vocab_size=600, superwords=True, transition=0.8, superword_words=3, out=tmp_path)
    texts = training_texts(corpus)
    expected = Tokenizer.train(texts, 480).grow(texts, 600, superwords=3)
    assert made.fingerprint == expected.fingerprint == Tokenizer.load(tmp_path).fingerprint
    assert any(b" " in (token or b"").strip() for token in made.vocabulary.tokens[480:])


@pytest.mark.filterwarnings("ignore:the corpus ran out of pairs")
def test_both_stages_merge_pairs_that_occur_once_if_asked(tmp_path):
    text = "one two three four five six"
    (tmp_path / "text.txt").write_text(text)
    options = {"vocab_size": 300, "superwords": True, "min_frequency": 0, "split": "none"}
    made = train_tokenizer([str(tmp_path / "text.txt")], **options, out=tmp_path / "out")
    expected = Tokenizer.train([text], 270, min_frequency=0).grow([text], 300, superwords=4, min_frequency=0)
    assert made.fingerprint == expected.fingerprint
    assert made.vocab_size > 270


def test_the_summary_and_the_trace_are_of_both_stages(corpus, bytelm, tmp_path):
    out = ("--vocab-size", 500, "--superwords", "--trace", 3, "--out", tmp_path / "out", "--json")
    summary = json.loads(bytelm("train-tokenizer", *corpus, *out).stdout)
    assert summary["vocab_size"] == 500
    assert len(summary["trace"]) == 3
    assert summary["held_out"]["this one"]["tokens"] > 0


def test_both_stages_spill_their_counts_beside_the_output(corpus, tmp_path, monkeypatch):
    folders, make = [], tempfile.TemporaryFile

    def recorded(**options):
        folders.append(options["dir"])
        return make(**options)

    monkeypatch.setattr(tempfile, "TemporaryFile", recorded)
    train_tokenizer(corpus, vocab_size=400, superwords=True, memory=64 * 10**9, out=tmp_path / "out")
    assert folders.count(tmp_path) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "unigram"}, "`superwords` needs `kind='bpe'`, but the kind is unigram"),
        ({"special_text": "cut"}, "`superwords` cannot be combined with `special_text='cut'`"),
        ({"tie_break": "bytes"}, "`superwords` cannot be combined with `tie_break='bytes'`"),
        ({"counts": ("counts.parquet",)}, "`superwords` cannot be combined with `counts`"),
        ({"transition": 1.0}, "`transition` is 1.0, but must be between 0 and 1"),
        ({"superword_words": 1}, "`superword_words` is 1, but must be at least 2"),
        ({"vocab_size": 261}, "`vocab_size` is 261, which leaves no entries for superwords"),
    ],
)
def test_options_that_do_not_fit_are_named(corpus, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        train_tokenizer(corpus, **{"vocab_size": 600, "superwords": True, "out": tmp_path / "out"} | options)
    assert not (tmp_path / "out").exists()


def test_text_is_normalized_before_it_is_split(corpus, tmp_path):
    made = train_tokenizer(corpus, vocab_size=400, normalize=("nfkc", "lowercase"), out=tmp_path)
    expected = Tokenizer.train(training_texts(corpus), 400, "nfkc+lowercase:cl100k")
    assert made.fingerprint == expected.fingerprint == Tokenizer.load(tmp_path).fingerprint
    assert made.encode("ＬＯＮＧ") == made.encode("long")
    with pytest.raises(ValueError, match="`normalize` is an option of bpe: for wordpiece, choose"):
        train_tokenizer(corpus, vocab_size=400, kind="wordpiece", normalize=("nfc",), out=tmp_path / "other")


@pytest.mark.slow
def test_a_sweep_compares_superwords(corpus, tmp_path, small_recipe):
    recipe = tmp_path / "tiny.toml"
    save_config(recipe, replace(small_recipe, model=replace(small_recipe.model, dropout=0.0)), {})
    options = {"kinds": ("bpe", "superwords"), "sizes": (600,), "seeds": 1, "flops": 1e8, "recipe": str(recipe)}
    summary = sweep_vocabulary(corpus, out=tmp_path / "sweep", workers=2, **options)
    plain, joined = summary.rows
    assert [row.kind for row in summary.rows] == ["bpe", "superwords"]
    assert joined.bytes_per_token > plain.bytes_per_token
    made = Tokenizer.load(tmp_path / "sweep/vocabularies/superwords-600/tokenizer.json")
    assert (
        made.vocab_size == 600
        and made.vocabulary.tokens[:540]
        == Tokenizer.load(tmp_path / "sweep/vocabularies/bpe-600/tokenizer.json").vocabulary.tokens[:540]
    )
