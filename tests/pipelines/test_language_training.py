"""`train-tokenizer --parity` trains a vocabulary that compresses several languages equally well."""

import json

import pytest

from corpora import open_corpus
from pipelines.verbs.train_tokenizer import train_tokenizer
from tokenizer import Tokenizer
from tokenizer.training.parity import train_with_parity

GREEK = str.maketrans("abcdefgh", "αβγδεζηθ")


@pytest.fixture(scope="module")
def files(tmp_path_factory, text_folder):
    """Return a folder with a long text in one language, a short one in another, and parallel sentences."""
    folder = tmp_path_factory.mktemp("languages")
    code = [path.read_text() for path in sorted(text_folder.iterdir())]
    texts = {"long": code[:6], "short": [text[:3000].translate(GREEK) for text in code[6:12]]}
    for name, documents in texts.items():
        (folder / f"{name}.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in documents))
    lines = [line for text in code[-2:] for line in text.splitlines() if line.strip()][:200]
    rows = [json.dumps({"long": line, "short": line.translate(GREEK)}) for line in lines]
    (folder / "parallel.jsonl").write_text("\n\n".join(rows))
    return folder


@pytest.fixture
def corpora(files):
    return [f"{name}={files / name}.jsonl" for name in ("long", "short")]


def training_texts(files):
    return {
        name: [
            text
            for batch in open_corpus([str(files / f"{name}.jsonl")], split="tail:0.1").batches("train")
            for text in batch.column(0).to_pylist()
        ]
        for name in ("long", "short")
    }


def test_the_vocabulary_is_that_of_parity_aware_training(files, corpora, tmp_path):
    made = train_tokenizer(
        corpora, vocab_size=500, parity=str(files / "parallel.jsonl"), split="tail:0.1", out=tmp_path / "out"
    )
    rows = [json.loads(line) for line in (files / "parallel.jsonl").read_text().splitlines() if line]
    parallel = {name: [row[name] for row in rows] for name in ("long", "short")}
    expected = train_with_parity(training_texts(files), 500, parallel=parallel)
    assert made.fingerprint == expected.fingerprint == Tokenizer.load(tmp_path / "out").fingerprint


def test_ratios_take_the_place_of_parallel_sentences(files, corpora, tmp_path):
    made = train_tokenizer(
        corpora, vocab_size=400, parity=("short=1.3", "long=1"), split="tail:0.1", out=tmp_path / "out"
    )
    expected = train_with_parity(training_texts(files), 400, ratios={"long": 1.0, "short": 1.3})
    assert made.fingerprint == expected.fingerprint


def test_the_summary_compares_premiums_with_another_tokenizer(files, corpora, in_process, tmp_path):
    Tokenizer.train([text for texts in training_texts(files).values() for text in texts], 500).save(tmp_path / "plain")
    options = ["--vocab-size", 500, "--parity", files / "parallel.jsonl", "--compare", tmp_path / "plain"]
    done = in_process("train-tokenizer", *corpora, *options, "--out", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    parity = json.loads(done.stdout)["parity"]
    assert parity["this one"]["gini"] < parity["plain"]["gini"]
    assert parity["plain"]["premiums"]["short"] > parity["this one"]["premiums"]["short"] >= 1
    shown = in_process("train-tokenizer", *corpora, *options, "--out", tmp_path / "out", "--overwrite")
    assert "Gini coefficient" in shown.stdout + shown.stderr
    assert f"build-dataset {files / 'long.jsonl'} {files / 'short.jsonl'}" in shown.stdout + shown.stderr
    planned = in_process("train-tokenizer", *corpora, *options, "--out", tmp_path / "none", "--dry-run")
    assert "would merge for 2 languages" in planned.stdout and not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "unigram"}, "`parity` does not go with `kind`"),
        ({"counts": ("counts.parquet",)}, "`parity` does not go with `counts`"),
        ({"superwords": True}, "`parity` does not go with `superwords`"),
        ({"normalize": ("nfkc",)}, "`parity` does not go with `normalize`"),
        ({"pattern": "nfkc:cl100k"}, "pattern is nfkc:cl100k, but parity-aware training needs one without"),
        ({"parity": (), "parity_window": 9}, "`parity_window` has no effect without `parity`"),
        ({"parity_window": -1}, "`parity_window` is -1"),
        ({"parity": ("long=1", "other=2")}, "differ in the languages other, short"),
        ({"parity": ("long=1", "short=0")}, "`parity` is short=0: give one file, or a ratio above 0"),
        ({"corpus": ["text.jsonl"]}, "with `parity`, a corpus needs its language, as in en=text.jsonl"),
    ],
)
def test_arguments_that_do_not_fit_are_named(files, corpora, tmp_path, options, message):
    given = {"corpus": corpora, "vocab_size": 500, "parity": ("long=1", "short=1"), "out": tmp_path / "out"}
    with pytest.raises(ValueError, match=message):
        train_tokenizer(**given | options)
    assert not (tmp_path / "out").exists()
