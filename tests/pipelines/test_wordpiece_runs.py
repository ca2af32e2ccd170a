"""Models train on WordPiece datasets, and are evaluated, reported and sampled."""

import json

import pytest
from datasets import load_from_disk

from pipelines.build_dataset import build_dataset
from pipelines.evaluate import evaluate
from pipelines.generate import generate
from pipelines.pretrain import pretrain
from pipelines.report import report
from pipelines.train_tokenizer import train_tokenizer
from tokenizer import Tokenizer


@pytest.fixture(scope="module")
def run(tmp_path_factory, text_folder, small_recipe):
    """Return the run folder of a small decoder on WordPiece; its dataset and tokenizer are beside it."""
    folder = tmp_path_factory.mktemp("wordpiece")
    train_tokenizer([str(text_folder)], vocab_size=600, model="wordpiece", out=folder / "tok")
    build_dataset([str(text_folder)], tokenizer=folder / "tok", context_length=32, out=folder / "data")
    assert pretrain(small_recipe, data=folder / "data", out=folder / "run") == 0
    return folder / "run"


def test_the_dataset_holds_the_ids_of_the_text(run):
    tok = Tokenizer.load(run.parent / "tok")
    ids = load_from_disk(str(run.parent / "data"))["validation"]["input_ids"][0]
    text = tok.decode(ids)
    assert text == text.lower()
    assert text.count("<|endoftext|>") >= 1
    assert len(text.split()) > 3


def test_evaluation_has_totals_over_the_original_bytes_and_no_figure_per_token_byte(run):
    evaluate(run)
    numbers = json.loads((run / "evaluation.json").read_text())
    found = next(value for value in _objects(numbers) if "bits_per_original_byte" in value)
    recorded = json.loads((run.parent / "data" / "dataset.json").read_text())["splits"]["validation"]
    bits = found["cross_entropy_bits"] * recorded["encoded_tokens"]
    assert found["bits_per_original_byte"] == pytest.approx(bits / recorded["bytes"])
    assert (found["bytes"], found["bits_per_byte"]) == (0, None)


def _objects(value):
    """Yield all objects inside a JSON value."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(each)


def test_generated_words_have_spaces_between_them(run):
    text = generate(run, prompt="import the", tokens=30, seed=1, device="cpu")
    tok = Tokenizer.load(run)
    words = tok.decode(tok.encode(text, disallowed_special=())).split()
    assert len(words) > 5
    assert tok.decode(tok.encode_ordinary(" ".join(words))).split() == words
    assert "##" not in text


def test_a_report_is_drawn(run):
    report(run)
    assert "bert-uncased" in (run / "report.html").read_text(encoding="utf-8")
