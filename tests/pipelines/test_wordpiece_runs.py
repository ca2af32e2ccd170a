"""Models train on WordPiece datasets, and are evaluated, reported and sampled."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from datasets import load_from_disk

from pipelines.dataset.document_records import read_documents
from pipelines.dataset.reader import TokenDataset
from pipelines.evaluation.measurements.breakdown import CLASSES, token_classes
from pipelines.reporting.tokenizer_facts import tokenizer_facts
from pipelines.run.folder import Run
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.generate import generate
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.report import report
from tests.pipelines.test_cli import assert_refused
from tokenizer import Tokenizer


def test_the_dataset_holds_the_ids_of_the_text(wordpiece_run):
    tok = Tokenizer.load(wordpiece_run.parent / "tok")
    ids = load_from_disk(str(wordpiece_run.parent / "data"))["validation"]["input_ids"][0]
    text = tok.decode(ids)
    assert text == text.lower()
    assert text.count("<|endoftext|>") >= 1
    assert len(text.split()) > 3


def test_only_a_tokenizer_with_merges_has_merged_tokens(wordpiece_run, trained_gpt):
    for folder, merges in ((wordpiece_run, False), (trained_gpt, True)):
        titles = {title for title, _ in tokenizer_facts(Run(folder)).examples}
        assert "Longest tokens" in titles
        assert ({"First merged tokens", "Last merged tokens"} <= titles) == any("merged" in t for t in titles) == merges


@pytest.fixture(scope="module")
def numbers(wordpiece_run):
    """Return the numbers of the validation split."""
    return evaluate(wordpiece_run, memorisation=True).to_json()["splits"]["validation"]


def test_totals_are_over_the_original_bytes_of_the_scored_part_of_each_document(wordpiece_run, numbers):
    data = TokenDataset(wordpiece_run.parent / "data")
    recorded = read_documents(data.folder / "validation", data.info["splits"]["validation"])
    ids = data.split("validation").read(0, 10**9)
    separator = data.info["separator"]
    held = [int((part != separator).sum()) for part in np.split(ids, np.flatnonzero(ids == separator)[1:])]
    size = sum(
        count / (tokens - 1) * size for count, tokens, size in zip(held, recorded.tokens, recorded.sizes, strict=False)
    )
    assert held[:-1] == (recorded.tokens[:-1] - 1).tolist() and held[-1] < recorded.tokens[-1] - 1
    bits = numbers["cross_entropy_bits"] * numbers["tokens"]
    assert numbers["bits_per_original_byte"] == pytest.approx(bits / size)
    low, high = numbers["intervals"]["bits_per_original_byte"]
    assert low < numbers["bits_per_original_byte"] < high
    assert (numbers["bytes"], numbers["bits_per_byte"], numbers["original_bytes"]) == (None, None, round(size))


def test_a_training_split_of_short_documents_is_scored_over_all_of_its_original_bytes(wordpiece_run, tmp_path):
    texts = [f"Import sys {number}" for number in range(400)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    data = tmp_path / "data"
    build_dataset([str(tmp_path / "texts.jsonl")], tokenizer=wordpiece_run.parent / "tok", context_length=32, out=data)
    run = shutil.copytree(wordpiece_run, tmp_path / "run")
    found = evaluate(run, data=data, splits=("train",)).splits["train"]
    assert found.original_bytes == pytest.approx(TokenDataset(data).info["splits"]["train"]["bytes"], rel=0.02)


def test_only_whole_documents_have_bytes_in_a_breakdown(wordpiece_run, numbers):
    found = numbers["breakdown"]
    assert found.keys() == {"position", "class", "frequency", "document"}
    for key, rows in found.items():
        assert all((row["bytes"] is None) == (key != "document") and row["bits_per_byte"] is None for row in rows)
        assert sum(row["tokens"] for row in rows) == numbers["tokens"]
    for row in found["document"]:
        bits = row["bits_per_token"] * row["tokens"]
        assert row["bits_per_original_byte"] == pytest.approx(bits / row["bytes"], rel=1e-3)
    assert sum(row["bytes"] for row in found["document"]) == pytest.approx(numbers["original_bytes"], abs=3)


def test_a_token_that_continues_a_word_is_inside_it(wordpiece_run):
    tok = Tokenizer.load(wordpiece_run)
    ids = np.array(tok.encode("Importing 12 names, xyzzy"))
    classes = [CLASSES[i] for i in token_classes(ids, np.array([-1, *ids[:-1]]), tok)]
    for i, name in zip(ids.tolist(), classes, strict=True):
        text = tok.token_bytes(i).decode()
        letters = text.removeprefix("##").isalpha()
        expected = "word inside" if text.startswith("##") else "word start"
        other = "number" if text.removeprefix("##").isdigit() else "punctuation"
        assert name == (expected if letters else other), text
    assert {"word inside", "word start", "number", "punctuation"} == set(classes)


def test_memorisation_searches_the_decoded_text(wordpiece_run, numbers):
    tok, data = Tokenizer.load(wordpiece_run), TokenDataset(wordpiece_run.parent / "data")
    separator = data.info["separator"]

    def documents(split):
        ids = data.split(split).read(0, 10**9)
        parts = np.split(ids, np.flatnonzero(ids == separator)[1:])
        return [b"".join(map(tok.added_bytes, part[tok.ordinary[part]].tolist())) for part in parts]

    texts = documents("validation")
    known = {other[i : i + 25] for other in documents("train") for i in range(len(other) - 24)}
    begins = sum(text[i : i + 25] in known for text in texts for i in range(len(text)))
    row = numbers["memorisation"]["curve"][0]
    assert numbers["memorisation"]["bytes"] == sum(map(len, texts))
    assert row["begin"] == pytest.approx(begins / sum(map(len, texts))) and row["begin"] > 0
    assert row["loss"]["outside"]["bytes"] is None
    assert sum(each["tokens"] for each in row["loss"].values() if each) == numbers["tokens"]


def test_a_run_on_bpe_is_compared_per_byte_of_the_original(in_process, wordpiece_run, trained_gpt, tmp_path):
    run = shutil.copytree(wordpiece_run, tmp_path / "run")
    done = in_process("evaluate", run, "--against", trained_gpt, "--breakdown")
    assert done.returncode == 0, done.stderr
    there = json.loads((run / "evaluation.json").read_text())["splits"]["validation"]
    gpt = evaluate(trained_gpt).validation.bits_per_byte
    assert there["difference"]["value"] == pytest.approx(there["bits_per_original_byte"] - gpt, rel=0.05)
    assert there["difference"]["unit"] == "bits per byte of the original"
    said = " ".join(done.stdout.split())
    assert there["difference"]["sentence"] in said and "The tokenizer of run loses text" in said
    assert "bits/original byte" in said
    copy = shutil.copytree(trained_gpt, tmp_path / "gpt")
    back = evaluate(copy, against=wordpiece_run).to_json()["splits"]["validation"]["difference"]
    assert back["value"] == pytest.approx(-there["difference"]["value"])
    assert back["unit"] == "bits per byte of the original"


def test_masked_models_are_compared_per_byte_of_masked_text(wordpiece_run, trained_bert, small_recipe, tmp_path):
    model = replace(small_recipe.model, architecture="encoder", context_length=34)
    recipe = replace(small_recipe, objective="masked-token", model=model)
    pretrain(recipe, data=wordpiece_run.parent / "data", out=tmp_path / "bert")
    bpe = evaluate(shutil.copytree(trained_bert, tmp_path / "bpe")).to_json()["splits"]["validation"]
    assert bpe["masked_bits_per_byte"] == pytest.approx(bpe["cross_entropy_bits"] * bpe["tokens"] / bpe["bytes"])
    assert bpe["intervals"]["masked_bits_per_byte"][0] < bpe["masked_bits_per_byte"]
    found = evaluate(tmp_path / "bert", against=trained_bert).to_json()["splits"]["validation"]
    assert found["bits_per_byte"] is None
    bits = found["cross_entropy_bits"] * found["tokens"]
    assert found["masked_bits_per_byte"] == pytest.approx(bits / found["original_bytes"], rel=1e-3)
    difference = found["masked_bits_per_byte"] - bpe["masked_bits_per_byte"]
    assert found["difference"]["value"] == pytest.approx(difference, abs=0.1)
    assert found["difference"]["unit"] == "bits per byte of masked text"
    assert "Each run masks 15 %" in found["difference"]["reservations"][1]


def test_a_corpus_is_scored_per_byte_of_the_original(wordpiece_run, tmp_path):
    text = "Import ÉTÉ, ☃ and sys\n" * 40
    (tmp_path / "text.txt").write_text(text)
    run = shutil.copytree(wordpiece_run, tmp_path / "run")
    found = evaluate(run, corpus=(str(tmp_path / "text.txt"),)).to_json()["splits"]["text.txt"]
    assert found["original_bytes"] == len(text.encode())
    bits = found["cross_entropy_bits"] * found["tokens"]
    assert found["bits_per_original_byte"] == pytest.approx(bits / len(text.encode()))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--compressors"], "its dataset does not hold the text to compress; leave --compressors out"),
        (["--corpus", "text.txt", "--unit", "word"], "its perplexity per word is not comparable with any other"),
    ],
)
def test_options_that_need_the_original_text_are_refused(in_process, wordpiece_run, tmp_path, options, said):
    (tmp_path / "text.txt").write_text("some words\n" * 100)
    assert_refused(in_process("evaluate", wordpiece_run, *options), said)


def test_a_split_without_a_record_of_its_documents_cannot_be_paired(in_process, wordpiece_run, trained_gpt):
    refused = in_process("evaluate", wordpiece_run, "--against", trained_gpt, "--splits", "train")
    assert_refused(refused, "the documents cannot be paired: the tokenizer loses text")


def test_generated_words_have_spaces_between_them(wordpiece_run):
    text = generate(wordpiece_run, prompt="import the", tokens=30, seed=1, device="cpu")
    tok = Tokenizer.load(wordpiece_run)
    words = tok.decode(tok.encode(text, disallowed_special=())).split()
    assert len(words) > 5
    assert tok.decode(tok.encode_ordinary(" ".join(words))).split() == words
    assert "##" not in text


def test_a_report_is_drawn(wordpiece_run):
    report(wordpiece_run)
    page = (wordpiece_run / "report.html").read_text(encoding="utf-8")
    assert "bert-uncased" in page
    assert re.search(r"word, after a space\D+[1-9]", page)
