"""The benchmark of mixers measures speed, recall and quality, ends in time, and writes what it has."""

import json
import time
from dataclasses import asdict, replace
from typing import get_args

import pytest
import torch

from benchmarks.mixer_page import TITLES
from benchmarks.mixer_speed import CASES
from benchmarks.mixer_training import KEYS, RECALL, TEXT, VALUES, fitted, parameters, recall
from benchmarks.mixers import MIXERS, Options, Part, main, setting


@pytest.mark.parametrize("mixers", MIXERS)
@pytest.mark.parametrize("base", [TEXT, RECALL], ids=["text", "recall"])
def test_all_models_have_the_same_number_of_parameters(mixers, base):
    assert parameters(fitted(base, mixers)) == pytest.approx(parameters(base), rel=0.01)


def test_every_asked_value_was_told_with_its_key():
    ids, asked, answers = recall(5, 8, torch.Generator().manual_seed(0))
    told = [{int(pair) // VALUES: int(pair) % VALUES for pair in row} for row in ids[:, :8]]
    for place, answer in zip(asked.tolist(), answers.tolist(), strict=True):
        row, key = place // 16, int(ids.flatten()[place]) - KEYS * VALUES
        assert answer - KEYS * (VALUES + 1) == told[row][key]


def test_every_part_is_measured_and_added_to_the_earlier_ones(tmp_path, monkeypatch):
    monkeypatch.setitem(CASES, "cpu", replace(CASES["cpu"], batch_tokens=40))
    text = tmp_path / "text.txt"
    text.write_text("It was a dark and stormy night.\n" * 2_000)
    shared = {"mixers": ("attention", "mamba2 + attention"), "out": tmp_path, "text": str(text), "test_tokens": 512}
    main(Options(parts=("speed",), lengths=(20,), **shared))
    trained = {"tokens": 4096, "seeds": 2, "recall_tokens": 2048, "long_tokens": 8192, "long_mixers": ("gru",)}
    main(Options(parts=("recall", "quality", "long"), processes=2, **trained, **shared))
    results = json.loads((tmp_path / "mixers.json").read_text(encoding="utf-8"))
    speed, tests, quality, long = (results[f"{part} cpu"]["rows"] for part in get_args(Part))
    assert [row["mixer"] for row in speed] == ["attention", "mamba2 + attention"]
    assert all(row["training_tokens_per_s"] > 0 and row["kept_bytes"] > row["state_bytes"] > 0 for row in speed)
    assert all(0 <= row["accuracy"]["64"] <= 0.5 and row["curve"] for row in tests)
    assert [row["job"]["seed"] for row in quality] == [0, 0, 1, 1]
    assert all(2 < row["bits"] < 9 and row["seconds"] > 0 for row in quality)
    assert [(row["job"]["mixers"], row["job"]["tokens"], row["curve"][-1]["tokens"]) for row in long] == [
        ("gru", 8192, 8192)
    ]
    page = (tmp_path / "mixers.md").read_text(encoding="utf-8")
    assert all(f"## {title}, CPU" in page for title in TITLES.values())
    assert "stopped" not in page
    assert (tmp_path / "mixers-cpu.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_benchmark_ends_in_time_with_what_it_has(tmp_path):
    started = time.monotonic()
    main(Options(parts=("recall",), recall_tokens=10**8, minutes=0.2, out=tmp_path))
    assert time.monotonic() - started < 120  # all tokens would take hours
    rows = json.loads((tmp_path / "mixers.json").read_text(encoding="utf-8"))["recall cpu"]["rows"]
    assert [row["job"]["mixers"] for row in rows] == ["attention"]
    assert "took more than" in rows[0]["error"]
    assert "seed 0 stopped after" in (tmp_path / "mixers.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_runs_of_other_mixers_add_up_and_no_training_is_repeated(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("It was a dark and stormy night.\n" * 2_000)

    def seconds_by_training(lr, **options):
        shared = {"out": tmp_path, "text": str(text), "test_tokens": 512, "tokens": 4096, "lr": lr}
        main(Options(parts=("quality",), **shared, **options))
        rows = json.loads((tmp_path / "mixers.json").read_text(encoding="utf-8"))["quality cpu"]["rows"]
        return {(row["job"]["mixers"], row["job"]["seed"]): row["seconds"] for row in rows}

    first = seconds_by_training(1e-3, mixers=("gru",), seeds=1)
    second = seconds_by_training(1e-3, mixers=("gru", "average"), seeds=2)
    assert list(second) == [("gru", 0), ("average", 0), ("gru", 1), ("average", 1)]
    assert second[("gru", 0)] == first[("gru", 0)]
    assert list(seconds_by_training(2e-3, mixers=("average",), seeds=1)) == [("average", 0)]


def test_an_interrupted_benchmark_keeps_the_trainings_that_ended(tmp_path, monkeypatch):
    def interrupt(line):
        if "average" in str(line):
            raise KeyboardInterrupt

    monkeypatch.setattr("benchmarks.mixers.say", interrupt)
    with pytest.raises(KeyboardInterrupt):
        main(Options(parts=("recall",), mixers=("gru", "average"), recall_tokens=2048, test_tokens=512, out=tmp_path))
    rows = json.loads((tmp_path / "mixers.json").read_text(encoding="utf-8"))["recall cpu"]["rows"]
    assert [row["job"]["mixers"] for row in rows] == ["gru"]


def test_results_on_the_standard_libraries_of_two_versions_of_python_do_not_add_up():
    result = {"options": asdict(Options()), "machine": "", "torch": "2.13.0", "python": "3.11.7"}
    other = result | {"python": "3.12.3"}
    assert [part for part in get_args(Part) if setting(result, part) != setting(other, part)] == ["quality", "long"]
    books = asdict(Options(text="books.jsonl"))
    assert setting(result | {"options": books}, "quality") == setting(other | {"options": books}, "quality")
