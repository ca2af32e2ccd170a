"""Models train on WordPiece datasets, and are evaluated, reported and sampled."""

import json

import pytest
from datasets import load_from_disk

from pipelines.evaluate import evaluate
from pipelines.generate import generate
from pipelines.report import report
from tokenizer import Tokenizer


def test_the_dataset_holds_the_ids_of_the_text(wordpiece_run):
    tok = Tokenizer.load(wordpiece_run.parent / "tok")
    ids = load_from_disk(str(wordpiece_run.parent / "data"))["validation"]["input_ids"][0]
    text = tok.decode(ids)
    assert text == text.lower()
    assert text.count("<|endoftext|>") >= 1
    assert len(text.split()) > 3


def test_evaluation_has_totals_over_the_original_bytes_and_no_figure_per_token_byte(wordpiece_run):
    evaluate(wordpiece_run)
    numbers = json.loads((wordpiece_run / "evaluation.json").read_text())
    found = next(value for value in _objects(numbers) if "bits_per_original_byte" in value)
    recorded = json.loads((wordpiece_run.parent / "data" / "dataset.json").read_text())["splits"]["validation"]
    bits = found["cross_entropy_bits"] * recorded["encoded_tokens"]
    assert found["bits_per_original_byte"] == pytest.approx(bits / recorded["bytes"])
    assert (found["bytes"], found["bits_per_byte"]) == (0, None)


def _objects(value):
    """Yield all objects inside a JSON value."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(each)


def test_generated_words_have_spaces_between_them(wordpiece_run):
    text = generate(wordpiece_run, prompt="import the", tokens=30, seed=1, device="cpu")
    tok = Tokenizer.load(wordpiece_run)
    words = tok.decode(tok.encode(text, disallowed_special=())).split()
    assert len(words) > 5
    assert tok.decode(tok.encode_ordinary(" ".join(words))).split() == words
    assert "##" not in text


def test_a_report_is_drawn(wordpiece_run):
    report(wordpiece_run)
    assert "bert-uncased" in (wordpiece_run / "report.html").read_text(encoding="utf-8")
