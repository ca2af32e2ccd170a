"""The benchmark of recipes trains each variant once and names the best."""

import json
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.recipe_variants import GROUPS, VARIANTS
from benchmarks.recipes import cut_at_lines, markdown, recipes
from benchmarks.small_data import HELD_OUT, SmallText, write_small_text
from pipelines.dataset.reader import TokenDataset


@pytest.mark.slow
def test_variants_are_trained_recorded_and_not_trained_again(tmp_path, text_folder, printed):
    options = {"text": [str(text_folder)], "tokens": 16_384, "folder": tmp_path / "made", "results": tmp_path / "found"}
    recipes(**options, variants=["modern"])
    first = (tmp_path / "found" / "recipes.json").read_text()
    recipes(**options, group="preset")
    assert "modern, seed 0: there already" in printed.readouterr().out
    rows = json.loads((tmp_path / "found" / "recipes.json").read_text())
    assert rows[0] == json.loads(first)[0]
    assert [row["variant"] for row in rows] == list(GROUPS["preset"])
    assert all(0 < row["bits_per_byte"] < 8 for row in rows)
    sizes = {row["variant"]: row["parameters"] for row in rows}
    assert sizes["modern, tied head"] < sizes["modern"] == sizes["modern, projections drawn"]
    assert len({row["bits_per_byte"] for row in rows}) == len(rows)
    table = (tmp_path / "found" / "recipes.md").read_text()
    assert all(f"| {name} |" in table for name in GROUPS["preset"])


@pytest.mark.slow
def test_encoders_are_trained_by_masked_tokens_and_stand_in_a_table_of_their_own(tmp_path, text_folder):
    names = ["bert, lr 1e-3", "pre-norm bert, muon"]
    recipes(text=[str(text_folder)], tokens=16_384, folder=tmp_path, results=tmp_path, variants=[*names, "modern"])
    *encoders, decoder = json.loads((tmp_path / "recipes.json").read_text())
    assert "nats" not in decoder and all("bits_per_byte" not in row for row in encoders)
    assert all(0 < row["nats"] < 10 for row in encoders)
    assert 0 < encoders[0]["unigram_nats"] == encoders[1]["unigram_nats"] < 10
    table = (tmp_path / "recipes.md").read_text()
    assert table.index("| modern |") < table.index("| nats per masked token |") < table.index("| bert, lr 1e-3 |")


@pytest.mark.slow
def test_an_interrupted_training_resumes(tmp_path, text_folder):
    options = ["--text", str(text_folder), "--tokens", "80_000", "--variants", "modern"]

    def command(name):
        folders = ["--folder", str(tmp_path / "made"), "--results", str(tmp_path / name)]
        return [sys.executable, "-m", "benchmarks.recipes", *options, *folders]

    process = subprocess.Popen(command("found"))
    while not any("train" in file.read_text() for file in tmp_path.glob("made/runs/*/metrics.jsonl")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 1
    (clock,) = tmp_path.glob("made/runs/*/processor.json")
    before = json.loads(clock.read_text())
    subprocess.run(command("found"), check=True)
    assert not list(tmp_path.glob("made/runs/*"))
    subprocess.run(command("whole"), check=True)
    (resumed,), (whole,) = (json.loads((tmp_path / name / "recipes.json").read_text()) for name in ("found", "whole"))
    assert resumed["bits_per_byte"] == whole["bits_per_byte"]
    assert 0 < before < resumed["processor_seconds"]


def test_modern_with_half_the_tokens_is_compared_with_the_best_gpt2_by_cpu_time():
    common = {"data": "d", "device": "CPU", "shape": "small", "parameters": 10, "seed": 0}

    def row(variant, tokens, bits, seconds, processor=None):
        measured = {"variant": variant, "tokens": tokens, "bits_per_byte": bits, "seconds": seconds}
        return common | measured | ({"processor_seconds": processor} if processor else {})

    rows = [
        row("gpt2, lr 1e-3", 400, 2.5, 100, 80),
        row("gpt2, lr 2e-3", 400, 2.6, 50, 40),
        row("modern", 200, 2.4, 90, 20),  # beside other work
        row("modern", 300, 2.3, 90, 30),
        row("modern, tied head", 200, 2.45, 25),
    ]
    page = markdown(rows)
    assert "The best of 2 (of 12) rates and decays of GPT-2 is 'gpt2, lr 1e-3': 2.5000." in page
    assert "- modern, 200: 2.4000, in 0.25 of the CPU time." in page
    assert "- modern, tied head, 200: 2.4500, in 0.25 of the time." in page
    assert "- modern, 300" not in page
    assert "| gpt2, lr 1e-3 | 2.5000 | 1 | 10 | 100 | 80 |" in page
    assert "| modern, tied head | 2.4500 | 1 | 10 | 25 | – |" in page


def test_an_unknown_variant_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(SystemExit, match="there is no variant 'moderne'"):
        recipes(text=["x"], variants=["moderne"], folder=tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_a_variant_with_its_own_dataset_is_refused_without_a_small_text(tmp_path):
    with pytest.raises(SystemExit, match="give --text-bytes"):
        recipes(text=["x"], variants=["gpt-tiny, unigram"], folder=tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def _passages(folder, name):
    return [json.loads(line)["text"] for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def test_more_training_text_keeps_the_earlier_text_and_the_validation_text(tmp_path):
    passages = [f"{number:05} " * 400 for number in range(200)]
    for size in (50_000, 100_000):
        write_small_text(passages, tmp_path / str(size), size)
    less, more = (_passages(tmp_path / str(size), "train") for size in (50_000, 100_000))
    held_out, again = (_passages(tmp_path / str(size), "validation") for size in (50_000, 100_000))
    assert held_out == again and HELD_OUT <= sum(map(len, held_out)) < HELD_OUT + len(passages[0])
    assert more[: len(less)] == less and 100_000 <= sum(map(len, more)) < 100_000 + len(passages[0])
    assert not set(more) & set(held_out)


def test_too_little_text_is_refused_with_the_missing_bytes(tmp_path):
    with pytest.raises(SystemExit, match="150,000 bytes too short"):
        write_small_text(["a" * 50_000], tmp_path / "text", 1)
    assert list(tmp_path.iterdir()) == []


def test_drawn_segmentations_differ_from_epoch_to_epoch_and_spare_the_validation_text(tmp_path, text_folder):
    text = "".join(file.read_text(encoding="utf-8") for file in sorted(text_folder.rglob("*.*")))
    passages = cut_at_lines((text * (1 + 300_000 // len(text)))[:300_000], 2_000)
    write_small_text(passages, tmp_path / "text", 30_000)
    small = SmallText(tmp_path, vocab_size=400, epochs=3)
    (plain, tokens), (drawn, more) = small.dataset({}), small.dataset({"dropout": 0.2})
    once, thrice = (TokenDataset(folder) for folder in (plain, drawn))
    assert tokens == 3 * once.info["splits"]["train"]["tokens"] < more == thrice.info["splits"]["train"]["tokens"]
    assert once.info["splits"]["validation"] == thrice.info["splits"]["validation"]


def test_groups_name_variants():
    assert all(set(names) <= set(VARIANTS) for names in GROUPS.values())


@given(st.text("ab\n", max_size=60), st.integers(1, 20))
def test_passages_are_a_document_in_pieces_that_end_lines_where_they_can(document, size):
    passages = list(cut_at_lines(document, size))
    assert "".join(passages) == document
    assert all(0 < len(passage) <= size for passage in passages)
    assert all(passage.endswith("\n") for passage in passages[:-1] if "\n" in passage)
